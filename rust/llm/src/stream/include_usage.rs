//! Usage of completion streams, which providers report only on request (`stream_options.include_usage`). Requests it on
//! the client's behalf, and removes it from the stream if the client did not ask for it.

use std::{ops::Range, sync::LazyLock};

use bytes::Bytes;
use memchr::{memchr2, memmem::Finder};
use serde_json::{Map, Value};

use super::sse;
use crate::{
    api_format::peek,
    catalog::{Provider, options::Options},
    json::{edit, keys::value_start, scan::for_each_field},
    operation::Operation,
};

static STREAM_OPTIONS_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"stream_options\""));
static USAGE_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"usage\""));
static CHOICES_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"choices\""));

/// Returns true if this provider reports the usage of the operation's streams on request. `version` is the API version.
pub fn supports_include_usage(
    provider: &dyn Provider,
    operation: Operation,
    version: Option<&str>,
    options: &Options,
) -> bool {
    matches!(operation, Operation::ChatComplete | Operation::Complete)
        && provider.accepts_stream_options(version, options)
}

/// Maximum number of bytes after a null usage on the fast path. Some providers append padding there, so that chunk
/// lengths do not reveal the text.
const MAX_TRAILING_BYTES: usize = 128;

const INCLUDE_USAGE_FIELD: &[u8] = br#""stream_options":{"include_usage":true},"#;

/// Adds `include_usage` to the request for a stream; `None` if the request already has it.
pub fn request_usage(body: &[u8]) -> Option<Vec<u8>> {
    if STREAM_OPTIONS_KEY.find(body).is_some() {
        return set_include_usage(body);
    }
    // The body has at least a `stream` field, so a field follows the brace and the comma is valid.
    let at = body.iter().position(|byte| *byte == b'{')? + 1;
    let mut out = Vec::with_capacity(body.len() + INCLUDE_USAGE_FIELD.len());
    out.extend_from_slice(&body[..at]);
    out.extend_from_slice(INCLUDE_USAGE_FIELD);
    out.extend_from_slice(&body[at..]);
    Some(out)
}

fn set_include_usage(body: &[u8]) -> Option<Vec<u8>> {
    let peeked = peek(body).ok()?;
    if peeked.include_usage == Some(true) {
        return None;
    }
    let parsed = peeked.stream_options_range.and_then(|at| serde_json::from_slice(&body[at]).ok());
    let mut options = match parsed {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(options)) => options,
        // The provider rejects other types.
        Some(_) => return None,
    };
    options.insert("include_usage".into(), true.into());
    edit::set_fields(body, &[], &[edit::json_field("stream_options", &Value::Object(options))]).ok()
}

/// Removes the usage from complete events if the client did not ask for it. Drops the event that has only usage, and
/// cuts the field out of all others.
pub fn strip_usage(events: Bytes) -> Bytes {
    if USAGE_KEY.find(&events).is_none() {
        return events;
    }
    let mut kept_bytes = Vec::with_capacity(events.len());
    if events.starts_with(sse::BOM) {
        kept_bytes.extend_from_slice(sse::BOM);
    }
    sse::split_events(&events).for_each(|event| copy_without_usage(event, &mut kept_bytes));
    kept_bytes.into()
}

fn copy_without_usage(event: &[u8], kept_bytes: &mut Vec<u8>) {
    let Some(at) = USAGE_KEY.find(event) else { return kept_bytes.extend_from_slice(event) };
    if let Some(null_range) = trailing_null_usage(event, at) {
        kept_bytes.extend_from_slice(&event[..null_range.start]);
        return kept_bytes.extend_from_slice(&event[null_range.end..]);
    }
    if is_usage_only(event) {
        return;
    }
    let mut copied = 0;
    for usage_range in usage_ranges(event) {
        kept_bytes.extend_from_slice(&event[copied..usage_range.start]);
        copied = usage_range.end;
    }
    kept_bytes.extend_from_slice(&event[copied..]);
}

/// Returns the range of a `"usage":null` at the end of an event, where nearly all events have it. Such an event need
/// not be parsed, because the brace after it is the last one. Returns `None` if another object, array or line begins or
/// ends after it; the event is then parsed.
fn trailing_null_usage(event: &[u8], at: usize) -> Option<Range<usize>> {
    let start = at.checked_sub(1).filter(|start| event[*start] == b',')?;
    let rest = event[at + USAGE_KEY.needle().len()..].strip_prefix(b":null")?;
    let tail = rest.strip_suffix(b"}\n\n")?;
    let is_plain = tail.len() <= MAX_TRAILING_BYTES
        && !tail.iter().any(|byte| matches!(byte, b'{' | b'}' | b'[' | b']' | b'\n' | b'\r'))
        && USAGE_KEY.find(tail).is_none();
    let is_line = event.starts_with(b"data:") && memchr2(b'\n', b'\r', &event[..start]).is_none();
    (is_plain && is_line).then(|| start..event.len() - rest.len())
}

fn is_usage_only(event: &[u8]) -> bool {
    let has_usage = USAGE_KEY.find_iter(event).any(|at| matches!(value_start(event, at + 7), Some((_, b'{'))));
    has_usage
        && CHOICES_KEY.find(event).is_some_and(|at| match value_start(event, at + 9) {
            Some((open, b'[')) => event[open + 1..].trim_ascii_start().starts_with(b"]"),
            _ => false,
        })
}

fn has_choices(event: &[u8]) -> bool {
    CHOICES_KEY.find(event).is_some_and(|at| match value_start(event, at + 9) {
        Some((open, b'[')) => !event[open + 1..].trim_ascii_start().starts_with(b"]"),
        _ => false,
    })
}

/// Returns the ranges of the `usage` fields that are null, or an object in an event without choices, each with one
/// adjacent comma. Some providers report usage beside the last choice without being asked, and clients expect it there.
/// Only top-level fields count; nested ones belong to something else.
fn usage_ranges(event: &[u8]) -> Vec<Range<usize>> {
    let mut events = Vec::new();
    for line in event.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"data:")) {
        let json = line[5..].trim_ascii();
        let from = json.as_ptr().addr() - event.as_ptr().addr();
        let mut before = 0;
        let has_choices = has_choices(line);
        // Leaves invalid JSON unchanged.
        let _ = for_each_field(json, |key, value| {
            if key == b"usage" && (json[value.start] == b'n' || json[value.start] == b'{' && !has_choices) {
                let (start, end) = (before, value.end);
                let at = if start > 0 { start..end } else { 1..skip_comma(json, end) };
                events.push(at.start + from..at.end + from);
            }
            before = value.end;
            Ok(())
        });
    }
    events
}

/// Returns the position after the comma that follows a value, if there is one.
fn skip_comma(json: &[u8], end: usize) -> usize {
    let rest = json[end..].trim_ascii_start();
    if rest.starts_with(b",") { json.len() - rest.len() + 1 } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_usage_in(body: &str) -> Option<String> {
        request_usage(body.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn requests_usage_once_and_preserves_the_rest_of_the_body() {
        assert_eq!(
            request_usage_in(r#" { "model":"m", "stream":true}"#).unwrap(),
            r#" {"stream_options":{"include_usage":true}, "model":"m", "stream":true}"#
        );
        for (body, expected) in [
            (r#"{"stream_options":{"x":1},"a":[ 1 ]}"#, r#"{"stream_options":{"x":1,"include_usage":true},"a":[ 1 ]}"#),
            (r#"{"stream_options":null}"#, r#"{"stream_options":{"include_usage":true}}"#),
            (r#"{"stream_options":{"include_usage":false}}"#, r#"{"stream_options":{"include_usage":true}}"#),
            (r#"{"a":"stream_options"}"#, r#"{"a":"stream_options","stream_options":{"include_usage":true}}"#),
        ] {
            assert_eq!(request_usage_in(body).unwrap(), expected);
        }
        assert_eq!(request_usage_in(r#"{"stream_options":{"include_usage":true}}"#), None);
        assert_eq!(request_usage_in(r#"{"stream_options":7}"#), None);
    }

    #[test]
    fn strips_only_the_usage_that_was_not_requested() {
        let input = "data: {\"id\":1,\"choices\":[{\"delta\":{\"content\":\",\\\"usage\\\":null\"}}],\"usage\":null}\n\n\
            data: {\"choices\": [], \"usage\": null, \"prompt_filter_results\": []}\n\n\
            data: {\"choices\": [ ], \"usage\": {\"total_tokens\": 3}}\r\n\r\n\
            data: {\"choices\":[{\"delta\":{}}] , \"usage\" : {\"total_tokens\":3,\"x\":{}} ,\"id\":1}\r\n\r\n\
            data:{\"usage\":{\"total_tokens\":3}, \"choices\":[{\"delta\":{}}]}\n\n\
            data: {\"choices\":[{\"usage\":{\"a\":1}}],\"x_groq\":{\"usage\":{\"a\":1}}}\n\n\
            data: {\"choices\":[1],\"usage\":{\n\ndata: [DONE]\n\n";
        let kept_bytes = "data: {\"id\":1,\"choices\":[{\"delta\":{\"content\":\",\\\"usage\\\":null\"}}]}\n\n\
            data: {\"choices\": [], \"prompt_filter_results\": []}\n\n\
            data: {\"choices\":[{\"delta\":{}}] , \"usage\" : {\"total_tokens\":3,\"x\":{}} ,\"id\":1}\r\n\r\n\
            data:{\"usage\":{\"total_tokens\":3}, \"choices\":[{\"delta\":{}}]}\n\n\
            data: {\"choices\":[{\"usage\":{\"a\":1}}],\"x_groq\":{\"usage\":{\"a\":1}}}\n\n\
            data: {\"choices\":[1],\"usage\":{\n\ndata: [DONE]\n\n";
        assert_eq!(strip_usage(Bytes::from_static(input.as_bytes())), kept_bytes);
    }

    #[test]
    fn unparsed_and_parsed_events_give_the_same_result() {
        for (event, stripped) in [
            (r#"{"a":1,"usage":null}"#, r#"{"a":1}"#),
            (r#"{"a":1,"usage":null,"obfuscation":"xY7"}"#, r#"{"a":1,"obfuscation":"xY7"}"#),
            (r#"{"a":1,"usage":null,"b":"}"}"#, r#"{"a":1,"b":"}"}"#),
            (r#"{"a":1,"usage":null,"b":{}}"#, r#"{"a":1,"b":{}}"#),
            (r#"{"a":1,"usage":null,"usage":null}"#, r#"{"a":1}"#),
            (r#"{"a":{"b":1,"usage":null}}"#, r#"{"a":{"b":1,"usage":null}}"#),
            (r#"{"a":[{"b":1,"usage":null}]}"#, r#"{"a":[{"b":1,"usage":null}]}"#),
            (r#"{"a":",\"usage\":null}","usage":null}"#, r#"{"a":",\"usage\":null}"}"#),
            (r#"{"a":",\"usage\":null"}"#, r#"{"a":",\"usage\":null"}"#),
        ] {
            let [event, kept_bytes] = [event, stripped].map(|json| format!("data: {json}\n\n"));
            assert_eq!(strip_usage(event.clone().into()), kept_bytes);
            assert_eq!(strip_usage(format!("{event}data: [DONE]\n\n").into()), format!("{kept_bytes}data: [DONE]\n\n"));
        }
    }

    #[test]
    fn events_without_usage_are_not_copied() {
        let events = Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"content\":\"usage\"}}]}\n\n");
        let hidden = strip_usage(events.clone());
        // A text that contains the word `usage` is not changed.
        assert_eq!(hidden, events);
        let plain = Bytes::from_static(b"data: {\"choices\":[]}\n\n");
        assert_eq!(strip_usage(plain.clone()).as_ptr(), plain.as_ptr());
    }
}
