//! Connection pool. Connections to a server are reused, but never one that could deliver a wrong response or none.

use std::{sync::Arc, time::Duration};

use crate::harness::{
    TestRequest,
    scripted::{ScriptedServer, encode_chunks, json_response, read_request, sse_response},
    send, test_client, test_settings, with_timeout,
};
use penstock_net::{BaseUrl, Error, Settings, Upstream};
use tokio::{io::AsyncWriteExt, sync::Notify, time::sleep};

#[tokio::test]
async fn connection_is_reused_after_every_complete_response() {
    for (response, request) in [
        (json_response("200 OK", "", "{}"), TestRequest::post as fn() -> TestRequest),
        (json_response("429 Too Many Requests", "", "{}"), TestRequest::post),
        (sse_response("data: x\n\n".repeat(100).as_bytes(), 50), TestRequest::post),
        (b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), TestRequest::get),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n".to_vec(), TestRequest::head),
        (json_response("200 OK", "", &"x".repeat(2_000_000)), TestRequest::post),
    ] {
        let server = ScriptedServer::start_responding(response).await;
        let client = test_client();
        for _ in 0..4 {
            assert!(send(&client, &server.url(), request()).await.unwrap().error.is_none());
        }
        assert_eq!((server.connection_count(), client.idle_connection_count()), (1, 1));
    }
}

#[tokio::test]
async fn concurrent_requests_open_connections_that_are_reused_later() {
    let server = ScriptedServer::start(|mut io, _| async move {
        while read_request(&mut io).await.is_some() {
            sleep(Duration::from_millis(30)).await;
            io.write_all(&json_response("200 OK", "", "{}")).await.unwrap();
        }
    })
    .await;
    let client = Arc::new(test_client());
    for _ in 0..3 {
        let pending: Vec<_> = (0..8)
            .map(|_| {
                let (client, url) = (Arc::clone(&client), server.url());
                tokio::spawn(async move { send(&client, &url, TestRequest::post()).await.unwrap().status })
            })
            .collect();
        for response in pending {
            assert_eq!(with_timeout(response).await.unwrap(), 200);
        }
        assert_eq!((server.connection_count(), client.idle_connection_count()), (8, 8));
    }
}

#[tokio::test]
async fn connection_closed_while_idle_fails_no_request() {
    let server = ScriptedServer::start_closing_after_response(json_response("200 OK", "", "{}")).await;
    let client = test_client();
    for _ in 0..5 {
        assert_eq!(send(&client, &server.url(), TestRequest::post()).await.unwrap().status, 200);
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(server.connection_count(), 5);
}

/// Starts a server that reads the second request on its first connection and then closes it without a response.
async fn start_late_closing_server() -> ScriptedServer {
    ScriptedServer::start(|mut io, before| async move {
        let mut responses = 0;
        while read_request(&mut io).await.is_some() && (before > 0 || responses == 0) {
            io.write_all(&json_response("200 OK", "", "{}")).await.unwrap();
            responses += 1;
        }
    })
    .await
}

#[tokio::test]
async fn replayable_request_is_resent_if_a_pooled_connection_closes() {
    for again in [TestRequest::get(), TestRequest::post().replayable()] {
        let server = start_late_closing_server().await;
        let client = test_client();
        send(&client, &server.url(), TestRequest::get()).await.unwrap();
        assert_eq!(send(&client, &server.url(), again).await.unwrap().status, 200);
        assert_eq!(server.connection_count(), 2);
    }
}

#[tokio::test]
async fn other_request_is_not_resent() {
    let server = start_late_closing_server().await;
    let client = test_client();
    send(&client, &server.url(), TestRequest::get()).await.unwrap();
    let error = send(&client, &server.url(), TestRequest::post()).await.unwrap_err();
    assert!(matches!(error, Error::ResponseBroken { .. }), "{error:?}");
    assert_eq!(server.connection_count(), 1);
}

#[tokio::test]
async fn connection_is_not_reused_after_a_broken_response() {
    let chunked = |body: &[u8]| {
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", &encode_chunks(b"abcdef", 3)[..], body].concat()
    };
    let length = |count: usize| format!("HTTP/1.1 200 OK\r\ncontent-length: {count}\r\n\r\nabcdef").into_bytes();
    for (response, is_truncated) in [
        // The body stops before its end.
        (chunked(b""), true),
        (length(7), true),
        (chunked(b"x\r\n"), true),
        // Bytes follow the end of the body.
        (length(5), false),
        (chunked(b"0\r\n\r\nx"), false),
    ] {
        let server = ScriptedServer::start_responding(response).await;
        let settings = Settings { idle_timeout: Duration::from_millis(100), ..test_settings() };
        let client = Upstream::new(&settings).unwrap();
        for connections in 1..3 {
            let response = send(&client, &server.url(), TestRequest::get()).await.unwrap();
            assert_eq!((response.status, response.error.is_some()), (200, is_truncated), "{response:?}");
            assert!(response.text().starts_with("abcde"), "{response:?}");
            assert_eq!((server.connection_count(), client.idle_connection_count()), (connections, 0), "{response:?}");
        }
    }
}

#[tokio::test]
async fn connection_is_not_reused_if_the_server_forbids_it() {
    for response in [
        json_response("200 OK", "connection: close\r\n", "{}"),
        json_response("200 OK", "Connection: Foo, Close\r\n", "{}"),
        b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}".to_vec(),
    ] {
        // The server keeps the connection open, so only the client's own checks prevent its reuse.
        let server = ScriptedServer::start_responding(response).await;
        let client = test_client();
        for _ in 0..3 {
            assert_eq!(send(&client, &server.url(), TestRequest::post()).await.unwrap().status, 200);
        }
        assert_eq!((server.connection_count(), client.idle_connection_count()), (3, 0));
    }
}

#[tokio::test]
async fn dropped_response_closes_its_connection() {
    let closed = Arc::new(Notify::new());
    let noted = Arc::clone(&closed);
    let server = ScriptedServer::start(move |mut io, _| {
        let noted = Arc::clone(&noted);
        async move {
            read_request(&mut io).await.unwrap();
            io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc").await.unwrap();
            assert!(read_request(&mut io).await.is_none());
            noted.notify_one();
        }
    })
    .await;
    let client = test_client();
    let origin = BaseUrl::parse(&server.url()).unwrap().origin;
    let mut incoming = with_timeout(client.send(&origin, TestRequest::get().render_for(&origin))).await.unwrap();
    assert_eq!(with_timeout(incoming.body.next_chunk()).await.unwrap().unwrap(), "abc");
    drop(incoming);
    with_timeout(closed.notified()).await;
    assert_eq!(client.idle_connection_count(), 0);
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
        let server = ScriptedServer::start(move |mut io, _| {
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
        let client = test_client();
        for _ in 0..3 {
            assert_eq!(send(&client, &server.url(), TestRequest::post()).await.unwrap().text(), "\"good\"");
            with_timeout(poison_sent.notified()).await;
            sleep(Duration::from_millis(pause)).await;
        }
        assert_eq!(server.connection_count(), 3);
    }
}

#[tokio::test]
async fn origins_do_not_share_connections() {
    let (first, two) = (
        ScriptedServer::start_responding(json_response("200 OK", "", "1")).await,
        ScriptedServer::start_responding(json_response("200 OK", "", "2")).await,
    );
    let client = test_client();
    for _ in 0..2 {
        assert_eq!(send(&client, &first.url(), TestRequest::get()).await.unwrap().text(), "1");
        assert_eq!(send(&client, &two.url(), TestRequest::get()).await.unwrap().text(), "2");
    }
    assert_eq!((first.connection_count(), two.connection_count(), client.idle_connection_count()), (1, 1, 2));
}
