//! How many tokens a request has, where the gateway itself must say it.

use std::sync::Arc;

use crate::harness::{
    Ask, pick,
    played::Played,
    scripted::{Scripted, whole},
};
use serde_json::{Value, json};

const MESSAGES_COUNT: &str = "/v1/messages/count_tokens";
const CONVERSE_COUNT: &str = "/model/gpt-4o/count-tokens";
const CONTENTS_COUNT: &str = "/v1beta/models/gpt-4o:countTokens";

/// What Amazon's clients send to have it counted.
fn converse() -> Value {
    json!({"input": {"converse": {"messages": [{"role": "user", "content": [{"text": "What is the answer?"}]}]}}})
}

#[tokio::test]
async fn a_count_of_amazons_clients_is_asked_of_who_counts_and_goes_to_bedrock_as_it_came() {
    let played = Played::answering(200, "application/json", b"{\"input_tokens\":42}".to_vec(), 50).await;
    let told = Played::rig().send(played.ask("anthropic", CONVERSE_COUNT, converse().to_string().into())).await;
    assert_eq!(told.json(), json!({"inputTokens": 42}), "{}", told.text());
    let (head, body) = played.sent();
    assert!(head.starts_with("POST /messages/count_tokens HTTP/1.1"), "{head}");
    assert_eq!(
        (&body["model"], &body["messages"][0]["content"][0]["text"]),
        (&json!("gpt-4o"), &json!("What is the answer?"))
    );
    let played = Played::answering(200, "application/json", b"{\"inputTokens\":7}".to_vec(), 50).await;
    let ask = played.ask("bedrock", CONVERSE_COUNT, converse().to_string().into());
    let told = Played::rig().send(ask).await;
    assert_eq!(told.json(), json!({"inputTokens": 7}), "{}", told.text());
    let (head, body) = played.sent();
    assert!(head.starts_with("POST /model/gpt-4o/count-tokens HTTP/1.1") && body == converse(), "{head} {body}");
}

#[tokio::test]
async fn tokens_are_counted_here_for_who_has_nobody_to_count_them() {
    let played = Played::answering(200, "application/json", b"{}".to_vec(), 50).await;
    let rig = Played::rig();
    let contents = json!({"contents": [{"role": "user", "parts": [{"text": "What is the answer?"},
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]}]});
    let messages = json!({"model": "gpt-4o", "messages": [{"role": "user", "content": "What is the answer?"}]});
    for provider in ["openai", "groq", "cohere"] {
        let told = rig.send(played.ask(provider, CONTENTS_COUNT, contents.to_string().into())).await;
        assert_eq!((told.status, told.json()), (200, json!({"totalTokens": 5})), "{provider}");
        let told = rig.send(played.ask(provider, MESSAGES_COUNT, messages.to_string().into())).await;
        assert_eq!((told.status, told.json()), (200, json!({"input_tokens": 12})), "{provider}");
        let told = rig.send(played.ask(provider, CONVERSE_COUNT, converse().to_string().into())).await;
        assert_eq!((told.status, told.json()), (200, json!({"inputTokens": 12})), "{provider}");
        let records = rig.records();
        let said: Vec<_> = records.iter().map(|record| pick(record, ["ai_org", "outcome", "req_units"])).collect();
        assert_eq!(said, vec![json!([provider, "complete", null]); 3]);
    }
    assert_eq!(played.provider.connections(), 0);
    // Nothing is counted here of what is meant for the provider as it is.
    let told = played.saved("groq").send(Played::through(MESSAGES_COUNT, messages)).await;
    assert_eq!((told.status, told.text().as_str(), played.provider.connections()), (200, "{}", 1));
}

#[tokio::test]
async fn tokens_are_counted_here_where_a_model_of_bedrocks_refuses_to_and_that_is_said() {
    let refusal = br#"{"message":"The provided model doesn't support counting tokens."}"#;
    let contents = json!({"contents": [{"role": "user", "parts": [{"text": "What is the answer?"}]}]});
    let messages = |model: &str| json!({"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "What is the answer?"}]});
    let counts = [
        (MESSAGES_COUNT, messages("us.anthropic.claude-opus-4-5"), "messagesCountTokens", "input_tokens"),
        (MESSAGES_COUNT, messages("us.amazon.nova-lite-v1:0"), "messagesCountTokens", "input_tokens"),
        (CONVERSE_COUNT, converse(), "converseCountTokens", "inputTokens"),
        (CONTENTS_COUNT, contents, "countTokens", "totalTokens"),
    ];
    for (path, body, operation, key) in counts {
        let played = Played::answering(400, "application/json", refusal.to_vec(), 50).await;
        let rig = Played::rig();
        let told = rig.send(played.ask("bedrock", path, body.to_string().into())).await;
        let count = told.json()[key].as_u64();
        assert!(told.status == 200 && count.is_some_and(|count| (5..20).contains(&count)), "{path}: {}", told.text());
        let named = told.header("x-gateway-not-translated").unwrap_or_default();
        assert!(named.split(", ").any(|name| name == operation), "{path}: {named}");
        assert_eq!(pick(&rig.record(), ["ai_org", "outcome"]), json!(["bedrock", "complete"]));
        // What is none of the model's is told as it was said.
        let played = Played::answering(403, "application/json", refusal.to_vec(), 50).await;
        let told = rig.send(played.ask("bedrock", path, body.to_string().into())).await;
        assert_eq!(told.status, 403, "{path}: {}", told.text());
    }
    let played = Played::answering(400, "application/json", refusal.to_vec(), 50).await;
    let told = Played::rig().send(played.ask("anthropic", MESSAGES_COUNT, messages("m").to_string().into())).await;
    assert_eq!(told.status, 400, "who counts with all of its models says what is wrong: {}", told.text());
}

#[tokio::test]
async fn the_connection_of_a_refused_count_serves_the_next() {
    let provider = Scripted::answering(whole("400 Bad Request", "", r#"{"message":"It does not count."}"#)).await;
    let (played, rig) = (Played { provider, sent: Arc::default(), lines: Arc::default() }, Played::rig());
    let messages = json!({"model": "us.amazon.nova-lite-v1:0", "max_tokens": 9,
        "messages": [{"role": "user", "content": "What is the answer?"}]});
    for (path, body) in [(CONVERSE_COUNT, converse()), (MESSAGES_COUNT, messages)] {
        for _ in 0..2 {
            let told = rig.send(played.ask("bedrock", path, body.to_string().into())).await;
            assert_eq!(told.status, 200, "{path}: {}", told.text());
        }
    }
    assert_eq!(played.provider.connections(), 1);
}

#[tokio::test]
async fn what_nobody_could_read_is_refused_in_the_callers_own_words_and_not_counted_as_nothing() {
    let rig = Played::rig();
    let ask = |path: &str, body: &str| {
        let ask = Ask::new("POST", path).header("x-gateway-provider", "openai");
        ask.header("content-type", "application/json").header("authorization", "Bearer sk-1").body(body.to_owned())
    };
    let told = rig.send(ask(CONVERSE_COUNT, r#"{"input":{"converse":{"messages":[]}}}"#)).await;
    assert_eq!((told.status, &told.json()["__type"]), (400, &json!("ValidationException")), "{}", told.text());
    assert!(told.text().contains("input.converse.messages: must be an array of at least one"), "{}", told.text());
    assert_eq!(rig.record()["error"], "uncountable_request");
    let part = r#""contents":[{"parts":[{"text":7}]}]"#;
    for (path, body, field) in [
        (MESSAGES_COUNT, r#"{"model":"gpt-4o"}"#, "messages: must be an array of at least one message"),
        (MESSAGES_COUNT, r#"{"messages":[{"role":"user","content":7}]}"#, "messages[0].content: must be a string, or"),
        (MESSAGES_COUNT, r#"{"messages":[{"role":"user","content":"\udead"}]}"#, "messages: cannot be read: "),
        (CONTENTS_COUNT, "{}", "contents: must be an array of at least one content"),
        (CONTENTS_COUNT, &format!("{{{part}}}"), "contents[0].parts[0].text: must be a string"),
        (
            CONTENTS_COUNT,
            &format!("{{\"generateContentRequest\":{{{part}}}}}"),
            "generateContentRequest.contents[0].parts[0].text: must be a string",
        ),
    ] {
        let told = rig.send(ask(path, body)).await;
        let error = &told.json()["error"];
        let kinds = json!([told.status, error["type"], error["status"]]);
        let is_messages = path == MESSAGES_COUNT;
        let expected = if is_messages {
            [json!("invalid_request_error"), Value::Null]
        } else {
            [Value::Null, json!("INVALID_ARGUMENT")]
        };
        assert_eq!(kinds, json!([400, expected[0], expected[1]]), "{body}: {}", told.text());
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("the tokens of this request cannot be counted: {field}")), "{message}");
        assert_eq!(pick(&rig.record(), ["error", "outcome"]), json!(["uncountable_request", "refused"]), "{body}");
    }
}
