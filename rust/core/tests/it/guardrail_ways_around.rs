//! Ways around a denying or redacting guardrail that clients and providers may try: whole requests over real sockets.

use serde_json::{Value, json};

use crate::harness::{CHAT_PATH, TestGateway, TestResponse, played::GoldenProvider, post_with_config};

const WORD: &str = "CANARY";

fn chat_response(message: &Value) -> String {
    json!({"id": "c", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    .to_string()
}

fn request(content: &str) -> Value {
    json!({"model": "gpt-x", "messages": [{"role": "user", "content": content}]})
}

/// Sends a request through a gateway. Returns the response, and what the provider got; `None` if it got nothing.
async fn send(
    provider_name: &str,
    path: &str,
    config: Value,
    request: &Value,
    provider: GoldenProvider,
) -> (TestResponse, Option<String>) {
    let gateway: TestGateway = GoldenProvider::gateway_trusting_loopback();
    let mut config = config;
    config["provider"] = json!(provider_name);
    config["api_key"] = json!("sk-1");
    config["custom_host"] = json!(provider.server.url());
    let response = gateway.send(post_with_config(&config, path, request.to_string())).await;
    let was_called = !provider.request_lines.lock().unwrap().is_empty();
    let sent = was_called.then(|| provider.parse_last_request().1.to_string());
    (response, sent)
}

async fn chat_provider(message: &Value) -> GoldenProvider {
    GoldenProvider::start(200, "application/json", chat_response(message).into_bytes(), 4096).await
}

fn denying() -> Value {
    json!({"id": "default", "deny": true, "contains": {"words": [WORD], "operator": "none", "scope": "all"}})
}

#[tokio::test]
async fn later_guardrails_check_what_earlier_ones_write() {
    let glue = json!({"regexReplace": {"rule": "_X_", "redactText": "", "scope": "all"}});
    let prefix = json!({"addPrefix": {"prefix": "CANARY "}});
    for (first, content) in [(&glue, "CAN_X_ARY"), (&prefix, "hi")] {
        let config = json!({"input_guardrails": [first, denying()]});
        let provider = chat_provider(&json!({"role": "assistant", "content": "ok"})).await;
        let (response, sent) = send("openai", CHAT_PATH, config, &request(content), provider).await;
        assert_eq!((response.status, sent), (446, None), "{content}: {}", response.text());
    }
    let config = json!({"output_guardrails": [glue, denying()]});
    let provider = chat_provider(&json!({"role": "assistant", "content": "CAN_X_ARY"})).await;
    let (response, _) = send("openai", CHAT_PATH, config, &request("hi"), provider).await;
    assert_eq!(response.status, 446, "{}", response.text());
    assert!(!response.text().contains(WORD), "{}", response.text());
}

#[tokio::test]
async fn all_redactions_of_a_request_hold() {
    let words = |word: &str| json!({"rule": word, "redactText": "#", "scope": "all"});
    let in_one = json!({"input_guardrails": [{"a": {"id": "default.regexReplace", "rule": "CANARY", "redactText": "#"},
        "b": {"id": "default.regexReplace", "rule": "SECOND", "redactText": "#"}}]});
    let in_two = json!({"input_guardrails": [{"regexReplace": words("CANARY")}, {"regexReplace": words("SECOND")}]});
    for config in [in_one, in_two] {
        let provider = chat_provider(&json!({"role": "assistant", "content": "ok"})).await;
        let (response, sent) = send("openai", CHAT_PATH, config.clone(), &request("CANARY and SECOND"), provider).await;
        assert_eq!(response.status, 200, "{config}: {}", response.text());
        let sent = sent.unwrap();
        assert!(!sent.contains(WORD) && !sent.contains("SECOND"), "{config}: {sent}");
    }
}

#[tokio::test]
async fn a_redaction_that_cannot_search_a_text_denies_it() {
    let config = json!({"input_guardrails": [{"regexReplace": {"rule": "(?=C)CANARY", "redactText": "#"}}]});
    let long = format!("CANARY{}", "x".repeat(20_000));
    let provider = chat_provider(&json!({"role": "assistant", "content": "ok"})).await;
    let (response, sent) = send("openai", CHAT_PATH, config, &request(&long), provider).await;
    assert_eq!((response.status, sent), (446, None), "{}", response.text());
}

/// Values of a repeated key: a text that must not arrive, and one that may. Checks read the last one.
const REPEATED: &str = r#""content":"CANARY","content":"fine""#;

#[tokio::test]
async fn values_of_repeated_keys_do_not_get_around_checks() {
    let redacting = json!({"regexReplace": {"rule": WORD, "redactText": "#", "scope": "all"}});
    let window = json!({"regexReplace": {"rule": WORD, "redactText": "#", "scope": "all"}, "stream": "window"});
    let whole = format!(r#"{{"id":"c","choices":[{{"index":0,"message":{{"role":"assistant",{REPEATED}}}}}]}}"#);
    let event = format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{{{REPEATED}}}}}]}}"#);
    let events = format!("data: {event}\n\ndata: [DONE]\n\n");
    for hook in [denying(), redacting.clone(), window] {
        let config = json!({"output_guardrails": [hook]});
        for (kind, body) in [("application/json", &whole), ("text/event-stream", &events)] {
            let provider = GoldenProvider::start(200, kind, body.clone().into_bytes(), 4096).await;
            let mut asked = request("hi");
            asked["stream"] = json!(kind == "text/event-stream");
            let (response, _) = send("openai", CHAT_PATH, config.clone(), &asked, provider).await;
            assert_eq!(response.status, 200, "{config}: {}", response.text());
            // The results name the word of the guardrail itself.
            let text = response.text().split("\"hook_results\"").next().unwrap().to_owned();
            assert!(text.contains("fine") && !text.contains(WORD), "{config}: {text}");
        }
    }
    // The provider gets what the checks have read.
    for hook in [denying(), redacting] {
        let provider = chat_provider(&json!({"role": "assistant", "content": "ok"})).await;
        let gateway: TestGateway = GoldenProvider::gateway_trusting_loopback();
        let config = json!({"provider": "openai", "api_key": "sk-1", "custom_host": provider.server.url(),
            "input_guardrails": [hook]});
        let body = format!(r#"{{"model":"gpt-x","messages":[{{"role":"user",{REPEATED}}}]}}"#);
        let response = gateway.send(post_with_config(&config, CHAT_PATH, body)).await;
        assert_eq!(response.status, 200, "{config}: {}", response.text());
        let sent = String::from_utf8(provider.last_request.lock().unwrap().clone()).unwrap();
        assert!(sent.contains("fine") && !sent.contains(WORD), "{config}: {sent}");
    }
}
