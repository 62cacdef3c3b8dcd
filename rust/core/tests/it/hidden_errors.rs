//! Errors that a provider sends with the status 200, complete or as the first event of a stream, in every API format.
//! Each is a failure for fallback, retry, circuit breaker, cache, log and cost.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::future::join_all;
use penstock_llm::stream::aws_event_stream::encode_frame;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestResponse,
    played::GoldenProvider,
    post_with_config, routing_headers,
    scripted::{SSE_RESPONSE_HEAD, ScriptedServer, encode_chunks, json_response, read_request},
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
        let options = if provider == "bedrock" { json!({"aws_region": "eu-west-1"}) } else { json!({}) };
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
        INVOKE_PATH => json!({"prompt": "hi"}),
        _ => json!({"model": "m", "max_tokens": 9, "messages": content, "stream": stream}),
    }
    .to_string()
}

/// Checks that a response with the status 200 is a failure in every respect.
async fn assert_is_failure(provider: &str, path: &str, stream: bool, response: Vec<u8>, case: &str) {
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
        assert!(response.text().contains("broken"), "{case}: {}", response.text());
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
    assert!(lone.text().contains("broken"), "{case}: {}", lone.text());
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
    // At once, because each waits before its retry.
    join_all(COMPLETE_ERRORS.iter().map(async |(provider, path, body)| {
        let case = format!("{provider} {path} {body}");
        assert_is_failure(provider, path, false, json_response("200 OK", "", body), &case).await;
    }))
    .await;
}

#[tokio::test]
async fn streams_that_begin_with_an_error_are_failures() {
    let cases = EVENT_ERRORS.iter().flat_map(|case| [(case, 7), (case, 4096)]);
    join_all(cases.map(async |((provider, path, events), chunk)| {
        let case = format!("{provider} {path} {events:?} in chunks of {chunk}");
        let response = [SSE_RESPONSE_HEAD.as_bytes(), &encode_chunks(events.as_bytes(), chunk), b"0\r\n\r\n"].concat();
        assert_is_failure(provider, path, true, response, &case).await;
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
        assert_is_failure("bedrock", path, true, frames.clone(), &format!("frames for {path}")).await;
    }
    let items = chunked("application/json", br#"[{"error":{"code":503,"message":"broken"}}]"#);
    assert_is_failure("google", GEMINI_STREAM_PATH, true, items, "array of items").await;
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
    ] {
        let broken = BrokenProvider::start(json_response("200 OK", "", body)).await;
        let config = json!({"provider": "@saved", "retry": {"attempts": 2}});
        let response = broken.gateway(provider).send(post_with_config(&config, path, request_body(path, false))).await;
        assert_eq!((response.status, broken.take_request_count()), (200, 1), "{path} {body}: {}", response.text());
    }
}
