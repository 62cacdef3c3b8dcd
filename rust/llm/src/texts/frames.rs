//! Events of a stream in their encodings: server-sent events, Amazon's binary frames, and the items of a JSON array.
//! Events are read as JSON, and written with changed texts.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use serde_json::{Value, json, value::RawValue};

use super::{TextPart, remove_token_lists, repeated_keys::has_repeated_keys};
use crate::stream::{
    aws_event_stream::{FrameDecoder, encode_frame},
    sse::{BOM, Splitter, event_data},
};

/// Maximum length of an event.
const MAX_EVENT_BYTES: usize = 16 * 1024 * 1024;

/// Encoding of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEncoding {
    SseEvents,
    AwsFrames,
    JsonArrayItems,
}

/// Error for an event that does not have the encoding of its stream. Such an event may hide texts from checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadableEvent;

/// Splits a stream into events while it arrives.
#[derive(Debug)]
pub enum EventSplitter {
    Sse(Splitter),
    Aws(BytesMut),
}

impl EventSplitter {
    /// Returns the splitter of an encoding; `None` if its events can only be separated at the end of the stream.
    pub fn new(encoding: StreamEncoding) -> Option<Self> {
        match encoding {
            StreamEncoding::SseEvents => Some(Self::Sse(Splitter::new(MAX_EVENT_BYTES))),
            StreamEncoding::AwsFrames => Some(Self::Aws(BytesMut::new())),
            StreamEncoding::JsonArrayItems => None,
        }
    }

    /// Adds a chunk, and returns the events that it completes.
    pub fn push(&mut self, chunk: Bytes) -> Result<Vec<Bytes>, UnreadableEvent> {
        match self {
            Self::Sse(splitter) => {
                let events: Result<Vec<_>, _> =
                    splitter.push(chunk).map(|event| event.map(|event| event.raw)).collect();
                events.map_err(|_| UnreadableEvent)
            }
            Self::Aws(buffer) => {
                buffer.extend_from_slice(&chunk);
                let mut frames = Vec::new();
                while let Some(length) = frame_bytes(buffer)? {
                    if buffer.len() < length {
                        break;
                    }
                    frames.push(buffer.split_to(length).freeze());
                }
                Ok(frames)
            }
        }
    }

    /// Returns the bytes after the last complete event.
    pub fn finish(&mut self) -> Bytes {
        match self {
            Self::Sse(splitter) => match splitter.finish() {
                Some(event) => event.raw,
                None => Bytes::copy_from_slice(splitter.pending()),
            },
            Self::Aws(buffer) => buffer.split().freeze(),
        }
    }
}

/// Returns the length that the next frame declares.
fn frame_bytes(buffer: &[u8]) -> Result<Option<usize>, UnreadableEvent> {
    let Some(length) = buffer.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if (16..=MAX_EVENT_BYTES).contains(&length) { Ok(Some(length)) } else { Err(UnreadableEvent) }
}

/// Splits a complete stream into its events.
pub fn split_stream(encoding: StreamEncoding, stream: &Bytes) -> Result<Vec<Bytes>, UnreadableEvent> {
    let Some(mut splitter) = EventSplitter::new(encoding) else {
        let items: Vec<&RawValue> = serde_json::from_slice(stream).map_err(|_| UnreadableEvent)?;
        return Ok(items.into_iter().map(|item| stream.slice_ref(item.get().as_bytes())).collect());
    };
    let mut events = splitter.push(stream.clone())?;
    let rest = splitter.finish();
    if !rest.is_empty() {
        if encoding == StreamEncoding::AwsFrames {
            return Err(UnreadableEvent);
        }
        events.push(rest);
    }
    Ok(events)
}

/// Joins events into a stream.
pub fn join_events(encoding: StreamEncoding, events: &[Bytes]) -> Vec<u8> {
    if encoding == StreamEncoding::JsonArrayItems {
        return [b"[", &events.join(&b",\r\n"[..])[..], b"]"].concat();
    }
    events.concat()
}

/// Returns the JSON of an event; `None` if it has none, such as a comment or the end marker.
pub fn event_json(encoding: StreamEncoding, raw: &[u8]) -> Result<Option<Value>, UnreadableEvent> {
    match encoding {
        StreamEncoding::SseEvents => {
            let Some(data) = event_data(without_bom(raw)) else { return Ok(None) };
            if matches!(data.trim_ascii(), b"" | b"[DONE]") {
                return Ok(None);
            }
            serde_json::from_slice(&data).map(Some).map_err(|_| UnreadableEvent)
        }
        StreamEncoding::AwsFrames => {
            let (_, value) = read_frame(raw)?;
            match inner_json(&value) {
                Some(inner) => Ok(Some(inner?)),
                None => Ok(Some(value)),
            }
        }
        StreamEncoding::JsonArrayItems => serde_json::from_slice(raw).map(Some).map_err(|_| UnreadableEvent),
    }
}

/// Rewrites an event so that each key occurs once; `None` if no key is repeated. [`event_json`] returns one value of a
/// repeated key, but a client may read another one.
pub fn without_repeated_keys(encoding: StreamEncoding, raw: &Bytes) -> Option<Bytes> {
    let repeats = |json: &[u8]| serde_json::from_slice(json).is_ok_and(|value: Value| has_repeated_keys(json, &value));
    let has_repeated = match encoding {
        StreamEncoding::SseEvents => event_data(without_bom(raw)).is_some_and(|data| repeats(&data)),
        StreamEncoding::AwsFrames => read_payload(raw).is_ok_and(|(_, payload)| {
            let wrapped = |value: Value| STANDARD.decode(value["bytes"].as_str()?).ok();
            let inner = serde_json::from_slice(&payload).ok().and_then(wrapped);
            repeats(&payload) || inner.is_some_and(|inner| repeats(&inner))
        }),
        StreamEncoding::JsonArrayItems => repeats(raw),
    };
    has_repeated.then(|| rewrite_event(encoding, raw, &[]))
}

/// Returns the name of a frame, and its payload.
fn read_payload(raw: &[u8]) -> Result<(String, Bytes), UnreadableEvent> {
    let mut decoder = FrameDecoder::new(MAX_EVENT_BYTES);
    decoder.push_chunk(raw);
    let frame = decoder.next_frame().and_then(Result::ok).ok_or(UnreadableEvent)?;
    Ok((frame.event_name, frame.payload))
}

/// Returns the name of a frame, and its payload as JSON.
fn read_frame(raw: &[u8]) -> Result<(String, Value), UnreadableEvent> {
    let (name, payload) = read_payload(raw)?;
    if payload.is_empty() {
        return Ok((name, Value::Null));
    }
    let value = serde_json::from_slice(&payload).map_err(|_| UnreadableEvent)?;
    Ok((name, value))
}

/// Returns the event that `InvokeModelWithResponseStream` wraps in base64.
fn inner_json(payload: &Value) -> Option<Result<Value, UnreadableEvent>> {
    let encoded = payload["bytes"].as_str()?;
    let decoded = STANDARD.decode(encoded).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    Some(decoded.ok_or(UnreadableEvent))
}

/// Returns an event with changed texts in its JSON, and without lists of tokens.
pub fn rewrite_event(encoding: StreamEncoding, raw: &Bytes, changes: &[(&TextPart, &str)]) -> Bytes {
    let Ok(Some(mut value)) = event_json(encoding, raw) else { return raw.clone() };
    for (place, text) in changes {
        place.replace(&mut value, text);
    }
    remove_token_lists(&mut value);
    match encoding {
        StreamEncoding::SseEvents => write_sse_event(raw, &value),
        StreamEncoding::JsonArrayItems => value.to_string().into(),
        StreamEncoding::AwsFrames => {
            let Ok((name, payload)) = read_frame(raw) else { return raw.clone() };
            let payload = match payload["bytes"].as_str() {
                Some(_) => json!({"bytes": STANDARD.encode(value.to_string())}),
                None => value,
            };
            encode_frame("event", &name, payload.to_string().as_bytes()).into()
        }
    }
}

/// Returns an event without a byte order mark, which a client ignores at the start of a stream.
fn without_bom(raw: &[u8]) -> &[u8] {
    raw.strip_prefix(BOM).unwrap_or(raw)
}

fn write_sse_event(raw: &[u8], value: &Value) -> Bytes {
    let mut event = Vec::with_capacity(raw.len());
    // Other fields of the event, such as its name, stay.
    for line in without_bom(raw).split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.is_empty()) {
        if !line.starts_with(b"data") {
            event.extend_from_slice(line);
            event.push(b'\n');
        }
    }
    event.extend_from_slice(b"data: ");
    event.extend_from_slice(value.to_string().as_bytes());
    event.extend_from_slice(b"\n\n");
    event.into()
}
