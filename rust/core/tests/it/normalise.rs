//! Normalised responses of providers that use the client's own API format. Tests which fields change, and that all
//! other bytes stay the provider's.

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestRequest, chat_body, golden_provider::GoldenProvider, post_with_config,
    scripted_server::gzip_compress as packed,
};
use serde_json::{Value, json};

const JSON_CONTENT_TYPE: &str = "application/json";

fn chat_via_provider(golden_provider: &GoldenProvider, provider: &str) -> TestRequest {
    golden_provider.build_request(provider, CHAT_PATH, chat_body("m", false).into_bytes())
}

#[tokio::test]
async fn errors_of_every_shape_are_normalised() {
    let flat = r#"{"object":"error","message":"too much","type":"too_much","param":"n","code":3051}"#;
    let shaped = |provider: &str, message: &str, kind: &str, param: Value, code: Value| {
        json!({"error": {"message": format!("{provider} error: {message}"), "type": kind, "param": param, "code": code},
            "provider": provider})
    };
    let zipped = "application/json\r\ncontent-encoding: gzip";
    for (status, provider, kind, body, response) in [
        (
            422,
            "mistral-ai",
            JSON_CONTENT_TYPE,
            flat.into(),
            shaped("mistral-ai", "too much", "too_much", "n".into(), "3051".into()),
        ),
        (
            429,
            "mistral-ai",
            zipped,
            packed(flat),
            shaped("mistral-ai", "too much", "too_much", "n".into(), "3051".into()),
        ),
        // A provider may send the error of a streaming request as an event stream.
        (422, "groq", "text/event-stream", format!("data: {flat}\n\ndata: [DONE]\n\n").into_bytes(), {
            shaped("groq", "too much", "too_much", "n".into(), "3051".into())
        }),
        (529, "groq", "text/html", b"<h1>busy</h1>".to_vec(), {
            shaped("groq", "<h1>busy</h1>", "server_error", Value::Null, Value::Null)
        }),
        (
            503,
            "openai",
            JSON_CONTENT_TYPE,
            Vec::new(),
            shaped("openai", "status 503", "server_error", Value::Null, Value::Null),
        ),
    ] {
        let golden_provider = GoldenProvider::start(status, kind, body, 7).await;
        let reply =
            GoldenProvider::gateway_trusting_loopback().send(chat_via_provider(&golden_provider, provider)).await;
        assert_eq!((reply.status, reply.json()), (status, response), "{provider}");
        assert_eq!((reply.header("content-type"), reply.header("content-encoding")), (Some(JSON_CONTENT_TYPE), None));
        assert_eq!(reply.header("x-request-id"), Some("up-1"));
    }
}

#[tokio::test]
async fn errors_name_the_provider_except_in_passthrough() {
    let good = r#"{"error": {"message":"m", "type":"t","param":null,"code":"c", "more": [1.0]} }"#;
    let response =
        r#"{"error":{"message":"groq error: m","type":"t","param":null,"code":"c","more":[1.0]},"provider":"groq"}"#;
    let zipped = "application/json\r\ncontent-encoding: gzip";
    for (kind, body) in [
        (JSON_CONTENT_TYPE, good.into()),
        ("text/event-stream", format!("data: {good}\n\n").into_bytes()),
        (zipped, packed(good)),
        // A chained Penstock gateway has already named the provider.
        (JSON_CONTENT_TYPE, response.into()),
    ] {
        let golden_provider = GoldenProvider::start(400, kind, body, 9).await;
        let reply = GoldenProvider::gateway_trusting_loopback().send(chat_via_provider(&golden_provider, "groq")).await;
        assert_eq!((reply.status, reply.header("content-type")), (400, Some(JSON_CONTENT_TYPE)));
        assert_eq!((reply.text().as_str(), reply.header("content-encoding")), (response, None));
    }
    let odd = GoldenProvider::start(400, "text/plain", b"odd".to_vec(), 9).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let saved =
        json!({"epoch": "1", "providers": [{"slug": "g", "provider": "groq", "custom_host": odd.server.url()}]});
    gateway.apply_snapshot(&saved);
    let passthrough = post_with_config(&json!({"passthrough": true}), CHAT_PATH, chat_body("@g/m", false).into_bytes());
    for raw in
        [passthrough, odd.build_request("groq", "/v1/proxy/chat/completions", chat_body("m", false).into_bytes())]
    {
        let reply = gateway.send(raw).await;
        assert_eq!((reply.status, reply.text().as_str()), (400, "odd"));
    }
    let golden_provider = GoldenProvider::start(400, JSON_CONTENT_TYPE, good.into(), 9).await;
    let raw = golden_provider.build_request("groq", "/v1/proxy/chat/completions", chat_body("m", false).into_bytes());
    assert_eq!(gateway.send(raw).await.text(), good);
}

#[tokio::test]
async fn oversized_error_body_passes_unchanged() {
    for (length, is_mended) in [(200 * 1024, true), (260 * 1024, false)] {
        let response_body = json!({"error": {"message": "A".repeat(length)}}).to_string();
        for (kind, body) in [
            (JSON_CONTENT_TYPE, response_body.clone().into_bytes()),
            ("application/json\r\ncontent-encoding: gzip", packed(&response_body)),
        ] {
            let golden_provider = GoldenProvider::start(400, kind, body.clone(), 64 * 1024).await;
            let response =
                GoldenProvider::gateway_trusting_loopback().send(chat_via_provider(&golden_provider, "groq")).await;
            assert_eq!((response.status, response.body[..] != body[..]), (400, is_mended), "{kind}, {length}");
        }
    }
}

#[tokio::test]
async fn html_page_is_an_invalid_response_except_on_raw_paths() {
    let page = b"<html><h1>Welcome to nginx!</h1></html>";
    for (kind, content) in [("text/html; charset=utf-8", "Welcome"), ("text/html\r\ncontent-encoding: gzip", "")] {
        for stream in [false, true] {
            let golden_provider = GoldenProvider::start(200, kind, page.to_vec(), 9).await;
            let gateway = GoldenProvider::gateway_trusting_loopback();
            let reply = gateway
                .send(golden_provider.build_request("groq", CHAT_PATH, chat_body("m", stream).into_bytes()))
                .await;
            let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(
                message.starts_with("groq returned an invalid response: ") && message.contains(content),
                "{message}"
            );
            let record = gateway.single_record();
            assert_eq!((&record["error"], &record["is_success"]), (&json!("invalid_response"), &json!(false)));
        }
    }
    let golden_provider = GoldenProvider::start(200, "text/html", page.to_vec(), 9).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    for raw in [
        golden_provider.build_request("groq", "/v1/proxy/chat/completions", chat_body("m", false).into_bytes()),
        golden_provider.build_request("groq", "/v1/status", chat_body("m", false).into_bytes()),
        golden_provider.build_request("openai", "/v1/files/file-1/content", Vec::new()).method("GET"),
    ] {
        let reply = gateway.send(raw).await;
        assert_eq!((reply.status, &reply.body[..]), (200, &page[..]));
    }
    // With another target, the gateway falls back to it.
    let other = GoldenProvider::start(200, JSON_CONTENT_TYPE, br#"{"choices":[]}"#.to_vec(), 9).await;
    let target = |golden_provider: &GoldenProvider| json!({"provider": "groq", "custom_host": golden_provider.server.url(), "api_key": "k"});
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [target(&golden_provider), target(&other)]});
    let reply = gateway.send(post_with_config(&config, CHAT_PATH, chat_body("m", false).into_bytes())).await;
    assert_eq!((reply.status, reply.text().as_str()), (200, r#"{"choices":[]}"#));
}

#[tokio::test]
async fn budget_exhausted_error_passes_unchanged() {
    // Groq uses the client's own API format; a request to Anthropic is translated.
    for (provider, body) in [("groq", r#"{"odd":1}"#), ("anthropic", r#"{"odd":2}"#), ("groq", "<h1>spent</h1>")] {
        let golden_provider = GoldenProvider::start(412, JSON_CONTENT_TYPE, body.into(), 9).await;
        let response =
            GoldenProvider::gateway_trusting_loopback().send(chat_via_provider(&golden_provider, provider)).await;
        assert_eq!((response.status, response.text().as_str()), (412, body), "{provider}");
        assert_eq!(response.header("x-request-id"), Some("up-1"));
    }
}

#[tokio::test]
async fn anthropic_client_gets_errors_in_its_own_format() {
    let golden_provider = GoldenProvider::start(503, "text/plain", b"upstream connect error".to_vec(), 9).await;
    let response = GoldenProvider::gateway_trusting_loopback()
        .send(golden_provider.build_request("anthropic", MESSAGES_PATH, chat_body("m", false).into_bytes()))
        .await;
    let error = json!({"type": "api_error", "message": "anthropic error: upstream connect error"});
    assert_eq!(response.json(), json!({"type": "error", "error": error, "request_id": "up-1"}));
}

#[tokio::test]
async fn failed_request_returns_the_providers_request_id() {
    let kind = "application/json\r\nx-amzn-requestid: aws-1";
    let golden_provider =
        GoldenProvider::start_with_headers(400, kind, br#"{"message":"no such model"}"#.to_vec(), 99).await;
    let response =
        GoldenProvider::gateway_trusting_loopback().send(chat_via_provider(&golden_provider, "bedrock")).await;
    assert_eq!((response.status, response.header("x-request-id")), (400, Some("aws-1")), "{}", response.text());
    let anthropics = GoldenProvider::gateway_trusting_loopback()
        .send(golden_provider.build_request("bedrock", MESSAGES_PATH, chat_body("m", false).into_bytes()))
        .await;
    assert_eq!((anthropics.json()["request_id"].as_str(), anthropics.status), (Some("aws-1"), 400));
}

#[tokio::test]
async fn finish_reason_is_normalised_only_for_providers_that_need_it() {
    let body = r#"{ "choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"eos"}]}"#;
    let event = format!("data: {body}\n\ndata: [DONE]\n\n");
    for (provider, is_read) in [("together-ai", true), ("openai", false)] {
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let complete = GoldenProvider::start(200, JSON_CONTENT_TYPE, body.into(), 5).await;
        let response = gateway.send(chat_via_provider(&complete, provider).header("accept-encoding", "gzip")).await;
        let streamed = GoldenProvider::start(200, "text/event-stream", event.clone().into_bytes(), 5).await;
        let events = gateway.send(streamed.build_request(provider, CHAT_PATH, chat_body("m", true).into_bytes())).await;
        let word = if is_read { "stop" } else { "eos" };
        assert_eq!(response.text(), body.replace("eos", word), "{provider}");
        assert_eq!(events.text(), event.replace("eos", word), "{provider}");
        assert_eq!(complete.parse_last_request().0.contains("\r\naccept-encoding: identity"), is_read, "{provider}");
    }
}

#[tokio::test]
async fn response_is_normalised_up_to_a_size_limit() {
    for (length, is_mended) in [(300 * 1024, true), (16 * 1024 * 1024, false)] {
        let body = format!(r#"{{"data":[{{"embedding":"{}"}}]}}"#, "A".repeat(length));
        let golden_provider = GoldenProvider::start(200, JSON_CONTENT_TYPE, body.clone().into_bytes(), 1 << 20).await;
        let request =
            golden_provider.build_request("openai", "/v1/embeddings", br#"{"model":"m","input":"a"}"#.to_vec());
        let response = GoldenProvider::gateway_trusting_loopback()
            .send(request.header("x-gateway-strict-open-ai-compliance", "false"))
            .await;
        let with_provider = body.strip_suffix('}').unwrap().to_owned() + r#","provider":"openai"}"#;
        assert!(response.status == 200 && response.text() == if is_mended { with_provider } else { body }, "{length}");
    }
}
