//! Event stream splitting: public test cases as bytes and events, and independence of chunk boundaries.

use bytes::Bytes;
use penstock_llm::stream::sse::{Event, EventTooLong, Splitter};
use proptest::prelude::*;

const MAX_EVENT_BYTES: usize = 1 << 20;

struct SplitStream {
    events: Vec<Event>,
    pending: Vec<u8>,
}

impl SplitStream {
    fn raw_bytes(&self) -> Vec<u8> {
        let events = self.events.iter().flat_map(|event| event.raw.iter().copied());
        events.chain(self.pending.iter().copied()).collect()
    }

    fn messages(&self) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let message = |event: &Event| Some((text(event.name().unwrap_or(b"message")), text(&event.data()?)));
        self.events.iter().filter_map(message).collect()
    }
}

fn split_chunks<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> SplitStream {
    let mut splitter = Splitter::new(MAX_EVENT_BYTES);
    let mut events = Vec::new();
    for chunk in chunks {
        events.extend(splitter.push(Bytes::copy_from_slice(chunk)).map(Result::unwrap));
    }
    events.extend(splitter.finish());
    SplitStream { events, pending: splitter.pending().to_vec() }
}

/// Name of the case, its bytes, and the name and data of each message.
type PublicCase = (&'static str, Vec<u8>, Vec<(&'static str, &'static str)>);

/// Returns cases of web-platform-tests (BSD-3-Clause), `eventsource/`: the bytes that the server sends and the expected
/// messages.
fn public_cases() -> Vec<PublicCase> {
    let message = |data| ("message", data);
    let long = "x".repeat(2048);
    let comments = format!("data:1\r:\0\n:\r\ndata:2\n:{long}\rdata:3\n:data:fail\r:{long}\ndata:4\n\n");
    let case =
        |name, bytes: &[u8], messages: &[(&'static str, &'static str)]| (name, bytes.to_vec(), messages.to_vec());
    vec![
        case("format-bom", b"\xEF\xBB\xBFdata:1\n\n\xEF\xBB\xBFdata:2\n\ndata:3\n\n", &[message("1"), message("3")]),
        case("format-bom-2", b"\xEF\xBB\xBF\xEF\xBB\xBFdata:1\n\ndata:2\n\ndata:3\n\n", &[message("2"), message("3")]),
        case("format-comments", comments.as_bytes(), &[message("1\n2\n3\n4")]),
        case("format-data-before-final-empty-line", b"retry:1000\ndata:test1\n\nid:test\ndata:test2\n", &[message("test1")]),
        case("format-field-data", b"data:\n\ndata\ndata\n\ndata:test\n\n", &[message(""), message("\n"), message("test")]),
        case("format-field-event", b"event:test\ndata:x\n\ndata:x\n\n", &[("test", "x"), message("x")]),
        case("format-field-event-empty", b"event: \ndata:data\n\n", &[message("data")]),
        case("format-field-parsing", b"data:\0\ndata:  2\rData:1\ndata\0:2\ndata:1\r\0data:4\nda-ta:3\rdata_5\ndata:3\rdata:\r\n data:32\ndata:4\n\n", &[message("\0\n 2\n1\n3\n\n4")]),
        case("format-field-retry", b"retry:3000\ndata:x\n\n", &[message("x")]),
        case("format-field-retry-bogus", b"retry:3000\nretry:1000x\ndata:x\n\n", &[message("x")]),
        case("format-field-retry-empty", b"retry\ndata:test\n\n", &[message("test")]),
        case("format-field-unknown", b"data:test\n data\ndata\nfoobar:xxx\njustsometext\n:thisisacommentyay\ndata:test\n\n", &[message("test\n\ntest")]),
        case("format-leading-space", b"data:\ttest\rdata: \ndata:test\n\n", &[message("\ttest\n\ntest")]),
        case("format-newlines", b"data:test\r\ndata\ndata:test\r\n\r\n", &[message("test\n\ntest")]),
        case("format-null-character", b"data:\0\n\n\n\n", &[message("\0")]),
        case("format-utf-8", "data:ok…\n\n".as_bytes(), &[message("ok…")]),
        case("event-data", b"data:msg\ndata: msg\n\n:\nfalsefield:msg\n\nfalsefield:msg\nData:data\n\ndata\n\ndata:end\n\n", &[message("msg\nmsg"), message(""), message("end")]),
    ]
}

#[test]
fn reads_the_public_cases() {
    for (name, bytes, messages) in public_cases() {
        let split = split_chunks([&bytes[..]]);
        let expected: Vec<_> = messages.iter().map(|(name, data)| ((*name).to_owned(), (*data).to_owned())).collect();
        assert_eq!(split.messages(), expected, "{name}");
        assert_eq!(split.raw_bytes(), bytes, "{name}");
    }
}

#[test]
fn reads_the_public_cases_byte_by_byte() {
    for (name, bytes, _) in public_cases() {
        assert_eq!(split_chunks(bytes.chunks(1)).events, split_chunks([&bytes[..]]).events, "{name}");
    }
}

#[test]
fn ignores_an_id_with_a_null_byte() {
    let split = split_chunks([&b"id:1\nid:a\0b\ndata:x\n\n"[..]]);
    assert_eq!(split.events[0].id(), Some(&b"1"[..]));
}

#[test]
fn bare_carriage_returns_end_an_event_immediately() {
    let mut splitter = Splitter::new(MAX_EVENT_BYTES);
    assert_eq!(splitter.push(Bytes::from_static(b"data:1\r\r")).count(), 1);
    assert_eq!(splitter.push(Bytes::from_static(b"data:2\r\r")).count(), 1);
    assert_eq!(splitter.finish(), None);
}

#[test]
fn a_final_carriage_return_completes_the_blank_line() {
    let mut splitter = Splitter::new(MAX_EVENT_BYTES);
    assert_eq!(splitter.push(Bytes::from_static(b"data:1\r\n\r")).count(), 0);
    assert_eq!(splitter.finish().unwrap().raw, &b"data:1\r\n\r"[..]);
}

#[test]
fn events_within_a_chunk_are_not_copied() {
    let chunk = Bytes::from_static(b"data: 1\n\ndata: 2\n\ndata");
    let mut splitter = Splitter::new(MAX_EVENT_BYTES);
    let events: Vec<_> = splitter.push(chunk.clone()).map(Result::unwrap).collect();
    assert_eq!(events[0].raw.as_ptr(), chunk.as_ptr());
    assert_eq!(events[1].raw.as_ptr(), chunk[9..].as_ptr());
    assert_eq!(splitter.pending(), b"data");
}

#[test]
fn events_not_consumed_come_with_the_next_chunk() {
    let mut splitter = Splitter::new(MAX_EVENT_BYTES);
    splitter.push(Bytes::from_static(b"data:1\n\ndata:2\n\nda")).next();
    assert_eq!(splitter.push(Bytes::from_static(b"ta:3\n\n")).count(), 2);
}

#[test]
fn an_event_over_the_limit_is_an_error_and_ends_the_stream() {
    for cut in [1, 7, 40] {
        let bytes = b"data: 1\n\ndata: far too long for this\n\ndata: 3\n\n";
        let mut splitter = Splitter::new(16);
        let mut events = Vec::new();
        for chunk in bytes.chunks(cut) {
            events.extend(splitter.push(Bytes::copy_from_slice(chunk)).map(|event| event.map(|event| event.raw)));
        }
        assert_eq!(events, [Ok(Bytes::from_static(b"data: 1\n\n")), Err(EventTooLong { max_bytes: 16 })], "cut {cut}");
        assert!(splitter.pending().is_empty());
    }
}

fn any_stream() -> impl Strategy<Value = Vec<u8>> {
    let chunk = prop::sample::select(vec![
        &b"\n"[..],
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\r\r",
        b"\r\n\r\n",
        b"data: x",
        b"data:",
        b"data",
        b"event: y",
        b":c",
        b"id:1",
        b"\xEF\xBB\xBF",
        b"\xEF\xBB",
        b" ",
        b"\0",
        "…".as_bytes(),
    ]);
    prop::collection::vec(chunk, 0..40).prop_map(|chunks| chunks.concat())
}

/// Reference implementation of the WHATWG algorithm: all bytes are available, and lines are processed in order.
fn parse_by_standard(bytes: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes))
        .replace("\r\n", "\n")
        .replace('\r', "\n");
    let mut lines: Vec<&str> = text.split('\n').collect();
    lines.pop();
    let (mut messages, mut data, mut name) = (Vec::new(), String::new(), String::new());
    for line in lines {
        if line.is_empty() {
            if data.pop().is_some() {
                let name = if name.is_empty() { "message".to_owned() } else { name.clone() };
                messages.push((name, data.clone()));
            }
            (data, name) = (String::new(), String::new());
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => data = data + value + "\n",
            "event" => value.clone_into(&mut name),
            _ => {}
        }
    }
    messages
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn chunk_boundaries_do_not_change_the_events(bytes in any_stream(), cuts in prop::collection::vec(0usize..200, 0..12)) {
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        let chunks = cuts.windows(2).map(|ends| &bytes[ends[0]..ends[1]]);
        let (cut, whole) = (split_chunks(chunks), split_chunks([&bytes[..]]));
        prop_assert_eq!(&cut.events, &whole.events);
        prop_assert_eq!(&cut.pending, &whole.pending);
        prop_assert_eq!(cut.raw_bytes(), bytes);
    }

    #[test]
    fn follows_the_sse_standard(bytes in any_stream()) {
        prop_assert_eq!(split_chunks([&bytes[..]]).messages(), parse_by_standard(&bytes));
    }
}
