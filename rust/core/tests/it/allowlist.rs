//! Model allowlists for provider batches. Batch files must not name other models, whether they are being uploaded or
//! already stored at the provider.

use std::sync::{Arc, Mutex};

use crate::harness::{
    TestGateway, TestRequest, TestResponse,
    scripted_server::{ScriptedServer, json_response},
    wait_until,
};
use penstock_mock::Server;
use penstock_net::body::{Body, BodyEnd, feed_channel};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const FORM_CONTENT_TYPE: &str = "multipart/form-data; boundary=b-1";

fn batch_line(model: &str) -> String {
    json!({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": model}}).to_string()
        + "\n"
}

/// Batch line whose allowed model calls another model through the image generation tool.
fn image_tool_line(model: &str) -> String {
    let tool = json!({"type": "image_generation", "model": model});
    let body = json!({"model": "good", "input": "a cat", "tools": [tool]});
    json!({"custom_id": "1", "method": "POST", "url": "/v1/responses", "body": body}).to_string() + "\n"
}

fn form_part(head: &str, value: &str) -> String {
    format!("--b-1\r\ncontent-disposition: form-data; {head}\r\n\r\n{value}\r\n")
}

/// Upload form with `purpose` after the file, as some clients send it.
fn upload_form(lines: &str, purpose: &str) -> String {
    form_part("name=\"file\"; filename=\"a.jsonl\"", lines) + &form_part("name=\"purpose\"", purpose) + "--b-1--\r\n"
}

/// Applies saved providers: `some` allows only `good`, `most` allows all but `bad`, `all` allows every model.
fn apply_model_allowlists(gateway: &TestGateway) {
    let models = |id: &str, allow_all: bool, slug: &str, enabled: bool| json!({"id": id, "allow_all": allow_all, "models": [{"slug": slug, "enabled": enabled}]});
    let provider = |slug: &str| json!({"slug": slug, "provider": "mock", "models": slug});
    let models =
        [models("some", false, "good", true), models("most", true, "bad", false), models("all", true, "good", true)];
    let providers = ["some", "most", "all"].map(provider);
    gateway.apply_snapshot(&json!({"epoch": "1", "models": models, "providers": providers}));
}

fn buffered_upload_request(provider: &str, form: String) -> TestRequest {
    upload_request(provider, Body::Complete(form.into()))
}

fn upload_request(provider: &str, form: Body) -> TestRequest {
    let request = TestRequest::new("POST", "/v1/files").header("x-gateway-provider", &format!("@{provider}"));
    request.header("content-type", FORM_CONTENT_TYPE).with_body(form)
}

fn batch_request(provider: &str, batch: &Value) -> TestRequest {
    let request = TestRequest::new("POST", "/v1/batches").header("x-gateway-provider", &format!("@{provider}"));
    request.header("content-type", "application/json").body(batch.to_string())
}

fn batch_body() -> Value {
    json!({"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"})
}

fn status_and_code(response: &TestResponse) -> (u16, String) {
    (response.status, response.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
}

fn expected_rejection(code: &str) -> (u16, String) {
    (if code == "model_not_allowed" { 403 } else { 400 }, code.to_owned())
}

#[tokio::test]
async fn rejects_file_with_a_line_for_another_model() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    apply_model_allowlists(&gateway);
    for (at, lines, code) in [
        ("some", batch_line("good") + &batch_line("other"), "model_not_allowed"),
        ("most", batch_line("other") + &batch_line("bad"), "model_not_allowed"),
        ("some", batch_line("good") + &image_tool_line("other"), "model_not_allowed"),
        ("some", "no lines".into(), "invalid_batch"),
        ("some", batch_line(""), "invalid_batch"),
    ] {
        let response = gateway.send(buffered_upload_request(at, upload_form(&lines, "batch"))).await;
        assert_eq!(status_and_code(&response), expected_rejection(code), "{}", response.text());
        if code == "model_not_allowed" {
            let chat = TestRequest::new("POST", "/v1/chat/completions").header("x-gateway-provider", &format!("@{at}"));
            let model = if at == "some" { "other" } else { "bad" };
            let request = json!({"model": model, "messages": []}).to_string();
            let chat = gateway.send(chat.header("content-type", "application/json").body(request)).await;
            assert_eq!(response.text(), chat.text(), "as a chat with it is refused");
        }
    }
    let no_form = TestRequest::new("POST", "/v1/files").header("x-gateway-provider", "@some").body(batch_line("good"));
    assert_eq!(gateway.send(no_form).await.status, 400);
    assert!(provider.ledger_entries().is_empty());
    for (at, lines, purpose) in [
        ("some", batch_line("good").repeat(3), "batch"),
        ("some", batch_line("other"), "assistants"),
        ("most", batch_line("other"), "batch"),
        ("all", "no lines".into(), "batch"),
    ] {
        let response = gateway.send(buffered_upload_request(at, upload_form(&lines, purpose))).await;
        assert_eq!(response.status, 200, "{}", response.text());
    }
    assert_eq!(provider.ledger_entries().len(), 4);
}

#[tokio::test]
async fn accepts_any_file_if_provider_makes_no_batches_of_files() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let models = json!([{"id": "some", "allow_all": false, "models": []}]);
    let saved =
        json!([{"slug": "some", "provider": "anthropic", "models": "some", "custom_host": provider.url() + "/v1"}]);
    gateway.apply_snapshot(&json!({"epoch": "1", "models": models, "providers": saved}));
    // Anthropic's file uploads have no `purpose` field.
    let form = form_part("name=\"file\"; filename=\"a.pdf\"", "%PDF") + "--b-1--\r\n";
    let response = gateway.send(buffered_upload_request("some", form).header("anthropic-version", "2023-06-01")).await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(provider.ledger_entries().len(), 1);
}

#[tokio::test]
async fn rejects_message_batch_with_another_model() {
    let provider = Server::start().await;
    let gateway = TestGateway::with_settings("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let models = json!([{"id": "some", "allow_all": false, "models": [{"slug": "good", "enabled": true}]}]);
    let saved = ["anthropic", "openai"]
        .map(|slug| json!({"slug": slug, "provider": slug, "models": "some", "custom_host": provider.url() + "/v1"}));
    gateway.apply_snapshot(&json!({"epoch": "1", "models": models, "providers": saved}));
    let build_request = |at: &str, path: &str, model: &str| {
        let batch =
            json!({"requests": [{"custom_id": "1", "params": {"model": model, "max_tokens": 1, "messages": []}}]});
        let build_request = TestRequest::new("POST", path).header("x-gateway-provider", &format!("@{at}"));
        build_request
            .header("anthropic-version", "2023-06-01")
            .header("content-type", "application/json")
            .body(batch.to_string())
    };
    let batches = "/v1/messages/batches";
    for (at, path, model) in [
        ("anthropic", batches, "other"),
        // How other providers handle this path is unknown.
        ("openai", batches, "good"),
        ("anthropic", "/v1/messages/batches/b/other", "good"),
        ("anthropic", "/v1/messages/batches/a%2Fx/cancel", "good"),
        ("anthropic", "/v1/proxy/v1/messages/batches", "good"),
    ] {
        let response = gateway.send(build_request(at, path, model)).await;
        assert_eq!(response.status, 403, "{at} {path} {model}: {}", response.text());
    }
    assert!(provider.ledger_entries().is_empty());
    for path in [batches, "/v1/messages/batches/b/cancel"] {
        assert_eq!(gateway.send(build_request("anthropic", path, "good")).await.status, 200, "{path}");
    }
    assert_eq!(provider.ledger_entries().len(), 2);
}

/// Starts a provider that records the bytes of one request and sets the flag once it has responded.
async fn start_recording_provider() -> (ScriptedServer, Arc<Mutex<(String, bool)>>) {
    let read = Arc::new(Mutex::new((String::new(), false)));
    let shared = Arc::clone(&read);
    let provider = ScriptedServer::start(move |mut io, _| {
        let shared = Arc::clone(&shared);
        async move {
            let mut chunk = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = io.read(&mut chunk).await {
                let mut shared = shared.lock().unwrap();
                shared.0.push_str(&String::from_utf8_lossy(&chunk[..count]));
                if shared.0.ends_with("--b-1--\r\n") || shared.0.ends_with("\r\n0\r\n\r\n") {
                    break;
                }
            }
            let _ = io.write_all(&json_response("200 OK", "", r#"{"id":"file-1"}"#)).await;
            shared.lock().unwrap().1 = true;
        }
    })
    .await;
    (provider, read)
}

#[tokio::test]
async fn aborts_streamed_upload_at_a_forbidden_model() {
    for is_chunked in [false, true] {
        for (lines, code) in [
            (batch_line("good").repeat(9_000) + &batch_line("other"), "model_not_allowed"),
            (batch_line("good").repeat(9_000), ""),
        ] {
            let (provider, read) = start_recording_provider().await;
            let gateway = TestGateway::for_url(&provider.url());
            apply_model_allowlists(&gateway);
            let form = upload_form(&lines, "batch");
            let (feeder, feed) = feed_channel(|| ());
            for chunk in form.as_bytes().chunks(10_000) {
                feeder.push(bytes::Bytes::copy_from_slice(chunk));
            }
            feeder.finish(BodyEnd::Complete);
            let body = Body::Streamed(feed, (!is_chunked).then_some(form.len() as u64));
            let response = gateway.send(upload_request("some", body)).await;
            if code.is_empty() {
                assert_eq!(response.status, 200, "{}", response.text());
                assert!(read.lock().unwrap().0.contains("--b-1--"));
                continue;
            }
            assert_eq!(status_and_code(&response), expected_rejection(code), "{}", response.text());
            wait_until("the provider hears that there is no more", || read.lock().unwrap().1).await;
            let read = read.lock().unwrap();
            assert!(read.0.len() > 100_000 && !read.0.contains("--b-1--") && !read.0.ends_with("0\r\n\r\n"));
        }
    }
}

#[tokio::test]
async fn does_not_forward_form_without_closing_boundary() {
    let (provider, read) = start_recording_provider().await;
    let gateway = TestGateway::for_url(&provider.url());
    apply_model_allowlists(&gateway);
    let form = upload_form(&batch_line("good"), "batch").replace("--b-1--\r\n", "");
    let (feeder, feed) = feed_channel(|| ());
    feeder.push(bytes::Bytes::from(form.clone()));
    feeder.finish(BodyEnd::Complete);
    let response = gateway.send(upload_request("some", Body::Streamed(feed, Some(form.len() as u64)))).await;
    assert_eq!(status_and_code(&response), expected_rejection("invalid_batch"));
    wait_until("the provider hears that there is no more", || read.lock().unwrap().1).await;
    assert!(!read.lock().unwrap().0.contains("good"));
}

/// Starts a provider whose stored file has these lines; returns the log of its requests.
async fn start_provider_with_file(status: &'static str, lines: String) -> (ScriptedServer, Arc<Mutex<Vec<String>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&requests);
    let provider = ScriptedServer::start(move |mut io, _| {
        let (shared, lines) = (Arc::clone(&shared), lines.clone());
        async move {
            while let Some(request) = crate::harness::scripted_server::read_request(&mut io).await {
                let request = String::from_utf8(request).unwrap();
                let response = if request.starts_with("GET ") {
                    json_response(status, "", &lines)
                } else {
                    json_response("200 OK", "", r#"{"id":"batch-1","object":"batch"}"#)
                };
                shared.lock().unwrap().push(request);
                io.write_all(&response).await.unwrap();
            }
        }
    })
    .await;
    (provider, requests)
}

fn request_targets(requests: &Mutex<Vec<String>>) -> Vec<String> {
    let first = |request: &String| request.split(" HTTP").next().unwrap().to_owned();
    requests.lock().unwrap().iter().map(first).collect()
}

#[tokio::test]
async fn checks_stored_file_before_creating_a_batch() {
    let (provider, requested) =
        start_provider_with_file("200 OK", batch_line("good") + batch_line("good").trim_end()).await;
    let gateway = TestGateway::for_url(&provider.url());
    apply_model_allowlists(&gateway);
    let request = batch_request("some", &batch_body()).header("range", "bytes=0-1").header("openai-project", "p-1");
    let response = gateway.send(request).await;
    assert_eq!((response.status, &response.json()["id"]), (200, &json!("batch-1")), "{}", response.text());
    assert_eq!(request_targets(&requested), ["GET /v1/files/file-1/content", "POST /v1/batches"]);
    let first = requested.lock().unwrap()[0].clone();
    assert!(!first.contains("range") && first.contains("openai-project: p-1"), "{first}");
    // If all models are allowed, the file is not fetched.
    requested.lock().unwrap().clear();
    assert_eq!(gateway.send(batch_request("all", &batch_body())).await.status, 200);
    assert_eq!(request_targets(&requested), ["POST /v1/batches"]);
}

#[tokio::test]
async fn rejects_batch_of_stored_file_with_another_model() {
    for (status, lines, code) in [
        ("200 OK", batch_line("good") + &batch_line("other"), "model_not_allowed"),
        ("200 OK", "no lines".into(), "invalid_batch"),
        ("404 Not Found", "{}".into(), "invalid_batch"),
        ("206 Partial Content", batch_line("good"), "invalid_batch"),
    ] {
        let (provider, requested) = start_provider_with_file(status, lines).await;
        let gateway = TestGateway::for_url(&provider.url());
        apply_model_allowlists(&gateway);
        let response = gateway.send(batch_request("some", &batch_body())).await;
        assert_eq!(status_and_code(&response), expected_rejection(code), "{}", response.text());
        assert_eq!(request_targets(&requested), ["GET /v1/files/file-1/content"]);
    }
}

#[tokio::test]
async fn rejects_batch_input_other_than_a_file() {
    let provider = Server::start().await;
    let gateway = TestGateway::for_provider(&provider);
    apply_model_allowlists(&gateway);
    let with = |key: &str, value: Value| {
        let mut batch = batch_body();
        batch[key] = value;
        batch
    };
    for batch in [
        with("input_blob", json!("https://example.com/lines")),
        with("requests", json!([])),
        with("input_files", json!(["file-2"])),
        with("input_file_id", json!("..")),
        json!({"endpoint": "/v1/chat/completions"}),
    ] {
        let response = gateway.send(batch_request("some", &batch)).await;
        assert_eq!(status_and_code(&response), expected_rejection("invalid_batch"), "{}", response.text());
    }
    let response = gateway.send(batch_request("some", &with("model", json!("other")))).await;
    assert_eq!(status_and_code(&response), expected_rejection("model_not_allowed"));
    assert!(provider.ledger_entries().is_empty());
}
