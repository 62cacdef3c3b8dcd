//! Usage of streams. The gateway requests it upstream if the client does not.

use crate::harness::{CHAT_PATH, chat_body, golden_provider::GoldenProvider, post_with_config};
use serde_json::{Value, json};

#[tokio::test]
async fn requests_usage_only_from_providers_that_support_it() {
    let events = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\ndata: [DONE]\n\n";
    let golden_provider = GoldenProvider::start(200, "text/event-stream", events.to_vec(), 4096).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let body = chat_body("m", true).into_bytes();
    for (provider, is_asked) in [("openai", true), ("deepseek", true), ("groq", true), ("cerebras", false)] {
        let response = gateway.send(golden_provider.build_request(provider, CHAT_PATH, body.clone())).await;
        let (_, mut sent) = golden_provider.parse_last_request();
        let options = sent.as_object_mut().unwrap().remove("stream_options");
        assert_eq!(options, is_asked.then(|| json!({"include_usage": true})), "{provider}");
        assert_eq!(sent, serde_json::from_slice::<Value>(&body).unwrap());
        assert_eq!(response.text().contains("usage"), !is_asked, "{provider}");
        let is_plain = golden_provider.parse_last_request().0.contains("\r\naccept-encoding: identity");
        assert_eq!(is_plain, is_asked, "{provider}: what is hidden must not come compressed, all else is left alone");
    }
    let at = |more: Value| {
        let mut config = json!({"provider": "openai", "api_key": "k", "custom_host": golden_provider.server.url()});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post_with_config(&config, CHAT_PATH, body.clone())
    };
    let off = json!({"include_usage": false});
    for (more, sent) in [
        (json!({"drop_params": ["stream_options"]}), Value::Null),
        (json!({"drop_params": ["stream_options.include_usage"]}), Value::Null),
        (json!({"override_params": {"stream_options": off}}), off.clone()),
        (json!({"default_params": {"seed": 1}}), json!({"include_usage": true})),
    ] {
        gateway.send(at(more.clone())).await;
        assert_eq!(golden_provider.parse_last_request().1["stream_options"], sent, "{more}");
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    let response = golden_provider
        .gateway_with_saved_provider("openai")
        .send(GoldenProvider::passthrough_request(CHAT_PATH, body.clone()))
        .await;
    assert_eq!(
        (response.status, golden_provider.parse_last_request().1, golden_provider.request_lines.lock().unwrap().len()),
        (200, body, 9),
        "{}",
        response.text()
    );
}
