//! Faults in the bytes of an answer that is otherwise sent to its end.

use std::time::Duration;

use crate::talk::{Answer, CHAT, Client, End, MESSAGES, chat, find, last_entry, server};
use penstock_mock::Server;
use serde_json::Value;

const WAIT: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(5);

fn broken(answer: &Answer) -> Vec<usize> {
    let events = answer.events();
    let bad = |data: &str| data != "[DONE]" && serde_json::from_str::<Value>(data).is_err();
    events.iter().enumerate().filter(|(_, (_, data))| bad(data)).map(|(at, _)| at).collect()
}

#[test]
fn one_event_breaks_off_in_its_json() {
    let server = server();
    for (path, opening, rest) in [(CHAT, 1, 2), (MESSAGES, 3, 3)] {
        let answer = chat(&server, path, "mock?fault=malformed_chunk&chunks=6&after=2", true);
        assert_eq!((broken(&answer), answer.events().len()), (vec![opening + 2], opening + 7 + rest));
        assert_eq!((answer.content().as_str(), answer.end), ("Hello from the pretend provider: all ", End::Complete));
    }
    let whole = chat(&server, CHAT, "mock?fault=malformed_chunk", false);
    assert!(whole.end == End::Complete && serde_json::from_slice::<Value>(&whole.body()).is_err());
}

#[test]
fn the_mark_of_the_end_is_missing() {
    let server = server();
    let openai = chat(&server, CHAT, "mock?fault=no_done&chunks=2", true);
    assert!(openai.end == End::Complete && openai.events().last().unwrap().1.contains(r#""finish_reason":"stop""#));
    let anthropic = chat(&server, MESSAGES, "mock?fault=no_done&chunks=2", true);
    assert_eq!(anthropic.events().last().unwrap().0.as_deref(), Some("message_delta"));
    assert_eq!(last_entry(&server).outcome.to_string(), "fault:no_done");
}

#[test]
fn more_follows_the_mark_of_the_end() {
    let server = server();
    let events = chat(&server, CHAT, "mock?fault=done_then_data", true).events();
    assert_eq!(events[events.len() - 2].1, "[DONE]");
    assert!(events[events.len() - 1].1.contains("too late"));
}

#[test]
fn an_error_in_the_middle() {
    let server = server();
    let answer = chat(&server, MESSAGES, "mock?fault=error_event&after=2", true);
    assert_eq!(answer.events()[5].0.as_deref(), Some("error"));
}

#[test]
fn gzip_unpacks_to_the_plain_answer() {
    let server = server();
    for stream in [true, false] {
        let plain = chat(&server, CHAT, "mock?chunks=3", stream);
        let packed = chat(&server, CHAT, "mock?chunks=3&fault=gzip", stream);
        assert_eq!(packed.header("content-encoding").as_deref(), Some("gzip"));
        let (plain, unpacked) = (plain.body(), unpack(&packed.body()));
        assert_eq!(String::from_utf8_lossy(&unpacked).len(), plain.len());
        assert_eq!(unpacked.starts_with(b"data: "), stream);
    }
}

// Stored blocks only, which is all that the pretend provider makes; its checksum is proved by a unit test.
fn unpack(member: &[u8]) -> Vec<u8> {
    assert_eq!(member[..3], [0x1f, 0x8b, 8]);
    let (mut at, mut out) = (10, Vec::new());
    loop {
        let length = usize::from(u16::from_le_bytes([member[at + 1], member[at + 2]]));
        out.extend_from_slice(&member[at + 5..at + 5 + length]);
        let last = member[at] == 1;
        at += 5 + length;
        if last {
            assert_eq!(
                (member.len() - at, u32::try_from(out.len()).unwrap().to_le_bytes()),
                (8, member[at + 4..].try_into().unwrap())
            );
            return out;
        }
    }
}

#[test]
fn one_event_of_ten_megabytes() {
    let server = server();
    for path in [CHAT, MESSAGES] {
        let mut client = Client::connect(&server);
        client.chat(path, "mock?fault=huge_event&chunks=2", true);
        let answer = client.read_until(PATIENCE, |answer| answer.raw.ends_with(b"0\r\n\r\n"));
        assert_eq!(answer.end, End::Complete);
        let largest = answer.events().iter().map(|(_, data)| data.len()).max().unwrap();
        assert!(largest > 10 << 20 && broken(&answer).is_empty());
    }
    let mut client = Client::connect(&server);
    client.chat(CHAT, "mock?fault=huge_event", false);
    let whole = client.read_until(PATIENCE, |answer| answer.raw.len() > 10 << 20);
    assert_eq!(whole.header("content-length").as_deref(), Some("10485760"));
}

#[test]
fn other_line_ends() {
    let server = server();
    let plain = chat(&server, CHAT, "mock?chunks=2", true).text();
    let shape = |text: &str| text.split('"').step_by(2).map(str::len).sum::<usize>();
    for (fault, end) in [("crlf", "\r\n"), ("cr", "\r")] {
        let text = chat(&server, CHAT, &format!("mock?chunks=2&fault={fault}"), true).text();
        assert!(text.ends_with(&format!("data: [DONE]{end}{end}")));
        assert_eq!(text.matches('\n').count(), if fault == "cr" { 0 } else { plain.matches('\n').count() });
        assert_eq!(shape(&text.replace(end, "\n")), shape(&plain));
    }
}

#[test]
fn a_byte_order_mark_comes_first() {
    let server = server();
    for stream in [true, false] {
        let body = chat(&server, CHAT, "mock?fault=bom", stream).body();
        assert_eq!((&body[..3], find(&body[3..], b"\xef\xbb\xbf")), (&b"\xef\xbb\xbf"[..], None));
    }
}

#[test]
fn pings_and_nothing_else() {
    let server = server();
    for (path, ping) in [(CHAT, ": ping\n\n"), (MESSAGES, "event: ping\ndata: {\"type\": \"ping\"}\n\n")] {
        let mut client = Client::connect(&server);
        client.chat(path, "mock?fault=pings_only&chunk_ms=10", true);
        let answer = client.read_until(WAIT, |answer| answer.raw.len() > 600);
        assert!(answer.total > Duration::from_millis(50));
        assert_eq!(answer.text().replace(ping, ""), "");
        client.close();
        assert_eq!(last_entry(&server).outcome.to_string(), "client_closed");
    }
}

#[test]
fn text_that_is_no_utf_8() {
    let server = server();
    for stream in [true, false] {
        let answer = chat(&server, CHAT, "mock?fault=invalid_utf8", stream);
        assert!(answer.end == End::Complete && String::from_utf8(answer.body()).is_err());
    }
}

#[test]
fn what_is_bad_so_many_times_is_well_after_that_for_each_model() {
    let server = server();
    let statuses = |model: &str| [0; 4].map(|_| chat(&server, CHAT, model, false).status());
    assert_eq!(statuses("mock?status=503&times=2"), [503, 503, 200, 200]);
    assert_eq!(statuses("other?status=503&times=2"), [503, 503, 200, 200]);
    assert_eq!(statuses("mock?status=503"), [503; 4]);
}

#[test]
fn an_error_has_the_code_that_was_asked_for() {
    let server = server();
    let error = chat(&server, CHAT, "mock?status=400&code=context_length_exceeded", true).json();
    assert_eq!(error["error"]["code"], "context_length_exceeded");
}

/// Asks with the beginning of an answer as the last message.
fn begun(server: &Server, model: &str, beginning: &str) -> Answer {
    let messages = serde_json::json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": beginning}]);
    let body = serde_json::json!({"model": model, "messages": messages, "stream": true}).to_string();
    let mut client = Client::connect(server);
    client.ask("POST", CHAT, "content-type: application/json\r\n", &body);
    client.read(PATIENCE)
}

#[test]
fn the_beginning_of_an_answer_is_gone_on_from_or_refused() {
    let server = server();
    let told = |model: &str, beginning: &str| begun(&server, model, beginning).content();
    assert_eq!(told("mock?chunks=4&prefix=on", "Hello from"), " the pretend ");
    assert_eq!(told("mock?chunks=4&prefix=on", "Hello from "), "the pretend ");
    assert_eq!(told("mock?chunks=4&prefix=on", "Something else"), "Hello from the pretend ");
    assert_eq!(told("mock?chunks=4", "Hello from"), "Hello from the pretend ");
    assert_eq!(begun(&server, "mock?prefix=off", "Hello").status(), 400);
    assert_eq!(chat(&server, CHAT, "mock?prefix=off", true).status(), 200);
}
