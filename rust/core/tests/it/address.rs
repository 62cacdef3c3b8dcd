//! Private and metadata addresses are not dialled, however they are spelled and whoever names them.

use std::time::Duration;

use crate::harness::{Ask, CHAT, Rig, chat, get, scripted::hears_something, words};
use penstock_mock::Server;
use serde_json::json;
use tokio::net::TcpListener;

const METADATA: [&str; 9] = [
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

fn to(host: &str) -> Ask {
    Ask::new("POST", CHAT)
        .header("x-gateway-provider", "openai")
        .header("authorization", "Bearer sk-canary")
        .header("x-gateway-custom-host", host)
        .body(words("mock", false))
}

/// Loopback by all the names that a URL can give it.
fn loopback(port: u16) -> Vec<String> {
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
async fn loopback_is_not_dialled_however_it_is_spelled() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let rig = Rig::with("", |_| ());
    for host in loopback(port) {
        let told = rig.send(to(&host)).await;
        assert_eq!((told.status, told.code().as_str()), (400, "invalid_custom_host"), "{host}: {}", told.text());
        assert!(!told.text().contains("canary"));
    }
    assert!(!hears_something(&listener, Duration::from_millis(50)).await);
}

#[tokio::test]
async fn private_and_reserved_addresses_are_not_dialled() {
    let rig = Rig::with("", |_| ());
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
        let told = rig.send(to(&format!("http://{host}"))).await;
        assert_eq!((told.status, told.code().as_str()), (400, "invalid_custom_host"), "{host}");
    }
}

#[tokio::test]
async fn metadata_services_are_not_dialled_even_where_they_are_trusted() {
    let trusted: Vec<_> = METADATA.iter().map(|host| host.trim_matches(['[', ']']).to_owned()).collect();
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = trusted);
    for host in METADATA {
        let told = rig.send(to(&format!("http://{host}"))).await;
        assert_eq!((told.status, told.code().as_str()), (400, "invalid_custom_host"), "{host}");
        assert!(told.text().contains("metadata"), "{host}: {}", told.text());
    }
}

#[tokio::test]
async fn a_trusted_host_is_dialled() {
    let provider = Server::start().await;
    for host in ["127.0.0.1", "LOCALHOST", " localhost "] {
        let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec![host.into()]);
        let url = format!("http://{}:{}/v1", host.trim(), provider.addr.port());
        // A name may stand for ::1 too, where nobody listens: the next address is tried.
        assert_eq!(rig.send(to(&url)).await.status, 200, "{host}");
    }
}

#[tokio::test]
async fn trust_in_one_name_is_no_trust_in_another() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let trusted = ["host", "ocalhost", "x.localhost", "127.0.0.2", "0.0.1", ""];
    let rig = Rig::with("", |settings| {
        settings.trusted_custom_hosts = trusted.iter().map(ToString::to_string).collect();
    });
    for host in ["localhost", "127.0.0.1"] {
        let told = rig.send(to(&format!("http://{host}:{port}"))).await;
        assert_eq!((told.status, told.code().as_str()), (400, "invalid_custom_host"), "{host}");
    }
    // With the root's dot it may not resolve at all.
    assert!([400, 502].contains(&rig.send(to(&format!("http://localhost.:{port}"))).await.status));
    assert!(!hears_something(&listener, Duration::from_millis(30)).await);
}

#[tokio::test]
async fn the_pretend_providers_address_is_trusted_at_its_own_port_only() {
    let provider = Server::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rig = Rig::before(&provider);
    assert_eq!(rig.send(chat("mock")).await.status, 200);
    let told = rig.send(to(&format!("http://{}", listener.local_addr().unwrap()))).await;
    assert_eq!((told.status, told.code().as_str()), (400, "invalid_custom_host"));
    assert!(!hears_something(&listener, Duration::from_millis(30)).await);
}

#[tokio::test]
async fn configs_and_saved_providers_are_judged_alike() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = format!("http://{}/v1", listener.local_addr().unwrap());
    let rig = Rig::with("", |_| ());
    let config = json!({"provider": "openai", "custom_host": host});
    rig.apply(&json!({"epoch": "1",
        "providers": [{"slug": "near", "provider": "openai", "api_key": "sk-canary", "custom_host": host}],
        "configs": [{"slug": "pc-near", "config": config}, {"slug": "pc-via", "config": {"provider": "@near"}}]}));
    let ask = |name, value: &str| Ask::new("POST", CHAT).header(name, value).body(words("mock", false));
    for ask in [
        ask("x-gateway-config", &config.to_string()),
        ask("x-gateway-config", "pc-near"),
        ask("x-gateway-config", "pc-via"),
        ask("x-gateway-provider", "@near"),
    ] {
        let told = rig.send(ask).await;
        assert_eq!((told.status, told.code().as_str()), (400, "invalid_custom_host"));
    }
    assert!(!hears_something(&listener, Duration::from_millis(30)).await);
}

#[tokio::test]
async fn what_is_no_plain_url_is_refused() {
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
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
        let told = rig.send(to(host)).await;
        assert_eq!((told.status, told.code().as_str()), (400, "invalid_custom_host"), "{host}");
    }
}

#[tokio::test]
async fn a_path_cannot_change_the_host() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for path in ["/v1/proxy//169.254.169.254/x", "/v1/proxy/@169.254.169.254/x", "/v1/proxy/http://169.254.169.254/x"] {
        let echo = rig.send(get(path)).await.json();
        assert_eq!(echo["headers"]["host"], provider.addr.to_string(), "{path}");
        assert!(echo["path"].as_str().unwrap().starts_with("/v1/"), "{echo}");
    }
}
