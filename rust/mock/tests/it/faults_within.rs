//! Faults in the middle of an answer that end it: cut, reset, stalled, half closed, badly framed, of a wrong length.

use std::io::Write;
use std::time::Duration;

use crate::talk::{CHAT, Client, End, MESSAGES, chat, last_entry, server};

const WAIT: Duration = Duration::from_millis(400);

#[test]
fn a_cut_stream_ends_with_fin() {
    let server = server();
    for (path, opening) in [(CHAT, 1), (MESSAGES, 3)] {
        let answer = chat(&server, path, "mock?fault=cut&after=3", true);
        assert_eq!((answer.events().len(), answer.end), (opening + 3, End::Fin));
    }
    assert_eq!(last_entry(&server).outcome.to_string(), "fault:cut");
    assert_eq!(chat(&server, CHAT, "mock?fault=cut", true).events().len(), 1 + 4);
    assert_eq!(chat(&server, CHAT, "mock?fault=cut&after=0&burst=on", true).events().len(), 1);
}

#[test]
fn a_reset_stream_ends_with_rst_after_its_chunks() {
    let server = server();
    let answer = chat(&server, CHAT, "mock?fault=cut_reset&after=2", true);
    assert_eq!((answer.events().len(), answer.end), (3, End::Reset));
}

#[test]
fn a_stalled_stream_stays_open() {
    let server = server();
    let mut client = Client::connect(&server);
    client.chat(CHAT, "mock?fault=stall&after=2", true);
    let answer = client.read(WAIT);
    assert_eq!((answer.events().len(), answer.end), (3, End::Silent));
    client.close();
    assert_eq!(last_entry(&server).outcome.to_string(), "client_closed");
}

#[test]
fn a_half_closed_stream_still_listens() {
    let server = server();
    let mut client = Client::connect(&server);
    client.chat(CHAT, "mock?fault=half_close&after=1", true);
    let answer = client.read(WAIT);
    assert_eq!((answer.events().len(), answer.end), (2, End::Fin));
    for _ in 0..3 {
        client.stream.write_all(b"still there?").unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.ledger_entries()[0].outcome.to_string(), "open");
    client.close();
    assert_eq!(last_entry(&server).outcome.to_string(), "client_closed");
}

#[test]
fn bad_framing_is_no_chunk() {
    let server = server();
    for stream in [true, false] {
        let answer = chat(&server, CHAT, "mock?fault=bad_framing&after=2", stream);
        assert_eq!(answer.header("transfer-encoding").as_deref(), Some("chunked"));
        assert!(answer.raw.ends_with(b"\r\nzz\r\nno size\r\n"), "{:?}", answer.raw);
    }
}

#[test]
fn whole_answers_break_off_in_the_middle() {
    let server = server();
    for (fault, end) in [("cut", End::Fin), ("cut_reset", End::Reset), ("stall", End::Silent), ("half_close", End::Fin)]
    {
        let answer = chat(&server, CHAT, &format!("mock?fault={fault}"), false);
        let claimed: usize = answer.header("content-length").unwrap().parse().unwrap();
        assert_eq!((answer.body().len(), answer.end), (claimed / 2, end), "{fault}");
    }
}

#[test]
fn a_length_that_is_too_short() {
    let server = server();
    for stream in [true, false] {
        let mut client = Client::connect(&server);
        client.chat(CHAT, "mock?fault=short_length&chunks=2", stream);
        let answer = client.read_until(Duration::from_millis(100), |_| false);
        let claimed: usize = answer.header("content-length").unwrap().parse().unwrap();
        assert_eq!((answer.body().len(), answer.end), (claimed + 10, End::Silent));
    }
}

#[test]
fn a_length_that_is_too_long() {
    let server = server();
    for stream in [true, false] {
        let answer = chat(&server, CHAT, "mock?fault=long_length&chunks=2", stream);
        let claimed: usize = answer.header("content-length").unwrap().parse().unwrap();
        assert_eq!((answer.body().len(), answer.end), (claimed - 10, End::Fin));
    }
}
