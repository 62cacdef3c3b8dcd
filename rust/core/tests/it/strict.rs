//! Who is not strict gets what a provider says besides the dialect.

use std::fs;

use crate::harness::{
    Ask, CHAT,
    played::{Played, golden},
    words,
};
use serde_json::Value;

fn loose(ask: Ask) -> Ask {
    ask.header("x-gateway-strict-open-ai-compliance", "false")
}

#[tokio::test]
async fn who_is_not_strict_is_told_who_answered_and_the_providers_own_word() {
    let said = r#"{"choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"eos"}]}"#;
    let whole = Played::answering(200, "application/json", said.into(), 5).await;
    let told = Played::rig().send(loose(whole.ask("together-ai", CHAT, words("m", false).into_bytes()))).await;
    let mut expected: Value = serde_json::from_str(said).unwrap();
    expected["provider"] = "together-ai".into();
    assert_eq!(told.json(), expected);
    let event = format!("data: {said}\n\ndata: [DONE]\n\n");
    let streamed = Played::answering(200, "text/event-stream", event.into_bytes(), 5).await;
    let ask = loose(streamed.ask("together-ai", CHAT, words("m", true).into_bytes()));
    assert_eq!(Played::rig().send(ask).await.text(), format!("data: {expected}\n\ndata: [DONE]\n\n"));
}

#[tokio::test]
async fn who_is_not_strict_gets_the_providers_own_words() {
    let case = golden("anthropic/chatComplete/loose_thinking");
    let read = |file: &str| fs::read(case.join(file)).unwrap();
    let played = Played::answering(200, "application/json", read("answered.json"), 50).await;
    let ask = loose(played.ask("anthropic", CHAT, read("asked.json")));
    let told = Played::rig().send(ask).await.json();
    assert_eq!(told["choices"][0]["finish_reason"], "end_turn");
    assert_eq!(told["choices"][0]["message"]["content_blocks"][0]["type"], "thinking");
}
