//! The output of a batch is one question to the caller and two to the provider; what the gateway keeps goes nowhere else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

mod harness;

use harness::{
    Ask, Rig, get, in_time, pick,
    scripted::{Scripted, request, whole},
    sha256,
};
use penstock_core::body::{Body, End, Interest, feed};
use penstock_mock::Server;
use serde_json::json;
use tokio::{io::AsyncWriteExt, sync::mpsc};

#[tokio::test]
async fn the_output_of_a_providers_batch_comes_as_lines() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(get("/v1/batches/b-1/output?api-version=2")).await;
    assert_eq!((told.status, told.json()["custom_id"].as_str()), (200, Some("1")));
    assert_eq!(told.header("content-type"), Some("application/octet-stream"));
    let asked: Vec<_> = provider.ledger().into_iter().map(|seen| seen.path).collect();
    assert_eq!(asked, ["/v1/batches/b-1?api-version=2", "/v1/files/file-mock-output/content?api-version=2"]);
    assert_eq!(rig.records().len(), 2);
}

#[tokio::test]
async fn a_batch_without_output_is_said_to_have_none_and_an_error_stays_the_providers() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let provider = Scripted::start(move |mut io, number| {
        let tell = tell.clone();
        async move {
            tell.send(request(&mut io).await.unwrap()).unwrap();
            let (status, body) = match number {
                0 => ("200 OK", r#"{"id":"b","status":"in_progress","output_file_id":null}"#),
                1 => ("404 Not Found", r#"{"error":{"message":"no such batch"}}"#),
                _ => ("200 OK", "not JSON"),
            };
            io.write_all(&whole(status, "connection: close\r\n", body)).await.unwrap();
        }
    })
    .await;
    let rig = Rig::at(&provider.url());
    let waiting = rig.send(get("/v1/batches/b/output").header("accept-encoding", "gzip")).await;
    assert_eq!((waiting.status, waiting.code().as_str()), (404, "no_output"));
    assert!(waiting.text().contains("it is in_progress"), "{}", waiting.text());
    let missing = rig.send(get("/v1/batches/b/output")).await;
    assert_eq!((missing.status, missing.text().contains("no such batch")), (404, true));
    assert_eq!(rig.send(get("/v1/batches/b/output")).await.code(), "no_output");
    let first = String::from_utf8(told.recv().await.unwrap()).unwrap();
    assert!(!first.contains("accept-encoding"), "{first}");
}

#[tokio::test]
async fn what_the_gateway_keeps_is_asked_of_the_control_process() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    rig.apply(&json!({"epoch": "1", "catalogue": true,
        "keys": [{"id": "k", "name": "k", "sha256": sha256("pk-1")}]}));
    let ask = |method: &str, target: &str| {
        Ask::new(method, target).header("x-gateway-api-key", "pk-1").header("content-type", "application/json")
    };
    let made = r#"{"input_file_id":"gw_file_1","endpoint":"/v1/chat/completions","completion_window":"immediate"}"#;
    for ask in [
        ask("GET", "/v1/files"),
        ask("GET", "/v1/batches/gw_batch_1/output").header("x-gateway-provider", "mock"),
        ask("POST", "/v1/batches").header("x-gateway-provider", "mock").body(made),
    ] {
        // There is none here.
        assert_eq!(rig.send(ask).await.code(), "control_down");
    }
    assert!(provider.ledger().is_empty());
    let theirs = made.replace("gw_file_1", "file-1");
    let passed = rig.send(ask("POST", "/v1/batches").header("x-gateway-provider", "mock").body(theirs.clone())).await;
    assert_eq!((passed.status, passed.json()["object"].as_str()), (200, Some("batch")));
    assert_eq!(provider.ledger().len(), 1);
    assert_eq!(rig.send(ask("POST", "/v1/batches").body(theirs)).await.code(), "control_down");
}

#[tokio::test]
async fn a_large_batch_counts_once_towards_the_room() {
    let provider = Server::start().await;
    let room = 2 * 1024 * 1024;
    let rig = Rig::with(&provider.url(), |settings| (settings.gathered_bytes, settings.max_body_bytes) = (room, room));
    rig.apply(&json!({"epoch": "1", "catalogue": true,
        "keys": [{"id": "k", "name": "k", "sha256": sha256("pk-1")}]}));
    let mut body =
        br#"{"input_file_id":"file-1","endpoint":"/v1/chat/completions","completion_window":"24h"}"#.to_vec();
    body.resize(room * 3 / 4, b' ');
    let ask = || {
        let ask = Ask::new("POST", "/v1/batches").header("x-gateway-provider", "mock");
        ask.header("content-type", "application/json").header("x-gateway-api-key", "pk-1")
    };
    let (feeder, fed) = feed(|| ());
    for piece in body.chunks(100_000) {
        feeder.push(piece.to_vec().into());
    }
    feeder.end(End::Complete);
    for ask in [ask().with(Body::Fed(fed, Some(body.len() as u64))), ask().body(body)] {
        assert_eq!(rig.send(ask).await.status, 200);
        assert_eq!(rig.gateway.shared.bodies.used(), 0);
    }
}

#[tokio::test]
async fn nothing_is_read_of_the_batch_of_a_stranger() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.gathered_bytes = 0);
    rig.apply(&json!({"epoch": "1", "catalogue": true,
        "keys": [{"id": "k", "name": "k", "sha256": sha256("pk-1")}]}));
    let batch = |key: &str| {
        let (feeder, fed) = feed(|| ());
        let ask = Ask::new("POST", "/v1/batches").header("x-gateway-provider", "mock");
        let ask = ask.header("content-type", "application/json").header("x-gateway-api-key", key);
        (feeder, ask.with(Body::Fed(fed, None)))
    };
    // Its body never comes.
    let (feeder, stranger) = batch("pk-2");
    let told = in_time(rig.send(stranger)).await;
    assert_eq!((told.status, told.code().as_str(), feeder.interest()), (401, "03", Interest::Lost));
    assert_eq!(pick(&rig.record(), ["outcome", "error"]), json!(["refused", "03"]));
    let (feeder, known) = batch("pk-1");
    feeder
        .push(br#"{"input_file_id":"file-1","endpoint":"/v1/chat/completions","completion_window":"24h"}"#[..].into());
    feeder.end(End::Complete);
    assert_eq!(rig.send(known).await.status, 200);
    let (feeder, broken) = batch("pk-1");
    feeder.end(End::Left);
    assert_eq!(rig.send(broken).await.code(), "broken_body");
}
