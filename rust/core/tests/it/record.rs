//! Every request of the data plane leaves exactly one record, whatever became of it, and no secret in it.

use std::time::Duration;

use crate::harness::{
    Ask, CHAT, MESSAGES, Rig, chat, get, in_time, pick, post, scripted::Scripted, settled, stream, stream_of, until,
    words,
};
use bytes::Bytes;
use penstock_core::ingress::body::{Body, feed_channel};
use penstock_mock::{Outcome, Server};
use serde_json::{Value, json};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::timeout,
};

/// Starts a request and drops it when it has had this much time.
async fn leave(rig: &Rig, ask: Ask) {
    let left = timeout(Duration::from_millis(40), rig.gateway.handle(ask.request())).await;
    assert!(left.is_err(), "it was answered");
}

fn assert_aborted(rig: &Rig, status: u16) -> Value {
    let record = rig.record();
    let said = pick(&record, ["outcome", "response_status_code", "is_success"]);
    assert_eq!(said, json!(["aborted", status, false]), "{record:#}");
    assert_eq!(rig.gateway.record_sink.metrics.in_flight(), 0);
    record
}

#[tokio::test]
async fn the_session_of_an_assistant_groups_its_records_and_goes_no_further() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let session = "x-claude-code-session-id";
    for (asked, more, kept) in [
        (post(MESSAGES, words("mock", false)), None, "s-1"),
        (get("/v1/proxy/x"), None, "s-1"),
        (get("/v1/proxy/x"), Some(r#"{"session_id":"own"}"#), "own"),
    ] {
        let asked = more.into_iter().fold(asked, |ask, own| ask.header("x-gateway-metadata", own));
        assert_eq!(rig.send(asked.header(session, " s-1")).await.status, 200);
        assert_eq!(rig.record()["metadata"], json!({"key": ["session_id"], "value": [kept]}));
        assert_eq!(provider.ledger_entries().pop().unwrap().header(session), None);
    }
}

#[tokio::test]
async fn a_complete_request_has_one_record_that_tells_all() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let ask = chat("mock?first_ms=20")
        .header("x-gateway-trace-id", "t-1")
        .header("x-gateway-span-id", "s-1")
        .header("x-gateway-span-name", "ask")
        .header("x-gateway-parent-span-id", "s-0")
        .header("x-gateway-metadata", r#"{"_user":"ann","team":"red"}"#);
    let told = rig.send(ask).await;
    let record = rig.record();
    let said = pick(&record, ["outcome", "is_success", "response_status_code", "request_method", "request_url"]);
    assert_eq!(said, json!(["complete", true, 200, "POST", CHAT]));
    let said = pick(&record, ["trace_id", "span_id", "span_name", "parent_span_id"]);
    assert_eq!(said, json!(["t-1", "s-1", "ask", "s-0"]));
    let said = pick(&record, ["ai_org", "ai_model", "operation", "stream_mode", "is_proxy_call", "mode", "worker"]);
    assert_eq!(said, json!(["mock", "mock?first_ms=20", "chatComplete", false, false, "single", 1]));
    assert_eq!(record["metadata"], json!({"key": ["_user", "team"], "value": ["ann", "red"]}));
    assert_eq!(record["bytes_out"], told.body.len());
    let time = |name: &str| record[name].as_f64().unwrap();
    assert!(time("response_time") >= time("time_to_first_byte"));
    assert!(time("time_to_first_byte") >= time("upstream_response_time") && time("upstream_response_time") >= 20.0);
    assert!(record["created_at"].as_str().unwrap().ends_with('Z') && record["error"].is_null());
}

#[tokio::test]
async fn a_request_without_a_trace_is_traced_by_its_own_id() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(chat("mock")).await;
    let record = rig.record();
    assert_eq!(record["trace_id"], record["id"]);
    assert_eq!(told.header("x-gateway-trace-id"), record["id"].as_str());
}

#[tokio::test]
async fn usage_is_read_from_whole_and_streamed_answers_of_both_dialects() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for path in [CHAT, MESSAGES] {
        for streamed in [false, true] {
            rig.send(post(path, words("mock?chunks=5&usage=on", streamed))).await;
            let record = rig.record();
            let said = pick(&record, ["req_units", "res_units", "total_units", "stream_mode"]);
            assert_eq!(said, json!([12, 5, 17, streamed]), "{path}");
            rig.send(post(path, words("mock?usage=off", streamed))).await;
            assert_eq!(pick(&rig.record(), ["req_units", "units_estimated"]), json!([8, true]), "{path}");
        }
    }
    rig.send(post("/v1/embeddings", r#"{"model":"mock","input":["a","b"]}"#)).await;
    assert_eq!(pick(&rig.record(), ["operation", "req_units", "res_units"]), json!(["embed", 8, 0]));
}

/// Models of some vendors say at Bedrock what they cost in the head of their answer alone.
#[tokio::test]
async fn what_stands_in_the_head_of_an_answer_of_bedrocks_is_its_usage_where_the_answer_says_none() {
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let fields = "x-amzn-bedrock-input-token-count: 7\r\nx-amzn-bedrock-output-token-count: 5\r\n";
    let silent = r#"{"outputs":[{"text":"Hi","stop_reason":"stop"}]}"#;
    let telling = r#"{"usage":{"inputTokens":3,"outputTokens":2,"totalTokens":5}}"#;
    for (body, expected) in [(silent, json!([7, 5, null])), (telling, json!([3, 2, null]))] {
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{fields}content-length: {length}\r\n\r\n{body}"
        );
        let provider = Scripted::answering(answer).await;
        let ask = Ask::new("POST", "/model/mistral.mistral-large-2402-v1:0/invoke")
            .header("content-type", "application/json")
            .body(r#"{"prompt":"Hi"}"#)
            .header("x-gateway-provider", "bedrock")
            .header("x-gateway-custom-host", &provider.url())
            .header("x-gateway-aws-region", "us-east-1")
            .header("authorization", "Bearer key-1");
        let told = rig.send(ask).await;
        assert_eq!((told.status, told.header("x-amzn-bedrock-input-token-count")), (200, Some("7")));
        assert_eq!(pick(&rig.record(), ["req_units", "res_units", "units_estimated"]), expected, "{body}");
    }
}

#[tokio::test]
async fn a_streams_usage_is_asked_for_and_shown_to_nobody_who_did_not_ask() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let asks = |options: Value| {
        let said = json!({"model": "mock?chunks=5", "stream": true, "messages": [{"role": "user", "content": "hi"}],
            "prompt": "hi", "stream_options": options});
        said.to_string()
    };
    for path in [CHAT, "/v1/completions"] {
        let plain = rig.send(post(path, words("mock?chunks=5&usage=off", true))).await;
        assert_eq!(rig.record()["units_estimated"], true);
        for asked in [words("mock?chunks=5", true), asks(json!({"include_usage": false})), asks(Value::Null)] {
            let told = rig.send(post(path, asked)).await;
            let said = pick(&rig.record(), ["req_units", "res_units", "units_estimated"]);
            assert_eq!(said, json!([12, 5, null]), "{path}");
            assert!(!told.text().contains("usage") && told.text().ends_with("data: [DONE]\n\n"), "{}", told.text());
            assert_eq!(told.text().matches("data: ").count(), plain.text().matches("data: ").count());
        }
        let told = rig.send(post(path, asks(json!({"include_usage": true})))).await;
        assert!(told.text().contains("\"completion_tokens\":5"));
        assert!(rig.record()["units_estimated"].is_null());
    }
}

#[tokio::test]
async fn a_refused_request_has_one_record() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (ask, status, error) in [
        (Ask::new("POST", CHAT), 400, "provider_needed"),
        (chat("m").header("x-gateway-config", "pc-none"), 400, "not_found_in_workspace"),
        (post(CHAT, "nonsense"), 400, "invalid_json"),
        (chat("mock?fault=reset"), 502, "upstream_broke"),
        // The one that waits bounds itself, so that a busy machine makes no timeout of the others.
        (chat("mock?fault=silence").header("x-gateway-request-timeout", "30"), 408, "timeout"),
        (chat("mock?fault=cut"), 502, "upstream_broke"),
    ] {
        let told = rig.send(ask).await;
        let record = rig.record();
        let said = pick(&record, ["outcome", "response_status_code", "error", "is_success", "bytes_out"]);
        assert_eq!(said, json!(["refused", status, error, false, told.body.len()]));
        assert_eq!(told.header("x-gateway-trace-id"), record["id"].as_str());
    }
    rig.gateway
        .apply_snapshot(format!(r#"{{"epoch":"1","keys":[{{"id":"k","name":"k","sha256":"{:064x}"}}]}}"#, 1).as_bytes())
        .unwrap();
    rig.send(chat("mock")).await;
    assert_eq!(pick(&rig.record(), ["response_status_code", "error"]), json!([401, "03"]));
}

#[tokio::test]
async fn a_caller_who_leaves_before_the_answer_leaves_one_record() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for ask in [chat("mock?fault=silence"), stream(CHAT, "mock?first_ms=5000"), get("/v1/files?mock-fault=silence")] {
        leave(&rig, ask).await;
        assert_aborted(&rig, 499);
    }
    let ended: Vec<_> = settled(&provider, 3).await.iter().map(|entry| entry.outcome).collect();
    assert_eq!(ended, [Outcome::ClientClosed; 3]);
}

#[tokio::test]
async fn a_caller_who_leaves_while_uploading_leaves_one_record() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for target in [CHAT, "/v1/files"] {
        let (feeder, feed) = feed_channel(|| ());
        feeder.push(Bytes::from_static(b"{"));
        leave(&rig, post(target, "").with(Body::Streamed(feed, Some(10)))).await;
        assert_aborted(&rig, 499);
    }
}

#[tokio::test]
async fn a_caller_who_leaves_while_a_connection_is_made_leaves_one_record() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(connected) = timeout(Duration::from_millis(100), TcpStream::connect(addr)).await {
        queued.push(connected.unwrap());
    }
    let rig = Rig::at(&format!("http://{addr}"));
    leave(&rig, chat("m")).await;
    assert_aborted(&rig, 499);
}

#[tokio::test]
async fn a_caller_who_leaves_within_a_whole_answer_leaves_one_record() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    leave(&rig, chat("mock?fault=stall")).await;
    // The provider's head had come, but nothing of it had left.
    assert_aborted(&rig, 200);
    assert_eq!(settled(&provider, 1).await[0].outcome, Outcome::ClientClosed);
}

#[tokio::test]
async fn a_caller_who_leaves_within_a_stream_leaves_one_record_with_what_was_used() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut answer = stream_of(rig.open(stream(MESSAGES, "mock?chunks=100&chunk_ms=20")).await);
    let mut read = 0;
    for _ in 0..3 {
        read += in_time(answer.next()).await.unwrap().unwrap().len();
    }
    assert!(rig.records().is_empty(), "not before its end");
    drop(answer);
    let record = assert_aborted(&rig, 200);
    assert_eq!(pick(&record, ["bytes_out", "req_units"]), json!([read, 12]));
    assert_eq!(settled(&provider, 1).await[0].outcome, Outcome::ClientClosed);
}

#[tokio::test]
async fn a_caller_who_leaves_before_reading_any_of_a_stream_leaves_one_record() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    drop(rig.open(stream(CHAT, "mock?chunks=100&chunk_ms=20")).await);
    let record = assert_aborted(&rig, 200);
    assert_eq!(record["bytes_out"], 0);
}

#[tokio::test]
async fn a_cut_stream_has_one_record_with_what_was_used() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(stream(MESSAGES, "mock?fault=cut")).await;
    let record = rig.record();
    let said = pick(&record, ["outcome", "error", "response_status_code", "is_success", "req_units"]);
    assert_eq!(said, json!(["cut", "upstream_broke", 200, false, 12]));
    assert!(record["bytes_out"].as_u64().unwrap() <= told.body.len() as u64);
}

#[tokio::test]
async fn a_hundred_requests_of_all_kinds_have_a_hundred_records() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let work: Vec<_> = (0..100)
        .map(|index| {
            let gateway = std::sync::Arc::clone(&rig.gateway);
            tokio::spawn(async move {
                let trace = format!("t-{index}");
                let ask = match index % 5 {
                    0 => chat("mock"),
                    1 => stream(CHAT, "mock"),
                    2 => stream(CHAT, "mock?fault=cut_reset"),
                    3 => chat("mock?fault=silence"),
                    _ => post(CHAT, "nonsense"),
                };
                let answering = gateway.handle(ask.header("x-gateway-trace-id", &trace).request());
                if let Ok(answer) = timeout(Duration::from_millis(500), answering).await {
                    crate::harness::Told::read(answer).await;
                }
            })
        })
        .collect();
    for one in work {
        in_time(one).await.unwrap();
    }
    let records = rig.records();
    let mut traces: Vec<_> = records.iter().map(|record| record["trace_id"].as_str().unwrap()).collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!((records.len(), traces.len()), (100, 100));
    let count = |outcome: &str| records.iter().filter(|record| record["outcome"] == outcome).count();
    assert_eq!(["complete", "cut", "aborted", "refused"].map(count), [40, 20, 20, 20]);
}

#[tokio::test]
async fn no_secret_is_in_a_record() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.sensitive_headers = vec!["X-House".into()]);
    let config = r#" {"provider":"mock","api_key":"canary-1"}"#;
    let ask = post(&format!("{CHAT}?api_key=canary-2&page=2&access_token=canary-3"), words("mock", false))
        .header("authorization", "Bearer canary-4")
        .header("x-api-key", "canary-5")
        .header("x-gateway-api-key", "canary-6")
        .header("x-gateway-config", config)
        .header("x-portkey-config", config)
        .header("x-gateway-sensitive-headers", "X-Mine, x-other")
        .header("X-Mine", "canary-7")
        .header("x-other", "canary-8")
        .header("x-house", "canary-9")
        .header("cookie", "session=canary-10")
        .header("x-amz-security-token", "canary-11")
        .header("proxy-authorization", "Basic canary-12")
        .header("x-plain", "seen");
    rig.send(ask).await;
    let record = rig.record();
    assert!(!record.to_string().contains("canary"), "{record:#}");
    assert_eq!(record["request_url"], format!("{CHAT}?api_key=***&page=2&access_token=***"));
    let headers = &record["request_headers"];
    assert_eq!(pick(headers, ["x-mine", "x-house", "x-plain"]), json!(["***", "***", "seen"]));
}

#[tokio::test]
async fn odd_bytes_in_headers_and_paths_make_no_broken_line() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut request = get("/v1/files/%00%0a\"\\?q=\u{7f}\"").header("x-gateway-metadata", "{not json").request();
    request.head.headers.push(b"x-odd", b"\xff\xfe\"\\");
    rig.gateway.handle(request).await;
    let record = rig.record();
    assert!(record["metadata"].is_null() && record["request_headers"]["x-odd"].is_string());
}

#[tokio::test]
async fn ids_sort_as_requests_came() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for _ in 0..10 {
        rig.send(chat("mock")).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let records = rig.records();
    let ids: Vec<_> = records.iter().map(|record| record["id"].as_str().unwrap()).collect();
    assert!(ids.is_sorted(), "{ids:?}");
    assert!(records.iter().map(|record| record["created_at"].as_str()).is_sorted());
}

#[tokio::test]
async fn what_is_not_of_the_data_plane_has_no_record() {
    let rig = Rig::at("http://127.0.0.1:1");
    rig.apply(&json!({"epoch": "1", "management": ["/v1/health"]}));
    for path in ["/live", "/ready", "/", "/nowhere", "/v1/health"] {
        rig.send(get(path)).await;
    }
    assert!(rig.records().is_empty());
}

#[tokio::test]
async fn records_can_be_off_while_counting_goes_on() {
    let provider = Server::start().await;
    for is_off in [true, false] {
        let rig = Rig::with(&provider.url(), |settings| {
            settings.records = !is_off;
            settings.control_socket = settings.control_socket.take().filter(|_| is_off);
        });
        rig.send(chat("mock")).await;
        drop(rig.open(stream(CHAT, "mock?chunk_ms=50")).await);
        rig.send(stream(CHAT, "mock?fault=cut")).await;
        rig.send(post(CHAT, "")).await;
        assert!(rig.records().is_empty());
        let read = rig.gateway.record_sink.metrics.to_json();
        assert_eq!(pick(&read, ["in_flight", "aborted", "cut", "streams"]), json!([0, 1, 1, 2]));
        assert_eq!(pick(&read["requests"], ["2xx", "4xx"]), json!([3, 1]));
    }
    until("the provider is left", || provider.ledger_entries().iter().all(|entry| entry.outcome != Outcome::Open))
        .await;
}

#[tokio::test]
async fn where_there_was_nothing_to_choose_the_record_says_what_named_the_provider() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = json!({"provider": "mock"});
    for (ask, by) in [(crate::harness::chat("mock"), "headers"), (crate::harness::by(&config), "config")] {
        assert_eq!(rig.send(ask).await.status, 200);
        let named = json!([{"step": "named", "at": "config", "provider": "mock", "by": by}]);
        assert_eq!(rig.record()["decisions"], named);
    }
}
