//! Decodes Converse responses, complete and streamed.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::{
    api_format::format::ApiFormat,
    chat::{
        event::{self, EventSink, ResponseEvent},
        field_scope::FieldScope,
        providers::anthropic_messages::compact_json,
    },
    errors::MalformedResponse,
    json::lenient,
    provider_format::StreamDecoder,
    usage::UsageCounts,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConverseResponse<'a> {
    #[serde(borrow)]
    output: Output<'a>,
    #[serde(default, borrow, deserialize_with = "lenient::text_or_empty")]
    stop_reason: Cow<'a, str>,
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
    #[serde(default, borrow)]
    trace: Option<&'a RawValue>,
    #[serde(default, borrow)]
    additional_model_response_fields: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Output<'a> {
    #[serde(borrow)]
    message: ConverseMessage<'a>,
}

#[derive(Deserialize)]
struct ConverseMessage<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::list")]
    content: Vec<ConverseContentBlock<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConverseContentBlock<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::content")]
    text: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    tool_use: Option<ToolUse<'a>>,
    #[serde(default, borrow)]
    reasoning_content: Option<ReasoningContent<'a>>,
    #[serde(default, borrow)]
    citations_content: Option<CitationsContent<'a>>,
    /// Set only in streams.
    #[serde(default, borrow)]
    citation: Option<&'a RawValue>,
    #[serde(default, borrow)]
    image: Option<Image<'a>>,
}

/// Text with its citations.
#[derive(Deserialize)]
struct CitationsContent<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::list")]
    content: Vec<CitedText<'a>>,
    #[serde(default, borrow)]
    citations: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct CitedText<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::content_or_empty")]
    text: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Image<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::text_or_empty")]
    format: Cow<'a, str>,
    #[serde(borrow)]
    source: ImageSource<'a>,
}

#[derive(Deserialize)]
struct ImageSource<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::text_or_empty")]
    bytes: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolUse<'a> {
    #[serde(rename = "toolUseId", default, borrow, deserialize_with = "lenient::text_or_empty")]
    id: Cow<'a, str>,
    #[serde(default, borrow, deserialize_with = "lenient::name_or_empty")]
    name: Cow<'a, str>,
    /// Set for a tool that Bedrock runs itself, such as Nova's grounding.
    #[serde(rename = "type", default, borrow, deserialize_with = "lenient::text")]
    kind: Option<Cow<'a, str>>,
    /// JSON object in a complete response; string with a fragment of JSON in a stream.
    #[serde(default, borrow)]
    input: Option<&'a RawValue>,
}

impl ToolUse<'_> {
    /// Returns true if the provider runs the tool, so that the client must not run it.
    fn is_server_tool(&self) -> bool {
        self.kind.as_deref() == Some(SERVER_TOOL_KIND)
    }
}

const SERVER_TOOL_KIND: &str = "server_tool_use";

/// Reasoning block. A complete response nests the text in `reasoningText`; a stream does not.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReasoningContent<'a> {
    #[serde(rename = "reasoningText", default, borrow)]
    thought: Option<ReasoningText<'a>>,
    #[serde(default, borrow, deserialize_with = "lenient::content")]
    text: Option<Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    signature: Option<Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    redacted_content: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct ReasoningText<'a> {
    #[serde(default, borrow, deserialize_with = "lenient::content_or_empty")]
    text: Cow<'a, str>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    signature: Option<Cow<'a, str>>,
}

fn emit_usage(usage: &RawValue, sink: &mut dyn EventSink) {
    let mut counts = UsageCounts::default();
    counts.read_usage(usage.get().as_bytes());
    if let Some(usage) = counts.to_usage(ApiFormat::Bedrock) {
        sink.push_event(ResponseEvent::Usage(usage));
    }
}

pub fn decode_response(response: &[u8], sink: &mut dyn EventSink) -> Result<(), MalformedResponse> {
    let response: ConverseResponse<'_> = serde_json::from_slice(response)?;
    sink.push_event(ResponseEvent::Start { id: "", model: "" });
    let mut calls = 0;
    for block in &response.output.message.content {
        if let Some(text) = block.text.as_deref().filter(|text| !text.is_empty()) {
            sink.push_event(ResponseEvent::TextBlockStart);
            sink.push_event(ResponseEvent::Text(text));
        }
        if let Some(reasoning) = &block.reasoning_content {
            emit_reasoning(reasoning, sink);
        }
        if let Some(call) = block.tool_use.as_ref().filter(|call| call.is_server_tool()) {
            emit_server_tool(&call.id, &call.name, call.input.map(RawValue::get), sink);
        } else if let Some(call) = &block.tool_use {
            sink.push_event(ResponseEvent::ToolCall { id: &call.id, name: &call.name, signature: None });
            sink.push_event(ResponseEvent::ToolCallArguments {
                call_index: calls,
                json: &compact_json(&call.input.and_then(lenient::embedded_json).unwrap_or(Cow::Borrowed("{}"))),
            });
            calls += 1;
        }
        emit_citations_and_images(block, sink);
    }
    let more =
        [("trace", response.trace), ("additionalModelResponseFields", response.additional_model_response_fields)];
    for (name, json) in more {
        if let Some(json) = json {
            sink.push_event(ResponseEvent::ExtraField { scope: FieldScope::Response, name, json: json.get() });
        }
    }
    if let Some(usage) = response.usage {
        emit_usage(usage, sink);
    }
    sink.push_event(ResponseEvent::Finish { reason: &response.stop_reason, stop_sequence: None });
    sink.push_event(ResponseEvent::End);
    Ok(())
}

/// Emits a call that the provider ran itself, as a block that only this provider has.
fn emit_server_tool(id: &str, name: &str, input: Option<&str>, sink: &mut dyn EventSink) {
    let block = json!({"type": SERVER_TOOL_KIND, "id": id, "name": name,
        "input": input.and_then(|input| serde_json::from_str::<Value>(input).ok())});
    sink.push_event(ResponseEvent::NativeBlock { kind: SERVER_TOOL_KIND, json: &block.to_string() });
}

/// Emits the citations and images of a block.
fn emit_citations_and_images(block: &ConverseContentBlock<'_>, sink: &mut dyn EventSink) {
    if let Some(CitationsContent { content, citations }) = &block.citations_content {
        sink.push_event(ResponseEvent::TextBlockStart);
        for part in content {
            sink.push_event(ResponseEvent::Text(&part.text));
        }
        if let Some(json) = citations {
            sink.push_event(ResponseEvent::ExtraField {
                scope: FieldScope::Block,
                name: "citations",
                json: json.get(),
            });
        }
    }
    if let Some(json) = block.citation {
        let json = format!("[{}]", json.get());
        sink.push_event(ResponseEvent::ExtraField { scope: FieldScope::Block, name: "citations", json: &json });
    }
    if let Some(Image { format, source }) = &block.image {
        sink.push_event(ResponseEvent::Image { mime: &format!("image/{format}"), data: &source.bytes });
    }
}

fn emit_reasoning(reasoning: &ReasoningContent<'_>, sink: &mut dyn EventSink) {
    let (text, signature) = match &reasoning.thought {
        Some(thought) => (Some(&*thought.text), thought.signature.as_deref()),
        None => (reasoning.text.as_deref(), reasoning.signature.as_deref()),
    };
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        sink.push_event(ResponseEvent::Thinking(text));
    }
    if let Some(signature) = signature.filter(|signature| !signature.is_empty()) {
        sink.push_event(ResponseEvent::ThinkingSignature(signature));
    }
    if let Some(data) = reasoning.redacted_content.as_deref() {
        sink.push_event(ResponseEvent::RedactedThinking(data));
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConverseStreamEvent<'a> {
    #[serde(default, deserialize_with = "lenient::index_or_zero")]
    content_block_index: u64,
    #[serde(default, borrow)]
    start: Option<ConverseContentBlock<'a>>,
    #[serde(default, borrow)]
    delta: Option<ConverseContentBlock<'a>>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    stop_reason: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "lenient::text")]
    message: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    trace: Option<&'a RawValue>,
    #[serde(default, borrow)]
    additional_model_response_fields: Option<&'a RawValue>,
}

/// Call of a stream that the provider runs itself.
struct ServerTool {
    block_index: u64,
    id: String,
    name: String,
    input: String,
}

/// Decodes a streamed Converse response.
#[derive(Default)]
pub struct ConverseDecoder {
    is_started: bool,
    /// Block index of each tool call, with true once some of its arguments have arrived.
    tool_calls: Vec<(u64, bool)>,
    /// Call that the provider runs itself, while its input arrives.
    server_tool: Option<ServerTool>,
    /// Index of the block that emitted text last.
    last_text_block: Option<u64>,
    finish_reason: Option<String>,
}

impl StreamDecoder for ConverseDecoder {
    fn decode(&mut self, data: &[u8], sink: &mut dyn EventSink) {
        self.decode_named("", data, sink);
    }

    fn decode_named(&mut self, name: &str, data: &[u8], sink: &mut dyn EventSink) {
        let Ok(event) = serde_json::from_slice::<ConverseStreamEvent<'_>>(data) else {
            self.finish_reason = None;
            return event::report_unreadable_event(data, sink);
        };
        match name {
            "messageStart" => self.emit_start(sink),
            "contentBlockStart" => {
                let Some(ConverseContentBlock { tool_use: Some(call), .. }) = &event.start else { return };
                self.emit_start(sink);
                if call.is_server_tool() {
                    let (id, name) = (call.id.clone().into_owned(), call.name.clone().into_owned());
                    let block_index = event.content_block_index;
                    self.server_tool = Some(ServerTool { block_index, id, name, input: String::new() });
                    return;
                }
                sink.push_event(ResponseEvent::ToolCall { id: &call.id, name: &call.name, signature: None });
                self.tool_calls.push((event.content_block_index, false));
            }
            "contentBlockDelta" => self.process_delta(&event, sink),
            "contentBlockStop" => self.process_block_stop(event.content_block_index, sink),
            "messageStop" => {
                self.finish_reason = event.stop_reason.map(Cow::into_owned);
                if let Some(json) = event.additional_model_response_fields {
                    let name = "additionalModelResponseFields";
                    sink.push_event(ResponseEvent::ExtraField { scope: FieldScope::Response, name, json: json.get() });
                }
            }
            "metadata" => {
                if let Some(usage) = event.usage {
                    emit_usage(usage, sink);
                }
                if let Some(json) = event.trace {
                    sink.push_event(ResponseEvent::ExtraField {
                        scope: FieldScope::Response,
                        name: "trace",
                        json: json.get(),
                    });
                }
            }
            failed => {
                self.finish_reason = None;
                let message = event.message.as_deref().unwrap_or(failed);
                sink.push_event(ResponseEvent::Failed { kind: None, message, code: Some(failed) });
            }
        }
    }

    /// Usage follows `messageStop`, so the finish reason is emitted when the stream ends.
    fn finish_stream(&mut self, sink: &mut dyn EventSink) {
        let Some(reason) = self.finish_reason.take() else { return };
        sink.push_event(ResponseEvent::Finish { reason: &reason, stop_sequence: None });
        sink.push_event(ResponseEvent::End);
    }
}

impl ConverseDecoder {
    fn emit_start(&mut self, sink: &mut dyn EventSink) {
        if !std::mem::replace(&mut self.is_started, true) {
            sink.push_event(ResponseEvent::Start { id: "", model: "" });
        }
    }

    fn process_delta(&mut self, event: &ConverseStreamEvent<'_>, sink: &mut dyn EventSink) {
        let Some(delta) = &event.delta else { return };
        self.emit_start(sink);
        let is_text = delta.text.is_some() || delta.citation.is_some();
        if is_text && self.last_text_block.replace(event.content_block_index) != Some(event.content_block_index) {
            sink.push_event(ResponseEvent::TextBlockStart);
        }
        if let Some(text) = delta.text.as_deref() {
            sink.push_event(ResponseEvent::Text(text));
        }
        if let Some(reasoning) = &delta.reasoning_content {
            emit_reasoning(reasoning, sink);
        }
        emit_citations_and_images(delta, sink);
        let input = delta.tool_use.as_ref().and_then(|call| call.input);
        let json = input.and_then(lenient::embedded_json);
        let is_own = |tool: &&mut ServerTool| tool.block_index == event.content_block_index;
        if let (Some(json), Some(tool)) = (&json, self.server_tool.as_mut().filter(is_own)) {
            return tool.input.push_str(json);
        }
        let call = self.tool_calls.iter().position(|(block, _)| *block == event.content_block_index);
        if let (Some(json), Some(call)) = (json.filter(|json| !json.is_empty()), call) {
            self.tool_calls[call].1 = true;
            sink.push_event(ResponseEvent::ToolCallArguments { call_index: call, json: &json });
        }
    }

    fn process_block_stop(&mut self, index: u64, sink: &mut dyn EventSink) {
        if let Some(tool) = self.server_tool.take_if(|tool| tool.block_index == index) {
            return emit_server_tool(&tool.id, &tool.name, Some(&tool.input), sink);
        }
        if let Some(call) = self.tool_calls.iter().position(|(block, has_arguments)| *block == index && !has_arguments)
        {
            self.tool_calls[call].1 = true;
            sink.push_event(ResponseEvent::ToolCallArguments { call_index: call, json: "{}" });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct ExtraDataSink(Vec<String>);

    impl EventSink for ExtraDataSink {
        fn push_event(&mut self, event: ResponseEvent<'_>) {
            if let ResponseEvent::ExtraField { name, json, .. } = event {
                self.0.push(format!("{name} {json}"));
            }
        }
    }

    #[derive(Default)]
    struct BlockSink(Vec<String>);

    impl EventSink for BlockSink {
        fn push_event(&mut self, event: ResponseEvent<'_>) {
            match event {
                ResponseEvent::NativeBlock { json, .. } => self.0.push(json.to_owned()),
                ResponseEvent::ToolCall { name, .. } => self.0.push(name.to_owned()),
                _ => (),
            }
        }
    }

    #[test]
    fn a_streamed_server_tool_has_its_input() {
        let mut sink = BlockSink::default();
        let mut decoder = ConverseDecoder::default();
        for (name, event) in [
            (
                "contentBlockStart",
                r#"{"contentBlockIndex":0,"start":{"toolUse":{"toolUseId":"i","name":"n","type":"server_tool_use"}}}"#,
            ),
            ("contentBlockDelta", r#"{"contentBlockIndex":0,"delta":{"toolUse":{"input":"{\"q\":"}}}"#),
            ("contentBlockDelta", r#"{"contentBlockIndex":0,"delta":{"toolUse":{"input":"1}"}}}"#),
            ("contentBlockStop", r#"{"contentBlockIndex":0}"#),
        ] {
            decoder.decode_named(name, event.as_bytes(), &mut sink);
        }
        assert_eq!(sink.0, [r#"{"type":"server_tool_use","id":"i","name":"n","input":{"q":1}}"#]);
    }

    #[test]
    fn emits_additional_fields_of_streams_and_of_complete_responses() {
        let fields = r#"{"stop_sequence":"END"}"#;
        let (mut complete, mut streamed) = (ExtraDataSink(Vec::new()), ExtraDataSink(Vec::new()));
        let response = r#"{"output":{"message":{"role":"assistant","content":[]}},"stopReason":"stop_sequence"}"#;
        let hints = format!(r#","additionalModelResponseFields":{fields}}}"#);
        decode_response(response.replace(r#"sequence"}"#, &format!(r#"sequence"{hints}"#)).as_bytes(), &mut complete)
            .unwrap();
        let end = format!(r#"{{"stopReason":"stop_sequence"{hints}"#);
        ConverseDecoder::default().decode_named("messageStop", end.as_bytes(), &mut streamed);
        assert_eq!(complete.0, [format!("additionalModelResponseFields {fields}")]);
        assert_eq!(streamed.0, complete.0);
    }
}
