//! An overloaded error at the start of a streamed 200 becomes a 529 where that is asked for; everything else passes as it came.

use std::{sync::Arc, time::Duration};

use crate::harness::{
    Ask, CHAT, MESSAGES, Rig, Told, in_time, pick, post,
    scripted::{EVENTS_HEAD, MESSAGE_EVENTS, Scripted, chunks, events, request},
    stream, stream_of, words,
};
use penstock_mock::Server;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, sync::Notify};

const ERROR: &str =
    r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_1"}"#;

fn error_event() -> String {
    format!("event: error\ndata: {ERROR}\n\n")
}

/// Asks for a stream with an inline config that has the flag.
fn inspected(path: &str) -> Ask {
    flagged(path, "anthropic_inspect_stream_for_overloaded_error")
}

fn flagged(path: &str, flag: &str) -> Ask {
    let config = json!({"provider": "mock", flag: true}).to_string();
    Ask::new("POST", path)
        .header("x-gateway-config", &config)
        .header("content-type", "application/json")
        .body(words("m", true))
}

async fn told(sent: &[u8], chunk: usize) -> (Told, Value) {
    let provider = Scripted::answering(events(sent, chunk)).await;
    let rig = Rig::at(&provider.url());
    let told = rig.send(inspected(MESSAGES)).await;
    (told, rig.record())
}

fn assert_refused(told: &Told, record: &Value, case: &str) {
    assert_eq!((told.status, told.streamed, told.cut), (529, false, false), "{case}: {}", told.text());
    assert_eq!(told.header("content-type"), Some("application/json"), "{case}");
    assert_eq!(told.header("content-length"), Some(ERROR.len().to_string().as_str()), "{case}");
    assert_eq!(told.text(), ERROR, "{case}");
    let said = pick(record, ["response_status_code", "outcome", "is_success"]);
    assert_eq!(said, json!([529, "complete", false]), "{case}");
}

#[tokio::test]
async fn an_overloaded_error_is_a_529_wherever_its_bytes_are_cut() {
    for chunk in [1, 2, 3, 7, 20, 4096] {
        let (told, record) = told(error_event().as_bytes(), chunk).await;
        assert_refused(&told, &record, &format!("chunks of {chunk}"));
    }
}

#[tokio::test]
async fn any_line_end_a_mark_comments_and_pings_before_it_change_nothing() {
    let error = error_event();
    let cases = [
        error.replace('\n', "\r\n"),
        error.replace('\n', "\r"),
        format!("\u{feff}{error}"),
        format!(": hello\n\n{error}"),
        format!("event: ping\ndata: {{\"type\": \"ping\"}}\n\n: x\n\n{error}"),
        format!("data: {ERROR}\n\n"),
        format!("{error}event: later\ndata: 1\n\n"),
    ];
    for sent in cases {
        for chunk in [3, 4096] {
            let (told, record) = told(sent.as_bytes(), chunk).await;
            assert_refused(&told, &record, &format!("{sent:?} in chunks of {chunk}"));
        }
    }
}

#[tokio::test]
async fn whatever_else_comes_first_passes_untouched() {
    let other = error_event().replace("overloaded_error", "api_error");
    let started = MESSAGE_EVENTS.split_inclusive("\n\n").next().unwrap();
    let late = format!("{started}{}", error_event());
    let long =
        format!("data: {{\"error\":{{\"type\":\"overloaded_error\",\"message\":\"{}\"}}}}\n\n", "x".repeat(70_000));
    let pings = "event: ping\ndata: {\"type\": \"ping\"}\n\n".repeat(6);
    let many = format!("{pings}{}", error_event());
    for sent in [MESSAGE_EVENTS, &other, &late, &long, &many] {
        for chunk in [5, 100_000] {
            let (told, record) = told(sent.as_bytes(), chunk).await;
            assert_eq!((told.status, told.text().as_str()), (200, sent), "{sent:.60} in chunks of {chunk}");
            assert_eq!(record["response_status_code"], 200);
        }
    }
}

#[tokio::test]
async fn what_is_compressed_or_in_another_dialect_or_not_asked_for_is_not_looked_at() {
    let sent = error_event();
    let head = EVENTS_HEAD.replace("\r\n\r\n", "\r\ncontent-encoding: gzip\r\n\r\n");
    let provider = Scripted::answering([head.as_bytes(), &chunks(sent.as_bytes(), 9), b"0\r\n\r\n"].concat()).await;
    let compressed = Rig::at(&provider.url()).send(inspected(MESSAGES)).await;
    let provider = Scripted::answering(events(sent.as_bytes(), 9)).await;
    let rig = Rig::at(&provider.url());
    for told in [compressed, rig.send(inspected(CHAT)).await, rig.send(stream(MESSAGES, "m")).await] {
        assert_eq!((told.status, told.text()), (200, sent.clone()));
    }
}

#[tokio::test]
async fn what_is_inspected_is_asked_for_as_it_can_be_read() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    for (path, asked) in [(MESSAGES, "identity"), ("/v1/proxy/messages", "identity")] {
        let told = rig.send(inspected(path).header("accept-encoding", "gzip")).await;
        assert_eq!(told.status, 200, "{path}");
        assert_eq!(provider.ledger_entries().pop().unwrap().header("accept-encoding"), Some(asked), "{path}");
    }
    let plain = stream("/v1/proxy/messages", "m").header("accept-encoding", "gzip");
    assert_eq!(rig.send(plain).await.status, 200);
    assert_eq!(
        provider.ledger_entries().pop().unwrap().header("accept-encoding"),
        Some("gzip"),
        "nobody looks into it"
    );
}

#[tokio::test]
async fn the_flag_is_known_by_both_names_and_on_a_saved_provider() {
    let provider = Scripted::answering(events(error_event().as_bytes(), 50)).await;
    let rig = Rig::at(&provider.url());
    assert_eq!(rig.send(flagged(MESSAGES, "anthropicInspectStreamForOverloadedError")).await.status, 529);
    let saved = |wanted: bool| {
        json!({"epoch": "1", "providers": [
            {"slug": "mine", "provider": "mock", "anthropic_inspect_stream_for_overloaded_error": wanted}]})
    };
    let ask = || Ask::new("POST", MESSAGES).header("x-gateway-provider", "@mine").body(words("m", true));
    rig.apply(&saved(true));
    assert_eq!(rig.send(ask()).await.status, 529);
    rig.apply(&saved(false));
    assert_eq!(rig.send(ask()).await.status, 200);
}

#[tokio::test]
async fn the_pretend_providers_overload_is_a_529() {
    let provider = Server::start().await;
    let rig = Rig::before(&provider);
    let config = json!({"provider": "mock", "anthropic_inspect_stream_for_overloaded_error": true}).to_string();
    let ask = post(MESSAGES, words("mock?fault=overloaded_first", true)).header("x-gateway-config", &config);
    let told = rig.send(ask).await;
    assert_eq!((told.status, &told.json()["error"]["type"]), (529, &"overloaded_error".into()));
}

#[tokio::test]
async fn a_stream_that_breaks_off_before_its_first_event_is_refused_with_a_status() {
    let half = &error_event()[..30];
    let provider = Scripted::closing([EVENTS_HEAD.as_bytes(), &chunks(half.as_bytes(), 9)].concat()).await;
    let rig = Rig::at(&provider.url());
    let told = rig.send(inspected(MESSAGES)).await;
    assert_eq!((told.status, &told.json()["type"]), (502, &"error".into()), "{}", told.text());
    assert_eq!(rig.record()["outcome"], "refused");
}

#[tokio::test]
async fn a_first_event_that_does_not_come_is_waited_for_no_longer_than_an_answer() {
    let provider = Scripted::start(|mut io, _| async move {
        while request(&mut io).await.is_some() {
            io.write_all(EVENTS_HEAD.as_bytes()).await.unwrap();
        }
    })
    .await;
    let rig = Rig::at(&provider.url());
    let told = rig.send(inspected(MESSAGES).header("x-gateway-request-timeout", "100")).await;
    assert_eq!((told.status, told.code().as_str()), (408, ""), "{}", told.text());
    assert_eq!(pick(&rig.record(), ["error", "outcome"]), json!(["timeout", "refused"]));
}

#[tokio::test]
async fn a_good_stream_is_not_held_beyond_its_first_event() {
    let go = Arc::new(Notify::new());
    let wait = Arc::clone(&go);
    let provider = Scripted::start(move |mut io, _| {
        let wait = Arc::clone(&wait);
        async move {
            request(&mut io).await.unwrap();
            io.write_all(EVENTS_HEAD.as_bytes()).await.unwrap();
            for event in MESSAGE_EVENTS.split_inclusive("\n\n") {
                io.write_all(&chunks(event.as_bytes(), usize::MAX >> 1)).await.unwrap();
                wait.notified().await;
            }
            io.write_all(b"0\r\n\r\n").await.unwrap();
        }
    })
    .await;
    let rig = Rig::at(&provider.url());
    let mut answer = stream_of(rig.open(inspected(MESSAGES)).await);
    for event in MESSAGE_EVENTS.split_inclusive("\n\n") {
        assert_eq!(in_time(answer.next()).await.unwrap().unwrap(), event);
        go.notify_one();
    }
    assert_eq!(tokio::time::timeout(Duration::from_secs(5), answer.next()).await.unwrap(), Ok(None));
}
