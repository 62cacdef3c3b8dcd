//! Connection pool. Connections to a provider are reused, but never one that could deliver a wrong response or none.

use std::{sync::Arc, time::Duration};

use crate::harness::{
    CHAT_PATH, TestGateway, chat_request, get_request, into_stream,
    scripted::{CHAT_EVENTS, ScriptedServer, json_response, read_request, sse_response},
    stream_request, wait_until, with_timeout,
};
use penstock_mock::Server;
use tokio::{io::AsyncWriteExt, sync::Notify, time::sleep};

#[tokio::test]
async fn connection_is_reused_after_every_complete_response() {
    for (answer, ask) in [
        (json_response("200 OK", "", "{}"), chat_request as fn(&str) -> crate::harness::TestRequest),
        (json_response("429 Too Many Requests", "", "{}"), chat_request),
        (sse_response(CHAT_EVENTS.as_bytes(), 50), |model| stream_request(CHAT_PATH, model)),
        (b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), |_| get_request("/v1/files")),
        (json_response("200 OK", "", &"x".repeat(2_000_000)), chat_request),
    ] {
        let provider = ScriptedServer::start_responding(answer).await;
        let rig = TestGateway::for_url(&provider.url());
        for _ in 0..4 {
            assert!(!rig.send(ask("m")).await.is_truncated);
        }
        assert_eq!((provider.connection_count(), rig.state.upstream.idle_connection_count()), (1, 1));
    }
}

#[tokio::test]
async fn connection_is_reused_after_a_head_response() {
    let provider = ScriptedServer::start_responding("HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n").await;
    let rig = TestGateway::for_url(&provider.url());
    for _ in 0..3 {
        let told =
            rig.send(crate::harness::TestRequest::new("HEAD", "/v1/files").header("x-gateway-provider", "mock")).await;
        assert_eq!((told.status, told.header("content-length"), told.body.len()), (200, Some("500"), 0));
    }
    assert_eq!(provider.connection_count(), 1);
}

#[tokio::test]
async fn concurrent_requests_open_connections_that_are_reused_later() {
    let provider = Server::start().await;
    let rig = TestGateway::for_provider(&provider);
    for _ in 0..3 {
        let asked: Vec<_> = (0..8)
            .map(|_| {
                let state = std::sync::Arc::clone(&rig.state);
                tokio::spawn(async move {
                    penstock_core::gateway::handle(&state, chat_request("mock?first_ms=30").build()).await.head.status
                })
            })
            .collect();
        for answer in asked {
            assert_eq!(with_timeout(answer).await.unwrap(), 200);
        }
        assert_eq!(rig.state.upstream.idle_connection_count(), 8);
    }
}

#[tokio::test]
async fn connection_closed_while_idle_fails_no_request() {
    let provider = ScriptedServer::start_closing_after_response(json_response("200 OK", "", "{}")).await;
    let rig = TestGateway::for_url(&provider.url());
    for _ in 0..5 {
        assert_eq!(rig.send(chat_request("m")).await.status, 200);
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(provider.connection_count(), 5);
}

/// Starts a provider that reads the second request on its first connection and then closes it without a response.
async fn start_late_closing_provider() -> ScriptedServer {
    ScriptedServer::start(|mut io, before| async move {
        let mut answered = 0;
        while read_request(&mut io).await.is_some() && (before > 0 || answered == 0) {
            io.write_all(&json_response("200 OK", "", "{}")).await.unwrap();
            answered += 1;
        }
    })
    .await
}

#[tokio::test]
async fn idempotent_request_is_resent_if_a_pooled_connection_closes() {
    for again in [get_request("/v1/models"), chat_request("m").header("idempotency-key", "i-1")] {
        let provider = start_late_closing_provider().await;
        let rig = TestGateway::for_url(&provider.url());
        rig.send(get_request("/v1/models")).await;
        assert_eq!(rig.send(again).await.status, 200);
        assert_eq!(provider.connection_count(), 2);
    }
}

#[tokio::test]
async fn non_idempotent_request_is_not_resent() {
    let provider = start_late_closing_provider().await;
    let rig = TestGateway::for_url(&provider.url());
    rig.send(get_request("/v1/models")).await;
    let told = rig.send(chat_request("m")).await;
    assert_eq!((told.status, told.error_code().as_str()), (502, "upstream_disconnected"));
    assert_eq!(provider.connection_count(), 1);
}

#[tokio::test]
async fn connection_is_not_reused_after_a_broken_response() {
    let provider = Server::start().await;
    let rig = TestGateway::with_settings(&provider.url(), |settings| settings.idle_timeout_ms = 100);
    for fault in ["cut", "cut_reset", "invalid_framing", "stall", "half_close", "short_length", "long_length", "reset"]
    {
        for ask in [chat_request as fn(&str) -> crate::harness::TestRequest, |model| stream_request(CHAT_PATH, model)] {
            rig.send(ask(&format!("mock?fault={fault}"))).await;
            assert_eq!(rig.state.upstream.idle_connection_count(), 0, "{fault}");
            assert_eq!(rig.send(chat_request("mock")).await.status, 200, "{fault}");
            // Close the healthy connection, so that the next fault uses a new one.
            rig.send(chat_request("mock?fault=reset")).await;
        }
    }
}

#[tokio::test]
async fn connection_is_not_reused_if_the_provider_forbids_it() {
    for answer in [
        json_response("200 OK", "connection: close\r\n", "{}"),
        json_response("200 OK", "Connection: Foo, Close\r\n", "{}"),
        b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}".to_vec(),
    ] {
        // The provider keeps the connection open all the same.
        let provider = ScriptedServer::start_responding(answer).await;
        let rig = TestGateway::for_url(&provider.url());
        for _ in 0..3 {
            assert_eq!(rig.send(chat_request("m")).await.status, 200);
        }
        assert_eq!((provider.connection_count(), rig.state.upstream.idle_connection_count()), (3, 0));
    }
}

#[tokio::test]
async fn dropped_stream_closes_its_connection() {
    let provider = Server::start().await;
    let rig = TestGateway::for_provider(&provider);
    let mut answer = into_stream(rig.handle_request(stream_request(CHAT_PATH, "mock?chunks=50&chunk_ms=20")).await);
    with_timeout(answer.next()).await.unwrap();
    drop(answer);
    assert_eq!(rig.state.upstream.idle_connection_count(), 0);
    assert_eq!(rig.send(chat_request("mock")).await.json()["object"], "chat.completion");
}

#[tokio::test]
async fn unsolicited_response_is_never_delivered() {
    let poison = json_response("200 OK", "", "\"poison\"");
    let good = json_response("200 OK", "", "\"good\"");
    // The extra response arrives in the same packet as the good one, or some time after it.
    for pause in [0, 10] {
        let (good, poison) = (good.clone(), poison.clone());
        let poison_sent = Arc::new(Notify::new());
        let sent = Arc::clone(&poison_sent);
        let provider = ScriptedServer::start(move |mut io, _| {
            let (good, poison, sent) = (good.clone(), poison.clone(), Arc::clone(&sent));
            async move {
                while read_request(&mut io).await.is_some() {
                    if pause == 0 {
                        io.write_all(&[good.as_slice(), &poison].concat()).await.unwrap();
                    } else {
                        io.write_all(&good).await.unwrap();
                        sleep(Duration::from_millis(pause)).await;
                        io.write_all(&poison).await.unwrap();
                    }
                    sent.notify_one();
                }
            }
        })
        .await;
        let rig = TestGateway::for_url(&provider.url());
        for _ in 0..3 {
            assert_eq!(rig.send(chat_request("m")).await.text(), "\"good\"");
            with_timeout(poison_sent.notified()).await;
            sleep(Duration::from_millis(pause)).await;
        }
        assert_eq!(provider.connection_count(), 3);
    }
}

#[tokio::test]
async fn providers_do_not_share_connections() {
    let (one, two) = (Server::start().await, Server::start().await);
    let rig =
        TestGateway::with_settings(&one.url(), |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    for _ in 0..2 {
        rig.send(chat_request("mock")).await;
        rig.send(chat_request("mock").header("x-gateway-custom-host", &format!("{}/v1", two.url()))).await;
    }
    assert_eq!((one.ledger_entries().len(), two.ledger_entries().len()), (2, 2));
    assert_eq!(rig.state.upstream.idle_connection_count(), 2);
    drop(two);
    // The next check of the pool drops a connection that the provider closed. This needs no request.
    wait_until("the closed one is seen", || {
        rig.state.upstream.close_expired();
        true
    })
    .await;
    assert_eq!(rig.send(chat_request("mock")).await.status, 200);
}
