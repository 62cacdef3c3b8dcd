//! Spool of records: what is in the files at each moment of a request, and which bodies they hold.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    task::Poll,
};

use bytes::Bytes;
use penstock_core::{
    accounting::spool::{
        Source, Spool,
        frame::{
            FLAG_AMENDMENT_FOLLOWS, FLAG_CUT, FLAG_DROPPED, FLAG_REFUSED, FrameKind, FrameReader, MAX_PAYLOAD_BYTES,
            read_segment_header,
        },
    },
    process::settings::Settings,
};
use penstock_mock::Server;
use penstock_net::body::{Body, BodyEnd, feed_channel};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use uuid::Uuid;

use crate::harness::{
    CHAT_PATH, TestGateway, TestRequest, TestResponse, chat_body, chat_body_with_usage, chat_request,
    golden_provider::{GoldenProvider, golden_case},
    into_stream, pick_fields, post_request,
    scripted_server::{ScriptedServer, json_response, read_request, sse_response},
    sha256_hex, stream_request, wait_until, with_timeout,
};

pub const BEGIN: u8 = 1;
pub const CLIENT_REQUEST: u8 = 2;
const UPSTREAM_REQUEST: u8 = 3;
const UPSTREAM_RESPONSE: u8 = 4;
pub const CLIENT_RESPONSE: u8 = 5;
pub const END: u8 = 6;
pub const AMEND: u8 = 7;
const UPSTREAM_HEAD: u8 = 10;

/// Spool folder of one test.
pub struct SpoolFolder(PathBuf);

pub struct OwnedFrame {
    pub kind: u8,
    flags: u8,
    id: String,
    payload: Vec<u8>,
}

impl OwnedFrame {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.payload).unwrap()
    }
}

impl SpoolFolder {
    pub fn new() -> Self {
        Self(std::env::temp_dir().join(format!("penstock-spool-it-{:016x}", fastrand::u64(..))))
    }

    pub fn gateway(&self, url: &str, change: impl FnOnce(&mut Settings)) -> TestGateway {
        TestGateway::with_settings(url, |settings| {
            settings.spool_path = Some(self.0.to_str().unwrap().to_owned());
            settings.trusted_custom_hosts = vec!["127.0.0.1".into()];
            change(settings);
        })
    }

    fn segments(&self) -> Vec<PathBuf> {
        segment_paths(&self.0)
    }

    /// Returns all frames that are in the files now.
    pub fn frames(&self) -> Vec<OwnedFrame> {
        read_frames(&self.0)
    }

    pub fn kinds(&self) -> Vec<u8> {
        self.frames().iter().map(|frame| frame.kind).collect()
    }

    /// Returns everything that is in the files now.
    pub fn text(&self) -> String {
        let payloads: Vec<_> = self.frames().into_iter().map(|frame| frame.payload).collect();
        String::from_utf8_lossy(&payloads.concat()).into_owned()
    }

    /// Returns the concatenated chunks of a body.
    pub fn body(&self, kind: u8) -> String {
        let chunks = self.frames().into_iter().filter(|frame| frame.kind == kind).map(|frame| frame.payload);
        String::from_utf8(chunks.collect::<Vec<_>>().concat()).unwrap()
    }

    /// Returns the only frame of this kind.
    fn single(&self, kind: u8) -> OwnedFrame {
        let mut frames = self.frames();
        frames.retain(|frame| frame.kind == kind);
        assert_eq!(frames.len(), 1, "frames of kind {kind} among {:?}", self.kinds());
        frames.remove(0)
    }
}

/// Builds a request to a provider whose responses the gateway does not normalise.
fn unchanged_request(url: &str, path: &str, body: &str) -> TestRequest {
    let request = TestRequest::new("POST", path)
        .header("x-gateway-provider", "openai")
        .header("x-gateway-custom-host", &format!("{url}/v1"));
    request.header("authorization", "Bearer sk-1").header("content-type", "application/json").body(body.to_owned())
}

fn segment_paths(folder: &Path) -> Vec<PathBuf> {
    let files = |folder: &Path| fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = files(folder).flat_map(|writer| files(&writer).collect::<Vec<_>>()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    paths.sort();
    paths
}

fn read_frames(folder: &Path) -> Vec<OwnedFrame> {
    let mut frames = Vec::new();
    for path in segment_paths(folder) {
        let data = fs::read(path).unwrap();
        let (_, start) = read_segment_header(&data).unwrap();
        frames.extend(FrameReader::new(&data, start).map(|frame| OwnedFrame {
            kind: frame.kind,
            flags: frame.flags,
            id: frame.id.to_string(),
            payload: frame.payload.to_vec(),
        }));
    }
    frames
}

impl Drop for SpoolFolder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

#[tokio::test]
async fn record_begins_before_the_request_is_sent_and_ends_before_the_response_is_delivered() {
    let spool = SpoolFolder::new();
    let kinds_at_arrival = Arc::new(Mutex::new(Vec::new()));
    let (folder, kinds) = (spool.0.clone(), Arc::clone(&kinds_at_arrival));
    let provider = ScriptedServer::start(move |mut stream, _| {
        let (folder, kinds) = (folder.clone(), Arc::clone(&kinds));
        async move {
            read_request(&mut stream).await;
            *kinds.lock().unwrap() = read_frames(&folder).iter().map(|frame| frame.kind).collect();
            let response_body = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":8,"total_tokens":17}}"#;
            stream.write_all(&json_response("200 OK", "", response_body)).await.unwrap();
        }
    })
    .await;
    let gateway = spool.gateway(&provider.url(), |_| ());
    let body = chat_body("m", false);
    let request = post_request(CHAT_PATH, body.clone()).header("x-gateway-trace-id", "t-1");
    let response = gateway.handle_request(request.header("x-stainless-package-version", "2.8.1")).await;
    assert_eq!(*kinds_at_arrival.lock().unwrap(), [BEGIN, CLIENT_REQUEST]);
    // Nothing of the response was read yet.
    let frames = spool.frames();
    assert_eq!(spool.kinds(), [BEGIN, CLIENT_REQUEST, UPSTREAM_RESPONSE, UPSTREAM_HEAD, END]);
    assert!(frames.iter().all(|frame| frame.id == frames[0].id && frame.flags == 0));
    let response = TestResponse::read(response).await;
    assert_eq!(spool.body(CLIENT_REQUEST), body);
    assert_eq!(spool.body(UPSTREAM_RESPONSE), response.text());
    let begin = pick_fields(&frames[0].json(), ["id", "trace_id", "request_url", "ai_model", "operation"]);
    assert_eq!(begin, json!([frames[0].id, "t-1", CHAT_PATH, "m", "chatComplete"]));
    let end = pick_fields(&frames[4].json(), ["id", "outcome", "response_status_code", "res_units", "body"]);
    assert_eq!(end, json!([frames[0].id, "complete", 200, 8, "complete"]));
    let names = ["virtual_key", "workspace_id", "sdk_version", "request_bytes", "source"];
    let fields = pick_fields(&frames[4].json(), names);
    assert_eq!(fields, json!([null, null, "2.8.1", body.len(), "gateway"]));
    let attempt = &frames[4].json()["attempts"][0];
    let names = ["provider", "host", "status", "target", "model"];
    assert_eq!(pick_fields(attempt, names), json!(["mock", "127.0.0.1", 200, "config", frames[4].json()["ai_model"]]));
    assert!(attempt["duration"].is_number() && frames[4].json()["gateway_processing_time"].is_number());
    assert_eq!(frames[4].json()["response_headers"]["content-type"], "application/json");
    // With a spool, no record goes to the control process.
    assert_eq!(gateway.state.record_sink.outbox.accepted_lines(), 0);
    assert_eq!(gateway.state.record_sink.spool.as_ref().unwrap().counters().records, 1);
}

#[tokio::test]
async fn record_of_a_stream_ends_before_its_last_chunk_is_delivered() {
    let provider = Server::start().await;
    for (path, last) in [(CHAT_PATH, "data: [DONE]\n\n"), ("/v1/messages", "message_stop")] {
        let spool = SpoolFolder::new();
        let gateway = spool.gateway(&provider.url(), |_| ());
        let body = chat_body_with_usage("mock?chunks=50&chunk_ms=1");
        let request = unchanged_request(&provider.url(), path, &body);
        let request = if path == CHAT_PATH { request } else { stream_request(path, "mock?chunks=50&chunk_ms=1") };
        let mut stream = into_stream(gateway.handle_request(request).await);
        let mut text = String::new();
        loop {
            let chunk = with_timeout(stream.next()).await.unwrap().unwrap();
            text.push_str(std::str::from_utf8(&chunk).unwrap());
            let has_ended = spool.kinds().contains(&END);
            assert_eq!(has_ended, text.contains(last), "{path}: {text}");
            if has_ended {
                break;
            }
        }
        assert_eq!(with_timeout(stream.next()).await, Ok(None));
        assert_eq!((spool.body(UPSTREAM_RESPONSE), spool.body(CLIENT_RESPONSE)), (text, String::new()), "{path}");
        assert_eq!(pick_fields(&spool.single(END).json(), ["outcome", "res_units"]), json!(["complete", 50]), "{path}");
        assert_eq!(gateway.state.record_sink.metrics.in_flight(), 0);
    }
}

#[tokio::test]
async fn record_of_a_large_response_ends_before_its_last_byte_is_delivered() {
    let content = "x".repeat(700_000);
    let provider =
        ScriptedServer::start_responding(json_response("200 OK", "", &json!({"text": content}).to_string())).await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |_| ());
    let mut stream = into_stream(
        gateway.handle_request(unchanged_request(&provider.url(), CHAT_PATH, &chat_body("m", false))).await,
    );
    let (mut received, mut is_ended) = (0, false);
    while let Some(chunk) = with_timeout(stream.next()).await.unwrap() {
        received += chunk.len();
        is_ended = spool.kinds().contains(&END);
        assert_eq!(is_ended, received == content.len() + r#"{"text":""}"#.len());
    }
    assert!(is_ended);
    assert_eq!(spool.body(UPSTREAM_RESPONSE).len(), received);
}

#[tokio::test]
async fn aborted_stream_keeps_what_was_delivered() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |_| ());
    let mut stream = into_stream(
        gateway
            .handle_request(unchanged_request(
                &provider.url(),
                CHAT_PATH,
                &chat_body_with_usage("mock?chunks=500&chunk_ms=2"),
            ))
            .await,
    );
    let first = with_timeout(stream.next()).await.unwrap().unwrap();
    assert!(!spool.kinds().contains(&END));
    drop(stream);
    wait_until("the record is complete", || spool.kinds().contains(&END)).await;
    assert_eq!(spool.single(END).json()["outcome"], "aborted");
    assert_eq!(spool.body(UPSTREAM_RESPONSE).as_bytes(), first);
}

#[tokio::test]
async fn unauthenticated_request_writes_only_an_end_frame() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |_| ());
    gateway.apply_snapshot(&json!({"epoch": "1", "keys": [{"id": "k", "name": "k", "sha256": sha256_hex("pk")}]}));
    assert_eq!(gateway.send(chat_request("CANARY-model")).await.status, 401);
    let end = spool.single(END);
    assert_eq!((spool.kinds().len(), end.flags, &end.json()["outcome"]), (1, FLAG_REFUSED, &json!("refused")));
    assert!(!String::from_utf8_lossy(&end.payload).contains("CANARY"));
    let counters = gateway.state.record_sink.spool.as_ref().unwrap().counters();
    assert_eq!((counters.records, counters.refused_records), (0, 1));
}

#[tokio::test]
async fn own_errors_are_recorded_as_delivered() {
    let spool = SpoolFolder::new();
    let gateway = spool.gateway("http://127.0.0.1:1", |_| ());
    let response = gateway.send(chat_request("m")).await;
    assert!(response.status >= 500);
    assert_eq!(spool.kinds(), [BEGIN, CLIENT_REQUEST, CLIENT_RESPONSE, UPSTREAM_HEAD, END]);
    assert_eq!(spool.body(CLIENT_RESPONSE), response.text());
}

#[tokio::test]
async fn long_bodies_are_cut_and_flagged() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |settings| settings.record_body_bytes = 50);
    let body = chat_body("mock", false);
    let response = gateway.send(post_request(CHAT_PATH, body.clone())).await;
    assert_eq!(spool.body(CLIENT_REQUEST), body[..50]);
    assert_eq!(spool.body(UPSTREAM_RESPONSE), response.text()[..50]);
    assert_eq!((spool.single(CLIENT_REQUEST).flags, spool.single(UPSTREAM_RESPONSE).flags), (FLAG_CUT, FLAG_CUT));
    assert_eq!(spool.single(END).json()["body"], "cut");
}

#[tokio::test]
async fn bodies_are_left_out_if_the_settings_the_request_or_its_workspace_say_so() {
    let provider = Server::start().await;
    let figures_alone = json!({"epoch": "1", "workspaces": [{"id": "w", "figures_alone": true}],
        "keys": [{"id": "k", "name": "k", "workspace": "w", "sha256": sha256_hex("pk")}]});
    for (keeps_bodies, debug, snapshot) in
        [(false, "true", None), (true, "false", None), (true, "true", Some(figures_alone))]
    {
        for model in ["mock", "mock?status=400"] {
            let spool = SpoolFolder::new();
            let gateway = spool.gateway(&provider.url(), |settings| settings.record_bodies = keeps_bodies);
            if let Some(snapshot) = &snapshot {
                gateway.apply_snapshot(snapshot);
            }
            let request = chat_request(model).header("x-gateway-debug", debug).header("x-gateway-api-key", "pk");
            gateway.send(request).await;
            assert_eq!(spool.kinds(), [BEGIN, END]);
            assert_eq!(spool.single(END).json()["body"], "off");
        }
    }
}

#[tokio::test]
async fn full_spool_loses_bodies_first_and_records_wait_in_memory() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |settings| settings.spool_bytes = 4_000);
    for _ in 0..10 {
        assert_eq!(gateway.send(chat_request("mock")).await.status, 200);
    }
    let sink = gateway.state.record_sink.spool.as_ref().unwrap();
    assert!(sink.counters().waiting_bytes > 0 && sink.counters().bodies_dropped > 0);
    let ends = || spool.frames().into_iter().filter(|frame| frame.kind == END).collect::<Vec<_>>();
    assert_eq!((ends()[0].json()["body"].as_str(), ends().len() < 10), (Some("complete"), true));
    let before: usize = spool.segments().iter().map(|path| fs::metadata(path).unwrap().len() as usize).sum();
    assert!(before < 5_500, "{before}");
    // Empties the segment, as the log worker does after it has read the only segment. It deletes a segment only if the
    // writer has a newer one.
    let [segment] = &spool.segments()[..] else { panic!("one segment") };
    let written = ends().len();
    fs::write(segment, b"").unwrap();
    sink.maintain();
    let data = fs::read(segment).unwrap();
    let waited: Vec<_> = FrameReader::new(&data, 0).filter(|frame| frame.kind == END).collect();
    assert_eq!((waited.len() + written, sink.counters().records, sink.counters().records_dropped), (10, 10, 0));
    assert!(waited.iter().all(|frame| frame.flags == FLAG_DROPPED));
}

#[tokio::test]
async fn translated_requests_are_recorded_in_both_formats() {
    for (case, kind) in [("complete", "application/json"), ("stream", "text/event-stream")] {
        let files = golden_case(&format!("anthropic/chatComplete/{case}"));
        let name = if case == "complete" { "response.json" } else { "response.sse" };
        let reply = fs::read(files.path(name)).unwrap();
        let golden_provider = GoldenProvider::start(200, kind, reply.clone(), 50).await;
        let spool = SpoolFolder::new();
        let gateway = spool.gateway("", |_| ());
        let body = chat_body("claude-x", case == "stream");
        let response = gateway.send(golden_provider.build_request("anthropic", CHAT_PATH, body.clone().into())).await;
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(spool.body(CLIENT_REQUEST), body);
        let sent = String::from_utf8(golden_provider.last_request.lock().unwrap().clone()).unwrap();
        let sent = sent.split_once("\r\n\r\n").unwrap().1;
        assert_eq!(spool.body(UPSTREAM_REQUEST), sent);
        assert_eq!(spool.body(UPSTREAM_RESPONSE).as_bytes(), reply, "{case}");
        assert_eq!(spool.body(CLIENT_RESPONSE), response.text(), "{case}");
        assert_eq!(spool.kinds().last(), Some(&END));
    }
}

#[tokio::test]
async fn only_the_attempt_that_responded_is_recorded() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |_| ());
    let target = |model: &str| json!({"provider": "mock", "override_params": {"model": model}});
    let config =
        json!({"strategy": {"mode": "fallback"}, "targets": [target("mock?status=503"), target("mock?chunks=3")]});
    let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-config", &config.to_string());
    let response = gateway.send(request.header("content-type", "application/json").body(chat_body("m", false))).await;
    assert_eq!((response.status, spool.body(UPSTREAM_RESPONSE)), (200, response.text()));
    let sent: Value = serde_json::from_str(&spool.body(UPSTREAM_REQUEST)).unwrap();
    assert_eq!(sent["model"], "mock?chunks=3");
    assert_eq!(spool.body(CLIENT_REQUEST), chat_body("m", false));
    let end = spool.frames().pop().unwrap().json();
    let attempts: Vec<_> = end["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| pick_fields(attempt, ["provider", "model", "target", "status"]))
        .collect();
    let expected = [
        json!(["mock", "mock?status=503", "config.targets[0]", 503]),
        json!(["mock", "mock?chunks=3", "config.targets[1]", 200]),
    ];
    assert_eq!(attempts, expected);
}

#[tokio::test]
async fn attempts_have_the_messages_of_the_provider_unless_bodies_are_not_recorded() {
    for (body, part) in [
        (json!({"error": {"message": "no quota for CANARY-stored-key", "code": "quota"}}), "no quota for ***"),
        (json!([{"error": {"message": "é".repeat(2000)}}]), "ééé"),
        (json!({"detail": "no such deployment"}), "no such deployment"),
        (json!({"error": "overloaded"}), "overloaded"),
    ] {
        let provider = ScriptedServer::start_responding(json_response("429 x", "", &body.to_string())).await;
        for debug in ["true", "false"] {
            let spool = SpoolFolder::new();
            let gateway = spool.gateway(&provider.url(), |_| ());
            gateway.apply_snapshot(&json!({"epoch": "1",
                "providers": [{"slug": "mine", "provider": "mock", "api_key": "CANARY-stored-key"}]}));
            let config = json!({"strategy": {"mode": "fallback"}, "targets": [{"provider": "@mine"}]});
            let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-config", &config.to_string());
            let request = request.header("content-type", "application/json").header("x-gateway-debug", debug);
            assert_eq!(gateway.send(request.body(chat_body("m", false))).await.status, 429);
            let end = spool.frames().pop().unwrap().json();
            let reason = end["attempts"][0]["reason"].as_str().unwrap_or_default();
            assert_eq!(reason.contains(part), debug == "true", "{reason}");
            assert!(reason.len() <= 512 && !spool.text().contains("CANARY"));
        }
    }
}

#[tokio::test]
async fn stream_without_the_hidden_usage_is_recorded_as_delivered_too() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |_| ());
    let response = gateway.send(post_request(CHAT_PATH, chat_body("mock?chunks=5", true))).await;
    assert_eq!(spool.body(CLIENT_RESPONSE), response.text());
    assert!(!response.text().contains("\"usage\":{") && spool.body(UPSTREAM_RESPONSE).contains("\"usage\":{"));
    assert!(spool.body(UPSTREAM_REQUEST).contains("include_usage"));
}

#[tokio::test]
async fn counted_usage_follows_in_an_amendment() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |_| ());
    let response = gateway.handle_request(chat_request("mock?usage=off")).await;
    let end = spool.single(END);
    assert_eq!(end.flags, FLAG_AMENDMENT_FOLLOWS);
    let fields = pick_fields(&end.json(), ["outcome", "res_units", "response_status_code"]);
    assert_eq!(fields, json!(["complete", null, 200]));
    wait_until("the tokens are counted", || spool.kinds().contains(&AMEND)).await;
    let amended = spool.single(AMEND);
    assert_eq!((&amended.id, &amended.json()["units_estimated"]), (&spool.single(END).id, &json!(true)));
    assert!(amended.json()["total_units"].as_u64().unwrap() > 0);
    assert_eq!(TestResponse::read(response).await.status, 200);
    assert_eq!(gateway.state.record_sink.spool.as_ref().unwrap().counters().records, 1);
}

#[tokio::test]
async fn cached_response_is_recorded_as_delivered() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |_| ());
    let config = json!({"provider": "mock", "cache": {"mode": "simple"}}).to_string();
    let build_request = || {
        let build_request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-config", &config);
        build_request.header("content-type", "application/json").body(chat_body("mock", false))
    };
    let first = gateway.send(build_request()).await;
    assert_eq!(gateway.send(build_request()).await.header("x-gateway-cache-status"), Some("HIT"));
    assert_eq!((spool.body(UPSTREAM_RESPONSE), spool.body(CLIENT_RESPONSE)), (first.text(), first.text()));
    assert_eq!(
        spool.kinds(),
        [BEGIN, CLIENT_REQUEST, UPSTREAM_RESPONSE, UPSTREAM_HEAD, END, BEGIN, CLIENT_REQUEST, CLIENT_RESPONSE, END]
    );
}

#[tokio::test]
async fn uploaded_body_is_recorded_as_it_passes() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |_| ());
    let (feeder, feed) = feed_channel(|| ());
    let content = "0123456789".repeat(2_000);
    for chunk in content.as_bytes().chunks(3_000) {
        feeder.push(Bytes::copy_from_slice(chunk));
    }
    feeder.finish(BodyEnd::Complete);
    let request = TestRequest::new("POST", "/v1/proxy/upload").header("x-gateway-provider", "mock");
    let body = Body::Streamed(feed, Some(content.len() as u64));
    gateway.send(request.header("content-type", "application/octet-stream").with_body(body)).await;
    assert_eq!(spool.body(CLIENT_REQUEST), content);
    assert_eq!(spool.kinds()[0], BEGIN);
}

#[tokio::test]
async fn stored_secrets_are_not_in_the_recorded_bodies() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |_| ());
    let tools = json!([{"type": "mcp", "server_label": "crm", "authorization": "CANARY-mcp-token-0123456789"}]);
    let config = json!({"provider": "mock", "override_params": {"tools": tools}});
    gateway.apply_snapshot(&json!({"epoch": "1", "configs": [{"slug": "pc-crm", "config": config}]}));
    let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-config", "pc-crm");
    let request = request.header("authorization", "Bearer CANARY-key").header("content-type", "application/json");
    assert_eq!(gateway.send(request.body(chat_body("mock", false))).await.status, 200);
    assert!(spool.body(UPSTREAM_REQUEST).contains("***"));
    for path in spool.segments() {
        assert!(!String::from_utf8_lossy(&fs::read(path).unwrap()).contains("CANARY"));
    }
}

#[tokio::test]
async fn head_of_the_request_to_the_provider_is_recorded_with_masks() {
    let provider = Server::start().await;
    let record_head = |config: Value, path: &str| {
        let url = provider.url();
        let path = path.to_owned();
        async move {
            let spool = SpoolFolder::new();
            let gateway = spool.gateway(&url, |settings| settings.sensitive_headers = vec!["X-Team".into()]);
            let request = TestRequest::new("POST", &path).header("x-gateway-config", &config.to_string());
            let request = request
                .header("content-type", "application/json")
                .header("x-team", "CANARY-team")
                .header("openai-beta", "CANARY-listed")
                .header("x-gateway-sensitive-headers", "openai-beta")
                .header("user-agent", "test");
            gateway.send(request.body(chat_body("mock", false))).await;
            // The provider's own response may repeat the query.
            let mut frames = spool.frames().into_iter().filter(|frame| frame.kind != UPSTREAM_RESPONSE);
            assert!(frames.all(|frame| !String::from_utf8_lossy(&frame.payload).contains("CANARY")));
            spool.single(UPSTREAM_HEAD).json()
        }
    };
    let forwarded = json!(["x-team", "openai-beta"]);
    let target = json!({"provider": "mock", "api_key": "CANARY-key", "forward_headers": forwarded});
    let hedged = json!({"strategy": {"mode": "fallback"}, "targets": [
        {"provider": "mock", "override_params": {"model": "mock?status=503"}}, target]});
    for config in [target.clone(), hedged] {
        let head = record_head(config, CHAT_PATH).await;
        assert_eq!(head["url"], format!("{}{CHAT_PATH}", provider.url()));
        let names = ["content-type", "authorization", "x-team", "openai-beta"];
        assert_eq!(pick_fields(&head["headers"], names), json!(["application/json", "***", "***", "***"]));
        assert_eq!((&head["method"], head["headers"]["host"].is_string()), (&json!("POST"), true));
    }
    let head = record_head(target, "/v1/proxy/agents?page=2&key=CANARY-query").await;
    assert_eq!(head["url"], format!("{}/v1/agents?page=2&key=***", provider.url()));
}

#[tokio::test]
async fn secrets_in_the_body_of_a_client_are_not_recorded() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |_| ());
    let tool = json!({"type": "mcp", "server_label": "crm", "server_url": "https://h/mcp?sig=CANARY-signature",
        "authorization": "CANARY-1", "headers": {"X-Team": "CANARY-2"}});
    let servers = json!([{"type": "url", "url": "https://h/mcp", "name": "crm", "authorization_token": "CANARY-3"}]);
    for path in [CHAT_PATH, "/v1/responses", "/v1/messages", "/v1/proxy/agents", "/v1/realtime/client_secrets"] {
        let body = json!({"model": "mock", "tools": [tool], "mcp_servers": servers, "max_tokens": 9,
            "messages": [{"role": "user", "content": "hello"}], "input": "hello"});
        for config in [json!({"provider": "mock"}), json!({"provider": "mock", "override_params": {"seed": 1}})] {
            let request = TestRequest::new("POST", path).header("x-gateway-config", &config.to_string());
            let request = request.header("content-type", "application/json").body(body.to_string());
            gateway.send(request).await;
        }
    }
    let bodies = spool.frames().into_iter().filter(|frame| frame.kind == CLIENT_REQUEST).count();
    assert_eq!(bodies, 8, "all but those that ask for a new secret");
    for path in spool.segments() {
        let text = String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        assert!(text.contains("\"authorization\":\"***\"") && text.contains("hello") && !text.contains("CANARY"));
    }
}

#[tokio::test]
async fn broken_stream_is_recorded_as_cut() {
    let events = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let provider = ScriptedServer::start_responding(sse_response(events.as_bytes(), 4096)).await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |_| ());
    let response = gateway.send(stream_request(CHAT_PATH, "m")).await;
    assert!(response.text().contains("upstream"), "{}", response.text());
    assert_eq!(spool.single(END).json()["outcome"], "cut");
    assert_eq!(spool.body(UPSTREAM_RESPONSE), events);
    assert!(spool.frames().iter().all(|frame| frame.payload.len() < MAX_PAYLOAD_BYTES));
}

#[tokio::test]
async fn records_name_the_owner_of_the_key_the_saved_provider_and_the_config() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |_| ());
    // The key's default config applies.
    gateway.apply_snapshot(&json!({"epoch": "1",
        "workspaces": [{"id": "w-1", "slug": "ws-one", "organisation_id": "o-1"}],
        "keys": [{"id": "k", "name": "dev", "workspace": "w-1", "user_id": "u-1", "sha256": sha256_hex("pk"),
            "defaults": {"config_id": "c-1"}}],
        "configs": [{"id": "c-1", "version_id": "v-1", "slug": "pc-one", "workspace": "w-1",
            "config": {"provider": "@mine"}}],
        "providers": [{"id": "p-1", "integration_id": "i-1", "slug": "mine", "provider": "mock", "workspace": "w-1"}]}));
    let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-api-key", "pk");
    let request = request.header("x-gateway-metadata", r#"{"_user":"ann"}"#).header("content-type", "application/json");
    assert_eq!(gateway.send(request.body(chat_body("mock", false))).await.status, 200);
    let owner = ["organisation_id", "workspace_id", "workspace_slug", "api_key_id", "api_key_name", "user_id", "user"];
    let target = ["virtual_key", "provider_id", "integration_id", "config", "config_id", "config_version_id"];
    for kind in [BEGIN, END] {
        let record = spool.single(kind).json();
        assert_eq!(pick_fields(&record, owner), json!(["o-1", "w-1", "ws-one", "k", "dev", "u-1", "ann"]));
        assert_eq!(pick_fields(&record, target), json!(["mine", "p-1", "i-1", "pc-one", "c-1", "v-1"]));
    }
}

#[tokio::test]
async fn record_names_the_saved_provider_that_responded() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |_| ());
    let saved = |name: &str| json!({"id": format!("p-{name}"), "slug": name, "provider": "mock"});
    let target = |name: &str, model: &str| json!({"provider": name, "override_params": {"model": model}});
    let config = json!({"strategy": {"mode": "fallback"},
        "targets": [target("@first", "mock?status=503"), target("@second", "mock")]});
    gateway.apply_snapshot(&json!({"epoch": "1", "providers": [saved("first"), saved("second")],
        "configs": [{"slug": "pc-file", "config": config}]}));
    let request = TestRequest::new("POST", CHAT_PATH).header("x-gateway-config", "pc-file");
    let request = request.header("content-type", "application/json").body(chat_body("m", false));
    assert_eq!(gateway.send(request).await.status, 200);
    // A config of the settings file has no id.
    let fields = ["virtual_key", "provider_id", "integration_id", "config", "config_id", "config_version_id"];
    let expected = json!(["second", "p-second", null, "pc-file", null, null]);
    assert_eq!(pick_fields(&spool.single(END).json(), fields), expected);
}

#[tokio::test]
async fn records_are_on_the_disk_before_the_response_ends_if_the_settings_demand_it() {
    let provider = Server::start().await;
    for is_durable in [false, true] {
        let spool = SpoolFolder::new();
        let gateway = spool.gateway(&provider.url(), |settings| settings.sync_records = is_durable);
        let counters = || gateway.state.record_sink.spool.as_ref().unwrap().counters();
        let syncs_after = |records: u64| if is_durable { records } else { 0 };
        gateway.handle_request(chat_request("mock")).await;
        assert_eq!((spool.kinds().last(), counters().syncs), (Some(&END), syncs_after(1)));
        gateway.handle_request(TestRequest::new("POST", CHAT_PATH).header("x-gateway-provider", "nobody")).await;
        assert_eq!(counters().syncs, syncs_after(2));
        let body = chat_body_with_usage("mock?chunks=20&chunk_ms=1");
        let mut stream =
            into_stream(gateway.handle_request(unchanged_request(&provider.url(), CHAT_PATH, &body)).await);
        let mut text = String::new();
        while let Some(chunk) = with_timeout(stream.next()).await.unwrap() {
            text.push_str(std::str::from_utf8(&chunk).unwrap());
            let ended = if text.contains("data: [DONE]") { 3 } else { 2 };
            assert_eq!(counters().syncs, syncs_after(ended), "{text}");
        }
        assert_eq!((counters().records, counters().syncs, counters().sync_failures), (3, syncs_after(3), 0));
    }
}

#[tokio::test]
async fn records_that_end_together_share_one_write_to_the_disk() {
    let folder = SpoolFolder::new();
    let spool_path = Some(folder.0.to_str().unwrap().to_owned());
    let spool =
        Arc::new(Spool::from_settings(&Settings { spool_path, sync_records: true, ..Settings::default() }).unwrap());
    for number in 0..20 {
        spool.write(Source::Admitted(1), Uuid::from_u128(number), true, |batch| {
            batch.add_json(FrameKind::End, 0, |out| out.extend_from_slice(b"{}"));
        });
    }
    let wait = || spool.wait_until_durable();
    with_timeout(async { tokio::join!(wait(), wait(), wait(), wait()) }).await;
    wait().await;
    assert_eq!((spool.counters().syncs, spool.counters().sync_failures), (1, 0));
}

#[tokio::test]
async fn a_stream_that_is_stopped_while_it_waits_for_the_disk_is_complete() {
    let provider = Server::start().await;
    let spool = SpoolFolder::new();
    let gateway = spool.gateway(&provider.url(), |settings| settings.sync_records = true);
    let body = chat_body_with_usage("mock?chunks=5&chunk_ms=1");
    let mut stream = into_stream(gateway.handle_request(unchanged_request(&provider.url(), CHAT_PATH, &body)).await);
    let mut text = String::new();
    let has_ended = || {
        std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            if spool.kinds().contains(&END) { Poll::Ready(()) } else { Poll::Pending }
        })
    };
    loop {
        let (chunk, is_stopped) = tokio::select! {
            biased;
            chunk = stream.next() => (chunk, false),
            () = has_ended() => (stream.stop_for_drain(), true),
        };
        let Some(chunk) = chunk.unwrap() else { break };
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        if is_stopped {
            break;
        }
    }
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
}
