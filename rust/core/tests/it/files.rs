//! Files of providers that keep them in buckets: what is asked of the bucket, and how much of it a caller reaches.

use std::sync::{Arc, Mutex};

use crate::harness::{
    Ask, Rig, Told,
    played::Played,
    scripted::{Scripted, request},
};
use bytes::Bytes;
use penstock_core::ingress::body::{Body, BodyEnd, feed_channel};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const FORM: &str = "multipart/form-data; boundary=edge";
const FILE: &str = "/v1/files/s3%3A%2F%2Fdata%2Fa.jsonl";
const PART: usize = 8 * 1024 * 1024;

/// Heads and bodies of what a bucket was asked.
type Seen = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// A bucket that takes everything, with an answer of its own to requests that begin with a word.
struct Keeper {
    provider: Scripted,
    seen: Seen,
}

impl Keeper {
    async fn start(word: &'static str, status: u16, answer: &'static str) -> Self {
        let seen = Seen::default();
        let noted = Arc::clone(&seen);
        let provider = Scripted::start(move |mut stream, _| {
            let noted = Arc::clone(&noted);
            async move {
                while let Some(bytes) = request(&mut stream).await {
                    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
                    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
                    let (status, body) = match &head {
                        head if !word.is_empty() && head.starts_with(word) => (status, answer),
                        head if head.contains("?uploads=") => (200, "<R><UploadId>up/1</UploadId></R>"),
                        head if head.starts_with("DELETE") => (204, ""),
                        head if head.starts_with("GET") => (200, "content"),
                        _ => (200, ""),
                    };
                    let length = if head.starts_with("HEAD") { 12 } else { body.len() };
                    let said = format!(
                        "HTTP/1.1 {status} X\r\netag: \"t\"\r\nx-amz-request-id: R7\r\ncontent-type: text/html\r\n\
                         x-amz-meta-purpose: vision\r\nlast-modified: Tue, 14 Nov 2023 22:13:20 GMT\r\n\
                         content-length: {length}\r\n\r\n{}",
                        if head.starts_with("HEAD") { "" } else { body }
                    );
                    noted.lock().unwrap().push((head, bytes[end + 4..].to_vec()));
                    stream.write_all(said.as_bytes()).await.unwrap();
                }
            }
        })
        .await;
        Self { provider, seen }
    }

    /// Method and target of all that was asked.
    fn lines(&self) -> Vec<String> {
        let line = |(head, _): &(String, Vec<u8>)| head.split(" HTTP/1.1").next().unwrap().to_owned();
        self.seen.lock().unwrap().iter().map(line).collect()
    }

    fn ask(&self, method: &str, path: &str) -> Ask {
        Ask::new(method, path)
            .header("x-gateway-provider", "bedrock")
            .header("x-gateway-custom-host", &self.provider.url())
            .header("x-gateway-aws-region", "eu-west-1")
            .header("x-gateway-aws-access-key-id", "AKID")
            .header("x-gateway-aws-secret-access-key", "s3cret")
            .header("x-gateway-aws-s3-bucket", "data")
    }

    async fn upload(&self, rig: &Rig, form: impl Into<Bytes>) -> Told {
        rig.send(self.ask("POST", "/v1/files").header("content-type", FORM).body(form)).await
    }
}

fn field(name: &str, value: &str) -> String {
    format!("--edge\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
}

fn file(content: &str) -> String {
    let head = "content-disposition: form-data; name=\"file\"; filename=\"a.jsonl\"\r\ncontent-type: text/plain";
    format!("--edge\r\n{head}\r\n\r\n{content}\r\n")
}

fn form(parts: &[String]) -> String {
    parts.concat() + "--edge--\r\n"
}

fn line(id: &str, model: &str) -> String {
    let body = json!({"model": model, "seed": 7, "messages": [{"role": "user", "content": id}]});
    json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string() + "\n"
}

#[tokio::test]
async fn a_file_is_put_into_the_bucket_looked_at_read_and_deleted() {
    let keeper = Keeper::start("", 0, "").await;
    let rig = Played::rig();
    let told = keeper.upload(&rig, form(&[file("one\n"), field("purpose", "fine-tune")])).await;
    assert_eq!(told.status, 200, "{}", told.text());
    let made = told.json();
    let id = made["id"].as_str().unwrap();
    assert!(id.starts_with("s3%3A%2F%2Fdata%2Fpenstock%2Ffiles%2Ffine-tune%2F") && id.ends_with("%2Fa.jsonl"), "{id}");
    assert_eq!(
        (&made["bytes"], &made["purpose"], &made["filename"]),
        (&json!(4), &json!("fine-tune"), &json!("a.jsonl"))
    );
    let (head, body) = keeper.seen.lock().unwrap().remove(0);
    assert!(head.starts_with("PUT /data/penstock/files/fine-tune/") && body == b"one\n", "{head}");
    for said in
        ["content-length: 4", "content-type: text/plain", "x-amz-meta-purpose: fine-tune", "/eu-west-1/s3/aws4_request"]
    {
        assert!(head.contains(said), "{said} in {head}");
    }
    assert!(head.contains(";x-amz-meta-purpose,") && !head.contains("s3cret") && !head.contains("x-gateway"), "{head}");

    let record = rig.record();
    assert!(record["upstream_response_time"].as_f64().unwrap() > 0.0, "{record}");
    assert_eq!(
        crate::harness::pick(&record, ["response_status_code", "operation", "ai_org"]),
        json!([200, "uploadFile", "bedrock"]),
        "{record}"
    );
    let told = rig.send(keeper.ask("GET", FILE)).await;
    let shown = told.json();
    let expected = json!(["s3%3A%2F%2Fdata%2Fa.jsonl", "file", 12, 1_700_000_000, "a.jsonl", "vision", "processed"]);
    let keys = ["id", "object", "bytes", "created_at", "filename", "purpose", "status"];
    assert_eq!((told.status, keys.map(|key| shown[key].clone()).to_vec()), (200, expected.as_array().unwrap().clone()));
    // As clients say it who encode what is encoded.
    let told =
        rig.send(keeper.ask("GET", &format!("{}/content", FILE.replace('%', "%25"))).header("range", "bytes=0-")).await;
    assert_eq!((told.status, told.text().as_str()), (200, "content"));
    assert_eq!(told.header("content-type"), Some("application/octet-stream"));
    let told = rig.send(keeper.ask("DELETE", FILE)).await;
    assert_eq!(
        (told.status, told.json()),
        (200, json!({"id": "s3%3A%2F%2Fdata%2Fa.jsonl", "object": "file", "deleted": true}))
    );
    let object = |method: &str| format!("{method} /data/a.jsonl");
    assert_eq!(keeper.lines(), [object("HEAD"), object("GET"), object("HEAD"), object("DELETE")]);
    assert!(keeper.seen.lock().unwrap()[1].0.contains("\r\nrange: bytes=0-"));
}

#[tokio::test]
async fn what_a_bucket_refuses_is_told_in_openais_shape() {
    let xml = "<Error><Code>AccessDenied</Code><Message>not you</Message></Error>";
    let keeper = Keeper::start("GET", 403, xml).await;
    let told = Played::rig().send(keeper.ask("GET", &format!("{FILE}/content"))).await;
    let expected = json!({"message": "bedrock error: not you (request R7)", "type": "permission_error", "param": null,
        "code": "AccessDenied"});
    assert_eq!((told.status, told.json()), (403, json!({"error": expected, "provider": "bedrock"})));
    let keeper = Keeper::start("HEAD", 404, "").await;
    for method in ["GET", "DELETE"] {
        let told = Played::rig().send(keeper.ask(method, FILE)).await;
        assert_eq!((told.status, &told.json()["error"]["type"]), (404, &json!("not_found_error")), "{}", told.text());
    }
    assert_eq!(keeper.lines().len(), 2, "what is not there is not deleted");
}

#[tokio::test]
async fn lines_of_a_batch_are_written_in_the_words_of_their_model() {
    let keeper = Keeper::start("", 0, "").await;
    let lines = line("a", "amazon.nova-lite-v1:0") + &line("b", "amazon.nova-lite-v1:0");
    let told = keeper.upload(&Played::rig(), form(&[file(&lines), field("purpose", "batch")])).await;
    assert_eq!((told.status, told.header("x-gateway-not-translated")), (200, Some("seed")), "{}", told.text());
    let body = keeper.seen.lock().unwrap().remove(0).1;
    let rows: Vec<Value> = crate::harness::lines(&body);
    let content = json!([{"role": "user", "content": [{"text": "b"}]}]);
    assert_eq!((&rows[1]["recordId"], &rows[1]["modelInput"]["messages"]), (&json!("b"), &content));
    assert_eq!(told.json()["bytes"], body.len());
    let wrong = file(&(line("a", "amazon.nova-lite-v1:0") + &line("b", "other")));
    let told = keeper.upload(&Played::rig(), form(&[field("purpose", "batch"), wrong])).await;
    assert_eq!((told.status, told.code().as_str()), (400, "untranslatable_request"));
    assert!(told.text().contains("line 2") && told.text().contains("body.model"), "{}", told.text());
    assert!(keeper.lines().is_empty(), "nothing is sent of a file that is wrong");
}

#[tokio::test]
async fn what_a_files_lines_are_for_may_be_said_beside_it() {
    let keeper = Keeper::start("", 0, "").await;
    let nameless = json!({"custom_id": "a", "body": {"messages": [{"role": "user", "content": "x"}]}}).to_string();
    let form_of = |content: &str| form(&[file(content), field("purpose", "batch")]);
    let vertex = |content: &str| {
        Ask::new("POST", "/v1/files")
            .header("x-gateway-provider", "vertex-ai")
            .header("x-gateway-custom-host", &keeper.provider.url())
            .header("x-gateway-vertex-region", "europe-west4")
            .header("x-gateway-vertex-storage-bucket-name", "data")
            .header("x-gateway-provider-batch-endpoint", "/v1/chat/completions")
            .header("authorization", "Bearer t")
            .header("content-type", FORM)
            .body(form_of(content))
    };
    let rig = Played::rig();
    let told = rig.send(vertex(&nameless)).await;
    assert!(told.status == 400 && told.text().contains("body.model"), "{}", told.text());
    for (named, words) in [("gemini-2.5-pro", "contents"), ("claude-sonnet-4-5", "anthropic_version")] {
        let told = rig.send(vertex(&nameless).header("x-gateway-provider-model", named)).await;
        assert_eq!(told.status, 200, "{}", told.text());
        let sent = String::from_utf8(keeper.seen.lock().unwrap().pop().unwrap().1).unwrap();
        assert!(sent.contains(words), "{sent}");
    }
    let amazons = keeper.ask("POST", "/v1/files").header("x-gateway-aws-bedrock-model", "amazon.nova-lite-v1:0");
    let told = rig.send(amazons.header("content-type", FORM).body(form_of(&line("a", "other")))).await;
    assert_eq!(told.status, 200, "{}", told.text());
}

#[tokio::test]
async fn a_dataset_is_as_large_as_was_said_or_it_is_none() {
    let keeper = Keeper::start("GET", 200, DATASET).await;
    let rig = Played::rig();
    let content = "{}\n".repeat(4);
    let upload = |size: &str| {
        of_fireworks(&keeper, "POST", "/v1/files")
            .header("x-gateway-file-purpose", "fine-tune")
            .header("x-gateway-file-upload-size", size)
            .header("content-type", FORM)
            .body(form(&[file(&content)]))
    };
    let told = rig.send(upload("12")).await;
    assert_eq!((told.status, &told.json()["purpose"]), (200, &json!("fine-tune")), "{}", told.text());
    for (size, words) in [("13", "12 bytes of the file came"), ("many", "is no number")] {
        let told = rig.send(upload(size)).await;
        assert_eq!((told.status, told.code().as_str()), (400, "invalid_provider_option"));
        assert!(told.text().contains(words), "{}", told.text());
        assert!(keeper.lines().last().unwrap().starts_with("DELETE "), "{:?}", keeper.lines());
    }
}

/// A form that comes in pieces, the file larger than three parts.
fn large(purpose_first: bool) -> Body {
    let content = "0123456789abcde\n".repeat((PART * 3 + 1600) / 16);
    let (purpose, file) = (field("purpose", "user_data"), file(&content));
    let whole = Bytes::from(form(&if purpose_first { [purpose, file] } else { [file, purpose] }));
    let (feeder, feed) = feed_channel(|| ());
    for at in (0..whole.len()).step_by(200_000) {
        feeder.push(whole.slice(at..whole.len().min(at + 200_000)));
    }
    feeder.finish(BodyEnd::Complete);
    Body::Streamed(feed, None)
}

#[tokio::test]
async fn a_large_file_goes_in_parts_and_none_of_it_stays_where_that_fails() {
    let keeper = Keeper::start("", 0, "").await;
    let ask = |keeper: &Keeper, purpose_first| {
        keeper
            .ask("POST", "/v1/files")
            .header("content-type", FORM)
            .header("x-gateway-aws-s3-object-key", "big")
            .with(large(purpose_first))
    };
    let told = Played::rig().send(ask(&keeper, true)).await;
    assert_eq!((told.status, &told.json()["bytes"]), (200, &json!(PART * 3 + 1600)), "{}", told.text());
    let part = |number: usize| format!("PUT /data/big?partNumber={number}&uploadId=up%2F1");
    let (begin, end) = ("POST /data/big?uploads=".to_owned(), "POST /data/big?uploadId=up%2F1".to_owned());
    assert_eq!(keeper.lines(), [begin, part(1), part(2), part(3), part(4), end]);
    let sizes: Vec<_> = keeper.seen.lock().unwrap().iter().map(|(_, body)| body.len()).collect();
    assert_eq!(sizes[..5], [0, PART, PART, PART, 1600]);
    let tags = String::from_utf8(keeper.seen.lock().unwrap()[5].1.clone()).unwrap();
    assert!(tags.contains("<PartNumber>4</PartNumber><ETag>&quot;t&quot;</ETag>"), "{tags}");

    for (word, status, expected) in [("PUT /data/big?partNumber=2", 503, 503), ("POST /data/big?uploadId", 200, 500)] {
        let keeper = Keeper::start(word, status, "<Error><Code>SlowDown</Code></Error>").await;
        let told = Played::rig().send(ask(&keeper, true)).await;
        assert_eq!((told.status, told.code().as_str()), (expected, "SlowDown"), "{}", told.text());
        assert_eq!(keeper.lines().last().unwrap(), "DELETE /data/big?uploadId=up%2F1");
    }
    let keeper = Keeper::start("", 0, "").await;
    let told = Played::rig().send(ask(&keeper, false)).await;
    assert_eq!((told.status, told.code().as_str()), (400, "untranslatable_request"));
    assert!(
        told.text().contains("purpose: must stand before the file") && keeper.lines().is_empty(),
        "{}",
        told.text()
    );
}

#[tokio::test]
async fn a_part_of_a_large_file_takes_of_the_room_for_bodies() {
    let keeper = Keeper::start("", 0, "").await;
    let rig = Played::rig();
    let of = |bytes: usize| form(&[field("purpose", "fine-tune"), file(&"x".repeat(bytes))]);
    // All of it but a mebibyte, in which the form itself has room.
    let room = &rig.gateway.shared.body_memory;
    let (mut full, mut spare) = (room.new_permit(), room.new_permit());
    assert!(spare.try_reserve(1024 * 1024));
    while full.try_reserve(1024 * 1024) {}
    drop(spare);
    let told = keeper.upload(&rig, of(300 * 1024)).await;
    assert_eq!((told.status, told.code().as_str(), told.header("retry-after")), (503, "no_room", Some("1")));
    assert_eq!((keeper.upload(&rig, of(9)).await.status, keeper.lines().len()), (200, 1));
    drop(full);
    assert_eq!(keeper.upload(&rig, of(300 * 1024)).await.status, 200);
    assert_eq!(room.used_bytes(), 0);
}

#[tokio::test]
async fn a_form_that_is_no_upload_and_a_file_that_is_too_large_are_refused() {
    let keeper = Keeper::start("", 0, "").await;
    let rig = Rig::with("", |settings| {
        settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
        settings.max_body_bytes = 2_000;
    });
    let purpose = || field("purpose", "batch");
    for (body, why) in [
        (form(&[purpose()]), "file: must be sent"),
        (form(&[file("x")]), "purpose: must be sent"),
        (form(&[field("purpose", "other"), file("x")]), "purpose: `other` is not known"),
        ([purpose(), file("x")].concat(), "ends before it is complete"),
        (form(&[purpose(), file("\n")]), "it has no lines"),
    ] {
        let told = keeper.upload(&rig, body).await;
        assert!(told.status == 400 && told.text().contains(why), "{why} in {}", told.text());
    }
    let told = keeper.upload(&rig, form(&[purpose(), file(&"x".repeat(3_000))])).await;
    assert_eq!((told.status, told.code().as_str()), (413, "body_too_large"));
    let told = rig.send(keeper.ask("POST", "/v1/files").header("content-type", "application/jsonl").body("x")).await;
    assert_eq!((told.status, told.code().as_str()), (400, "invalid_header"));
    let told = rig.send(keeper.ask("GET", "/v1/files/file-1")).await;
    assert!(told.status == 400 && told.text().contains("s3%3A%2F%2F"), "{}", told.text());
    assert!(keeper.lines().is_empty());
}

/// A saved provider, of whose models one alone may be used.
fn saved(keeper: &Keeper) -> Rig {
    let rig = Played::rig();
    rig.apply(&json!({"epoch": "1",
        "providers": [{"slug": "mine", "provider": "bedrock", "custom_host": keeper.provider.url(), "models": "m",
            "options": {"aws_region": "eu-west-1", "aws_access_key_id": "A", "aws_secret_access_key": "s",
                "aws_s3_bucket": "data"}}],
        "models": [{"id": "m", "allow_all": false, "models": [{"slug": "amazon.nova-lite-v1:0", "enabled": true}]}]}));
    rig
}

#[tokio::test]
async fn a_stored_credential_reaches_what_the_gateway_keeps_and_nothing_else() {
    let keeper = Keeper::start("", 0, "").await;
    let rig = saved(&keeper);
    let ask = |method: &str, path: &str| Ask::new(method, path).header("x-gateway-provider", "@mine");
    for place in ["data%2Fa.jsonl", "other%2Fpenstock%2Fa", "data%2Fpenstockx%2Fa"] {
        for (method, end) in [("GET", ""), ("GET", "/content"), ("DELETE", "")] {
            let asked = ask(method, &format!("/v1/files/s3%3A%2F%2F{place}{end}"));
            let told = rig.send(asked.header("x-gateway-aws-s3-bucket", "other")).await;
            assert_eq!(
                (told.status, told.code().as_str()),
                (400, "invalid_provider_option"),
                "{place}: {}",
                told.text()
            );
        }
    }
    let upload = |key: &str, content: &str| {
        let form = form(&[field("purpose", "batch"), file(content)]);
        ask("POST", "/v1/files").header("content-type", FORM).header("x-gateway-aws-s3-object-key", key).body(form)
    };
    let good = line("a", "amazon.nova-lite-v1:0");
    let told = rig.send(upload("mine.jsonl", &good)).await;
    assert!(told.status == 400 && told.text().contains("below `penstock/`"), "{}", told.text());
    let told = rig.send(upload("penstock/mine.jsonl", &line("a", "amazon.nova-pro-v1:0"))).await;
    assert_eq!((told.status, told.code().as_str()), (403, "model_not_allowed"), "{}", told.text());
    assert!(keeper.lines().is_empty());
    let told = rig.send(upload("penstock/mine.jsonl", &good)).await;
    assert_eq!(told.status, 200, "{}", told.text());
    let path = format!("/v1/files/{}", told.json()["id"].as_str().unwrap());
    assert_eq!(rig.send(ask("GET", &path)).await.status, 200);
    assert_eq!(keeper.lines(), ["PUT /data/penstock/mine.jsonl", "HEAD /data/penstock/mine.jsonl"]);
    // Where header fields alone are stored, keys of the caller's own reach what is theirs.
    rig.apply(
        &json!({"epoch": "2", "providers": [{"slug": "mine", "provider": "bedrock", "headers": {"x-team": "red"},
        "custom_host": keeper.provider.url(), "options": {"aws_region": "eu-west-1"}}]}),
    );
    let asked = ask("GET", FILE)
        .header("x-gateway-aws-access-key-id", "AKID")
        .header("x-gateway-aws-secret-access-key", "s3cret")
        .header("x-gateway-aws-s3-bucket", "data");
    assert_eq!(rig.send(asked).await.status, 200);
    assert_eq!(keeper.lines().last().unwrap(), "HEAD /data/a.jsonl");
}

#[tokio::test]
async fn files_of_vertex_ai_are_objects_of_cloud_storage() {
    let keeper = Keeper::start("", 0, "").await;
    let rig = Played::rig();
    let ask = |method: &str, path: &str| {
        let ask =
            Ask::new(method, path).header("x-gateway-provider", "vertex-ai").header("authorization", "Bearer sk-1");
        ask.header("x-gateway-custom-host", &keeper.provider.url())
            .header("x-gateway-vertex-region", "europe-west4")
            .header("x-gateway-vertex-storage-bucket-name", "data")
    };
    let form = form(&[file(&line("row-1", "gemini-2.5-pro")), field("purpose", "batch")]);
    let asked =
        ask("POST", "/v1/files").header("content-type", FORM).header("x-gateway-provider-file-name", "a b.jsonl");
    let told = rig.send(asked.body(form)).await;
    assert_eq!((told.status, &told.json()["id"]), (200, &json!("gs%3A%2F%2Fdata%2Fa%20b.jsonl")), "{}", told.text());
    let (head, body) = keeper.seen.lock().unwrap().remove(0);
    assert!(
        head.starts_with("PUT /data/a%20b.jsonl HTTP") && head.contains("\r\nauthorization: Bearer sk-1"),
        "{head}"
    );
    assert!(head.contains("\r\nx-goog-meta-purpose: batch") && !head.contains("x-amz"), "{head}");
    let row = &crate::harness::lines(&body)[0]["request"];
    assert_eq!(
        (&row["labels"]["custom_id"], &row["contents"][0]["parts"][0]["text"]),
        (&json!("row-1"), &json!("row-1"))
    );
    let path = format!("/v1/files/{}", told.json()["id"].as_str().unwrap());
    let told = rig.send(ask("GET", &path)).await;
    assert_eq!((told.status, &told.json()["filename"], &told.json()["bytes"]), (200, &json!("a b.jsonl"), &json!(12)));
    assert_eq!(keeper.lines(), ["HEAD /data/a%20b.jsonl"]);
}

const DATASET: &str = r#"{"name":"accounts/acme/datasets/batch-1","displayName":"a.jsonl","state":"READY",
    "createTime":"2023-11-14T22:13:20Z","datasets":[{"name":"accounts/acme/datasets/x","state":"UPLOADING"},
    {"name":"accounts/acme/datasets/batch-1"},{"name":"accounts/acme/datasets/batch-2"}]}"#;

fn of_fireworks(keeper: &Keeper, method: &str, path: &str) -> Ask {
    let ask =
        Ask::new(method, path).header("x-gateway-provider", "fireworks-ai").header("authorization", "Bearer sk-1");
    ask.header("x-gateway-custom-host", &keeper.provider.url()).header("x-gateway-fireworks-account-id", "acme")
}

#[tokio::test]
async fn files_of_fireworks_are_datasets_that_are_made_and_then_filled() {
    let keeper = Keeper::start("GET", 200, DATASET).await;
    let rig = Played::rig();
    let upload = |purpose: &str, content: &str| {
        let form = form(&[file(content), field("purpose", purpose)]);
        of_fireworks(&keeper, "POST", "/v1/files").header("content-type", FORM).body(form)
    };
    let model = "accounts/fireworks/models/m";
    let told = rig.send(upload("batch", &(line("a", model) + &line("b", model)))).await;
    assert_eq!((told.status, &told.json()["status"]), (200, &json!("uploaded")), "{}", told.text());
    let id = told.json()["id"].as_str().unwrap().to_owned();
    assert!(id.starts_with("batch-") && told.json()["filename"] == "a.jsonl", "{id}");
    let datasets = "/v1/accounts/acme/datasets";
    assert_eq!(keeper.lines(), [format!("POST {datasets}"), format!("POST {datasets}/{id}:upload")]);
    let seen = std::mem::take(&mut *keeper.seen.lock().unwrap());
    let made: Value = serde_json::from_slice(&seen[0].1).unwrap();
    assert_eq!(made, json!({"datasetId": id, "dataset": {"displayName": "a.jsonl", "userUploaded": {}}}));
    let filled = String::from_utf8_lossy(&seen[1].1).into_owned();
    let row = r#"{"custom_id":"b","body":{"seed":7,"messages":[{"role":"user","content":"b"}]}}"#;
    assert!(filled.contains("name=\"file\"") && filled.contains(row) && !filled.contains(model), "{filled}");
    let shown = rig.send(of_fireworks(&keeper, "GET", "/v1/files/batch-1")).await.json();
    let keys = ["id", "purpose", "status", "filename", "created_at"];
    assert_eq!(
        json!(keys.map(|key| shown[key].clone())),
        json!(["batch-1", "batch", "processed", "a.jsonl", 1_700_000_000])
    );
    let list = |query: &str| rig.send(of_fireworks(&keeper, "GET", &format!("/v1/files?{query}")));
    let page = list("purpose=batch&limit=1").await.json();
    assert_eq!((&page["data"][0]["id"], &page["has_more"]), (&json!("batch-1"), &json!(true)));
    let page = list("purpose=batch&limit=1&after=batch-1").await.json();
    assert_eq!((&page["data"][0]["id"], &page["has_more"]), (&json!("batch-2"), &json!(false)));
    let gone = rig.send(of_fireworks(&keeper, "DELETE", "/v1/files/batch-1")).await.json();
    assert_eq!(gone, json!({"id": "batch-1", "object": "file", "deleted": true}));
    assert_eq!(keeper.lines().last().unwrap(), "DELETE /v1/accounts/acme/datasets/batch-1");
    let asked = keeper.lines().len();
    for (ask, code) in [
        (upload("vision", "x"), "untranslatable_request"),
        (upload("batch", "x"), "untranslatable_request"),
        (of_fireworks(&keeper, "GET", "/v1/files/a%2Fb"), "invalid_provider_option"),
    ] {
        assert_eq!(rig.send(ask).await.code(), code);
    }
    assert_eq!(keeper.lines().len(), asked);
}

#[tokio::test]
async fn a_large_dataset_is_filled_as_it_comes_and_is_none_where_that_fails() {
    for (word, status, said) in
        [("", 200, ""), ("POST /v1/accounts/acme/datasets/", 400, r#"{"code":3,"message":"too much"}"#)]
    {
        let keeper = Keeper::start(word, status, said).await;
        let form =
            String::from_utf8(large(true).collect().await.unwrap().to_vec()).unwrap().replace("user_data", "fine-tune");
        let whole = Bytes::from(form);
        let (feeder, feed) = feed_channel(|| ());
        for at in (0..whole.len()).step_by(200_000) {
            feeder.push(whole.slice(at..whole.len().min(at + 200_000)));
        }
        feeder.finish(BodyEnd::Complete);
        let ask = of_fireworks(&keeper, "POST", "/v1/files").header("content-type", FORM);
        let told = Played::rig().send(ask.with(Body::Streamed(feed, None))).await;
        assert_eq!(told.status, status, "{}", told.text());
        if status == 200 {
            assert_eq!(told.json()["bytes"], PART * 3 + 1600);
            assert!(keeper.seen.lock().unwrap()[1].1.len() > PART * 3);
        } else {
            assert!(told.text().contains("too much"), "{}", told.text());
            assert!(keeper.lines().last().unwrap().starts_with("DELETE /v1/accounts/acme/datasets/fine-tune-"));
        }
    }
}

/// Long enough that its file is begun before its end has come.
fn texts(last: &str) -> Body {
    let row = |id: usize, model: &str| {
        let body = json!({"model": model, "input": "x".repeat(1000)});
        json!({"custom_id": id.to_string(), "url": "/v1/embeddings", "body": body}).to_string() + "\n"
    };
    let content: String = (0..400).map(|id| row(id, "m")).chain([row(400, last)]).collect();
    let whole = Bytes::from(form(&[field("purpose", "batch"), file(&content)]));
    let (feeder, feed) = feed_channel(|| ());
    for at in (0..whole.len()).step_by(50_000) {
        feeder.push(whole.slice(at..whole.len().min(at + 50_000)));
    }
    feeder.finish(BodyEnd::Complete);
    Body::Streamed(feed, None)
}

#[tokio::test]
async fn a_dataset_of_cohere_is_made_of_what_it_is_filled_with_or_not_at_all() {
    let keeper = Keeper::start("POST", 200, r#"{"id":"a-1"}"#).await;
    let rig = Played::rig();
    let ask = |method, path| {
        Ask::new(method, path)
            .header("x-gateway-provider", "cohere")
            .header("authorization", "Bearer sk-1")
            .header("x-gateway-custom-host", &keeper.provider.url())
    };
    let upload = |last| ask("POST", "/v1/files").header("content-type", FORM).with(texts(last));
    let told = rig.send(upload("other")).await;
    assert_eq!((told.status, told.text().contains("line 401")), (400, true), "{}", told.text());
    assert_eq!(keeper.lines(), Vec::<String>::new());
    let told = rig.send(upload("m")).await;
    assert_eq!((told.status, &told.json()["id"]), (200, &json!("a-1")), "{}", told.text());
    assert_eq!(keeper.lines(), ["POST /v1/datasets?name=a.jsonl&type=embed-input&optional_fields=custom_id"]);
    let body = String::from_utf8_lossy(&keeper.seen.lock().unwrap()[0].1).into_owned();
    assert!(body.contains("name=\"data\"") && body.contains("{\"custom_id\":\"400\",\"text\":\"xxx"), "{body}");
    for path in ["/v1/files/a%2Fb", "/v1/files/.."] {
        assert_eq!(rig.send(ask("GET", path)).await.status, 400, "{path}");
    }
    assert_eq!(keeper.lines().len(), 1);
}

#[tokio::test]
async fn files_are_listed_where_the_gateway_keeps_them() {
    let xml = "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>penstock/files/batch/u/a.jsonl</Key>\
        <LastModified>2023-11-14T22:13:20.000Z</LastModified><Size>7</Size></Contents></ListBucketResult>";
    let keeper = Keeper::start("GET", 200, xml).await;
    let rig = Played::rig();
    let told = rig.send(keeper.ask("GET", &format!("/v1/files?limit=1&purpose=batch&after={}", &FILE[10..]))).await;
    let list = told.json();
    assert_eq!((told.status, &list["has_more"], &list["data"][0]["filename"]), (200, &json!(true), &json!("a.jsonl")));
    let line = "GET /data?list-type=2&max-keys=1&prefix=penstock%2Ffiles%2Fbatch%2F&start-after=a.jsonl";
    assert_eq!(keeper.lines(), [line]);
    for query in ["limit=0", "limit=x", "purpose=other", "after=file-1"] {
        let told = rig.send(keeper.ask("GET", &format!("/v1/files?{query}"))).await;
        assert_eq!((told.status, told.code().as_str()), (400, "untranslatable_request"), "{query}");
    }
}
