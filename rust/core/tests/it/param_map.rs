//! Parameter mapping for providers whose API deviates from the client format. Providers without deviations receive
//! every byte unchanged.

use crate::harness::{CHAT_PATH, golden_provider::GoldenProvider};
use serde_json::{Value, json};

const CHAT_RESPONSE: &[u8] =
    br#"{"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]}"#;

fn chat_request_body() -> Value {
    json!({"model": "m", "messages": [{"role": "developer", "content": "x".repeat(200_000)}, {"role": "user", "content": "y"}],
        "max_completion_tokens": 5, "seed": 7, "tool_choice": "required", "logprobs": true})
}

#[tokio::test]
async fn maps_chat_parameters_and_reports_dropped_ones() {
    let golden_provider = GoldenProvider::start(200, "application/json", CHAT_RESPONSE.to_vec(), 4096).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let body = chat_request_body().to_string().into_bytes();
    let system = {
        let mut body = chat_request_body();
        body["messages"][0]["role"] = "system".into();
        body
    };
    let changed = |from: &Value, gone: &[&str], put: Value| {
        let mut body = from.clone();
        let fields = body.as_object_mut().unwrap();
        fields.retain(|name, _| !gone.contains(&&**name));
        fields.extend(put.as_object().unwrap().clone());
        body
    };
    let short = json!({"max_tokens": 5});
    let mistral = json!({"max_tokens": 5, "random_seed": 7, "tool_choice": "any"});
    for (provider, expected, lost) in [
        ("openai", chat_request_body(), None),
        ("x-ai", system.clone(), None),
        ("deepseek", changed(&system, &["max_completion_tokens"], short.clone()), None),
        ("fireworks-ai", changed(&system, &["max_completion_tokens"], short), None),
        ("mistral-ai", changed(&system, &["max_completion_tokens", "seed", "logprobs"], mistral), Some("logprobs")),
        ("groq", changed(&system, &["logprobs"], json!({})), Some("logprobs")),
    ] {
        let response = gateway.send(golden_provider.build_request(provider, CHAT_PATH, body.clone())).await;
        assert_eq!((response.status, golden_provider.parse_last_request().1), (200, expected), "{provider}");
        assert_eq!(response.header("x-gateway-not-translated"), lost, "{provider}");
    }
}

#[tokio::test]
async fn passes_proxy_requests_through_unchanged() {
    let golden_provider = GoldenProvider::start(200, "application/json", CHAT_RESPONSE.to_vec(), 4096).await;
    let forced = golden_provider.build_request(
        "mistral-ai",
        "/v1/proxy/chat/completions",
        chat_request_body().to_string().into_bytes(),
    );
    for (count, request) in [(1, forced), (2, GoldenProvider::passthrough_request(CHAT_PATH, chat_request_body()))] {
        let response = golden_provider.gateway_with_saved_provider("mistral-ai").send(request).await;
        assert_eq!(
            (response.status, golden_provider.request_lines.lock().unwrap().len()),
            (200, count),
            "{}",
            response.text()
        );
        assert_eq!(golden_provider.parse_last_request().1, chat_request_body());
    }
}

#[tokio::test]
async fn maps_parameters_of_translated_requests_too() {
    let golden_provider = GoldenProvider::start(200, "application/json", CHAT_RESPONSE.to_vec(), 4096).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let body = json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}],
        "tools": [{"name": "t", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}});
    let response =
        gateway.send(golden_provider.build_request("mistral-ai", "/v1/messages", body.to_string().into_bytes())).await;
    assert_eq!((response.status, &golden_provider.parse_last_request().1["tool_choice"]), (200, &json!("any")));
}

#[tokio::test]
async fn maps_tool_history_only_for_mistral_models_on_azure() {
    let golden_provider = GoldenProvider::start(200, "application/json", CHAT_RESPONSE.to_vec(), 4096).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    for (model, bridge) in [("mistral-medium-2505", &["assistant"][..]), ("gpt-4o", &[])] {
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let body = json!({"model": model, "messages": [{"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "1"}, {"role": "user", "content": "x"}]});
        let response =
            gateway.send(golden_provider.build_request("azure-ai", CHAT_PATH, body.to_string().into_bytes())).await;
        let sent = golden_provider.parse_last_request().1;
        let roles: Vec<_> =
            sent["messages"].as_array().unwrap().iter().filter_map(|item| item["role"].as_str()).collect();
        assert_eq!(
            (response.status, roles),
            (200, [&["assistant", "tool"][..], bridge, &["user"]].concat()),
            "{model}"
        );
        assert_eq!(sent["messages"][1]["tool_call_id"] == "c", bridge.is_empty(), "{model}");
    }
}
