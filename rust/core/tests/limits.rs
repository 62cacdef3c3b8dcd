//! What is bounded: requests at once, and records that wait.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

mod harness;

use std::{sync::Arc, time::Duration};

use harness::{CHAT, Rig, chat, in_time, pick, stream, stream_of, until};
use penstock_mock::Server;
use serde_json::json;

#[tokio::test]
async fn one_request_too_many_is_told_to_come_again() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.max_in_flight = 2);
    let held: Vec<_> = (0..2)
        .map(|_| {
            let gateway = Arc::clone(&rig.gateway);
            tokio::spawn(async move { gateway.handle(chat("mock?first_ms=150").request()).await.reply.status })
        })
        .collect();
    until("both are under way", || provider.ledger().len() == 2).await;
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
    assert_eq!(provider.ledger().len(), 3);
}

#[tokio::test]
async fn an_open_stream_counts_until_its_end_or_until_it_is_dropped() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.max_in_flight = 1);
    let ends = stream_of(rig.open(stream(CHAT, "mock")).await);
    assert_eq!(rig.send(chat("mock")).await.status, 503);
    harness::drain(ends).await;
    assert_eq!(rig.send(chat("mock")).await.status, 200);
    let dropped = stream_of(rig.open(stream(CHAT, "mock?chunk_ms=100")).await);
    assert_eq!(rig.send(chat("mock")).await.status, 503);
    drop(dropped);
    assert_eq!(rig.send(chat("mock")).await.status, 200);
}

#[tokio::test]
async fn paths_of_our_own_are_answered_however_full_it_is() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.max_in_flight = 0);
    assert_eq!(rig.send(chat("mock")).await.status, 503);
    for path in ["/live", "/ready"] {
        assert_eq!(rig.send(harness::get(path)).await.status, 200);
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
    let outbox = &rig.gateway.sink.outbox;
    assert!(outbox.accepted() >= 3 && outbox.dropped() > 0, "{} {}", outbox.accepted(), outbox.dropped());
    assert_eq!(outbox.accepted() + outbox.dropped(), 50);
    assert!(outbox.held() < limit + 2_000, "{}", outbox.held());
    // What was taken but not acknowledged still counts.
    let taken = outbox.take().unwrap();
    assert_eq!(harness::lines(&taken).len() as u64, outbox.accepted());
    rig.send(chat("mock")).await;
    assert_eq!(outbox.accepted() + outbox.dropped(), 51);
    assert!(outbox.take().is_none());
    outbox.acknowledge(taken);
    rig.send(chat("mock")).await;
    assert_eq!(rig.records().len(), 1);
    assert_eq!(outbox.held(), 0);
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
                harness::Told::read(answer).await
            })
        })
        .collect();
    for told in streams {
        let told = in_time(told).await.unwrap();
        assert!(!told.cut && told.body.ends_with(b"data: [DONE]\n\n"));
    }
    assert_eq!(rig.records().len(), 200);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(rig.gateway.sink.metrics.in_flight(), 0);
}
