//! Timeouts for the connection, the first byte, and the silence between bytes.

use std::time::{Duration, Instant};

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, chat_body, chat_request, pick_fields, post_request,
    scripted_server::{ScriptedServer, read_request},
    stream_request, wait_for_ledger_entries,
};
use penstock_mock::{Outcome, Server};
use penstock_net::body::{Body, BodyEnd, feed_channel};
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};

fn request_timeout_error(milliseconds: u64) -> Value {
    let message = format!("request exceeded the timeout of {milliseconds} ms");
    json!({"error": {"message": message, "type": "timeout_error", "param": null, "code": null}})
}

fn silent_provider_request() -> TestRequest {
    chat_request("mock?fault=silence")
}

#[tokio::test]
async fn header_config_or_settings_set_the_request_timeout() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.request_timeout_ms = 60);
    let config = r#"{"provider":"mock","request_timeout":50}"#;
    let cases = [
        (60, silent_provider_request()),
        (50, silent_provider_request().header("x-gateway-config", config)),
        (40, silent_provider_request().header("x-gateway-config", config).header("x-gateway-request-timeout", "40")),
    ];
    for (milliseconds, request) in cases {
        let start = Instant::now();
        let reply = gateway.send(request).await;
        assert_eq!((reply.status, reply.json()), (408, request_timeout_error(milliseconds)));
        assert!(start.elapsed() >= Duration::from_millis(milliseconds));
        let fields = pick_fields(&gateway.single_record(), ["outcome", "error", "response_status_code"]);
        assert_eq!(fields, json!(["failed", "timeout", 408]));
    }
    // The response head does not count as the first byte.
    let begun = stream_request(CHAT_PATH, "mock?fault=slow_first").header("x-gateway-request-timeout", "40");
    let reply = gateway.send(begun).await;
    assert_eq!((reply.status, reply.json()), (408, request_timeout_error(40)));
    let ended: Vec<_> = wait_for_ledger_entries(&provider, 4).await.iter().map(|entry| entry.outcome).collect();
    assert_eq!(ended, [Outcome::ClientClosed; 4]);
}

#[tokio::test]
async fn client_timeout_headers_apply_without_a_config() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for name in ["x-stainless-timeout", "x-stainless-read-timeout"] {
        assert_eq!(gateway.send(silent_provider_request().header(name, "0.1")).await.status, 408, "{name}");
        for word in ["NOT_GIVEN", "-1", "0", "1e19", "1e300", "inf"] {
            for config in [r#"{"provider":"mock"}"#, r#"{"provider":"mock","retry":{"attempts":1}}"#] {
                let request = chat_request("mock").header(name, word).header("x-gateway-config", config);
                assert_eq!(gateway.send(request).await.status, 200, "{name}: {word}");
            }
        }
    }
}

#[tokio::test]
async fn a_saved_config_sets_its_request_timeout() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = json!({"provider": "mock", "request_timeout": 30});
    gateway.apply_snapshot(&json!({"epoch": "1", "configs": [{"slug": "pc-1", "config": config}]}));
    let response = gateway.send(silent_provider_request().header("x-gateway-config", "pc-1")).await;
    assert_eq!((response.status, response.json()), (408, request_timeout_error(30)));
}

#[tokio::test]
async fn anthropic_client_gets_the_timeout_in_its_own_format() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let request =
        post_request(MESSAGES_PATH, chat_body("mock?fault=silence", false)).header("x-gateway-request-timeout", "30");
    let response = gateway.send(request).await;
    assert_eq!((response.status, &response.json()["type"]), (408, &json!("error")));
    assert_eq!(response.json()["error"]["type"], "timeout_error");
}

#[tokio::test]
async fn request_timeout_covers_only_the_first_stream_byte() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway
        .send(stream_request(CHAT_PATH, "mock?chunks=8&chunk_ms=30").header("x-gateway-request-timeout", "120"))
        .await;
    assert_eq!((response.status, response.is_truncated), (200, false));
    assert!(response.body.ends_with(b"data: [DONE]\n\n"), "{}", response.text());
}

#[tokio::test]
async fn a_slow_response_within_the_timeout_succeeds() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let request = chat_request("mock?first_ms=50").header("x-gateway-request-timeout", "5000");
    assert_eq!(gateway.send(request).await.status, 200);
    let waited = gateway.single_record()["upstream_response_time"].as_f64().unwrap();
    assert!(waited >= 50.0, "{waited}");
}

#[tokio::test]
async fn rejects_a_timeout_that_is_not_positive_milliseconds() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for value in ["0", "-1", "soon", "1.5", "99999999999999999999999"] {
        let response = gateway.send(chat_request("mock").header("x-gateway-request-timeout", value)).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_header"), "{value}");
    }
    let response = gateway.send(chat_request("mock").header("x-gateway-request-timeout", &u64::MAX.to_string())).await;
    assert_eq!(response.status, 200);
}

#[tokio::test]
async fn an_idle_stream_ends_in_an_error_event() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.idle_timeout_ms = 80);
    let reply = gateway.send(stream_request(CHAT_PATH, "mock?fault=stall&after=2")).await;
    assert_eq!(reply.last_event(), (None, idle_timeout_error(80)));
    assert_eq!(wait_for_ledger_entries(&provider, 1).await[0].outcome, Outcome::ClientClosed);
    // If the timeout is longer than the heartbeat interval, the response head is sent before the first byte arrives.
    let long_request =
        stream_request(CHAT_PATH, "mock?fault=slow_first&first_ms=5000").header("x-gateway-request-timeout", "20000");
    let reply = gateway.send(long_request).await;
    assert_eq!(reply.last_event(), (None, idle_timeout_error(80)));
    let reply = gateway.send(stream_request(MESSAGES_PATH, "mock?fault=stall&after=2")).await;
    let (name, data) = reply.last_event();
    assert_eq!((name.as_deref(), &data["error"]["type"]), (Some("error"), &json!("timeout_error")));
    assert_eq!(data["error"]["message"], idle_timeout_error(80)["error"]["message"]);
}

fn idle_timeout_error(milliseconds: u64) -> Value {
    let message = format!("the provider's response broke off: no data for {milliseconds} ms");
    json!({"error": {"message": message, "type": "timeout_error", "param": null, "code": "idle_timeout"}})
}

#[tokio::test]
async fn a_long_stream_with_short_pauses_completes() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.idle_timeout_ms = 300);
    let response = gateway.send(stream_request(CHAT_PATH, "mock?chunks=10&chunk_ms=50")).await;
    assert!(response.body.ends_with(b"data: [DONE]\n\n"), "{}", response.text());
}

#[tokio::test]
async fn an_idle_non_streaming_response_times_out() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.idle_timeout_ms = 80);
    let response = gateway.send(chat_request("mock?fault=stall")).await;
    let mut expected = idle_timeout_error(80);
    expected["error"]["code"] = Value::Null;
    assert_eq!((response.status, response.json()), (408, expected));
    assert_eq!(pick_fields(&gateway.single_record(), ["outcome", "error"]), json!(["failed", "idle_timeout"]));
}

/// Starts a provider that sends a response head at once, then one byte every 10 ms, forever.
async fn start_dripping_provider(kind: &str, length: usize) -> ScriptedServer {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
    ScriptedServer::start(move |mut io, _| {
        let head = head.clone();
        async move {
            read_request(&mut io).await;
            let _ = io.write_all(head.as_bytes()).await;
            while io.write_all(b" ").await.is_ok() {
                sleep(Duration::from_millis(10)).await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn non_streaming_response_must_complete_within_the_timeout() {
    let provider = start_dripping_provider("application/json", 100_000).await;
    let gateway = TestGateway::for_url(&provider.url());
    let response = gateway.send(chat_request("m").header("x-gateway-request-timeout", "120")).await;
    assert_eq!((response.status, response.json()), (408, request_timeout_error(120)));
}

#[tokio::test]
async fn a_response_too_large_to_buffer_has_the_same_timeout() {
    let provider = start_dripping_provider("application/json", 1_000_000).await;
    let gateway = TestGateway::for_url(&provider.url());
    let start = Instant::now();
    let response = gateway.send(chat_request("m").header("x-gateway-request-timeout", "120")).await;
    assert_eq!((response.status, response.is_streamed, response.is_truncated), (200, true, true));
    assert!(start.elapsed() >= Duration::from_millis(120));
    assert_eq!(pick_fields(&gateway.single_record(), ["outcome", "error"]), json!(["cut", "timeout"]));
}

#[tokio::test]
async fn a_slow_client_upload_does_not_time_out_the_provider() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let (feeder, reading) = feed_channel(|| ());
    let request = crate::harness::TestRequest::new("POST", "/v1/files")
        .header("x-gateway-provider", "mock")
        .header("x-gateway-request-timeout", "60")
        .with_body(Body::Streamed(reading, None));
    let uploading = tokio::spawn(async move {
        for _ in 0..5 {
            sleep(Duration::from_millis(80)).await;
            feeder.push("piece".into());
        }
        feeder.finish(BodyEnd::Complete);
    });
    let response = gateway.send(request).await;
    uploading.await.unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
}

#[tokio::test]
async fn times_out_if_the_provider_stops_reading_an_upload() {
    let provider = ScriptedServer::start(|io, _| async move {
        sleep(Duration::from_secs(20)).await;
        drop(io);
    })
    .await;
    let gateway = TestGateway::for_url(&provider.url());
    let (feeder, reading) = feed_channel(|| ());
    // More than all buffers on the path can hold.
    for _ in 0..64 {
        feeder.push(vec![0; 1024 * 1024].into());
    }
    let request = crate::harness::TestRequest::new("POST", "/v1/files")
        .header("x-gateway-provider", "mock")
        .header("x-gateway-request-timeout", "150")
        .with_body(Body::Streamed(reading, None));
    let response = gateway.send(request).await;
    assert_eq!((response.status, response.json()), (408, request_timeout_error(150)));
}

#[tokio::test]
async fn a_refused_connection_becomes_502() {
    let gateway = TestGateway::for_url("http://127.0.0.1:1");
    let response = gateway.send(chat_request("m")).await;
    assert_eq!((response.status, response.error_code().as_str()), (502, "upstream_connect_failed"));
}

#[tokio::test]
async fn an_unanswered_connection_attempt_becomes_503() {
    // A listener with a full queue drops new connections, like a host that is down.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(connected) = timeout(Duration::from_millis(100), TcpStream::connect(addr)).await {
        queued.push(connected.unwrap());
    }
    let gateway = TestGateway::with_settings(&format!("http://{addr}"), |settings| settings.connect_timeout_ms = 80);
    let response = gateway.send(chat_request("m")).await;
    assert_eq!((response.status, response.error_code().as_str()), (503, "upstream_connect_timeout"));
    assert_eq!(response.header("retry-after"), Some("1"));
    let response = gateway.send(chat_request("m").header("x-gateway-request-timeout", "20")).await;
    assert_eq!((response.status, response.json()), (408, request_timeout_error(20)));
}

#[tokio::test]
async fn a_late_response_never_reaches_another_request() {
    let provider = ScriptedServer::start(|mut io, _| async move {
        while let Some(request) = read_request(&mut io).await {
            let late = String::from_utf8_lossy(&request).contains("late");
            if late {
                sleep(Duration::from_millis(60)).await;
            }
            let response = crate::harness::scripted_server::json_response(
                "200 OK",
                "",
                if late { "\"late\"" } else { "\"soon\"" },
            );
            let _ = io.write_all(&response).await;
        }
    })
    .await;
    let gateway = TestGateway::for_url(&provider.url());
    assert_eq!(gateway.send(chat_request("soon")).await.text(), "\"soon\"");
    assert_eq!(gateway.send(chat_request("late").header("x-gateway-request-timeout", "20")).await.status, 408);
    sleep(Duration::from_millis(80)).await;
    assert_eq!(gateway.send(chat_request("soon")).await.text(), "\"soon\"");
    assert_eq!(provider.connection_count(), 2);
}
