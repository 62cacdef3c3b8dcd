//! Non-strict mode. The response keeps provider fields and values that are not part of the `OpenAI` format.

use std::fs;

use crate::harness::{
    CHAT_PATH, TestRequest, chat_body,
    golden_provider::{GoldenProvider, golden_case},
};
use serde_json::Value;

fn disable_strict_compliance(request: TestRequest) -> TestRequest {
    request.header("x-gateway-strict-open-ai-compliance", "false")
}

#[tokio::test]
async fn non_strict_response_has_provider_and_raw_finish_reason() {
    let body = r#"{"choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"eos"}]}"#;
    let complete = GoldenProvider::start(200, "application/json", body.into(), 5).await;
    let response = GoldenProvider::gateway_trusting_loopback()
        .send(disable_strict_compliance(complete.build_request(
            "together-ai",
            CHAT_PATH,
            chat_body("m", false).into_bytes(),
        )))
        .await;
    let mut expected: Value = serde_json::from_str(body).unwrap();
    expected["provider"] = "together-ai".into();
    assert_eq!(response.json(), expected);
    let event = format!("data: {body}\n\ndata: [DONE]\n\n");
    let streamed = GoldenProvider::start(200, "text/event-stream", event.into_bytes(), 5).await;
    let request =
        disable_strict_compliance(streamed.build_request("together-ai", CHAT_PATH, chat_body("m", true).into_bytes()));
    assert_eq!(
        GoldenProvider::gateway_trusting_loopback().send(request).await.text(),
        format!("data: {expected}\n\ndata: [DONE]\n\n")
    );
}

#[tokio::test]
async fn non_strict_response_has_provider_content_blocks() {
    let case = golden_case("anthropic/chatComplete/non_strict_thinking");
    let read = |file: &str| fs::read(case.path(file)).unwrap();
    let golden_provider = GoldenProvider::start(200, "application/json", read("response.json"), 50).await;
    let request =
        disable_strict_compliance(golden_provider.build_request("anthropic", CHAT_PATH, read("request.json")));
    let reply = GoldenProvider::gateway_trusting_loopback().send(request).await.json();
    assert_eq!(reply["choices"][0]["finish_reason"], "end_turn");
    assert_eq!(reply["choices"][0]["message"]["content_blocks"][0]["type"], "thinking");
}
