//! A caller of a stream that pauses hears that it lives, and of one that does not pause hears nothing but the provider.

use std::time::{Duration, Instant};

use crate::harness::{
    CHAT, MESSAGES, Rig, Told, all_words, direct,
    scripted::{EVENTS_HEAD, Scripted, chunks, request},
    stream,
};
use penstock_mock::Server;
use tokio::{io::AsyncWriteExt, time::sleep};

const BEAT: &str = ": keep-alive\n\n";
// A stream's beats come up to a quarter earlier than is set: as many more as there may be.

fn beating(url: &str, milliseconds: u64) -> Rig {
    Rig::with(url, |settings| settings.heartbeat_ms = milliseconds)
}

fn without_beats(told: &Told) -> String {
    told.text().replace(BEAT, "")
}

#[tokio::test]
async fn every_pause_between_two_events_has_its_beats_and_the_rest_is_the_providers() {
    let provider = Server::start().await;
    let rig = beating(&provider.url(), 20);
    for path in [CHAT, MESSAGES] {
        let model = "mock?chunks=3&chunk_ms=110";
        let told = rig.send(stream(path, model)).await;
        let beats = told.text().matches(BEAT).count();
        assert!((6..=22).contains(&beats), "{beats} in {}", told.text());
        let original = direct(provider.addr, path, &all_words(model)).await;
        assert_eq!(without_beats(&told), String::from_utf8(original).unwrap());
        assert_eq!(rig.record()["outcome"], "complete");
    }
}

#[tokio::test]
async fn a_stream_without_pauses_is_the_providers_byte_for_byte() {
    let provider = Server::start().await;
    let rig = beating(&provider.url(), 500);
    let told = rig.send(stream(CHAT, "mock?chunks=20&chunk_ms=5")).await;
    assert_eq!(told.body, direct(provider.addr, CHAT, &all_words("mock?chunks=20&chunk_ms=5")).await);
}

#[tokio::test]
async fn a_pause_before_the_first_event_has_its_beats_too() {
    let provider = Server::start().await;
    let told = beating(&provider.url(), 20).send(stream(CHAT, "mock?fault=slow_first&first_ms=150")).await;
    assert!(told.text().starts_with(BEAT), "{}", told.text());
    assert!(told.text().ends_with("data: [DONE]\n\n"));
}

/// Events with a pause in the middle of the second one.
async fn pausing(more: &'static str) -> Scripted {
    Scripted::start(move |mut io, _| async move {
        request(&mut io).await;
        let head = EVENTS_HEAD.replacen("\r\n\r\n", &format!("\r\n{more}\r\n"), 1);
        io.write_all(head.as_bytes()).await.unwrap();
        io.write_all(&chunks(b"data: {}\n\ndata: {\"half", 1000)).await.unwrap();
        sleep(Duration::from_millis(120)).await;
        io.write_all(&chunks(b"\":1}\n\ndata: [DONE]\n\n", 1000)).await.unwrap();
        let _ = io.write_all(b"0\r\n\r\n").await;
    })
    .await
}

#[tokio::test]
async fn beats_in_the_middle_of_an_event_are_heard_before_it() {
    let told = beating(&pausing("").await.url(), 20).send(stream(CHAT, "m")).await;
    let beats = told.text().matches(BEAT).count();
    assert!((2..=8).contains(&beats), "{}", told.text());
    let expected = format!("data: {{}}\n\n{}data: {{\"half\":1}}\n\ndata: [DONE]\n\n", BEAT.repeat(beats));
    assert_eq!(told.text(), expected);
}

#[tokio::test]
async fn what_is_compressed_or_only_passed_through_or_not_to_be_kept_awake_stays_silent() {
    let slow = "mock?chunks=2&chunk_ms=100";
    let provider = Server::start().await;
    for (rig, path) in
        [(beating(&provider.url(), 20), "/v1/proxy/chat/completions"), (beating(&provider.url(), 0), CHAT)]
    {
        let told = rig.send(stream(path, slow)).await;
        assert!(!told.text().contains(BEAT) && told.text().ends_with("[DONE]\n\n"), "{}", told.text());
    }
    let told = beating(&pausing("content-encoding: br\r\n").await.url(), 20).send(stream(CHAT, "m")).await;
    assert!(!told.text().contains(BEAT) && told.text().ends_with("[DONE]\n\n"), "{}", told.text());
}

#[tokio::test]
async fn beats_do_not_make_a_silence_last_longer_than_it_may() {
    let provider = Server::start().await;
    let rig = Rig::with(&provider.url(), |settings| {
        settings.heartbeat_ms = 30;
        settings.idle_timeout_ms = 100;
    });
    let start = Instant::now();
    let told = rig.send(stream(CHAT, "mock?fault=stall&after=2")).await;
    assert!((3..=4).contains(&told.text().matches(BEAT).count()), "{}", told.text());
    assert_eq!(told.last_event().1["error"]["code"], "idle_timeout");
    assert!(start.elapsed() < Duration::from_secs(2));
}
