//! Writer of streamed Anthropic messages.

use std::io::Write;

use serde_json::{Value, json};

use super::{encode_usage, request::TEXT_SIGNATURE_PREFIX};
use crate::{
    api_format::{anthropic_messages, format::ApiFormat},
    chat::{
        clients::anthropic_messages::response::{image_block, parse_citations},
        event::{EventSink, ResponseEvent},
        field_scope::FieldScope,
        finish_reason,
        response_context::{ResponseContext, merge_field, move_fields},
        response_writer::ResponseWriter,
    },
    citations::CitationSet,
    error_response,
    fields::Fields,
    usage::Usage,
};

#[derive(Debug)]
pub struct StreamWriter {
    output: Vec<u8>,
    context: ResponseContext,
    has_started: bool,
    block_count: usize,
    open_block: Option<AnthropicBlockKind>,
    /// True if the next text starts a new block.
    should_start_block: bool,
    /// Citations already sent for the open text block. They follow the text of the block, so more text starts a new
    /// block.
    block_citations: Vec<Value>,
    /// Block index of each tool call.
    tool_call_blocks: Vec<usize>,
    usage: Usage,
    finish_reason: Option<(String, Option<String>)>,
    /// The provider's own fields, which are added to the response.
    extra_fields: Fields,
    is_finished: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnthropicBlockKind {
    Text,
    Thinking,
    SignedThinking,
    ToolCall,
    /// Block that is sent complete, without deltas.
    Complete,
}

impl StreamWriter {
    pub fn new(context: ResponseContext) -> Self {
        Self {
            output: Vec::new(),
            context,
            has_started: false,
            block_count: 0,
            open_block: None,
            should_start_block: false,
            block_citations: Vec::new(),
            tool_call_blocks: Vec::new(),
            usage: Usage::default(),
            finish_reason: None,
            extra_fields: Fields::new(),
            is_finished: false,
        }
    }

    fn write_message_start(&mut self, id: &str, model: &str) {
        if std::mem::replace(&mut self.has_started, true) {
            return;
        }
        let model = if model.is_empty() { &self.context.model } else { model };
        let id = if id.is_empty() { format!("msg_{}", self.context.id_suffix) } else { id.to_owned() };
        let message = json!({"id": id, "type": "message", "role": "assistant", "model": model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": encode_usage(&self.usage)});
        self.write_sse_event("message_start", &json!({"type": "message_start", "message": message}));
    }

    fn write_sse_event(&mut self, name: &str, data: &Value) {
        // Writing to a `Vec` cannot fail.
        let _ = write!(self.output, "event: {name}\ndata: {data}\n\n");
    }

    /// Opens a block of this kind unless one is open. A tool call always opens a new block.
    fn ensure_block_open(&mut self, kind: AnthropicBlockKind, block: &Value) {
        if self.open_block == Some(kind) && kind != AnthropicBlockKind::ToolCall {
            return;
        }
        self.write_message_start("", "");
        self.close_block();
        let index = self.block_count;
        self.write_sse_event(
            "content_block_start",
            &json!({"type": "content_block_start", "index": index, "content_block": block}),
        );
        self.open_block = Some(kind);
        self.block_count += 1;
    }

    fn close_block(&mut self) {
        self.block_citations.clear();
        if self.open_block.take().is_some() {
            let index = self.block_count - 1;
            self.write_sse_event("content_block_stop", &json!({"type": "content_block_stop", "index": index}));
        }
    }

    fn write_delta(&mut self, index: usize, kind: &str, key: &str, text: &str) {
        let _ = write!(
            self.output,
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{index},\"delta\":{{\"type\":\"{kind}\",\"{key}\":"
        );
        let _ = serde_json::to_writer(&mut self.output, text);
        self.output.extend_from_slice(b"}}\n\n");
    }

    fn write_text(&mut self, text: &str) {
        self.should_start_block |= !self.block_citations.is_empty();
        self.ensure_text_block_open();
        self.write_delta(self.block_count - 1, "text_delta", "text", text);
    }

    fn ensure_text_block_open(&mut self) {
        let is_apart = std::mem::take(&mut self.should_start_block);
        if self.open_block != Some(AnthropicBlockKind::Text) || is_apart {
            self.close_block();
            self.ensure_block_open(AnthropicBlockKind::Text, &json!({"type": "text", "text": ""}));
        }
    }

    /// Writes citations for the current text block; opens a text block if there is none.
    fn write_citation_deltas(&mut self, citations: Vec<Value>) {
        self.ensure_text_block_open();
        let index = self.block_count - 1;
        for citation in citations {
            let delta = json!({"type": "citations_delta", "citation": citation});
            let event = json!({"type": "content_block_delta", "index": index, "delta": delta});
            self.write_sse_event("content_block_delta", &event);
        }
    }

    /// Writes citations for the open text block. Text that is already sent stays in its block, which gets all of the
    /// citations.
    fn write_citations(&mut self, cites: &CitationSet<'_>) {
        let is_open = self.open_block == Some(AnthropicBlockKind::Text) && !self.should_start_block;
        if is_open {
            for source in cites.to_anthropic(&self.context.document_names) {
                if !self.block_citations.contains(&source) {
                    self.block_citations.push(source.clone());
                    self.write_citation_deltas(vec![source]);
                }
            }
        }
        if self.context.is_strict {
            for name in self.context.record_dropped_citations(cites, is_open || cites.citations.is_empty()) {
                self.write_dropped_comment(&name);
            }
        } else {
            self.add_extra_field(cites.scope, cites.name, cites.json);
        }
    }

    fn add_extra_field(&mut self, scope: FieldScope, name: &str, json: &str) {
        if let Some(citations) = parse_citations(scope, name, json) {
            self.write_citation_deltas(citations);
        } else if self.context.is_strict {
            self.report_dropped(name);
        } else if let Ok(value) = serde_json::from_str(json) {
            merge_field(&mut self.extra_fields, name, value);
        }
    }

    fn write_thinking(&mut self, text: &str) {
        if self.open_block != Some(AnthropicBlockKind::Thinking) {
            self.ensure_block_open(
                AnthropicBlockKind::Thinking,
                &json!({"type": "thinking", "thinking": "", "signature": ""}),
            );
        }
        if !text.is_empty() {
            self.write_delta(self.block_count - 1, "thinking_delta", "thinking", text);
        }
    }

    fn write_thinking_signature(&mut self, signature: &str) {
        self.write_thinking("");
        self.write_delta(self.block_count - 1, "signature_delta", "signature", signature);
        self.open_block = Some(AnthropicBlockKind::SignedThinking);
    }

    /// Writes a complete block, without deltas.
    fn write_complete_block(&mut self, block: &Value) {
        self.ensure_block_open(AnthropicBlockKind::Complete, block);
        self.close_block();
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

    fn write_tool_call_start(&mut self, id: &str, name: &str, signature: Option<&str>) {
        let mut block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        if let Some(signature) = signature {
            block["thought_signature"] = signature.into();
        }
        self.ensure_block_open(AnthropicBlockKind::ToolCall, &block);
        self.tool_call_blocks.push(self.block_count - 1);
    }

    fn write_end(&mut self) {
        self.write_message_start("", "");
        self.close_block();
        self.is_finished = true;
        let (reason, sequence) = self.finish_reason.take().unwrap_or_default();
        let delta = json!({"stop_reason": finish_reason::to_anthropic(&reason), "stop_sequence": sequence});
        let mut last = json!({"type": "message_delta", "delta": delta, "usage": encode_usage(&self.usage)});
        move_fields(&mut last, &mut self.extra_fields);
        self.write_sse_event("message_delta", &last);
        self.output.extend_from_slice(anthropic_messages::STOP_EVENT);
    }
}

impl EventSink for StreamWriter {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        if self.is_finished {
            return;
        }
        match event {
            ResponseEvent::Start { id, model } => self.write_message_start(id, model),
            ResponseEvent::TextBlockStart => self.should_start_block = true,
            ResponseEvent::Text("") | ResponseEvent::Refusal("") | ResponseEvent::Thinking("") => (),
            ResponseEvent::Text(text) | ResponseEvent::Refusal(text) => self.write_text(text),
            ResponseEvent::Thinking(text) => self.write_thinking(text),
            ResponseEvent::ThinkingSignature(signature) => self.write_thinking_signature(signature),
            ResponseEvent::RedactedThinking(data) => {
                self.write_complete_block(&json!({"type": "redacted_thinking", "data": data}));
            }
            ResponseEvent::TextSignature(signature) => {
                self.write_complete_block(
                    &json!({"type": "redacted_thinking", "data": format!("{TEXT_SIGNATURE_PREFIX}{signature}")}),
                );
            }
            ResponseEvent::Image { mime, data } if self.context.should_show_images => {
                self.write_complete_block(&image_block(mime, data));
            }
            ResponseEvent::Image { .. } => self.report_dropped("image"),
            ResponseEvent::ExtraField { scope, name, json } => self.add_extra_field(scope, name, json),
            ResponseEvent::Citations(cites) => self.write_citations(&cites),
            ResponseEvent::NativeBlock { kind: name, .. } if self.context.is_strict => self.report_dropped(name),
            ResponseEvent::NativeBlock { json, .. } => {
                if let Ok(block) = serde_json::from_str(json) {
                    self.write_complete_block(&block);
                }
            }
            ResponseEvent::ToolCall { id, name, signature } => self.write_tool_call_start(id, name, signature),
            ResponseEvent::ToolCallArguments { call_index: call, json } => {
                if let (Some(block), false) = (self.tool_call_blocks.get(call), json.is_empty()) {
                    self.write_delta(*block, "input_json_delta", "partial_json", json);
                }
            }
            ResponseEvent::Usage(usage) => self.usage = usage,
            ResponseEvent::Finish { reason, stop_sequence } => {
                self.finish_reason = Some((reason.to_owned(), stop_sequence.map(ToOwned::to_owned)));
            }
            ResponseEvent::Failed { kind, message, code } => {
                self.is_finished = true;
                let failure = error_response::stream_failure(ApiFormat::Anthropic, kind, message, code);
                self.output.extend_from_slice(&anthropic_messages::error_event(&failure));
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
