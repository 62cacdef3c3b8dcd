//! Limits of the gateway: concurrent requests, memory for buffered bodies, and records that wait in the outbox.

use std::{sync::Arc, time::Duration};

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, chat_body, chat_request, into_stream, pick_fields, post_request,
    stream_request, wait_until, with_timeout,
};
use bytes::Bytes;
use penstock_mock::Server;
use penstock_net::body::{Body, BodyEnd, feed_channel};
use serde_json::json;

#[tokio::test]
async fn rejects_requests_above_max_in_flight() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.max_in_flight = 2);
    let pending_request: Vec<_> = (0..2)
        .map(|_| {
            let state = Arc::clone(&gateway.state);
            tokio::spawn(async move {
                penstock_core::gateway::handle(&state, chat_request("mock?first_ms=150").build()).await.head.status
            })
        })
        .collect();
    wait_until("both are under way", || provider.ledger_entries().len() == 2).await;
    for _ in 0..3 {
        let response = gateway.send(chat_request("mock")).await;
        assert_eq!((response.status, response.error_code().as_str()), (503, "overloaded"));
        assert_eq!(response.header("retry-after"), Some("1"));
        assert_eq!(pick_fields(&gateway.single_record(), ["outcome", "error"]), json!(["refused", "overloaded"]));
    }
    for reply in pending_request {
        assert_eq!(with_timeout(reply).await.unwrap(), 200);
    }
    assert_eq!(gateway.send(chat_request("mock")).await.status, 200);
    assert_eq!(provider.ledger_entries().len(), 3);
}

#[tokio::test]
async fn open_stream_counts_as_in_flight_until_end_or_drop() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.max_in_flight = 1);
    let ends = into_stream(gateway.handle_request(stream_request(CHAT_PATH, "mock")).await);
    assert_eq!(gateway.send(chat_request("mock")).await.status, 503);
    crate::harness::read_stream(ends).await;
    assert_eq!(gateway.send(chat_request("mock")).await.status, 200);
    let dropped = into_stream(gateway.handle_request(stream_request(CHAT_PATH, "mock?chunk_ms=100")).await);
    assert_eq!(gateway.send(chat_request("mock")).await.status, 503);
    drop(dropped);
    assert_eq!(gateway.send(chat_request("mock")).await.status, 200);
}

#[tokio::test]
async fn rejects_bodies_when_the_memory_budget_is_exhausted() {
    let provider = Server::start().await;
    let max_buffer_bytes = 2 * 1024 * 1024;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        (settings.buffered_body_bytes, settings.max_body_bytes) = (max_buffer_bytes, max_buffer_bytes);
    });
    let large = |model: &str, path: &str, chunks: bool| {
        let mut body = chat_body(model, false).into_bytes();
        body.resize(max_buffer_bytes * 3 / 4, b' ');
        if !chunks {
            return post_request(path, body);
        }
        let (feeder, feed) = feed_channel(|| ());
        body.chunks(100_000)
            .for_each(|chunk| assert!(feeder.push(Bytes::copy_from_slice(chunk)) || feeder.is_paused()));
        feeder.finish(BodyEnd::Complete);
        post_request(path, "").with_body(Body::Streamed(feed, Some(body.len() as u64)))
    };
    let state = Arc::clone(&gateway.state);
    let first = large("mock?first_ms=300", CHAT_PATH, true).build();
    let pending_request = tokio::spawn(async move { penstock_core::gateway::handle(&state, first).await.head.status });
    wait_until("it is under way", || provider.ledger_entries().len() == 1).await;
    for (path, chunks) in [(CHAT_PATH, true), (CHAT_PATH, false), (MESSAGES_PATH, true)] {
        let response = gateway.send(large("mock", path, chunks)).await;
        assert_eq!((response.status, response.header("retry-after")), (503, Some("1")), "{}", response.text());
        assert!(response.text().contains("limits.buffered_body_bytes"), "{}", response.text());
        assert_eq!(response.json()["type"] == "error", path == MESSAGES_PATH);
        assert_eq!(pick_fields(&gateway.single_record(), ["outcome", "error"]), json!(["refused", "memory_exhausted"]));
    }
    // Small bodies, and bodies that are forwarded as they arrive, do not use the memory budget.
    assert_eq!(gateway.send(chat_request("mock")).await.status, 200);
    assert_eq!(gateway.send(large("mock", "/v1/files", true)).await.status, 200);
    assert_eq!(gateway.state.record_sink.metrics.bodies_rejected.get(), 3);
    assert_eq!(with_timeout(pending_request).await.unwrap(), 200);
    gateway.drain_records();
    assert_eq!((gateway.send(large("mock", CHAT_PATH, true)).await.status, gateway.drain_records().len()), (200, 1));
    assert_eq!(gateway.state.shared.body_memory.used_bytes(), 0);
}

#[tokio::test]
async fn health_paths_respond_under_overload() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.max_in_flight = 0);
    assert_eq!(gateway.send(chat_request("mock")).await.status, 503);
    for path in ["/live", "/ready"] {
        assert_eq!(gateway.send(crate::harness::get_request(path)).await.status, 200);
    }
}

#[tokio::test]
async fn records_above_the_outbox_limit_are_dropped_and_counted() {
    let provider = Server::start().await;
    let limit = 8_000;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.outbox_bytes = limit);
    for _ in 0..50 {
        assert_eq!(gateway.send(chat_request("mock")).await.status, 200);
    }
    let outbox = &gateway.state.record_sink.outbox;
    assert!(
        outbox.accepted_lines() >= 3 && outbox.dropped_lines() > 0,
        "{} {}",
        outbox.accepted_lines(),
        outbox.dropped_lines()
    );
    assert_eq!(outbox.accepted_lines() + outbox.dropped_lines(), 50);
    assert!(outbox.unacknowledged_bytes() < limit + 2_000, "{}", outbox.unacknowledged_bytes());
    // Records that were taken but not acknowledged still count towards the limit.
    let pending = outbox.take_pending().unwrap();
    assert_eq!(crate::harness::parse_json_lines(&pending).len() as u64, outbox.accepted_lines());
    gateway.send(chat_request("mock")).await;
    assert_eq!(outbox.accepted_lines() + outbox.dropped_lines(), 51);
    assert!(outbox.take_pending().is_none());
    outbox.acknowledge(pending);
    gateway.send(chat_request("mock")).await;
    assert_eq!(gateway.drain_records().len(), 1);
    assert_eq!(outbox.unacknowledged_bytes(), 0);
}

#[tokio::test]
async fn two_hundred_concurrent_streams_complete() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let streams: Vec<_> = (0..200)
        .map(|_| {
            let state = Arc::clone(&gateway.state);
            tokio::spawn(async move {
                let reply = penstock_core::gateway::handle(
                    &state,
                    stream_request(CHAT_PATH, "mock?chunks=5&chunk_ms=20").build(),
                )
                .await;
                crate::harness::TestResponse::read(reply).await
            })
        })
        .collect();
    for response in streams {
        let response = with_timeout(response).await.unwrap();
        assert!(!response.is_truncated && response.body.ends_with(b"data: [DONE]\n\n"));
    }
    assert_eq!(gateway.drain_records().len(), 200);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(gateway.state.record_sink.metrics.in_flight(), 0);
}
