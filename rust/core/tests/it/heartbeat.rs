//! Heartbeats of paused streams. A stream without pauses contains only the provider's bytes.

use std::time::Duration;

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestResponse, chat_body_with_usage, fetch_directly,
    scripted_server::{SSE_RESPONSE_HEAD, ScriptedServer, encode_chunks, read_request},
    stream_request,
};
use penstock_mock::Server;
use tokio::{io::AsyncWriteExt, time::sleep};

const HEARTBEAT_COMMENT: &str = ": keep-alive\n\n";
// Heartbeats may come up to a quarter earlier than configured, so the tests allow a quarter more of them.

fn gateway_with_heartbeat(url: &str, milliseconds: u64) -> TestGateway {
    TestGateway::with_settings(url, |settings| settings.heartbeat_ms = milliseconds)
}

fn strip_heartbeats(response: &TestResponse) -> String {
    response.text().replace(HEARTBEAT_COMMENT, "")
}

#[tokio::test]
async fn sends_heartbeats_in_every_pause_between_events() {
    let provider = Server::start().await;
    let gateway = gateway_with_heartbeat(&provider.url(), 20);
    for path in [CHAT_PATH, MESSAGES_PATH] {
        let model = "mock?chunks=3&chunk_ms=110";
        let response = gateway.send(stream_request(path, model)).await;
        let beats = response.text().matches(HEARTBEAT_COMMENT).count();
        assert!((6..=22).contains(&beats), "{beats} in {}", response.text());
        let original = fetch_directly(provider.addr, path, &chat_body_with_usage(model)).await;
        assert_eq!(strip_heartbeats(&response), String::from_utf8(original).unwrap());
        assert_eq!(gateway.single_record()["outcome"], "complete");
    }
}

#[tokio::test]
async fn forwards_stream_without_pauses_byte_for_byte() {
    let provider = Server::start().await;
    let gateway = gateway_with_heartbeat(&provider.url(), 500);
    let response = gateway.send(stream_request(CHAT_PATH, "mock?chunks=20&chunk_ms=5")).await;
    assert_eq!(
        response.body,
        fetch_directly(provider.addr, CHAT_PATH, &chat_body_with_usage("mock?chunks=20&chunk_ms=5")).await
    );
}

#[tokio::test]
async fn sends_heartbeats_before_the_first_event() {
    let provider = Server::start().await;
    let response = gateway_with_heartbeat(&provider.url(), 20)
        .send(stream_request(CHAT_PATH, "mock?fault=slow_first&first_ms=150"))
        .await;
    assert!(response.text().starts_with(HEARTBEAT_COMMENT), "{}", response.text());
    assert!(response.text().ends_with("data: [DONE]\n\n"));
}

/// Starts a provider whose stream pauses in the middle of the second event.
async fn start_pausing_provider(more: &'static str) -> ScriptedServer {
    ScriptedServer::start(move |mut io, _| async move {
        read_request(&mut io).await;
        let head = SSE_RESPONSE_HEAD.replacen("\r\n\r\n", &format!("\r\n{more}\r\n"), 1);
        io.write_all(head.as_bytes()).await.unwrap();
        io.write_all(&encode_chunks(b"data: {}\n\ndata: {\"half", 1000)).await.unwrap();
        sleep(Duration::from_millis(120)).await;
        io.write_all(&encode_chunks(b"\":1}\n\ndata: [DONE]\n\n", 1000)).await.unwrap();
        let _ = io.write_all(b"0\r\n\r\n").await;
    })
    .await
}

#[tokio::test]
async fn sends_heartbeats_before_a_partial_event() {
    let response =
        gateway_with_heartbeat(&start_pausing_provider("").await.url(), 20).send(stream_request(CHAT_PATH, "m")).await;
    let beats = response.text().matches(HEARTBEAT_COMMENT).count();
    assert!((2..=8).contains(&beats), "{}", response.text());
    let expected = format!("data: {{}}\n\n{}data: {{\"half\":1}}\n\ndata: [DONE]\n\n", HEARTBEAT_COMMENT.repeat(beats));
    assert_eq!(response.text(), expected);
}

#[tokio::test]
async fn no_heartbeats_if_compressed_proxied_or_disabled() {
    let slow = "mock?chunks=2&chunk_ms=100";
    let provider = Server::start().await;
    for (gateway, path) in [
        (gateway_with_heartbeat(&provider.url(), 20), "/v1/proxy/chat/completions"),
        (gateway_with_heartbeat(&provider.url(), 0), CHAT_PATH),
    ] {
        let response = gateway.send(stream_request(path, slow)).await;
        assert!(
            !response.text().contains(HEARTBEAT_COMMENT) && response.text().ends_with("[DONE]\n\n"),
            "{}",
            response.text()
        );
    }
    let response = gateway_with_heartbeat(&start_pausing_provider("content-encoding: br\r\n").await.url(), 20)
        .send(stream_request(CHAT_PATH, "m"))
        .await;
    assert!(
        !response.text().contains(HEARTBEAT_COMMENT) && response.text().ends_with("[DONE]\n\n"),
        "{}",
        response.text()
    );
}

#[tokio::test]
async fn heartbeats_do_not_extend_the_idle_timeout() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        settings.heartbeat_ms = 30;
        settings.idle_timeout_ms = 300;
    });
    // If heartbeats extended the timeout, the response would never end.
    let reply = gateway.send(stream_request(CHAT_PATH, "mock?fault=stall&after=2")).await;
    assert!(reply.text().contains(HEARTBEAT_COMMENT), "{}", reply.text());
    assert_eq!(reply.last_event().1["error"]["code"], "idle_timeout");
}
