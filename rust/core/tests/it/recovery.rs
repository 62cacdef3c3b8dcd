//! Stream recovery. A broken stream is held back until it is complete, or another target continues it, in every client
//! format.

use std::fs;

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, TestResponse, chat_body, chat_request,
    golden_provider::{GoldenProvider, extract_model, golden_case},
    mock_target, pick_fields, post_with_config, routing_headers,
    scripted_server::{SSE_RESPONSE_HEAD, ScriptedServer, encode_chunks},
    wait_for_ledger_entries,
};
use penstock_mock::Server;
use serde_json::{Value, json};

const GEMINI_STREAM_PATH: &str = "/v1beta/models/m:streamGenerateContent";
const COMPLETIONS_PATH: &str = "/v1/completions";
const RESPONSES_PATH: &str = "/v1/responses";

fn recovery_config(recovery: &Value, targets: &[Value]) -> Value {
    json!({"strategy": {"mode": "fallback"}, "recovery": recovery, "targets": targets})
}

/// Parses all JSON events of a stream.
fn parse_stream_events(response: &TestResponse) -> Vec<Value> {
    let text = response.text();
    text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
}

/// Concatenates the text deltas of a stream.
fn collect_text(reply: &TestResponse) -> String {
    let part = |event: &Value| {
        let chat = event["choices"][0]["delta"]["content"].as_str();
        let response = event["delta"].as_str().filter(|_| event["type"] == "response.output_text.delta");
        let completion = event["choices"][0]["text"].as_str();
        chat.or_else(|| event["delta"]["text"].as_str()).or(response).or(completion).unwrap_or_default().to_owned()
    };
    parse_stream_events(reply).iter().map(part).collect()
}

async fn fetch_expected_text(gateway: &TestGateway) -> String {
    let response = gateway.send(chat_request("mock?chunks=60")).await.json();
    gateway.drain_records();
    response["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

fn decision_steps(record: &Value) -> Value {
    let steps = record["decisions"].as_array().unwrap();
    steps.iter().map(|step| json!([step["step"], step["at"].as_str().unwrap().trim_start_matches("config.")])).collect()
}

fn recovery_request(config: &Value, path: &str) -> TestRequest {
    let mut body = json!({"model": "m", "stream": true, "max_tokens": 99, "stream_options": {"include_usage": true}});
    match path {
        COMPLETIONS_PATH | "/v1/proxy/completions" => body["prompt"] = json!("say it: "),
        RESPONSES_PATH => body["input"] = json!([{"role": "user", "content": "say it"}]),
        _ => body["messages"] = json!([{"role": "user", "content": "say it"}]),
    }
    post_with_config(config, path, body.to_string())
}

fn sixty_chunk_target(more: &str) -> Value {
    mock_target(&format!("chunks=60{more}"))
}

#[tokio::test]
async fn held_stream_that_breaks_off_falls_back_or_retries() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        (settings.idle_timeout_ms, settings.retry_backoff_ms) = (200, 1);
    });
    let canon = fetch_expected_text(&gateway).await;
    for path in [CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH] {
        for fault in ["cut&after=40", "cut_event&after=5", "stall&after=20", "error_event&after=3", "invalid_framing"] {
            let response = gateway
                .send(recovery_request(
                    &recovery_config(
                        &json!("hold"),
                        &[sixty_chunk_target(&format!("&fault={fault}")), sixty_chunk_target("")],
                    ),
                    path,
                ))
                .await;
            assert_eq!(
                (response.status, routing_headers(&response)[0]),
                (200, "config.targets[1]"),
                "{path} {fault}: {}",
                response.text()
            );
            assert_eq!(collect_text(&response), canon, "{path} {fault}");
            let record = gateway.single_record();
            assert_eq!(pick_fields(&record, ["outcome", "is_success"]), json!(["complete", true]));
            assert!(record["decisions"][0]["error"].is_string(), "{path} {fault}: {record}");
        }
    }
    let mut retried = sixty_chunk_target("&fault=cut&times=1");
    retried["retry"] = json!({"attempts": 1});
    let response = gateway.send(recovery_request(&recovery_config(&json!("hold"), &[retried]), CHAT_PATH)).await;
    assert_eq!((collect_text(&response), routing_headers(&response)[1]), (canon, "1"));
    // The held stream uses recovery memory until its last byte is dropped.
    assert!(gateway.state.shared.recovery_memory.used_bytes() > 0);
    drop(response);
    assert_eq!(gateway.state.shared.recovery_memory.used_bytes(), 0);
}

#[tokio::test]
async fn holds_bedrock_frames_and_gemini_items_like_sse_events() {
    for (operation, path) in
        [("converseStream", "/model/m/converse-stream"), ("streamGenerateContent", GEMINI_STREAM_PATH)]
    {
        let case = golden_case(&format!("openai/{operation}/stream"));
        let complete = fs::read(case.path("response.sse")).unwrap();
        let half = complete[..complete.len() / 2].to_vec();
        let failed = b"data: {\"error\":{\"message\":\"too much\",\"code\":503}}\n\n".to_vec();
        let requests = extract_model(&fs::read(case.path("request.json")).unwrap()).1;
        let mut reply = Vec::new();
        for first in [complete.clone(), half, failed] {
            let first = GoldenProvider::start(200, "text/event-stream", first, 33).await;
            let second = GoldenProvider::start(200, "text/event-stream", complete.clone(), 33).await;
            let at = |golden_provider: &GoldenProvider| json!({"provider": "openai", "api_key": "sk-1", "custom_host": golden_provider.server.url()});
            let gateway = GoldenProvider::gateway_trusting_loopback();
            let config = recovery_config(&json!("hold"), &[at(&first), at(&second)]);
            let response = gateway.send(post_with_config(&config, path, requests.clone())).await;
            assert_eq!((response.status, response.is_truncated), (200, false), "{operation}: {}", response.text());
            let record = gateway.single_record();
            assert_eq!(gateway.state.record_sink.metrics.streams_buffered.get(), 1, "{operation}: {record}");
            reply.push((routing_headers(&response)[0].to_owned(), record["outcome"].clone(), response.body));
        }
        let [(first, outcome, all), others @ ..] = &reply[..] else { panic!("three were asked") };
        assert_eq!((first.as_str(), outcome), ("config.targets[0]", &json!("complete")), "{operation}");
        for (at, outcome, body) in others {
            assert_eq!((at.as_str(), outcome), ("config.targets[1]", &json!("complete")), "{operation}");
            assert_eq!(body.len(), all.len(), "{operation}");
        }
    }
}

#[tokio::test]
async fn returns_502_if_no_target_completes_a_held_stream() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (fault, expected_text) in [("cut", "complete"), ("error_event", "overloaded")] {
        let response = gateway
            .send(recovery_request(
                &recovery_config(&json!("hold"), &[sixty_chunk_target(&format!("&fault={fault}"))]),
                CHAT_PATH,
            ))
            .await;
        assert_eq!(
            (response.status, response.error_code().as_str(), response.is_streamed),
            (502, "upstream_disconnected", false),
            "{}",
            response.text()
        );
        assert!(response.text().contains(expected_text) || fault == "cut", "{}", response.text());
        assert_eq!(gateway.single_record()["outcome"], "failed");
    }
}

#[tokio::test]
async fn passes_on_a_stream_that_exceeds_the_recovery_memory() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.recovery_stream_bytes = 2_000);
    let canon = fetch_expected_text(&gateway).await;
    let response = gateway
        .send(recovery_request(
            &recovery_config(&json!("hold"), &[sixty_chunk_target(""), mock_target("chunks=1")]),
            CHAT_PATH,
        ))
        .await;
    assert_eq!((collect_text(&response), routing_headers(&response)[0]), (canon, "config.targets[0]"));
    assert_eq!(
        decision_steps(&gateway.single_record()),
        json!([["buffer_exceeded", "targets[0]"], ["tried", "targets[0]"]])
    );
    let response = gateway
        .send(recovery_request(
            &recovery_config(&json!("hold"), &[sixty_chunk_target("&fault=cut&after=40"), mock_target("chunks=1")]),
            CHAT_PATH,
        ))
        .await;
    assert!(parse_stream_events(&response).pop().unwrap()["error"].is_object());
    assert_eq!(gateway.single_record()["outcome"], "cut");
    let metrics = &gateway.state.record_sink.metrics;
    assert_eq!(
        (
            metrics.streams_buffered.get(),
            metrics.stream_recovery_overflows.get(),
            gateway.state.shared.recovery_memory.used_bytes()
        ),
        (0, 2, 0)
    );
}

#[tokio::test]
async fn held_stream_ends_at_the_client_timeout() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let endless = recovery_config(&json!("hold"), &[mock_target("chunk_ms=100&chunks=1000"), sixty_chunk_target("")]);
    let response = gateway.send(recovery_request(&endless, CHAT_PATH).header("x-stainless-timeout", "0.3")).await;
    assert_eq!((response.status, response.header("x-should-retry")), (408, Some("false")), "{}", response.text());
}

#[tokio::test]
async fn chat_stream_continues_on_another_target_as_one_response() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.idle_timeout_ms = 200);
    let canon = fetch_expected_text(&gateway).await;
    for fault in ["cut&after=40", "cut_event&after=40", "stall&after=40", "cut_reset&after=40"] {
        let config = recovery_config(
            &json!("continue"),
            &[sixty_chunk_target(&format!("&fault={fault}")), sixty_chunk_target("&prefix=on")],
        );
        let response = gateway.send(recovery_request(&config, CHAT_PATH)).await;
        assert_eq!(
            (response.status, response.is_truncated, collect_text(&response)),
            (200, false, canon.clone()),
            "{fault}: {}",
            response.text()
        );
        assert!(response.text().ends_with("data: [DONE]\n\n"), "{fault}");
        let events = parse_stream_events(&response);
        assert!(events.iter().all(|event| event["id"] == events[0]["id"]), "{fault}");
        assert_eq!(events.iter().filter(|event| event["choices"][0]["delta"]["role"].is_string()).count(), 1);
        let record = gateway.single_record();
        let expected_steps = json!([
            ["tried", "targets[0]"],
            ["broke_off", "targets[0]"],
            ["tried", "targets[1]"],
            ["continued", "targets[1]"]
        ]);
        assert_eq!(decision_steps(&record), expected_steps);
        let attempts = record["attempts"].as_array().unwrap();
        let targets: Vec<_> = attempts.iter().map(|attempt| &attempt["target"]).collect();
        assert_eq!(targets, ["config.targets[0]", "config.targets[1]"]);
        assert_eq!(
            pick_fields(&record, ["outcome", "is_success", "error", "last_used_option_index", "units_estimated"]),
            json!(["complete", true, null, "config.targets[1]", true])
        );
        // The second target reports about 20 tokens; the gateway estimates 40 for the broken part, about one token per
        // word.
        let usage = events.iter().find_map(|event| event["usage"].as_object()).unwrap();
        assert_eq!(
            json!([usage["prompt_tokens"], usage["completion_tokens"]]),
            pick_fields(&record, ["req_units", "res_units"])
        );
        assert!((55..75).contains(&record["res_units"].as_u64().unwrap()), "{record}");
        assert!(record["req_units"].as_u64().unwrap() > 12);
    }
    assert_eq!(
        (gateway.state.record_sink.metrics.streams_resumed.get(), gateway.state.shared.recovery_memory.used_bytes()),
        (4, 0)
    );
}

#[tokio::test]
async fn does_not_cache_a_continued_response() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut config = recovery_config(
        &json!("continue"),
        &[sixty_chunk_target("&fault=cut&after=40"), sixty_chunk_target("&prefix=on")],
    );
    config["cache"] = json!({"mode": "simple", "max_age": 60});
    for _ in 0..2 {
        let response = gateway.send(recovery_request(&config, CHAT_PATH)).await;
        assert_eq!(
            (response.status, response.header("x-gateway-cache-status")),
            (200, Some("MISS")),
            "{}",
            response.text()
        );
        assert!(response.text().ends_with("data: [DONE]\n\n"));
    }
    assert_eq!(gateway.state.record_sink.metrics.streams_resumed.get(), 2);
}

#[tokio::test]
async fn recovers_pass_through_streams() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let canon = fetch_expected_text(&gateway).await;
    for mode in ["hold", "continue"] {
        let config = recovery_config(
            &json!(mode),
            &[sixty_chunk_target("&fault=cut&after=40"), sixty_chunk_target("&prefix=on")],
        );
        let response = gateway.send(recovery_request(&config, "/v1/proxy/chat/completions")).await;
        assert_eq!(
            (collect_text(&response), response.is_truncated),
            (canon.clone(), false),
            "{mode}: {}",
            response.text()
        );
    }
}

#[tokio::test]
async fn messages_stream_continues_within_its_content_block() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let canon = fetch_expected_text(&gateway).await;
    let config = recovery_config(
        &json!("continue"),
        &[sixty_chunk_target("&fault=cut&after=40"), sixty_chunk_target("&prefix=on")],
    );
    let response = gateway.send(recovery_request(&config, MESSAGES_PATH)).await;
    assert_eq!((collect_text(&response), response.is_truncated), (canon, false), "{}", response.text());
    let events = parse_stream_events(&response);
    for (kind, count) in
        [("message_start", 1), ("content_block_start", 1), ("content_block_stop", 1), ("message_stop", 1)]
    {
        assert_eq!(events.iter().filter(|event| event["type"] == kind).count(), count, "{kind}: {}", response.text());
    }
    assert!(events.iter().all(|event| event["index"].is_null() || event["index"] == 0));
    let usage = &events.iter().rfind(|event| event["type"] == "message_delta").unwrap()["usage"];
    let record = gateway.single_record();
    assert_eq!(
        json!([usage["input_tokens"], usage["output_tokens"]]),
        pick_fields(&record, ["req_units", "res_units"])
    );
}

#[tokio::test]
async fn text_completion_continues_exactly_on_any_model() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let canon = fetch_expected_text(&gateway).await;
    // The mock provider generates the same text for prompts as for chats.
    let config = recovery_config(
        &json!("continue"),
        &[
            sixty_chunk_target("&fault=cut&after=40"),
            json!({"provider": "mock", "name": "other",
        "override_params": {"model": "mock?chunks=60&prefix=on"}}),
        ],
    );
    for path in [COMPLETIONS_PATH, "/v1/proxy/completions"] {
        let (response, record) = (gateway.send(recovery_request(&config, path)).await, gateway.single_record());
        assert_eq!((collect_text(&response), response.is_truncated), (canon.clone(), false), "{path}: {record}");
        let events = parse_stream_events(&response);
        assert!(events.iter().all(|event| event["id"] == events[0]["id"]), "{path}");
        assert_eq!(decision_steps(&record)[3], json!(["continued", "targets[1]"]));
    }
    let request_body = json!({"path": COMPLETIONS_PATH, "headers": {"x-gateway-config": r#"{"provider":"openai","recovery":"continue"}"#},
        "body": {"model": "m", "prompt": "p"}});
    let request = TestRequest::new("POST", "/v1/explain")
        .header("content-type", "application/json")
        .body(request_body.to_string());
    assert_eq!(
        gateway.send(request).await.json()["targets"][0]["recovery"],
        json!({"mode": "continue", "continues": true})
    );
}

#[tokio::test]
async fn responses_stream_continues_within_its_output_message() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let canon = fetch_expected_text(&gateway).await;
    let config = recovery_config(
        &json!("continue"),
        &[sixty_chunk_target("&fault=cut&after=40"), sixty_chunk_target("&prefix=on")],
    );
    let reply = gateway.send(recovery_request(&config, RESPONSES_PATH)).await;
    assert_eq!((collect_text(&reply), reply.is_truncated), (canon.clone(), false), "{}", reply.text());
    let events = parse_stream_events(&reply);
    for (kind, count) in [("created", 1), ("output_item.added", 1), ("output_item.done", 1), ("completed", 1)] {
        let kind = format!("response.{kind}");
        assert_eq!(events.iter().filter(|event| event["type"] == *kind).count(), count, "{kind}: {}", reply.text());
    }
    assert!(events.iter().all(|event| event["output_index"].is_null() || event["output_index"] == 0));
    let done = events.iter().find(|event| event["type"] == "response.output_text.done").unwrap();
    let complete = &events.last().unwrap()["response"];
    assert_eq!([&done["text"], &complete["output"][0]["content"][0]["text"]], [&json!(canon); 2]);
    // After the point of continuation, the sequence number increases by one with each event.
    let numbers: Vec<_> = events[43..].iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
    let (record, usage) = (gateway.single_record(), &complete["usage"]);
    assert_eq!(
        json!([usage["input_tokens"], usage["output_tokens"]]),
        pick_fields(&record, ["req_units", "res_units"])
    );
    assert_eq!(decision_steps(&record)[3], json!(["continued", "targets[1]"]));
}

#[tokio::test]
async fn stream_continues_on_a_target_with_another_api_format() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
    });
    let canon = fetch_expected_text(&gateway).await;
    let other = json!({"provider": "anthropic", "api_key": "k", "custom_host": format!("{}/v1", provider.url()),
        "override_params": {"model": "mock?chunks=60&prefix=on"}, "recovery": {"mode": "continue", "prefill": true}});
    for (path, count) in [(CHAT_PATH, 3), (RESPONSES_PATH, 5)] {
        let config = recovery_config(&json!("continue"), &[sixty_chunk_target("&fault=cut&after=40"), other.clone()]);
        let response = gateway.send(recovery_request(&config, path)).await;
        assert_eq!(
            (collect_text(&response), response.is_truncated),
            (canon.clone(), false),
            "{path}: {}",
            response.text()
        );
        assert_eq!(wait_for_ledger_entries(&provider, count).await[count - 1].path, "/v1/messages");
    }
}

#[tokio::test]
async fn continues_until_targets_run_out_then_reports_the_break() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let canon = fetch_expected_text(&gateway).await;
    let cut = |more: &str| sixty_chunk_target(&format!("&fault=cut&after=10{more}"));
    let response = gateway
        .send(recovery_request(
            &recovery_config(&json!("continue"), &[cut(""), cut("&prefix=on"), sixty_chunk_target("&prefix=on")]),
            CHAT_PATH,
        ))
        .await;
    assert_eq!((collect_text(&response), response.is_truncated), (canon.clone(), false), "{}", response.text());
    assert_eq!(gateway.single_record()["last_used_option_index"], "config.targets[2]");
    // A single target continues its own stream.
    let response = gateway
        .send(recovery_request(&recovery_config(&json!("continue"), &[cut("&prefix=on&times=1")]), CHAT_PATH))
        .await;
    assert_eq!(collect_text(&response), canon);
    gateway.drain_records();
    for targets in [
        vec![cut(""), cut("&prefix=on")],
        vec![cut(""), sixty_chunk_target("&prefix=off")],
        vec![cut(""), mock_target("status=503")],
    ] {
        let response = gateway.send(recovery_request(&recovery_config(&json!("continue"), &targets), CHAT_PATH)).await;
        let last = parse_stream_events(&response).pop().unwrap();
        assert_eq!(
            (last["error"]["code"].as_str(), response.is_truncated),
            (Some("upstream_disconnected"), false),
            "{targets:?}"
        );
        let record = gateway.single_record();
        assert_eq!(pick_fields(&record, ["outcome", "is_success"]), json!(["cut", false]));
    }
}

#[tokio::test]
async fn restarts_on_any_target_if_no_text_was_sent() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let canon = fetch_expected_text(&gateway).await;
    for path in [CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH] {
        let config = recovery_config(
            &json!("continue"),
            &[sixty_chunk_target("&fault=cut&after=0"), sixty_chunk_target("&prefix=off")],
        );
        let response = gateway.send(recovery_request(&config, path)).await;
        assert_eq!(
            (collect_text(&response), response.is_truncated),
            (canon.clone(), false),
            "{path}: {}",
            response.text()
        );
    }
}

#[tokio::test]
async fn does_not_continue_on_a_target_without_prefill() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config =
        recovery_config(&json!("continue"), &[sixty_chunk_target("&fault=cut&after=40"), sixty_chunk_target("")]);
    let response = gateway.send(recovery_request(&config, CHAT_PATH)).await;
    assert!(parse_stream_events(&response).pop().unwrap()["error"].is_object());
    assert_eq!(
        decision_steps(&gateway.single_record()),
        json!([["tried", "targets[0]"], ["broke_off", "targets[0]"], ["cannot_continue", "targets[1]"]])
    );
    wait_for_ledger_entries(&provider, 1).await;
}

#[tokio::test]
async fn sends_the_prefill_in_the_form_each_provider_expects() {
    const PARTIAL_CHAT: &[&str] = &[
        r#"{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":"The quick "},"finish_reason":null}]}"#,
    ];
    let beginning = json!({"role": "assistant", "content": "The quick"});
    let with = |field: &str| {
        let mut last = beginning.clone();
        last[field] = true.into();
        last
    };
    for (slug, model, path, expected, prefill) in [
        ("mistral-ai", "mistral-small-latest", "/v1/chat/completions", with("prefix"), None),
        ("deepseek", "deepseek-chat", "/beta/chat/completions", with("prefix"), None),
        ("moonshot", "kimi-k2.5", "/v1/chat/completions", with("partial"), None),
        ("dashscope", "qwen-plus", "/chat/completions", with("partial"), None),
        ("groq", "llama-3.3-70b-versatile", "/chat/completions", beginning.clone(), None),
        ("siliconflow", "deepseek-ai/DeepSeek-V2.5", "/chat/completions", Value::Null, Some("The quick")),
    ] {
        // Some providers repeat the prefill in their response.
        let repeated = if slug == "mistral-ai" { "The quick" } else { "" };
        let rest = [
            json!({"id": "b", "choices": [{"index": 0, "delta": {"role": "assistant", "content": repeated}, "finish_reason": null}]}),
            json!({"id": "b", "choices": [{"index": 0, "delta": {"content": " brown fox"}, "finish_reason": null}]}),
            json!({"id": "b", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        ];
        let rest = rest.map(|chunk| format!("data: {chunk}\n\n")).concat() + "data: [DONE]\n\n";
        let (first, second) = (
            start_breaking_provider(PARTIAL_CHAT).await,
            GoldenProvider::start(200, "text/event-stream", rest.into(), 64).await,
        );
        let prefix = if ["mistral-ai", "deepseek"].contains(&slug) { "/v1" } else { "" };
        let target = |provider: &str, url: String, model: &str| {
            json!({"provider": provider, "api_key": "k",
            "custom_host": url, "override_params": {"model": model}})
        };
        let targets =
            [target("cerebras", first.url(), "m"), target(slug, format!("{}{prefix}", second.server.url()), model)];
        // Groq has its own Responses API, which is not documented to continue a prefill.
        for caller in [CHAT_PATH, MESSAGES_PATH, RESPONSES_PATH]
            .into_iter()
            .filter(|caller| (slug, *caller) != ("groq", RESPONSES_PATH))
        {
            let gateway = GoldenProvider::gateway_trusting_loopback();
            let reply = gateway.send(recovery_request(&recovery_config(&json!("continue"), &targets), caller)).await;
            let (head, body) = second.parse_last_request();
            assert_eq!(
                (collect_text(&reply).as_str(), reply.is_truncated),
                ("The quick brown fox", false),
                "{slug} {caller}: {}",
                reply.text()
            );
            assert!(head.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{slug} {caller}: {head}");
            let messages = body["messages"].as_array().unwrap();
            let assistant_message =
                messages.iter().find(|message| message["role"] == "assistant").cloned().unwrap_or_default();
            assert_eq!((assistant_message, body["prefix"].as_str()), (expected.clone(), prefill), "{slug} {caller}");
            assert_eq!(messages[0]["role"], "user", "{slug} {caller}");
            assert_eq!(pick_fields(&gateway.single_record(), ["outcome", "ai_org"]), json!(["complete", slug]));
        }
    }
}

#[tokio::test]
async fn record_and_explain_state_why_a_target_cannot_continue() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
    });
    for (slug, model, recovery, reason) in [
        ("openai", "gpt-4o", json!("continue"), "its provider is not known to continue a partial response"),
        ("groq", "openai/gpt-oss-120b", json!("continue"), "its model does not continue a partial response"),
        (
            "mistral-ai",
            "m",
            json!({"mode": "continue", "prefill": false}),
            "the config says that its model does not continue a partial response",
        ),
    ] {
        let other = json!({"provider": slug, "api_key": "k", "custom_host": provider.url(), "recovery": recovery,
            "override_params": {"model": model}});
        let config = recovery_config(&json!("continue"), &[sixty_chunk_target("&fault=cut&after=40"), other]);
        let reply = gateway.send(recovery_request(&config, CHAT_PATH)).await;
        assert_eq!(parse_stream_events(&reply).pop().unwrap()["error"]["code"], "upstream_disconnected", "{slug}");
        let record = gateway.single_record();
        assert_eq!(
            record["decisions"][2],
            json!({"step": "cannot_continue", "at": "config.targets[1]", "reason": reason})
        );
        let request_body = json!({"path": CHAT_PATH, "headers": {"x-gateway-config": config.to_string()},
            "body": serde_json::from_str::<Value>(&chat_body("m", true)).unwrap()});
        let request = TestRequest::new("POST", "/v1/explain")
            .header("content-type", "application/json")
            .body(request_body.to_string());
        let recovery = gateway.send(request).await.json()["targets"][1]["recovery"].clone();
        gateway.drain_records();
        assert_eq!(recovery, json!({"mode": "continue", "continues": false, "reason": reason}));
    }
}

#[tokio::test]
async fn does_not_continue_past_guardrails_that_must_check_the_text() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let (mut broken, mut whole) = (sixty_chunk_target("&fault=cut&after=40"), sixty_chunk_target("&prefix=on"));
    let redacting = json!([{"regexReplace": {"rule": "say", "scope": "all"}}]);
    let window = json!([{"regexReplace": {"rule": "say"}, "stream": "window"}]);
    for (side, guardrails) in [("input_guardrails", &redacting), ("output_guardrails", &window)] {
        for is_first in [true, false] {
            let guarded = if is_first { &mut broken } else { &mut whole };
            guarded[side] = guardrails.clone();
            let config = recovery_config(&json!("continue"), &[broken.clone(), whole.clone()]);
            let response = gateway.send(recovery_request(&config, CHAT_PATH)).await;
            assert_eq!(parse_stream_events(&response).pop().unwrap()["error"]["code"], "upstream_disconnected");
            let record = gateway.single_record();
            assert_eq!(record["attempts"].as_array().unwrap().len(), 1, "{side} {is_first}: {record}");
            if !is_first {
                let reason = "its guardrails must check the whole request and response";
                assert_eq!(
                    pick_fields(&record["decisions"][2], ["step", "reason"]),
                    json!(["cannot_continue", reason])
                );
            }
            for target in [&mut broken, &mut whole] {
                target.as_object_mut().unwrap().remove(side);
            }
        }
    }
}

/// Starts a provider whose streams send these events and then break off.
async fn start_breaking_provider(content: &[&str]) -> ScriptedServer {
    let events: Vec<u8> = content.iter().flat_map(|data| [b"data: ", data.as_bytes(), b"\n\n"].concat()).collect();
    ScriptedServer::start_closing_after_response([SSE_RESPONSE_HEAD.as_bytes(), &encode_chunks(&events, 64)].concat())
        .await
}

#[tokio::test]
async fn does_not_continue_tool_calls_or_reasoning_and_records_why() {
    const CHAT_TOOL_CALL: &[&str] = &[
        r#"{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":"Let me look."},"finish_reason":null}]}"#,
        r#"{"id":"a","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"look","arguments":"{\"at"}}]},"finish_reason":null}]}"#,
    ];
    const MESSAGES_TOOL_USE: &[&str] = &[
        r#"{"type":"message_start","message":{"id":"a","type":"message","role":"assistant","content":[],"usage":{"input_tokens":1,"output_tokens":1}}}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c","name":"look","input":{}}}"#,
    ];
    const RESPONSES_REASONING: &[&str] = &[
        r#"{"type":"response.created","sequence_number":0,"response":{"id":"r","status":"in_progress","output":[]}}"#,
        r#"{"type":"response.output_item.added","sequence_number":1,"output_index":0,"item":{"type":"reasoning","id":"t","summary":[]}}"#,
    ];
    const RESPONSES_FUNCTION_CALL: &[&str] = &[
        r#"{"type":"response.created","sequence_number":0,"response":{"id":"r","status":"in_progress","output":[]}}"#,
        r#"{"type":"response.output_item.done","sequence_number":1,"output_index":0,"item":{"type":"message","id":"m","content":[]}}"#,
        r#"{"type":"response.output_item.added","sequence_number":2,"output_index":1,"item":{"type":"function_call","id":"f","name":"look","arguments":""}}"#,
        r#"{"type":"response.output_item.done","sequence_number":3,"output_index":1,"item":{"type":"function_call","id":"f","name":"look","arguments":"{}"}}"#,
    ];
    const LEGACY_COMPLETION: &[&str] = &[r#"{"id":"a","choices":[{"index":0,"text":"One","finish_reason":null}]}"#];
    for (path, content, reason) in [
        (CHAT_PATH, CHAT_TOOL_CALL, "a tool was called"),
        (MESSAGES_PATH, MESSAGES_TOOL_USE, "a tool was called"),
        (RESPONSES_PATH, RESPONSES_REASONING, "it broke off during reasoning"),
        (RESPONSES_PATH, RESPONSES_FUNCTION_CALL, "a tool was called"),
        ("/v1/some/inference", LEGACY_COMPLETION, "responses on this path cannot be continued"),
    ] {
        let provider = start_breaking_provider(content).await;
        let gateway = TestGateway::for_url(&provider.url());
        let reply = gateway
            .send(recovery_request(
                &recovery_config(&json!("continue"), &[sixty_chunk_target(""), sixty_chunk_target("&prefix=on")]),
                path,
            ))
            .await;
        assert_eq!((reply.status, reply.is_truncated), (200, false), "{path}: {}", reply.text());
        for data in content {
            assert!(reply.text().contains(data), "{path}: {}", reply.text());
        }
        let last = parse_stream_events(&reply).pop().unwrap();
        assert!(last["error"].is_object() || last["type"] == "error", "{path}: {last}");
        let record = gateway.single_record();
        assert_eq!(
            pick_fields(&record, ["outcome", "is_success", "error"]),
            json!(["cut", false, "upstream_disconnected"]),
            "{path}"
        );
        assert_eq!(
            decision_steps(&record),
            json!([["tried", "targets[0]"], ["broke_off", "targets[0]"], ["stopped", "targets[0]"]])
        );
        assert_eq!(record["decisions"][2]["reason"], reason);
        assert_eq!(provider.connection_count(), 1, "{path}");
    }
}

#[tokio::test]
async fn preserves_reasoning_and_continues_the_text() {
    const CHAT_REASONING: &[&str] = &[
        r#"{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"Hm."},"finish_reason":null}]}"#,
        r#"{"id":"a","choices":[{"index":0,"delta":{"content":"The quick "},"finish_reason":null}]}"#,
    ];
    let other = Server::start().await;
    let provider = start_breaking_provider(CHAT_REASONING).await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
    });
    let mut next = sixty_chunk_target("&prefix=on");
    next["custom_host"] = json!(format!("{}/v1", other.url()));
    let response = gateway
        .send(recovery_request(&recovery_config(&json!("continue"), &[sixty_chunk_target(""), next]), CHAT_PATH))
        .await;
    assert!(
        !response.is_truncated && response.text().contains("Hm.") && response.text().ends_with("data: [DONE]\n\n"),
        "{}",
        response.text()
    );
    assert_eq!(gateway.single_record()["outcome"], "complete");
    assert!(wait_for_ledger_entries(&other, 1).await[0].body_bytes > 0);
}

#[tokio::test]
async fn explain_reports_the_recovery_mode_of_each_target() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = recovery_config(
        &json!("continue"),
        &[sixty_chunk_target("&prefix=on"), json!({"provider": "mock", "recovery": "off"})],
    );
    let request_body = json!({"path": CHAT_PATH, "headers": {"x-gateway-config": config.to_string()}, "body": serde_json::from_str::<Value>(&chat_body("m", true)).unwrap()});
    let request = TestRequest::new("POST", "/v1/explain")
        .header("content-type", "application/json")
        .body(request_body.to_string());
    let body = gateway.send(request).await.json();
    let body: Vec<_> = body["targets"].as_array().unwrap().iter().map(|target| target["recovery"].clone()).collect();
    assert_eq!(body, [json!({"mode": "continue", "continues": true}), json!({"mode": "off", "continues": false})]);
}

#[tokio::test]
async fn recovers_streams_from_providers_that_compress() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let canon = fetch_expected_text(&gateway).await;
    for mode in ["hold", "continue"] {
        let targets = [sixty_chunk_target("&fault=cut&after=20&gzip=on"), sixty_chunk_target("&prefix=on&gzip=on")];
        let mut config = recovery_config(&json!({"mode": mode, "prefill": true}), &targets);
        config["targets"][1]["provider"] = json!("mock");
        let request =
            recovery_request(&config, "/v1/proxy/chat/completions").header("accept-encoding", "gzip, deflate");
        let response = gateway.send(request).await;
        assert_eq!((response.status, collect_text(&response)), (200, canon.clone()), "{mode}: {}", response.text());
    }
}

#[tokio::test]
async fn continues_a_stream_that_outlasts_the_client_read_timeout() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let canon = fetch_expected_text(&gateway).await;
    let slow = sixty_chunk_target("&fault=cut&after=30&chunk_ms=20");
    let config =
        recovery_config(&json!({"mode": "continue", "prefill": true}), &[slow, sixty_chunk_target("&prefix=on")]);
    for name in ["x-stainless-read-timeout", "x-stainless-timeout"] {
        let response = gateway.send(recovery_request(&config, CHAT_PATH).header(name, "0.3")).await;
        assert_eq!(collect_text(&response), canon, "{name}: {}", response.text());
        assert_eq!(gateway.single_record()["last_used_option_index"], "config.targets[1]");
    }
}

#[tokio::test]
async fn record_states_why_no_target_continued() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let cut = || sixty_chunk_target("&fault=cut&after=20");
    let unread = mock_target("status=201");
    for (other, expected) in [
        (json!({"provider": "@nobody"}), json!(["failed", "targets[1]"])),
        (unread, json!(["cannot_continue", "targets[1]"])),
    ] {
        let config = recovery_config(&json!({"mode": "continue", "prefill": true}), &[cut(), other]);
        let response = gateway.send(recovery_request(&config, CHAT_PATH)).await;
        assert!(parse_stream_events(&response).pop().unwrap()["error"].is_object(), "{}", response.text());
        let record = gateway.single_record();
        assert_eq!(decision_steps(&record).as_array().unwrap().last(), Some(&expected), "{record:#}");
    }
}
