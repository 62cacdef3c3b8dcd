//! Guardrails of configs and callers: what they deny, change and report, in whole responses and streams.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, TestResponse,
    golden_provider::GoldenProvider,
    mock_target, post_with_config,
    scripted_server::{ScriptedServer, read_request},
    sha256_hex,
};

const SECRET: &str = "canary@mail.example";

fn chat_response(choices: &[Value]) -> String {
    let choices: Vec<_> = choices
        .iter()
        .enumerate()
        .map(|(index, message)| json!({"index": index, "message": message, "finish_reason": "stop"}))
        .collect();
    json!({"id": "c", "object": "chat.completion", "model": "m", "choices": choices,
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})
    .to_string()
}

fn chat_stream(texts: &[&str]) -> String {
    let chunk = |delta: Value, finish: Value| {
        format!("data: {}\n\n", json!({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))
    };
    let mut stream: String = texts.iter().map(|text| chunk(json!({"content": text}), Value::Null)).collect();
    stream += &chunk(json!({}), json!("stop"));
    stream + "data: [DONE]\n\n"
}

/// Sends a chat request with guardrails in its config; the provider returns `body`.
async fn send(config: Value, message: &str, kind: &str, body: &str) -> (TestResponse, GoldenProvider, TestGateway) {
    send_to(CHAT_PATH, "openai", config, json!([{"role": "user", "content": message}]), kind, body).await
}

async fn send_to(
    path: &str,
    provider_name: &str,
    mut config: Value,
    messages: Value,
    kind: &str,
    body: &str,
) -> (TestResponse, GoldenProvider, TestGateway) {
    let provider = GoldenProvider::start(200, kind, body.as_bytes().to_vec(), 4096).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    config["provider"] = json!(provider_name);
    config["api_key"] = json!("sk-1");
    config["custom_host"] = json!(provider.server.url());
    let request =
        json!({"model": "gpt-x", "max_tokens": 9, "messages": messages, "stream": kind == "text/event-stream"});
    let response = gateway.send(post_with_config(&config, path, request.to_string())).await;
    (response, provider, gateway)
}

fn denied_words_guardrail() -> Value {
    json!({"contains": {"words": ["canary"], "operator": "none"}, "deny": true, "id": "words"})
}

#[tokio::test]
async fn a_denied_request_is_not_sent() {
    let config = json!({"input_guardrails": [denied_words_guardrail()]});
    let (response, provider, gateway) = send(config, SECRET, "application/json", "{}").await;
    assert_eq!(response.status, 446, "{}", response.text());
    let json = response.json();
    assert_eq!((&json["error"]["type"], &json["error"]["code"]), (&json!("hooks_failed"), &Value::Null));
    let hook = &json["hook_results"]["before_request_hooks"][0];
    assert_eq!((&hook["id"], &hook["verdict"], &hook["deny"]), (&json!("words"), &json!(false), &json!(true)));
    assert_eq!(hook["checks"][0]["data"]["foundWords"], json!(["canary"]));
    assert!(provider.request_lines.lock().unwrap().is_empty());
    let record = gateway.single_record();
    assert_eq!(record["response_status_code"], 446);
    assert_eq!(record["hook_results"]["before_request_hooks"][0]["verdict"], false);
}

#[tokio::test]
async fn a_failed_guardrail_without_denial_is_reported() {
    let mut guardrail = denied_words_guardrail();
    guardrail["deny"] = json!(false);
    guardrail["on_fail"] = json!({"feedback": {"value": -5, "weight": 1, "metadata": {"team": "red"}}});
    let body = chat_response(&[json!({"role": "assistant", "content": "Hi"})]);
    let (response, provider, _gateway) =
        send(json!({"input_guardrails": [guardrail]}), SECRET, "application/json", &body).await;
    assert_eq!((response.status, provider.request_lines.lock().unwrap().len()), (246, 1));
    let json = response.json();
    assert_eq!(json["choices"][0]["message"]["content"], "Hi");
    let feedback = &json["hook_results"]["before_request_hooks"][0]["feedback"];
    assert_eq!((&feedback["value"], &feedback["metadata"]["failedChecks"]), (&json!(-5.0), &json!("default.contains")));
    let passing = json!({"input_guardrails": [denied_words_guardrail()]});
    let (response, ..) = send(passing, "hello", "application/json", &body).await;
    assert_eq!(response.status, 200);
    assert_eq!(response.json()["hook_results"]["before_request_hooks"][0]["verdict"], true);
}

#[tokio::test]
async fn requests_and_responses_are_redacted() {
    let redact = json!([{"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": true}}]);
    let config = json!({"input_guardrails": redact, "output_guardrails": redact});
    let body = chat_response(&[
        json!({"role": "assistant", "content": "nothing"}),
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": "t", "type": "function",
            "function": {"name": "f", "arguments": format!("{{\"to\":\"{SECRET}\"}}")}}]}),
    ]);
    let (response, provider, _gateway) = send(config, &format!("write to {SECRET}"), "application/json", &body).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let (_, sent) = provider.parse_last_request();
    assert_eq!(sent["messages"][0]["content"], "write to {{EMAIL_ADDRESS_1}}");
    assert!(!response.text().contains(SECRET), "{}", response.text());
    let calls = &response.json()["choices"][1]["message"]["tool_calls"];
    assert_eq!(calls[0]["function"]["arguments"], r#"{"to":"{{EMAIL_ADDRESS_1}}"}"#);
}

#[tokio::test]
async fn no_part_of_a_denied_response_reaches_the_client() {
    let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "t", "type": "function",
        "function": {"name": "f", "arguments": format!("{{\"to\":\"{SECRET}\"}}")}}]});
    let good = json!({"role": "assistant", "content": "fine"});
    let config = || json!({"output_guardrails": [denied_words_guardrail()]});
    for choices in [
        vec![json!({"role": "assistant", "content": SECRET})],
        vec![good.clone(), json!({"role": "assistant", "content": SECRET})],
        vec![json!({"role": "assistant", "content": null, "refusal": SECRET})],
        vec![call],
    ] {
        let (response, ..) = send(config(), "hi", "application/json", &chat_response(&choices)).await;
        let text = response.text().replace("\"foundWords\":[\"canary\"]", "");
        assert_eq!((response.status, text.contains("canary")), (446, false), "{text}");
    }
    // A word in two events is found too, before any event is sent.
    let stream = chat_stream(&["can", "ary@mail.example"]);
    let (response, ..) = send(config(), "hi", "text/event-stream", &stream).await;
    assert_eq!((response.status, response.json()["error"]["type"].clone()), (446, json!("hooks_failed")));
    let (response, ..) = send(config(), "hi", "text/event-stream", &chat_stream(&["fi", "ne"])).await;
    assert_eq!((response.status, response.text()), (200, chat_stream(&["fi", "ne"])));
}

#[tokio::test]
async fn results_do_not_show_what_was_denied_or_changed() {
    // Each of these checks has a part of the text in its data.
    let checks = json!({"regexMatch": {"rule": "canary[^ ]*", "not": true}, "characterCount": {"maxCharacters": 3}});
    let mut denying = checks.clone();
    denying["deny"] = json!(true);
    let redact = json!({"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": true}});
    let choice = |content: &str| {
        json!({"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop",
            "logprobs": {"content": [{"token": content}]}})
    };
    let body = json!({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice(SECRET)]}).to_string();
    for (guardrails, status) in [(json!([denying]), 446), (json!([checks, redact]), 246)] {
        let config = json!({"output_guardrails": guardrails, "strict_open_ai_compliance": false});
        let (response, _, gateway) = send(config.clone(), "hi", "application/json", &body).await;
        assert_eq!((response.status, response.text().contains("canary")), (status, false), "{}", response.text());
        // The record contains the data, if bodies are recorded.
        assert!(gateway.single_record()["hook_results"]["after_request_hooks"].is_array());
        let event = json!({"id": "c", "choices": [{"index": 0, "delta": {"content": SECRET}, "logprobs": {"content": [{"token": SECRET}]}}]});
        let stream = format!("data: {event}\n\n{}", chat_stream(&["end"]));
        let (response, ..) = send(config, "hi", "text/event-stream", &stream).await;
        assert_eq!((response.status, response.text().contains("canary")), (status, false), "{}", response.text());
    }
}

#[tokio::test]
async fn requests_without_texts_pass_unless_their_type_is_blocked() {
    let provider = GoldenProvider::start(200, "application/json", br#"{"data":[]}"#.to_vec(), 4096).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let block = json!({"allowedRequestTypes": {"blockedTypes": ["proxy", "listFiles"]}, "deny": true});
    for (guardrail, status) in [(denied_words_guardrail(), 200), (block, 446)] {
        let config = json!({"provider": "openai", "api_key": "k", "custom_host": provider.server.url(),
            "input_guardrails": [guardrail]});
        for path in ["/v1/files", "/v1/vector_stores"] {
            let request = TestRequest::new("GET", path).header("x-gateway-config", &config.to_string());
            let response = gateway.send(request).await;
            assert_eq!(response.status, status, "{path}: {}", response.text());
        }
    }
}

#[tokio::test]
async fn the_provider_reads_what_was_checked() {
    let response = chat_response(&[json!({"content": "Hi"})]);
    let provider = GoldenProvider::start(200, "application/json", response.into(), 4096).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let config = json!({"provider": "openai", "api_key": "k", "custom_host": provider.server.url(),
        "input_guardrails": [denied_words_guardrail()]});
    let message = |text: &str| json!([{"role": "user", "content": text}]).to_string();
    let body = format!(r#"{{"model":"m","messages":{},"messages":{}}}"#, message("canary"), message("fine"));
    assert_eq!(gateway.send(post_with_config(&config, CHAT_PATH, body)).await.status, 200);
    assert!(!String::from_utf8_lossy(&provider.last_request.lock().unwrap()).contains("canary"));
    let config = json!({"provider": "openai", "api_key": "k", "custom_host": provider.server.url(),
        "input_guardrails": [{"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": true}}]});
    let body = format!(r#"{{"model":"m","messages":{},"messages":{}}}"#, message(SECRET), message("fine"));
    assert_eq!(gateway.send(post_with_config(&config, CHAT_PATH, body)).await.status, 200);
    assert!(!String::from_utf8_lossy(&provider.last_request.lock().unwrap()).contains(SECRET));
}

#[tokio::test]
async fn messages_are_denied_in_their_own_format() {
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": SECRET}]}]);
    let config = json!({"input_guardrails": [denied_words_guardrail()]});
    let (response, ..) = send_to("/v1/messages", "anthropic", config, messages, "application/json", "{}").await;
    assert_eq!((response.status, response.json()["type"].clone()), (446, json!("error")));
    assert_eq!(response.json()["error"]["type"], "hooks_failed");
    let result = json!({"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use",
        "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"to": SECRET}}],
        "usage": {"input_tokens": 1, "output_tokens": 1}});
    let config = json!({"output_guardrails": [denied_words_guardrail()]});
    let messages = json!([{"role": "user", "content": "hi"}]);
    let (response, ..) =
        send_to("/v1/messages", "anthropic", config, messages, "application/json", &result.to_string()).await;
    assert_eq!(response.status, 446, "{}", response.text());
}

#[tokio::test]
async fn a_soft_denial_is_a_response_in_the_clients_format() {
    let mut guardrail = denied_words_guardrail();
    guardrail["soft_deny_200"] = json!(true);
    let config = json!({"input_guardrails": [guardrail]});
    let (response, provider, _gateway) = send(config.clone(), SECRET, "application/json", "{}").await;
    assert_eq!((response.status, provider.request_lines.lock().unwrap().len()), (200, 0));
    let json = response.json();
    assert!(json["choices"][0]["message"]["content"].as_str().unwrap().contains("guardrail"), "{json}");
    assert_eq!(json["hook_results"]["before_request_hooks"][0]["deny"], true);
    let (response, ..) = send(config, SECRET, "text/event-stream", "").await;
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    assert!(response.text().contains("guardrail") && response.text().ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn streams_are_redacted_before_their_first_event() {
    let config = json!({"output_mutators": [{"regexReplace": {"rule": "/canary[^ ]*/g", "redactText": "***"}}]});
    let stream = chat_stream(&["write to can", "ary@mail.example now"]);
    let (response, ..) = send(config, "hi", "text/event-stream", &stream).await;
    assert_eq!(response.status, 200);
    let text = response.text();
    assert!(text.contains("write to *** now") && !text.contains("ary@"), "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn results_follow_a_stream_that_is_only_observed() {
    let guardrail = json!({"contains": {"words": ["canary"], "operator": "none"}});
    let config =
        json!({"output_guardrails": [guardrail], "input_guardrails": [guardrail], "strict_open_ai_compliance": false});
    let (response, _, gateway) = send(config, "hi", "text/event-stream", &chat_stream(&["can", "ary"])).await;
    let text = response.text();
    let events: Vec<&str> = text.split_terminator("\n\n").collect();
    assert!(events[0].contains("before_request_hooks") && events[1].contains("can"), "{text}");
    assert_eq!(events[events.len() - 2], "data: [DONE]");
    let last: Value = serde_json::from_str(events.last().unwrap().strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(last["hook_results"]["after_request_hooks"][0]["verdict"], false);
    let record = gateway.single_record();
    assert_eq!(record["hook_results"]["after_request_hooks"][0]["verdict"], false, "{record}");
    assert_eq!(record["outcome"], "complete");
}

#[tokio::test]
async fn a_held_response_ends_at_the_timeout_of_the_client() {
    let mock = penstock_mock::Server::start().await;
    let gateway = TestGateway::for_provider(&mock);
    let mut config = mock_target("chunk_ms=100&chunks=1000");
    config["output_guardrails"] = json!([denied_words_guardrail()]);
    let body = json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "hi"}]});
    let request = post_with_config(&config, CHAT_PATH, body.to_string()).header("x-stainless-timeout", "0.3");
    let response = gateway.send(request).await;
    assert_eq!(response.status, 408, "{}", response.text());
    // A whole response whose body does not end.
    let begun = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{\"id\":";
    let endless = ScriptedServer::start(move |mut stream, _| async move {
        while read_request(&mut stream).await.is_some() {
            stream.write_all(begun).await.unwrap();
        }
    })
    .await;
    let config = json!({"provider": "openai", "api_key": "k", "custom_host": endless.url(),
        "output_guardrails": [denied_words_guardrail()]});
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    let request = post_with_config(&config, CHAT_PATH, body.to_string()).header("x-stainless-timeout", "0.3");
    let response = GoldenProvider::gateway_trusting_loopback().send(request).await;
    assert_eq!(response.status, 408, "{}", response.text());
}

#[tokio::test]
async fn a_retry_or_another_target_may_replace_a_denied_response() {
    let provider =
        GoldenProvider::start(200, "application/json", chat_response(&[json!({"content": SECRET})]).into(), 4096).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let target = json!({"provider": "openai", "api_key": "k", "custom_host": provider.server.url()});
    let mut first = target.clone();
    first["output_guardrails"] = json!([denied_words_guardrail()]);
    first["retry"] = json!({"attempts": 1, "on_status_codes": [446]});
    let config = json!({"strategy": {"mode": "fallback", "on_status_codes": [446]}, "targets": [first, target]});
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let response = gateway.send(post_with_config(&config, CHAT_PATH, body)).await;
    assert_eq!((response.status, provider.request_lines.lock().unwrap().len()), (200, 3), "{}", response.text());
}

#[tokio::test]
async fn saved_guardrails_and_defaults_apply_to_their_workspace() {
    let provider =
        GoldenProvider::start(200, "application/json", chat_response(&[json!({"content": "Hi"})]).into(), 4096).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let guardrail = |id: &str, slug: &str, workspace: Value, word: &str| {
        json!({"id": id, "slug": slug, "workspace": workspace, "organisation": "o", "version": format!("v-{id}"),
            "checks": [{"id": "default.contains", "parameters": {"words": [word], "operator": "none"}}],
            "actions": {"deny": true}})
    };
    let saved = |workspace: &str| json!({"id": "p", "integration_id": "i", "slug": "mine", "provider": "openai", "workspace": workspace, "api_key": "k", "custom_host": provider.server.url()});
    gateway.apply_snapshot(&json!({"epoch": "1",
        "workspaces": [{"id": "w", "slug": "one", "organisation_id": "o", "input_guardrails": ["g1"]}, {"id": "x", "slug": "two", "organisation_id": "o"},
            {"id": "z", "slug": "broken", "organisation_id": "o", "input_guardrails": ["gone"]}],
        "keys": [{"id": "k", "name": "a", "workspace": "w", "sha256": sha256_hex("one")}, {"id": "l", "name": "b", "workspace": "x", "sha256": sha256_hex("two")},
            {"id": "m", "name": "c", "workspace": "z", "sha256": sha256_hex("three")}],
        "providers": [saved("w"), saved("x"), saved("z")],
        "parts": [{"name": "guardrails/00", "guardrails": [guardrail("g1", "pg-all", Value::Null, "canary"), guardrail("g2", "pg-own", json!("w"), "blue")]}]}));
    let build_request = async |key: &str, text: &str, config: Option<Value>| {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]}).to_string();
        let request = TestRequest::new("POST", CHAT_PATH)
            .header("content-type", "application/json")
            .header("x-gateway-api-key", key);
        let request = match config {
            Some(config) => request.header("x-gateway-config", &config.to_string()),
            None => request.header("x-gateway-provider", "@mine"),
        };
        gateway.send(request.body(body)).await
    };
    assert_eq!(build_request("one", "a canary", None).await.status, 446);
    assert_eq!(build_request("one", "hello", None).await.status, 200);
    assert_eq!(build_request("two", "a canary", None).await.status, 200);
    let own = |name: &str| Some(json!({"provider": "@mine", "input_guardrails": [name]}));
    assert_eq!(build_request("one", "blue", own("pg-own")).await.status, 446);
    assert_eq!(build_request("two", "a canary", own("pg-all")).await.status, 446);
    // A guardrail of another workspace does not exist here. A guardrail that no longer exists rejects the request
    // instead of letting it pass.
    let foreign = build_request("two", "hello", own("pg-own")).await;
    assert_eq!((foreign.status, foreign.error_code()), (400, "not_found_in_workspace".into()));
    assert_eq!(build_request("three", "hello", None).await.status, 400);
}

#[tokio::test]
async fn cached_responses_have_the_results_of_this_request() {
    let provider =
        GoldenProvider::start(200, "application/json", chat_response(&[json!({"content": "Hi"})]).into(), 4096).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let config = json!({"provider": "openai", "api_key": "k", "custom_host": provider.server.url(), "cache": {"mode": "simple"},
        "input_guardrails": [denied_words_guardrail()], "output_guardrails": [denied_words_guardrail()]});
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).to_string();
    for (number, after) in [(0, 1), (1, 0)] {
        let response = gateway.send(post_with_config(&config, CHAT_PATH, body.clone())).await;
        assert_eq!((response.status, provider.request_lines.lock().unwrap().len()), (200, 1), "{number}");
        let results = response.json()["hook_results"].clone();
        assert_eq!(results["before_request_hooks"].as_array().unwrap().len(), 1);
        assert_eq!(results["after_request_hooks"].as_array().unwrap().len(), after, "{number}");
    }
}

#[tokio::test]
async fn a_webhook_decides_and_changes_the_request() {
    let reply = json!({"verdict": true, "transformedData": {"request": {"json": {"model": "other", "messages": [{"role": "user", "content": "changed"}]}}}});
    let hook = GoldenProvider::start(200, "application/json", reply.to_string().into(), 4096).await;
    let guardrail = json!({"webhook": {"webhookURL": format!("{}/check?key=k", hook.server.url()), "headers": {"x-key": "k"}}, "deny": true});
    let body = chat_response(&[json!({"content": "Hi"})]);
    let (response, provider, _gateway) =
        send(json!({"input_guardrails": [guardrail]}), SECRET, "application/json", &body).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let (head, posted) = hook.parse_last_request();
    assert!(head.starts_with("POST /check?key=k ") && head.contains("x-key: k"), "{head}");
    assert_eq!((&posted["request"]["text"], &posted["eventType"]), (&json!(SECRET), &json!("beforeRequestHook")));
    let (_, sent) = provider.parse_last_request();
    assert_eq!((&sent["messages"][0]["content"], &sent["model"]), (&json!("changed"), &json!("gpt-x")));
    // A webhook that fails lets the request pass, unless the parameters of the check forbid that.
    let broken = GoldenProvider::start(500, "application/json", b"{}".to_vec(), 4096).await;
    for (fails, status) in [(false, 200), (true, 446)] {
        let guardrail = json!({"webhook": {"webhookURL": broken.server.url(), "failOnError": fails}, "deny": true});
        let (response, ..) = send(json!({"input_guardrails": [guardrail]}), "hi", "application/json", &body).await;
        assert_eq!(response.status, status, "{}", response.text());
    }
}

#[tokio::test]
async fn a_stream_is_checked_in_portions() {
    let filler = ["lorem ipsum dolor "; 60];
    let mut denying = denied_words_guardrail();
    denying["stream"] = json!("window");
    let config = |guardrails: Value| json!({"output_guardrails": guardrails, "strict_open_ai_compliance": false});
    let texts = [&filler[..], &["a can", "ary@mail.example "], &filler[..]].concat();
    let stream = chat_stream(&texts);
    let (response, _, gateway) = send(config(json!([denying])), "hi", "text/event-stream", &stream).await;
    let text = response.text();
    assert_eq!(response.status, 200, "{text}");
    assert!(text.contains("lorem") && !text.contains("ary@") && text.contains("hooks_failed"), "{text}");
    assert!(text.ends_with("data: [DONE]\n\n") && text.contains("\"deny\":true"), "{text}");
    assert_eq!(gateway.single_record()["hook_results"]["after_request_hooks"][0]["deny"], true);
    let redacting = json!({"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": true}, "stream": "window"});
    let (response, ..) = send(config(json!([redacting])), "hi", "text/event-stream", &stream).await;
    let text = response.text();
    assert!(text.contains("{{EMAIL_ADDRESS_1}}") && !text.contains("ary@") && !text.contains("\"a can"), "{text}");
    let last = text.split_terminator("\n\n").last().unwrap();
    assert!(last.contains("after_request_hooks") && last.contains("\"transformed\":true"), "{text}");
}

#[tokio::test]
async fn binary_streams_of_bedrock_are_read() {
    let frame = |name: &str, payload: Value| {
        penstock_llm::stream::aws_event_stream::encode_frame("event", name, payload.to_string().as_bytes())
    };
    let delta = |text: &str| frame("contentBlockDelta", json!({"contentBlockIndex": 0, "delta": {"text": text}}));
    let stream = [
        frame("messageStart", json!({"role": "assistant"})),
        delta("to can"),
        delta("ary@mail.example"),
        frame("contentBlockStop", json!({"contentBlockIndex": 0})),
        frame("messageStop", json!({"stopReason": "end_turn"})),
        frame("metadata", json!({"usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}})),
    ]
    .concat();
    let redact = json!({"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": true}});
    let window = |mut guardrail: Value| {
        guardrail["stream"] = json!("window");
        guardrail
    };
    for (guardrail, status, code) in [
        (denied_words_guardrail(), 446, "hooks_failed"),
        (window(denied_words_guardrail()), 200, "validationException"),
        (redact.clone(), 200, "{{EMAIL_ADDRESS_1}}"),
        (window(redact), 200, "{{EMAIL_ADDRESS_1}}"),
    ] {
        let provider = GoldenProvider::start(200, "application/vnd.amazon.eventstream", stream.clone(), 64).await;
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let config = json!({"provider": "bedrock", "aws_access_key_id": "a", "aws_secret_access_key": "s",
            "aws_region": "us-east-1", "custom_host": provider.server.url(), "output_guardrails": [guardrail]});
        let body = json!({"messages": [{"role": "user", "content": [{"text": "hi"}]}]}).to_string();
        let response = gateway.send(post_with_config(&config, "/model/m.x/converse-stream", body)).await;
        let text = String::from_utf8_lossy(&response.body).into_owned();
        assert_eq!((response.status, text.contains(code), text.contains("ary@")), (status, true, false), "{text}");
    }
}

#[tokio::test]
async fn deep_data_do_not_hide_the_results() {
    let hook = json!({"jsonSchema": {"schema": {"required": ["absent"]}}, "deny": true});
    for depth in [50, 127] {
        let text = format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        let (response, ..) = send(json!({"input_guardrails": [hook]}), &text, "application/json", "{}").await;
        assert_eq!(response.status, 446, "{}", response.text());
        let result = &response.json()["hook_results"]["before_request_hooks"][0];
        assert_eq!(result["deny"], true, "{}", response.text());
        let data = &result["checks"][0]["data"];
        assert_eq!(data["matchedJson"].is_object(), depth == 50, "{data}");
        assert!(!data["explanation"].as_str().unwrap().is_empty(), "{data}");
    }
}

/// Panics unless an object has exactly these keys, in this order.
fn assert_keys(object: &Value, expected: &[&str]) {
    let keys: Vec<_> = object.as_object().unwrap().keys().collect();
    assert_eq!(keys, expected, "{object}");
}

#[tokio::test]
async fn results_have_all_their_fields_in_their_order() {
    let feedback = json!({"feedback": {"value": -2, "weight": 0.5, "metadata": {"team": "a"}}});
    let failing =
        json!({"id": "words", "contains": {"words": ["canary"]}, "wordCount": {"minWords": 1}, "on_fail": feedback});
    let host = GoldenProvider::start(500, "application/json", b"{}".to_vec(), 4096).await;
    let broken = json!({"id": "broken", "webhook": {"webhookURL": host.server.url()}});
    let mut config = json!({"input_guardrails": [failing, broken], "output_guardrails": [failing, broken],
        "strict_open_ai_compliance": false});
    let (whole, ..) = send(config.clone(), "hi", "application/json", &chat_response(&[json!({"content": "Hi"})])).await;
    for hook in config["output_guardrails"].as_array_mut().unwrap() {
        hook["stream"] = json!("end");
    }
    let (stream, ..) = send(config, "hi", "text/event-stream", &chat_stream(&["Hi"])).await;
    let text = stream.text();
    assert_eq!((whole.status, stream.status), (246, 246), "{} {text}", whole.text());
    let events: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    let (first, last) = (&events[0]["hook_results"], &events[events.len() - 1]["hook_results"]);
    assert_keys(&whole.json()["hook_results"], &["before_request_hooks", "after_request_hooks"]);
    assert_keys(first, &["before_request_hooks"]);
    assert_keys(last, &["after_request_hooks"]);
    for results in [whole.json()["hook_results"].clone(), first.clone(), last.clone()] {
        for list in results.as_object().unwrap().values() {
            let [failed, errored] = &list.as_array().unwrap()[..] else { panic!("{list}") };
            for hook in [failed, errored] {
                let hook_keys =
                    ["verdict", "id", "transformed", "checks", "feedback", "execution_time", "async", "type"];
                assert_keys(hook, &[&hook_keys[..], &["created_at", "deny"]].concat());
                for check in hook["checks"].as_array().unwrap() {
                    let keys = ["data", "verdict", "id", "execution_time", "transformed", "created_at", "log"];
                    let error: &[&str] = if check["error"].is_object() { &["error"] } else { &[] };
                    assert_keys(check, &[&keys[..], &["fail_on_error"], error].concat());
                }
            }
            assert_keys(&errored["checks"][0]["error"], &["name", "message"]);
            assert_eq!((&errored["verdict"], &errored["feedback"]), (&json!(true), &Value::Null));
            let metadata = json!({"team": "a", "successfulChecks": "default.wordCount",
                "failedChecks": "default.contains", "erroredChecks": ""});
            assert_eq!(failed["feedback"], json!({"value": -2.0, "weight": 0.5, "metadata": metadata}));
        }
    }
}
