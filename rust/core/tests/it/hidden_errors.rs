//! Errors that a provider sends with the status 200, in every API format: complete, or as the first event of a stream.
//! Also streams that end without content. Each is a failure for fallback, retry, circuit breaker, cache, log and cost.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::future::join_all;
use penstock_llm::stream::aws_event_stream::encode_frame;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, TestResponse,
    golden_provider::GoldenProvider,
    post_with_config, routing_headers,
    scripted_server::{SSE_RESPONSE_HEAD, ScriptedServer, encode_chunks, json_response, read_request},
    sensitive_breaker_config,
};

const RESPONSES_PATH: &str = "/v1/responses";
const EMBEDDINGS_PATH: &str = "/v1/embeddings";
const GEMINI_PATH: &str = "/v1beta/models/m:generateContent";
const GEMINI_STREAM_PATH: &str = "/v1beta/models/m:streamGenerateContent";
const GEMINI_EVENTS_PATH: &str = "/v1beta/models/m:streamGenerateContent?alt=sse";
const CONVERSE_PATH: &str = "/model/m/converse";
const CONVERSE_STREAM_PATH: &str = "/model/m/converse-stream";
const INVOKE_PATH: &str = "/model/m/invoke";

/// Provider, path of the request, and the JSON body of the response.
const COMPLETE_ERRORS: &[(&str, &str, &str)] = &[
    ("openai", CHAT_PATH, r#"{"error":{"message":"broken","code":503}}"#),
    ("openai", CHAT_PATH, r#"{"error":"broken"}"#),
    ("openai", CHAT_PATH, r#"[{"error":{"code":503,"message":"broken","status":"UNAVAILABLE"}}]"#),
    ("openai", CHAT_PATH, r#"{"message":"broken"}"#),
    ("openai", CHAT_PATH, r#"{"object":"error","message":"broken","type":"internal","param":null,"code":503}"#),
    ("openai", CHAT_PATH, r#"{"detail":[{"loc":["body"],"msg":"broken","type":"unavailable"}]}"#),
    ("openai", CHAT_PATH, r#"{"success":false,"errors":[{"code":7000,"message":"broken"}],"messages":[]}"#),
    ("openai", CHAT_PATH, r#"{"code":"Throttling","message":"broken","request_id":"r"}"#),
    ("openai", CHAT_PATH, r#"{"code":503,"msg":"broken","success":false}"#),
    ("openai", CHAT_PATH, r#"{"id":"i","choices":null,"base_resp":{"status_code":1002,"status_msg":"broken"}}"#),
    ("openai", RESPONSES_PATH, r#"{"error":{"message":"broken","type":"server_error"}}"#),
    ("openai", EMBEDDINGS_PATH, r#"{"message":"broken"}"#),
    ("openai", "/v1/images/generations", r#"{"detail":"broken"}"#),
    ("jina", "/v1/rerank", r#"{"detail":"broken"}"#),
    ("anthropic", MESSAGES_PATH, r#"{"type":"error","error":{"type":"overloaded_error","message":"broken"}}"#),
    ("anthropic", MESSAGES_PATH, r#"{"message":"broken"}"#),
    ("google", GEMINI_PATH, r#"{"error":{"code":503,"message":"broken","status":"UNAVAILABLE"}}"#),
    ("google", GEMINI_PATH, r#"[{"error":{"code":503,"message":"broken","status":"UNAVAILABLE"}}]"#),
    ("google", GEMINI_STREAM_PATH, r#"[{"error":{"code":503,"message":"broken","status":"UNAVAILABLE"}}]"#),
    ("google", GEMINI_EVENTS_PATH, r#"{"error":{"code":503,"message":"broken","status":"UNAVAILABLE"}}"#),
    ("bedrock", CONVERSE_PATH, r#"{"message":"broken"}"#),
    ("bedrock", CONVERSE_PATH, r#"{"__type":"ThrottlingException","Message":"broken"}"#),
    ("bedrock", CONVERSE_STREAM_PATH, r#"{"message":"broken"}"#),
    ("bedrock", INVOKE_PATH, r#"{"message":"broken"}"#),
    // Translated from another API format.
    ("anthropic", CHAT_PATH, r#"{"type":"error","error":{"type":"overloaded_error","message":"broken"}}"#),
    ("anthropic", CHAT_PATH, r#"{"message":"broken"}"#),
    ("google", CHAT_PATH, r#"[{"error":{"code":503,"message":"broken","status":"UNAVAILABLE"}}]"#),
    ("google", EMBEDDINGS_PATH, r#"{"error":{"code":503,"message":"broken","status":"UNAVAILABLE"}}"#),
    ("bedrock", CHAT_PATH, r#"{"message":"broken"}"#),
    ("openai", MESSAGES_PATH, r#"{"error":{"message":"broken","code":503}}"#),
    ("openai", GEMINI_PATH, r#"{"detail":"broken"}"#),
    ("openai", CONVERSE_PATH, r#"{"message":"broken"}"#),
    ("cohere", CHAT_PATH, r#"{"id":"i","message":"broken"}"#),
];

/// Provider, path of the request, and the events of the response.
const EVENT_ERRORS: &[(&str, &str, &str)] = &[
    ("openai", CHAT_PATH, "data: {\"error\":{\"message\":\"broken\",\"code\":503}}\n\n"),
    ("openai", CHAT_PATH, "data: {\"error\":\"broken\"}\n\ndata: [DONE]\n\n"),
    ("openai", CHAT_PATH, "event: error\ndata: {\"message\":\"broken\"}\n\ndata: [DONE]\n\n"),
    ("openai", CHAT_PATH, ": PROCESSING\n\n: PROCESSING\n\ndata: {\"error\":{\"message\":\"broken\"}}\n\n"),
    ("openai", CHAT_PATH, "data: [{\"error\":{\"message\":\"broken\",\"code\":503}}]\n\ndata: [DONE]\n\n"),
    ("openai", RESPONSES_PATH, "event: error\ndata: {\"type\":\"error\",\"code\":\"x\",\"message\":\"broken\"}\n\n"),
    (
        "anthropic",
        MESSAGES_PATH,
        "event: ping\ndata: {\"type\":\"ping\"}\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"broken\"}}\n\n",
    ),
    ("google", GEMINI_EVENTS_PATH, "data: {\"error\":{\"code\":503,\"message\":\"broken\"}}\r\n\r\n"),
    ("anthropic", CHAT_PATH, "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"broken\"}}\n\n"),
    ("google", CHAT_PATH, "data: {\"error\":{\"code\":503,\"message\":\"broken\"}}\r\n\r\n"),
    ("openai", MESSAGES_PATH, "data: {\"error\":{\"message\":\"broken\"}}\n\n"),
    ("openai", GEMINI_EVENTS_PATH, "data: {\"error\":{\"message\":\"broken\"}}\n\n"),
    ("openai", CONVERSE_STREAM_PATH, "data: {\"error\":{\"message\":\"broken\"}}\n\n"),
];

/// A chunk of a chat that has neither content nor a finish reason.
const ROLE_CHUNK: &str = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";
const DONE_EVENT: &str = "data: [DONE]\n\n";
const COMPLETIONS_PATH: &str = "/v1/completions";
const MESSAGE_START: &str =
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"content\":[]}}\n\n";
const MESSAGE_STOP: &str = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

/// Provider, path of the request, and the events of a stream that ends without content and without a finish reason.
const EMPTY_STREAMS: &[(&str, &str, &[&str])] = &[
    ("openai", CHAT_PATH, &[]),
    ("openai", CHAT_PATH, &[DONE_EVENT]),
    ("openai", CHAT_PATH, &[": keep-alive\n\n", ": keep-alive\n\n"]),
    ("openai", CHAT_PATH, &[ROLE_CHUNK]),
    ("openai", CHAT_PATH, &[ROLE_CHUNK, DONE_EVENT]),
    ("openai", COMPLETIONS_PATH, &["data: {\"choices\":[{\"text\":\"\",\"finish_reason\":null}]}\n\n", DONE_EVENT]),
    ("openai", RESPONSES_PATH, &["data: {\"type\":\"response.created\",\"response\":{\"output\":[]}}\n\n"]),
    ("anthropic", MESSAGES_PATH, &["event: ping\ndata: {\"type\":\"ping\"}\n\n"]),
    ("anthropic", MESSAGES_PATH, &[MESSAGE_START]),
    ("anthropic", MESSAGES_PATH, &[MESSAGE_START, MESSAGE_STOP]),
    ("google", GEMINI_EVENTS_PATH, &[]),
    (
        "google",
        GEMINI_EVENTS_PATH,
        &["data: {\"candidates\":[{\"content\":{\"role\":\"model\"},\"index\":0}]}\r\n\r\n"],
    ),
    // Translated from another API format.
    ("openai", MESSAGES_PATH, &[DONE_EVENT]),
    ("openai", MESSAGES_PATH, &[ROLE_CHUNK, DONE_EVENT]),
    ("openai", GEMINI_EVENTS_PATH, &[ROLE_CHUNK, DONE_EVENT]),
    ("openai", CONVERSE_STREAM_PATH, &[ROLE_CHUNK, DONE_EVENT]),
    ("anthropic", CHAT_PATH, &[MESSAGE_START]),
    ("anthropic", CHAT_PATH, &[MESSAGE_START, MESSAGE_STOP]),
    ("anthropic", RESPONSES_PATH, &[MESSAGE_START, MESSAGE_STOP]),
    ("google", CHAT_PATH, &[]),
    ("google", CHAT_PATH, &["data: {\"usageMetadata\":{\"promptTokenCount\":1}}\r\n\r\n"]),
    ("cohere", CHAT_PATH, &["event: message-start\ndata: {\"type\":\"message-start\",\"id\":\"m\"}\n\n"]),
];

/// Provider, path of the request, and the events of a complete stream without content.
const EMPTY_COMPLETIONS: &[(&str, &str, &[&str])] = &[
    (
        "openai",
        CHAT_PATH,
        &[ROLE_CHUNK, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", DONE_EVENT],
    ),
    ("openai", COMPLETIONS_PATH, &["data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n", DONE_EVENT]),
    (
        "openai",
        MESSAGES_PATH,
        &[ROLE_CHUNK, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", DONE_EVENT],
    ),
    (
        "openai",
        RESPONSES_PATH,
        &["data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"output\":[]}}\n\n"],
    ),
    (
        "anthropic",
        MESSAGES_PATH,
        &[
            MESSAGE_START,
            "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n",
            MESSAGE_STOP,
        ],
    ),
    (
        "anthropic",
        CHAT_PATH,
        &[
            MESSAGE_START,
            "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n",
            MESSAGE_STOP,
        ],
    ),
    ("google", GEMINI_EVENTS_PATH, &["data: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\r\n\r\n"]),
    ("google", CHAT_PATH, &["data: {\"promptFeedback\":{\"blockReason\":\"SAFETY\"}}\r\n\r\n"]),
];

/// Provider, method and path of operations that generate nothing, native and translated.
const OTHER_OPERATIONS: &[(&str, &str, &str)] = &[
    ("openai", "POST", "/v1/moderations"),
    ("openai", "POST", "/v1/audio/speech"),
    ("openai", "GET", "/v1/models"),
    ("openai", "GET", "/v1/files"),
    ("openai", "GET", "/v1/files/f"),
    ("openai", "POST", "/v1/batches"),
    ("openai", "GET", "/v1/batches/b"),
    ("openai", "GET", "/v1/batches"),
    ("openai", "POST", "/v1/fine_tuning/jobs"),
    ("openai", "GET", "/v1/fine_tuning/jobs/j"),
    ("anthropic", "GET", "/v1/models"),
    ("bedrock", "GET", "/v1/batches/b"),
    ("bedrock", "GET", "/v1/batches"),
    ("bedrock", "GET", "/v1/fine_tuning/jobs/j"),
    ("cohere", "GET", "/v1/batches/b"),
    ("cohere", "GET", "/v1/files"),
    ("cohere", "GET", "/v1/files/f"),
    ("fireworks-ai", "GET", "/v1/batches/b"),
    ("fireworks-ai", "GET", "/v1/fine_tuning/jobs/j"),
    ("fireworks-ai", "GET", "/v1/files/f"),
    ("fireworks-ai", "GET", "/v1/files"),
];

/// A provider that always sends the same bytes, in chunks, and counts the requests.
struct BrokenProvider {
    server: ScriptedServer,
    request_count: Arc<AtomicUsize>,
}

impl BrokenProvider {
    async fn start(response: Vec<u8>) -> Self {
        let (response, request_count) = (Arc::new(response), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&request_count);
        let server = ScriptedServer::start(move |mut io, _| {
            let (response, counted) = (Arc::clone(&response), Arc::clone(&counted));
            async move {
                while read_request(&mut io).await.is_some() {
                    counted.fetch_add(1, Ordering::Relaxed);
                    io.write_all(&response).await.unwrap();
                }
            }
        })
        .await;
        Self { server, request_count }
    }

    fn gateway(&self, provider: &str) -> TestGateway {
        let gateway = GoldenProvider::gateway_trusting_loopback();
        let options = match provider {
            "bedrock" => json!({"aws_region": "eu-west-1"}),
            "fireworks-ai" => json!({"fireworks_account_id": "acme"}),
            _ => json!({}),
        };
        let saved = json!({"slug": "saved", "provider": provider, "custom_host": self.server.url(), "api_key": "sk-1",
            "options": options});
        gateway.apply_snapshot(&json!({"epoch": "1", "providers": [saved]}));
        gateway
    }

    fn take_request_count(&self) -> usize {
        self.request_count.swap(0, Ordering::Relaxed)
    }
}

fn request_body(path: &str, stream: bool) -> String {
    let path = path.split('?').next().unwrap();
    let content = json!([{"role": "user", "content": "hi"}]);
    match path {
        RESPONSES_PATH => json!({"model": "m", "input": "hi", "stream": stream}),
        EMBEDDINGS_PATH => json!({"model": "m", "input": "hi"}),
        "/v1/images/generations" => json!({"model": "m", "prompt": "hi"}),
        "/v1/rerank" => json!({"model": "m", "query": "hi", "documents": ["a"]}),
        GEMINI_PATH | GEMINI_STREAM_PATH => json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}),
        CONVERSE_PATH | CONVERSE_STREAM_PATH => json!({"messages": [{"role": "user", "content": [{"text": "hi"}]}]}),
        INVOKE_PATH | COMPLETIONS_PATH => json!({"model": "m", "prompt": "hi", "stream": stream}),
        "/v1/moderations" | "/v1/audio/speech" => json!({"model": "m", "input": "hi", "voice": "v"}),
        "/v1/batches" => json!({"input_file_id": "f", "endpoint": CHAT_PATH, "completion_window": "24h"}),
        "/v1/fine_tuning/jobs" => json!({"model": "m", "training_file": "f"}),
        _ => json!({"model": "m", "max_tokens": 9, "messages": content, "stream": stream}),
    }
    .to_string()
}

fn event_response(events: &str, chunk: usize) -> Vec<u8> {
    [SSE_RESPONSE_HEAD.as_bytes(), &encode_chunks(events.as_bytes(), chunk), b"0\r\n\r\n"].concat()
}

/// Checks that a response with the status 200 is a failure in every respect, with a reason that contains this word.
async fn assert_is_failure((provider, path, stream): (&str, &str, bool), response: Vec<u8>, reason: &str, case: &str) {
    let broken = BrokenProvider::start(response).await;
    let gateway = broken.gateway(provider);
    let send = async |config: &Value| -> TestResponse {
        gateway.send(post_with_config(config, path, request_body(path, stream))).await
    };

    let retried = json!({"provider": "@saved", "cache": "simple", "retry": {"attempts": 1, "on_status_codes": [
        400, 429, 500, 502, 503, 529]}});
    for _ in 0..2 {
        let response = send(&retried).await;
        assert!(response.status >= 400, "retry of {case}: {} {}", response.status, response.text());
        assert!(response.text().contains(reason), "{case}: {}", response.text());
        assert_eq!(broken.take_request_count(), 2, "{case} is retried, and not cached");
        let record = gateway.single_record();
        assert_eq!(record["is_success"], false, "{case}: {record}");
        assert!(record["cost_nanodollars"].is_null(), "{case}: {record}");
    }

    let target = json!({"provider": "@saved"});
    let fallback = json!({"strategy": {"mode": "fallback", "cb_config": sensitive_breaker_config()},
        "targets": [target, {"provider": "@saved", "override_params": {"temperature": 1}}]});
    let response = send(&fallback).await;
    assert_eq!(routing_headers(&response)[0], "config.targets[1]", "fallback of {case}: {}", response.text());
    assert_eq!(broken.take_request_count(), 2, "fallback of {case}");
    gateway.drain_records();

    let lone = send(&target).await;
    let record = gateway.single_record();
    assert!(lone.text().contains(reason), "{case}: {}", lone.text());
    assert_eq!(record["is_success"], false, "{case}: {record}");

    let mut breaker = sensitive_breaker_config();
    breaker["failure_status_codes"] = json!([429, 502, 503, 529]);
    let guarded = json!({"strategy": {"mode": "fallback", "cb_config": breaker},
        "targets": [{"provider": "@saved", "override_params": {"temperature": 0}}, {"provider": "nobody"}]});
    send(&guarded).await;
    gateway.drain_records();
    send(&guarded).await;
    let record = gateway.single_record();
    assert_eq!(record["decisions"][0]["breaker"], "open", "circuit breaker of {case}: {record}");
}

#[tokio::test]
async fn complete_errors_with_status_200_are_failures() {
    // Runs all cases concurrently, because each waits before its retry.
    join_all(COMPLETE_ERRORS.iter().map(async |(provider, path, body)| {
        let case = format!("{provider} {path} {body}");
        assert_is_failure((provider, path, false), json_response("200 OK", "", body), "broken", &case).await;
    }))
    .await;
}

#[tokio::test]
async fn streams_that_begin_with_an_error_are_failures() {
    let cases = EVENT_ERRORS.iter().flat_map(|case| [(case, 7), (case, 4096)]);
    join_all(cases.map(async |((provider, path, events), chunk)| {
        let case = format!("{provider} {path} {events:?} in chunks of {chunk}");
        assert_is_failure((provider, path, true), event_response(events, chunk), "broken", &case).await;
    }))
    .await;
}

#[tokio::test]
async fn streams_of_other_framings_that_begin_with_an_error_are_failures() {
    let chunked = |kind: &str, body: &[u8]| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
        [head.as_bytes(), &encode_chunks(body, 11), b"0\r\n\r\n"].concat()
    };
    let frame = encode_frame("exception", "throttlingException", br#"{"message":"broken"}"#);
    let frames = chunked("application/vnd.amazon.eventstream", &frame);
    for path in [CONVERSE_STREAM_PATH, CHAT_PATH] {
        assert_is_failure(("bedrock", path, true), frames.clone(), "broken", &format!("frames for {path}")).await;
    }
    let items = chunked("application/json", br#"[{"error":{"code":503,"message":"broken"}}]"#);
    assert_is_failure(("google", GEMINI_STREAM_PATH, true), items, "broken", "array of items").await;
    let start = chunked("application/vnd.amazon.eventstream", &encode_frame("event", "messageStart", b"{}"));
    assert_is_failure(("bedrock", CHAT_PATH, true), start, "ended", "a frame without content").await;
}

#[tokio::test]
async fn streams_that_end_without_content_are_failures() {
    let cases = EMPTY_STREAMS.iter().flat_map(|case| [(case, 7), (case, 4096)]);
    join_all(cases.map(async |((provider, path, events), chunk)| {
        let case = format!("{provider} {path} {events:?} in chunks of {chunk}");
        assert_is_failure((provider, path, true), event_response(&events.concat(), chunk), "ended", &case).await;
    }))
    .await;
}

#[tokio::test]
async fn complete_streams_without_content_are_no_failures() {
    for (provider, path, events) in EMPTY_COMPLETIONS {
        let broken = BrokenProvider::start(event_response(&events.concat(), 4096)).await;
        let gateway = broken.gateway(provider);
        for config in [json!({"provider": "@saved"}), json!({"provider": "@saved", "retry": {"attempts": 2}})] {
            let response = gateway.send(post_with_config(&config, path, request_body(path, true))).await;
            assert_eq!(
                (response.status, broken.take_request_count()),
                (200, 1),
                "{path} {events:?}: {}",
                response.text()
            );
            let record = gateway.single_record();
            assert_eq!(record["is_success"], true, "{path} {events:?}: {record} {}", response.text());
        }
    }
}

#[tokio::test]
async fn errors_of_jobs_and_lists_with_status_200_are_failures() {
    let bodies = [
        r#"{"error":{"message":"broken","code":503}}"#,
        r#"{"message":"broken"}"#,
        r#"{"detail":"broken"}"#,
        r#"{"success":false,"errors":[{"code":7000,"message":"broken"}],"messages":[]}"#,
        r#"{"code":"Throttling","message":"broken","request_id":"r"}"#,
    ];
    for body in bodies {
        join_all(OTHER_OPERATIONS.iter().map(async |(provider, method, path)| {
            let broken = BrokenProvider::start(json_response("200 OK", "", body)).await;
            let gateway = broken.gateway(provider);
            let target = json!({"provider": "@saved"});
            let config = json!({"strategy": {"mode": "fallback"}, "targets": [target, target]});
            let request = TestRequest::new(method, path).header("x-gateway-config", &config.to_string());
            let request = if *method == "POST" {
                request.header("content-type", "application/json").body(request_body(path, false))
            } else {
                request
            };
            let response = gateway.send(request).await;
            let case = format!("{provider} {method} {path} {body}: {}", response.text());
            assert!(response.status >= 400 && response.text().contains("broken"), "{} {case}", response.status);
            assert_eq!(broken.take_request_count(), 2, "fallback of {case}");
            assert_eq!(gateway.single_record()["is_success"], false, "{case}");
        }))
        .await;
    }
}

#[tokio::test]
async fn responses_with_content_are_no_errors() {
    for (provider, path, body) in [
        ("openai", CHAT_PATH, r#"{"choices":[{"message":{"content":"hi"}}],"error":{"message":"m"}}"#),
        ("openai", RESPONSES_PATH, r#"{"object":"response","status":"failed","error":{"code":"x"},"output":[]}"#),
        ("openai", EMBEDDINGS_PATH, r#"{"object":"list","data":[{"embedding":[0.5]}],"message":"m"}"#),
        ("openai", "/v1/moderations", r#"{"id":"m","model":"m","results":[{"flagged":false}]}"#),
        ("bedrock", INVOKE_PATH, r#"{"completion":"hi","message":"m"}"#),
        ("openai", "/v1/fine_tuning/jobs", r#"{"object":"fine_tuning.job","id":"f","message":"m","error":{}}"#),
        ("openai", "/v1/batches", r#"{"id":"b","status":"failed","errors":{"data":[{"message":"m"}]}}"#),
        ("openai", "/v1/batches/b/cancel", r#"{"message":"the batch is cancelled"}"#),
    ] {
        let broken = BrokenProvider::start(json_response("200 OK", "", body)).await;
        let config = json!({"provider": "@saved", "retry": {"attempts": 2}});
        let response = broken.gateway(provider).send(post_with_config(&config, path, request_body(path, false))).await;
        assert_eq!((response.status, broken.take_request_count()), (200, 1), "{path} {body}: {}", response.text());
    }
}
