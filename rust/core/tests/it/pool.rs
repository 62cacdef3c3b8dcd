//! Connections to a provider are used again, but never one that could give the wrong answer or none.

use std::time::Duration;

use crate::harness::{
    CHAT, Rig, chat, get, in_time,
    scripted::{CHAT_EVENTS, Scripted, events, request, whole},
    stream, stream_of, until,
};
use penstock_mock::Server;
use tokio::{io::AsyncWriteExt, time::sleep};

#[tokio::test]
async fn a_connection_is_used_again_after_every_good_answer() {
    for (answer, ask) in [
        (whole("200 OK", "", "{}"), chat as fn(&str) -> crate::harness::Ask),
        (whole("429 Too Many Requests", "", "{}"), chat),
        (events(CHAT_EVENTS.as_bytes(), 50), |model| stream(CHAT, model)),
        (b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), |_| get("/v1/files")),
        (whole("200 OK", "", &"x".repeat(2_000_000)), chat),
    ] {
        let provider = Scripted::answering(answer).await;
        let rig = Rig::at(&provider.url());
        for _ in 0..4 {
            assert!(!rig.send(ask("m")).await.cut);
        }
        assert_eq!((provider.connections(), rig.gateway.upstream.idle_connection_count()), (1, 1));
    }
}

#[tokio::test]
async fn an_answer_to_head_leaves_the_connection_in_step() {
    let provider = Scripted::answering("HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n").await;
    let rig = Rig::at(&provider.url());
    for _ in 0..3 {
        let told = rig.send(crate::harness::Ask::new("HEAD", "/v1/files").header("x-gateway-provider", "mock")).await;
        assert_eq!((told.status, told.header("content-length"), told.body.len()), (200, Some("500"), 0));
    }
    assert_eq!(provider.connections(), 1);
}

#[tokio::test]
async fn requests_at_once_have_a_connection_each_and_share_them_later() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for _ in 0..3 {
        let asked: Vec<_> = (0..8)
            .map(|_| {
                let gateway = std::sync::Arc::clone(&rig.gateway);
                tokio::spawn(async move { gateway.handle(chat("mock?first_ms=30").request()).await.head.status })
            })
            .collect();
        for answer in asked {
            assert_eq!(in_time(answer).await.unwrap(), 200);
        }
        assert_eq!(rig.gateway.upstream.idle_connection_count(), 8);
    }
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_fails_nobody() {
    let provider = Scripted::closing(whole("200 OK", "", "{}")).await;
    let rig = Rig::at(&provider.url());
    for _ in 0..5 {
        assert_eq!(rig.send(chat("m")).await.status, 200);
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(provider.connections(), 5);
}

/// Closes its first connection at the second request, having read it.
async fn closes_late() -> Scripted {
    Scripted::start(|mut io, before| async move {
        let mut answered = 0;
        while request(&mut io).await.is_some() && (before > 0 || answered == 0) {
            io.write_all(&whole("200 OK", "", "{}")).await.unwrap();
            answered += 1;
        }
    })
    .await
}

#[tokio::test]
async fn what_may_be_sent_twice_is_sent_again_when_a_kept_connection_closes() {
    for again in [get("/v1/models"), chat("m").header("idempotency-key", "i-1")] {
        let provider = closes_late().await;
        let rig = Rig::at(&provider.url());
        rig.send(get("/v1/models")).await;
        assert_eq!(rig.send(again).await.status, 200);
        assert_eq!(provider.connections(), 2);
    }
}

#[tokio::test]
async fn what_may_not_be_sent_twice_is_not() {
    let provider = closes_late().await;
    let rig = Rig::at(&provider.url());
    rig.send(get("/v1/models")).await;
    let told = rig.send(chat("m")).await;
    assert_eq!((told.status, told.code().as_str()), (502, "upstream_broke"));
    assert_eq!(provider.connections(), 1);
}

#[tokio::test]
async fn a_connection_is_not_used_again_after_a_broken_answer() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.idle_timeout_ms = 100);
    for fault in ["cut", "cut_reset", "bad_framing", "stall", "half_close", "short_length", "long_length", "reset"] {
        for ask in [chat as fn(&str) -> crate::harness::Ask, |model| stream(CHAT, model)] {
            rig.send(ask(&format!("mock?fault={fault}"))).await;
            assert_eq!(rig.gateway.upstream.idle_connection_count(), 0, "{fault}");
            assert_eq!(rig.send(chat("mock")).await.status, 200, "{fault}");
            // Take the good one away, so that the next fault has a connection of its own.
            rig.send(chat("mock?fault=reset")).await;
        }
    }
}

#[tokio::test]
async fn a_connection_is_not_used_again_where_the_provider_says_so() {
    for answer in [
        whole("200 OK", "connection: close\r\n", "{}"),
        whole("200 OK", "Connection: Foo, Close\r\n", "{}"),
        b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}".to_vec(),
    ] {
        // It stays open all the same.
        let provider = Scripted::answering(answer).await;
        let rig = Rig::at(&provider.url());
        for _ in 0..3 {
            assert_eq!(rig.send(chat("m")).await.status, 200);
        }
        assert_eq!((provider.connections(), rig.gateway.upstream.idle_connection_count()), (3, 0));
    }
}

#[tokio::test]
async fn a_stream_that_nobody_read_to_its_end_takes_its_connection_with_it() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut answer = stream_of(rig.open(stream(CHAT, "mock?chunks=50&chunk_ms=20")).await);
    in_time(answer.next()).await.unwrap();
    drop(answer);
    assert_eq!(rig.gateway.upstream.idle_connection_count(), 0);
    assert_eq!(rig.send(chat("mock")).await.json()["object"], "chat.completion");
}

#[tokio::test]
async fn an_answer_that_nobody_asked_for_is_nobodys_answer() {
    let poison = whole("200 OK", "", "\"poison\"");
    let good = whole("200 OK", "", "\"good\"");
    // In the same packet as the good one, and some time after it.
    for pause in [0, 10] {
        let (good, poison) = (good.clone(), poison.clone());
        let provider = Scripted::start(move |mut io, _| {
            let (good, poison) = (good.clone(), poison.clone());
            async move {
                while request(&mut io).await.is_some() {
                    if pause == 0 {
                        io.write_all(&[good.as_slice(), &poison].concat()).await.unwrap();
                    } else {
                        io.write_all(&good).await.unwrap();
                        sleep(Duration::from_millis(pause)).await;
                        io.write_all(&poison).await.unwrap();
                    }
                }
            }
        })
        .await;
        let rig = Rig::at(&provider.url());
        for _ in 0..3 {
            assert_eq!(rig.send(chat("m")).await.text(), "\"good\"");
            sleep(Duration::from_millis(pause * 3)).await;
        }
        assert_eq!(provider.connections(), 3);
    }
}

#[tokio::test]
async fn providers_do_not_share_connections() {
    let (one, two) = (Server::start().await, Server::start().await);
    let rig = Rig::with(&one.url(), |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    for _ in 0..2 {
        rig.send(chat("mock")).await;
        rig.send(chat("mock").header("x-gateway-custom-host", &format!("{}/v1", two.url()))).await;
    }
    assert_eq!((one.ledger_entries().len(), two.ledger_entries().len()), (2, 2));
    assert_eq!(rig.gateway.upstream.idle_connection_count(), 2);
    drop(two);
    // What a provider closed is forgotten when it is next looked for, and found out without a request.
    until("the closed one is seen", || {
        rig.gateway.upstream.close_expired();
        true
    })
    .await;
    assert_eq!(rig.send(chat("mock")).await.status, 200);
}
