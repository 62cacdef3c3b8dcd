//! What is bounded: requests at once, what of their bodies is held, and records that wait.

use std::{sync::Arc, time::Duration};

use crate::harness::{CHAT, MESSAGES, Rig, chat, in_time, pick, post, stream, stream_of, until, words};
use bytes::Bytes;
use penstock_core::ingress::body::{Body, BodyEnd, feed_channel};
use penstock_mock::Server;
use serde_json::json;

#[tokio::test]
async fn one_request_too_many_is_told_to_come_again() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.max_in_flight = 2);
    let held: Vec<_> = (0..2)
        .map(|_| {
            let gateway = Arc::clone(&rig.gateway);
            tokio::spawn(async move { gateway.handle(chat("mock?first_ms=150").request()).await.head.status })
        })
        .collect();
    until("both are under way", || provider.ledger_entries().len() == 2).await;
    for _ in 0..3 {
        let told = rig.send(chat("mock")).await;
        assert_eq!((told.status, told.code().as_str()), (503, "overloaded"));
        assert_eq!(told.header("retry-after"), Some("1"));
        assert_eq!(pick(&rig.record(), ["outcome", "error"]), json!(["refused", "overloaded"]));
    }
    for answer in held {
        assert_eq!(in_time(answer).await.unwrap(), 200);
    }
    assert_eq!(rig.send(chat("mock")).await.status, 200);
    assert_eq!(provider.ledger_entries().len(), 3);
}

#[tokio::test]
async fn an_open_stream_counts_until_its_end_or_until_it_is_dropped() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.max_in_flight = 1);
    let ends = stream_of(rig.open(stream(CHAT, "mock")).await);
    assert_eq!(rig.send(chat("mock")).await.status, 503);
    crate::harness::drain(ends).await;
    assert_eq!(rig.send(chat("mock")).await.status, 200);
    let dropped = stream_of(rig.open(stream(CHAT, "mock?chunk_ms=100")).await);
    assert_eq!(rig.send(chat("mock")).await.status, 503);
    drop(dropped);
    assert_eq!(rig.send(chat("mock")).await.status, 200);
}

#[tokio::test]
async fn bodies_that_are_held_whole_share_a_room_and_who_finds_none_is_told_to_come_again() {
    let provider = Server::start().await;
    let room = 2 * 1024 * 1024;
    let rig = Rig::with(&provider.url(), |settings| (settings.gathered_bytes, settings.max_body_bytes) = (room, room));
    let large = |model: &str, path: &str, pieces: bool| {
        let mut body = words(model, false).into_bytes();
        body.resize(room * 3 / 4, b' ');
        if !pieces {
            return post(path, body);
        }
        let (feeder, feed) = feed_channel(|| ());
        body.chunks(100_000)
            .for_each(|piece| assert!(feeder.push(Bytes::copy_from_slice(piece)) || feeder.is_paused()));
        feeder.finish(BodyEnd::Complete);
        post(path, "").with(Body::Streamed(feed, Some(body.len() as u64)))
    };
    let gateway = Arc::clone(&rig.gateway);
    let first = large("mock?first_ms=300", CHAT, true).request();
    let held = tokio::spawn(async move { gateway.handle(first).await.head.status });
    until("it is under way", || provider.ledger_entries().len() == 1).await;
    for (path, pieces) in [(CHAT, true), (CHAT, false), (MESSAGES, true)] {
        let told = rig.send(large("mock", path, pieces)).await;
        assert_eq!((told.status, told.header("retry-after")), (503, Some("1")), "{}", told.text());
        assert!(told.text().contains("limits.gathered_bytes"), "{}", told.text());
        assert_eq!(told.json()["type"] == "error", path == MESSAGES);
        assert_eq!(pick(&rig.record(), ["outcome", "error"]), json!(["refused", "no_room"]));
    }
    // Small ones, and those that are sent on as they come, need none of it.
    assert_eq!(rig.send(chat("mock")).await.status, 200);
    assert_eq!(rig.send(large("mock", "/v1/files", true)).await.status, 200);
    assert_eq!(rig.gateway.record_sink.metrics.bodies_rejected.get(), 3);
    assert_eq!(in_time(held).await.unwrap(), 200);
    rig.records();
    assert_eq!((rig.send(large("mock", CHAT, true)).await.status, rig.records().len()), (200, 1));
    assert_eq!(rig.gateway.shared.body_memory.used_bytes(), 0);
}

#[tokio::test]
async fn paths_of_our_own_are_answered_however_full_it_is() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.max_in_flight = 0);
    assert_eq!(rig.send(chat("mock")).await.status, 503);
    for path in ["/live", "/ready"] {
        assert_eq!(rig.send(crate::harness::get(path)).await.status, 200);
    }
}

#[tokio::test]
async fn records_that_do_not_fit_are_counted_and_cost_no_request() {
    let provider = Server::start().await;
    let limit = 4_000;
    let rig = Rig::with(&provider.url(), |settings| settings.outbox_bytes = limit);
    for _ in 0..50 {
        assert_eq!(rig.send(chat("mock")).await.status, 200);
    }
    let outbox = &rig.gateway.record_sink.outbox;
    assert!(
        outbox.accepted_lines() >= 3 && outbox.dropped_lines() > 0,
        "{} {}",
        outbox.accepted_lines(),
        outbox.dropped_lines()
    );
    assert_eq!(outbox.accepted_lines() + outbox.dropped_lines(), 50);
    assert!(outbox.unacknowledged_bytes() < limit + 2_000, "{}", outbox.unacknowledged_bytes());
    // What was taken but not acknowledged still counts.
    let taken = outbox.take_pending().unwrap();
    assert_eq!(crate::harness::lines(&taken).len() as u64, outbox.accepted_lines());
    rig.send(chat("mock")).await;
    assert_eq!(outbox.accepted_lines() + outbox.dropped_lines(), 51);
    assert!(outbox.take_pending().is_none());
    outbox.acknowledge(taken);
    rig.send(chat("mock")).await;
    assert_eq!(rig.records().len(), 1);
    assert_eq!(outbox.unacknowledged_bytes(), 0);
}

#[tokio::test]
async fn many_streams_at_once_all_end_well() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let streams: Vec<_> = (0..200)
        .map(|_| {
            let gateway = Arc::clone(&rig.gateway);
            tokio::spawn(async move {
                let answer = gateway.handle(stream(CHAT, "mock?chunks=5&chunk_ms=20").request()).await;
                crate::harness::Told::read(answer).await
            })
        })
        .collect();
    for told in streams {
        let told = in_time(told).await.unwrap();
        assert!(!told.cut && told.body.ends_with(b"data: [DONE]\n\n"));
    }
    assert_eq!(rig.records().len(), 200);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(rig.gateway.record_sink.metrics.in_flight(), 0);
}
