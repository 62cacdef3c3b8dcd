//! What a stream cost is asked for upstream by the gateway where its caller did not.

use crate::harness::{CHAT, by_with, played::Played, words};
use serde_json::{Value, json};

#[tokio::test]
async fn usage_is_asked_of_those_who_take_the_question_and_all_else_goes_as_it_came() {
    let events = b"data: {\"choices\":[{\"delta\":{}}],\"usage\":null}\n\ndata: [DONE]\n\n";
    let played = Played::answering(200, "text/event-stream", events.to_vec(), 4096).await;
    let rig = Played::rig();
    let body = words("m", true).into_bytes();
    for (provider, is_asked) in [("openai", true), ("deepseek", true), ("groq", true), ("cerebras", false)] {
        let told = rig.send(played.ask(provider, CHAT, body.clone())).await;
        let (_, mut sent) = played.sent();
        let options = sent.as_object_mut().unwrap().remove("stream_options");
        assert_eq!(options, is_asked.then(|| json!({"include_usage": true})), "{provider}");
        assert_eq!(sent, serde_json::from_slice::<Value>(&body).unwrap());
        assert_eq!(told.text().contains("usage"), !is_asked, "{provider}");
        let is_plain = played.sent().0.contains("\r\naccept-encoding: identity");
        assert_eq!(is_plain, is_asked, "{provider}: what is hidden must not come compressed, all else is left alone");
    }
    let at = |more: Value| {
        let mut config = json!({"provider": "openai", "api_key": "k", "custom_host": played.provider.url()});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        by_with(&config, CHAT, body.clone())
    };
    let off = json!({"include_usage": false});
    for (more, sent) in [
        (json!({"drop_params": ["stream_options"]}), Value::Null),
        (json!({"drop_params": ["stream_options.include_usage"]}), Value::Null),
        (json!({"override_params": {"stream_options": off}}), off.clone()),
        (json!({"default_params": {"seed": 1}}), json!({"include_usage": true})),
    ] {
        rig.send(at(more.clone())).await;
        assert_eq!(played.sent().1["stream_options"], sent, "{more}");
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    let told = played.saved("openai").send(Played::through(CHAT, body.clone())).await;
    assert_eq!((told.status, played.sent().1, played.lines.lock().unwrap().len()), (200, body, 9), "{}", told.text());
}
