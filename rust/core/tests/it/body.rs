//! Request bodies, complete or fed in chunks. They are streamed if the gateway need not read them, and always bounded.

use std::time::Duration;

use crate::harness::{
    CHAT_PATH, MESSAGES_PATH, TestGateway, TestRequest, chat_body, get_request, pick_fields, post_request,
    scripted_server::{ScriptedServer, json_response, read_request, read_request_head},
    sha256_hex, wait_until, with_timeout,
};
use bytes::Bytes;
use penstock_mock::Server;
use penstock_net::body::{Body, BodyEnd, Feeder, feed_channel};
use serde_json::json;
use tokio::{io::AsyncWriteExt, sync::mpsc};

fn streamed_request(target: &str, length: Option<u64>) -> (Feeder, TestRequest) {
    let (feeder, feed) = feed_channel(|| ());
    (feeder, post_request(target, "").with_body(Body::Streamed(feed, length)))
}

#[tokio::test]
async fn assembles_a_chunked_body() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let body = chat_body("mock", false);
    for length in [None, Some(body.len() as u64)] {
        let (feeder, request) = streamed_request(CHAT_PATH, length);
        let chunks = body.clone();
        let feeding = tokio::spawn(async move {
            for chunk in chunks.into_bytes().chunks(7) {
                feeder.push(Bytes::copy_from_slice(chunk));
                tokio::task::yield_now().await;
            }
            feeder.finish(BodyEnd::Complete);
        });
        assert_eq!(gateway.send(request).await.status, 200);
        feeding.await.unwrap();
    }
    for entry in provider.ledger_entries() {
        let length = body.len();
        assert_eq!((entry.body_bytes, entry.header("content-length")), (length as u64, Some(&*length.to_string())));
        assert_eq!(entry.header("transfer-encoding"), None);
    }
}

#[tokio::test]
async fn streams_upload_with_its_length_or_chunked() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let body: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    for length in [None, Some(body.len() as u64)] {
        let (feeder, request) = streamed_request("/v1/files", length);
        for chunk in body.chunks(50_001) {
            feeder.push(Bytes::copy_from_slice(chunk));
            feeder.push(Bytes::new());
        }
        feeder.finish(BodyEnd::Complete);
        let echo = gateway.send(request).await.json();
        assert_eq!(pick_fields(&echo, ["body_bytes", "body_sha"]), json!([body.len(), sha256_hex(&body)]));
        let framing = length.map_or(json!([null, "chunked"]), |length| json!([length.to_string(), null]));
        assert_eq!(pick_fields(&echo["headers"], ["content-length", "transfer-encoding"]), framing);
    }
}

#[tokio::test]
async fn forwards_upload_before_it_is_complete() {
    let (sender, mut response) = mpsc::unbounded_channel();
    let provider = ScriptedServer::start(move |mut io, _| {
        let sender = sender.clone();
        async move {
            sender.send(read_request_head(&mut io).await.unwrap()).unwrap();
            let rest = read_request(&mut &b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n"[..]).await;
            assert!(rest.is_some());
            io.write_all(&json_response("200 OK", "", "{}")).await.unwrap();
        }
    })
    .await;
    let gateway = TestGateway::for_url(&provider.url());
    let (feeder, request) = streamed_request("/v1/files", Some(6));
    feeder.push(Bytes::from_static(b"abc"));
    let sending = tokio::spawn(async move { gateway.send(request).await.status });
    let head = with_timeout(response.recv()).await.unwrap();
    assert!(String::from_utf8_lossy(&head).contains("content-length: 6\r\n"));
    feeder.push(Bytes::from_static(b"def"));
    feeder.finish(BodyEnd::Complete);
    assert_eq!(with_timeout(sending).await.unwrap(), 200);
}

#[tokio::test]
async fn slow_provider_applies_backpressure_to_upload() {
    let provider = ScriptedServer::start(|mut io, _| async move {
        drop(read_request_head(&mut io).await);
        std::future::pending::<()>().await;
    })
    .await;
    let gateway = TestGateway::for_url(&provider.url());
    let (feeder, request) = streamed_request("/v1/files", None);
    let sending = tokio::spawn(async move { drop(gateway.handle_request(request).await) });
    let mut consumed = 0_u64;
    let chunk = Bytes::from(vec![0; 64 * 1024]);
    // The provider reads nothing, so `push` returns false sooner or later and stays false.
    while feeder.push(chunk.clone()) && consumed < 100_000_000 {
        consumed += chunk.len() as u64;
        tokio::task::yield_now().await;
    }
    assert!(consumed < 50_000_000, "{consumed}");
    sending.abort();
}

#[tokio::test]
async fn rejects_oversized_body_before_sending_anything() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.max_body_bytes = 1000);
    for target in [CHAT_PATH, MESSAGES_PATH, "/v1/files", "/v1/proxy/files"] {
        // The first request only declares the length of its body and sends nothing; the second one has a complete body.
        let (_feeder, declared) = streamed_request(target, Some(1001));
        let whole = post_request(target, "x".repeat(1001));
        for request in [declared, whole] {
            let response = gateway.send(request).await;
            assert_eq!(response.status, 413, "{target}: {}", response.text());
            assert!(response.text().contains("1000 bytes"));
            assert_eq!(
                pick_fields(&gateway.single_record(), ["outcome", "error"]),
                json!(["refused", "body_too_large"])
            );
        }
    }
    assert!(provider.ledger_entries().is_empty());
    let at_the_limit = format!("{:1000}", chat_body("mock", false));
    assert_eq!(gateway.send(post_request(CHAT_PATH, at_the_limit)).await.status, 200);
}

#[tokio::test]
async fn rejects_growing_body_once_it_exceeds_the_limit() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.max_body_bytes = 1000);
    for target in [CHAT_PATH, "/v1/files"] {
        let (feeder, request) = streamed_request(target, None);
        for _ in 0..11 {
            feeder.push(Bytes::from(vec![b' '; 100]));
        }
        // The body never ends.
        let response = gateway.send(request).await;
        assert_eq!((response.status, response.error_code().as_str()), (413, "body_too_large"), "{target}");
    }
}

#[tokio::test]
async fn wrong_content_length_never_desyncs_the_connection() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (sent, code) in [("123", "incomplete_body"), ("1234GET /smuggled HTTP/1.1\r\n\r\n", "invalid_framing")] {
        gateway.send(get_request("/v1/models")).await;
        let (feeder, request) = streamed_request("/v1/files", Some(4));
        feeder.push(sent.into());
        feeder.finish(BodyEnd::Complete);
        let response = with_timeout(gateway.send(request)).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, code));
        assert_eq!(gateway.state.upstream.idle_connection_count(), 0);
    }
    assert!(provider.ledger_entries().iter().all(|seen| seen.path != "/smuggled"));
}

#[tokio::test]
async fn reports_interrupted_body_as_bad_request() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (target, length) in [(CHAT_PATH, None), (CHAT_PATH, Some(100)), ("/v1/files", None), ("/v1/files", Some(100))] {
        let (feeder, request) = streamed_request(target, length);
        feeder.push(Bytes::from_static(b"{\"model\":"));
        feeder.finish(BodyEnd::Disconnected);
        let response = gateway.send(request).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "incomplete_body"), "{target} {length:?}");
        assert_eq!(pick_fields(&gateway.single_record(), ["outcome", "error"]), json!(["aborted", "incomplete_body"]));
    }
}

#[tokio::test]
async fn rejects_invalid_json_with_byte_position() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for (body, at) in [
        ("", 0),
        ("[]", 0),
        ("nonsense", 0),
        (r#"{"model": oops}"#, 10),
        (r#"{"model":"m""#, 12),
        (r#"{"model":"m"} x"#, 14),
        (r#"{"model":"m",}"#, 13),
    ] {
        let response = gateway.send(post_request(CHAT_PATH, body)).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_json"), "{body}");
        let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with(&format!("invalid JSON body at byte {at}: ")), "{body}: {message}");
        let response = gateway.send(post_request(MESSAGES_PATH, body)).await;
        assert_eq!(
            (response.status, &response.json()["error"]["type"]),
            (400, &json!("invalid_request_error")),
            "{body}"
        );
    }
    assert!(provider.ledger_entries().is_empty());
}

#[tokio::test]
async fn survives_very_deep_and_very_long_json() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    for body in [
        format!(r#"{{"model":"mock","x":{}1{}}}"#, "[".repeat(100_000), "]".repeat(100_000)),
        format!(r#"{{"model":"mock","x":{}"#, r#"{"a":"#.repeat(100_000)),
        format!(r#"{{"model":"mock","messages":[],"x":"{}"}}"#, "y".repeat(5_000_000)),
        r#"{"model":"mock","x":"\ud800"}"#.to_owned(),
    ] {
        let status = gateway.send(post_request(CHAT_PATH, body)).await.status;
        assert!(status == 200 || status == 400, "{status}");
    }
}

#[tokio::test]
async fn restricts_content_types_except_on_proxy_paths() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let build_request = |target: &str, kind: &str| {
        TestRequest::new("POST", target)
            .header("x-gateway-provider", "mock")
            .header("content-type", kind)
            .body(chat_body("mock", false))
    };
    for kind in ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"] {
        let response = gateway.send(build_request(CHAT_PATH, kind)).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_header"), "{kind}");
        assert!(response.text().contains("application/json"));
        let echo = gateway.send(build_request("/v1/proxy/audio/transcriptions", kind)).await.json();
        assert_eq!(echo["headers"]["content-type"], kind);
    }
    for path in ["/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits"] {
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/mixed; boundary=x", "audio"] {
            let response = gateway.send(build_request(path, kind)).await;
            assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_header"), "{path} {kind}");
            assert!(
                response.text().contains("takes multipart/form-data, audio/* or application/json"),
                "{}",
                response.text()
            );
        }
        for kind in ["Multipart/Form-Data; boundary=x", "audio/wav", "AUDIO/mpeg", "application/json"] {
            let echo = gateway.send(build_request(path, kind)).await.json();
            assert_eq!(echo["headers"]["content-type"], kind, "{path}");
        }
    }
    for kind in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"] {
        assert_eq!(gateway.send(build_request(CHAT_PATH, kind)).await.status, 200, "{kind}");
    }
}

#[tokio::test]
async fn sends_content_length_zero_for_empty_post() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.send(post_request("/v1/batches/b/cancel", "")).await;
    gateway.send(get_request("/v1/batches")).await;
    let lengths: Vec<_> =
        provider.ledger_entries().iter().map(|entry| entry.header("content-length").map(ToOwned::to_owned)).collect();
    assert_eq!(lengths, [Some("0".to_owned()), None]);
}

/// Starts a provider that reads the head, responds 413 and reads no more. It then closes the connection or leaves the
/// body unread.
async fn start_early_responder(closes: bool) -> ScriptedServer {
    ScriptedServer::start(move |mut io, _| async move {
        drop(read_request_head(&mut io).await);
        io.write_all(&json_response("413 Payload Too Large", "connection: close\r\n", "\"too large\"")).await.unwrap();
        if !closes {
            std::future::pending::<()>().await;
        }
    })
    .await
}

#[tokio::test]
async fn returns_response_sent_before_the_body_was_read() {
    let size = 20_000_000;
    for closes in [false, true] {
        let provider = start_early_responder(closes).await;
        let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.request_timeout_ms = 2_000);
        let json = format!(r#"{{"model":"m","x":"{}"}}"#, "y".repeat(size));
        let reply = gateway.send(post_request(CHAT_PATH, json)).await;
        assert_eq!(
            (reply.status, reply.json()["error"]["message"].as_str()),
            (413, Some("mock error: too large")),
            "whole, closes: {closes}"
        );

        let (feeder, request) = streamed_request("/v1/files", Some(size as u64));
        feeder.push(Bytes::from(vec![b'y'; size]));
        feeder.finish(BodyEnd::Complete);
        let reply = gateway.send(request).await;
        assert_eq!(
            (reply.status, reply.json()["error"]["message"].as_str()),
            (413, Some("mock error: too large")),
            "fed, closes: {closes}"
        );

        // The client never sends its body. The gateway returns the provider's response without waiting for the body.
        let (_feeder, request) = streamed_request("/v1/files", Some(size as u64));
        let reply = gateway.send(request).await;
        assert_eq!(
            (reply.status, reply.json()["error"]["message"].as_str()),
            (413, Some("mock error: too large")),
            "waiting, closes: {closes}"
        );
        assert_eq!(gateway.state.upstream.idle_connection_count(), 0);
    }
}

#[tokio::test]
async fn delivers_large_body_completely() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    // Sizes around the limit up to which head and body are sent in one write, and far above it.
    for size in [1, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, 1_000_000, 9_000_000] {
        let body: Vec<u8> = (b'a'..=b'w').cycle().take(size).collect();
        let echo = gateway.send(post_request("/v1/proxy/echo", body.clone())).await.json();
        assert_eq!(pick_fields(&echo, ["body_bytes", "body_sha"]), json!([size, sha256_hex(&body)]));
    }
}

#[tokio::test]
async fn aborts_upload_when_the_client_disconnects() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let (feeder, request) = streamed_request("/v1/files", Some(100));
    feeder.push(Bytes::from_static(b"abc"));
    let state = std::sync::Arc::clone(&gateway.state);
    let work = tokio::time::timeout(Duration::from_millis(50), penstock_core::gateway::handle(&state, request.build()));
    assert!(work.await.is_err());
    wait_until("the provider sees it", || provider.ledger_entries().len() == 1).await;
    assert_eq!(provider.ledger_entries()[0].outcome, penstock_mock::Outcome::ClientClosed);
    assert_eq!(gateway.single_record()["outcome"], "aborted");
}
