//! Providers over HTTP/2: many streams on one connection, flow control per stream, and every way in which a stream or
//! connection ends.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, TestResponse, chat_body, chat_body_with_usage, into_stream, post_request,
    scripted_server::{CHAT_EVENTS, json_response, read_request},
    tls::{tls_acceptor, tls_file},
    wait_until, with_timeout,
};
use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream, server};
use http::{HeaderMap, Request, Response};
use penstock_core::process::settings::Settings;
use penstock_net::body::{self, Body, BodyEnd};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::sleep,
};
use tokio_rustls::server::TlsStream;

type ResponseSender = server::SendResponse<Bytes>;

/// Starts a TLS server on loopback that negotiates one of these protocols; `serve` gets every connection.
async fn start_tls_server<P, F>(protocols: &[&[u8]], serve: P) -> (u16, Arc<AtomicUsize>)
where
    P: Fn(TlsStream<TcpStream>) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (acceptor, connections) = (tls_acceptor(protocols), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            let stream = acceptor.accept(io).await.unwrap();
            tokio::spawn(serve(stream));
        }
    });
    (port, connections)
}

/// Starts an HTTP/2 provider; `serve` gets every request.
async fn start_http2_provider<P, F>(builder: server::Builder, serve: P) -> (u16, Arc<AtomicUsize>)
where
    P: Fn(Request<RecvStream>, ResponseSender) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    start_tls_server(&[b"h2"], move |stream| {
        let (builder, serve) = (builder.clone(), serve.clone());
        async move {
            let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
            while let Some(Ok((request, respond))) = connection.accept().await {
                tokio::spawn(serve(request, respond));
            }
        }
    })
    .await
}

fn gateway_trusting_localhost() -> TestGateway {
    gateway_with_settings(|_| ())
}

fn gateway_with_settings(change: impl FnOnce(&mut Settings)) -> TestGateway {
    TestGateway::with_settings("", |settings| {
        settings.trusted_custom_hosts = vec!["localhost".into()];
        settings.tls_ca = Some(tls_file("authority.pem"));
        change(settings);
    })
}

fn with_custom_host(port: u16, request: TestRequest) -> TestRequest {
    request.header("x-gateway-custom-host", &format!("https://localhost:{port}/v1"))
}

fn chat_request_to_port(port: u16) -> TestRequest {
    with_custom_host(port, post_request(CHAT_PATH, chat_body("m", false)))
}

fn stream_request_to_port(port: u16) -> TestRequest {
    with_custom_host(port, post_request(CHAT_PATH, chat_body_with_usage("m")))
}

fn response_head(kind: &str) -> Response<()> {
    Response::builder().header("content-type", kind).body(()).unwrap()
}

fn send_json(mut respond: ResponseSender, body: &'static str) {
    let mut stream = respond.send_response(response_head("application/json"), false).unwrap();
    stream.send_data(Bytes::from_static(body.as_bytes()), true).unwrap();
}

/// Reads a request's body to its end.
async fn read_body(mut body: RecvStream) -> Vec<u8> {
    let mut complete = Vec::new();
    while let Some(Ok(chunk)) = body.data().await {
        body.flow_control().release_capacity(chunk.len()).unwrap();
        complete.extend_from_slice(&chunk);
    }
    complete
}

/// Sends `many` requests concurrently.
async fn send_concurrently(gateway: &Arc<TestGateway>, port: u16, many: usize) -> Vec<TestResponse> {
    let request: Vec<_> = (0..many)
        .map(|_| {
            let gateway = Arc::clone(gateway);
            tokio::spawn(async move { gateway.send(chat_request_to_port(port)).await })
        })
        .collect();
    let mut response = Vec::with_capacity(many);
    for request in request {
        response.push(request.await.unwrap());
    }
    response
}

#[tokio::test]
async fn concurrent_requests_share_one_connection() {
    let (port, connections) = start_http2_provider(server::Builder::new(), |request, respond| async move {
        read_body(request.into_body()).await;
        sleep(Duration::from_millis(20)).await;
        send_json(respond, "{\"ok\":true}");
    })
    .await;
    let gateway = Arc::new(gateway_trusting_localhost());
    for _ in 0..2 {
        for response in send_concurrently(&gateway, port, 60).await {
            assert_eq!((response.status, response.text().as_str()), (200, "{\"ok\":true}"));
        }
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1);
    assert_eq!(gateway.state.upstream.idle_connection_count(), 1);
}

#[tokio::test]
async fn waiters_fail_with_a_timed_out_shared_connection() {
    // The handshake never ends. A request that tried a handshake of its own would also wait until the timeout.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let tried = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tried);
    tokio::spawn(async move {
        let mut streams = Vec::new();
        while let Ok((io, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            streams.push(io);
        }
    });
    let gateway = Arc::new(gateway_with_settings(|settings| settings.tls_timeout_ms = 400));
    let began = Instant::now();
    for response in send_concurrently(&gateway, port, 20).await {
        assert_eq!(
            (response.status, response.error_code().as_str()),
            (503, "upstream_connect_timeout"),
            "{}",
            response.text()
        );
    }
    assert!(began.elapsed() >= Duration::from_millis(400), "{:?}", began.elapsed());
    assert_eq!(tried.load(Ordering::Relaxed), 1);
    // A later request tries again.
    assert_eq!(gateway.send(chat_request_to_port(port)).await.status, 503);
    assert_eq!(tried.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn waiters_reconnect_if_shared_connection_fails_early() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (first, _) = listener.accept().await.unwrap();
        // Long enough for the other requests to wait for this connection.
        sleep(Duration::from_millis(200)).await;
        drop(first);
        let acceptor = tls_acceptor(&[b"h2"]);
        while let Ok((io, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let stream = acceptor.accept(io).await.unwrap();
                let mut connection = server::handshake(stream).await.unwrap();
                while let Some(Ok((_, respond))) = connection.accept().await {
                    send_json(respond, "{}");
                }
            });
        }
    });
    let response = send_concurrently(&Arc::new(gateway_trusting_localhost()), port, 20).await;
    let failed: Vec<_> =
        response.iter().filter(|response| response.status != 200).map(TestResponse::error_code).collect();
    assert_eq!(failed, ["upstream_connect_failed"]);
}

#[tokio::test]
async fn respects_max_concurrent_streams_of_the_provider() {
    let mut builder = server::Builder::new();
    builder.max_concurrent_streams(2);
    let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&now), Arc::clone(&peak));
    let (port, connections) = start_http2_provider(builder, move |_, respond| {
        let (now, peak_streams) = counts.clone();
        async move {
            peak_streams.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            sleep(Duration::from_millis(100)).await;
            now.fetch_sub(1, Ordering::Relaxed);
            send_json(respond, "{}");
        }
    })
    .await;
    let gateway = gateway_trusting_localhost();
    assert_eq!(gateway.send(chat_request_to_port(port)).await.status, 200);
    let response = tokio::join!(
        gateway.send(chat_request_to_port(port)),
        gateway.send(chat_request_to_port(port)),
        gateway.send(chat_request_to_port(port)),
        gateway.send(chat_request_to_port(port))
    );
    assert_eq!([response.0.status, response.1.status, response.2.status, response.3.status], [200; 4]);
    assert_eq!((connections.load(Ordering::Relaxed), peak.load(Ordering::Relaxed)), (2, 4));
}

#[tokio::test]
async fn forwards_stream_byte_for_byte_in_any_framing() {
    for size in [1, 33, 100_000] {
        let (port, _) = start_http2_provider(server::Builder::new(), move |_, mut respond| async move {
            let mut stream = respond.send_response(response_head("text/event-stream"), false).unwrap();
            for chunk in CHAT_EVENTS.as_bytes().chunks(size) {
                stream.send_data(Bytes::copy_from_slice(chunk), false).unwrap();
            }
            stream.send_data(Bytes::new(), true).unwrap();
        })
        .await;
        let gateway = gateway_trusting_localhost();
        let response = gateway.send(stream_request_to_port(port)).await;
        assert_eq!((response.text().as_str(), response.is_truncated), (CHAT_EVENTS, false), "{size}");
        assert_eq!(gateway.single_record()["response_status_code"], 200);
    }
}

#[tokio::test]
async fn sends_http2_pseudo_headers_without_hop_by_hop_fields() {
    let received = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&received);
    let (port, _) = start_http2_provider(server::Builder::new(), move |request, respond| {
        let shared = Arc::clone(&shared);
        async move {
            let (parts, body) = request.into_parts();
            let body = read_body(body).await;
            shared.lock().unwrap().push((parts, body));
            send_json(respond, "{}");
        }
    })
    .await;
    let gateway = gateway_trusting_localhost();
    let build_request = |method: &str, target: &str| {
        with_custom_host(port, TestRequest::new(method, target)).header("x-gateway-provider", "openai")
    };
    let hop = ["connection", "keep-alive", "proxy-connection", "te", "upgrade", "proxy-authorization"];
    let with_hop = hop
        .iter()
        .fold(build_request("PUT", "/v1/proxy/a/b?c=d&e=%20"), |build_request, name| build_request.header(name, "x"));
    let response =
        gateway.send(with_hop.header("X-Mine", "1").header("authorization", "Bearer sk-1").body("abc")).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let (parts, body) = received.lock().unwrap().remove(0);
    assert_eq!((parts.method.as_str(), body.as_slice()), ("PUT", &b"abc"[..]));
    assert_eq!(parts.uri.to_string(), format!("https://localhost:{port}/v1/a/b?c=d&e=%20"));
    let field = |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(field("content-length").as_deref(), Some("3"));
    assert_eq!((field("x-mine").as_deref(), field("authorization").as_deref()), (Some("1"), Some("Bearer sk-1")));
    for name in hop.into_iter().chain(["host", "x-gateway-provider"]) {
        assert_eq!(field(name), None, "{name}");
    }
    assert_eq!(gateway.send(build_request("GET", "/v1/proxy/a<b")).await.status, 400);
    assert_eq!(gateway.send(build_request("HEAD", "/v1/proxy/a")).await.body, b"");
}

#[tokio::test]
async fn sends_large_buffered_and_streamed_bodies() {
    let lengths = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&lengths);
    let (port, _) = start_http2_provider(server::Builder::new(), move |request, respond| {
        let shared = Arc::clone(&shared);
        async move {
            let body = read_body(request.into_body()).await;
            shared.lock().unwrap().push((body.len(), body.iter().map(|byte| u64::from(*byte)).sum::<u64>()));
            send_json(respond, "{}");
        }
    })
    .await;
    let gateway = gateway_trusting_localhost();
    let large: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
    let sum = large.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    let send_request =
        || with_custom_host(port, TestRequest::new("POST", "/v1/proxy/files")).header("x-gateway-provider", "openai");
    assert_eq!(gateway.send(send_request().body(large.clone())).await.status, 200);
    for length in [None, Some(large.len() as u64)] {
        let (feeder, feed) = body::feed_channel(|| ());
        let chunks: Vec<_> = large.chunks(70_000).map(Bytes::copy_from_slice).collect();
        tokio::spawn(async move {
            for chunk in chunks {
                feeder.push(chunk);
                tokio::task::yield_now().await;
            }
            feeder.finish(BodyEnd::Complete);
        });
        assert_eq!(gateway.send(send_request().with_body(Body::Streamed(feed, length))).await.status, 200);
    }
    assert_eq!(*lengths.lock().unwrap(), [(large.len(), sum); 3]);
}

#[tokio::test]
async fn interrupted_request_body_resets_its_stream() {
    let reset = Arc::new(Notify::new());
    let response = Arc::clone(&reset);
    let (port, _) = start_http2_provider(server::Builder::new(), move |request, _respond| {
        let response = Arc::clone(&response);
        async move {
            let mut body = request.into_body();
            while let Some(Ok(chunk)) = body.data().await {
                body.flow_control().release_capacity(chunk.len()).unwrap();
            }
            response.notify_one();
        }
    })
    .await;
    let (feeder, feed) = body::feed_channel(|| ());
    feeder.push(Bytes::from_static(b"some"));
    feeder.finish(BodyEnd::Disconnected);
    let client_request =
        with_custom_host(port, TestRequest::new("POST", "/v1/proxy/files")).header("x-gateway-provider", "openai");
    let reply = gateway_trusting_localhost().send(client_request.with_body(Body::Streamed(feed, Some(100)))).await;
    assert_eq!(reply.error_code(), "incomplete_body");
    with_timeout(reset.notified()).await;
}

#[tokio::test]
async fn accepts_response_before_request_body_was_read() {
    let (port, connections) = start_http2_provider(server::Builder::new(), |_request, mut respond| async move {
        let refusal = Response::builder().status(413).header("content-type", "application/json").body(()).unwrap();
        let mut stream = respond.send_response(refusal, false).unwrap();
        stream.send_data(Bytes::from_static(b"\"too large\""), true).unwrap();
    })
    .await;
    let gateway = gateway_trusting_localhost();
    let json = format!(r#"{{"model":"m","x":"{}"}}"#, "y".repeat(3_000_000));
    for _ in 0..2 {
        let response = gateway.send(with_custom_host(port, post_request(CHAT_PATH, json.clone()))).await;
        assert_eq!(
            (response.status, response.json()["error"]["message"].as_str()),
            (413, Some("mock error: too large"))
        );
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn drops_informational_responses_and_trailers() {
    let (port, _) = start_http2_provider(server::Builder::new(), |_, mut respond| async move {
        for status in [100, 103] {
            respond.send_informational(Response::builder().status(status).body(()).unwrap()).unwrap();
        }
        let mut stream = respond.send_response(response_head("text/event-stream"), false).unwrap();
        stream.send_data(Bytes::from_static(CHAT_EVENTS.as_bytes()), false).unwrap();
        let trailers = HeaderMap::from_iter([("x-late".parse().unwrap(), "1".parse().unwrap())]);
        stream.send_trailers(trailers).unwrap();
    })
    .await;
    let response = gateway_trusting_localhost().send(stream_request_to_port(port)).await;
    assert_eq!((response.status, response.text().as_str(), response.is_truncated), (200, CHAT_EVENTS, false));
    assert_eq!(response.header("x-late"), None);
}

#[tokio::test]
async fn resends_only_refused_streams() {
    for (reason, status, request) in [(Reason::REFUSED_STREAM, 200, 2), (Reason::INTERNAL_ERROR, 502, 1)] {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let (port, _) = start_http2_provider(server::Builder::new(), move |_, mut respond| {
            let is_first = counted.fetch_add(1, Ordering::Relaxed) == 0;
            async move { if is_first { respond.send_reset(reason) } else { send_json(respond, "{}") } }
        })
        .await;
        assert_eq!(
            (gateway_trusting_localhost().send(chat_request_to_port(port)).await.status, count.load(Ordering::Relaxed)),
            (status, request),
            "{reason}"
        );
    }
}

#[tokio::test]
async fn goaway_finishes_streams_and_opens_a_new_connection() {
    let (port, connections) = start_tls_server(&[b"h2"], |stream| async move {
        let mut connection = server::handshake(stream).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            connection.graceful_shutdown();
            tokio::spawn(async move {
                let mut stream = respond.send_response(response_head("text/event-stream"), false).unwrap();
                let (first, second) = CHAT_EVENTS.as_bytes().split_at(100);
                stream.send_data(Bytes::from_static(first), false).unwrap();
                sleep(Duration::from_millis(60)).await;
                stream.send_data(Bytes::from_static(second), true).unwrap();
            });
        }
    })
    .await;
    let gateway = gateway_trusting_localhost();
    let mut first = into_stream(gateway.handle_request(stream_request_to_port(port)).await);
    let beginning = first.next().await.unwrap().unwrap();
    sleep(Duration::from_millis(20)).await;
    assert_eq!(gateway.send(stream_request_to_port(port)).await.text(), CHAT_EVENTS);
    let (rest, cut) = crate::harness::read_stream(first).await;
    assert_eq!(([&[beginning], rest.as_slice()].concat().concat().as_slice(), cut), (CHAT_EVENTS.as_bytes(), false));
    assert_eq!(connections.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn lost_connection_fails_only_its_own_streams() {
    let (port, connections) = start_tls_server(&[b"h2"], |stream| async move {
        let mut connection = server::handshake(stream).await.unwrap();
        let (_, mut respond) = connection.accept().await.unwrap().unwrap();
        let mut stream = respond.send_response(response_head("text/event-stream"), false).unwrap();
        stream.send_data(Bytes::from_static(&CHAT_EVENTS.as_bytes()[..300]), false).unwrap();
        // Long enough to send the data; then the connection drops in mid-stream.
        drop(tokio::time::timeout(Duration::from_millis(50), connection.accept()).await);
    })
    .await;
    let gateway = gateway_trusting_localhost();
    for turn in 1..=2 {
        let response = gateway.send(stream_request_to_port(port)).await;
        let complete = CHAT_EVENTS[..300].rfind("\n\n").unwrap() + 2;
        assert!(
            response.text().starts_with(&CHAT_EVENTS[..complete])
                && !response.text().contains(&CHAT_EVENTS[complete..300])
        );
        assert_eq!(response.last_event().1["error"]["code"], "upstream_disconnected", "{}", response.text());
        assert_eq!(connections.load(Ordering::Relaxed), turn);
    }
}

/// Sends data as fast as flow control permits, and counts the bytes.
async fn send_data_and_count(mut stream: SendStream<Bytes>, mut remaining_bytes: usize, sent: Arc<AtomicUsize>) {
    while remaining_bytes > 0 {
        stream.reserve_capacity(remaining_bytes.min(100_000));
        let Some(Ok(capacity)) = std::future::poll_fn(|context| stream.poll_capacity(context)).await else { return };
        let size = capacity.min(remaining_bytes);
        remaining_bytes -= size;
        if stream.send_data(Bytes::from(vec![b'x'; size]), remaining_bytes == 0).is_err() {
            return;
        }
        sent.fetch_add(size, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn slow_reader_applies_backpressure_to_its_stream_only() {
    const RESPONSE_BYTES: usize = 5_000_000;
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let (port, connections) = start_http2_provider(server::Builder::new(), move |request, mut respond| {
        let counted = Arc::clone(&counted);
        async move {
            if request.uri().path().ends_with("/large") {
                let stream = respond.send_response(response_head("application/octet-stream"), false).unwrap();
                send_data_and_count(stream, RESPONSE_BYTES, counted).await;
            } else {
                send_json(respond, "{}");
            }
        }
    })
    .await;
    let gateway = gateway_trusting_localhost();
    let large =
        || with_custom_host(port, TestRequest::new("GET", "/v1/proxy/large")).header("x-gateway-provider", "openai");
    let mut slow = into_stream(gateway.handle_request(large()).await);
    let first = slow.next().await.unwrap().unwrap();
    sleep(Duration::from_millis(100)).await;
    let sent_bytes = sent.load(Ordering::Relaxed);
    assert!((64 * 1024..=256 * 1024).contains(&sent_bytes), "{sent_bytes}");
    assert_eq!(gateway.send(chat_request_to_port(port)).await.status, 200);
    let response = gateway.send(large()).await;
    assert_eq!((response.body.len(), response.is_truncated), (RESPONSE_BYTES, false));
    let (rest, cut) = crate::harness::read_stream(slow).await;
    assert_eq!((first.len() + rest.iter().map(Bytes::len).sum::<usize>(), cut), (RESPONSE_BYTES, false));
    assert!(rest.iter().all(|chunk| chunk.len() <= 8 * 1024));
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn client_disconnect_resets_the_stream() {
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&reasons);
    let (port, connections) = start_http2_provider(server::Builder::new(), move |request, mut respond| {
        let shared = Arc::clone(&shared);
        async move {
            let is_stream = request.headers().contains_key("x-answered");
            let reset = if is_stream {
                let mut stream = respond.send_response(response_head("text/event-stream"), false).unwrap();
                stream.send_data(Bytes::from_static(b"data: 1\n\n"), false).unwrap();
                std::future::poll_fn(|context| stream.poll_reset(context)).await
            } else {
                std::future::poll_fn(|context| respond.poll_reset(context)).await
            };
            shared.lock().unwrap().push(reset.unwrap());
        }
    })
    .await;
    let gateway = gateway_trusting_localhost();
    let client_request = with_custom_host(port, TestRequest::new("GET", "/v1/proxy/x"))
        .header("x-gateway-provider", "openai")
        .header("x-answered", "1");
    let mut responded = into_stream(gateway.handle_request(client_request).await);
    responded.next().await.unwrap().unwrap();
    drop(responded);
    wait_until("the stream is reset", || reasons.lock().unwrap().len() == 1).await;
    // The stream is also reset if the client leaves before the response head arrives.
    let early =
        tokio::time::timeout(Duration::from_millis(50), gateway.handle_request(chat_request_to_port(port))).await;
    assert!(early.is_err());
    wait_until("the stream is reset", || reasons.lock().unwrap().len() == 2).await;
    let reasons = reasons.lock().unwrap();
    assert_eq!(*reasons, [Reason::CANCEL; 2]);
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn bounds_idle_time_before_and_within_a_response() {
    let (port, _) = start_http2_provider(server::Builder::new(), |request, mut respond| async move {
        if request.headers().contains_key("idempotency-key") {
            return std::future::pending().await;
        }
        let mut stream = respond.send_response(response_head("text/event-stream"), false).unwrap();
        stream.send_data(Bytes::from_static(&CHAT_EVENTS.as_bytes()[..300]), false).unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let gateway = gateway_with_settings(|settings| {
        settings.request_timeout_ms = 100;
        settings.idle_timeout_ms = 100;
    });
    assert_eq!(gateway.send(chat_request_to_port(port).header("idempotency-key", "1")).await.status, 408);
    let response = gateway.send(stream_request_to_port(port)).await;
    assert_eq!(response.last_event().1["error"]["code"], "idle_timeout", "{}", response.text());
}

#[tokio::test]
async fn uses_http1_if_provider_or_settings_require_it() {
    for (http2, protocols) in [(true, &[&b"http/1.1"[..]][..]), (false, &[b"h2", b"http/1.1"]), (true, &[])] {
        let (port, connections) = start_tls_server(protocols, |mut stream| async move {
            while read_request(&mut stream)
                .await
                .is_some_and(|request| request.starts_with(b"POST /v1/chat/completions HTTP/1.1"))
            {
                stream.write_all(&json_response("200 OK", "", "{}")).await.unwrap();
            }
        })
        .await;
        let gateway = gateway_with_settings(|settings| settings.http2 = http2);
        for _ in 0..3 {
            assert_eq!(gateway.send(chat_request_to_port(port)).await.status, 200, "{http2} {protocols:?}");
        }
        assert_eq!(connections.load(Ordering::Relaxed), 1);
        // HTTP/1.1 connections are not shared, so no request waits for another's connection.
        let response = tokio::join!(gateway.send(chat_request_to_port(port)), gateway.send(chat_request_to_port(port)));
        assert_eq!((response.0.status, response.1.status), (200, 200));
    }
}
