//! Bodies in the records of requests that guardrails redact: nothing of what was redacted is written, not even for a
//! moment.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    harness::{
        CHAT_PATH, TestGateway, TestResponse,
        golden_provider::GoldenProvider,
        post_with_config,
        scripted_server::{ScriptedServer, read_request},
        wait_until,
    },
    prompts::{greeting_prompts, snapshot_of},
    spool::{CLIENT_REQUEST, END, SpoolFolder},
};

const SECRET: &str = "canary@mail.example";
const PLACEHOLDER: &str = "{{EMAIL_ADDRESS_1}}";

fn redacting_guardrail() -> Value {
    json!({"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": true, "scope": "all"}})
}

fn chat_response(text: &str) -> String {
    json!({"id": "c", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})
    .to_string()
}

fn message_response(text: &str) -> String {
    json!({"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": text}], "usage": {"input_tokens": 1, "output_tokens": 1}})
    .to_string()
}

fn message_stream(text: &str) -> String {
    let events = [
        json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "model": "m",
            "content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}),
        json!({"type": "message_stop"}),
    ];
    let lines = events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap()));
    lines.collect()
}

fn request(text: &str) -> Value {
    json!({"model": "gpt-x", "max_tokens": 9, "messages": [{"role": "user", "content": text}]})
}

/// A provider with a gateway that records to a folder of its own.
struct Case {
    provider: GoldenProvider,
    gateway: TestGateway,
    spool: SpoolFolder,
}

impl Case {
    async fn start(status: u16, kind: &str, body: String) -> Self {
        let provider = GoldenProvider::start(status, kind, body.into_bytes(), 4096).await;
        let spool = SpoolFolder::new();
        let gateway = spool.gateway("", |_| ());
        Self { provider, gateway, spool }
    }

    fn target(&self, provider: &str) -> Value {
        json!({"provider": provider, "api_key": "sk-1", "custom_host": self.provider.server.url()})
    }

    /// Sends a chat request with guardrails. Returns the response after its record has ended.
    async fn send(&self, provider: &str, guardrails: Value, body: &Value) -> TestResponse {
        let mut config = self.target(provider);
        config.as_object_mut().unwrap().extend(guardrails.as_object().unwrap().clone());
        self.send_config(&config, body).await
    }

    async fn send_config(&self, config: &Value, body: &Value) -> TestResponse {
        let response = self.gateway.send(post_with_config(config, CHAT_PATH, body.to_string())).await;
        wait_until("the end of the record", || self.spool.kinds().contains(&END)).await;
        response
    }

    /// Panics if the secret is in any file. Returns the client's request as it was recorded.
    fn recorded_request(&self, context: &str) -> String {
        let text = self.spool.text();
        assert!(!text.contains("canary"), "{context}: {text}");
        self.spool.body(CLIENT_REQUEST)
    }
}

#[tokio::test]
async fn redacted_request_is_recorded_without_what_was_redacted() {
    let excerpt = json!({"id": "excerpt", "regexMatch": {"rule": "never", "scope": "all"}});
    let secrets = json!({"regexReplace": {"rule": "can.ry@[a-z.]+", "redactText": "#", "scope": "all"}});
    let deny = json!({"deny": true, "wordCount": {"maxWords": 1}});
    let sent = request(&format!("write to {SECRET}"));
    for (provider, body) in [("openai", chat_response("ok")), ("anthropic", message_response("ok"))] {
        for (guardrails, status, expected) in [
            (json!([excerpt, redacting_guardrail()]), 246, PLACEHOLDER),
            (json!([redacting_guardrail(), secrets]), 200, PLACEHOLDER),
            (json!([secrets]), 200, "write to #"),
            (json!([deny, redacting_guardrail()]), 446, PLACEHOLDER),
        ] {
            let case = Case::start(200, "application/json", body.clone()).await;
            let response = case.send(provider, json!({"input_guardrails": guardrails}), &sent).await;
            assert_eq!(response.status, status, "{guardrails}: {}", response.text());
            let recorded = case.recorded_request(&format!("{provider} {guardrails}"));
            assert!(recorded.contains(expected), "{guardrails}: {recorded}");
        }
    }
}

#[tokio::test]
async fn request_without_anything_to_redact_is_recorded_as_it_came() {
    let case = Case::start(200, "application/json", chat_response("ok")).await;
    let sent = request("two  spaces");
    assert_eq!(case.send("openai", json!({"input_guardrails": [redacting_guardrail()]}), &sent).await.status, 200);
    assert_eq!(case.recorded_request("nothing to redact"), sent.to_string());
}

#[tokio::test]
async fn request_is_not_recorded_if_its_guardrails_did_not_run() {
    let sent = request(&format!("write to {SECRET}"));
    let hook = ScriptedServer::start(|mut stream, _| async move {
        // Never responds.
        while read_request(&mut stream).await.is_some() {}
    })
    .await;
    let slow = json!({"webhook": {"webhookURL": hook.url(), "timeout": 60000}});
    for (guardrails, breaks) in
        [(json!(["pg-none", redacting_guardrail()]), false), (json!([redacting_guardrail(), slow]), true)]
    {
        let case = Case::start(200, "application/json", chat_response("ok")).await;
        let mut config = case.target("openai");
        config["input_guardrails"] = guardrails.clone();
        let sending = case.gateway.send(post_with_config(&config, CHAT_PATH, sent.to_string()));
        if breaks {
            // The client disconnects while the guardrail waits.
            assert!(tokio::time::timeout(Duration::from_millis(300), sending).await.is_err());
        } else {
            assert_eq!(sending.await.status, 400);
        }
        wait_until("the end of the record", || case.spool.kinds().contains(&END)).await;
        let recorded = case.recorded_request(&guardrails.to_string());
        assert!(recorded.contains("withheld"), "{guardrails}: {recorded}");
    }
}

#[tokio::test]
async fn every_target_of_a_fallback_is_recorded_without_what_was_redacted() {
    let case = Case::start(503, "application/json", "{}".to_owned()).await;
    let targets = json!([case.target("openai"), case.target("anthropic"), case.target("openai")]);
    for strategy in [json!({"mode": "fallback"}), json!({"mode": "loadbalance"})] {
        let config = json!({"strategy": strategy, "targets": targets, "input_guardrails": [redacting_guardrail()],
            "retry": {"attempts": 1}});
        let response = case.send_config(&config, &request(&format!("write to {SECRET}"))).await;
        assert_eq!(response.status, 503, "{}", response.text());
        assert!(case.recorded_request(&strategy.to_string()).contains(PLACEHOLDER));
    }
}

#[tokio::test]
async fn messages_of_targets_without_guardrails_do_not_repeat_what_others_redact() {
    let quote = json!({"error": {"message": format!("cannot write to {SECRET}")}}).to_string();
    let case = Case::start(400, "application/json", quote).await;
    let other = GoldenProvider::start(200, "application/json", chat_response("ok").into_bytes(), 4096).await;
    let mut redacted = case.target("openai");
    redacted["custom_host"] = json!(other.server.url());
    redacted["input_guardrails"] = json!([redacting_guardrail()]);
    let plain = case.target("openai");
    let config = json!({"strategy": {"mode": "fallback"}, "targets": [plain, redacted]});
    let response = case.send_config(&config, &request(&format!("write to {SECRET}"))).await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(case.recorded_request("fallback").contains(PLACEHOLDER));
    let end = case.spool.frames().into_iter().find(|frame| frame.kind == END).unwrap().json();
    assert_eq!((&end["attempts"][0]["status"], &end["attempts"][0]["reason"]), (&json!(400), &Value::Null), "{end}");
    assert_eq!(end["attempts"][1]["status"], 200, "{end}");
}

/// A guardrail whose data show the text, but that changes nothing.
fn observing_guardrail() -> Value {
    json!({"id": "excerpt", "regexMatch": {"rule": "write", "scope": "all"}})
}

/// A guardrail that redacts something else than the secret.
fn phone_guardrail() -> Value {
    json!({"id": "phones", "gateway.pii": {"categories": ["PHONE_NUMBER"], "redact": true, "scope": "all"}})
}

#[tokio::test]
async fn bodies_of_a_target_do_not_show_what_guardrails_of_others_redact() {
    let all = json!([redacting_guardrail(), phone_guardrail()]);
    // The guardrails of both targets, the status of the first, and whether the client's request is recorded.
    for (first, second, status, expected) in [
        (json!([redacting_guardrail()]), json!([]), 503, PLACEHOLDER),
        (json!([]), json!([redacting_guardrail()]), 200, "withheld"),
        (json!([observing_guardrail()]), json!([redacting_guardrail()]), 200, "withheld"),
        (json!([redacting_guardrail()]), json!([phone_guardrail()]), 503, "withheld"),
        (json!([phone_guardrail(), observing_guardrail()]), all.clone(), 200, "withheld"),
        (all.clone(), json!([phone_guardrail(), observing_guardrail()]), 503, PLACEHOLDER),
        (json!([]), json!(["pg-none"]), 200, "withheld"),
    ] {
        let case = Case::start(200, "application/json", chat_response("ok")).await;
        let failing = GoldenProvider::start(503, "application/json", b"{}".to_vec(), 4096).await;
        let (mut target, mut next) = (case.target("openai"), case.target("anthropic"));
        (target["input_guardrails"], next["input_guardrails"]) = (first.clone(), second.clone());
        if status == 503 {
            target["custom_host"] = json!(failing.server.url());
            next["provider"] = json!("openai");
        }
        let config = json!({"strategy": {"mode": "fallback"}, "targets": [target, next]});
        let response = case.send_config(&config, &request(&format!("write to {SECRET}"))).await;
        assert_eq!(response.status, 200, "{first} {second}: {}", response.text());
        let recorded = case.recorded_request(&format!("{first} {second}"));
        assert!(recorded.contains(expected), "{first} {second}: {recorded}");
    }
}

#[tokio::test]
async fn hedged_request_is_recorded_without_what_the_first_target_redacts() {
    let case = Case::start(200, "application/json", chat_response("ok")).await;
    let slow = ScriptedServer::start(|mut stream, _| async move {
        // Never responds.
        while read_request(&mut stream).await.is_some() {}
    })
    .await;
    let (mut target, next) = (case.target("openai"), case.target("openai"));
    (target["custom_host"], target["input_guardrails"]) = (json!(slow.url()), json!([redacting_guardrail()]));
    let strategy = json!({"mode": "fallback", "hedge": {"after_ms": 50, "max_ratio": 1}});
    let config = json!({"strategy": strategy, "targets": [target, next]});
    let response = case.send_config(&config, &request(&format!("write to {SECRET}"))).await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(case.recorded_request("hedge").contains(PLACEHOLDER));
}

#[tokio::test]
async fn redacted_response_is_recorded_without_what_was_redacted() {
    let hold = json!({"regexReplace": {"rule": "can.ry@[a-z.]{1,64}", "redactText": "#"}});
    let mut window = hold.clone();
    window["stream"] = json!("window");
    let text = format!("write to {SECRET}");
    let chunk = json!({"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]});
    let chat_stream = format!("data: {chunk}\n\ndata: [DONE]\n\n");
    for (provider, kind, body) in [
        ("openai", "application/json", chat_response(&text)),
        ("anthropic", "application/json", message_response(&text)),
        ("openai", "text/event-stream", chat_stream),
        ("anthropic", "text/event-stream", message_stream(&text)),
    ] {
        for guardrail in [&hold, &window, &redacting_guardrail()] {
            let case = Case::start(200, kind, body.clone()).await;
            let mut sent = request("hi");
            sent["stream"] = json!(kind == "text/event-stream");
            let response = case.send(provider, json!({"output_guardrails": [guardrail]}), &sent).await;
            assert_eq!(response.status, 200, "{}", response.text());
            assert!(response.text().contains("write to "), "{}", response.text());
            case.recorded_request(&format!("{provider} {kind} {guardrail}"));
        }
    }
}

#[tokio::test]
async fn questions_about_redacted_texts_are_recorded_without_them() {
    let case = Case::start(200, "application/json", chat_response("{\"injection\": false}")).await;
    let saved = json!({"slug": "saved", "provider": "openai", "custom_host": case.provider.server.url()});
    case.gateway.apply_snapshot(&json!({"epoch": "1", "providers": [saved]}));
    let ask = json!({"deny": true, "gateway.promptInjection": {"model": "@saved/judge", "failOnError": true}});
    let end_count = || case.spool.frames().iter().filter(|frame| frame.kind == END).count();
    let target = |guardrails: Value| {
        let mut target = case.target("openai");
        target["input_guardrails"] = guardrails;
        target
    };
    let both = target(json!([ask, redacting_guardrail()]));
    let targets = [target(json!([ask])), target(json!([redacting_guardrail()]))];
    for (config, count) in [
        (both, 2),
        // Only another target redacts.
        (json!({"strategy": {"mode": "fallback"}, "targets": targets}), 4),
    ] {
        let response = case.send_config(&config, &request(&format!("to {SECRET}"))).await;
        assert_eq!(response.status, 200, "{}", response.text());
        wait_until("both records", || end_count() == count).await;
        case.recorded_request("questions");
    }
    // A request without bodies in its log, whether or not guardrails redact it.
    for (guardrails, count) in [(json!([ask, redacting_guardrail()]), 6), (json!([ask]), 8)] {
        let body = request(&format!("to {SECRET}")).to_string();
        let sent = post_with_config(&target(guardrails), CHAT_PATH, body).header("x-gateway-debug", "false");
        let response = case.gateway.send(sent).await;
        assert_eq!(response.status, 200, "{}", response.text());
        wait_until("both records", || end_count() == count).await;
        case.recorded_request("questions without bodies");
    }
}

#[tokio::test]
async fn variables_of_a_redacted_prompt_are_recorded_without_their_values() {
    let case = Case::start(200, "application/json", chat_response("ok")).await;
    case.gateway.apply_snapshot(&snapshot_of(&case.provider, &greeting_prompts()));
    let body = json!({"variables": {"name": SECRET, "tone": "kind"}}).to_string();
    let config = json!({"input_guardrails": [redacting_guardrail()]});
    let sent = post_with_config(&config, "/v1/prompts/greeting/completions", body).header("x-gateway-api-key", "pk");
    let response = case.gateway.send(sent).await;
    assert_eq!(response.status, 200, "{}", response.text());
    wait_until("the end of the record", || case.spool.kinds().contains(&END)).await;
    assert!(case.recorded_request("prompt").contains(PLACEHOLDER));
    assert!(case.spool.text().contains(r#""prompt_variables":{"name":null"#), "{}", case.spool.text());
}
