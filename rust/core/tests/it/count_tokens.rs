//! Token counting. The gateway estimates the count if the provider cannot count.

use std::sync::Arc;

use crate::harness::{
    TestRequest,
    golden_provider::GoldenProvider,
    pick_fields,
    scripted_server::{ScriptedServer, json_response},
};
use serde_json::{Value, json};

const MESSAGES_COUNT_PATH: &str = "/v1/messages/count_tokens";
const CONVERSE_COUNT_PATH: &str = "/model/gpt-4o/count-tokens";
const GEMINI_COUNT_PATH: &str = "/v1beta/models/gpt-4o:countTokens";

/// Token count request as Amazon's clients send it.
fn converse_count_body() -> Value {
    json!({"input": {"converse": {"messages": [{"role": "user", "content": [{"text": "What is the answer?"}]}]}}})
}

#[tokio::test]
async fn translates_converse_counts_except_for_bedrock() {
    let golden_provider = GoldenProvider::start(200, "application/json", b"{\"input_tokens\":42}".to_vec(), 50).await;
    let response = GoldenProvider::gateway_trusting_loopback()
        .send(golden_provider.build_request("anthropic", CONVERSE_COUNT_PATH, converse_count_body().to_string().into()))
        .await;
    assert_eq!(response.json(), json!({"inputTokens": 42}), "{}", response.text());
    let (head, body) = golden_provider.parse_last_request();
    assert!(head.starts_with("POST /messages/count_tokens HTTP/1.1"), "{head}");
    assert_eq!(
        (&body["model"], &body["messages"][0]["content"][0]["text"]),
        (&json!("gpt-4o"), &json!("What is the answer?"))
    );
    let golden_provider = GoldenProvider::start(200, "application/json", b"{\"inputTokens\":7}".to_vec(), 50).await;
    let request =
        golden_provider.build_request("bedrock", CONVERSE_COUNT_PATH, converse_count_body().to_string().into());
    let response = GoldenProvider::gateway_trusting_loopback().send(request).await;
    assert_eq!(response.json(), json!({"inputTokens": 7}), "{}", response.text());
    let (head, body) = golden_provider.parse_last_request();
    assert!(
        head.starts_with("POST /model/gpt-4o/count-tokens HTTP/1.1") && body == converse_count_body(),
        "{head} {body}"
    );
}

#[tokio::test]
async fn counts_tokens_locally_if_the_provider_cannot() {
    let golden_provider = GoldenProvider::start(200, "application/json", b"{}".to_vec(), 50).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let contents = json!({"contents": [{"role": "user", "parts": [{"text": "What is the answer?"},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]}]});
    let messages = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "What is the answer?"}]});
    for provider in ["openai", "groq", "cohere"] {
        let response =
            gateway.send(golden_provider.build_request(provider, GEMINI_COUNT_PATH, contents.to_string().into())).await;
        assert_eq!((response.status, response.json()), (200, json!({"totalTokens": 5})), "{provider}");
        let response = gateway
            .send(golden_provider.build_request(provider, MESSAGES_COUNT_PATH, messages.to_string().into()))
            .await;
        assert_eq!((response.status, response.json()), (200, json!({"input_tokens": 12})), "{provider}");
        let response = gateway
            .send(golden_provider.build_request(
                provider,
                CONVERSE_COUNT_PATH,
                converse_count_body().to_string().into(),
            ))
            .await;
        assert_eq!((response.status, response.json()), (200, json!({"inputTokens": 12})), "{provider}");
        let records = gateway.drain_records();
        let fields: Vec<_> =
            records.iter().map(|record| pick_fields(record, ["ai_org", "outcome", "req_units"])).collect();
        assert_eq!(fields, vec![json!([provider, "complete", null]); 3]);
    }
    assert_eq!(golden_provider.server.connection_count(), 0);
    // Pass-through requests are not counted locally.
    let response = golden_provider
        .gateway_with_saved_provider("groq")
        .send(GoldenProvider::passthrough_request(MESSAGES_COUNT_PATH, messages))
        .await;
    assert_eq!((response.status, response.text().as_str(), golden_provider.server.connection_count()), (200, "{}", 1));
}

#[tokio::test]
async fn counts_locally_if_a_bedrock_model_cannot_and_reports_it() {
    let refusal = br#"{"message":"The provided model doesn't support counting tokens."}"#;
    let contents = json!({"contents": [{"role": "user", "parts": [{"text": "What is the answer?"}]}]});
    let messages = |model: &str| json!({"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "What is the answer?"}]});
    let counts = [
        (MESSAGES_COUNT_PATH, messages("us.anthropic.claude-opus-4-5"), "messagesCountTokens", "input_tokens"),
        (MESSAGES_COUNT_PATH, messages("us.amazon.nova-lite-v1:0"), "messagesCountTokens", "input_tokens"),
        (CONVERSE_COUNT_PATH, converse_count_body(), "converseCountTokens", "inputTokens"),
        (GEMINI_COUNT_PATH, contents, "countTokens", "totalTokens"),
    ];
    for (path, body, operation, key) in counts {
        let golden_provider = GoldenProvider::start(400, "application/json", refusal.to_vec(), 50).await;
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let response = gateway.send(golden_provider.build_request("bedrock", path, body.to_string().into())).await;
        let count = response.json()[key].as_u64();
        assert!(
            response.status == 200 && count.is_some_and(|count| (5..20).contains(&count)),
            "{path}: {}",
            response.text()
        );
        let dropped_names = response.header("x-gateway-not-translated").unwrap_or_default();
        assert!(dropped_names.split(", ").any(|name| name == operation), "{path}: {dropped_names}");
        assert_eq!(pick_fields(&gateway.single_record(), ["ai_org", "outcome"]), json!(["bedrock", "complete"]));
        // Other errors pass unchanged: a 403 is not about what the model supports.
        let golden_provider = GoldenProvider::start(403, "application/json", refusal.to_vec(), 50).await;
        let response = gateway.send(golden_provider.build_request("bedrock", path, body.to_string().into())).await;
        assert_eq!(response.status, 403, "{path}: {}", response.text());
    }
    let golden_provider = GoldenProvider::start(400, "application/json", refusal.to_vec(), 50).await;
    let response = GoldenProvider::gateway_trusting_loopback()
        .send(golden_provider.build_request("anthropic", MESSAGES_COUNT_PATH, messages("m").to_string().into()))
        .await;
    assert_eq!(response.status, 400, "who counts with all of its models says what is wrong: {}", response.text());
}

#[tokio::test]
async fn reuses_the_connection_of_a_rejected_count() {
    let provider =
        ScriptedServer::start_responding(json_response("400 Bad Request", "", r#"{"message":"It does not count."}"#))
            .await;
    let (golden_provider, gateway) = (
        GoldenProvider { server: provider, last_request: Arc::default(), request_lines: Arc::default() },
        GoldenProvider::gateway_trusting_loopback(),
    );
    let messages = json!({"model": "us.amazon.nova-lite-v1:0", "max_tokens": 9,
        "messages": [{"role": "user", "content": "What is the answer?"}]});
    for (path, body) in [(CONVERSE_COUNT_PATH, converse_count_body()), (MESSAGES_COUNT_PATH, messages)] {
        for _ in 0..2 {
            let response = gateway.send(golden_provider.build_request("bedrock", path, body.to_string().into())).await;
            assert_eq!(response.status, 200, "{path}: {}", response.text());
        }
    }
    assert_eq!(golden_provider.server.connection_count(), 1);
}

#[tokio::test]
async fn rejects_an_uncountable_request_in_the_client_format() {
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let build_request = |path: &str, body: &str| {
        let build_request = TestRequest::new("POST", path).header("x-gateway-provider", "openai");
        build_request
            .header("content-type", "application/json")
            .header("authorization", "Bearer sk-1")
            .body(body.to_owned())
    };
    let response = gateway.send(build_request(CONVERSE_COUNT_PATH, r#"{"input":{"converse":{"messages":[]}}}"#)).await;
    assert_eq!(
        (response.status, &response.json()["__type"]),
        (400, &json!("ValidationException")),
        "{}",
        response.text()
    );
    assert!(
        response.text().contains("input.converse.messages: must be an array of at least one"),
        "{}",
        response.text()
    );
    assert_eq!(gateway.single_record()["error"], "token_count_failed");
    let part = r#""contents":[{"parts":[{"text":7}]}]"#;
    for (path, body, field) in [
        (MESSAGES_COUNT_PATH, r#"{"model":"gpt-4o"}"#, "messages: must be an array of at least one message"),
        (
            MESSAGES_COUNT_PATH,
            r#"{"messages":[{"role":"user","content":7}]}"#,
            "messages[0].content: must be a string, or",
        ),
        (MESSAGES_COUNT_PATH, r#"{"messages":[{"role":"user","content":"\udead"}]}"#, "messages: cannot be read: "),
        (GEMINI_COUNT_PATH, "{}", "contents: must be an array of at least one content"),
        (GEMINI_COUNT_PATH, &format!("{{{part}}}"), "contents[0].parts[0].text: must be a string"),
        (
            GEMINI_COUNT_PATH,
            &format!("{{\"generateContentRequest\":{{{part}}}}}"),
            "generateContentRequest.contents[0].parts[0].text: must be a string",
        ),
    ] {
        let response = gateway.send(build_request(path, body)).await;
        let error = &response.json()["error"];
        let kinds = json!([response.status, error["type"], error["status"]]);
        let is_messages = path == MESSAGES_COUNT_PATH;
        let expected = if is_messages {
            [json!("invalid_request_error"), Value::Null]
        } else {
            [Value::Null, json!("INVALID_ARGUMENT")]
        };
        assert_eq!(kinds, json!([400, expected[0], expected[1]]), "{body}: {}", response.text());
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("the tokens of this request cannot be counted: {field}")), "{message}");
        assert_eq!(
            pick_fields(&gateway.single_record(), ["error", "outcome"]),
            json!(["token_count_failed", "refused"]),
            "{body}"
        );
    }
}
