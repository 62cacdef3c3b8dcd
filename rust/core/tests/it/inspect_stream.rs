//! Stream inspection for overloaded errors. If enabled, such an error at the start of a streamed 200 becomes a 529;
//! everything else passes unchanged.

use std::{sync::Arc, time::Duration};

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, TestResponse, chat_body, into_stream, pick_fields,
    post_request,
    scripted_server::{MESSAGE_EVENTS, SSE_RESPONSE_HEAD, ScriptedServer, encode_chunks, read_request, sse_response},
    stream_request, with_timeout,
};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, sync::Notify};

const OVERLOADED_ERROR: &str =
    r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_1"}"#;

fn overloaded_error_event() -> String {
    format!("event: error\ndata: {OVERLOADED_ERROR}\n\n")
}

/// Requests a stream with an inline config that sets the flag.
fn inspected_request(path: &str) -> TestRequest {
    request_with_flag(path, "anthropic_inspect_stream_for_overloaded_error")
}

fn request_with_flag(path: &str, flag: &str) -> TestRequest {
    let config = json!({"provider": "mock", flag: true}).to_string();
    TestRequest::new("POST", path)
        .header("x-gateway-config", &config)
        .header("content-type", "application/json")
        .body(chat_body("m", true))
}

async fn send_inspected_request(sent: &[u8], chunk: usize) -> (TestResponse, Value) {
    let provider = ScriptedServer::start_responding(sse_response(sent, chunk)).await;
    let gateway = TestGateway::for_url(&provider.url());
    let response = gateway.send(inspected_request(MESSAGES_PATH)).await;
    (response, gateway.single_record())
}

fn assert_overloaded(response: &TestResponse, record: &Value, case: &str) {
    assert_eq!(
        (response.status, response.is_streamed, response.is_truncated),
        (529, false, false),
        "{case}: {}",
        response.text()
    );
    assert_eq!(response.header("content-type"), Some("application/json"), "{case}");
    assert_eq!(response.header("content-length"), Some(OVERLOADED_ERROR.len().to_string().as_str()), "{case}");
    assert_eq!(response.text(), OVERLOADED_ERROR, "{case}");
    let fields = pick_fields(record, ["response_status_code", "outcome", "is_success"]);
    assert_eq!(fields, json!([529, "complete", false]), "{case}");
}

#[tokio::test]
async fn overloaded_error_becomes_529_in_any_chunking() {
    for chunk in [1, 2, 3, 7, 20, 4096] {
        let (response, record) = send_inspected_request(overloaded_error_event().as_bytes(), chunk).await;
        assert_overloaded(&response, &record, &format!("chunks of {chunk}"));
    }
}

#[tokio::test]
async fn line_ends_bom_comments_and_pings_do_not_matter() {
    let error = overloaded_error_event();
    let cases = [
        error.replace('\n', "\r\n"),
        error.replace('\n', "\r"),
        format!("\u{feff}{error}"),
        format!(": hello\n\n{error}"),
        format!("event: ping\ndata: {{\"type\": \"ping\"}}\n\n: x\n\n{error}"),
        format!("data: {OVERLOADED_ERROR}\n\n"),
        format!("{error}event: later\ndata: 1\n\n"),
    ];
    for sent in cases {
        for chunk in [3, 4096] {
            let (response, record) = send_inspected_request(sent.as_bytes(), chunk).await;
            assert_overloaded(&response, &record, &format!("{sent:?} in chunks of {chunk}"));
        }
    }
}

#[tokio::test]
async fn forwards_other_first_events_unchanged() {
    let other = overloaded_error_event().replace("overloaded_error", "api_error");
    let started = MESSAGE_EVENTS.split_inclusive("\n\n").next().unwrap();
    let late = format!("{started}{}", overloaded_error_event());
    let long =
        format!("data: {{\"error\":{{\"type\":\"overloaded_error\",\"message\":\"{}\"}}}}\n\n", "x".repeat(70_000));
    let pings = "event: ping\ndata: {\"type\": \"ping\"}\n\n".repeat(6);
    let many = format!("{pings}{}", overloaded_error_event());
    for sent in [MESSAGE_EVENTS, &other, &late, &long, &many] {
        for chunk in [5, 100_000] {
            let (response, record) = send_inspected_request(sent.as_bytes(), chunk).await;
            assert_eq!((response.status, response.text().as_str()), (200, sent), "{sent:.60} in chunks of {chunk}");
            assert_eq!(record["response_status_code"], 200);
        }
    }
}

#[tokio::test]
async fn ignores_compressed_other_format_and_unflagged_streams() {
    let sent = overloaded_error_event();
    let head = SSE_RESPONSE_HEAD.replace("\r\n\r\n", "\r\ncontent-encoding: gzip\r\n\r\n");
    let provider =
        ScriptedServer::start_responding([head.as_bytes(), &encode_chunks(sent.as_bytes(), 9), b"0\r\n\r\n"].concat())
            .await;
    let compressed = TestGateway::for_url(&provider.url()).send(inspected_request(MESSAGES_PATH)).await;
    let provider = ScriptedServer::start_responding(sse_response(sent.as_bytes(), 9)).await;
    let gateway = TestGateway::for_url(&provider.url());
    for response in [
        compressed,
        gateway.send(inspected_request(CHAT_PATH)).await,
        gateway.send(stream_request(MESSAGES_PATH, "m")).await,
    ] {
        assert_eq!((response.status, response.text()), (200, sent.clone()));
    }
}

#[tokio::test]
async fn requests_identity_encoding_for_inspected_streams() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (path, request) in [(MESSAGES_PATH, "identity"), ("/v1/proxy/messages", "identity")] {
        let response = gateway.send(inspected_request(path).header("accept-encoding", "gzip")).await;
        assert_eq!(response.status, 200, "{path}");
        assert_eq!(provider.ledger_entries().pop().unwrap().header("accept-encoding"), Some(request), "{path}");
    }
    let plain = stream_request("/v1/proxy/messages", "m").header("accept-encoding", "gzip");
    assert_eq!(gateway.send(plain).await.status, 200);
    assert_eq!(
        provider.ledger_entries().pop().unwrap().header("accept-encoding"),
        Some("gzip"),
        "nobody looks into it"
    );
}

#[tokio::test]
async fn accepts_both_flag_spellings_and_saved_providers() {
    let provider = ScriptedServer::start_responding(sse_response(overloaded_error_event().as_bytes(), 50)).await;
    let gateway = TestGateway::for_url(&provider.url());
    assert_eq!(
        gateway.send(request_with_flag(MESSAGES_PATH, "anthropicInspectStreamForOverloadedError")).await.status,
        529
    );
    let saved = |is_enabled: bool| {
        json!({"epoch": "1", "providers": [
            {"slug": "mine", "provider": "mock", "anthropic_inspect_stream_for_overloaded_error": is_enabled}]})
    };
    let build_request =
        || TestRequest::new("POST", MESSAGES_PATH).header("x-gateway-provider", "@mine").body(chat_body("m", true));
    gateway.apply_snapshot(&saved(true));
    assert_eq!(gateway.send(build_request()).await.status, 529);
    gateway.apply_snapshot(&saved(false));
    assert_eq!(gateway.send(build_request()).await.status, 200);
}

#[tokio::test]
async fn overloaded_mock_provider_becomes_529() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let config = json!({"provider": "mock", "anthropic_inspect_stream_for_overloaded_error": true}).to_string();
    let request =
        post_request(MESSAGES_PATH, chat_body("mock?fault=overloaded_first", true)).header("x-gateway-config", &config);
    let response = gateway.send(request).await;
    assert_eq!((response.status, &response.json()["error"]["type"]), (529, &"overloaded_error".into()));
}

#[tokio::test]
async fn stream_broken_before_first_event_gets_error_status() {
    let half = &overloaded_error_event()[..30];
    let provider = ScriptedServer::start_closing_after_response(
        [SSE_RESPONSE_HEAD.as_bytes(), &encode_chunks(half.as_bytes(), 9)].concat(),
    )
    .await;
    let gateway = TestGateway::for_url(&provider.url());
    let response = gateway.send(inspected_request(MESSAGES_PATH)).await;
    assert_eq!((response.status, &response.json()["type"]), (502, &"error".into()), "{}", response.text());
    assert_eq!(gateway.single_record()["outcome"], "failed");
}

#[tokio::test]
async fn request_timeout_bounds_wait_for_the_first_event() {
    let provider = ScriptedServer::start(|mut io, _| async move {
        while read_request(&mut io).await.is_some() {
            io.write_all(SSE_RESPONSE_HEAD.as_bytes()).await.unwrap();
        }
    })
    .await;
    let gateway = TestGateway::for_url(&provider.url());
    let response = gateway.send(inspected_request(MESSAGES_PATH).header("x-gateway-request-timeout", "100")).await;
    assert_eq!((response.status, response.error_code().as_str()), (408, ""), "{}", response.text());
    assert_eq!(pick_fields(&gateway.single_record(), ["error", "outcome"]), json!(["timeout", "failed"]));
}

#[tokio::test]
async fn does_not_delay_stream_after_its_first_event() {
    let go = Arc::new(Notify::new());
    let wait = Arc::clone(&go);
    let provider = ScriptedServer::start(move |mut io, _| {
        let wait = Arc::clone(&wait);
        async move {
            read_request(&mut io).await.unwrap();
            io.write_all(SSE_RESPONSE_HEAD.as_bytes()).await.unwrap();
            for event in MESSAGE_EVENTS.split_inclusive("\n\n") {
                io.write_all(&encode_chunks(event.as_bytes(), usize::MAX >> 1)).await.unwrap();
                wait.notified().await;
            }
            io.write_all(b"0\r\n\r\n").await.unwrap();
        }
    })
    .await;
    let gateway = TestGateway::for_url(&provider.url());
    let mut response = into_stream(gateway.handle_request(inspected_request(MESSAGES_PATH)).await);
    for event in MESSAGE_EVENTS.split_inclusive("\n\n") {
        assert_eq!(with_timeout(response.next()).await.unwrap().unwrap(), event);
        go.notify_one();
    }
    assert_eq!(tokio::time::timeout(Duration::from_secs(5), response.next()).await.unwrap(), Ok(None));
}
