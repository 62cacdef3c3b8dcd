//! Faults instead of a response or before its first byte.

use std::time::Duration;

use crate::http_client::{
    CHAT_PATH, Client, MESSAGES_PATH, ReadEnd, get, request_chat, start_server, wait_for_last_entry,
};
use serde_json::json;

const READ_TIMEOUT: Duration = Duration::from_millis(400);
/// Timeout for reading the head of a response. It is shorter than `first_ms=60000`, so only a head that is sent before
/// that pause arrives in time.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn fault_429_with_and_without_retry_after() {
    let server = start_server();
    for (model, header) in [("mock?fault=429", None), ("mock?fault=429&retry_after=7", Some("7".to_owned()))] {
        let response = request_chat(&server, CHAT_PATH, model, true);
        assert_eq!((response.status(), response.header("retry-after")), (429, header));
        assert_eq!(response.json()["error"]["code"], "rate_limit_exceeded");
    }
    let date =
        request_chat(&server, MESSAGES_PATH, "m?fault=429&retry_after=Wed,%2021%20Oct%202026%2007:28:00%20GMT", false);
    assert_eq!(date.header("retry-after").as_deref(), Some("Wed, 21 Oct 2026 07:28:00 GMT"));
    assert_eq!(date.json()["error"]["type"], "rate_limit_error");
    assert_eq!(wait_for_last_entry(&server).outcome.to_string(), "fault:429");
}

#[test]
fn reset_sends_rst_without_a_response() {
    let server = start_server();
    for stream in [false, true] {
        let response = request_chat(&server, CHAT_PATH, "mock?fault=reset", stream);
        assert_eq!((response.raw.len(), response.end), (0, ReadEnd::Reset));
    }
    assert_eq!(wait_for_last_entry(&server).outcome.to_string(), "fault:reset");
}

#[test]
fn silence_lasts_until_client_disconnects() {
    let server = start_server();
    let mut client = Client::connect(&server);
    client.send_chat(CHAT_PATH, "mock?fault=silence", false);
    let response = client.read_response(READ_TIMEOUT);
    assert_eq!((response.raw.len(), response.end), (0, ReadEnd::TimedOut));
    assert_eq!(server.ledger_entries()[0].outcome.to_string(), "open");
    client.close();
    let entry = wait_for_last_entry(&server);
    assert_eq!((entry.outcome.to_string().as_str(), entry.bytes_sent), ("client_closed", 0));
    assert!(entry.finished_ms.unwrap() - entry.started_ms >= 390.0);
}

#[test]
fn redirects_to_the_metadata_address() {
    let server = start_server();
    for response in [
        request_chat(&server, CHAT_PATH, "mock?fault=redirect_metadata", true),
        get(&server, "/x?mock-fault=redirect_metadata", ""),
    ] {
        assert_eq!(response.status(), 302);
        assert_eq!(response.header("location").as_deref(), Some("http://169.254.169.254/latest/meta-data/"));
    }
}

#[test]
fn sends_invalid_status_codes() {
    let server = start_server();
    for status in [99, 600, 1000] {
        for stream in [false, true] {
            let response = request_chat(&server, CHAT_PATH, &format!("mock?status={status}"), stream);
            assert!(response.raw.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{}", response.head());
            assert_eq!(response.end, ReadEnd::Complete);
        }
    }
}

#[test]
fn header_flood_never_reaches_a_body() {
    let server = start_server();
    let mut client = Client::connect(&server);
    client.send_chat(CHAT_PATH, "mock?fault=headers_flood", false);
    let response = client.read_until(READ_TIMEOUT, |response| response.raw.len() > 4 << 20);
    assert!(response.raw.starts_with(b"HTTP/1.1 200 OK\r\nx-flood: f"));
    assert_eq!(crate::http_client::find_bytes(&response.raw, b"\r\n\r\n"), None);
    client.close();
    assert_eq!(wait_for_last_entry(&server).outcome.to_string(), "client_closed");
    let short = request_chat(&server, CHAT_PATH, "mock?fault=headers_flood&after=2", false);
    assert_eq!((short.raw.len() / 1000, short.end), (32, ReadEnd::Fin));
}

#[test]
fn sends_1xx_responses_before_the_final_response() {
    let server = start_server();
    let mut client = Client::connect(&server);
    client.send_chat(CHAT_PATH, "mock?fault=early_1xx&after=5", false);
    let response = client.read_until(READ_TIMEOUT, |response| response.raw.ends_with(b"\"fp_mock\"}"));
    let text = String::from_utf8(response.raw).unwrap();
    assert_eq!(text.matches("HTTP/1.1 103 Early Hints\r\n").count(), 5);
    assert_eq!(text.matches("HTTP/1.1 200 OK\r\n").count(), 1);
}

#[test]
fn sends_overloaded_error_as_first_event() {
    let server = start_server();
    let openai = request_chat(&server, CHAT_PATH, "mock?fault=overloaded_first", true);
    assert_eq!((openai.status(), openai.events().len(), openai.end), (200, 1, ReadEnd::Complete));
    assert!(openai.events()[0].1.contains(r#""type":"overloaded_error""#));
    let anthropic = request_chat(&server, MESSAGES_PATH, "mock?fault=overloaded_first", true);
    let (name, data) = anthropic.events().remove(0);
    assert_eq!(name.as_deref(), Some("error"));
    assert!(data.contains(r#"{"type":"overloaded_error","message":"Overloaded"}"#));
    assert_eq!(request_chat(&server, MESSAGES_PATH, "mock?fault=overloaded_first", false).status(), 529);
    assert_eq!(
        request_chat(&server, CHAT_PATH, "mock?fault=overloaded_first", false).json()["error"]["type"],
        json!("overloaded_error")
    );
}

#[test]
fn slow_first_token_comes_after_the_head() {
    let server = start_server();
    for stream in [true, false] {
        let response = request_chat(&server, CHAT_PATH, "mock?fault=slow_first&first_ms=150", stream);
        assert!(response.elapsed >= Duration::from_millis(150) && response.end == ReadEnd::Complete);
        let mut client = Client::connect(&server);
        client.send_chat(CHAT_PATH, "mock?fault=slow_first&first_ms=60000", stream);
        let head = client.read_until(HEAD_TIMEOUT, |response| response.raw.ends_with(b"\r\n\r\n"));
        assert_eq!((head.status(), head.end), (200, ReadEnd::Complete));
    }
}

#[test]
fn drip_sends_one_byte_at_a_time() {
    let server = start_server();
    let mut client = Client::connect(&server);
    client.send_chat(CHAT_PATH, "mock?fault=drip&chunk_ms=5", true);
    let response = client.read_until(READ_TIMEOUT, |response| response.raw.len() >= 20);
    assert!(response.raw.len() <= 24 && response.elapsed >= Duration::from_millis(19 * 5), "{:?}", response.elapsed);
    let mut slow = Client::connect(&server);
    slow.send_chat(CHAT_PATH, "mock?fault=drip", false);
    assert_eq!(slow.read_response(Duration::from_millis(300)).raw, b"H");
}
