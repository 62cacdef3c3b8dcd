//! Cached responses of requests with guardrails: no response is served that a guardrail of the request has not read.

use serde_json::{Value, json};

use crate::harness::{CHAT_PATH, TestGateway, TestResponse, golden_provider::GoldenProvider, post_with_config};

const WORD: &str = "canary";

fn chat_response(text: &str) -> String {
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"});
    json!({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}).to_string()
}

/// A provider whose responses contain the word, and a gateway.
struct Case {
    provider: GoldenProvider,
    gateway: TestGateway,
}

impl Case {
    async fn start() -> Self {
        let provider = GoldenProvider::start(200, "application/json", chat_response(WORD).into_bytes(), 4096).await;
        Self { provider, gateway: GoldenProvider::gateway_trusting_loopback() }
    }

    /// Returns a target that caches, with guardrails.
    fn target(&self, guardrails: &Value) -> Value {
        let mut target = json!({"provider": "openai", "api_key": "k", "custom_host": self.provider.server.url(),
            "cache": {"mode": "simple"}});
        target.as_object_mut().unwrap().extend(guardrails.as_object().unwrap().clone());
        target
    }

    async fn send(&self, config: &Value) -> TestResponse {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).to_string();
        let request = post_with_config(config, CHAT_PATH, body).header("x-gateway-cache-namespace", "shared");
        self.gateway.send(request).await
    }

    fn sent_count(&self) -> usize {
        self.provider.request_lines.lock().unwrap().len()
    }
}

#[tokio::test]
async fn a_guardrail_of_requests_does_not_stand_for_one_of_responses() {
    let words = |word: &str| json!({"contains": {"words": [word], "operator": "none"}, "deny": true, "id": word});
    let (denying, other) = (words(WORD), words("other"));
    for (first, second) in [
        (json!({"input_guardrails": [denying]}), json!({"output_guardrails": [denying]})),
        (
            json!({"input_guardrails": [other, denying], "output_guardrails": []}),
            json!({"input_guardrails": [other], "output_guardrails": [denying]}),
        ),
    ] {
        let case = Case::start().await;
        assert_eq!(case.send(&case.target(&first)).await.status, 200);
        let response = case.send(&case.target(&second)).await;
        assert_eq!((response.status, case.sent_count()), (446, 2), "{first} {second}");
    }
    // A mutator runs its checks in sequence, a guardrail does not.
    let case = Case::start().await;
    let prefix = json!([{"addPrefix": {"prefix": "a"}}]);
    for (count, key) in [(1, "input_guardrails"), (2, "input_mutators"), (2, "input_mutators")] {
        assert_eq!(case.send(&case.target(&json!({key: prefix}))).await.status, 200);
        assert_eq!(case.sent_count(), count, "{key}");
    }
}

#[tokio::test]
async fn a_response_that_a_check_could_not_read_is_not_cached() {
    let hook = GoldenProvider::start(500, "application/json", b"{}".to_vec(), 4096).await;
    let webhook = json!([{"webhook": {"webhookURL": hook.server.url()}, "deny": true}]);
    let case = Case::start().await;
    for count in [1, 2] {
        let response = case.send(&case.target(&json!({"output_guardrails": webhook}))).await;
        assert_eq!((response.status, case.sent_count()), (200, count), "{}", response.text());
    }
    // Guardrails of requests run again for a cached response, so their errors do not matter.
    let case = Case::start().await;
    for _ in 0..2 {
        let response = case.send(&case.target(&json!({"input_guardrails": webhook}))).await;
        assert_eq!((response.status, case.sent_count()), (200, 1), "{}", response.text());
    }
}

#[tokio::test]
async fn results_of_an_earlier_target_do_not_prevent_caching() {
    let case = Case::start().await;
    let failing = GoldenProvider::start(503, "application/json", b"{}".to_vec(), 4096).await;
    let mut guarded = case.target(&json!({"input_guardrails": [{"contains": {"words": ["none"]}}]}));
    guarded["custom_host"] = json!(failing.server.url());
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [guarded, case.target(&json!({}))]});
    for _ in 0..2 {
        let response = case.send(&config).await;
        assert_eq!((response.status, case.sent_count()), (200, 1), "{}", response.text());
    }
}
