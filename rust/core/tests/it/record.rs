//! Request log records. Every request of the data plane writes exactly one record, whatever its outcome, and no record
//! contains a secret.

use std::time::Duration;

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, chat_body, chat_request, get_request, into_stream, pick_fields,
    post_request, scripted_server::ScriptedServer, stream_request, wait_for_ledger_entries, wait_until, with_timeout,
};
use bytes::Bytes;
use penstock_mock::{Outcome, Server};
use penstock_net::body::{Body, feed_channel};
use serde_json::{Value, json};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::timeout,
};

/// Starts a request and drops it after 40 ms, as a disconnected client would.
async fn abandon_request(gateway: &TestGateway, request: TestRequest) {
    let abandoned =
        timeout(Duration::from_millis(40), penstock_core::gateway::handle(&gateway.state, request.build())).await;
    assert!(abandoned.is_err(), "it was answered");
}

fn assert_aborted(gateway: &TestGateway, status: u16) -> Value {
    let record = gateway.single_record();
    let fields = pick_fields(&record, ["outcome", "response_status_code", "is_success"]);
    assert_eq!(fields, json!(["aborted", status, false]), "{record:#}");
    assert_eq!(gateway.state.record_sink.metrics.in_flight(), 0);
    record
}

#[tokio::test]
async fn assistant_session_id_groups_records_and_is_not_forwarded() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let session = "x-claude-code-session-id";
    for (client_request, more, remaining) in [
        (post_request(MESSAGES_PATH, chat_body("mock", false)), None, "s-1"),
        (get_request("/v1/proxy/x"), None, "s-1"),
        (get_request("/v1/proxy/x"), Some(r#"{"session_id":"own"}"#), "own"),
    ] {
        let client_request =
            more.into_iter().fold(client_request, |request, own| request.header("x-gateway-metadata", own));
        assert_eq!(gateway.send(client_request.header(session, " s-1")).await.status, 200);
        assert_eq!(gateway.single_record()["metadata"], json!({"session_id": remaining}));
        assert_eq!(provider.ledger_entries().pop().unwrap().header(session), None);
    }
}

#[tokio::test]
async fn complete_request_writes_one_record_with_all_fields() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let request = chat_request("mock?first_ms=20")
        .header("x-gateway-trace-id", "t-1")
        .header("x-gateway-span-id", "s-1")
        .header("x-gateway-span-name", "ask")
        .header("x-gateway-parent-span-id", "s-0")
        .header("x-gateway-metadata", r#"{"_user":"ann","team":"red"}"#);
    let response = gateway.send(request).await;
    let record = gateway.single_record();
    let fields =
        pick_fields(&record, ["outcome", "is_success", "response_status_code", "request_method", "request_url"]);
    assert_eq!(fields, json!(["complete", true, 200, "POST", CHAT_PATH]));
    let fields = pick_fields(&record, ["trace_id", "span_id", "span_name", "parent_span_id"]);
    assert_eq!(fields, json!(["t-1", "s-1", "ask", "s-0"]));
    let fields =
        pick_fields(&record, ["ai_org", "ai_model", "operation", "stream_mode", "is_proxy_call", "mode", "worker"]);
    assert_eq!(fields, json!(["mock", "mock?first_ms=20", "chatComplete", false, false, "single", 1]));
    assert_eq!(record["metadata"], json!({"_user": "ann", "team": "red"}));
    assert_eq!(record["bytes_out"], response.body.len());
    let time = |name: &str| record[name].as_f64().unwrap();
    assert!(time("response_time") >= time("time_to_first_byte"));
    assert!(time("time_to_first_byte") >= time("upstream_response_time") && time("upstream_response_time") >= 20.0);
    assert!(record["created_at"].as_str().unwrap().ends_with('Z') && record["error"].is_null());
}

#[tokio::test]
async fn request_without_a_trace_id_uses_its_own_id() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.send(chat_request("mock")).await;
    let record = gateway.single_record();
    assert_eq!(record["trace_id"], record["id"]);
    assert_eq!(response.header("x-gateway-trace-id"), record["id"].as_str());
}

#[tokio::test]
async fn usage_is_read_from_both_formats_and_streams() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for path in [CHAT_PATH, MESSAGES_PATH] {
        for streamed in [false, true] {
            gateway.send(post_request(path, chat_body("mock?chunks=5&usage=on", streamed))).await;
            let record = gateway.single_record();
            let fields = pick_fields(&record, ["req_units", "res_units", "total_units", "stream_mode"]);
            assert_eq!(fields, json!([12, 5, 17, streamed]), "{path}");
            gateway.send(post_request(path, chat_body("mock?usage=off", streamed))).await;
            assert_eq!(
                pick_fields(&gateway.single_record(), ["req_units", "units_estimated"]),
                json!([8, true]),
                "{path}"
            );
        }
    }
    gateway.send(post_request("/v1/embeddings", r#"{"model":"mock","input":["a","b"]}"#)).await;
    assert_eq!(pick_fields(&gateway.single_record(), ["operation", "req_units", "res_units"]), json!(["embed", 8, 0]));
}

/// Models of some vendors report their usage at Bedrock in the response headers only.
#[tokio::test]
async fn bedrock_usage_headers_apply_if_the_body_has_no_usage() {
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let fields = "x-amzn-bedrock-input-token-count: 7\r\nx-amzn-bedrock-output-token-count: 5\r\n";
    let silent = r#"{"outputs":[{"text":"Hi","stop_reason":"stop"}]}"#;
    let telling = r#"{"usage":{"inputTokens":3,"outputTokens":2,"totalTokens":5}}"#;
    for (body, expected) in [(silent, json!([7, 5, null])), (telling, json!([3, 2, null]))] {
        let length = body.len();
        let response_body = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{fields}content-length: {length}\r\n\r\n{body}"
        );
        let provider = ScriptedServer::start_responding(response_body).await;
        let request = TestRequest::new("POST", "/model/mistral.mistral-large-2402-v1:0/invoke")
            .header("content-type", "application/json")
            .body(r#"{"prompt":"Hi"}"#)
            .header("x-gateway-provider", "bedrock")
            .header("x-gateway-custom-host", &provider.url())
            .header("x-gateway-aws-region", "us-east-1")
            .header("authorization", "Bearer key-1");
        let response = gateway.send(request).await;
        assert_eq!((response.status, response.header("x-amzn-bedrock-input-token-count")), (200, Some("7")));
        assert_eq!(
            pick_fields(&gateway.single_record(), ["req_units", "res_units", "units_estimated"]),
            expected,
            "{body}"
        );
    }
}

#[tokio::test]
async fn stream_usage_is_hidden_unless_the_client_requests_it() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let build_body = |options: Value| {
        let body = json!({"model": "mock?chunks=5", "stream": true, "messages": [{"role": "user", "content": "hi"}],
            "prompt": "hi", "stream_options": options});
        body.to_string()
    };
    for path in [CHAT_PATH, "/v1/completions"] {
        let plain = gateway.send(post_request(path, chat_body("mock?chunks=5&usage=off", true))).await;
        assert_eq!(gateway.single_record()["units_estimated"], true);
        for request in
            [chat_body("mock?chunks=5", true), build_body(json!({"include_usage": false})), build_body(Value::Null)]
        {
            let response = gateway.send(post_request(path, request)).await;
            let body = pick_fields(&gateway.single_record(), ["req_units", "res_units", "units_estimated"]);
            assert_eq!(body, json!([12, 5, null]), "{path}");
            assert!(
                !response.text().contains("usage") && response.text().ends_with("data: [DONE]\n\n"),
                "{}",
                response.text()
            );
            assert_eq!(response.text().matches("data: ").count(), plain.text().matches("data: ").count());
        }
        let response = gateway.send(post_request(path, build_body(json!({"include_usage": true})))).await;
        assert!(response.text().contains("\"completion_tokens\":5"));
        assert!(gateway.single_record()["units_estimated"].is_null());
    }
}

#[tokio::test]
async fn a_failed_request_names_host_and_reason() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let gateway = TestGateway::for_url(&format!("http://{closed}"));
    gateway.send(chat_request("m")).await;
    let record = gateway.single_record();
    assert_eq!(pick_fields(&record, ["outcome", "error"]), json!(["failed", "upstream_connect_failed"]));
    let attempt = &record["attempts"][0];
    assert_eq!(pick_fields(attempt, ["host", "error"]), json!(["127.0.0.1", "upstream_connect_failed"]));
    assert_eq!(attempt["reason"], format!("no connection to {closed}: Connection refused (os error 111)"));

    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (fault, error, reason) in
        [("reset", "upstream_disconnected", "the provider's response broke off"), ("cut", "upstream_disconnected", "")]
    {
        gateway.send(chat_request(&format!("mock?fault={fault}"))).await;
        let attempt = gateway.single_record()["attempts"][0].clone();
        assert_eq!(attempt["error"], error);
        let actual = attempt["reason"].as_str().unwrap_or_default();
        assert!(actual.starts_with(reason) && reason.is_empty() == actual.is_empty(), "{fault}: {actual}");
    }
}

#[tokio::test]
async fn refused_or_failed_request_writes_one_record() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (request, status, error) in [
        (TestRequest::new("POST", CHAT_PATH), 400, "provider_required"),
        (chat_request("m").header("x-gateway-config", "pc-none"), 400, "not_found_in_workspace"),
        (post_request(CHAT_PATH, "nonsense"), 400, "invalid_json"),
        (chat_request("mock?fault=reset"), 502, "upstream_disconnected"),
        // Only the silent provider gets a short timeout, so that a slow machine does not time out the other cases.
        (chat_request("mock?fault=silence").header("x-gateway-request-timeout", "30"), 408, "timeout"),
        (chat_request("mock?fault=cut"), 502, "upstream_disconnected"),
    ] {
        let response = gateway.send(request).await;
        let record = gateway.single_record();
        let fields = pick_fields(&record, ["outcome", "response_status_code", "error", "is_success", "bytes_out"]);
        let outcome = if status == 400 { "refused" } else { "failed" };
        assert_eq!(fields, json!([outcome, status, error, false, response.body.len()]));
        assert_eq!(response.header("x-gateway-trace-id"), record["id"].as_str());
    }
    gateway
        .state
        .apply_snapshot(format!(r#"{{"epoch":"1","keys":[{{"id":"k","name":"k","sha256":"{:064x}"}}]}}"#, 1).as_bytes())
        .unwrap();
    gateway.send(chat_request("mock")).await;
    assert_eq!(pick_fields(&gateway.single_record(), ["response_status_code", "error"]), json!([401, "03"]));
}

#[tokio::test]
async fn disconnect_before_the_response_writes_one_record() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for request in [
        chat_request("mock?fault=silence"),
        stream_request(CHAT_PATH, "mock?first_ms=5000"),
        get_request("/v1/files?mock-fault=silence"),
    ] {
        abandon_request(&gateway, request).await;
        assert_aborted(&gateway, 499);
    }
    let ended: Vec<_> = wait_for_ledger_entries(&provider, 3).await.iter().map(|entry| entry.outcome).collect();
    assert_eq!(ended, [Outcome::ClientClosed; 3]);
}

#[tokio::test]
async fn disconnect_during_upload_writes_one_record() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for target in [CHAT_PATH, "/v1/files"] {
        let (feeder, feed) = feed_channel(|| ());
        feeder.push(Bytes::from_static(b"{"));
        abandon_request(&gateway, post_request(target, "").with_body(Body::Streamed(feed, Some(10)))).await;
        assert_aborted(&gateway, 499);
    }
}

#[tokio::test]
async fn disconnect_during_upstream_connect_writes_one_record() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(connected) = timeout(Duration::from_millis(100), TcpStream::connect(addr)).await {
        queued.push(connected.unwrap());
    }
    let gateway = TestGateway::for_url(&format!("http://{addr}"));
    abandon_request(&gateway, chat_request("m")).await;
    assert_aborted(&gateway, 499);
}

#[tokio::test]
async fn disconnect_during_a_buffered_response_writes_one_record() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    abandon_request(&gateway, chat_request("mock?fault=stall")).await;
    // The response head of the provider had arrived, but the client had received nothing.
    assert_aborted(&gateway, 200);
    assert_eq!(wait_for_ledger_entries(&provider, 1).await[0].outcome, Outcome::ClientClosed);
}

#[tokio::test]
async fn disconnect_during_a_stream_writes_one_record_with_usage() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut response =
        into_stream(gateway.handle_request(stream_request(MESSAGES_PATH, "mock?chunks=100&chunk_ms=20")).await);
    let mut read = 0;
    for _ in 0..3 {
        read += with_timeout(response.next()).await.unwrap().unwrap().len();
    }
    assert!(gateway.drain_records().is_empty(), "not before its end");
    drop(response);
    let record = assert_aborted(&gateway, 200);
    assert_eq!(pick_fields(&record, ["bytes_out", "req_units"]), json!([read, 12]));
    assert_eq!(wait_for_ledger_entries(&provider, 1).await[0].outcome, Outcome::ClientClosed);
}

#[tokio::test]
async fn disconnect_before_the_first_chunk_writes_one_record() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    drop(gateway.handle_request(stream_request(CHAT_PATH, "mock?chunks=100&chunk_ms=20")).await);
    let record = assert_aborted(&gateway, 200);
    assert_eq!(record["bytes_out"], 0);
}

#[tokio::test]
async fn cut_stream_writes_one_record_with_usage() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.send(stream_request(MESSAGES_PATH, "mock?fault=cut")).await;
    let record = gateway.single_record();
    let fields = pick_fields(&record, ["outcome", "error", "response_status_code", "is_success", "req_units"]);
    assert_eq!(fields, json!(["cut", "upstream_disconnected", 200, false, 12]));
    assert!(record["bytes_out"].as_u64().unwrap() <= response.body.len() as u64);
}

#[tokio::test]
async fn hundred_mixed_requests_write_a_hundred_records() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let work: Vec<_> = (0..100)
        .map(|index| {
            let state = std::sync::Arc::clone(&gateway.state);
            tokio::spawn(async move {
                let trace = format!("t-{index}");
                let request = match index % 5 {
                    0 => chat_request("mock"),
                    1 => stream_request(CHAT_PATH, "mock"),
                    2 => stream_request(CHAT_PATH, "mock?fault=cut_reset"),
                    3 => chat_request("mock?fault=silence"),
                    _ => post_request(CHAT_PATH, "nonsense"),
                };
                let answering =
                    penstock_core::gateway::handle(&state, request.header("x-gateway-trace-id", &trace).build());
                if let Ok(response) = timeout(Duration::from_millis(500), answering).await {
                    crate::harness::TestResponse::read(response).await;
                }
            })
        })
        .collect();
    for task in work {
        with_timeout(task).await.unwrap();
    }
    let records = gateway.drain_records();
    let mut traces: Vec<_> = records.iter().map(|record| record["trace_id"].as_str().unwrap()).collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!((records.len(), traces.len()), (100, 100));
    let count = |outcome: &str| records.iter().filter(|record| record["outcome"] == outcome).count();
    assert_eq!(["complete", "cut", "aborted", "refused"].map(count), [40, 20, 20, 20]);
}

#[tokio::test]
async fn record_has_the_client_address_only_on_request() {
    let provider = Server::start().await;
    for (record_peers, address) in [(true, json!("192.0.2.7")), (false, json!(null))] {
        let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.record_peers = record_peers);
        for request in [chat_request("m"), chat_request("mock?fault=429"), TestRequest::new("POST", CHAT_PATH)] {
            gateway.send(request.peer("192.0.2.7".parse().unwrap())).await;
            assert_eq!(gateway.single_record()["peer"], address);
        }
    }
}

#[tokio::test]
async fn record_contains_no_secret() {
    let provider = Server::start().await;
    let gateway =
        TestGateway::with_settings(&provider.url(), |settings| settings.sensitive_headers = vec!["X-House".into()]);
    let config = r#" {"provider":"mock","api_key":"canary-1"}"#;
    let request =
        post_request(&format!("{CHAT_PATH}?api_key=canary-2&page=2&access_token=canary-3"), chat_body("mock", false))
            .header("authorization", "Bearer canary-4")
            .header("x-api-key", "canary-5")
            .header("x-gateway-api-key", "canary-6")
            .header("x-gateway-config", config)
            .header("x-portkey-config", config)
            .header("x-gateway-sensitive-headers", "X-Mine, x-other")
            .header("X-Mine", "canary-7")
            .header("x-other", "canary-8")
            .header("x-custom", "canary-9")
            .header("cookie", "session=canary-10")
            .header("x-amz-security-token", "canary-11")
            .header("proxy-authorization", "Basic canary-12")
            .header("x-plain", "unseen")
            .header("accept-language", "seen");
    gateway.send(request).await;
    let record = gateway.single_record();
    assert!(!record.to_string().contains("canary"), "{record:#}");
    assert_eq!(record["request_url"], format!("{CHAT_PATH}?api_key=***&page=2&access_token=***"));
    let headers = &record["request_headers"];
    assert_eq!(pick_fields(headers, ["x-mine", "x-custom", "x-plain"]), json!(["***", "***", "***"]));
    assert_eq!(headers["accept-language"], "seen");
}

#[tokio::test]
async fn invalid_bytes_in_headers_and_paths_keep_the_record_valid() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let mut request = get_request("/v1/files/%00%0a\"\\?q=\u{7f}\"").header("x-gateway-metadata", "{not json").build();
    request.head.headers.push(b"x-odd", b"\xff\xfe\"\\");
    penstock_core::gateway::handle(&gateway.state, request).await;
    let record = gateway.single_record();
    assert!(record["metadata"].is_null() && record["request_headers"]["x-odd"].is_string());
}

#[tokio::test]
async fn record_ids_sort_by_arrival() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for _ in 0..10 {
        gateway.send(chat_request("mock")).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let records = gateway.drain_records();
    let ids: Vec<_> = records.iter().map(|record| record["id"].as_str().unwrap()).collect();
    assert!(ids.is_sorted(), "{ids:?}");
    assert!(records.iter().map(|record| record["created_at"].as_str()).is_sorted());
}

#[tokio::test]
async fn paths_outside_the_data_plane_write_no_record() {
    let gateway = TestGateway::for_url("http://127.0.0.1:1");
    gateway.apply_snapshot(&json!({"epoch": "1", "management": ["/v1/health"]}));
    for path in ["/live", "/ready", "/", "/nowhere", "/v1/health"] {
        gateway.send(get_request(path)).await;
    }
    assert!(gateway.drain_records().is_empty());
}

#[tokio::test]
async fn metrics_are_counted_with_records_disabled() {
    let provider = Server::start().await;
    for is_off in [true, false] {
        let gateway = TestGateway::with_settings(&provider.url(), |settings| {
            settings.records = !is_off;
            settings.control_socket = settings.control_socket.take().filter(|_| is_off);
        });
        gateway.send(chat_request("mock")).await;
        drop(gateway.handle_request(stream_request(CHAT_PATH, "mock?chunk_ms=50")).await);
        gateway.send(stream_request(CHAT_PATH, "mock?fault=cut")).await;
        gateway.send(post_request(CHAT_PATH, "")).await;
        assert!(gateway.drain_records().is_empty());
        let read = gateway.state.record_sink.metrics.to_json();
        assert_eq!(pick_fields(&read, ["in_flight", "aborted", "cut", "streams"]), json!([0, 1, 1, 2]));
        assert_eq!(pick_fields(&read["requests"], ["2xx", "4xx"]), json!([3, 1]));
    }
    wait_until("the provider is left", || provider.ledger_entries().iter().all(|entry| entry.outcome != Outcome::Open))
        .await;
}

#[tokio::test]
async fn record_names_the_source_of_the_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = json!({"provider": "mock"});
    for (request, by) in
        [(crate::harness::chat_request("mock"), "headers"), (crate::harness::chat_with_config(&config), "config")]
    {
        assert_eq!(gateway.send(request).await.status, 200);
        let step = json!([{"step": "named", "at": "config", "provider": "mock", "by": by}]);
        assert_eq!(gateway.single_record()["decisions"], step);
    }
}
