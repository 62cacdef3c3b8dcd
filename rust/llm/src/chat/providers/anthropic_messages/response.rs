//! Reader of Anthropic Messages responses, complete and streamed.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    api_format::format::ApiFormat,
    chat::{
        event::{self, EventSink, ResponseEvent},
        field_scope::FieldScope,
    },
    errors::MalformedResponse,
    json::{lenient, scan::for_each_field, string_literal::decode_string},
    provider_format::StreamDecoder,
    usage::UsageCounts,
};

#[derive(Deserialize)]
struct AnthropicMessage<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::text_or_empty")]
    id: Cow<'a, str>,
    #[serde(default, borrow, deserialize_with = "lenient::text_or_empty")]
    model: Cow<'a, str>,
    /// Absent in the `message` of the event that starts a stream of some hosts.
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
    /// Set in a response that is an error.
    #[serde(default, borrow)]
    error: Option<StreamError<'a>>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    stop_reason: Option<Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    stop_sequence: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct AnthropicContentBlock<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow, deserialize_with = "lenient::content_or_empty")]
    text: Cow<'a, str>,
    #[serde(default, borrow, deserialize_with = "lenient::content_or_empty")]
    thinking: Cow<'a, str>,
    #[serde(default, borrow, deserialize_with = "lenient::text_or_empty")]
    signature: Cow<'a, str>,
    #[serde(default, borrow, deserialize_with = "lenient::text_or_empty")]
    data: Cow<'a, str>,
    #[serde(default, borrow, deserialize_with = "lenient::text_or_empty")]
    id: Cow<'a, str>,
    #[serde(default, borrow, deserialize_with = "lenient::name_or_empty")]
    name: Cow<'a, str>,
    #[serde(default, borrow)]
    input: Option<&'a RawValue>,
    #[serde(default, borrow)]
    citations: Option<&'a RawValue>,
}

/// Content of a complete message.
#[derive(Deserialize)]
struct AnthropicContent<'a>(#[serde(borrow, deserialize_with = "lenient::list")] Vec<AnthropicContentBlock<'a>>);

impl AnthropicContentBlock<'_> {
    /// Returns true if other API formats have this block type too.
    fn is_translatable(&self) -> bool {
        matches!(&*self.kind, "text" | "thinking" | "redacted_thinking" | "tool_use")
    }
}

pub fn decode_message(body: &[u8], sink: &mut dyn EventSink) -> Result<(), MalformedResponse> {
    let message: AnthropicMessage<'_> = serde_json::from_slice(body)?;
    if let Some(error) = &message.error {
        return Err(MalformedResponse(error.message.clone().into_owned()));
    }
    let content = message.content.ok_or_else(|| MalformedResponse("it has no content".into()))?;
    let content: AnthropicContent<'_> = serde_json::from_str(content.get())?;
    sink.push_event(ResponseEvent::Start { id: &message.id, model: &message.model });
    let mut calls = 0;
    for (at, block) in content.0.iter().enumerate() {
        if !block.is_translatable() {
            // Untranslatable blocks are rare. Only for them is the response parsed again, to get the raw block.
            let parsed: Value = serde_json::from_slice(body)?;
            sink.push_event(ResponseEvent::NativeBlock { kind: &block.kind, json: &parsed["content"][at].to_string() });
            continue;
        }
        emit_block(block, sink);
        if block.kind == "tool_use" {
            sink.push_event(ResponseEvent::ToolCallArguments {
                call_index: calls,
                json: &compact_json(&block.input.and_then(lenient::embedded_json).unwrap_or(Cow::Borrowed("{}"))),
            });
            calls += 1;
        }
    }
    if let Some(usage) = message.usage {
        let mut counts = UsageCounts::default();
        counts.read_usage(usage.get().as_bytes());
        emit_usage(&counts, sink);
    }
    let reason = message.stop_reason.as_deref().unwrap_or_default();
    sink.push_event(ResponseEvent::Finish { reason, stop_sequence: message.stop_sequence.as_deref() });
    sink.push_event(ResponseEvent::End);
    Ok(())
}

/// Removes the indentation of tool arguments, because client formats carry them as a string.
pub fn compact_json(json: &str) -> Cow<'_, str> {
    if !json.contains('\n') {
        return Cow::Borrowed(json);
    }
    // The bytes are copied, because parsing would round long numbers.
    let mut out = String::with_capacity(json.len());
    let (mut is_string, mut is_escaped) = (false, false);
    for character in json.chars() {
        if is_string || !matches!(character, ' ' | '\t' | '\n' | '\r') {
            out.push(character);
        }
        is_string ^= character == '"' && !is_escaped;
        is_escaped = is_string && character == '\\' && !is_escaped;
    }
    Cow::Owned(out)
}

/// Emits the start of a tool call, or the content that the block itself contains.
fn emit_block(block: &AnthropicContentBlock<'_>, sink: &mut dyn EventSink) {
    match &*block.kind {
        "text" => {
            sink.push_event(ResponseEvent::TextBlockStart);
            if !block.text.is_empty() {
                sink.push_event(ResponseEvent::Text(&block.text));
            }
            let citations = block.citations.map(RawValue::get).filter(|json| json.len() > "[]".len());
            if let Some(json) = citations.filter(|json| *json != "null") {
                sink.push_event(ResponseEvent::ExtraField { scope: FieldScope::Block, name: "citations", json });
            }
        }
        "thinking" => {
            if !block.thinking.is_empty() {
                sink.push_event(ResponseEvent::Thinking(&block.thinking));
            }
            if !block.signature.is_empty() {
                sink.push_event(ResponseEvent::ThinkingSignature(&block.signature));
            }
        }
        "redacted_thinking" => sink.push_event(ResponseEvent::RedactedThinking(&block.data)),
        "tool_use" => sink.push_event(ResponseEvent::ToolCall { id: &block.id, name: &block.name, signature: None }),
        _ => (),
    }
}

fn emit_usage(counts: &UsageCounts, sink: &mut dyn EventSink) {
    if let Some(usage) = counts.to_usage(ApiFormat::Anthropic) {
        sink.push_event(ResponseEvent::Usage(usage));
    }
}

#[derive(Deserialize)]
struct AnthropicStreamEvent<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default, deserialize_with = "lenient::index_or_zero")]
    index: u64,
    #[serde(default, borrow)]
    message: Option<AnthropicMessage<'a>>,
    #[serde(default, borrow)]
    content_block: Option<&'a RawValue>,
    #[serde(default, borrow)]
    delta: Option<MessageDelta<'a>>,
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
    #[serde(default, borrow)]
    error: Option<StreamError<'a>>,
}

#[derive(Deserialize)]
struct MessageDelta<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    stop_reason: Option<Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    stop_sequence: Option<Cow<'a, str>>,
}

/// Delta of a content block. Most events are such deltas, so they are not deserialised: the fields are slices of their
/// JSON.
#[derive(Default)]
struct BlockDelta<'a> {
    index: &'a [u8],
    kind: &'a [u8],
    payload: &'a [u8],
}

impl<'a> BlockDelta<'a> {
    /// Returns `None` for any other event.
    fn parse(event: &'a [u8]) -> Option<Self> {
        let (mut is_growth, mut delta, mut block) = (false, None, Self::default());
        for_each_field(event, |key, at| {
            match key {
                b"type" => is_growth = &event[at] == b"\"content_block_delta\"",
                b"index" => block.index = &event[at],
                b"delta" => delta = Some(&event[at]),
                _ => (),
            }
            Ok(())
        })
        .ok()?;
        let delta = delta.filter(|_| is_growth)?;
        for_each_field(delta, |key, at| {
            match key {
                b"type" => block.kind = &delta[at],
                b"text" | b"thinking" | b"signature" | b"partial_json" | b"citation" => block.payload = &delta[at],
                _ => (),
            }
            Ok(())
        })
        .ok()?;
        Some(block)
    }

    fn block_index(&self) -> u64 {
        std::str::from_utf8(self.index).ok().and_then(|index| index.trim_matches('"').parse().ok()).unwrap_or_default()
    }
}

/// Returns the text of a delta. Some servers send the arguments of a tool call as an object instead of a string.
fn decode_payload<'a>(delta: &BlockDelta<'a>) -> Option<Cow<'a, str>> {
    match delta.payload.first() {
        Some(b'{' | b'[') if delta.kind == b"\"input_json_delta\"" => {
            std::str::from_utf8(delta.payload).ok().map(Cow::Borrowed)
        }
        _ => decode_string(delta.payload),
    }
}

#[derive(Deserialize)]
struct StreamError<'a> {
    #[serde(rename = "type", default, borrow, deserialize_with = "lenient::text")]
    kind: Option<Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "lenient::text_or_empty")]
    message: Cow<'a, str>,
}

/// Tool call of a stream.
struct StreamedToolCall {
    block_index: u64,
    /// True if any of its arguments have arrived.
    has_arguments: bool,
    /// Input in the event that starts the call. Some servers send it there, complete and without deltas.
    initial_input: String,
}

/// Stream decoder for Anthropic Messages.
#[derive(Default)]
pub struct MessageStreamDecoder {
    counts: UsageCounts,
    has_started: bool,
    tool_calls: Vec<StreamedToolCall>,
    /// Anthropic-only block whose input is still arriving: its index, the block, and the partial input.
    native_block: Option<(u64, Value, String)>,
}

impl StreamDecoder for MessageStreamDecoder {
    fn decode(&mut self, data: &[u8], sink: &mut dyn EventSink) {
        if let Some(delta) = BlockDelta::parse(data) {
            return self.apply_delta(&delta, sink);
        }
        let Ok(event) = serde_json::from_slice::<AnthropicStreamEvent<'_>>(data) else {
            return event::report_unreadable_event(data, sink);
        };
        match &*event.kind {
            "content_block_start" => self.start_block(&event, sink),
            "content_block_stop" => self.stop_block(event.index, sink),
            "message_start" => {
                let Some(message) = &event.message else { return };
                if std::mem::replace(&mut self.has_started, true) {
                    // A proxy retried in the middle of the stream; the parts of both responses do not fit together.
                    let message = "the stream of the provider began again before its end";
                    return sink.push_event(ResponseEvent::Failed {
                        kind: None,
                        message,
                        code: Some("stream_restarted"),
                    });
                }
                self.add_usage(message.usage);
                sink.push_event(ResponseEvent::Start { id: &message.id, model: &message.model });
            }
            "message_delta" => {
                self.add_usage(event.usage);
                emit_usage(&self.counts, sink);
                let Some(MessageDelta { stop_reason: Some(reason), stop_sequence, .. }) = &event.delta else { return };
                sink.push_event(ResponseEvent::Finish { reason, stop_sequence: stop_sequence.as_deref() });
            }
            "message_stop" => sink.push_event(ResponseEvent::End),
            "error" => {
                let error =
                    event.error.unwrap_or(StreamError { kind: None, message: Cow::Borrowed("the provider failed") });
                sink.push_event(ResponseEvent::Failed {
                    kind: error.kind.as_deref(),
                    message: &error.message,
                    code: None,
                });
            }
            _ => (),
        }
    }
}

impl MessageStreamDecoder {
    fn add_usage(&mut self, usage: Option<&RawValue>) {
        if let Some(usage) = usage {
            self.counts.read_usage(usage.get().as_bytes());
        }
    }

    fn start_block(&mut self, event: &AnthropicStreamEvent<'_>, sink: &mut dyn EventSink) {
        let Some(json) = event.content_block.map(RawValue::get) else { return };
        let Ok(block) = serde_json::from_str::<AnthropicContentBlock<'_>>(json) else {
            return event::report_unreadable_event(json.as_bytes(), sink);
        };
        if !block.is_translatable() {
            self.native_block = serde_json::from_str(json).ok().map(|block| (event.index, block, String::new()));
            return;
        }
        emit_block(&block, sink);
        if block.kind == "tool_use" {
            let input = block.input.and_then(lenient::embedded_json).filter(|input| !input.is_empty());
            self.tool_calls.push(StreamedToolCall {
                block_index: event.index,
                has_arguments: false,
                initial_input: compact_json(input.as_deref().unwrap_or("{}")).into_owned(),
            });
        }
    }

    fn apply_delta(&mut self, delta: &BlockDelta<'_>, sink: &mut dyn EventSink) {
        if delta.kind == b"\"citations_delta\"" {
            let json = format!("[{}]", String::from_utf8_lossy(delta.payload));
            return sink.push_event(ResponseEvent::ExtraField {
                scope: FieldScope::Block,
                name: "citations",
                json: &json,
            });
        }
        if matches!(delta.payload, b"" | b"null") {
            return;
        }
        // A delta of an unknown type is a new kind of content and is ignored. A delta whose type is no string could be
        // any content, so it is reported as unreadable.
        let Some(text) = decode_payload(delta).filter(|_| delta.kind.starts_with(b"\"")) else {
            return event::report_unreadable_event(delta.payload, sink);
        };
        match delta.kind {
            b"\"text_delta\"" => sink.push_event(ResponseEvent::Text(&text)),
            b"\"thinking_delta\"" => sink.push_event(ResponseEvent::Thinking(&text)),
            b"\"signature_delta\"" => sink.push_event(ResponseEvent::ThinkingSignature(&text)),
            b"\"input_json_delta\"" => self.append_arguments(delta.block_index(), &text, sink),
            _ => (),
        }
    }

    fn append_arguments(&mut self, index: u64, json: &str, sink: &mut dyn EventSink) {
        if let Some((_, _, input)) = &mut self.native_block {
            return input.push_str(json);
        }
        let call = self.tool_calls.iter().position(|call| call.block_index == index);
        if let Some(call) = call.filter(|_| !json.is_empty()) {
            self.tool_calls[call].has_arguments = true;
            sink.push_event(ResponseEvent::ToolCallArguments { call_index: call, json });
        }
    }

    /// Ends a block. If no arguments of a tool call have arrived, emits its initial input, which is `{}` for a call
    /// without parameters.
    fn stop_block(&mut self, index: u64, sink: &mut dyn EventSink) {
        if let Some((_, mut block, input)) = self.native_block.take_if(|(at, ..)| *at == index) {
            if let Ok(input) = serde_json::from_str(&input) {
                block["input"] = input;
            }
            let kind = block["type"].as_str().unwrap_or_default();
            sink.push_event(ResponseEvent::NativeBlock { kind, json: &block.to_string() });
        }
        let is_it = |call: &StreamedToolCall| call.block_index == index && !call.has_arguments;
        if let Some(call_index) = self.tool_calls.iter().position(is_it) {
            let call = &mut self.tool_calls[call_index];
            call.has_arguments = true;
            sink.push_event(ResponseEvent::ToolCallArguments { call_index, json: &call.initial_input });
        }
    }
}
