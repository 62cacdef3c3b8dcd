//! Conditional routing on every route. Metadata, parameters and path of a request select its target.

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, chat_body, chat_with_config, mock_target, post_with_config, routing_headers,
    wait_for_ledger_entries,
};
use penstock_mock::Server;
use serde_json::{Value, json};

fn named_target(name: &str) -> Value {
    let mut target = mock_target("chunks=1");
    target["name"] = json!(name);
    target
}

fn conditional_config(conditions: &Value) -> Value {
    json!({"strategy": {"mode": "conditional", "conditions": conditions, "default": "other"},
        "targets": [named_target("first"), named_target("second"), named_target("other")]})
}

#[tokio::test]
async fn first_matching_condition_selects_the_target() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = conditional_config(&json!([
        {"query": {"metadata.plan": {"$eq": "paid"}}, "then": "first"},
        {"query": {"$or": [{"params.model": {"$regex": "^gpt-"}}, {"params.max_tokens": {"$gt": 100}}]}, "then": "second"},
    ]));
    let long = json!({"model": "m", "max_tokens": 101, "messages": []}).to_string();
    for (metadata, body, expected) in [
        (r#"{"plan":"paid"}"#, chat_body("gpt-5", false), 0),
        (r#"{"plan":"free"}"#, chat_body("gpt-5", false), 1),
        (r#"{"plan":"free"}"#, long, 1),
        (r#"{"plan":"free"}"#, chat_body("mock", false), 2),
    ] {
        let response =
            gateway.send(post_with_config(&config, CHAT_PATH, body).header("x-gateway-metadata", metadata)).await;
        assert_eq!(
            (response.status, routing_headers(&response)[0]),
            (200, format!("config.targets[{expected}]").as_str())
        );
    }
    let conditions: Vec<_> =
        gateway.drain_records().iter().map(|record| record["decisions"][0]["condition"].clone()).collect();
    assert_eq!(conditions, [json!(0), json!(1), json!(1), json!(null)]);
}

#[tokio::test]
async fn matches_original_path_and_proxy_body_params() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = conditional_config(&json!([
        {"query": {"url.pathname": {"$regex": "/messages$"}}, "then": "first"},
        {"query": {"url.pathname": "/v1/proxy/chat/completions", "params.stream": true}, "then": "second"},
    ]));
    for (path, stream, expected) in [
        (MESSAGES_PATH, false, 0),
        ("/v1/proxy/chat/completions", true, 1),
        ("/v1/proxy/chat/completions", false, 2),
        (CHAT_PATH, true, 2),
    ] {
        let response = gateway.send(post_with_config(&config, path, chat_body("mock", stream))).await;
        assert_eq!(
            (response.status, routing_headers(&response)[0]),
            (200, format!("config.targets[{expected}]").as_str()),
            "{path}"
        );
    }
}

#[tokio::test]
async fn rejects_unmatched_request_without_default() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut config = conditional_config(&json!([{"query": {"metadata.plan": "paid"}, "then": "first"}]));
    config["strategy"].as_object_mut().unwrap().remove("default");
    let response = gateway.send(chat_with_config(&config)).await;
    assert_eq!(
        (response.status, response.error_code().as_str(), &response.json()["status"]),
        (400, "no_matching_target", &json!("failure"))
    );
    wait_for_ledger_entries(&provider, 0).await;
}

#[tokio::test]
async fn reports_condition_errors_with_json_paths() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway
        .send(chat_with_config(&conditional_config(&json!([
            {"query": {"metadata.plan": {"$like": 1}}, "then": "first"},
            {"query": {}, "then": "nobody"},
        ]))))
        .await;
    assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_config"));
    let errors = response.json()["errors"].to_string();
    assert!(
        errors.contains("strategy.conditions[0].query.metadata.plan.$like")
            && errors.contains("strategy.conditions[1].then"),
        "{errors}"
    );
}
