//! Faults that end a response in the middle: cut, reset, stall, half close, bad framing, wrong length.

use std::io::Write;
use std::time::Duration;

use crate::http_client::{CHAT_PATH, Client, MESSAGES_PATH, ReadEnd, request_chat, start_server, wait_for_last_entry};

const READ_TIMEOUT: Duration = Duration::from_millis(400);

#[test]
fn cut_stream_ends_with_fin() {
    let server = start_server();
    for (path, opening) in [(CHAT_PATH, 1), (MESSAGES_PATH, 3)] {
        let response = request_chat(&server, path, "mock?fault=cut&after=3", true);
        assert_eq!((response.events().len(), response.end), (opening + 3, ReadEnd::Fin));
    }
    assert_eq!(wait_for_last_entry(&server).outcome.to_string(), "fault:cut");
    assert_eq!(request_chat(&server, CHAT_PATH, "mock?fault=cut", true).events().len(), 1 + 4);
    assert_eq!(request_chat(&server, CHAT_PATH, "mock?fault=cut&after=0&burst=on", true).events().len(), 1);
}

#[test]
fn reset_stream_ends_with_rst_after_its_chunks() {
    let server = start_server();
    let response = request_chat(&server, CHAT_PATH, "mock?fault=cut_reset&after=2", true);
    assert_eq!((response.events().len(), response.end), (3, ReadEnd::Reset));
}

#[test]
fn stalled_stream_stays_open() {
    let server = start_server();
    let mut client = Client::connect(&server);
    client.send_chat(CHAT_PATH, "mock?fault=stall&after=2", true);
    let response = client.read_response(READ_TIMEOUT);
    assert_eq!((response.events().len(), response.end), (3, ReadEnd::TimedOut));
    client.close();
    assert_eq!(wait_for_last_entry(&server).outcome.to_string(), "client_closed");
}

#[test]
fn half_closed_stream_still_reads() {
    let server = start_server();
    let mut client = Client::connect(&server);
    client.send_chat(CHAT_PATH, "mock?fault=half_close&after=1", true);
    let response = client.read_response(READ_TIMEOUT);
    assert_eq!((response.events().len(), response.end), (2, ReadEnd::Fin));
    for _ in 0..3 {
        client.stream.write_all(b"still there?").unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.ledger_entries()[0].outcome.to_string(), "open");
    client.close();
    assert_eq!(wait_for_last_entry(&server).outcome.to_string(), "client_closed");
}

#[test]
fn bad_framing_sends_invalid_chunk_sizes() {
    let server = start_server();
    for stream in [true, false] {
        let response = request_chat(&server, CHAT_PATH, "mock?fault=invalid_framing&after=2", stream);
        assert_eq!(response.header("transfer-encoding").as_deref(), Some("chunked"));
        assert!(response.raw.ends_with(b"\r\nzz\r\nno size\r\n"), "{:?}", response.raw);
    }
}

#[test]
fn buffered_responses_break_off_in_the_middle() {
    let server = start_server();
    for (fault, end) in [
        ("cut", ReadEnd::Fin),
        ("cut_reset", ReadEnd::Reset),
        ("stall", ReadEnd::TimedOut),
        ("half_close", ReadEnd::Fin),
    ] {
        let response = request_chat(&server, CHAT_PATH, &format!("mock?fault={fault}"), false);
        let claimed: usize = response.header("content-length").unwrap().parse().unwrap();
        assert_eq!((response.body().len(), response.end), (claimed / 2, end), "{fault}");
    }
}

#[test]
fn content_length_shorter_than_the_body() {
    let server = start_server();
    for stream in [true, false] {
        let mut client = Client::connect(&server);
        client.send_chat(CHAT_PATH, "mock?fault=short_length&chunks=2", stream);
        let response = client.read_until(Duration::from_millis(100), |_| false);
        let claimed: usize = response.header("content-length").unwrap().parse().unwrap();
        assert_eq!((response.body().len(), response.end), (claimed + 10, ReadEnd::TimedOut));
    }
}

#[test]
fn content_length_longer_than_the_body() {
    let server = start_server();
    for stream in [true, false] {
        let response = request_chat(&server, CHAT_PATH, "mock?fault=long_length&chunks=2", stream);
        let claimed: usize = response.header("content-length").unwrap().parse().unwrap();
        assert_eq!((response.body().len(), response.end), (claimed - 10, ReadEnd::Fin));
    }
}
