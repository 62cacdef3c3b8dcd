//! Lenient reading of streams, for clients and providers of every format. An event with a field of an unexpected type
//! is delivered, or the stream ends in an error.

use std::collections::HashSet;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use penstock_llm::{
    stream::aws_event_stream::{FrameDecoder, encode_frame},
    translation::Translation,
};
use serde_json::{Value, json};

use crate::golden_cases::{Case, UpstreamBody, assemble_stream, decode_frames, translated_cases};

const CLIENT_OPERATIONS: [&str; 5] =
    ["chatComplete", "messages", "createModelResponse", "streamGenerateContent", "converseStream"];
/// Fields that contain content, in provider events and in assembled responses.
const CONTENT_KEYS: [&str; 10] = [
    "text",
    "content",
    "arguments",
    "input",
    "name",
    "thinking",
    "args",
    "partial_json",
    "reasoning",
    "reasoning_content",
];
/// Fields that determine the position of content. The tests do not change them.
const POSITIONS: [&str; 5] = ["index", "contentBlockIndex", "content_index", "output_index", "summary_index"];

/// Stream of a provider, whose events can be replaced.
struct UpstreamStream {
    case: Case,
    translation: Translation,
    events: Vec<UpstreamEvent>,
}

#[derive(Clone)]
enum UpstreamEvent {
    /// Lines before the data, and the data.
    Sse(String, String),
    /// Name and payload of a frame of Amazon.
    Frame(String, String),
    /// Payload of a frame that wraps an event of another format.
    WrappedFrame(String, String),
}

impl UpstreamEvent {
    fn data(&self) -> &str {
        match self {
            Self::Sse(_, data) | Self::Frame(_, data) | Self::WrappedFrame(_, data) => data,
        }
    }

    fn with_data(&self, data: String) -> Self {
        match self {
            Self::Sse(head, _) => Self::Sse(head.clone(), data),
            Self::Frame(name, _) => Self::Frame(name.clone(), data),
            Self::WrappedFrame(name, _) => Self::WrappedFrame(name.clone(), data),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let kind = |name: &str| if name.ends_with("Exception") { "exception" } else { "event" };
        match self {
            Self::Sse(head, data) => format!("{head}data: {data}\n\n").into_bytes(),
            Self::Frame(name, data) => encode_frame(kind(name), name, data.as_bytes()),
            Self::WrappedFrame(name, data) => {
                let payload = json!({"bytes": STANDARD.encode(data)}).to_string();
                encode_frame(kind(name), name, payload.as_bytes())
            }
        }
    }
}

fn parse_sse_event(block: &str) -> Option<UpstreamEvent> {
    let (data, head): (Vec<_>, Vec<_>) = block.lines().partition(|line| line.starts_with("data:"));
    let data = data.iter().map(|line| line["data:".len()..].trim_start()).collect::<Vec<_>>().join("\n");
    let head = head.iter().filter(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect();
    (!data.is_empty()).then_some(UpstreamEvent::Sse(head, data))
}

fn parse_frames(bytes: &[u8]) -> Vec<UpstreamEvent> {
    let mut frames = FrameDecoder::new(1 << 20);
    frames.push_chunk(bytes);
    std::iter::from_fn(|| frames.next_frame())
        .map(|frame| {
            let frame = frame.unwrap();
            let payload: Value = serde_json::from_slice(&frame.payload).unwrap();
            match payload["bytes"].as_str() {
                Some(wrapped) => {
                    let data = String::from_utf8(STANDARD.decode(wrapped).unwrap()).unwrap();
                    UpstreamEvent::WrappedFrame(frame.event_name, data)
                }
                None => UpstreamEvent::Frame(frame.event_name, payload.to_string()),
            }
        })
        .collect()
}

impl UpstreamStream {
    fn translate(&self, events: &[UpstreamEvent]) -> Vec<u8> {
        let stream: Vec<u8> = events.iter().flat_map(UpstreamEvent::encode).collect();
        let mut transcoder = self.translation.transcoder();
        [transcoder.push_chunk(Bytes::from(stream)), transcoder.finish()].concat()
    }

    /// Translates the stream with other data in one event.
    fn translate_changed(&self, at: usize, data: String) -> Vec<u8> {
        let mut events = self.events.clone();
        events[at] = events[at].with_data(data);
        self.translate(&events)
    }

    /// Returns the fields of all events whose values are neither lists nor objects: index of the event, key, JSON
    /// pointer, and data of the event.
    fn scalar_fields(&self) -> Vec<(usize, String, String, Value)> {
        let mut fields = Vec::new();
        for (at, event) in self.events.iter().enumerate() {
            let Ok(data) = serde_json::from_str::<Value>(event.data()) else { continue };
            let mut scalars = Vec::new();
            collect_scalars(&data, "", &mut scalars);
            fields.extend(scalars.into_iter().map(|(key, pointer)| (at, key, pointer, data.clone())));
        }
        fields
    }

    /// Returns true if the client takes the output for a complete response.
    fn ends_well(&self, output: &[u8]) -> bool {
        if self.has_failed(output) {
            return false;
        }
        let text = String::from_utf8_lossy(output);
        let end = match &*self.case.operation {
            "chatComplete" => "\"finish_reason\":\"",
            "messages" => "message_stop",
            "createModelResponse" => "response.completed",
            "streamGenerateContent" => "\"finishReason\"",
            _ => "messageStop",
        };
        text.contains(end) || text.contains("response.incomplete")
    }

    fn has_failed(&self, output: &[u8]) -> bool {
        if self.case.operation == "converseStream" {
            return decode_frames(output).iter().any(|(name, _)| name.ends_with("Exception"));
        }
        let output = String::from_utf8_lossy(output);
        ["event: error", "data: {\"error\"", "response.failed"].iter().any(|marker| output.contains(marker))
    }

    fn content(&self, output: &[u8]) -> String {
        let mut content = String::new();
        collect_content(&assemble_stream(&self.case.operation, output), &mut content);
        content
    }
}

/// Returns the translated streams of all providers to clients of all formats. Providers of one API format share streams.
fn upstream_streams() -> Vec<UpstreamStream> {
    let mut streams = Vec::new();
    let mut received = HashSet::new();
    for case in translated_cases() {
        let UpstreamBody::Stream(bytes) = case.upstream_body() else { continue };
        if !CLIENT_OPERATIONS.contains(&&*case.operation) || !received.insert((case.operation.clone(), bytes.clone())) {
            continue;
        }
        let (translation, _) = case.translate_request().unwrap();
        if translation.is_passthrough() {
            continue;
        }
        let events: Vec<_> = match std::str::from_utf8(&bytes) {
            Ok(text) if text.contains("data:") => text.split("\n\n").filter_map(parse_sse_event).collect(),
            _ => parse_frames(&bytes),
        };
        let stream = UpstreamStream { case, translation, events };
        // A stream that fails without a change proves nothing.
        if !stream.has_failed(&stream.translate(&stream.events)) {
            streams.push(stream);
        }
    }
    for operation in CLIENT_OPERATIONS {
        let count = streams.iter().filter(|stream| stream.case.operation == operation).count();
        assert!(count >= 5, "{operation}: {count}");
    }
    streams
}

/// Collects the content of a response in its order. Structured content counts as its JSON.
fn collect_content(value: &Value, content: &mut String) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if CONTENT_KEYS.contains(&key.as_str()) => content.push_str(text),
                    value if key == "input" || key == "args" => content.push_str(&value.to_string()),
                    value => collect_content(value, content),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_content(item, content)),
        _ => (),
    }
}

/// Collects the JSON pointers of all scalar fields.
fn collect_scalars(value: &Value, pointer: &str, pointers: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                let below = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
                if field.is_object() || field.is_array() {
                    collect_scalars(field, &below, pointers);
                } else {
                    pointers.push((key.clone(), below));
                }
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                collect_scalars(item, &format!("{pointer}/{at}"), pointers);
            }
        }
        _ => (),
    }
}

/// Returns true if changing this field changes the content. It is then inside the arguments of a call or a citation, or
/// is the id of a call. Without the id, two calls may look the same.
fn belongs_to_content(key: &str, pointer: &str) -> bool {
    let inside = ["/input/", "/args/", "/arguments/", "/citation", "/groundingMetadata/", "/search_results/"];
    CONTENT_KEYS.contains(&key)
        || inside.iter().any(|field| pointer.contains(field))
        || (key == "id" && pointer.contains("/tool_calls/"))
}

/// Returns true for the input of a tool that the provider runs itself. Clients need not get such input.
fn belongs_to_a_server_tool(stream: &UpstreamStream, key: &str) -> bool {
    key == "partial_json" && stream.events.iter().any(|event| event.data().contains("server_tool_use"))
}

/// Returns false for the text of sources. Clients need not get it.
fn belongs_to_the_response(pointer: &str) -> bool {
    !["/citation", "/groundingMetadata/", "/search_results/", "/annotations/"]
        .iter()
        .any(|field| pointer.contains(field))
}

#[test]
fn a_field_of_another_type_loses_no_content() {
    let mut compared = 0;
    for stream in upstream_streams() {
        let expected = stream.content(&stream.translate(&stream.events));
        for (at, key, pointer, data) in stream.scalar_fields() {
            if belongs_to_content(&key, &pointer) {
                continue;
            }
            for by in [json!(17), json!("x"), json!(true), json!(null), json!(1.5), json!([]), json!({"a": 1})] {
                // An unknown type is a new kind of event or content, which may be ignored.
                if key == "type" && by.is_string() {
                    continue;
                }
                let mut changed = data.clone();
                let field = changed.pointer_mut(&pointer).unwrap();
                *field = if POSITIONS.contains(&&*key) { field.to_string().into() } else { by.clone() };
                let output = stream.translate_changed(at, changed.to_string());
                assert!(
                    !stream.ends_well(&output) || stream.content(&output) == expected,
                    "{}: event {at}: {pointer} is {by}",
                    stream.case.name()
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn content_of_another_type_is_delivered_or_an_error() {
    let mut compared = 0;
    for stream in upstream_streams() {
        for (at, key, pointer, data) in stream.scalar_fields() {
            if !CONTENT_KEYS.contains(&&*key)
                || !belongs_to_the_response(&pointer)
                || belongs_to_a_server_tool(&stream, &key)
            {
                continue;
            }
            for by in [json!(90210.5), json!({"q": "90210.5"}), json!(["90210.5"])] {
                let mut changed = data.clone();
                *changed.pointer_mut(&pointer).unwrap() = by.clone();
                let output = stream.translate_changed(at, changed.to_string());
                assert!(
                    !stream.ends_well(&output) || String::from_utf8_lossy(&output).contains("90210.5"),
                    "{}: event {at}: {pointer} is {by}",
                    stream.case.name()
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 1000, "{compared}");
}

#[test]
fn unreadable_event_never_yields_a_complete_stream() {
    for stream in upstream_streams() {
        let expected = stream.content(&stream.translate(&stream.events));
        for (at, event) in stream.events.iter().enumerate() {
            let data = event.data();
            if !data.starts_with('{') {
                continue;
            }
            // The event breaks off in its middle.
            let cut = data[..data.floor_char_boundary(data.len() / 2)].to_owned();
            let output = stream.translate_changed(at, cut);
            assert!(
                !stream.ends_well(&output) || stream.content(&output) == expected,
                "{}: event {at} is lost: {data}",
                stream.case.name()
            );
        }
    }
}
