//! SSRF protection of custom hosts. Private and metadata addresses are not dialled, in any spelling and from any
//! source.

use std::time::Duration;

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, chat_body, chat_request, get_request,
    scripted_server::accepts_connection_within,
};
use penstock_mock::Server;
use serde_json::json;
use tokio::net::TcpListener;

const METADATA_HOSTS: [&str; 9] = [
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "[fd00:ec2::254]",
    "169.254.170.2",
    "100.100.100.200",
];

fn request_to_host(host: &str) -> TestRequest {
    TestRequest::new("POST", CHAT_PATH)
        .header("x-gateway-provider", "openai")
        .header("authorization", "Bearer sk-canary")
        .header("x-gateway-custom-host", host)
        .body(chat_body("mock", false))
}

/// URLs for loopback in every spelling that a URL allows.
fn loopback_urls(port: u16) -> Vec<String> {
    [
        "127.0.0.1",
        "127.0.0.1.",
        "localhost",
        "LocalHost",
        "127.1",
        "127.0.1",
        "127.1.2.3",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "0.0.0.0",
        "0",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
        "%31%32%37.0.0.1",
        "１２７.0.0.1",
        "127。0。0。1",
        "①②⑦.0.0.1",
    ]
    .iter()
    .map(|host| format!("http://{host}:{port}/v1"))
    .collect()
}

#[tokio::test]
async fn rejects_loopback_in_every_spelling() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let gateway = TestGateway::with_settings("", |_| ());
    for host in loopback_urls(port) {
        let response = gateway.send(request_to_host(&host)).await;
        assert_eq!(
            (response.status, response.error_code().as_str()),
            (400, "invalid_custom_host"),
            "{host}: {}",
            response.text()
        );
        assert!(!response.text().contains("canary"));
    }
    assert!(!accepts_connection_within(&listener, Duration::from_millis(50)).await);
}

#[tokio::test]
async fn rejects_private_and_reserved_addresses() {
    let gateway = TestGateway::with_settings("", |_| ());
    for host in [
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "198.18.0.1",
        "169.254.1.1",
        "224.0.0.1",
        "255.255.255.255",
        "[fe80::1]",
        "[fc00::1]",
        "[ff02::1]",
        "[2001:db8::1]",
        "[64:ff9b::10.0.0.1]",
        "[2002:a00:1::]",
    ] {
        let response = gateway.send(request_to_host(&format!("http://{host}"))).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_custom_host"), "{host}");
    }
}

#[tokio::test]
async fn rejects_metadata_services_even_if_trusted() {
    let trusted: Vec<_> = METADATA_HOSTS.iter().map(|host| host.trim_matches(['[', ']']).to_owned()).collect();
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = trusted);
    for host in METADATA_HOSTS {
        let response = gateway.send(request_to_host(&format!("http://{host}"))).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_custom_host"), "{host}");
        assert!(response.text().contains("metadata"), "{host}: {}", response.text());
    }
}

#[tokio::test]
async fn dials_a_trusted_host() {
    let provider = Server::start().await;
    for host in ["127.0.0.1", "LOCALHOST", " localhost "] {
        let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec![host.into()]);
        let url = format!("http://{}:{}/v1", host.trim(), provider.addr.port());
        // `localhost` may also resolve to ::1, where nothing listens; the next address is tried.
        assert_eq!(gateway.send(request_to_host(&url)).await.status, 200, "{host}");
    }
}

#[tokio::test]
async fn trusting_one_name_does_not_trust_similar_names() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let trusted = ["host", "ocalhost", "x.localhost", "127.0.0.2", "0.0.1", ""];
    let gateway = TestGateway::with_settings("", |settings| {
        settings.trusted_custom_hosts = trusted.iter().map(ToString::to_string).collect();
    });
    for host in ["localhost", "127.0.0.1"] {
        let response = gateway.send(request_to_host(&format!("http://{host}:{port}"))).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_custom_host"), "{host}");
    }
    // With the trailing root dot the name may not resolve at all.
    assert!([400, 502].contains(&gateway.send(request_to_host(&format!("http://localhost.:{port}"))).await.status));
    assert!(!accepts_connection_within(&listener, Duration::from_millis(30)).await);
}

#[tokio::test]
async fn trusts_mock_provider_address_at_its_own_port_only() {
    let provider = Server::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = TestGateway::for_provider(&provider);
    assert_eq!(gateway.send(chat_request("mock")).await.status, 200);
    let response = gateway.send(request_to_host(&format!("http://{}", listener.local_addr().unwrap()))).await;
    assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_custom_host"));
    assert!(!accepts_connection_within(&listener, Duration::from_millis(30)).await);
}

#[tokio::test]
async fn checks_hosts_of_configs_and_saved_providers() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = format!("http://{}/v1", listener.local_addr().unwrap());
    let gateway = TestGateway::with_settings("", |_| ());
    let config = json!({"provider": "openai", "custom_host": host});
    gateway.apply_snapshot(&json!({"epoch": "1",
        "providers": [{"slug": "near", "provider": "openai", "api_key": "sk-canary", "custom_host": host}],
        "configs": [{"slug": "pc-near", "config": config}, {"slug": "pc-via", "config": {"provider": "@near"}}]}));
    let build_request =
        |name, value: &str| TestRequest::new("POST", CHAT_PATH).header(name, value).body(chat_body("mock", false));
    for build_request in [
        build_request("x-gateway-config", &config.to_string()),
        build_request("x-gateway-config", "pc-near"),
        build_request("x-gateway-config", "pc-via"),
        build_request("x-gateway-provider", "@near"),
    ] {
        let response = gateway.send(build_request).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_custom_host"));
    }
    assert!(!accepts_connection_within(&listener, Duration::from_millis(30)).await);
}

#[tokio::test]
async fn rejects_hosts_that_are_not_plain_http_urls() {
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    for host in [
        "ftp://127.0.0.1",
        "file:///etc/passwd",
        "unix:/run/control.sock",
        "gopher://127.0.0.1",
        "http://user:pass@127.0.0.1",
        "http://api.openai.com@127.0.0.1",
        "http://127.0.0.1?x=1",
        "http://127.0.0.1#api.openai.com",
        "http://",
        "127.0.0.1:80",
        "http://127.0.0.1:99999",
        "http://1.2.3.4.5",
        "http://256.256.256.256",
        "http://[::1%25eth0]",
        "javascript:alert(1)",
    ] {
        let response = gateway.send(request_to_host(host)).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_custom_host"), "{host}");
    }
}

#[tokio::test]
async fn a_path_cannot_change_the_host() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for path in ["/v1/proxy//169.254.169.254/x", "/v1/proxy/@169.254.169.254/x", "/v1/proxy/http://169.254.169.254/x"] {
        let echo = gateway.send(get_request(path)).await.json();
        assert_eq!(echo["headers"]["host"], provider.addr.to_string(), "{path}");
        assert!(echo["path"].as_str().unwrap().starts_with("/v1/"), "{echo}");
    }
}
