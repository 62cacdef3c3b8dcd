//! Limits of the work that a request may cause: regular expressions, inherited parameters, and options that become a
//! path.

use crate::harness::{CHAT_PATH, TestGateway, TestRequest, chat_request, chat_with_config, post_with_config};
use penstock_mock::Server;
use serde_json::{Value, json};

fn config_with_patterns(count: usize) -> Value {
    let conditions: Vec<_> = (0..count)
        .map(|index| json!({"query": {"params.t": {"$regex": format!("a[ab]{{20}}[^abc]{{1,{}}}x", index + 1)}}, "then": "bad"}))
        .chain([json!({"query": {"params.t": {"$regex": "b$"}}, "then": "good"})])
        .collect();
    json!({"strategy": {"mode": "conditional", "conditions": conditions, "default": "bad"},
        "targets": [{"name": "good", "provider": "mock"}, {"name": "bad", "provider": "nobody"}]})
}

#[tokio::test]
async fn patterns_on_long_text_are_matched_elsewhere_or_refused() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let body = |length: usize| json!({"model": "mock", "messages": [], "t": "a".repeat(length) + "b"}).to_string();
    for length in [10, 20_000] {
        let response = gateway.send(post_with_config(&config_with_patterns(20), CHAT_PATH, body(length))).await;
        assert_eq!(
            (response.status, response.header("x-gateway-last-used-option-index")),
            (200, Some("config.targets[0]"))
        );
    }
    let response = gateway.send(post_with_config(&config_with_patterns(20), CHAT_PATH, body(500_000))).await;
    assert_eq!((response.status, &*response.error_code()), (400, "conditions_too_expensive"), "{}", response.text());
    assert!(response.text().contains("2097152"), "{}", response.text());
    assert_eq!(provider.ledger_entries().len(), 2);
}

#[tokio::test]
async fn config_with_too_many_inherited_parameters_is_refused() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = |keys: usize| {
        let fields: serde_json::Map<_, _> = (0..keys).map(|number| (format!("k{number}"), json!(0))).collect();
        let target = json!({"provider": "mock", "override_params": {"model": "mock"}});
        json!({"strategy": {"mode": "fallback"}, "default_params": fields, "targets": vec![target; 20]})
    };
    let response = gateway.send(chat_with_config(&config(2_000))).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let response = gateway.send(chat_with_config(&config(3_000))).await;
    assert_eq!((response.status, &*response.error_code()), (400, "invalid_config"));
    assert!(response.text().contains("50000"), "{}", response.text());
}

#[tokio::test]
async fn options_cannot_put_dot_segments_into_the_path() {
    let gateway = TestGateway::with_settings("", |_| ());
    for project in [".", ".."] {
        let request = TestRequest::new("POST", CHAT_PATH)
            .header("x-gateway-provider", "vertex-ai")
            .header("x-gateway-vertex-project-id", project)
            .header("x-gateway-vertex-region", "us-central1")
            .header("authorization", "Bearer token");
        let request = request.header("content-type", "application/json");
        let response =
            gateway
                .send(request.body(
                    json!({"model": "gemini-2.5-pro", "messages": [{"role": "user", "content": "hi"}]}).to_string(),
                ))
                .await;
        assert_eq!(response.error_code(), "invalid_provider_option", "{project}: {}", response.text());
    }
}

#[tokio::test]
async fn only_chunked_transfer_encoding_is_accepted() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for coding in ["gzip, chunked", "gzip", "chunked, chunked", "identity"] {
        let response = gateway.send(chat_request("mock").header("transfer-encoding", coding)).await;
        assert_eq!((response.status, &*response.error_code()), (501, "unsupported_transfer_encoding"), "{coding}");
    }
    assert_eq!(gateway.send(chat_request("mock").header("transfer-encoding", "Chunked")).await.status, 200);
}
