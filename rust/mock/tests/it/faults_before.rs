//! Faults in the place of an answer, or before its first byte.

use std::time::Duration;

use crate::talk::{CHAT, Client, End, MESSAGES, chat, get, last_entry, server};
use serde_json::json;

const WAIT: Duration = Duration::from_millis(400);

#[test]
fn too_many_requests_with_and_without_retry_after() {
    let server = server();
    for (model, header) in [("mock?fault=429", None), ("mock?fault=429&retry_after=7", Some("7".to_owned()))] {
        let answer = chat(&server, CHAT, model, true);
        assert_eq!((answer.status(), answer.header("retry-after")), (429, header));
        assert_eq!(answer.json()["error"]["code"], "rate_limit_exceeded");
    }
    let date = chat(&server, MESSAGES, "m?fault=429&retry_after=Wed,%2021%20Oct%202026%2007:28:00%20GMT", false);
    assert_eq!(date.header("retry-after").as_deref(), Some("Wed, 21 Oct 2026 07:28:00 GMT"));
    assert_eq!(date.json()["error"]["type"], "rate_limit_error");
    assert_eq!(last_entry(&server).outcome.to_string(), "fault:429");
}

#[test]
fn reset_is_an_rst_without_an_answer() {
    let server = server();
    for stream in [false, true] {
        let answer = chat(&server, CHAT, "mock?fault=reset", stream);
        assert_eq!((answer.raw.len(), answer.end), (0, End::Reset));
    }
    assert_eq!(last_entry(&server).outcome.to_string(), "fault:reset");
}

#[test]
fn silence_lasts_until_the_client_leaves() {
    let server = server();
    let mut client = Client::connect(&server);
    client.chat(CHAT, "mock?fault=silence", false);
    let answer = client.read(WAIT);
    assert_eq!((answer.raw.len(), answer.end), (0, End::Silent));
    assert_eq!(server.ledger_entries()[0].outcome.to_string(), "open");
    client.close();
    let entry = last_entry(&server);
    assert_eq!((entry.outcome.to_string().as_str(), entry.bytes_sent), ("client_closed", 0));
    assert!(entry.finished_ms.unwrap() - entry.started_ms >= 390.0);
}

#[test]
fn redirect_points_at_the_metadata_address() {
    let server = server();
    for answer in
        [chat(&server, CHAT, "mock?fault=redirect_metadata", true), get(&server, "/x?mock-fault=redirect_metadata", "")]
    {
        assert_eq!(answer.status(), 302);
        assert_eq!(answer.header("location").as_deref(), Some("http://169.254.169.254/latest/meta-data/"));
    }
}

#[test]
fn status_lines_that_are_none() {
    let server = server();
    for status in [99, 600, 1000] {
        for stream in [false, true] {
            let answer = chat(&server, CHAT, &format!("mock?status={status}"), stream);
            assert!(answer.raw.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{}", answer.head());
            assert_eq!(answer.end, End::Complete);
        }
    }
}

#[test]
fn a_flood_of_headers_never_reaches_a_body() {
    let server = server();
    let mut client = Client::connect(&server);
    client.chat(CHAT, "mock?fault=headers_flood", false);
    let answer = client.read_until(WAIT, |answer| answer.raw.len() > 4 << 20);
    assert!(answer.raw.starts_with(b"HTTP/1.1 200 OK\r\nx-flood: f"));
    assert_eq!(crate::talk::find(&answer.raw, b"\r\n\r\n"), None);
    client.close();
    assert_eq!(last_entry(&server).outcome.to_string(), "client_closed");
    let short = chat(&server, CHAT, "mock?fault=headers_flood&after=2", false);
    assert_eq!((short.raw.len() / 1000, short.end), (32, End::Fin));
}

#[test]
fn early_answers_come_before_the_answer() {
    let server = server();
    let mut client = Client::connect(&server);
    client.chat(CHAT, "mock?fault=early_1xx&after=5", false);
    let answer = client.read_until(WAIT, |answer| answer.raw.ends_with(b"\"fp_mock\"}"));
    let text = String::from_utf8(answer.raw).unwrap();
    assert_eq!(text.matches("HTTP/1.1 103 Early Hints\r\n").count(), 5);
    assert_eq!(text.matches("HTTP/1.1 200 OK\r\n").count(), 1);
}

#[test]
fn overload_in_the_first_event() {
    let server = server();
    let openai = chat(&server, CHAT, "mock?fault=overloaded_first", true);
    assert_eq!((openai.status(), openai.events().len(), openai.end), (200, 1, End::Complete));
    assert!(openai.events()[0].1.contains(r#""type":"overloaded_error""#));
    let anthropic = chat(&server, MESSAGES, "mock?fault=overloaded_first", true);
    let (name, data) = anthropic.events().remove(0);
    assert_eq!(name.as_deref(), Some("error"));
    assert!(data.contains(r#"{"type":"overloaded_error","message":"Overloaded"}"#));
    assert_eq!(chat(&server, MESSAGES, "mock?fault=overloaded_first", false).status(), 529);
    assert_eq!(
        chat(&server, CHAT, "mock?fault=overloaded_first", false).json()["error"]["type"],
        json!("overloaded_error")
    );
}

#[test]
fn a_slow_first_token_comes_after_the_head() {
    let server = server();
    for stream in [true, false] {
        let answer = chat(&server, CHAT, "mock?fault=slow_first&first_ms=150", stream);
        assert!(answer.first_byte.unwrap() < Duration::from_millis(100), "{:?}", answer.first_byte);
        assert!(answer.total >= Duration::from_millis(150) && answer.end == End::Complete);
    }
}

#[test]
fn a_drip_is_a_byte_at_a_time() {
    let server = server();
    let mut client = Client::connect(&server);
    client.chat(CHAT, "mock?fault=drip&chunk_ms=5", true);
    let answer = client.read_until(WAIT, |answer| answer.raw.len() >= 20);
    assert!(answer.raw.len() <= 24 && answer.total >= Duration::from_millis(19 * 5), "{:?}", answer.total);
    let mut slow = Client::connect(&server);
    slow.chat(CHAT, "mock?fault=drip", false);
    assert_eq!(slow.read(Duration::from_millis(300)).raw, b"H");
}
