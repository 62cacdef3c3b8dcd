//! Guardrails on every route: respelled paths, forwarded requests, background responses and `WebSocket` sessions.
//! Guardrails that deny also deny what they cannot read; all others report that they were skipped.

use serde_json::{Value, json};

use crate::harness::{
    TestGateway, TestRequest, TestResponse,
    golden_provider::GoldenProvider,
    post_with_config,
    realtime_client::{expect_rejection, open_realtime},
    sha256_hex, wait_until,
};

const SECRET: &str = "canary@mail.example";

fn denying_guardrail() -> Value {
    json!([{"contains": {"words": ["canary"], "operator": "none"}, "deny": true, "id": "words"}])
}

fn observing_guardrail() -> Value {
    json!([{"contains": {"words": ["canary"], "operator": "none"}, "id": "words"}])
}

fn redacting_guardrail() -> Value {
    json!([{"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": true}}])
}

fn chat_body(text: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": text}]})
}

fn chat_response(text: &str) -> String {
    json!({"id": "c", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})
    .to_string()
}

/// Sends a request through a gateway with this config to a provider that returns `reply`.
async fn send(
    (method, path): (&str, &str),
    mut config: Value,
    body: String,
    reply: &str,
) -> (TestResponse, GoldenProvider, TestGateway) {
    let provider = GoldenProvider::start(200, "application/json", reply.as_bytes().to_vec(), 4096).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    for (name, value) in [("provider", "openai"), ("api_key", "k"), ("custom_host", &provider.server.url())] {
        config[name] = json!(value);
    }
    let response = gateway.send(post_with_config(&config, path, body).method(method)).await;
    (response, provider, gateway)
}

fn sent_count(provider: &GoldenProvider) -> usize {
    provider.request_lines.lock().unwrap().len()
}

/// Spellings of paths that a provider may read as one of a conversation.
const SPELLINGS: [&str; 14] = [
    "/v1/chat/complet%69ons",
    "/v1//chat/completions",
    "/v1/chat//completions",
    "/v1/chat/completions/",
    "/v1/chat/completions;a=b",
    "/v1/chat;a=b/completions",
    "/v1/Chat/Completions",
    "/v1/chat%2Fcompletions",
    "/v1/chat/complet%2569ons",
    "/v1/v1/chat/completions",
    "/v1/proxy/openai/deployments/gpt/chat/completions?api-version=1",
    "/v1/proxy/CHAT/completions",
    "/v1/proxy/api/generate",
    "/v1/proxy/v1/projects/p/locations/l/publishers/anthropic/models/m:rawPredict",
];

#[tokio::test]
async fn respelled_paths_are_read() {
    for path in SPELLINGS {
        let config = json!({"input_guardrails": denying_guardrail()});
        let (response, provider, _gateway) = send(("POST", path), config, chat_body(SECRET).to_string(), "{}").await;
        assert_eq!((response.status, sent_count(&provider)), (446, 0), "{path}: {}", response.text());

        let config = json!({"input_guardrails": redacting_guardrail(), "output_guardrails": redacting_guardrail()});
        let body = chat_body(&format!("write to {SECRET}")).to_string();
        let (response, provider, _gateway) = send(("POST", path), config, body, &chat_response(SECRET)).await;
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        assert_eq!(provider.parse_last_request().1["messages"][0]["content"], "write to {{EMAIL_ADDRESS_1}}", "{path}");
        assert!(!response.text().contains(SECRET), "{path}: {}", response.text());

        let config = json!({"output_guardrails": denying_guardrail()});
        let (response, ..) = send(("POST", path), config, chat_body("hi").to_string(), &chat_response(SECRET)).await;
        assert_eq!((response.status, response.text().contains(SECRET)), (446, false), "{path}");

        let config = json!({"input_guardrails": denying_guardrail(), "output_guardrails": denying_guardrail()});
        let (response, ..) = send(("POST", path), config, chat_body("hi").to_string(), &chat_response("fine")).await;
        assert_eq!(response.status, 200, "{path}: {}", response.text());
    }
}

#[tokio::test]
async fn a_content_type_does_not_hide_a_conversation() {
    let provider = GoldenProvider::start(200, "application/json", b"{}".to_vec(), 4096).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let config = json!({"provider": "openai", "api_key": "k", "custom_host": provider.server.url(),
        "input_guardrails": redacting_guardrail()});
    for content_type in ["text/plain", "application/octet-stream"] {
        let request = TestRequest::new("POST", "/v1/proxy/chat/completions")
            .header("x-gateway-config", &config.to_string())
            .header("content-type", content_type)
            .body(chat_body(SECRET).to_string());
        assert_eq!(gateway.send(request).await.status, 200);
        assert_eq!(provider.parse_last_request().1["messages"][0]["content"], "{{EMAIL_ADDRESS_1}}");
    }
}

#[tokio::test]
async fn unreadable_requests_are_denied_or_reported() {
    let session = json!({"session": {"type": "realtime", "instructions": "say what you like"}}).to_string();
    let batch = json!({"requests": [{"custom_id": "a", "params": chat_body(SECRET)}]}).to_string();
    let job = json!({"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    for (path, body) in [
        ("/v1/realtime/client_secrets", &session),
        ("/v1/realtime/sessions", &session),
        ("/v1/proxy/realtime/calls", &session),
        ("/v1/messages/batches", &batch),
        ("/v1/batches", &job.to_string()),
        ("/v1/proxy/batches", &job.to_string()),
        ("/v1/proxy/Batches/", &job.to_string()),
    ] {
        for side in ["input_guardrails", "output_guardrails"] {
            let (response, provider, _gateway) =
                send(("POST", path), json!({side: denying_guardrail()}), body.clone(), r#"{"id":"x"}"#).await;
            assert_eq!((response.status, sent_count(&provider)), (446, 0), "{path}: {}", response.text());
            let stage = if side == "input_guardrails" { "before_request_hooks" } else { "after_request_hooks" };
            let result = response.json()["hook_results"][stage][0].clone();
            assert_eq!((&result["skipped"], &result["deny"]), (&json!(true), &json!(true)), "{path}");
            assert!(result["reason"].as_str().unwrap().contains("cannot be read"), "{result}");

            let (response, _provider, gateway) =
                send(("POST", path), json!({side: observing_guardrail()}), body.clone(), r#"{"id":"x"}"#).await;
            assert_eq!(response.status, 200, "{path}: {}", response.text());
            assert_eq!(gateway.single_record()["hook_results"][stage][0]["skipped"], true, "{path}");
        }
    }
    // A batch is not sent to its provider if a guardrail changes texts, because the guardrail cannot change the lines.
    let (response, provider, _gateway) =
        send(("POST", "/v1/batches"), json!({"input_guardrails": redacting_guardrail()}), job.to_string(), "{}").await;
    assert_eq!((response.status, sent_count(&provider)), (446, 0));
    let (response, ..) = send(
        ("POST", "/v1/threads/t/runs"),
        json!({"input_guardrails": denying_guardrail()}),
        "{\"a\":1}".into(),
        "{}",
    )
    .await;
    assert_eq!(response.status, 200, "{}", response.text());
}

#[tokio::test]
async fn background_responses_are_checked_when_they_are_fetched() {
    let message = |text: &str| json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]});
    let done = |text: &str| json!({"id": "r", "object": "response", "status": "completed", "output": [message(text)]});
    let queued = json!({"id": "r", "object": "response", "status": "queued", "output": []}).to_string();
    let request = json!({"model": "m", "input": "hi", "background": true}).to_string();
    let strict =
        json!([{"wordCount": {"minWords": 1}, "contains": {"words": ["canary"], "operator": "none"}, "deny": true}]);
    let (response, ..) = send(("POST", "/v1/responses"), json!({"output_guardrails": strict}), request, &queued).await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.json()["hook_results"]["after_request_hooks"][0]["skipped"], true);
    let (response, ..) =
        send(("GET", "/v1/responses/r"), json!({"output_guardrails": strict}), String::new(), &queued).await;
    assert_eq!(response.status, 200, "{}", response.text());

    let stored = json!({"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": SECRET}}]});
    for (method, path, reply) in [
        ("GET", "/v1/responses/r", done(SECRET)),
        ("POST", "/v1/responses/r/cancel", done(SECRET)),
        ("GET", "/v1/proxy/responses/r", done(SECRET)),
        ("GET", "/v1/Responses/r", done(SECRET)),
        ("GET", "/v1/conversations/c/items", json!({"object": "list", "data": [message(SECRET)]})),
        ("GET", "/v1/chat/completions/c", stored.clone()),
        ("GET", "/v1/chat/completions", json!({"object": "list", "data": [stored]})),
    ] {
        let config = json!({"output_guardrails": denying_guardrail()});
        let (response, ..) = send((method, path), config, String::new(), &reply.to_string()).await;
        assert_eq!((response.status, response.text().contains(SECRET)), (446, false), "{path}: {}", response.text());
        let config = json!({"output_guardrails": redacting_guardrail()});
        let (response, ..) = send((method, path), config, String::new(), &reply.to_string()).await;
        assert_eq!((response.status, response.text().contains(SECRET)), (200, false), "{path}: {}", response.text());
    }
    let (response, ..) = send(
        ("GET", "/v1/responses/r"),
        json!({"output_guardrails": denying_guardrail()}),
        String::new(),
        &done("ok").to_string(),
    )
    .await;
    assert_eq!(response.status, 200, "{}", response.text());
}

#[tokio::test]
async fn websockets_are_denied_or_reported() {
    let provider = penstock_mock::Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let request =
        |path: &str, config: &Value| TestRequest::new("GET", path).header("x-gateway-config", &config.to_string());
    for path in
        ["/v1/realtime?model=m", "/v1/responses", "/v1/proxy/realtime?model=m", "/v1/proxy/x", "/v1//realtime?model=m"]
    {
        for side in ["input_guardrails", "output_guardrails"] {
            let (status, body) =
                expect_rejection(&gateway, request(path, &json!({"provider": "mock", side: denying_guardrail()})))
                    .await;
            assert_eq!((status, &body["error"]["type"]), (446, &json!("hooks_failed")), "{path}: {body}");
        }
    }
    let restoring = json!([{"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": true, "restore": true}}]);
    let config = json!({"provider": "mock", "input_guardrails": restoring});
    let (status, body) = expect_rejection(&gateway, request("/v1/realtime?model=m", &config)).await;
    assert_eq!(status, 446, "{body}");
    gateway.drain_records();
    let config = json!({"provider": "mock", "output_guardrails": observing_guardrail()});
    let client = open_realtime(&gateway, request("/v1/realtime?model=gpt-realtime", &config)).await;
    client.close(1000, "").await;
    assert_eq!(gateway.single_record()["hook_results"]["after_request_hooks"][0]["skipped"], true);
}

#[tokio::test]
async fn values_that_cannot_return_are_refused() {
    let restoring = json!([{"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": true, "restore": true}}]);
    let config = json!({"input_guardrails": restoring});
    for field in [json!({"background": true}), json!({"previous_response_id": "r"}), json!({"conversation": "c"})] {
        let mut body = json!({"model": "m", "input": SECRET});
        body.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        let (response, provider, _gateway) =
            send(("POST", "/v1/responses"), config.clone(), body.to_string(), "{}").await;
        assert_eq!((response.status, sent_count(&provider)), (446, 0), "{field}: {}", response.text());
        assert!(response.text().contains("`restore` cannot return"), "{}", response.text());
    }
    let (_, provider, _gateway) =
        send(("POST", "/v1/chat/completions"), config.clone(), chat_body(SECRET).to_string(), "{}").await;
    let name = provider.parse_last_request().1["messages"][0]["content"].as_str().unwrap().to_owned();
    for (text, status) in [(format!("to {name}"), 446), ("no name".to_owned(), 200), ("{{NAME_1}}".to_owned(), 200)] {
        let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
        let stored = json!({"id": "r", "object": "response", "status": "completed", "model": "m",
            "output": [{"type": "message", "role": "assistant", "content": content}]});
        let (response, ..) = send(("GET", "/v1/responses/r"), config.clone(), String::new(), &stored.to_string()).await;
        assert_eq!(response.status, status, "{text}: {}", response.text());
        assert!(!response.text().contains(&name), "{text}");
    }
}

#[tokio::test]
async fn defaults_of_a_workspace_apply_to_websockets() {
    let provider = penstock_mock::Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let guardrail = json!({"id": "g1", "slug": "pg-a", "organisation": "o", "version": "v", "workspace": "w",
        "checks": [{"id": "default.contains", "parameters": {"words": ["canary"], "operator": "none"}}],
        "actions": {"deny": true, "async": false}});
    gateway.apply_snapshot(&json!({"epoch": "1",
        "workspaces": [{"id": "w", "slug": "one", "organisation_id": "o", "input_guardrails": ["g1"]}],
        "keys": [{"id": "k", "name": "a", "workspace": "w", "sha256": sha256_hex("one")}],
        "parts": [{"name": "guardrails/00", "guardrails": [guardrail]}]}));
    let request = TestRequest::new("GET", "/v1/realtime?model=m")
        .header("x-gateway-provider", "mock")
        .header("x-gateway-api-key", "one");
    assert_eq!(expect_rejection(&gateway, request).await.0, 446);
}

#[tokio::test]
async fn misspelled_paths_of_the_gateway_reach_no_provider() {
    let provider = GoldenProvider::start(200, "application/json", b"{}".to_vec(), 4096).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    gateway.apply_snapshot(&json!({"epoch": "1", "catalogue": true, "management": ["/v1/configs", "/v1/api-keys"]}));
    let config = json!({"provider": "openai", "api_key": "k", "custom_host": provider.server.url()});
    for path in [
        "/v1//configs",
        "/v1/v1/configs",
        "/v1/%61pi-keys",
        "/v1/Configs/x",
        "/v1/configs;a=b",
        "/v1/api-keys%2Fx",
        "/v1//files",
        "/v1/Files",
        "/v1/files/",
        "/v1//batches",
        "/v1/BATCHES",
        "/v1/batches/",
        "/v1/v1/feedback",
        "/v1//models",
    ] {
        for method in ["GET", "POST"] {
            let response = gateway.send(post_with_config(&config, path, "{}").method(method)).await;
            let is_known = method == "GET" || !path.contains("models");
            assert!(!is_known || response.status == 404, "{method} {path}: {} {}", response.status, response.text());
        }
    }
    let lines = provider.request_lines.lock().unwrap().clone();
    assert!(lines.iter().all(|line| line.contains("models")), "{lines:?}");
    // Paths with an explicit proxy prefix, and paths of the provider's own objects, are forwarded.
    for path in ["/v1/proxy/configs", "/v1/proxy//files", "/v1/vector_stores/VS-1"] {
        assert_eq!(gateway.send(post_with_config(&config, path, "{}")).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_dry_run_only_reports() {
    for (name, guardrail) in [
        ("deny", json!({"contains": {"words": ["canary"], "operator": "none"}, "deny": true})),
        ("redact", json!({"gateway.pii": {"categories": ["EMAIL_ADDRESS"], "redact": true}})),
        ("window", json!({"stream": "window", "deny": true, "contains": {"words": ["canary"], "operator": "none"}})),
    ] {
        let mut guardrail = guardrail;
        guardrail["dry_run"] = json!(true);
        let config = json!({"input_guardrails": [guardrail], "output_guardrails": [guardrail]});
        let reply = chat_response(SECRET);
        let body = chat_body(SECRET).to_string();
        let (response, provider, gateway) = send(("POST", "/v1/chat/completions"), config, body, &reply).await;
        assert_eq!((response.status, response.text()), (200, reply), "{name}");
        assert_eq!(provider.parse_last_request().1, chat_body(SECRET), "{name}");
        let mut records = Vec::new();
        wait_until("the record", || {
            records.extend(gateway.drain_records());
            !records.is_empty()
        })
        .await;
        let results = &records[0]["hook_results"];
        for stage in ["before_request_hooks", "after_request_hooks"] {
            let result = &results[stage][0];
            assert_eq!((&result["dry_run"], &result["deny"]), (&json!(true), &json!(false)), "{name} {result}");
            assert_eq!(result["would_deny"], name != "redact", "{name} {result}");
            assert_eq!(result["checks"][0]["transformed"], name == "redact", "{name} {result}");
        }
    }
    // A dry-run guardrail does not deny what it cannot read, either.
    let guardrail = json!({"contains": {"words": ["canary"], "operator": "none"}, "deny": true, "dry_run": true});
    let config = json!({"input_guardrails": [guardrail]});
    let (response, ..) = send(("POST", "/v1/realtime/client_secrets"), config, "{\"a\":1}".into(), "{}").await;
    assert_eq!(response.status, 200, "{}", response.text());
}

#[tokio::test]
async fn a_denial_names_the_guardrail_and_the_check() {
    let config = json!({"input_guardrails": denying_guardrail()});
    let (response, ..) = send(("POST", "/v1/chat/completions"), config, chat_body(SECRET).to_string(), "{}").await;
    let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("`words`") && message.contains("`default.contains`"), "{message}");
}

#[tokio::test]
async fn a_stream_that_failed_at_its_end_is_not_cached() {
    let event = |text: &str| {
        format!(
            "data: {}\n\n",
            json!({"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]})
        )
    };
    for (text, is_strict, is_cached) in [("canary", true, false), ("fine", true, true), ("fine", false, false)] {
        let stream = format!("{}data: [DONE]\n\n", event(text));
        let provider = GoldenProvider::start(200, "text/event-stream", stream.into_bytes(), 4096).await;
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let config = json!({"provider": "openai", "api_key": "k", "custom_host": provider.server.url(),
            "cache": {"mode": "simple"}, "output_guardrails": observing_guardrail(), "strict_open_ai_compliance": is_strict});
        let mut body = chat_body("hi");
        body["stream"] = json!(true);
        for _ in 0..2 {
            let response = gateway.send(post_with_config(&config, "/v1/chat/completions", body.to_string())).await;
            assert_eq!(response.status, 200);
        }
        assert_eq!(sent_count(&provider), if is_cached { 1 } else { 2 }, "{text} {is_strict}");
    }
}

#[tokio::test]
async fn a_cached_response_has_no_results_of_another_request() {
    let provider = GoldenProvider::start(200, "application/json", chat_response("fine").into_bytes(), 4096).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let config = json!({"provider": "openai", "api_key": "k", "custom_host": provider.server.url(),
        "cache": {"mode": "simple"}, "output_guardrails": observing_guardrail()});
    for is_first in [true, false] {
        let body = chat_body("hi").to_string();
        let response = gateway.send(post_with_config(&config, "/v1/chat/completions", body)).await;
        assert_eq!(response.json()["hook_results"].is_object(), is_first, "{}", response.text());
    }
    assert_eq!(sent_count(&provider), 1);
}

#[tokio::test]
async fn explain_lists_guardrails_with_their_origin() {
    let provider = penstock_mock::Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let guardrail = |id: &str, slug: &str, workspace: Value| {
        json!({"id": id, "slug": slug, "organisation": "o", "version": "v", "workspace": workspace,
            "checks": [{"id": "default.contains", "parameters": {"words": ["canary"], "operator": "none"}}],
            "actions": {"deny": true, "async": false}})
    };
    gateway.apply_snapshot(&json!({"epoch": "1",
        "workspaces": [{"id": "w", "slug": "one", "organisation_id": "o", "input_guardrails": ["g1", "g2"]}],
        "keys": [{"id": "k", "name": "a", "workspace": "w", "sha256": sha256_hex("one")}],
        "parts": [{"name": "guardrails/00",
            "guardrails": [guardrail("g1", "pg-all", Value::Null), guardrail("g2", "pg-own", json!("w"))]}]}));
    let config =
        json!({"provider": "mock", "override_params": {"top_p": 1}, "output_guardrails": redacting_guardrail()});
    let question = json!({"path": "/v1/chat/completions", "body": {"model": "m", "messages": []}});
    let request = post_with_config(&config, "/v1/explain", question.to_string()).header("x-gateway-api-key", "one");
    let response = gateway.send(request).await;
    let target = response.json()["targets"][0].clone();
    let guardrails: Vec<_> = target["guardrails"]
        .as_array()
        .unwrap()
        .iter()
        .map(|guardrail| {
            [&guardrail["id"], &guardrail["stage"], &guardrail["origin"], &guardrail["deny"], &guardrail["changes"]]
                .map(Clone::clone)
        })
        .collect();
    let expected = json!([
        ["pg-all", "input", "organisation", true, false],
        ["pg-own", "input", "workspace", true, false],
        ["guardrail_1", "output", "config", false, true],
    ]);
    assert_eq!((json!(guardrails), &target["changes_parameters"]), (expected, &json!(true)), "{}", response.text());
}
