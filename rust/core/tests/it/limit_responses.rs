//! What clients learn of their limits: rejections in the format of each API, and headers on every kind of response.

use penstock_mock::Server;
use serde_json::{Value, json};

use crate::{
    harness::{
        CHAT_PATH, TestGateway, TestRequest, TestResponse, into_stream, read_stream,
        realtime_client::{REALTIME_PATH, RealtimeClient, close_code_and_reason, expect_rejection, open_realtime},
    },
    limit_admission::{limit, start_gateway},
};

/// Path, body, and JSON pointers to the message and the code of an error, in the API format of each client.
fn formats() -> Vec<(&'static str, Value, &'static str, Option<&'static str>)> {
    let messages = json!([{"role": "user", "content": "x"}]);
    let contents = json!({"contents": [{"role": "user", "parts": [{"text": "x"}]}]});
    let converse = json!({"messages": [{"role": "user", "content": [{"text": "x"}]}]});
    let code = Some("/error/code");
    vec![
        (CHAT_PATH, json!({"model": "mock", "max_tokens": 5, "messages": messages}), "/error/message", code),
        ("/v1/completions", json!({"model": "mock", "max_tokens": 5, "prompt": "x"}), "/error/message", code),
        ("/v1/responses", json!({"model": "mock", "max_output_tokens": 5, "input": "x"}), "/error/message", code),
        ("/v1/embeddings", json!({"model": "mock", "input": "x"}), "/error/message", code),
        ("/v1/messages", json!({"model": "mock", "max_tokens": 5, "messages": messages}), "/error/message", None),
        ("/v1beta/models/mock:generateContent", contents.clone(), "/error/message", None),
        ("/v1beta/models/mock:streamGenerateContent", contents, "/error/message", None),
        ("/model/mock/converse", converse.clone(), "/message", None),
        ("/model/mock/converse-stream", converse, "/message", None),
        ("/v1/images/generations", json!({"model": "mock", "prompt": "x"}), "/error/message", code),
        ("/v1/audio/speech", json!({"model": "mock", "input": "x", "voice": "v"}), "/error/message", code),
        ("/v1/rerank", json!({"model": "mock", "query": "x", "documents": ["y"]}), "/error/message", code),
        ("/v1/moderations", json!({"model": "mock", "input": "x"}), "/error/message", code),
    ]
}

fn request(path: &str, body: &Value) -> TestRequest {
    let request = TestRequest::new("POST", path).header("x-gateway-api-key", "pk");
    request.header("content-type", "application/json").header("x-gateway-provider", "mock").body(body.to_string())
}

fn check_headers(response: &TestResponse, what: &str) {
    for name in ["ratelimit", "ratelimit-policy", "x-gateway-ratelimit-limit-requests"] {
        assert!(response.header(name).is_some(), "{what} has no {name}: {}", response.text());
    }
}

#[tokio::test]
async fn rejections_have_the_format_of_each_client_and_name_the_object() {
    let rate = json!({"type": "requests", "limit": 0, "window": {"unit": "minute"}});
    let budget = json!({"type": "requests", "limit": 0, "period": {"start": 1}});
    for (kind, fields, status, code) in [
        ("policy", &rate, 429, "rate_limited"),
        ("api_key", &rate, 429, "rate_limited"),
        ("policy", &budget, 412, "usage_limit_exceeded"),
        ("api_key", &budget, 412, "04"),
    ] {
        let (provider, gateway) = start_gateway(json!([limit(kind, "k", fields)])).await;
        for (path, body, message, code_at) in formats() {
            let response = gateway.send(request(path, &body)).await;
            assert_eq!(response.status, status, "{path}: {}", response.text());
            let error = response.json();
            let text = error.pointer(message).and_then(Value::as_str).unwrap_or_default();
            assert!(text.contains("`k`") && text.contains("again"), "{path}: {error}");
            if let Some(pointer) = code_at {
                assert_eq!(error.pointer(pointer), Some(&json!(code)), "{path}: {error}");
            }
            check_headers(&response, path);
            assert_eq!(response.header("retry-after").is_some(), status == 429, "{path}");
            assert_eq!(response.header("x-should-retry"), (status == 412).then_some("false"), "{path}");
        }
        assert_eq!(provider.ledger_entries().len(), 0);
    }
}

#[tokio::test]
async fn every_format_counts_requests_and_reports_what_is_left() {
    let fields = json!({"type": "requests", "limit": 100, "window": {"unit": "week"}});
    let (_provider, gateway) = start_gateway(json!([limit("api_key", "k", &fields)])).await;
    for (sent, (path, body, ..)) in formats().into_iter().enumerate() {
        let response = gateway.send(request(path, &body)).await;
        check_headers(&response, path);
        let remaining = format!("{}", 99 - sent);
        assert_eq!(response.header("x-gateway-ratelimit-remaining-requests"), Some(&*remaining), "{path}");
    }
}

async fn limited_gateway() -> (Server, TestGateway) {
    let fields = json!({"type": "requests", "limit": 100, "window": {"unit": "week"}});
    start_gateway(json!([limit("api_key", "k", &fields)])).await
}

#[tokio::test]
async fn streams_errors_and_cached_responses_report_what_is_left() {
    let (provider, gateway) = limited_gateway().await;
    let chat = |model: &str, stream: bool| {
        json!({"model": model, "stream": stream, "max_tokens": 5,
        "messages": [{"role": "user", "content": "x"}]})
    };
    for (model, status) in [("mock?status=500", 500), ("mock?fault=reset", 502), ("mock?status=429", 429)] {
        let response = gateway.send(request(CHAT_PATH, &chat(model, false))).await;
        assert_eq!(response.status, status, "{model}: {}", response.text());
        check_headers(&response, model);
    }
    let streamed = gateway.handle_request(request(CHAT_PATH, &chat("mock", true))).await;
    let headers = &streamed.head.headers;
    assert!(headers.get_str("ratelimit").is_some_and(|text| text.contains("r=96")), "{headers:?}");
    assert!(!read_stream(into_stream(streamed)).await.1);
    let config = json!({"provider": "mock", "cache": {"mode": "simple"}}).to_string();
    let cached = || {
        let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-api-key", "pk");
        let request = request.header("content-type", "application/json").header("x-gateway-config", &config);
        request.body(chat("mock", false).to_string())
    };
    let before = provider.ledger_entries().len();
    for (hit, remaining) in [("MISS", "95"), ("HIT", "94")] {
        let response = gateway.send(cached()).await;
        assert_eq!(response.header("x-gateway-cache-status"), Some(hit));
        check_headers(&response, hit);
        // A cached response counts as a request too.
        assert_eq!(response.header("x-gateway-ratelimit-remaining-requests"), Some(remaining));
    }
    assert_eq!(provider.ledger_entries().len(), before + 1);
}

#[tokio::test]
async fn request_belongs_to_the_period_in_which_it_began() {
    let now = penstock_core::limits::now_ms();
    let end = now + 1500;
    let fields = json!({"type": "requests", "limit": 5, "period": {"start": now - 1000, "end": end}});
    let (_provider, gateway) = start_gateway(json!([limit("api_key", "k", &fields)])).await;
    let body = json!({"model": "mock?first_ms=2500", "messages": [{"role": "user", "content": "x"}]});
    let slow = gateway.send(request(CHAT_PATH, &body)).await;
    assert_eq!(slow.status, 200);
    assert!(penstock_core::limits::now_ms() > end);
    assert_eq!(gateway.single_record()["limits"]["budgets"][0]["period_start"], now - 1000);
    // The next period begins at once, and the earlier request takes nothing of it.
    let body = json!({"model": "mock", "messages": [{"role": "user", "content": "x"}]});
    let next = gateway.send(request(CHAT_PATH, &body)).await;
    assert_eq!(next.header("x-gateway-ratelimit-remaining-requests"), Some("4"));
    assert_eq!(gateway.single_record()["limits"]["budgets"][0]["period_start"], end);
}

#[tokio::test]
async fn sessions_end_when_nothing_is_left_of_their_budget() {
    let fields = json!({"type": "tokens", "limit": 50, "period": {"start": 1}});
    let (_provider, gateway) = start_gateway(json!([limit("api_key", "k", &fields)])).await;
    let session_request = || {
        let request = TestRequest::new("GET", REALTIME_PATH).header("x-gateway-api-key", "pk");
        request.header("x-gateway-provider", "mock")
    };
    let mut session = open_realtime(&gateway, session_request()).await;
    for _ in 0..3 {
        session.send_event(json!({"type": "response.create"})).await;
        session.receive_until("response.done").await;
    }
    let error = session.receive_until("error").await;
    assert_eq!(error["error"]["code"], "04", "{error}");
    let (code, reason) = close_code_and_reason(&session.receive_message().await);
    assert_eq!((code, &*reason), (1008, "the budget of this session is used up"));
    session.wait_until_closed().await;
    let record = gateway.single_record();
    assert_eq!((&record["total_units"], &record["error"]), (&json!(60), &json!("04")), "{record}");
    assert_eq!(record["limits"]["budgets"][0]["id"], "api_key-k");
    assert_eq!(expect_rejection(&gateway, session_request()).await.0, 412);
}

/// Opens a session that names its model in its messages.
fn session_without_model() -> TestRequest {
    let request = TestRequest::new("GET", "/v1/responses").header("x-gateway-api-key", "pk");
    request.header("x-gateway-provider", "mock")
}

/// Requests a response, which costs 20,000 nano-dollars.
async fn request_response(session: &mut RealtimeClient) {
    session.send_event(json!({"type": "response.create", "model": "mock", "input": "x"})).await;
    session.receive_until("response.completed").await;
}

#[tokio::test]
async fn sessions_without_a_model_in_their_url_end_when_no_money_is_left() {
    let fields = json!({"type": "cost", "limit": 40_000, "period": {"start": 1}});
    let (_provider, gateway) = start_gateway(json!([limit("api_key", "k", &fields)])).await;
    let mut session = open_realtime(&gateway, session_without_model()).await;
    for _ in 0..3 {
        request_response(&mut session).await;
    }
    assert_eq!(session.receive_until("error").await["error"]["code"], "04");
    assert_eq!(close_code_and_reason(&session.receive_message().await).0, 1008);
    session.wait_until_closed().await;
    let record = gateway.single_record();
    assert_eq!((&record["ai_model"], &record["cost_nanodollars"]), (&json!("mock"), &json!(60_000)), "{record}");
    assert_eq!(record["error"], "04");
    assert_eq!(expect_rejection(&gateway, session_without_model()).await.0, 412);
}

#[tokio::test]
async fn sessions_follow_changes_of_their_budget() {
    let budget = |limit: u64| json!({"type": "cost", "limit": limit, "period": {"start": 1}});
    let mut dry_run = budget(30_000);
    dry_run["dry_run"] = json!(true);
    for (before, after, ends) in [
        (40_000, Some(budget(1_000_000)), false),
        (40_000, None, false),
        (40_000, Some(dry_run), false),
        (1_000_000, Some(budget(30_000)), true),
    ] {
        let (_provider, gateway) = start_gateway(json!([limit("api_key", "k", &budget(before))])).await;
        let mut session = open_realtime(&gateway, session_without_model()).await;
        request_response(&mut session).await;
        let limits: Vec<_> = after.iter().map(|fields| limit("api_key", "k", fields)).collect();
        gateway.apply_snapshot(&json!({"epoch": "2", "since": "1",
            "parts": [{"name": "limits/00", "limits": [{"workspace": "w", "limits": limits}]}]}));
        for _ in 0..2 {
            request_response(&mut session).await;
        }
        if ends {
            assert_eq!(session.receive_until("error").await["error"]["code"], "04", "{before} {after:?}");
            session.wait_until_closed().await;
            continue;
        }
        for _ in 0..2 {
            request_response(&mut session).await;
        }
        session.close(1000, "").await;
        assert_eq!(gateway.single_record()["outcome"], "complete", "{before} {after:?}");
    }
}
