//! Thousands of ways to write a host that must not be called, through everything that takes one: nothing is dialled.

use std::time::Duration;

use crate::harness::{
    Ask, CHAT, Rig, Told, get,
    scripted::{Scripted, hears_something, whole},
    spellings::forbidden,
    words,
};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::net::TcpListener;

const CANARY: &str = "sk-canary";

/// Listens on every address of this machine.
async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("[::]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn ask(target: &str, provider: &str) -> Ask {
    let ask =
        Ask::new("POST", target).header("x-gateway-provider", provider).header("content-type", "application/json");
    ask.header("authorization", &format!("Bearer {CANARY}")).body(words("m", false))
}

/// What takes a host with a request, and how it is asked.
type Surface = (&'static str, fn(&str) -> Ask);

const WITH_REQUESTS: [Surface; 5] = [
    ("the header", |url| ask(CHAT, "openai").header("x-gateway-custom-host", url)),
    ("the header under its other name", |url| ask(CHAT, "openai").header("x-portkey-custom-host", url)),
    ("an inline config", |url| {
        ask(CHAT, "openai").header("x-gateway-config", &json!({"custom_host": url}).to_string())
    }),
    ("the header of a raw request", |url| ask("/v1/proxy/files", "openai").header("x-gateway-custom-host", url)),
    ("the header of another path", |url| ask("/v1/threads/x", "openai").header("x-gateway-custom-host", url)),
];

fn assert_refused(told: &Told, what: &str, url: &str) {
    let text = told.text();
    assert_eq!(told.status, 400, "{what}, {url:?}: {text}");
    let by_config = told.code() == "invalid_config" && text.contains("custom_host");
    assert!(told.code() == "invalid_custom_host" || by_config, "{what}, {url:?}: {text}");
    assert!(!text.contains(CANARY), "{what}, {url:?}: {text}");
}

fn saved(url: &str, index: usize) -> (Value, Value) {
    let provider = json!({"slug": format!("p-{index}"), "provider": "openai", "api_key": CANARY, "custom_host": url});
    let config = json!({"slug": format!("c-{index}"), "config": {"provider": "openai", "custom_host": url}});
    (provider, config)
}

#[tokio::test]
async fn there_are_thousands() {
    assert!(forbidden(9).len() >= 2_000, "{}", forbidden(9).len());
}

#[tokio::test]
async fn no_forbidden_host_of_a_request_is_dialled() {
    let (listener, port) = listener().await;
    let rig = Rig::with("", |_| ());
    for (what, ask) in WITH_REQUESTS {
        for url in forbidden(port) {
            assert_refused(&rig.send(ask(&url)).await, what, &url);
        }
    }
    assert!(!hears_something(&listener, Duration::from_millis(100)).await);
}

#[tokio::test]
async fn no_forbidden_host_of_what_is_saved_is_dialled() {
    let (listener, port) = listener().await;
    let rig = Rig::with("", |_| ());
    let (mut providers, mut configs, mut at_once) = (Vec::new(), Vec::new(), 0);
    for (index, url) in forbidden(port).iter().enumerate() {
        let (provider, config) = saved(url, index);
        let snapshot = json!({"epoch": "1", "providers": [provider], "configs": [config]}).to_string();
        match rig.gateway.apply_snapshot(snapshot.as_bytes()) {
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
    rig.apply(&json!({"epoch": "2", "providers": providers, "configs": configs}));
    for (provider, config) in providers.iter().zip(&configs) {
        let url = provider["custom_host"].as_str().unwrap();
        let slug = |row: &Value| row["slug"].as_str().unwrap().to_owned();
        let told = rig.send(ask(CHAT, &format!("@{}", slug(provider)))).await;
        assert_refused(&told, "a saved provider", url);
        let told = rig.send(ask("/v1/proxy/x", "openai").header("x-gateway-config", &slug(config))).await;
        assert_refused(&told, "a saved config", url);
    }
    assert!(!hears_something(&listener, Duration::from_millis(100)).await);
}

#[tokio::test]
async fn no_path_of_a_raw_request_leads_to_another_host() {
    let (listener, port) = listener().await;
    let provider = Scripted::answering(whole("200 OK", "", "{}")).await;
    let rig = Rig::at(&provider.url());
    for url in forbidden(port) {
        for path in [format!("/v1/proxy/{url}"), format!("/v1/proxy//{}", url.trim_start_matches("http://"))] {
            let visible: String = path.chars().filter(char::is_ascii_graphic).collect();
            let told = rig.send(get(&visible)).await;
            assert!([200, 400].contains(&told.status), "{visible}: {}", told.text());
        }
    }
    assert!(provider.connections() > 0);
    assert!(!hears_something(&listener, Duration::from_millis(100)).await);
}

#[tokio::test]
async fn the_same_ways_lead_to_a_host_that_is_trusted() {
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
        let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec![trusted.into()]);
        let url = format!("http://{host}:{port}/v1");
        let (by_provider, by_config) = saved(&url, 1);
        rig.apply(&json!({"epoch": "1", "providers": [by_provider], "configs": [by_config]}));
        let before = provider.ledger_entries().len();
        for (what, ask) in WITH_REQUESTS {
            assert_eq!(rig.send(ask(&url)).await.status, 200, "{what}, {url}");
        }
        assert_eq!(rig.send(ask(CHAT, "@p-1")).await.status, 200, "{url}");
        assert_eq!(rig.send(ask("/v1/proxy/x", "openai").header("x-gateway-config", "c-1")).await.status, 200, "{url}");
        assert_eq!(provider.ledger_entries().len() - before, WITH_REQUESTS.len() + 2);
    }
}
