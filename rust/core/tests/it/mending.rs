//! Answers of who speaks the caller's dialect: what is mended of them, and that all else is the provider's bytes.

use crate::harness::{Ask, CHAT, MESSAGES, by_with, played::Played, scripted::gzipped as packed, words};
use serde_json::{Value, json};

const JSON: &str = "application/json";

fn chat(played: &Played, provider: &str) -> Ask {
    played.ask(provider, CHAT, words("m", false).into_bytes())
}

#[tokio::test]
async fn errors_of_every_shape_come_back_in_one_with_their_status_code_and_request() {
    let flat = r#"{"object":"error","message":"too much","type":"too_much","param":"n","code":3051}"#;
    let shaped = |provider: &str, message: &str, kind: &str, param: Value, code: Value| {
        json!({"error": {"message": format!("{provider} error: {message}"), "type": kind, "param": param, "code": code},
            "provider": provider})
    };
    let zipped = "application/json\r\ncontent-encoding: gzip";
    for (status, provider, kind, body, told) in [
        (422, "mistral-ai", JSON, flat.into(), shaped("mistral-ai", "too much", "too_much", "n".into(), "3051".into())),
        (
            429,
            "mistral-ai",
            zipped,
            packed(flat),
            shaped("mistral-ai", "too much", "too_much", "n".into(), "3051".into()),
        ),
        // Who was asked for a stream may say an error as one.
        (422, "groq", "text/event-stream", format!("data: {flat}\n\ndata: [DONE]\n\n").into_bytes(), {
            shaped("groq", "too much", "too_much", "n".into(), "3051".into())
        }),
        (529, "groq", "text/html", b"<h1>busy</h1>".to_vec(), {
            shaped("groq", "<h1>busy</h1>", "server_error", Value::Null, Value::Null)
        }),
        (503, "openai", JSON, Vec::new(), shaped("openai", "status 503", "server_error", Value::Null, Value::Null)),
    ] {
        let played = Played::answering(status, kind, body, 7).await;
        let answer = Played::rig().send(chat(&played, provider)).await;
        assert_eq!((answer.status, answer.json()), (status, told), "{provider}");
        assert_eq!((answer.header("content-type"), answer.header("content-encoding")), (Some(JSON), None));
        assert_eq!(answer.header("x-request-id"), Some("up-1"));
    }
}

#[tokio::test]
async fn errors_that_are_as_they_should_be_say_whose_they_are_and_those_of_a_passthrough_are_the_providers_bytes() {
    let good = r#"{"error": {"message":"m", "type":"t","param":null,"code":"c", "more": [1.0]} }"#;
    let told =
        r#"{"error":{"message":"groq error: m","type":"t","param":null,"code":"c","more":[1.0]},"provider":"groq"}"#;
    let zipped = "application/json\r\ncontent-encoding: gzip";
    for (kind, body) in [
        (JSON, good.into()),
        ("text/event-stream", format!("data: {good}\n\n").into_bytes()),
        (zipped, packed(good)),
        // A gateway like this one has said whose it is.
        (JSON, told.into()),
    ] {
        let played = Played::answering(400, kind, body, 9).await;
        let answer = Played::rig().send(chat(&played, "groq")).await;
        assert_eq!((answer.status, answer.header("content-type")), (400, Some(JSON)));
        assert_eq!((answer.text().as_str(), answer.header("content-encoding")), (told, None));
    }
    let odd = Played::answering(400, "text/plain", b"odd".to_vec(), 9).await;
    let rig = Played::rig();
    let saved =
        json!({"epoch": "1", "providers": [{"slug": "g", "provider": "groq", "custom_host": odd.provider.url()}]});
    rig.apply(&saved);
    let through = by_with(&json!({"passthrough": true}), CHAT, words("@g/m", false).into_bytes());
    for raw in [through, odd.ask("groq", "/v1/proxy/chat/completions", words("m", false).into_bytes())] {
        let answer = rig.send(raw).await;
        assert_eq!((answer.status, answer.text().as_str()), (400, "odd"));
    }
    let played = Played::answering(400, JSON, good.into(), 9).await;
    let raw = played.ask("groq", "/v1/proxy/chat/completions", words("m", false).into_bytes());
    assert_eq!(rig.send(raw).await.text(), good);
}

#[tokio::test]
async fn an_error_that_says_too_much_to_be_read_on_the_way_passes_as_it_came() {
    for (length, is_mended) in [(200 * 1024, true), (260 * 1024, false)] {
        let said = json!({"error": {"message": "A".repeat(length)}}).to_string();
        for (kind, body) in
            [(JSON, said.clone().into_bytes()), ("application/json\r\ncontent-encoding: gzip", packed(&said))]
        {
            let played = Played::answering(400, kind, body.clone(), 64 * 1024).await;
            let answer = Played::rig().send(chat(&played, "groq")).await;
            assert_eq!((answer.status, answer.body[..] != body[..]), (400, is_mended), "{kind}, {length}");
        }
    }
}

#[tokio::test]
async fn a_page_for_a_browser_is_no_answer_unless_it_is_what_was_asked_for() {
    let page = b"<html><h1>Welcome to nginx!</h1></html>";
    for (kind, said) in [("text/html; charset=utf-8", "Welcome"), ("text/html\r\ncontent-encoding: gzip", "")] {
        for stream in [false, true] {
            let played = Played::answering(200, kind, page.to_vec(), 9).await;
            let rig = Played::rig();
            let told = rig.send(played.ask("groq", CHAT, words("m", stream).into_bytes())).await;
            let message = told.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.starts_with("groq returned an invalid response: ") && message.contains(said), "{message}");
            let record = rig.record();
            assert_eq!((&record["error"], &record["is_success"]), (&json!("invalid_response"), &json!(false)));
        }
    }
    let played = Played::answering(200, "text/html", page.to_vec(), 9).await;
    let rig = Played::rig();
    for raw in [
        played.ask("groq", "/v1/proxy/chat/completions", words("m", false).into_bytes()),
        played.ask("groq", "/v1/status", words("m", false).into_bytes()),
        played.ask("openai", "/v1/files/file-1/content", Vec::new()).method("GET"),
    ] {
        let told = rig.send(raw).await;
        assert_eq!((told.status, &told.body[..]), (200, &page[..]));
    }
    // Who has another target goes on to it.
    let other = Played::answering(200, JSON, br#"{"choices":[]}"#.to_vec(), 9).await;
    let target = |played: &Played| json!({"provider": "groq", "custom_host": played.provider.url(), "api_key": "k"});
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [target(&played), target(&other)]});
    let told = rig.send(by_with(&config, CHAT, words("m", false).into_bytes())).await;
    assert_eq!((told.status, told.text().as_str()), (200, r#"{"choices":[]}"#));
}

#[tokio::test]
async fn what_a_limit_says_passes_untouched() {
    // Groq is asked in the caller's own dialect, Anthropic in another.
    for (provider, body) in [("groq", r#"{"odd":1}"#), ("anthropic", r#"{"odd":2}"#), ("groq", "<h1>spent</h1>")] {
        let played = Played::answering(412, JSON, body.into(), 9).await;
        let answer = Played::rig().send(chat(&played, provider)).await;
        assert_eq!((answer.status, answer.text().as_str()), (412, body), "{provider}");
        assert_eq!(answer.header("x-request-id"), Some("up-1"));
    }
}

#[tokio::test]
async fn who_speaks_anthropics_dialect_is_told_errors_in_it() {
    let played = Played::answering(503, "text/plain", b"upstream connect error".to_vec(), 9).await;
    let answer = Played::rig().send(played.ask("anthropic", MESSAGES, words("m", false).into_bytes())).await;
    let error = json!({"type": "api_error", "message": "anthropic error: upstream connect error"});
    assert_eq!(answer.json(), json!({"type": "error", "error": error, "request_id": "up-1"}));
}

#[tokio::test]
async fn a_failed_request_is_known_by_its_providers_name_for_it_whatever_field_that_came_in() {
    let kind = "application/json\r\nx-amzn-requestid: aws-1";
    let played = Played::naming(400, kind, br#"{"message":"no such model"}"#.to_vec(), 99).await;
    let told = Played::rig().send(chat(&played, "bedrock")).await;
    assert_eq!((told.status, told.header("x-request-id")), (400, Some("aws-1")), "{}", told.text());
    let anthropics = Played::rig().send(played.ask("bedrock", MESSAGES, words("m", false).into_bytes())).await;
    assert_eq!((anthropics.json()["request_id"].as_str(), anthropics.status), (Some("aws-1"), 400));
}

#[tokio::test]
async fn ends_are_told_in_openais_words_and_only_who_has_others_is_read() {
    let said = r#"{ "choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"eos"}]}"#;
    let event = format!("data: {said}\n\ndata: [DONE]\n\n");
    for (provider, is_read) in [("together-ai", true), ("openai", false)] {
        let rig = Played::rig();
        let whole = Played::answering(200, JSON, said.into(), 5).await;
        let told = rig.send(chat(&whole, provider).header("accept-encoding", "gzip")).await;
        let streamed = Played::answering(200, "text/event-stream", event.clone().into_bytes(), 5).await;
        let events = rig.send(streamed.ask(provider, CHAT, words("m", true).into_bytes())).await;
        let word = if is_read { "stop" } else { "eos" };
        assert_eq!(told.text(), said.replace("eos", word), "{provider}");
        assert_eq!(events.text(), event.replace("eos", word), "{provider}");
        assert_eq!(whole.sent().0.contains("\r\naccept-encoding: identity"), is_read, "{provider}");
    }
}

#[tokio::test]
async fn a_good_answer_is_mended_up_to_a_size_and_larger_ones_pass_as_they_came() {
    for (length, is_mended) in [(300 * 1024, true), (16 * 1024 * 1024, false)] {
        let said = format!(r#"{{"data":[{{"embedding":"{}"}}]}}"#, "A".repeat(length));
        let played = Played::answering(200, JSON, said.clone().into_bytes(), 1 << 20).await;
        let asked = played.ask("openai", "/v1/embeddings", br#"{"model":"m","input":"a"}"#.to_vec());
        let told = Played::rig().send(asked.header("x-gateway-strict-open-ai-compliance", "false")).await;
        let named = said.strip_suffix('}').unwrap().to_owned() + r#","provider":"openai"}"#;
        assert!(told.status == 200 && told.text() == if is_mended { named } else { said }, "{length}");
    }
}
