//! Writer of streamed chat completions.

use std::io::Write;

use serde_json::{Value, json};

use super::encode_usage;
use crate::{
    api_format::{Failure, format::ApiFormat, openai_chat},
    chat::{
        event::{EventSink, ResponseEvent},
        field_scope::FieldScope,
        finish_reason,
        response_context::{ResponseContext, is_chat_choice_field},
        response_writer::ResponseWriter,
    },
    citations::{ANNOTATIONS_FIELD, Citation, CitationSet},
    error_response,
    usage::Usage,
};

const CHUNK_BEFORE_DELTA: &[u8] = b",\"choices\":[{\"index\":0,\"delta\":{";
const CHUNK_AFTER_DELTA: &[u8] = b"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";

#[derive(Debug)]
pub struct StreamWriter {
    output: Vec<u8>,
    /// Start of every chunk: `data: ` and the common JSON fields, without the closing brace.
    chunk_prefix: Vec<u8>,
    context: ResponseContext,
    tool_call_count: usize,
    /// Indexes of the calls of custom tools, which take free text.
    custom_calls: Vec<usize>,
    /// Number of annotations sent so far.
    annotation_count: usize,
    /// Index and kind of the last content block.
    last_block: Option<(usize, &'static str)>,
    /// True if the next text starts a new block.
    should_start_block: bool,
    usage: Option<Usage>,
    finish_reason: Option<String>,
    is_finished: bool,
}

impl StreamWriter {
    pub fn new(context: ResponseContext) -> Self {
        let mut stream = Self {
            output: Vec::new(),
            chunk_prefix: Vec::new(),
            context,
            tool_call_count: 0,
            custom_calls: Vec::new(),
            annotation_count: 0,
            last_block: None,
            should_start_block: false,
            usage: None,
            finish_reason: None,
            is_finished: false,
        };
        let model = stream.context.model.clone();
        stream.set_chunk_prefix("", &model);
        stream
    }

    fn set_chunk_prefix(&mut self, id: &str, model: &str) {
        let ResponseContext { provider, created, .. } = &self.context;
        let id = if id.is_empty() { self.context.generate_id() } else { id.to_owned() };
        let head = json!({"id": id, "object": "chat.completion.chunk", "created": created, "model": model,
            "provider": provider});
        self.chunk_prefix = format!("data: {head}").into_bytes();
        self.chunk_prefix.pop();
    }

    /// Writes a chunk with one choice. `delta` writes the fields of its delta, which take about `length` bytes.
    fn write_delta_chunk(&mut self, length: usize, delta: impl FnOnce(&mut Vec<u8>)) {
        // An exact reservation avoids growing and copying the buffer.
        self.output.reserve(self.chunk_prefix.len() + CHUNK_BEFORE_DELTA.len() + length + CHUNK_AFTER_DELTA.len());
        self.output.extend_from_slice(&self.chunk_prefix);
        self.output.extend_from_slice(CHUNK_BEFORE_DELTA);
        delta(&mut self.output);
        self.output.extend_from_slice(CHUNK_AFTER_DELTA);
    }

    fn write_text_run(&mut self, key: &'static str, text: &str) {
        let block = self.select_block(key);
        let length = if block.is_some() { 2 * text.len() + 64 } else { json_field_len("content", text) };
        self.write_delta_chunk(length, |out| {
            if matches!(key, "text") {
                write_json_field(out, "content", text);
            }
            let Some(block) = block else { return };
            if matches!(key, "text") {
                out.push(b',');
            }
            // Writing to a `Vec` cannot fail.
            let _ = write!(out, "\"content_blocks\":[{{\"index\":{block},\"delta\":{{");
            write_json_field(out, key, text);
            out.extend_from_slice(b"}}]");
        });
    }

    /// Returns the index of the content block that a run of text belongs to; `None` if the client does not receive
    /// content blocks.
    fn select_block(&mut self, key: &'static str) -> Option<usize> {
        if !self.context.should_show_thinking {
            return None;
        }
        let block_kind = if key == "signature" { "thinking" } else { key };
        let is_apart = key == "text" && std::mem::take(&mut self.should_start_block);
        let at = match self.last_block {
            Some((at, last)) if last == block_kind && key != "data" && !is_apart => at,
            Some((at, _)) => at + 1,
            None => 0,
        };
        self.last_block = Some((at, if key == "signature" { "signed" } else { block_kind }));
        Some(at)
    }

    /// Reports a dropped field in an SSE comment, because the response headers are already sent.
    fn report_dropped(&mut self, name: &str) {
        if self.context.report.add(name) {
            self.write_dropped_comment(name);
        }
    }

    fn write_dropped_comment(&mut self, name: &str) {
        let _ = write!(self.output, ": not translated: {name}\n\n");
    }

    fn write_citations(&mut self, cites: &CitationSet<'_>) {
        let mut annotations: Vec<_> = cites.citations.iter().filter_map(Citation::to_chat_annotation).collect();
        let is_translated = annotations.len() == cites.citations.len();
        for item in &mut annotations {
            // `OpenAI` sends all annotations in one chunk, without `index`. Its SDKs need `index` to merge lists from
            // several chunks.
            item["index"] = self.annotation_count.into();
            self.annotation_count += 1;
        }
        if !annotations.is_empty() {
            self.write_chunk(&delta_chunk_fields(&json!({ANNOTATIONS_FIELD: annotations})));
        }
        if self.context.is_strict {
            for name in self.context.record_dropped_citations(cites, is_translated) {
                self.write_dropped_comment(&name);
            }
        } else if let Some((scope, name, json)) = cites.non_annotation_field() {
            self.write_extra_field(scope, name, json);
        }
    }

    /// Writes a block that is not text, complete in one chunk.
    fn write_complete_block(&mut self, kind: &'static str, delta: &Value) {
        let at = self.last_block.map_or(0, |(at, _)| at + 1);
        self.last_block = Some((at, kind));
        self.write_chunk(&delta_chunk_fields(&json!({"content_blocks": [{"index": at, "delta": delta}]})));
    }

    fn write_extra_field(&mut self, scope: FieldScope, name: &str, json: &str) {
        let Ok(value) = serde_json::from_str::<Value>(json) else { return };
        if scope == FieldScope::Block && self.should_start_block {
            // Some providers send citations before the text that they belong to.
            self.select_block("text");
        }
        match (scope, self.last_block) {
            _ if self.context.is_strict && !(scope == FieldScope::Choice && is_chat_choice_field(name, json)) => {
                self.report_dropped(name);
            }
            (FieldScope::Block, Some((at, "text"))) => {
                self.write_chunk(&delta_chunk_fields(
                    &json!({"content_blocks": [{"index": at, "delta": {name: value}}]}),
                ));
            }
            (FieldScope::Choice, _) => {
                let mut chunk = delta_chunk_fields(&json!({}));
                chunk["choices"][0][name] = value;
                self.write_chunk(&chunk);
            }
            (FieldScope::Response, _) => {
                let mut chunk = delta_chunk_fields(&json!({}));
                chunk[name] = value;
                self.write_chunk(&chunk);
            }
            (FieldScope::Block | FieldScope::Message, _) => {
                self.write_chunk(&delta_chunk_fields(&json!({name: value})));
            }
        }
    }

    fn write_tool_call_start(&mut self, id: &str, name: &str, signature: Option<&str>) {
        let index = self.tool_call_count;
        self.tool_call_count += 1;
        self.last_block = Some((self.last_block.map_or(0, |(at, _)| at + 1), "call"));
        let is_custom = self.context.client_tools.is_custom(name);
        let mut call = if is_custom {
            self.custom_calls.push(index);
            json!({"index": index, "id": id, "type": "custom", "custom": {"name": name, "input": ""}})
        } else {
            json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}})
        };
        if let Some(signature) = signature {
            call["extra_content"] = json!({"google": {"thought_signature": signature}});
        }
        self.write_delta_chunk(128, |out| {
            let _ = write!(out, "\"tool_calls\":[{call}]");
        });
    }

    fn write_error(&mut self, failure: &Failure<'_>) {
        self.is_finished = true;
        let event = openai_chat::error_event(failure);
        self.output.extend_from_slice(&event);
    }

    fn write_end(&mut self) {
        self.is_finished = true;
        let reason = self.finish_reason.take().unwrap_or_default();
        let reason = if self.context.is_strict { finish_reason::to_openai(&reason) } else { &reason };
        self.write_chunk(&json!({"choices": [{"index": 0, "delta": {}, "logprobs": null, "finish_reason": reason}]}));
        // Usage has an event of its own, which is removed later if the client did not ask for it.
        if let Some(usage) = self.usage.take() {
            self.write_chunk(&json!({"choices": [], "usage": encode_usage(&usage)}));
        }
        self.output.extend_from_slice(openai_chat::DONE_EVENT);
    }

    /// Writes a chunk that consists of the common prefix and the fields of an object.
    fn write_chunk(&mut self, fields: &Value) {
        let text = fields.to_string();
        self.output.extend_from_slice(&self.chunk_prefix);
        self.output.push(b',');
        self.output.extend_from_slice(&text.as_bytes()[1..]);
        self.output.extend_from_slice(b"\n\n");
    }
}

impl EventSink for StreamWriter {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        if self.is_finished {
            return;
        }
        match event {
            ResponseEvent::Start { id, model } => {
                let model = if model.is_empty() { self.context.model.clone() } else { model.to_owned() };
                self.set_chunk_prefix(id, &model);
                self.write_delta_chunk(32, |out| out.extend_from_slice(b"\"role\":\"assistant\",\"content\":\"\""));
            }
            ResponseEvent::Text(text) => self.write_text_run("text", text),
            ResponseEvent::TextBlockStart => self.should_start_block = !self.context.is_strict,
            ResponseEvent::Refusal(text) => {
                self.write_delta_chunk(json_field_len("refusal", text), |out| write_json_field(out, "refusal", text));
            }
            ResponseEvent::Thinking(text) if self.context.should_show_thinking => self.write_text_run("thinking", text),
            ResponseEvent::ThinkingSignature(text) if self.context.should_show_thinking => {
                self.write_text_run("signature", text);
            }
            ResponseEvent::RedactedThinking(data) if self.context.should_show_thinking => {
                self.write_text_run("data", data);
            }
            ResponseEvent::Thinking("") | ResponseEvent::ThinkingSignature(_) => (),
            ResponseEvent::Thinking(_) | ResponseEvent::RedactedThinking(_) => self.report_dropped("thinking"),
            ResponseEvent::Image { mime, data } if self.context.should_show_images => {
                let url = format!("data:{mime};base64,{data}");
                self.write_complete_block("image_url", &json!({"image_url": {"url": url}}));
            }
            ResponseEvent::Image { .. } => self.report_dropped("image"),
            ResponseEvent::TextSignature(signature) => {
                self.write_chunk(&delta_chunk_fields(
                    &json!({"extra_content": {"google": {"thought_signature": signature}}}),
                ));
            }
            ResponseEvent::ExtraField { scope, name, json } => self.write_extra_field(scope, name, json),
            ResponseEvent::Citations(cites) => self.write_citations(&cites),
            ResponseEvent::NativeBlock { kind, .. } if self.context.is_strict => self.report_dropped(kind),
            ResponseEvent::NativeBlock { json, .. } => {
                if let Ok(block) = serde_json::from_str(json) {
                    self.write_complete_block("native", &block);
                }
            }
            ResponseEvent::ToolCall { id, name, signature } => self.write_tool_call_start(id, name, signature),
            ResponseEvent::ToolCallArguments { call_index: call, json } => {
                let is_custom = self.custom_calls.contains(&call);
                let (kind, key) = if is_custom { ("custom", "input") } else { ("function", "arguments") };
                self.write_delta_chunk(json.len() + 64, |out| {
                    let _ = write!(out, "\"tool_calls\":[{{\"index\":{call},\"{kind}\":{{");
                    write_json_field(out, key, json);
                    out.extend_from_slice(b"}}]");
                });
            }
            ResponseEvent::Usage(usage) => self.usage = Some(usage),
            ResponseEvent::Finish { reason, .. } => self.finish_reason = Some(reason.to_owned()),
            ResponseEvent::Failed { kind, message, code } => {
                self.write_error(&error_response::stream_failure(ApiFormat::OpenAi, kind, message, code));
            }
            ResponseEvent::End => self.write_end(),
        }
    }
}

impl ResponseWriter for StreamWriter {
    fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }
}

/// Returns the fields of a chunk that has only a delta.
fn delta_chunk_fields(delta: &Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": null}]})
}

/// Returns the length in bytes of a JSON string field whose text needs no escapes.
fn json_field_len(key: &str, text: &str) -> usize {
    key.len() + text.len() + "\"\":\"\"".len()
}

fn write_json_field(out: &mut Vec<u8>, key: &str, text: &str) {
    for part in [b"\"", key.as_bytes(), b"\":"] {
        out.extend_from_slice(part);
    }
    let _ = serde_json::to_writer(out, text);
}
