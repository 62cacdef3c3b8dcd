//! Request bodies that are still arriving while they are sent.

use crate::harness::{
    TestRequest,
    scripted::{ScriptedServer, json_response, read_request, read_request_head},
    send, test_client, with_timeout,
};
use bytes::Bytes;
use penstock_net::{
    Error,
    body::{Body, BodyEnd, feed_channel},
};
use tokio::io::AsyncWriteExt;

/// Starts a server that returns the request that it received as the body of the response.
async fn start_echo_server() -> ScriptedServer {
    ScriptedServer::start(|mut io, _| async move {
        while let Some(request) = read_request(&mut io).await {
            let text = String::from_utf8(request).unwrap();
            io.write_all(&json_response("200 OK", "", &text)).await.unwrap();
        }
    })
    .await
}

#[tokio::test]
async fn streamed_body_is_sent_with_its_length_or_in_chunks() {
    let server = start_echo_server().await;
    let client = test_client();
    for (length, end) in [(Some(6), "\r\n\r\nabcdef"), (None, "\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n")] {
        let (feeder, feed) = feed_channel(|| ());
        let feeding = async {
            feeder.push(Bytes::from_static(b"abc"));
            tokio::task::yield_now().await;
            feeder.push(Bytes::from_static(b"def"));
            feeder.finish(BodyEnd::Complete);
        };
        let (url, request) = (server.url(), TestRequest::post_body(Body::Streamed(feed, length)));
        let (response, ()) = tokio::join!(send(&client, &url, request), feeding);
        assert!(response.as_ref().unwrap().text().ends_with(end), "{response:?}");
    }
    assert_eq!(server.connection_count(), 1);
}

/// A server must never read the next request as a part of this one's body, or the reverse.
#[tokio::test]
async fn body_that_contradicts_its_length_closes_the_connection() {
    for (length, end, is_expected) in [
        (2, BodyEnd::Complete, (|error| matches!(error, Error::InvalidFraming)) as fn(&Error) -> bool),
        (4, BodyEnd::Complete, |error| matches!(error, Error::IncompleteBody)),
        (4, BodyEnd::Disconnected, |error| matches!(error, Error::IncompleteBody)),
        (4, BodyEnd::Malformed, |error| matches!(error, Error::InvalidFraming)),
    ] {
        let server = start_echo_server().await;
        let client = test_client();
        let (feeder, feed) = feed_channel(|| ());
        feeder.push(Bytes::from_static(b"abc"));
        feeder.finish(end);
        let request = TestRequest::post_body(Body::Streamed(feed, Some(length)));
        let error = send(&client, &server.url(), request).await.unwrap_err();
        assert!(is_expected(&error), "{length} {end:?}: {error:?}");
        assert_eq!(client.idle_connection_count(), 0);
    }
}

#[tokio::test]
async fn rejection_is_returned_before_the_upload_ends() {
    let server = ScriptedServer::start(|mut io, _| async move {
        read_request_head(&mut io).await.unwrap();
        io.write_all(&json_response("413 Content Too Large", "", "{}")).await.unwrap();
        // Stays open, so that only the response ends the upload.
        read_request(&mut io).await;
    })
    .await;
    let (feeder, feed) = feed_channel(|| ());
    feeder.push(Bytes::from_static(b"abc"));
    let request = TestRequest::post_body(Body::Streamed(feed, Some(1_000_000)));
    let client = test_client();
    let response = with_timeout(send(&client, &server.url(), request)).await.unwrap();
    assert_eq!((response.status, client.idle_connection_count()), (413, 0));
}
