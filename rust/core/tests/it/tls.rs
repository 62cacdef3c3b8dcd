//! TLS to providers: the configured CA, host name verification, and detection of truncated connections.

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, chat_body, chat_body_with_usage, get_request, post_request,
    scripted_server::{CHAT_EVENTS, SSE_RESPONSE_HEAD, encode_chunks, json_response, read_request, sse_response},
    tls::{tls_acceptor, tls_file},
    with_timeout,
};
use penstock_net::body::{Body, ReaderState, feed_channel};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::server::TlsStream;

/// Listens on loopback with the test certificate. Returns the port and the count of completed handshakes.
async fn start_tls_provider<P, F>(serve: P) -> (u16, Arc<AtomicUsize>)
where
    P: Fn(TlsStream<TcpStream>) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let handshakes = Arc::new(AtomicUsize::new(0));
    let (acceptor, count) = (tls_acceptor(&[]), Arc::clone(&handshakes));
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(io).await {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(stream));
            }
        }
    });
    (port, handshakes)
}

async fn start_tls_responder(bytes: Vec<u8>) -> (u16, Arc<AtomicUsize>) {
    start_tls_provider(move |mut io| {
        let bytes = bytes.clone();
        async move { while read_request(&mut io).await.is_some() && io.write_all(&bytes).await.is_ok() {} }
    })
    .await
}

fn tls_gateway(trusts_authority: bool) -> TestGateway {
    TestGateway::with_settings("", |settings| {
        settings.trusted_custom_hosts = vec!["localhost".into(), "127.0.0.1".into()];
        settings.tls_ca = trusts_authority.then(|| tls_file("authority.pem"));
    })
}

fn tls_request(port: u16, stream: bool) -> TestRequest {
    post_request(CHAT_PATH, if stream { chat_body_with_usage("m") } else { chat_body("m", false) })
        .header("x-gateway-custom-host", &format!("https://localhost:{port}/v1"))
}

#[tokio::test]
async fn trusts_the_configured_ca_and_reuses_connections() {
    let gateway = tls_gateway(true);
    let (port, handshakes) = start_tls_responder(json_response("200 OK", "", "{\"ok\":true}")).await;
    for _ in 0..3 {
        let response = gateway.send(tls_request(port, false)).await;
        assert_eq!((response.status, response.text().as_str()), (200, "{\"ok\":true}"));
    }
    assert_eq!(handshakes.load(Ordering::Relaxed), 1);
    let (port, handshakes) = start_tls_responder(sse_response(CHAT_EVENTS.as_bytes(), 33)).await;
    for _ in 0..3 {
        assert_eq!(gateway.send(tls_request(port, true)).await.text(), CHAT_EVENTS);
    }
    assert_eq!(handshakes.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn unknown_ca_or_wrong_host_name_becomes_502() {
    let (port, handshakes) = start_tls_responder(json_response("200 OK", "", "{}")).await;
    let by_address = post_request(CHAT_PATH, chat_body("m", false))
        .header("x-gateway-custom-host", &format!("https://127.0.0.1:{port}"));
    for (gateway, request) in [(tls_gateway(false), tls_request(port, false)), (tls_gateway(true), by_address)] {
        let response = gateway.send(request).await;
        assert_eq!(
            (response.status, response.error_code().as_str()),
            (502, "upstream_connect_failed"),
            "{}",
            response.text()
        );
    }
    assert_eq!(handshakes.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_truncated_tls_connection_does_not_complete_a_body() {
    // The response has neither a length nor chunks: only a TLS close_notify distinguishes its end from truncation.
    let until_close = format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n{CHAT_EVENTS}").into_bytes();
    for sends_close_notify in [true, false] {
        let bytes = until_close.clone();
        let (port, _) = start_tls_provider(move |mut io| {
            let bytes = bytes.clone();
            async move {
                read_request(&mut io).await.unwrap();
                io.write_all(&bytes).await.unwrap();
                io.flush().await.unwrap();
                if sends_close_notify {
                    io.shutdown().await.unwrap();
                } else {
                    io.get_mut().0.shutdown().await.unwrap();
                }
                let _ = io.read_u8().await;
            }
        })
        .await;
        let reply = tls_gateway(true).send(tls_request(port, false)).await;
        assert_eq!((reply.text().as_str(), reply.is_truncated), (CHAT_EVENTS, !sends_close_notify));
    }
    let half = [SSE_RESPONSE_HEAD.as_bytes(), &encode_chunks(&CHAT_EVENTS.as_bytes()[..300], 100)].concat();
    let (port, _) = start_tls_provider(move |mut io| {
        let half = half.clone();
        async move {
            read_request(&mut io).await.unwrap();
            io.write_all(&half).await.unwrap();
        }
    })
    .await;
    let reply = tls_gateway(true).send(tls_request(port, true)).await;
    assert_eq!(reply.last_event().1["error"]["code"], "upstream_disconnected");
}

#[tokio::test]
async fn sends_a_large_body_and_accepts_an_early_rejection() {
    let json = format!(r#"{{"model":"m","x":"{}"}}"#, "y".repeat(10_000_000));
    let gateway = tls_gateway(true);
    let (port, _) = start_tls_responder(json_response("200 OK", "", "{}")).await;
    let host = |port| format!("https://localhost:{port}");
    let response =
        gateway.send(post_request(CHAT_PATH, json.clone()).header("x-gateway-custom-host", &host(port))).await;
    assert_eq!((response.status, response.text().as_str()), (200, "{}"));
    let (port, _) = start_tls_provider(|mut io| async move {
        let mut some = [0; 1000];
        io.read_exact(&mut some).await.unwrap();
        io.write_all(&json_response("413 Payload Too Large", "connection: close\r\n", "\"too large\"")).await.unwrap();
        io.flush().await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let response = gateway.send(post_request(CHAT_PATH, json).header("x-gateway-custom-host", &host(port))).await;
    assert_eq!((response.status, response.json()["error"]["message"].as_str()), (413, Some("mock error: too large")));
}

#[tokio::test]
async fn accepts_an_early_rejection_while_tls_buffers_the_upload() {
    let (port, _) = start_tls_provider(|mut io| async move {
        let mut some = [0; 1000];
        io.read_exact(&mut some).await.unwrap();
        // Before the response, the socket fills up and the last chunk waits in the TLS buffer.
        tokio::time::sleep(Duration::from_millis(200)).await;
        io.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
        io.write_all(&json_response("413 Payload Too Large", "connection: close\r\n", "\"too large\"")).await.unwrap();
        io.flush().await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let (feeder, fed) = feed_channel(|| ());
    let request = post_request("/v1/files", "").header("x-gateway-custom-host", &format!("https://localhost:{port}"));
    let feeding = tokio::spawn(async move {
        while feeder.reader_state() == ReaderState::Reading {
            if !feeder.is_paused() {
                feeder.push(vec![b'y'; 16 * 1024].into());
            }
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    });
    assert_eq!(tls_gateway(true).send(request.with_body(Body::Streamed(fed, None))).await.status, 413);
    with_timeout(feeding).await.unwrap();
}

#[tokio::test]
async fn does_not_reuse_a_connection_with_surplus_tls_data() {
    // The first TLS record is as large as one read of a response's start; the surplus response follows in the next
    // record.
    let head =
        |length: usize| format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n");
    let length = 16_384 - head(16_000).len();
    let first = [head(length).into_bytes(), vec![b'x'; length]].concat();
    let stray = json_response("200 OK", "", "\"stray\"");
    let (port, handshakes) = start_tls_provider(move |mut io| {
        let (first, stray) = (first.clone(), stray.clone());
        async move {
            while read_request(&mut io).await.is_some() {
                let (socket, session) = io.get_mut();
                session.writer().write_all(&first).unwrap();
                session.writer().write_all(&stray).unwrap();
                let mut records = Vec::new();
                while session.wants_write() {
                    session.write_tls(&mut records).unwrap();
                }
                socket.write_all(&records).await.unwrap();
            }
        }
    })
    .await;
    let gateway = tls_gateway(true);
    for number in 1..=3 {
        let reply = gateway
            .send(get_request("/v1/proxy/x").header("x-gateway-custom-host", &format!("https://localhost:{port}")))
            .await;
        assert_eq!((reply.body.len(), handshakes.load(Ordering::Relaxed)), (length, number));
    }
}

#[tokio::test]
async fn reports_an_unreadable_ca_file_at_startup() {
    for path in ["/nonexistent.pem", "Cargo.toml"] {
        let settings = penstock_core::process::settings::Settings { tls_ca: Some(path.into()), ..Default::default() };
        let problems = penstock_core::gateway_state::GatewayState::new(settings).err().expect("a problem");
        assert_eq!(problems[0].path, "$.tls_ca", "{problems:?}");
    }
}
