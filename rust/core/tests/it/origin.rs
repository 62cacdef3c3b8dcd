//! SSRF corpus: thousands of spellings of forbidden hosts, sent through every input that accepts a host. None is
//! dialled.

use std::time::Duration;

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, TestResponse, chat_body, get_request,
    scripted_server::{ScriptedServer, accepts_connection_within, json_response},
    spellings::forbidden_urls,
};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::net::TcpListener;

const CANARY_KEY: &str = "sk-canary";

/// Listens on every address of this machine. Returns the listener and its port.
async fn start_listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("[::]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn request_with_canary(target: &str, provider: &str) -> TestRequest {
    let request = TestRequest::new("POST", target)
        .header("x-gateway-provider", provider)
        .header("content-type", "application/json");
    request.header("authorization", &format!("Bearer {CANARY_KEY}")).body(chat_body("m", false))
}

/// Name of a request input that accepts a host, and a function that builds a request with a URL in it.
type HostInput = (&'static str, fn(&str) -> TestRequest);

const REQUEST_HOST_INPUTS: [HostInput; 5] = [
    ("the header", |url| request_with_canary(CHAT_PATH, "openai").header("x-gateway-custom-host", url)),
    ("the header under its other name", |url| {
        request_with_canary(CHAT_PATH, "openai").header("x-portkey-custom-host", url)
    }),
    ("an inline config", |url| {
        request_with_canary(CHAT_PATH, "openai").header("x-gateway-config", &json!({"custom_host": url}).to_string())
    }),
    ("the header of a raw request", |url| {
        request_with_canary("/v1/proxy/files", "openai").header("x-gateway-custom-host", url)
    }),
    ("the header of another path", |url| {
        request_with_canary("/v1/threads/x", "openai").header("x-gateway-custom-host", url)
    }),
];

fn assert_refused(response: &TestResponse, label: &str, url: &str) {
    let text = response.text();
    assert_eq!(response.status, 400, "{label}, {url:?}: {text}");
    let by_config = response.error_code() == "invalid_config" && text.contains("custom_host");
    assert!(response.error_code() == "invalid_custom_host" || by_config, "{label}, {url:?}: {text}");
    assert!(!text.contains(CANARY_KEY), "{label}, {url:?}: {text}");
}

fn saved_provider_and_config(url: &str, index: usize) -> (Value, Value) {
    let provider =
        json!({"slug": format!("p-{index}"), "provider": "openai", "api_key": CANARY_KEY, "custom_host": url});
    let config = json!({"slug": format!("c-{index}"), "config": {"provider": "openai", "custom_host": url}});
    (provider, config)
}

#[tokio::test]
async fn corpus_has_at_least_2000_urls() {
    assert!(forbidden_urls(9).len() >= 2_000, "{}", forbidden_urls(9).len());
}

#[tokio::test]
async fn request_never_dials_a_forbidden_host() {
    let (listener, port) = start_listener().await;
    let gateway = TestGateway::with_settings("", |_| ());
    for (label, request) in REQUEST_HOST_INPUTS {
        for url in forbidden_urls(port) {
            assert_refused(&gateway.send(request(&url)).await, label, &url);
        }
    }
    assert!(!accepts_connection_within(&listener, Duration::from_millis(100)).await);
}

#[tokio::test]
async fn saved_provider_or_config_never_dials_a_forbidden_host() {
    let (listener, port) = start_listener().await;
    let gateway = TestGateway::with_settings("", |_| ());
    let (mut providers, mut configs, mut at_once) = (Vec::new(), Vec::new(), 0);
    for (index, url) in forbidden_urls(port).iter().enumerate() {
        let (provider, config) = saved_provider_and_config(url, index);
        let snapshot = json!({"epoch": "1", "providers": [provider], "configs": [config]}).to_string();
        match gateway.state.apply_snapshot(snapshot.as_bytes()) {
            Ok(()) => {
                providers.push(provider);
                configs.push(config);
            }
            Err(problems) => {
                let paths: Vec<_> = problems.iter().map(|problem| problem.path.as_str()).collect();
                assert_eq!(paths, ["$.providers[0].custom_host", "$.configs[0].config.custom_host"], "{url:?}");
                at_once += 1;
            }
        }
    }
    assert!(at_once > 500 && providers.len() > 500, "{at_once} refused when saved, {} later", providers.len());
    gateway.apply_snapshot(&json!({"epoch": "2", "providers": providers, "configs": configs}));
    for (provider, config) in providers.iter().zip(&configs) {
        let url = provider["custom_host"].as_str().unwrap();
        let slug = |row: &Value| row["slug"].as_str().unwrap().to_owned();
        let response = gateway.send(request_with_canary(CHAT_PATH, &format!("@{}", slug(provider)))).await;
        assert_refused(&response, "a saved provider", url);
        let response =
            gateway.send(request_with_canary("/v1/proxy/x", "openai").header("x-gateway-config", &slug(config))).await;
        assert_refused(&response, "a saved config", url);
    }
    assert!(!accepts_connection_within(&listener, Duration::from_millis(100)).await);
}

#[tokio::test]
async fn raw_request_path_cannot_change_the_host() {
    let (listener, port) = start_listener().await;
    let provider = ScriptedServer::start_responding(json_response("200 OK", "", "{}")).await;
    let gateway = TestGateway::for_url(&provider.url());
    for url in forbidden_urls(port) {
        for path in [format!("/v1/proxy/{url}"), format!("/v1/proxy//{}", url.trim_start_matches("http://"))] {
            let visible: String = path.chars().filter(char::is_ascii_graphic).collect();
            let response = gateway.send(get_request(&visible)).await;
            assert!([200, 400].contains(&response.status), "{visible}: {}", response.text());
        }
    }
    assert!(provider.connection_count() > 0);
    assert!(!accepts_connection_within(&listener, Duration::from_millis(100)).await);
}

#[tokio::test]
async fn trusted_host_is_reached_through_every_input() {
    let provider = Server::start().await;
    let port = provider.addr.port();
    for (trusted, host) in [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "2130706433"),
        ("127.0.0.1", "0x7f.1"),
        ("::ffff:127.0.0.1", "[::ffff:7f00:1]"),
        ("localhost", "LocalHost"),
        ("*.localhost", "localhost"),
    ] {
        let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec![trusted.into()]);
        let url = format!("http://{host}:{port}/v1");
        let (by_provider, by_config) = saved_provider_and_config(&url, 1);
        gateway.apply_snapshot(&json!({"epoch": "1", "providers": [by_provider], "configs": [by_config]}));
        let before = provider.ledger_entries().len();
        for (label, request) in REQUEST_HOST_INPUTS {
            assert_eq!(gateway.send(request(&url)).await.status, 200, "{label}, {url}");
        }
        assert_eq!(gateway.send(request_with_canary(CHAT_PATH, "@p-1")).await.status, 200, "{url}");
        assert_eq!(
            gateway.send(request_with_canary("/v1/proxy/x", "openai").header("x-gateway-config", "c-1")).await.status,
            200,
            "{url}"
        );
        assert_eq!(provider.ledger_entries().len() - before, REQUEST_HOST_INPUTS.len() + 2);
    }
}
