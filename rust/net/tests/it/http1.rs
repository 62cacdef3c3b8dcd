//! HTTP/1.1 responses: framing, truncation and timeouts.

use std::time::Duration;

use crate::harness::{
    TestRequest,
    scripted::{SSE_RESPONSE_HEAD, ScriptedServer, encode_chunks, sse_response},
    send, test_client, test_settings,
};
use penstock_net::{Error, Settings, Upstream};

#[tokio::test]
async fn body_is_the_same_however_it_arrives() {
    let body = "data: {\"a\": 1}\n\n".repeat(20);
    for (chunk_bytes, write_bytes) in [(7, 1), (7, 50), (300, 11)] {
        let server = ScriptedServer::start_dripping(sse_response(body.as_bytes(), chunk_bytes), write_bytes).await;
        let client = test_client();
        for _ in 0..2 {
            let response = send(&client, &server.url(), TestRequest::get()).await.unwrap();
            assert!(response.error.is_none() && response.text() == body, "{chunk_bytes} {write_bytes}: {response:?}");
        }
        assert_eq!(server.connection_count(), 1);
    }
}

#[tokio::test]
async fn body_without_length_ends_with_the_connection() {
    let server = ScriptedServer::start_closing_after_response("HTTP/1.1 200 OK\r\n\r\nabc").await;
    let response = send(&test_client(), &server.url(), TestRequest::get()).await.unwrap();
    assert!(response.error.is_none() && response.text() == "abc", "{response:?}");
}

#[tokio::test]
async fn truncated_body_ends_in_an_error_after_its_data() {
    for response in [
        [SSE_RESPONSE_HEAD.as_bytes(), &encode_chunks(b"abc", 3)].concat(),
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc".to_vec(),
    ] {
        let server = ScriptedServer::start_closing_after_response(response).await;
        let response = send(&test_client(), &server.url(), TestRequest::get()).await.unwrap();
        assert!(matches!(response.error, Some(Error::ResponseBroken { .. })), "{response:?}");
        assert_eq!(response.text(), "abc");
    }
}

#[tokio::test]
async fn silence_within_a_body_ends_in_a_timeout() {
    let server = ScriptedServer::start_responding("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc").await;
    let settings = Settings { idle_timeout: Duration::from_millis(100), ..test_settings() };
    let response = send(&Upstream::new(&settings).unwrap(), &server.url(), TestRequest::get()).await.unwrap();
    assert!(matches!(response.error, Some(Error::IdleTimeout { milliseconds: 100 })), "{response:?}");
}

#[tokio::test]
async fn response_that_is_no_http_is_an_error() {
    for response in ["SSH-2.0-x\r\n\r\n", "HTTP/1.1 42 X\r\n\r\n", "HTTP/1.1 200 OK\r\n", ""] {
        let server = ScriptedServer::start_closing_after_response(response).await;
        let error = send(&test_client(), &server.url(), TestRequest::post()).await.unwrap_err();
        assert!(matches!(error, Error::ResponseBroken { .. }), "{response}: {error:?}");
    }
}
