//! Scopes of requests for prompts: `completions.write` runs them, `prompts.render` shows their text.

use serde_json::{Value, json};

use crate::{
    harness::{TestRequest, TestResponse, golden_provider::GoldenProvider, sha256_hex},
    prompts::{CHAT_RESPONSE, greeting_prompts},
};

/// Sends a request with a key that has both scopes, one of them, or none. Returns the response and the number of
/// records.
async fn call(action: &str, key: &str) -> (TestResponse, usize) {
    let provider = GoldenProvider::start(200, "application/json", CHAT_RESPONSE.into(), 4096).await;
    let gateway = crate::prompts::start_gateway(&provider, &greeting_prompts());
    let row = |key: &str, lacks: Value| json!({"id": key, "workspace": "w", "sha256": sha256_hex(key), "lacks": lacks});
    let keys = json!([
        row("both", Value::Null),
        row("calls", json!("render")),
        row("renders", json!("completions")),
        row("neither", json!("scope"))
    ]);
    let parts = json!([{"name": "prompts/00", "prompts": greeting_prompts()}, {"name": "keys/00", "keys": keys}]);
    let saved = json!({"slug": "mine", "provider": "openai", "workspace": "w", "api_key": "sk", "custom_host": provider.server.url()});
    let partial = json!({"id": "pa", "slug": "tone", "workspace": "w", "default": 1, "latest": 1,
        "versions": [{"number": 1, "string": "Be kind."}]});
    gateway.apply_snapshot(&json!({"epoch": "2", "workspaces": [{"id": "w", "slug": "here", "organisation_id": "o"}],
        "providers": [saved], "parts": [parts[0], parts[1], {"name": "prompt_partials/00", "partials": [partial]}]}));
    let request = TestRequest::new("POST", &format!("/v1/{action}")).header("content-type", "application/json");
    let chat = json!({"model": "@mine/m", "messages": []});
    let body = if action.starts_with("prompts") { json!({}) } else { chat };
    let response = gateway.send(request.header("x-gateway-api-key", key).body(body.to_string())).await;
    (response, gateway.drain_records().len())
}

#[tokio::test]
async fn each_scope_allows_its_own_request() {
    let (render, complete) = ("prompts/greeting/render", "prompts/greeting/completions");
    for (action, key, status) in [
        (render, "both", 200),
        (render, "renders", 200),
        (render, "calls", 403),
        (render, "neither", 403),
        (render, "unknown", 401),
        (complete, "both", 200),
        (complete, "calls", 200),
        (complete, "renders", 403),
        (complete, "neither", 403),
        ("prompts/greeting/compare", "renders", 403),
        ("chat/completions", "renders", 403),
        ("chat/completions", "calls", 200),
    ] {
        let (response, _) = call(action, key).await;
        assert_eq!(response.status, status, "{action} with {key}: {}", response.text());
    }
    let (refused, records) = call(render, "calls").await;
    assert!(refused.text().contains("this key may not render prompts: it lacks the scope prompts.render"));
    assert_eq!(records, 0);
    let (refused, _) = call(complete, "renders").await;
    assert!(refused.text().contains("this key may not call models: it lacks the scope completions.write"));
}
