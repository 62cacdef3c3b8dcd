//! Who speaks the caller's dialect with words of its own is asked in those; who has none gets every byte as it came.

use crate::harness::{CHAT, played::Played};
use serde_json::{Value, json};

const ANSWER: &[u8] =
    br#"{"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]}"#;

fn asked() -> Value {
    json!({"model": "m", "messages": [{"role": "developer", "content": "x".repeat(200_000)}, {"role": "user", "content": "y"}],
        "max_completion_tokens": 5, "seed": 7, "tool_choice": "required", "logprobs": true})
}

#[tokio::test]
async fn a_chat_is_said_in_the_providers_words_and_what_is_lost_is_named() {
    let played = Played::answering(200, "application/json", ANSWER.to_vec(), 4096).await;
    let rig = Played::rig();
    let body = asked().to_string().into_bytes();
    let system = {
        let mut body = asked();
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
        ("openai", asked(), None),
        ("x-ai", system.clone(), None),
        ("deepseek", changed(&system, &["max_completion_tokens"], short.clone()), None),
        ("fireworks-ai", changed(&system, &["max_completion_tokens"], short), None),
        ("mistral-ai", changed(&system, &["max_completion_tokens", "seed", "logprobs"], mistral), Some("logprobs")),
        ("groq", changed(&system, &["logprobs"], json!({})), Some("logprobs")),
    ] {
        let told = rig.send(played.ask(provider, CHAT, body.clone())).await;
        assert_eq!((told.status, played.sent().1), (200, expected), "{provider}");
        assert_eq!(told.header("x-gateway-not-translated"), lost, "{provider}");
    }
}

#[tokio::test]
async fn what_is_meant_for_the_provider_as_it_is_goes_as_it_came() {
    let played = Played::answering(200, "application/json", ANSWER.to_vec(), 4096).await;
    let forced = played.ask("mistral-ai", "/v1/proxy/chat/completions", asked().to_string().into_bytes());
    for (count, ask) in [(1, forced), (2, Played::through(CHAT, asked()))] {
        let told = played.saved("mistral-ai").send(ask).await;
        assert_eq!((told.status, played.lines.lock().unwrap().len()), (200, count), "{}", told.text());
        assert_eq!(played.sent().1, asked());
    }
}

#[tokio::test]
async fn a_chat_that_was_said_in_another_dialect_leaves_in_the_providers_words_too() {
    let played = Played::answering(200, "application/json", ANSWER.to_vec(), 4096).await;
    let rig = Played::rig();
    let body = json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}],
        "tools": [{"name": "t", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}});
    let told = rig.send(played.ask("mistral-ai", "/v1/messages", body.to_string().into_bytes())).await;
    assert_eq!((told.status, &played.sent().1["tool_choice"]), (200, &json!("any")));
}

#[tokio::test]
async fn models_of_mistrals_that_azure_hosts_are_told_what_they_take_and_others_what_was_said() {
    let played = Played::answering(200, "application/json", ANSWER.to_vec(), 4096).await;
    let rig = Played::rig();
    for (model, bridge) in [("mistral-medium-2505", &["assistant"][..]), ("gpt-4o", &[])] {
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let body = json!({"model": model, "messages": [{"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "1"}, {"role": "user", "content": "x"}]});
        let told = rig.send(played.ask("azure-ai", CHAT, body.to_string().into_bytes())).await;
        let sent = played.sent().1;
        let roles: Vec<_> =
            sent["messages"].as_array().unwrap().iter().filter_map(|one| one["role"].as_str()).collect();
        assert_eq!((told.status, roles), (200, [&["assistant", "tool"][..], bridge, &["user"]].concat()), "{model}");
        assert_eq!(sent["messages"][1]["tool_call_id"] == "c", bridge.is_empty(), "{model}");
    }
}
