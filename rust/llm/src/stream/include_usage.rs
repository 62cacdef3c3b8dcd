//! The usage of a stream of completions, which is said only to who asks (`stream_options.include_usage`): asking for it in a
//! caller's name, and taking out what the caller did not ask for.

use std::{ops::Range, sync::LazyLock};

use bytes::Bytes;
use memchr::{memchr2, memmem::Finder};
use serde_json::{Map, Value};

use super::sse;
use crate::{
    api_format::peek,
    catalog::{Options, Provider},
    json::{edit, scan::for_each_field},
    operation::Operation,
    usage::value_start,
};

static OPTIONS: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"stream_options\""));
static USAGE: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"usage\""));
static CHOICES: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"choices\""));

/// Whether such a stream of this provider's says what it cost where that is asked for. `version` is that of the API.
pub fn is_said_when_asked(
    provider: &dyn Provider,
    operation: Operation,
    version: Option<&str>,
    options: &Options,
) -> bool {
    matches!(operation, Operation::ChatComplete | Operation::Complete)
        && provider.takes_stream_options(version, options)
}

/// As much as is said behind it by who fills up chunks, so that their length tells nothing of the text.
const MOST_BEHIND: usize = 128;

const ASKED: &[u8] = br#""stream_options":{"include_usage":true},"#;

/// The request for a stream, asking for its usage; `None` where it does so already.
pub fn ask(body: &[u8]) -> Option<Vec<u8>> {
    if OPTIONS.find(body).is_some() {
        return ask_among_options(body);
    }
    // It says that it is for a stream: there is something behind the brace.
    let at = body.iter().position(|byte| *byte == b'{')? + 1;
    let mut asked = Vec::with_capacity(body.len() + ASKED.len());
    asked.extend_from_slice(&body[..at]);
    asked.extend_from_slice(ASKED);
    asked.extend_from_slice(&body[at..]);
    Some(asked)
}

fn ask_among_options(body: &[u8]) -> Option<Vec<u8>> {
    let found = peek(body).ok()?;
    if found.include_usage == Some(true) {
        return None;
    }
    let said = found.stream_options_range.and_then(|at| serde_json::from_slice(&body[at]).ok());
    let mut options = match said {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(options)) => options,
        // What it says is for the provider to refuse.
        Some(_) => return None,
    };
    options.insert("include_usage".into(), true.into());
    edit::set_fields(body, &[], &[edit::json_field("stream_options", &Value::Object(options))]).ok()
}

/// Whole events without the usage that nobody asked for: the event that says nothing else, and in all others what they say of it.
pub fn hide(events: Bytes) -> Bytes {
    if USAGE.find(&events).is_none() {
        return events;
    }
    let mut left = Vec::with_capacity(events.len());
    if events.starts_with(sse::BOM) {
        left.extend_from_slice(sse::BOM);
    }
    sse::split(&events).for_each(|event| keep(event, &mut left));
    left.into()
}

fn keep(event: &[u8], left: &mut Vec<u8>) {
    let Some(at) = USAGE.find(event) else { return left.extend_from_slice(event) };
    if let Some(said) = nothing_known(event, at) {
        left.extend_from_slice(&event[..said.start]);
        return left.extend_from_slice(&event[said.end..]);
    }
    if is_usage_alone(event) {
        return;
    }
    let mut copied = 0;
    for said in said_in(event) {
        left.extend_from_slice(&event[copied..said.start]);
        copied = said.end;
    }
    left.extend_from_slice(&event[copied..]);
}

/// Where an event says that nothing is known yet, as nearly all do at their end: it need not be read for that, for the brace
/// behind it is the last one. Where anything else begins or ends behind it, it is read.
fn nothing_known(event: &[u8], at: usize) -> Option<Range<usize>> {
    let start = at.checked_sub(1).filter(|start| event[*start] == b',')?;
    let rest = event[at + USAGE.needle().len()..].strip_prefix(b":null")?;
    let behind = rest.strip_suffix(b"}\n\n")?;
    let is_plain = behind.len() <= MOST_BEHIND
        && !behind.iter().any(|byte| matches!(byte, b'{' | b'}' | b'[' | b']' | b'\n' | b'\r'))
        && USAGE.find(behind).is_none();
    let is_line = event.starts_with(b"data:") && memchr2(b'\n', b'\r', &event[..start]).is_none();
    (is_plain && is_line).then(|| start..event.len() - rest.len())
}

fn is_usage_alone(event: &[u8]) -> bool {
    let says = USAGE.find_iter(event).any(|at| matches!(value_start(event, at + 7), Some((_, b'{'))));
    says && CHOICES.find(event).is_some_and(|at| match value_start(event, at + 9) {
        Some((open, b'[')) => event[open + 1..].trim_ascii_start().starts_with(b"]"),
        _ => false,
    })
}

/// Where it says what was used, or that nothing is known of that yet, with one of the commas around. What stands deeper than
/// at the top of an event belongs to something else.
fn said_in(event: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for line in event.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"data:")) {
        let json = line[5..].trim_ascii();
        let from = json.as_ptr().addr() - event.as_ptr().addr();
        let mut before = 0;
        // What is no JSON is left as it is.
        let _ = for_each_field(json, |key, value| {
            if key == b"usage" && matches!(json[value.start], b'{' | b'n') {
                let (start, end) = (before, value.end);
                let at = if start > 0 { start..end } else { 1..after_comma(json, end) };
                found.push(at.start + from..at.end + from);
            }
            before = value.end;
            Ok(())
        });
    }
    found
}

/// Past the comma after a value, where there is one.
fn after_comma(json: &[u8], end: usize) -> usize {
    let rest = json[end..].trim_ascii_start();
    if rest.starts_with(b",") { json.len() - rest.len() + 1 } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &str) -> Option<String> {
        ask(body.as_bytes()).map(|asked| String::from_utf8(asked).unwrap())
    }

    #[test]
    fn usage_is_asked_for_once_and_all_else_stays_as_it_was_written() {
        assert_eq!(
            asked(r#" { "model":"m", "stream":true}"#).unwrap(),
            r#" {"stream_options":{"include_usage":true}, "model":"m", "stream":true}"#
        );
        for (said, meant) in [
            (r#"{"stream_options":{"x":1},"a":[ 1 ]}"#, r#"{"stream_options":{"x":1,"include_usage":true},"a":[ 1 ]}"#),
            (r#"{"stream_options":null}"#, r#"{"stream_options":{"include_usage":true}}"#),
            (r#"{"stream_options":{"include_usage":false}}"#, r#"{"stream_options":{"include_usage":true}}"#),
            (r#"{"a":"stream_options"}"#, r#"{"a":"stream_options","stream_options":{"include_usage":true}}"#),
        ] {
            assert_eq!(asked(said).unwrap(), meant);
        }
        assert_eq!(asked(r#"{"stream_options":{"include_usage":true}}"#), None);
        assert_eq!(asked(r#"{"stream_options":7}"#), None);
    }

    #[test]
    fn what_was_not_asked_for_is_taken_out_and_nothing_else() {
        let said = "data: {\"id\":1,\"choices\":[{\"delta\":{\"content\":\",\\\"usage\\\":null\"}}],\"usage\":null}\n\n\
            data: {\"choices\": [], \"usage\": null, \"prompt_filter_results\": []}\n\n\
            data: {\"choices\": [ ], \"usage\": {\"total_tokens\": 3}}\r\n\r\n\
            data: {\"choices\":[{\"delta\":{}}] , \"usage\" : {\"total_tokens\":3,\"x\":{}} ,\"id\":1}\r\n\r\n\
            data:{\"usage\":{\"total_tokens\":3}, \"choices\":[{\"delta\":{}}]}\n\n\
            data: {\"choices\":[{\"usage\":{\"a\":1}}],\"x_groq\":{\"usage\":{\"a\":1}}}\n\n\
            data: {\"choices\":[1],\"usage\":{\n\ndata: [DONE]\n\n";
        let left = "data: {\"id\":1,\"choices\":[{\"delta\":{\"content\":\",\\\"usage\\\":null\"}}]}\n\n\
            data: {\"choices\": [], \"prompt_filter_results\": []}\n\n\
            data: {\"choices\":[{\"delta\":{}}] ,\"id\":1}\r\n\r\n\
            data:{ \"choices\":[{\"delta\":{}}]}\n\n\
            data: {\"choices\":[{\"usage\":{\"a\":1}}],\"x_groq\":{\"usage\":{\"a\":1}}}\n\n\
            data: {\"choices\":[1],\"usage\":{\n\ndata: [DONE]\n\n";
        assert_eq!(hide(Bytes::from_static(said.as_bytes())), left);
    }

    #[test]
    fn what_is_not_read_is_left_as_what_is_read() {
        for (said, left) in [
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
            let [said, left] = [said, left].map(|json| format!("data: {json}\n\n"));
            assert_eq!(hide(said.clone().into()), left);
            assert_eq!(hide(format!("{said}data: [DONE]\n\n").into()), format!("{left}data: [DONE]\n\n"));
        }
    }

    #[test]
    fn events_without_usage_are_the_very_bytes() {
        let events = Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"content\":\"usage\"}}]}\n\n");
        let hidden = hide(events.clone());
        // A word is looked at, and left.
        assert_eq!(hidden, events);
        let plain = Bytes::from_static(b"data: {\"choices\":[]}\n\n");
        assert_eq!(hide(plain.clone()).as_ptr(), plain.as_ptr());
    }
}
