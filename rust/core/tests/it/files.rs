//! Files API of providers that store files in buckets or datasets. Checks the requests to the provider and which
//! objects a client can reach.

use std::sync::{Arc, Mutex};

use crate::harness::{
    TestGateway, TestRequest, TestResponse,
    golden_provider::GoldenProvider,
    scripted_server::{ScriptedServer, read_request},
};
use bytes::Bytes;
use penstock_net::body::{Body, BodyEnd, feed_channel};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const FORM_CONTENT_TYPE: &str = "multipart/form-data; boundary=edge";
const FILE_PATH: &str = "/v1/files/s3%3A%2F%2Fdata%2Fa.jsonl";
const PART_BYTES: usize = 8 * 1024 * 1024;

/// Heads and bodies of the requests that the bucket received.
type ReceivedRequests = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// A mock bucket that accepts everything. Requests that begin with a given word get a given status and body.
struct MockBucket {
    server: ScriptedServer,
    received: ReceivedRequests,
}

impl MockBucket {
    async fn start(word: &'static str, status: u16, response: &'static str) -> Self {
        let received = ReceivedRequests::default();
        let noted = Arc::clone(&received);
        let provider = ScriptedServer::start(move |mut stream, _| {
            let noted = Arc::clone(&noted);
            async move {
                while let Some(bytes) = read_request(&mut stream).await {
                    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
                    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
                    let (status, body) = match &head {
                        head if !word.is_empty() && head.starts_with(word) => (status, response),
                        head if head.contains("?uploads=") => (200, "<R><UploadId>up/1</UploadId></R>"),
                        head if head.starts_with("DELETE") => (204, ""),
                        head if head.starts_with("GET") => (200, "content"),
                        _ => (200, ""),
                    };
                    let length = if head.starts_with("HEAD") { 12 } else { body.len() };
                    let response_body = format!(
                        "HTTP/1.1 {status} X\r\netag: \"t\"\r\nx-amz-request-id: R7\r\ncontent-type: text/html\r\n\
                         x-amz-meta-purpose: vision\r\nlast-modified: Tue, 14 Nov 2023 22:13:20 GMT\r\n\
                         content-length: {length}\r\n\r\n{}",
                        if head.starts_with("HEAD") { "" } else { body }
                    );
                    noted.lock().unwrap().push((head, bytes[end + 4..].to_vec()));
                    stream.write_all(response_body.as_bytes()).await.unwrap();
                }
            }
        })
        .await;
        Self { server: provider, received }
    }

    /// Returns method and target of every request.
    fn request_lines(&self) -> Vec<String> {
        let line = |(head, _): &(String, Vec<u8>)| head.split(" HTTP/1.1").next().unwrap().to_owned();
        self.received.lock().unwrap().iter().map(line).collect()
    }

    fn build_request(&self, method: &str, path: &str) -> TestRequest {
        TestRequest::new(method, path)
            .header("x-gateway-provider", "bedrock")
            .header("x-gateway-custom-host", &self.server.url())
            .header("x-gateway-aws-region", "eu-west-1")
            .header("x-gateway-aws-access-key-id", "AKID")
            .header("x-gateway-aws-secret-access-key", "s3cret")
            .header("x-gateway-aws-s3-bucket", "data")
    }

    async fn upload(&self, gateway: &TestGateway, form: impl Into<Bytes>) -> TestResponse {
        gateway.send(self.build_request("POST", "/v1/files").header("content-type", FORM_CONTENT_TYPE).body(form)).await
    }
}

fn form_field(name: &str, value: &str) -> String {
    format!("--edge\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

fn file_part(content: &str) -> String {
    let head = "content-disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\ncontent-type: text/plain";
    format!("--edge\r\n{head}\r\n\r\n{content}\r\n")
}

fn multipart_form(parts: &[String]) -> String {
    parts.concat() + "--edge--\r\n"
}

fn batch_line(id: &str, model: &str) -> String {
    let body = json!({"model": model, "seed": 7, "messages": [{"role": "user", "content": id}]});
    json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string() + "\n"
}

#[tokio::test]
async fn uploads_shows_reads_and_deletes_a_bucket_file() {
    let bucket = MockBucket::start("", 0, "").await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let response =
        bucket.upload(&gateway, multipart_form(&[file_part("one\n"), form_field("purpose", "fine-tune")])).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let created = response.json();
    let id = created["id"].as_str().unwrap();
    assert!(id.starts_with("s3%3A%2F%2Fdata%2Fpenstock%2Ffiles%2Ffine-tune%2F") && id.ends_with("%2Fa.jsonl"), "{id}");
    assert_eq!(
        (&created["bytes"], &created["purpose"], &created["filename"]),
        (&json!(4), &json!("fine-tune"), &json!("a.jsonl"))
    );
    let (head, body) = bucket.received.lock().unwrap().remove(0);
    assert!(head.starts_with("PUT /data/penstock/files/fine-tune/") && body == b"one\n", "{head}");
    for content in
        ["content-length: 4", "content-type: text/plain", "x-amz-meta-purpose: fine-tune", "/eu-west-1/s3/aws4_request"]
    {
        assert!(head.contains(content), "{content} in {head}");
    }
    assert!(head.contains(";x-amz-meta-purpose,") && !head.contains("s3cret") && !head.contains("x-gateway"), "{head}");

    let record = gateway.single_record();
    assert!(record["upstream_response_time"].as_f64().unwrap() > 0.0, "{record}");
    assert_eq!(
        crate::harness::pick_fields(&record, ["response_status_code", "operation", "ai_org"]),
        json!([200, "uploadFile", "bedrock"]),
        "{record}"
    );
    let response = gateway.send(bucket.build_request("GET", FILE_PATH)).await;
    let file_object = response.json();
    let expected = json!(["s3%3A%2F%2Fdata%2Fa.jsonl", "file", 12, 1_700_000_000, "a.jsonl", "vision", "processed"]);
    let keys = ["id", "object", "bytes", "created_at", "filename", "purpose", "status"];
    assert_eq!(
        (response.status, keys.map(|key| file_object[key].clone()).to_vec()),
        (200, expected.as_array().unwrap().clone())
    );
    // Some clients encode the already encoded ID again.
    let response = gateway
        .send(
            bucket
                .build_request("GET", &format!("{}/content", FILE_PATH.replace('%', "%25")))
                .header("range", "bytes=0-"),
        )
        .await;
    assert_eq!((response.status, response.text().as_str()), (200, "content"));
    assert_eq!(response.header("content-type"), Some("application/octet-stream"));
    let response = gateway.send(bucket.build_request("DELETE", FILE_PATH)).await;
    assert_eq!(
        (response.status, response.json()),
        (200, json!({"id": "s3%3A%2F%2Fdata%2Fa.jsonl", "object": "file", "deleted": true}))
    );
    let object = |method: &str| format!("{method} /data/a.jsonl");
    assert_eq!(bucket.request_lines(), [object("HEAD"), object("GET"), object("HEAD"), object("DELETE")]);
    assert!(bucket.received.lock().unwrap()[1].0.contains("\r\nrange: bytes=0-"));
}

#[tokio::test]
async fn translates_bucket_errors_to_openai_format() {
    let xml = "<Error><Code>AccessDenied</Code><Message>not you</Message></Error>";
    let bucket = MockBucket::start("GET", 403, xml).await;
    let response = GoldenProvider::gateway_trusting_loopback()
        .send(bucket.build_request("GET", &format!("{FILE_PATH}/content")))
        .await;
    let expected = json!({"message": "bedrock error: not you (request R7)", "type": "permission_error", "param": null,
        "code": "AccessDenied"});
    assert_eq!((response.status, response.json()), (403, json!({"error": expected, "provider": "bedrock"})));
    let bucket = MockBucket::start("HEAD", 404, "").await;
    for method in ["GET", "DELETE"] {
        let response = GoldenProvider::gateway_trusting_loopback().send(bucket.build_request(method, FILE_PATH)).await;
        assert_eq!(
            (response.status, &response.json()["error"]["type"]),
            (404, &json!("not_found_error")),
            "{}",
            response.text()
        );
    }
    assert_eq!(bucket.request_lines().len(), 2, "what is not there is not deleted");
}

#[tokio::test]
async fn translates_batch_lines_to_format_of_their_model() {
    let bucket = MockBucket::start("", 0, "").await;
    let lines = batch_line("a", "amazon.nova-lite-v1:0") + &batch_line("b", "amazon.nova-lite-v1:0");
    let response = bucket
        .upload(
            &GoldenProvider::gateway_trusting_loopback(),
            multipart_form(&[file_part(&lines), form_field("purpose", "batch")]),
        )
        .await;
    assert_eq!(
        (response.status, response.header("x-gateway-not-translated")),
        (200, Some("seed")),
        "{}",
        response.text()
    );
    let body = bucket.received.lock().unwrap().remove(0).1;
    let rows: Vec<Value> = crate::harness::parse_json_lines(&body);
    let content = json!([{"role": "user", "content": [{"text": "b"}]}]);
    assert_eq!((&rows[1]["recordId"], &rows[1]["modelInput"]["messages"]), (&json!("b"), &content));
    assert_eq!(response.json()["bytes"], body.len());
    let wrong = file_part(&(batch_line("a", "amazon.nova-lite-v1:0") + &batch_line("b", "other")));
    let response = bucket
        .upload(&GoldenProvider::gateway_trusting_loopback(), multipart_form(&[form_field("purpose", "batch"), wrong]))
        .await;
    assert_eq!((response.status, response.error_code().as_str()), (400, "untranslatable_request"));
    assert!(response.text().contains("line 2") && response.text().contains("body.model"), "{}", response.text());
    assert!(bucket.request_lines().is_empty(), "nothing is sent of a file that is wrong");
}

#[tokio::test]
async fn reads_batch_endpoint_and_model_from_headers() {
    let bucket = MockBucket::start("", 0, "").await;
    let nameless = json!({"custom_id": "a", "body": {"messages": [{"role": "user", "content": "x"}]}}).to_string();
    let form_of = |content: &str| multipart_form(&[file_part(content), form_field("purpose", "batch")]);
    let vertex = |content: &str| {
        TestRequest::new("POST", "/v1/files")
            .header("x-gateway-provider", "vertex-ai")
            .header("x-gateway-custom-host", &bucket.server.url())
            .header("x-gateway-vertex-region", "europe-west4")
            .header("x-gateway-vertex-storage-bucket-name", "data")
            .header("x-gateway-provider-batch-endpoint", "/v1/chat/completions")
            .header("authorization", "Bearer t")
            .header("content-type", FORM_CONTENT_TYPE)
            .body(form_of(content))
    };
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let response = gateway.send(vertex(&nameless)).await;
    assert!(response.status == 400 && response.text().contains("body.model"), "{}", response.text());
    for (name, words) in [("gemini-2.5-pro", "contents"), ("claude-sonnet-4-5", "anthropic_version")] {
        let response = gateway.send(vertex(&nameless).header("x-gateway-provider-model", name)).await;
        assert_eq!(response.status, 200, "{}", response.text());
        let sent = String::from_utf8(bucket.received.lock().unwrap().pop().unwrap().1).unwrap();
        assert!(sent.contains(words), "{sent}");
    }
    let amazons =
        bucket.build_request("POST", "/v1/files").header("x-gateway-aws-bedrock-model", "amazon.nova-lite-v1:0");
    let response =
        gateway.send(amazons.header("content-type", FORM_CONTENT_TYPE).body(form_of(&batch_line("a", "other")))).await;
    assert_eq!(response.status, 200, "{}", response.text());
}

#[tokio::test]
async fn deletes_dataset_if_size_differs_from_header() {
    let bucket = MockBucket::start("GET", 200, DATASET_JSON).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let content = "{}\n".repeat(4);
    let upload = |size: &str| {
        fireworks_request(&bucket, "POST", "/v1/files")
            .header("x-gateway-file-purpose", "fine-tune")
            .header("x-gateway-file-upload-size", size)
            .header("content-type", FORM_CONTENT_TYPE)
            .body(multipart_form(&[file_part(&content)]))
    };
    let response = gateway.send(upload("12")).await;
    assert_eq!((response.status, &response.json()["purpose"]), (200, &json!("fine-tune")), "{}", response.text());
    for (size, words) in [("13", "12 bytes of the file were received"), ("many", "is not a number")] {
        let response = gateway.send(upload(size)).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_provider_option"));
        assert!(response.text().contains(words), "{}", response.text());
        assert!(bucket.request_lines().last().unwrap().starts_with("DELETE "), "{:?}", bucket.request_lines());
    }
}

/// Builds a streamed upload form whose file is larger than three parts.
fn large_upload_body(purpose_first: bool) -> Body {
    let content = "0123456789abcde\n".repeat((PART_BYTES * 3 + 1600) / 16);
    let (purpose, file) = (form_field("purpose", "user_data"), file_part(&content));
    let complete = Bytes::from(multipart_form(&if purpose_first { [purpose, file] } else { [file, purpose] }));
    let (feeder, feed) = feed_channel(|| ());
    for at in (0..complete.len()).step_by(200_000) {
        feeder.push(complete.slice(at..complete.len().min(at + 200_000)));
    }
    feeder.finish(BodyEnd::Complete);
    Body::Streamed(feed, None)
}

#[tokio::test]
async fn uploads_large_file_in_parts_and_aborts_on_failure() {
    let bucket = MockBucket::start("", 0, "").await;
    let build_request = |bucket: &MockBucket, purpose_first| {
        bucket
            .build_request("POST", "/v1/files")
            .header("content-type", FORM_CONTENT_TYPE)
            .header("x-gateway-aws-s3-object-key", "big")
            .with_body(large_upload_body(purpose_first))
    };
    let response = GoldenProvider::gateway_trusting_loopback().send(build_request(&bucket, true)).await;
    assert_eq!(
        (response.status, &response.json()["bytes"]),
        (200, &json!(PART_BYTES * 3 + 1600)),
        "{}",
        response.text()
    );
    let part = |number: usize| format!("PUT /data/big?partNumber={number}&uploadId=up%2F1");
    let (begin, end) = ("POST /data/big?uploads=".to_owned(), "POST /data/big?uploadId=up%2F1".to_owned());
    assert_eq!(bucket.request_lines(), [begin, part(1), part(2), part(3), part(4), end]);
    let sizes: Vec<_> = bucket.received.lock().unwrap().iter().map(|(_, body)| body.len()).collect();
    assert_eq!(sizes[..5], [0, PART_BYTES, PART_BYTES, PART_BYTES, 1600]);
    let tags = String::from_utf8(bucket.received.lock().unwrap()[5].1.clone()).unwrap();
    assert!(tags.contains("<PartNumber>4</PartNumber><ETag>&quot;t&quot;</ETag>"), "{tags}");

    for (word, status, expected) in [("PUT /data/big?partNumber=2", 503, 503), ("POST /data/big?uploadId", 200, 500)] {
        let bucket = MockBucket::start(word, status, "<Error><Code>SlowDown</Code></Error>").await;
        let response = GoldenProvider::gateway_trusting_loopback().send(build_request(&bucket, true)).await;
        assert_eq!((response.status, response.error_code().as_str()), (expected, "SlowDown"), "{}", response.text());
        assert_eq!(bucket.request_lines().last().unwrap(), "DELETE /data/big?uploadId=up%2F1");
    }
    let bucket = MockBucket::start("", 0, "").await;
    let response = GoldenProvider::gateway_trusting_loopback().send(build_request(&bucket, false)).await;
    assert_eq!((response.status, response.error_code().as_str()), (400, "untranslatable_request"));
    assert!(
        response.text().contains("purpose: must precede the file") && bucket.request_lines().is_empty(),
        "{}",
        response.text()
    );
}

#[tokio::test]
async fn large_file_parts_count_in_memory_budget() {
    let bucket = MockBucket::start("", 0, "").await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let of = |bytes: usize| multipart_form(&[form_field("purpose", "fine-tune"), file_part(&"x".repeat(bytes))]);
    // Uses up all of the memory budget but one mebibyte, which is enough for the form itself.
    let body_memory = &gateway.state.shared.body_memory;
    let (mut full, mut spare) = (body_memory.new_permit(), body_memory.new_permit());
    assert!(spare.try_reserve(1024 * 1024));
    while full.try_reserve(1024 * 1024) {}
    drop(spare);
    let response = bucket.upload(&gateway, of(300 * 1024)).await;
    assert_eq!(
        (response.status, response.error_code().as_str(), response.header("retry-after")),
        (503, "memory_exhausted", Some("1"))
    );
    assert_eq!((bucket.upload(&gateway, of(9)).await.status, bucket.request_lines().len()), (200, 1));
    drop(full);
    assert_eq!(bucket.upload(&gateway, of(300 * 1024)).await.status, 200);
    assert_eq!(body_memory.used_bytes(), 0);
}

#[tokio::test]
async fn rejects_invalid_forms_and_oversized_files() {
    let bucket = MockBucket::start("", 0, "").await;
    let gateway = TestGateway::with_settings("", |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
        settings.max_body_bytes = 2_000;
    });
    let purpose = || form_field("purpose", "batch");
    for (body, reason) in [
        (multipart_form(&[purpose()]), "file: must be sent"),
        (multipart_form(&[file_part("x")]), "purpose: must be sent"),
        (multipart_form(&[form_field("purpose", "other"), file_part("x")]), "purpose: `other` is not a known purpose"),
        ([purpose(), file_part("x")].concat(), "ends before it is complete"),
        (multipart_form(&[purpose(), file_part("\n")]), "it has no lines"),
    ] {
        let response = bucket.upload(&gateway, body).await;
        assert!(response.status == 400 && response.text().contains(reason), "{reason} in {}", response.text());
    }
    let response = bucket.upload(&gateway, multipart_form(&[purpose(), file_part(&"x".repeat(3_000))])).await;
    assert_eq!((response.status, response.error_code().as_str()), (413, "body_too_large"));
    let response = gateway
        .send(bucket.build_request("POST", "/v1/files").header("content-type", "application/jsonl").body("x"))
        .await;
    assert_eq!((response.status, response.error_code().as_str()), (400, "invalid_header"));
    let response = gateway.send(bucket.build_request("GET", "/v1/files/file-1")).await;
    assert!(response.status == 400 && response.text().contains("s3%3A%2F%2F"), "{}", response.text());
    assert!(bucket.request_lines().is_empty());
}

/// Returns a gateway with a saved provider that allows a single model.
fn gateway_with_allowlist(bucket: &MockBucket) -> TestGateway {
    let gateway = GoldenProvider::gateway_trusting_loopback();
    gateway.apply_snapshot(&json!({"epoch": "1",
        "providers": [{"slug": "mine", "provider": "bedrock", "custom_host": bucket.server.url(), "models": "m",
            "options": {"aws_region": "eu-west-1", "aws_access_key_id": "A", "aws_secret_access_key": "s",
                "aws_s3_bucket": "data"}}],
        "models": [{"id": "m", "allow_all": false, "models": [{"slug": "amazon.nova-lite-v1:0", "enabled": true}]}]}));
    gateway
}

#[tokio::test]
async fn stored_credential_reaches_only_gateway_files() {
    let bucket = MockBucket::start("", 0, "").await;
    let gateway = gateway_with_allowlist(&bucket);
    let build_request = |method: &str, path: &str| TestRequest::new(method, path).header("x-gateway-provider", "@mine");
    for location in ["data%2Fa.jsonl", "other%2Fpenstock%2Fa", "data%2Fpenstockx%2Fa"] {
        for (method, end) in [("GET", ""), ("GET", "/content"), ("DELETE", "")] {
            let request = build_request(method, &format!("/v1/files/s3%3A%2F%2F{location}{end}"));
            let response = gateway.send(request.header("x-gateway-aws-s3-bucket", "other")).await;
            assert_eq!(
                (response.status, response.error_code().as_str()),
                (400, "invalid_provider_option"),
                "{location}: {}",
                response.text()
            );
        }
    }
    let upload = |key: &str, content: &str| {
        let form = multipart_form(&[form_field("purpose", "batch"), file_part(content)]);
        build_request("POST", "/v1/files")
            .header("content-type", FORM_CONTENT_TYPE)
            .header("x-gateway-aws-s3-object-key", key)
            .body(form)
    };
    let good = batch_line("a", "amazon.nova-lite-v1:0");
    let response = gateway.send(upload("mine.jsonl", &good)).await;
    assert!(response.status == 400 && response.text().contains("below `penstock/`"), "{}", response.text());
    let response = gateway.send(upload("penstock/mine.jsonl", &batch_line("a", "amazon.nova-pro-v1:0"))).await;
    assert_eq!((response.status, response.error_code().as_str()), (403, "model_not_allowed"), "{}", response.text());
    assert!(bucket.request_lines().is_empty());
    let response = gateway.send(upload("penstock/mine.jsonl", &good)).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let path = format!("/v1/files/{}", response.json()["id"].as_str().unwrap());
    assert_eq!(gateway.send(build_request("GET", &path)).await.status, 200);
    assert_eq!(bucket.request_lines(), ["PUT /data/penstock/mine.jsonl", "HEAD /data/penstock/mine.jsonl"]);
    // If the saved provider has only header fields, the client's own keys reach the client's own files.
    gateway.apply_snapshot(
        &json!({"epoch": "2", "providers": [{"slug": "mine", "provider": "bedrock", "headers": {"x-team": "red"},
        "custom_host": bucket.server.url(), "options": {"aws_region": "eu-west-1"}}]}),
    );
    let request = build_request("GET", FILE_PATH)
        .header("x-gateway-aws-access-key-id", "AKID")
        .header("x-gateway-aws-secret-access-key", "s3cret")
        .header("x-gateway-aws-s3-bucket", "data");
    assert_eq!(gateway.send(request).await.status, 200);
    assert_eq!(bucket.request_lines().last().unwrap(), "HEAD /data/a.jsonl");
}

#[tokio::test]
async fn stores_vertex_ai_files_in_cloud_storage() {
    let bucket = MockBucket::start("", 0, "").await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let build_request = |method: &str, path: &str| {
        let build_request = TestRequest::new(method, path)
            .header("x-gateway-provider", "vertex-ai")
            .header("authorization", "Bearer sk-1");
        build_request
            .header("x-gateway-custom-host", &bucket.server.url())
            .header("x-gateway-vertex-region", "europe-west4")
            .header("x-gateway-vertex-storage-bucket-name", "data")
    };
    let form = multipart_form(&[file_part(&batch_line("row-1", "gemini-2.5-pro")), form_field("purpose", "batch")]);
    let request = build_request("POST", "/v1/files")
        .header("content-type", FORM_CONTENT_TYPE)
        .header("x-gateway-provider-file-name", "a b.jsonl");
    let response = gateway.send(request.body(form)).await;
    assert_eq!(
        (response.status, &response.json()["id"]),
        (200, &json!("gs%3A%2F%2Fdata%2Fa%20b.jsonl")),
        "{}",
        response.text()
    );
    let (head, body) = bucket.received.lock().unwrap().remove(0);
    assert!(
        head.starts_with("PUT /data/a%20b.jsonl HTTP") && head.contains("\r\nauthorization: Bearer sk-1"),
        "{head}"
    );
    assert!(head.contains("\r\nx-goog-meta-purpose: batch") && !head.contains("x-amz"), "{head}");
    let row = &crate::harness::parse_json_lines(&body)[0]["request"];
    assert_eq!(
        (&row["labels"]["custom_id"], &row["contents"][0]["parts"][0]["text"]),
        (&json!("row-1"), &json!("row-1"))
    );
    let path = format!("/v1/files/{}", response.json()["id"].as_str().unwrap());
    let response = gateway.send(build_request("GET", &path)).await;
    assert_eq!(
        (response.status, &response.json()["filename"], &response.json()["bytes"]),
        (200, &json!("a b.jsonl"), &json!(12))
    );
    assert_eq!(bucket.request_lines(), ["HEAD /data/a%20b.jsonl"]);
}

const DATASET_JSON: &str = r#"{"name":"accounts/acme/datasets/batch-1","displayName":"a.jsonl","state":"READY",
    "createTime":"2023-11-14T22:13:20Z","datasets":[{"name":"accounts/acme/datasets/x","state":"UPLOADING"},
    {"name":"accounts/acme/datasets/batch-1"},{"name":"accounts/acme/datasets/batch-2"}]}"#;

fn fireworks_request(bucket: &MockBucket, method: &str, path: &str) -> TestRequest {
    let request = TestRequest::new(method, path)
        .header("x-gateway-provider", "fireworks-ai")
        .header("authorization", "Bearer sk-1");
    request.header("x-gateway-custom-host", &bucket.server.url()).header("x-gateway-fireworks-account-id", "acme")
}

#[tokio::test]
async fn creates_and_fills_fireworks_datasets_for_files() {
    let bucket = MockBucket::start("GET", 200, DATASET_JSON).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let upload = |purpose: &str, content: &str| {
        let form = multipart_form(&[file_part(content), form_field("purpose", purpose)]);
        fireworks_request(&bucket, "POST", "/v1/files").header("content-type", FORM_CONTENT_TYPE).body(form)
    };
    let model = "accounts/fireworks/models/m";
    let response = gateway.send(upload("batch", &(batch_line("a", model) + &batch_line("b", model)))).await;
    assert_eq!((response.status, &response.json()["status"]), (200, &json!("uploaded")), "{}", response.text());
    let id = response.json()["id"].as_str().unwrap().to_owned();
    assert!(id.starts_with("batch-") && response.json()["filename"] == "a.jsonl", "{id}");
    let datasets = "/v1/accounts/acme/datasets";
    assert_eq!(bucket.request_lines(), [format!("POST {datasets}"), format!("POST {datasets}/{id}:upload")]);
    let received = std::mem::take(&mut *bucket.received.lock().unwrap());
    let created: Value = serde_json::from_slice(&received[0].1).unwrap();
    assert_eq!(created, json!({"datasetId": id, "dataset": {"displayName": "a.jsonl", "userUploaded": {}}}));
    let filled = String::from_utf8_lossy(&received[1].1).into_owned();
    let row = r#"{"custom_id":"b","body":{"seed":7,"messages":[{"role":"user","content":"b"}]}}"#;
    assert!(filled.contains("name=\"file\"") && filled.contains(row) && !filled.contains(model), "{filled}");
    let file_object = gateway.send(fireworks_request(&bucket, "GET", "/v1/files/batch-1")).await.json();
    let keys = ["id", "purpose", "status", "filename", "created_at"];
    assert_eq!(
        json!(keys.map(|key| file_object[key].clone())),
        json!(["batch-1", "batch", "processed", "a.jsonl", 1_700_000_000])
    );
    let list = |query: &str| gateway.send(fireworks_request(&bucket, "GET", &format!("/v1/files?{query}")));
    let page = list("purpose=batch&limit=1").await.json();
    assert_eq!((&page["data"][0]["id"], &page["has_more"]), (&json!("batch-1"), &json!(true)));
    let page = list("purpose=batch&limit=1&after=batch-1").await.json();
    assert_eq!((&page["data"][0]["id"], &page["has_more"]), (&json!("batch-2"), &json!(false)));
    let gone = gateway.send(fireworks_request(&bucket, "DELETE", "/v1/files/batch-1")).await.json();
    assert_eq!(gone, json!({"id": "batch-1", "object": "file", "deleted": true}));
    assert_eq!(bucket.request_lines().last().unwrap(), "DELETE /v1/accounts/acme/datasets/batch-1");
    let requests = bucket.request_lines().len();
    for (request, code) in [
        (upload("vision", "x"), "untranslatable_request"),
        (upload("batch", "x"), "untranslatable_request"),
        (fireworks_request(&bucket, "GET", "/v1/files/a%2Fb"), "invalid_provider_option"),
    ] {
        assert_eq!(gateway.send(request).await.error_code(), code);
    }
    assert_eq!(bucket.request_lines().len(), requests);
}

#[tokio::test]
async fn streams_large_dataset_and_deletes_it_on_failure() {
    for (word, status, body) in
        [("", 200, ""), ("POST /v1/accounts/acme/datasets/", 400, r#"{"code":3,"message":"too much"}"#)]
    {
        let bucket = MockBucket::start(word, status, body).await;
        let form = String::from_utf8(large_upload_body(true).collect().await.unwrap().to_vec())
            .unwrap()
            .replace("user_data", "fine-tune");
        let complete = Bytes::from(form);
        let (feeder, feed) = feed_channel(|| ());
        for at in (0..complete.len()).step_by(200_000) {
            feeder.push(complete.slice(at..complete.len().min(at + 200_000)));
        }
        feeder.finish(BodyEnd::Complete);
        let request = fireworks_request(&bucket, "POST", "/v1/files").header("content-type", FORM_CONTENT_TYPE);
        let response =
            GoldenProvider::gateway_trusting_loopback().send(request.with_body(Body::Streamed(feed, None))).await;
        assert_eq!(response.status, status, "{}", response.text());
        if status == 200 {
            assert_eq!(response.json()["bytes"], PART_BYTES * 3 + 1600);
            assert!(bucket.received.lock().unwrap()[1].1.len() > PART_BYTES * 3);
        } else {
            assert!(response.text().contains("too much"), "{}", response.text());
            assert!(bucket.request_lines().last().unwrap().starts_with("DELETE /v1/accounts/acme/datasets/fine-tune-"));
        }
    }
}

/// Builds a batch of embedding requests, large enough that the upload to the provider begins before the body has ended.
fn embedding_batch_upload(last: &str) -> Body {
    let row = |id: usize, model: &str| {
        let body = json!({"model": model, "input": "x".repeat(1000)});
        json!({"custom_id": id.to_string(), "url": "/v1/embeddings", "body": body}).to_string() + "\n"
    };
    let content: String = (0..400).map(|id| row(id, "m")).chain([row(400, last)]).collect();
    let complete = Bytes::from(multipart_form(&[form_field("purpose", "batch"), file_part(&content)]));
    let (feeder, feed) = feed_channel(|| ());
    for at in (0..complete.len()).step_by(50_000) {
        feeder.push(complete.slice(at..complete.len().min(at + 50_000)));
    }
    feeder.finish(BodyEnd::Complete);
    Body::Streamed(feed, None)
}

#[tokio::test]
async fn uploads_cohere_dataset_completely_or_not_at_all() {
    let bucket = MockBucket::start("POST", 200, r#"{"id":"a-1"}"#).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let build_request = |method, path| {
        TestRequest::new(method, path)
            .header("x-gateway-provider", "cohere")
            .header("authorization", "Bearer sk-1")
            .header("x-gateway-custom-host", &bucket.server.url())
    };
    let upload = |last| {
        build_request("POST", "/v1/files")
            .header("content-type", FORM_CONTENT_TYPE)
            .with_body(embedding_batch_upload(last))
    };
    let response = gateway.send(upload("other")).await;
    assert_eq!((response.status, response.text().contains("line 401")), (400, true), "{}", response.text());
    assert_eq!(bucket.request_lines(), Vec::<String>::new());
    let response = gateway.send(upload("m")).await;
    assert_eq!((response.status, &response.json()["id"]), (200, &json!("a-1")), "{}", response.text());
    assert_eq!(bucket.request_lines(), ["POST /v1/datasets?name=a.jsonl&type=embed-input&optional_fields=custom_id"]);
    let body = String::from_utf8_lossy(&bucket.received.lock().unwrap()[0].1).into_owned();
    assert!(body.contains("name=\"data\"") && body.contains("{\"custom_id\":\"400\",\"text\":\"xxx"), "{body}");
    for path in ["/v1/files/a%2Fb", "/v1/files/.."] {
        assert_eq!(gateway.send(build_request("GET", path)).await.status, 400, "{path}");
    }
    assert_eq!(bucket.request_lines().len(), 1);
}

#[tokio::test]
async fn lists_files_below_the_gateway_prefix() {
    let xml = "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>penstock/files/batch/u/a.jsonl</Key>\
        <LastModified>2023-11-14T22:13:20.000Z</LastModified><Size>7</Size></Contents></ListBucketResult>";
    let bucket = MockBucket::start("GET", 200, xml).await;
    let gateway = GoldenProvider::gateway_trusting_loopback();
    let response = gateway
        .send(bucket.build_request("GET", &format!("/v1/files?limit=1&purpose=batch&after={}", &FILE_PATH[10..])))
        .await;
    let list = response.json();
    assert_eq!(
        (response.status, &list["has_more"], &list["data"][0]["filename"]),
        (200, &json!(true), &json!("a.jsonl"))
    );
    let line = "GET /data?list-type=2&max-keys=1&prefix=penstock%2Ffiles%2Fbatch%2F&start-after=a.jsonl";
    assert_eq!(bucket.request_lines(), [line]);
    for query in ["limit=0", "limit=x", "purpose=other", "after=file-1"] {
        let response = gateway.send(bucket.build_request("GET", &format!("/v1/files?{query}"))).await;
        assert_eq!((response.status, response.error_code().as_str()), (400, "untranslatable_request"), "{query}");
    }
}
