//! Streams reach the caller byte for byte, at once, and never end as if they were whole when they are not.

use std::{sync::Arc, time::Duration};

use crate::harness::{
    CHAT, MESSAGES, Rig, Told, all_words, by_with, direct, drain, get, in_time, pick, post,
    scripted::{CHAT_EVENTS, EVENTS_HEAD, MESSAGE_EVENTS, Scripted, chunks, events, request},
    settled, stream, stream_of, words,
};
use penstock_mock::{Outcome, Server};
use serde_json::json;
use tokio::{io::AsyncWriteExt, sync::Notify};

const BOTH: [(&str, &str); 2] = [(CHAT, CHAT_EVENTS), (MESSAGES, MESSAGE_EVENTS)];

#[tokio::test]
async fn a_stream_arrives_byte_for_byte_whatever_its_chunks() {
    for (path, sent) in BOTH {
        for size in [1, 2, 3, 7, 50, 333, usize::MAX >> 1] {
            let provider = Scripted::answering(events(sent.as_bytes(), size)).await;
            let rig = Rig::at(&provider.url());
            let told = rig.send(stream(path, "m")).await;
            assert_eq!((told.text().as_str(), told.cut), (sent, false), "{path} in chunks of {size}");
            assert_eq!(rig.record()["outcome"], "complete", "{path} in chunks of {size}");
        }
    }
}

#[tokio::test]
async fn a_stream_arrives_byte_for_byte_whatever_its_packets() {
    for (path, sent) in BOTH {
        for step in [1, 4, 61] {
            let provider = Scripted::dripping(events(sent.as_bytes(), 40), step).await;
            let rig = Rig::at(&provider.url());
            let told = rig.send(stream(path, "m")).await;
            assert_eq!((told.text().as_str(), told.cut), (sent, false), "{path} in packets of {step}");
            assert_eq!(rig.record()["outcome"], "complete", "{path} in packets of {step}");
        }
    }
}

#[tokio::test]
async fn a_stream_arrives_byte_for_byte_whatever_its_chunks_and_packets_are_at_once() {
    for seed in 0..24 {
        for (path, sent) in BOTH {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut rest, mut framed) = (sent.as_bytes(), EVENTS_HEAD.as_bytes().to_vec());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(random.usize(1..=rest.len().min(80)));
                framed.extend(chunks(piece, piece.len()));
                rest = after;
            }
            framed.extend(b"0\r\n\r\n");
            let provider = Scripted::dripping(framed, random.usize(1..200)).await;
            let rig = Rig::at(&provider.url());
            let told = rig.send(stream(path, "m")).await;
            assert_eq!((told.text().as_str(), told.cut), (sent, false), "{path} with seed {seed}");
            assert_eq!(rig.record()["units_estimated"], serde_json::Value::Null, "{path} with seed {seed}");
        }
    }
}

#[tokio::test]
async fn an_event_is_passed_on_before_the_next_one_comes() {
    let go = Arc::new(Notify::new());
    let wait = Arc::clone(&go);
    let provider = Scripted::start(move |mut io, _| {
        let wait = Arc::clone(&wait);
        async move {
            request(&mut io).await.unwrap();
            io.write_all(EVENTS_HEAD.as_bytes()).await.unwrap();
            for event in CHAT_EVENTS.split_inclusive("\n\n") {
                io.write_all(&chunks(event.as_bytes(), usize::MAX >> 1)).await.unwrap();
                wait.notified().await;
            }
            io.write_all(b"0\r\n\r\n").await.unwrap();
        }
    })
    .await;
    let rig = Rig::at(&provider.url());
    let mut answer = stream_of(rig.open(stream(CHAT, "m")).await);
    for event in CHAT_EVENTS.split_inclusive("\n\n") {
        assert_eq!(in_time(answer.next()).await.unwrap().unwrap(), event);
        go.notify_one();
    }
    assert_eq!(in_time(answer.next()).await, Ok(None));
}

#[tokio::test]
async fn a_burst_arrives_joined() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(stream(CHAT, "mock?chunks=100&burst=on")).await;
    assert_eq!(told.text().matches("data: ").count(), 104);
    assert!(told.pieces.len() <= 4, "{} pieces", told.pieces.len());
}

#[tokio::test]
async fn odd_but_whole_streams_pass_untouched() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for path in [CHAT, MESSAGES] {
        for fault in ["bom", "crlf", "cr", "malformed_chunk", "invalid_utf8", "done_then_data", "gzip"] {
            let body = all_words(&format!("mock?fault={fault}"));
            let sent = direct(provider.addr, path, &body).await;
            let told = rig.send(crate::harness::post(path, body)).await;
            assert!(told.body == sent, "{path} {fault}: {}", told.text());
            let record = rig.record();
            assert_eq!((told.cut, &record["outcome"]), (false, &"complete".into()), "{path} {fault}");
        }
    }
}

#[tokio::test]
async fn what_comes_in_quick_succession_leaves_together() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(stream(CHAT, "mock?chunks=400")).await;
    let events = told.text().matches("data: ").count();
    assert!(events > 400 && told.text().ends_with("data: [DONE]\n\n"), "{events} events");
    assert!(told.pieces.len() < 200, "{} pieces", told.pieces.len());
}

#[tokio::test]
async fn a_huge_event_passes() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(stream(CHAT, "mock?fault=huge_event")).await;
    assert!(told.body.len() > 10 * 1024 * 1024 && told.body.ends_with(b"data: [DONE]\n\n"));
    let bytes = rig.record()["bytes_out"].as_u64();
    assert_eq!(bytes, Some(told.body.len() as u64));
}

/// What came before the fault is whole, then comes one error event in the caller's dialect.
fn assert_told(told: &Told, path: &str, fault: &str) {
    assert_eq!((told.status, told.cut), (200, false), "{path} {fault}");
    let (name, data) = told.last_event();
    let error = &data["error"];
    assert!(!error["message"].as_str().unwrap_or_default().is_empty(), "{path} {fault}: {}", told.text());
    if path == MESSAGES {
        assert_eq!((name.as_deref(), &data["type"]), (Some("error"), &"error".into()), "{fault}");
    } else {
        assert_eq!((name, &error["code"]), (None, &code_of(fault).into()), "{fault}");
    }
}

fn code_of(fault: &str) -> &'static str {
    if fault == "stall" { "idle_timeout" } else { "upstream_broke" }
}

#[tokio::test]
async fn a_stream_that_said_how_it_ended_is_complete_however_its_connection_ends() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (path, end) in [(CHAT, "data: [DONE]\n\n"), (MESSAGES, "data: {\"type\":\"message_stop\"}\n\n")] {
        let told = rig.send(stream(path, "mock?fault=long_length")).await;
        assert!(!told.cut && told.text().ends_with(end), "{path}: {}", told.text());
        assert_eq!(rig.record()["outcome"], "complete", "{path}");
    }
}

#[tokio::test]
async fn a_cut_stream_ends_in_an_error_event() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| settings.idle_timeout_ms = 150);
    for path in [CHAT, MESSAGES] {
        for fault in ["cut", "cut_reset", "cut_event", "half_close", "bad_framing", "stall"] {
            let told = rig.send(stream(path, &format!("mock?fault={fault}&after=3"))).await;
            assert_told(&told, path, fault);
            let said = pick(&rig.record(), ["outcome", "error", "is_success"]);
            assert_eq!(said, json!(["cut", code_of(fault), false]), "{path} {fault}");
        }
    }
}

#[tokio::test]
async fn a_chat_that_said_why_it_ended_is_complete_without_a_last_event_and_messages_are_not() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(stream(CHAT, "mock?fault=no_done&usage=on")).await;
    assert!(!told.cut && !told.text().contains("[DONE]") && !told.text().contains("\"error\""), "{}", told.text());
    assert_eq!(
        pick(&rig.record(), ["outcome", "error", "is_success", "res_units"]),
        json!(["complete", null, true, 8])
    );
    assert_told(&rig.send(stream(MESSAGES, "mock?fault=no_done")).await, MESSAGES, "no_done");
}

#[tokio::test]
async fn a_chat_of_several_choices_is_complete_when_each_of_them_said_why_it_ended() {
    let choice = |index: u8, reason: &str| {
        let choice = format!("{{\"index\":{index},\"delta\":{{\"content\":\"a\"}},\"finish_reason\":{reason}}}");
        format!("data: {{\"id\":\"c\",\"choices\":[{choice}]}}\n\n")
    };
    let began = choice(0, "null") + &choice(1, "null") + &choice(0, "\"stop\"");
    for (sent, is_complete) in [(began.clone(), false), (began + &choice(1, "\"stop\""), true)] {
        let provider = Scripted::answering(events(sent.as_bytes(), 50)).await;
        let rig = Rig::at(&provider.url());
        let told = rig.send(stream(CHAT, "m")).await;
        if is_complete {
            assert_eq!((told.text(), told.cut), (sent, false));
        } else {
            assert_told(&told, CHAT, "half the choices");
        }
        let record = rig.record();
        assert_eq!(record["outcome"], if is_complete { "complete" } else { "cut" });
    }
}

#[tokio::test]
async fn the_kind_of_an_answer_is_read_without_case_and_parameters() {
    let half = CHAT_EVENTS.split_at(CHAT_EVENTS.rfind("data: [DONE]").unwrap()).0.replace("\"stop\"", "null");
    for (kind, is_events) in [
        ("text/event-stream", true),
        ("Text/Event-Stream; charset=UTF-8", true),
        ("text/event-stream ;x=y", true),
        ("text/event-streams", false),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
        let answer = [head.as_bytes(), &chunks(half.as_bytes(), 50), b"0\r\n\r\n"].concat();
        let told = Rig::at(&Scripted::answering(answer).await.url()).send(stream(CHAT, "m")).await;
        assert_eq!(told.text().contains("upstream_broke"), is_events, "{kind}: {}", told.text());
    }
    // A document can be indented; a list of them may be one by chance.
    for (kind, is_json) in [
        ("Application/JSON", true),
        ("application/json;charset=utf-8", true),
        ("application/problem+json", true),
        ("application/jsonl", false),
        ("application/json-seq", false),
        ("application/stream+json", false),
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: 7\r\n\r\n{{\"a\":1}}");
        let told = Rig::at(&Scripted::answering(answer).await.url()).send(get("/v1/files/f?pretty=true")).await;
        assert_eq!(told.text().contains('\n'), is_json, "{kind}: {}", told.text());
    }
}

#[tokio::test]
async fn a_response_without_its_last_event_ends_in_an_error_event() {
    let delta =
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hi\"}\n\n";
    for end in ["completed", "incomplete", "failed"] {
        let last =
            format!("event: response.{end}\ndata: {{\"type\":\"response.{end}\",\"response\":{{\"usage\":null}}}}\n\n");
        let sent = format!("{delta}{last}");
        let provider = Scripted::answering(events(sent.as_bytes(), 33)).await;
        let told = Rig::at(&provider.url()).send(stream("/v1/responses", "m")).await;
        assert_eq!((told.text(), told.cut), (sent, false), "{end}");
    }
    for path in ["/v1/responses", "/v1/completions", "/v1/proxy/chat/completions"] {
        let provider = Scripted::answering(events(delta.as_bytes(), 33)).await;
        let told = Rig::at(&provider.url()).send(stream(path, "m")).await;
        assert_told(&told, CHAT, path);
    }
    for path in
        ["/v1/threads/t/runs", "/v1/threads/runs", "/v1/threads/t/runs/r/submit_tool_outputs", "/v1/fim/completions"]
    {
        let run = "event: thread.message.delta\ndata: {\"id\":\"msg_1\"}\n\n";
        let whole = format!("{run}event: done\ndata: [DONE]\n\n");
        for (sent, is_whole) in [(run, false), (&whole, true)] {
            let provider = Scripted::answering(events(sent.as_bytes(), 33)).await;
            let told = Rig::at(&provider.url()).send(stream(path, "m")).await;
            assert_eq!((told.text() == sent, told.text().contains("upstream_broke")), (is_whole, !is_whole), "{path}");
        }
    }
    let half = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n";
    let provider = Scripted::answering(events(half.as_bytes(), 33)).await;
    let path = "/v1/projects/p/locations/l/publishers/anthropic/models/claude:streamRawPredict";
    assert_told(&Rig::at(&provider.url()).send(stream(path, "m")).await, MESSAGES, path);
    let provider = Scripted::answering(events(delta.as_bytes(), 33)).await;
    let told = Rig::at(&provider.url()).send(get("/v1/responses/resp_1?stream=true")).await;
    assert!(told.text().contains("upstream_broke"), "{}", told.text());
    // What ends without a word by its nature is left alone.
    let provider = Scripted::answering(events(delta.as_bytes(), 33)).await;
    let told = Rig::at(&provider.url()).send(stream("/v1/anything", "m")).await;
    assert_eq!((told.text().as_str(), told.cut), (delta, false));
}

#[tokio::test]
async fn nobody_is_left_with_half_an_event() {
    let half = CHAT_EVENTS.split_at(CHAT_EVENTS.len() / 2).0;
    let whole = half.rsplit_once("\n\n").unwrap().0.to_owned() + "\n\n";
    for body in [half.to_owned(), format!("{half}\n"), format!("{whole}d"), format!("{whole}data: [DO")] {
        for size in [1, 7, 64, 10_000] {
            let provider = Scripted::closing([EVENTS_HEAD.as_bytes(), &chunks(body.as_bytes(), size)].concat()).await;
            let told = Rig::at(&provider.url()).send(stream(CHAT, "m")).await;
            let text = told.text();
            let after = text.strip_prefix(&whole).unwrap();
            assert!(after.starts_with("data: {\"error\":"), "{after}");
            assert_told(&told, CHAT, "cut");
        }
    }
}

#[tokio::test]
async fn what_follows_the_last_blank_line_of_a_good_stream_arrives() {
    for end in ["data: [DONE]", "data: [DONE]\n", "data: [DONE]\n\n: a comm"] {
        let sent = CHAT_EVENTS.replace("data: [DONE]\n\n", end);
        let provider = Scripted::answering(events(sent.as_bytes(), 5)).await;
        let rig = Rig::at(&provider.url());
        let told = rig.send(stream(CHAT, "m")).await;
        assert_eq!((told.text().as_str(), told.cut), (sent.as_str(), false));
        let record = rig.record();
        assert_eq!((&record["outcome"], record["bytes_out"].as_u64()), (&"complete".into(), Some(sent.len() as u64)));
    }
}

#[tokio::test]
async fn a_stream_may_end_with_its_connection() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let provider = Scripted::closing([head, CHAT_EVENTS].concat()).await;
    let rig = Rig::at(&provider.url());
    let told = rig.send(stream(CHAT, "m")).await;
    assert_eq!((told.text().as_str(), told.cut), (CHAT_EVENTS, false));
    assert_eq!(rig.record()["outcome"], "complete");
}

#[tokio::test]
async fn the_providers_own_error_event_is_not_doubled() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for path in [CHAT, MESSAGES] {
        let body = words("mock?fault=overloaded_first", true);
        let sent = direct(provider.addr, path, &body).await;
        let told = rig.send(crate::harness::post(path, body)).await;
        assert!(told.body == sent, "{path}: {}", told.text());
    }
}

#[tokio::test]
async fn pings_pass_and_are_no_end() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut answer = stream_of(rig.open(stream(MESSAGES, "mock?fault=pings_only&chunk_ms=5")).await);
    let mut seen = Vec::new();
    while seen.len() < 400 {
        seen.extend_from_slice(&in_time(answer.next()).await.unwrap().unwrap());
    }
    drop(answer);
    assert!(String::from_utf8(seen).unwrap().split_inclusive("\n\n").all(|event| event.contains("ping")));
    assert_eq!(settled(&provider, 1).await[0].outcome, Outcome::ClientClosed);
}

#[tokio::test]
async fn a_cut_pass_through_stream_ends_in_an_error_event_too() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let told = rig.send(stream("/v1/proxy/chat/completions", "mock?fault=cut")).await;
    assert_told(&told, CHAT, "cut");
    let told = rig.send(stream("/v1/proxy/messages", "mock?fault=cut")).await;
    assert_told(&told, MESSAGES, "cut");
    // A client whose base has a `/v1` of its own says it twice.
    for prefix in ["/v1/proxy", "/v1/proxy/v1", "/v1/v1"] {
        for (path, all) in BOTH {
            let path_there = path.replacen("/v1", prefix, 1);
            let events_of_half: String = all.split_inclusive("\n\n").take(2).collect();
            let provider = Scripted::answering(events(events_of_half.as_bytes(), 4096)).await;
            assert_told(&Rig::at(&provider.url()).send(stream(&path_there, "m")).await, path, "cut");
            let provider = Scripted::answering(events(all.as_bytes(), 4096)).await;
            let rig = Rig::at(&provider.url());
            let told = rig.send(stream(&path_there, "m")).await;
            assert_eq!((told.text().as_str(), told.cut), (all, false), "{path_there}");
            assert_eq!(rig.record()["outcome"], "complete", "{path_there}");
        }
    }
}

/// Where Google's streams are asked for, but for the operation itself.
const GOOGLES: [&str; 4] = [
    "/v1/proxy/v1beta/models/g:streamGenerateContent",
    "/v1/proxy/v1/models/g:streamGenerateContent",
    "/v1/proxy/v1beta1/projects/p/locations/l/publishers/google/models/g:streamGenerateContent",
    "/v1/projects/p/models/g:streamGenerateContent",
];
const GOOGLES_LAST: &str = r#"{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"}]}"#;

#[tokio::test]
async fn googles_array_is_passed_on_as_it_comes_wherever_it_is_asked_for() {
    for path in GOOGLES {
        let more = Arc::new(Notify::new());
        let waited = Arc::clone(&more);
        let rest = format!(",{GOOGLES_LAST}]");
        let sent = rest.clone();
        let provider = Scripted::start(move |mut stream, _| {
            let (more, sent) = (Arc::clone(&waited), sent.clone());
            async move {
                request(&mut stream).await;
                let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
                stream.write_all(&[&head[..], &chunks(b"[{}", 9)].concat()).await.unwrap();
                more.notified().await;
                stream.write_all(&[&chunks(sent.as_bytes(), 4096)[..], b"0\r\n\r\n"].concat()).await.unwrap();
            }
        })
        .await;
        let rig = Rig::at(&provider.url());
        let mut answer = stream_of(rig.open(post(path, "{}")).await);
        assert_eq!(in_time(answer.next()).await.unwrap().as_deref(), Some(&b"[{}"[..]), "{path}");
        more.notify_one();
        let (pieces, cut) = drain(answer).await;
        assert_eq!((pieces.concat(), cut), (rest.into_bytes(), false), "{path}");
        assert_eq!(rig.record()["outcome"], "complete", "{path}");
    }
}

#[tokio::test]
async fn a_raw_stream_is_read_as_its_path_says_whoever_answers() {
    let google = format!("data: {{}}\n\ndata: {GOOGLES_LAST}\n\n");
    let vertex = json!({"provider": "vertex-ai", "api_key": "k", "vertex_project_id": "p", "vertex_region": "l"});
    let claude = json!({"provider": "anthropic", "api_key": "k"});
    let mock = json!({"provider": "openai", "api_key": "k"});
    let mut asked = vec![
        ("/v1/proxy/v1/messages".to_owned(), MESSAGE_EVENTS, &mock),
        ("/v1/proxy/v1/chat/completions".to_owned(), CHAT_EVENTS, &claude),
    ];
    asked.extend(GOOGLES.map(|path| (format!("{path}?alt=sse"), google.as_str(), &vertex)));
    for (path, all, config) in asked {
        for hold in [false, true] {
            let provider = Scripted::answering(events(all.as_bytes(), 4096)).await;
            let rig = Rig::with("", |settings| settings.trusted_custom_hosts = vec!["127.0.0.1".into()]);
            let mut config = config.clone();
            config["custom_host"] = provider.url().into();
            if hold {
                config["recovery"] = json!("hold");
            }
            let told = rig.send(by_with(&config, &path, words("m", true))).await;
            assert_eq!((told.text().as_str(), told.cut), (all, false), "{path} {hold}");
            assert_eq!(rig.record()["outcome"], "complete", "{path} {hold}");
        }
    }
}

#[tokio::test]
async fn a_body_that_is_no_stream_of_events_is_cut_without_a_word() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n";
    let provider = Scripted::closing(head).await;
    let rig = Rig::at(&provider.url());
    let told = rig.send(get("/v1/files/f/content")).await;
    assert_eq!((told.text().as_str(), told.cut), ("abcde", true));
    assert_eq!(rig.record()["outcome"], "cut");
}

#[tokio::test]
async fn a_stream_that_must_end_says_so() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let mut answer = stream_of(rig.open(stream(CHAT, "mock?chunks=100&chunk_ms=50")).await);
    in_time(answer.next()).await.unwrap().unwrap();
    let last = answer.stop_for_drain().unwrap().unwrap();
    assert!(String::from_utf8_lossy(&last).contains("\"draining\""));
    assert_eq!(answer.next().await, Ok(None));
    drop(answer);
    assert_eq!(rig.record()["error"], "draining");
    assert_eq!(settled(&provider, 1).await[0].outcome, Outcome::ClientClosed);
}

#[tokio::test]
async fn a_reader_that_pauses_holds_the_provider_back() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let answer = rig.open(stream(CHAT, "mock?chunks=20000&chunk_bytes=5000")).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let sent = provider.ledger_entries()[0].bytes_sent;
    assert!(sent < 20_000_000, "{sent} of 100,000,000 bytes left the provider");
    drop(answer);
    assert_eq!(settled(&provider, 1).await[0].outcome, Outcome::ClientClosed);
}

#[tokio::test]
async fn images_speech_and_transcripts_end_with_their_last_event_too() {
    let large = "A".repeat(300_000);
    let part = |kind: &str| format!("data: {{\"type\":\"{kind}\",\"b64_json\":\"{large}\"}}\n\n");
    let images = part("image_generation.partial_image");
    let text = r#"data: {"type":"transcript.text.delta","delta":"a"}"#.to_owned() + "\n\n";
    for (path, sent, is_whole) in [
        ("/v1/images/generations", images.clone(), false),
        ("/v1/images/generations", images.clone() + &part("image_generation.completed"), true),
        ("/v1/images/generations", images.clone() + "data: [DONE]\n\n", true),
        ("/v1/images/edits", part("image_edit.completed"), true),
        ("/v1/audio/transcriptions", text.clone(), false),
        (
            "/v1/audio/transcriptions",
            text.clone() + "data: {\"type\":\"transcript.text.done\",\"text\":\"a\"}\n\n",
            true,
        ),
        ("/v1/audio/speech", part("speech.audio.delta"), false),
        (
            "/v1/audio/speech",
            part("speech.audio.delta") + "data: {\"type\":\"speech.audio.done\",\"usage\":{}}\n\n",
            true,
        ),
        ("/v1/proxy/images/generations", images, false),
        ("/v1/proxy/images/generations", part("image_generation.completed"), true),
    ] {
        let provider = Scripted::answering(events(sent.as_bytes(), 10_000)).await;
        let rig = Rig::at(&provider.url());
        let told = rig.send(post(path, words("m", true))).await;
        assert!(told.text().starts_with(&sent), "{path}");
        let rest = &told.text()[sent.len()..];
        assert_eq!(rest.contains("upstream_broke"), !is_whole, "{path}: {rest}");
        assert_eq!(rig.record()["outcome"], if is_whole { "complete" } else { "cut" }, "{path}");
    }
}
