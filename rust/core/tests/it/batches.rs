//! Batch output and gateway batches. Output takes one request from the client and two to the provider; gateway batches
//! go to the control process only.

use std::sync::{Arc, Mutex};

use crate::harness::{
    TestGateway, TestRequest, get_request, pick_fields,
    scripted_server::{ScriptedServer, json_response, read_request},
    sha256_hex, with_timeout,
};
use penstock_mock::Server;
use penstock_net::body::{Body, BodyEnd, ReaderState, feed_channel};
use serde_json::json;
use tokio::{io::AsyncWriteExt, sync::mpsc};

#[tokio::test]
async fn returns_batch_output_as_lines() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    let response = gateway.send(get_request("/v1/batches/b-1/output?api-version=2")).await;
    assert_eq!((response.status, response.json()["custom_id"].as_str()), (200, Some("1")));
    assert_eq!(response.header("content-type"), Some("application/octet-stream"));
    let requests: Vec<_> = provider.ledger_entries().into_iter().map(|received| received.path).collect();
    assert_eq!(requests, ["/v1/batches/b-1?api-version=2", "/v1/files/file-mock-output/content?api-version=2"]);
    assert_eq!(gateway.drain_records().len(), 2);
}

#[tokio::test]
async fn reports_missing_output_and_forwards_provider_errors() {
    let (sender, mut response) = mpsc::unbounded_channel();
    let provider = ScriptedServer::start(move |mut io, number| {
        let sender = sender.clone();
        async move {
            sender.send(read_request(&mut io).await.unwrap()).unwrap();
            let (status, body) = match number {
                0 => ("200 OK", r#"{"id":"b","status":"in_progress","output_file_id":null}"#),
                1 => ("404 Not Found", r#"{"error":{"message":"no such batch"}}"#),
                _ => ("200 OK", "not JSON"),
            };
            io.write_all(&json_response(status, "connection: close\r\n", body)).await.unwrap();
        }
    })
    .await;
    let gateway = TestGateway::for_url(&provider.url());
    let waiting = gateway.send(get_request("/v1/batches/b/output").header("accept-encoding", "gzip")).await;
    assert_eq!((waiting.status, waiting.error_code().as_str()), (404, "no_output"));
    assert!(waiting.text().contains("it is in_progress"), "{}", waiting.text());
    let missing = gateway.send(get_request("/v1/batches/b/output")).await;
    assert_eq!((missing.status, missing.text().contains("no such batch")), (404, true));
    assert_eq!(gateway.send(get_request("/v1/batches/b/output")).await.error_code(), "no_output");
    let first = String::from_utf8(response.recv().await.unwrap()).unwrap();
    assert!(!first.contains("accept-encoding"), "{first}");
}

/// Plays Azure with batch output in a customer's blob storage. Serves the token endpoint, the batch and the storage,
/// which accepts only storage tokens or signed URLs.
async fn start_azure(
    blob: impl Fn(&str) -> String + Send + Sync + 'static,
) -> (ScriptedServer, Arc<Mutex<Vec<String>>>) {
    let received = Arc::new(Mutex::new(Vec::new()));
    let (shared_log, blob) = (Arc::clone(&received), Arc::new(blob));
    let provider = ScriptedServer::start(move |mut io, _| {
        let (shared_log, blob) = (Arc::clone(&shared_log), Arc::clone(&blob));
        async move {
            let own_url = format!("http://{}", io.local_addr().unwrap());
            while let Some(request) = read_request(&mut io).await {
                let request = String::from_utf8(request).unwrap();
                shared_log.lock().unwrap().push(request.clone());
                let batch =
                    json!({"id": "b", "status": "completed", "output_file_id": null, "output_blob": blob(&own_url)});
                let (status, body) = if request.starts_with("POST /t/oauth2") {
                    let is_for_storage = request.contains("scope=https%3A%2F%2Fstorage.azure.com%2F.default");
                    let token = if is_for_storage { "for-storage" } else { "for-batches" };
                    ("200 OK", json!({"access_token": token, "expires_in": 3600}).to_string())
                } else if request.contains("/batches/b?") {
                    ("200 OK", batch.to_string())
                } else if request.contains("Bearer for-storage\r\n") || request.contains("sig=s1") {
                    ("200 OK", "{\"custom_id\":\"1\"}\n".to_owned())
                } else {
                    (
                        "403 Forbidden",
                        "<Error><Code>AuthorizationFailure</Code><Message>no</Message></Error>".to_owned(),
                    )
                };
                io.write_all(&json_response(status, "x-ms-request-id: r-1\r\n", &body)).await.unwrap();
            }
        }
    })
    .await;
    (provider, received)
}

fn rig_trusting_loopback() -> TestGateway {
    TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()])
}

/// Builds a request for batch output at Azure with these credential headers.
fn output_request(provider: &ScriptedServer, content: &[(&str, &str)]) -> TestRequest {
    let request = TestRequest::new("GET", "/v1/batches/b/output")
        .header("x-gateway-provider", "azure-openai")
        .header("x-gateway-azure-api-version", "2025-04-01-preview")
        .header("x-gateway-custom-host", &provider.url());
    content.iter().fold(request, |request, (name, value)| request.header(name, value))
}

#[tokio::test]
async fn reads_blob_output_with_a_storage_token() {
    let (provider, received) = start_azure(|own_url| format!("{own_url}/out/1/results.jsonl")).await;
    let gateway = rig_trusting_loopback();
    let url = provider.url();
    let entra = [
        ("x-gateway-azure-auth-mode", "entra"),
        ("x-gateway-azure-entra-tenant-id", "t"),
        ("x-gateway-azure-entra-client-id", "c"),
        ("x-gateway-azure-entra-client-secret", "s"),
        ("x-gateway-azure-authority-host", &url),
    ];
    let response =
        gateway.send(output_request(&provider, &entra).header("range", "bytes=0-9").header("x-team", "red")).await;
    assert_eq!((response.status, response.text().as_str()), (200, "{\"custom_id\":\"1\"}\n"));
    let last = received.lock().unwrap().last().unwrap().clone();
    assert!(last.starts_with("GET /out/1/results.jsonl HTTP/1.1\r\n"), "{last}");
    assert!(last.contains("x-ms-version: ") && last.contains("range: bytes=0-9") && !last.contains("x-team"), "{last}");
    let requested_paths = received.lock().unwrap().iter().filter(|request| request.starts_with("POST ")).count();
    assert_eq!((requested_paths, gateway.drain_records().len()), (2, 2));
    // A token from the request is forwarded unchanged, and the storage's error is returned.
    let response = gateway.send(output_request(&provider, &[("x-gateway-azure-ad-token", "of-my-own")])).await;
    assert_eq!((response.status, response.error_code().as_str()), (403, "AuthorizationFailure"), "{}", response.text());
    assert!(
        response.text().contains("no (request r-1)")
            && received.lock().unwrap().last().unwrap().contains("Bearer of-my-own")
    );
    // Storage does not accept an API key, so the key is not sent to it.
    let request = received.lock().unwrap().len();
    let response = gateway.send(output_request(&provider, &[("authorization", "Bearer sk-1")])).await;
    assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_provider_option"));
    assert!(response.text().contains("azure_auth_mode"), "{}", response.text());
    assert_eq!(received.lock().unwrap().len(), request + 1);
}

#[tokio::test]
async fn reads_signed_output_url_without_token_or_logging_it() {
    let (provider, received) = start_azure(|own_url| format!("{own_url}/out/a%20b.jsonl?sv=1&sig=s1")).await;
    let gateway = rig_trusting_loopback();
    let response = gateway.send(output_request(&provider, &[("x-gateway-azure-ad-token", "t-1")])).await;
    assert_eq!((response.status, response.json()["custom_id"].as_str()), (200, Some("1")));
    let last = received.lock().unwrap().last().unwrap().clone();
    assert!(last.starts_with("GET /out/a%20b.jsonl?sv=1&sig=s1 ") && !last.contains("authorization"), "{last}");
    let records = format!("{:?}", gateway.drain_records());
    assert!(records.contains("a%2520b.jsonl"), "{records}");
    assert!(!records.contains("s1"), "{records}");
}

#[tokio::test]
async fn sends_no_token_outside_azure_storage() {
    for blob in
        ["https://evil.example/a", "http://acct.blob.core.windows.net/a", "https://blob.core.windows.net/a", "nowhere"]
    {
        let (provider, received) = start_azure(move |_| blob.to_owned()).await;
        let response =
            rig_trusting_loopback().send(output_request(&provider, &[("x-gateway-azure-ad-token", "t-1")])).await;
        assert_eq!(
            (response.status, response.error_code().as_str()),
            (400, "invalid_provider_option"),
            "{blob}: {}",
            response.text()
        );
        assert_eq!(received.lock().unwrap().len(), 1);
    }
    // Other providers have no blob output, so the URL is ignored.
    let (provider, _) = start_azure(|own_url| format!("{own_url}/out/a?sig=s1")).await;
    let gateway = TestGateway::for_url(&provider.url());
    let response = gateway.send(get_request("/v1/batches/b/output?x=1")).await;
    assert_eq!((response.status, response.error_code().as_str()), (404, "no_output"), "{}", response.text());
}

#[tokio::test]
async fn forwards_gateway_files_and_batches_to_control_process() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    gateway.apply_snapshot(&json!({"epoch": "1", "catalogue": true,
        "keys": [{"id": "k", "name": "k", "sha256": sha256_hex("pk-1")}]}));
    let build_request = |method: &str, target: &str| {
        TestRequest::new(method, target).header("x-gateway-api-key", "pk-1").header("content-type", "application/json")
    };
    let created = r#"{"input_file_id":"gw_file_1","endpoint":"/v1/chat/completions","completion_window":"immediate"}"#;
    for build_request in [
        build_request("GET", "/v1/files"),
        build_request("GET", "/v1/batches/gw_batch_1/output").header("x-gateway-provider", "mock"),
        build_request("POST", "/v1/batches").header("x-gateway-provider", "mock").body(created),
    ] {
        // No control process runs in this test.
        assert_eq!(gateway.send(build_request).await.error_code(), "management_unavailable");
    }
    assert!(provider.ledger_entries().is_empty());
    let theirs = created.replace("gw_file_1", "file-1");
    let passed = gateway
        .send(build_request("POST", "/v1/batches").header("x-gateway-provider", "mock").body(theirs.clone()))
        .await;
    assert_eq!((passed.status, passed.json()["object"].as_str()), (200, Some("batch")));
    assert_eq!(provider.ledger_entries().len(), 1);
    assert_eq!(
        gateway.send(build_request("POST", "/v1/batches").body(theirs)).await.error_code(),
        "management_unavailable"
    );
}

#[tokio::test]
async fn counts_large_batch_once_in_memory_budget() {
    let provider = Server::start().await;
    let max_buffer_bytes = 2 * 1024 * 1024;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| {
        (settings.buffered_body_bytes, settings.max_body_bytes) = (max_buffer_bytes, max_buffer_bytes);
    });
    gateway.apply_snapshot(&json!({"epoch": "1", "catalogue": true,
        "keys": [{"id": "k", "name": "k", "sha256": sha256_hex("pk-1")}]}));
    let mut body =
        br#"{"input_file_id":"file-1","endpoint":"/v1/chat/completions","completion_window":"24h"}"#.to_vec();
    body.resize(max_buffer_bytes * 3 / 4, b' ');
    let build_request = || {
        let build_request = TestRequest::new("POST", "/v1/batches").header("x-gateway-provider", "mock");
        build_request.header("content-type", "application/json").header("x-gateway-api-key", "pk-1")
    };
    let (feeder, fed) = feed_channel(|| ());
    for chunk in body.chunks(100_000) {
        feeder.push(chunk.to_vec().into());
    }
    feeder.finish(BodyEnd::Complete);
    for build_request in
        [build_request().with_body(Body::Streamed(fed, Some(body.len() as u64))), build_request().body(body)]
    {
        assert_eq!(gateway.send(build_request).await.status, 200);
        assert_eq!(gateway.state.shared.body_memory.used_bytes(), 0);
    }
}

#[tokio::test]
async fn does_not_read_batch_body_before_authentication() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings(&provider.url(), |settings| settings.buffered_body_bytes = 0);
    gateway.apply_snapshot(&json!({"epoch": "1", "catalogue": true,
        "keys": [{"id": "k", "name": "k", "sha256": sha256_hex("pk-1")}]}));
    let batch = |key: &str| {
        let (feeder, fed) = feed_channel(|| ());
        let request = TestRequest::new("POST", "/v1/batches").header("x-gateway-provider", "mock");
        let request = request.header("content-type", "application/json").header("x-gateway-api-key", key);
        (feeder, request.with_body(Body::Streamed(fed, None)))
    };
    // The body of this request never arrives.
    let (feeder, rejected_request) = batch("pk-2");
    let response = with_timeout(gateway.send(rejected_request)).await;
    assert_eq!(
        (response.status, response.error_code().as_str(), feeder.reader_state()),
        (401, "03", ReaderState::Closed)
    );
    assert_eq!(pick_fields(&gateway.single_record(), ["outcome", "error"]), json!(["refused", "03"]));
    let (feeder, receiver) = batch("pk-1");
    feeder
        .push(br#"{"input_file_id":"file-1","endpoint":"/v1/chat/completions","completion_window":"24h"}"#[..].into());
    feeder.finish(BodyEnd::Complete);
    assert_eq!(gateway.send(receiver).await.status, 200);
    let (feeder, broken) = batch("pk-1");
    feeder.finish(BodyEnd::Disconnected);
    assert_eq!(gateway.send(broken).await.error_code(), "incomplete_body");
}
