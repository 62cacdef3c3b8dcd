//! Where only some models may be used a provider's own batches name no other: neither in a file on its way there nor in one that is there.

use std::sync::{Arc, Mutex};

use crate::harness::{
    Ask, Rig, Told,
    scripted::{Scripted, whole},
    until,
};
use penstock_core::ingress::body::{Body, BodyEnd, feed_channel};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const FORM: &str = "multipart/form-data; boundary=b-1";

fn line(model: &str) -> String {
    json!({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": model}}).to_string()
        + "\n"
}

/// One whose model is asked along with another, which draws for it.
fn drawing(model: &str) -> String {
    let tool = json!({"type": "image_generation", "model": model});
    let body = json!({"model": "good", "input": "a cat", "tools": [tool]});
    json!({"custom_id": "1", "method": "POST", "url": "/v1/responses", "body": body}).to_string() + "\n"
}

fn part(head: &str, value: &str) -> String {
    format!("--b-1\r\ncontent-disposition: form-data; {head}\r\n\r\n{value}\r\n")
}

/// As some clients send it: what it is for comes behind the file.
fn form(lines: &str, purpose: &str) -> String {
    part("name=\"file\"; filename=\"a.jsonl\"", lines) + &part("name=\"purpose\"", purpose) + "--b-1--\r\n"
}

/// Saved providers that allow `good` alone, `bad` not, and all.
fn restricted(rig: &Rig) {
    let models = |id: &str, allow_all: bool, slug: &str, enabled: bool| json!({"id": id, "allow_all": allow_all, "models": [{"slug": slug, "enabled": enabled}]});
    let provider = |slug: &str| json!({"slug": slug, "provider": "mock", "models": slug});
    let models =
        [models("some", false, "good", true), models("most", true, "bad", false), models("all", true, "good", true)];
    let providers = ["some", "most", "all"].map(provider);
    rig.apply(&json!({"epoch": "1", "models": models, "providers": providers}));
}

fn whole_upload(provider: &str, form: String) -> Ask {
    upload(provider, Body::Complete(form.into()))
}

fn upload(provider: &str, form: Body) -> Ask {
    let ask = Ask::new("POST", "/v1/files").header("x-gateway-provider", &format!("@{provider}"));
    ask.header("content-type", FORM).with(form)
}

fn batch(provider: &str, made: &Value) -> Ask {
    let ask = Ask::new("POST", "/v1/batches").header("x-gateway-provider", &format!("@{provider}"));
    ask.header("content-type", "application/json").body(made.to_string())
}

fn made() -> Value {
    json!({"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"})
}

fn outcome(told: &Told) -> (u16, String) {
    (told.status, told.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
}

fn refused(code: &str) -> (u16, String) {
    (if code == "model_not_allowed" { 403 } else { 400 }, code.to_owned())
}

#[tokio::test]
async fn a_file_with_a_line_for_another_model_goes_nowhere() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    restricted(&rig);
    for (at, lines, code) in [
        ("some", line("good") + &line("other"), "model_not_allowed"),
        ("most", line("other") + &line("bad"), "model_not_allowed"),
        ("some", line("good") + &drawing("other"), "model_not_allowed"),
        ("some", "no lines".into(), "unreadable_batch"),
        ("some", line(""), "unreadable_batch"),
    ] {
        let told = rig.send(whole_upload(at, form(&lines, "batch"))).await;
        assert_eq!(outcome(&told), refused(code), "{}", told.text());
        if code == "model_not_allowed" {
            let chat = Ask::new("POST", "/v1/chat/completions").header("x-gateway-provider", &format!("@{at}"));
            let model = if at == "some" { "other" } else { "bad" };
            let asked = json!({"model": model, "messages": []}).to_string();
            let chat = rig.send(chat.header("content-type", "application/json").body(asked)).await;
            assert_eq!(told.text(), chat.text(), "as a chat with it is refused");
        }
    }
    let no_form = Ask::new("POST", "/v1/files").header("x-gateway-provider", "@some").body(line("good"));
    assert_eq!(rig.send(no_form).await.status, 400);
    assert!(provider.ledger_entries().is_empty());
    for (at, lines, purpose) in [
        ("some", line("good").repeat(3), "batch"),
        ("some", line("other"), "assistants"),
        ("most", line("other"), "batch"),
        ("all", "no lines".into(), "batch"),
    ] {
        let told = rig.send(whole_upload(at, form(&lines, purpose))).await;
        assert_eq!(told.status, 200, "{}", told.text());
    }
    assert_eq!(provider.ledger_entries().len(), 4);
}

#[tokio::test]
async fn a_file_at_a_provider_that_makes_no_batches_of_files_may_be_anything() {
    let provider = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let models = json!([{"id": "some", "allow_all": false, "models": []}]);
    let saved =
        json!([{"slug": "some", "provider": "anthropic", "models": "some", "custom_host": provider.url() + "/v1"}]);
    rig.apply(&json!({"epoch": "1", "models": models, "providers": saved}));
    // Anthropic's files have no purpose.
    let form = part("name=\"file\"; filename=\"a.pdf\"", "%PDF") + "--b-1--\r\n";
    let told = rig.send(whole_upload("some", form).header("anthropic-version", "2023-06-01")).await;
    assert_eq!(told.status, 200, "{}", told.text());
    assert_eq!(provider.ledger_entries().len(), 1);
}

#[tokio::test]
async fn a_batch_of_messages_names_no_other_model_either() {
    let provider = Server::start().await;
    let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
    let models = json!([{"id": "some", "allow_all": false, "models": [{"slug": "good", "enabled": true}]}]);
    let saved = ["anthropic", "openai"]
        .map(|slug| json!({"slug": slug, "provider": slug, "models": "some", "custom_host": provider.url() + "/v1"}));
    rig.apply(&json!({"epoch": "1", "models": models, "providers": saved}));
    let ask = |at: &str, path: &str, model: &str| {
        let made =
            json!({"requests": [{"custom_id": "1", "params": {"model": model, "max_tokens": 1, "messages": []}}]});
        let ask = Ask::new("POST", path).header("x-gateway-provider", &format!("@{at}"));
        ask.header("anthropic-version", "2023-06-01").header("content-type", "application/json").body(made.to_string())
    };
    let batches = "/v1/messages/batches";
    for (at, path, model) in [
        ("anthropic", batches, "other"),
        // What another provider reads there nobody knows.
        ("openai", batches, "good"),
        ("anthropic", "/v1/messages/batches/b/other", "good"),
        ("anthropic", "/v1/messages/batches/a%2Fx/cancel", "good"),
        ("anthropic", "/v1/proxy/v1/messages/batches", "good"),
    ] {
        let told = rig.send(ask(at, path, model)).await;
        assert_eq!(told.status, 403, "{at} {path} {model}: {}", told.text());
    }
    assert!(provider.ledger_entries().is_empty());
    for path in [batches, "/v1/messages/batches/b/cancel"] {
        assert_eq!(rig.send(ask("anthropic", path, "good")).await.status, 200, "{path}");
    }
    assert_eq!(provider.ledger_entries().len(), 2);
}

/// A provider that keeps what it read of one request, and whether its form ended.
async fn listener() -> (Scripted, Arc<Mutex<(String, bool)>>) {
    let read = Arc::new(Mutex::new((String::new(), false)));
    let kept = Arc::clone(&read);
    let provider = Scripted::start(move |mut io, _| {
        let kept = Arc::clone(&kept);
        async move {
            let mut piece = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = io.read(&mut piece).await {
                let mut kept = kept.lock().unwrap();
                kept.0.push_str(&String::from_utf8_lossy(&piece[..count]));
                if kept.0.ends_with("--b-1--\r\n") || kept.0.ends_with("\r\n0\r\n\r\n") {
                    break;
                }
            }
            let _ = io.write_all(&whole("200 OK", "", r#"{"id":"file-1"}"#)).await;
            kept.lock().unwrap().1 = true;
        }
    })
    .await;
    (provider, read)
}

#[tokio::test]
async fn a_file_that_is_on_its_way_already_is_broken_off() {
    for is_chunked in [false, true] {
        for (lines, code) in
            [(line("good").repeat(9_000) + &line("other"), "model_not_allowed"), (line("good").repeat(9_000), "")]
        {
            let (provider, read) = listener().await;
            let rig = Rig::at(&provider.url());
            restricted(&rig);
            let form = form(&lines, "batch");
            let (feeder, feed) = feed_channel(|| ());
            for piece in form.as_bytes().chunks(10_000) {
                feeder.push(bytes::Bytes::copy_from_slice(piece));
            }
            feeder.finish(BodyEnd::Complete);
            let body = Body::Streamed(feed, (!is_chunked).then_some(form.len() as u64));
            let told = rig.send(upload("some", body)).await;
            if code.is_empty() {
                assert_eq!(told.status, 200, "{}", told.text());
                assert!(read.lock().unwrap().0.contains("--b-1--"));
                continue;
            }
            assert_eq!(outcome(&told), refused(code), "{}", told.text());
            until("the provider hears that there is no more", || read.lock().unwrap().1).await;
            let read = read.lock().unwrap();
            assert!(read.0.len() > 100_000 && !read.0.contains("--b-1--") && !read.0.ends_with("0\r\n\r\n"));
        }
    }
}

#[tokio::test]
async fn a_form_that_lacks_its_end_does_not_reach_the_provider_whole() {
    let (provider, read) = listener().await;
    let rig = Rig::at(&provider.url());
    restricted(&rig);
    let form = form(&line("good"), "batch").replace("--b-1--\r\n", "");
    let (feeder, feed) = feed_channel(|| ());
    feeder.push(bytes::Bytes::from(form.clone()));
    feeder.finish(BodyEnd::Complete);
    let told = rig.send(upload("some", Body::Streamed(feed, Some(form.len() as u64)))).await;
    assert_eq!(outcome(&told), refused("unreadable_batch"));
    until("the provider hears that there is no more", || read.lock().unwrap().1).await;
    assert!(!read.lock().unwrap().0.contains("good"));
}

/// A provider whose file has these lines.
async fn having(status: &'static str, lines: String) -> (Scripted, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&asked);
    let provider = Scripted::start(move |mut io, _| {
        let (kept, lines) = (Arc::clone(&kept), lines.clone());
        async move {
            while let Some(request) = crate::harness::scripted::request(&mut io).await {
                let request = String::from_utf8(request).unwrap();
                let answer = if request.starts_with("GET ") {
                    whole(status, "", &lines)
                } else {
                    whole("200 OK", "", r#"{"id":"batch-1","object":"batch"}"#)
                };
                kept.lock().unwrap().push(request);
                io.write_all(&answer).await.unwrap();
            }
        }
    })
    .await;
    (provider, asked)
}

fn targets(asked: &Mutex<Vec<String>>) -> Vec<String> {
    let first = |request: &String| request.split(" HTTP").next().unwrap().to_owned();
    asked.lock().unwrap().iter().map(first).collect()
}

#[tokio::test]
async fn a_batch_is_made_of_a_file_whose_lines_were_looked_at_wherever_it_is_from() {
    let (provider, asked) = having("200 OK", line("good") + line("good").trim_end()).await;
    let rig = Rig::at(&provider.url());
    restricted(&rig);
    let ask = batch("some", &made()).header("range", "bytes=0-1").header("openai-project", "p-1");
    let told = rig.send(ask).await;
    assert_eq!((told.status, &told.json()["id"]), (200, &json!("batch-1")), "{}", told.text());
    assert_eq!(targets(&asked), ["GET /v1/files/file-1/content", "POST /v1/batches"]);
    let first = asked.lock().unwrap()[0].clone();
    assert!(!first.contains("range") && first.contains("openai-project: p-1"), "{first}");
    // Nothing is asked where all models may be used.
    asked.lock().unwrap().clear();
    assert_eq!(rig.send(batch("all", &made())).await.status, 200);
    assert_eq!(targets(&asked), ["POST /v1/batches"]);
}

#[tokio::test]
async fn a_batch_of_a_file_with_a_line_for_another_model_is_not_made() {
    for (status, lines, code) in [
        ("200 OK", line("good") + &line("other"), "model_not_allowed"),
        ("200 OK", "no lines".into(), "unreadable_batch"),
        ("404 Not Found", "{}".into(), "unreadable_batch"),
        ("206 Partial Content", line("good"), "unreadable_batch"),
    ] {
        let (provider, asked) = having(status, lines).await;
        let rig = Rig::at(&provider.url());
        restricted(&rig);
        let told = rig.send(batch("some", &made())).await;
        assert_eq!(outcome(&told), refused(code), "{}", told.text());
        assert_eq!(targets(&asked), ["GET /v1/files/file-1/content"]);
    }
}

#[tokio::test]
async fn lines_that_come_in_another_way_than_a_file_are_refused() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    restricted(&rig);
    let with = |key: &str, value: Value| {
        let mut made = made();
        made[key] = value;
        made
    };
    for made in [
        with("input_blob", json!("https://example.com/lines")),
        with("requests", json!([])),
        with("input_files", json!(["file-2"])),
        with("input_file_id", json!("..")),
        json!({"endpoint": "/v1/chat/completions"}),
    ] {
        let told = rig.send(batch("some", &made)).await;
        assert_eq!(outcome(&told), refused("unreadable_batch"), "{}", told.text());
    }
    let told = rig.send(batch("some", &with("model", json!("other")))).await;
    assert_eq!(outcome(&told), refused("model_not_allowed"));
    assert!(provider.ledger_entries().is_empty());
}
