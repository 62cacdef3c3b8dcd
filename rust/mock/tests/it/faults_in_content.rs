//! Faults in the bytes of a response that is otherwise sent completely.

use std::time::Duration;

use crate::http_client::{
    CHAT_PATH, Client, MESSAGES_PATH, ReadEnd, Response, find_bytes, request_chat, start_server, wait_for_last_entry,
};
use penstock_mock::Server;
use serde_json::Value;

const READ_TIMEOUT: Duration = Duration::from_millis(400);
const LONG_READ_TIMEOUT: Duration = Duration::from_secs(5);

fn malformed_event_indices(response: &Response) -> Vec<usize> {
    let events = response.events();
    let bad = |data: &str| data != "[DONE]" && serde_json::from_str::<Value>(data).is_err();
    events.iter().enumerate().filter(|(_, (_, data))| bad(data)).map(|(at, _)| at).collect()
}

#[test]
fn truncates_the_json_of_one_event() {
    let server = start_server();
    for (path, opening, rest) in [(CHAT_PATH, 1, 2), (MESSAGES_PATH, 3, 3)] {
        let response = request_chat(&server, path, "mock?fault=malformed_chunk&chunks=6&after=2", true);
        assert_eq!(
            (malformed_event_indices(&response), response.events().len()),
            (vec![opening + 2], opening + 7 + rest)
        );
        assert_eq!(
            (response.content().as_str(), response.end),
            ("Hello from the pretend provider: all ", ReadEnd::Complete)
        );
    }
    let complete = request_chat(&server, CHAT_PATH, "mock?fault=malformed_chunk", false);
    assert!(complete.end == ReadEnd::Complete && serde_json::from_slice::<Value>(&complete.body()).is_err());
}

#[test]
fn omits_the_end_of_stream_marker() {
    let server = start_server();
    let openai = request_chat(&server, CHAT_PATH, "mock?fault=no_done&chunks=2", true);
    assert!(openai.end == ReadEnd::Complete && openai.events().last().unwrap().1.contains(r#""finish_reason":"stop""#));
    let anthropic = request_chat(&server, MESSAGES_PATH, "mock?fault=no_done&chunks=2", true);
    assert_eq!(anthropic.events().last().unwrap().0.as_deref(), Some("message_delta"));
    assert_eq!(wait_for_last_entry(&server).outcome.to_string(), "fault:no_done");
}

#[test]
fn sends_data_after_the_end_of_stream_marker() {
    let server = start_server();
    let events = request_chat(&server, CHAT_PATH, "mock?fault=done_then_data", true).events();
    assert_eq!(events[events.len() - 2].1, "[DONE]");
    assert!(events[events.len() - 1].1.contains("too late"));
}

#[test]
fn sends_error_event_in_mid_stream() {
    let server = start_server();
    let response = request_chat(&server, MESSAGES_PATH, "mock?fault=error_event&after=2", true);
    assert_eq!(response.events()[5].0.as_deref(), Some("error"));
}

#[test]
fn gzip_decompresses_to_the_plain_response() {
    let server = start_server();
    for stream in [true, false] {
        let plain = request_chat(&server, CHAT_PATH, "mock?chunks=3", stream);
        let packed = request_chat(&server, CHAT_PATH, "mock?chunks=3&fault=gzip", stream);
        assert_eq!(packed.header("content-encoding").as_deref(), Some("gzip"));
        let (plain, unpacked) = (plain.body(), decompress_stored_gzip(&packed.body()));
        assert_eq!(String::from_utf8_lossy(&unpacked).len(), plain.len());
        assert_eq!(unpacked.starts_with(b"data: "), stream);
    }
}

// Decompresses gzip of stored blocks only, the only kind that the mock provider writes. A unit test checks the
// checksum.
fn decompress_stored_gzip(member: &[u8]) -> Vec<u8> {
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
fn sends_one_event_of_ten_megabytes() {
    let server = start_server();
    for path in [CHAT_PATH, MESSAGES_PATH] {
        let mut client = Client::connect(&server);
        client.send_chat(path, "mock?fault=huge_event&chunks=2", true);
        let response = client.read_until(LONG_READ_TIMEOUT, |response| response.raw.ends_with(b"0\r\n\r\n"));
        assert_eq!(response.end, ReadEnd::Complete);
        let largest = response.events().iter().map(|(_, data)| data.len()).max().unwrap();
        assert!(largest > 10 << 20 && malformed_event_indices(&response).is_empty());
    }
    let mut client = Client::connect(&server);
    client.send_chat(CHAT_PATH, "mock?fault=huge_event", false);
    let complete = client.read_until(LONG_READ_TIMEOUT, |response| response.raw.len() > 10 << 20);
    assert_eq!(complete.header("content-length").as_deref(), Some("10485760"));
}

#[test]
fn sends_crlf_and_cr_line_endings() {
    let server = start_server();
    let plain = request_chat(&server, CHAT_PATH, "mock?chunks=2", true).text();
    let shape = |text: &str| text.split('"').step_by(2).map(str::len).sum::<usize>();
    for (fault, end) in [("crlf", "\r\n"), ("cr", "\r")] {
        let text = request_chat(&server, CHAT_PATH, &format!("mock?chunks=2&fault={fault}"), true).text();
        assert!(text.ends_with(&format!("data: [DONE]{end}{end}")));
        assert_eq!(text.matches('\n').count(), if fault == "cr" { 0 } else { plain.matches('\n').count() });
        assert_eq!(shape(&text.replace(end, "\n")), shape(&plain));
    }
}

#[test]
fn sends_byte_order_mark_first() {
    let server = start_server();
    for stream in [true, false] {
        let body = request_chat(&server, CHAT_PATH, "mock?fault=bom", stream).body();
        assert_eq!((&body[..3], find_bytes(&body[3..], b"\xef\xbb\xbf")), (&b"\xef\xbb\xbf"[..], None));
    }
}

#[test]
fn sends_only_pings() {
    let server = start_server();
    for (path, ping) in [(CHAT_PATH, ": ping\n\n"), (MESSAGES_PATH, "event: ping\ndata: {\"type\": \"ping\"}\n\n")] {
        let mut client = Client::connect(&server);
        client.send_chat(path, "mock?fault=pings_only&chunk_ms=10", true);
        let response = client.read_until(READ_TIMEOUT, |response| response.raw.len() > 600);
        assert!(response.elapsed > Duration::from_millis(50));
        assert_eq!(response.text().replace(ping, ""), "");
        client.close();
        assert_eq!(wait_for_last_entry(&server).outcome.to_string(), "client_closed");
    }
}

#[test]
fn sends_invalid_utf_8() {
    let server = start_server();
    for stream in [true, false] {
        let response = request_chat(&server, CHAT_PATH, "mock?fault=invalid_utf8", stream);
        assert!(response.end == ReadEnd::Complete && String::from_utf8(response.body()).is_err());
    }
}

#[test]
fn fails_the_given_number_of_times_per_model() {
    let server = start_server();
    let statuses = |model: &str| [0; 4].map(|_| request_chat(&server, CHAT_PATH, model, false).status());
    assert_eq!(statuses("mock?status=503&times=2"), [503, 503, 200, 200]);
    assert_eq!(statuses("other?status=503&times=2"), [503, 503, 200, 200]);
    assert_eq!(statuses("mock?status=503"), [503; 4]);
}

#[test]
fn error_has_the_requested_code() {
    let server = start_server();
    let error = request_chat(&server, CHAT_PATH, "mock?status=400&code=context_length_exceeded", true).json();
    assert_eq!(error["error"]["code"], "context_length_exceeded");
}

/// Sends a request whose last message is an assistant prefill.
fn send_prefill(server: &Server, model: &str, beginning: &str) -> Response {
    let messages = serde_json::json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": beginning}]);
    let body = serde_json::json!({"model": model, "messages": messages, "stream": true}).to_string();
    let mut client = Client::connect(server);
    client.send_request("POST", CHAT_PATH, "content-type: application/json\r\n", &body);
    client.read_response(LONG_READ_TIMEOUT)
}

#[test]
fn continues_or_rejects_a_prefill() {
    let server = start_server();
    let result = |model: &str, beginning: &str| send_prefill(&server, model, beginning).content();
    assert_eq!(result("mock?chunks=4&prefix=on", "Hello from"), " the pretend ");
    assert_eq!(result("mock?chunks=4&prefix=on", "Hello from "), "the pretend ");
    assert_eq!(result("mock?chunks=4&prefix=on", "Something else"), "Hello from the pretend ");
    assert_eq!(result("mock?chunks=4", "Hello from"), "Hello from the pretend ");
    assert_eq!(send_prefill(&server, "mock?prefix=off", "Hello").status(), 400);
    assert_eq!(request_chat(&server, CHAT_PATH, "mock?prefix=off", true).status(), 200);
}
