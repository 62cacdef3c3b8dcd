//! Ambiguous requests. The gateway rejects them before it calls a provider, and records them.

use crate::harness::{CHAT_PATH, TestGateway, TestRequest, chat_body, chat_request, get_request, pick_fields};
use penstock_mock::Server;
use serde_json::json;

#[tokio::test]
async fn rejects_ambiguous_headers_by_name() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (name, value, content) in [
        ("x-gateway-provider", "openai", "`x-gateway-provider` is sent twice"),
        ("x-gateway-provider", "mock", "`x-gateway-provider` is sent twice"),
        ("x-portkey-provider", "openai", "`x-gateway-provider` and `x-portkey-provider` differ"),
        ("x_gateway_api_key", "gk", "`x_gateway_api_key` is written with hyphens: `x-gateway-api-key`"),
        ("X-Portkey_Config", "{}", "`x-portkey_config` is written with hyphens"),
        ("content-type", "text/plain", "chatComplete takes application/json"),
    ] {
        let response = gateway.send(chat_request("mock").header(name, value)).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_header"), "{name}");
        assert!(response.text().contains(content), "{}", response.text());
        assert_eq!(pick_fields(&gateway.single_record(), ["outcome", "error"]), json!(["refused", "invalid_header"]));
    }
    let duplicate_header = chat_request("mock").header("authorization", "Bearer a").header("authorization", "Bearer b");
    assert!(gateway.send(duplicate_header).await.text().contains("authorization: is sent twice"));
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn accepts_equal_duplicates_and_unrelated_headers() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (name, value) in [("x-portkey-provider", "mock"), ("x_team", "red"), ("x-gatewayed_by", "us"), ("host", "a:80")]
    {
        assert_eq!(gateway.send(chat_request("mock").header(name, value)).await.status, 200, "{name}");
    }
    assert_eq!(provider.ledger_entries().len(), 4);
}

#[tokio::test]
async fn defaults_content_type_to_json_except_on_proxy_paths() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let untold =
        |path: &str| TestRequest::new("POST", path).header("x-gateway-provider", "mock").body(chat_body("mock", false));
    for (path, kind) in [
        (CHAT_PATH, Some("application/json")),
        ("/v1/moderations", Some("application/json")),
        ("/v1/proxy/chat/completions", None),
        ("/v1/some/thing", None),
    ] {
        assert_eq!(gateway.send(untold(path)).await.status, 200, "{path}");
        let sent = provider.ledger_entries().pop().unwrap();
        let kinds: Vec<_> = sent.headers.iter().filter(|(name, _)| name == "content-type").collect();
        assert_eq!(kinds.iter().map(|(_, kind)| kind.as_str()).collect::<Vec<_>>(), Vec::from_iter(kind), "{path}");
    }
}

#[tokio::test]
async fn rejects_invalid_host_on_every_path() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for path in [CHAT_PATH, "/live", "/ready", "/v1/models", "/v1/proxy/x", "/nowhere"] {
        for host in ["", "a b", "a/b", "u@a", "a:b"] {
            let response = gateway.send(get_request(path).header("host", host)).await;
            assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_header"), "{path} {host}");
        }
        let response = gateway.send(get_request(path).header("host", "a").header("host", "a")).await;
        assert_eq!(response.status, 400, "{path}");
    }
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn large_json_body_gets_the_same_validation() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let body = |rest: &str| format!(r#"{{"model":"mock","messages":[],"x":"{}"{rest}"#, "y".repeat(300_000));
    let response = gateway.send(crate::harness::post_request(CHAT_PATH, body("}"))).await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(gateway.single_record()["ai_model"], "mock");
    let response = gateway.send(crate::harness::post_request(CHAT_PATH, body(",}"))).await;
    assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_json"));
    assert!(response.text().contains("at byte 300037"), "{}", response.text());
}
