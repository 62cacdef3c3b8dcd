//! Builder of complete (not streamed) Anthropic messages.

use std::ops::Range;

use serde_json::{Value, json};

use super::{encode_usage, request::TEXT_SIGNATURE_PREFIX};
use crate::{
    chat::{
        event::{EventSink, ResponseEvent},
        field_scope::FieldScope,
        finish_reason,
        response_context::{ResponseContext, merge_field, move_fields},
        response_writer::ResponseWriter,
    },
    citations::{self, CitationSet},
    fields::Fields,
    usage::Usage,
};

#[derive(Debug)]
pub struct ResponseBuilder {
    context: ResponseContext,
    id: String,
    model: String,
    content_blocks: Vec<Value>,
    /// True if the next text starts a new block.
    should_start_block: bool,
    /// Block index of each tool call, and its arguments so far.
    tool_calls: Vec<(usize, String)>,
    /// Cited ranges of the concatenated text, with their sources.
    cited_ranges: Vec<(Range<usize>, Value)>,
    usage: Usage,
    finish_reason: String,
    stop_sequence: Option<String>,
    /// The provider's own fields, which are added to the response.
    extra_fields: Fields,
}

/// Returns an image block in the format of Anthropic requests; Anthropic's own responses have no images.
pub(crate) fn image_block(mime: &str, data: &str) -> Value {
    json!({"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}})
}

/// Parses the citations of a text block; `None` if the field is something else or has no equivalent in Anthropic's
/// format.
pub(crate) fn parse_citations(scope: FieldScope, name: &str, json: &str) -> Option<Vec<Value>> {
    let list =
        (scope == FieldScope::Block && name == "citations").then(|| serde_json::from_str(json).ok()).flatten()?;
    citations::to_anthropic(&list)
}

impl ResponseBuilder {
    pub fn new(context: ResponseContext) -> Self {
        Self {
            id: format!("msg_{}", context.id_suffix),
            model: context.model.clone(),
            content_blocks: Vec::new(),
            should_start_block: false,
            tool_calls: Vec::new(),
            cited_ranges: Vec::new(),
            usage: Usage::default(),
            finish_reason: String::new(),
            stop_sequence: None,
            extra_fields: Fields::new(),
            context,
        }
    }

    fn append_block_text(&mut self, kind: &'static str, key: &'static str, text: &str) {
        let is_apart = kind == "text" && std::mem::take(&mut self.should_start_block);
        let is_open = |last: &&mut Value| {
            !is_apart && last["type"] == kind && last["signature"].as_str().is_none_or(str::is_empty)
        };
        if let Some(last) = self.content_blocks.last_mut().filter(is_open)
            && let Some(Value::String(so_far)) = last.get_mut(key)
        {
            return so_far.push_str(text);
        }
        let mut block = json!({"type": kind, key: text});
        if kind == "thinking" {
            block["signature"] = "".into();
        }
        self.content_blocks.push(block);
    }

    /// Attaches citations to the current text block; starts a text block if there is none.
    fn attach_citations(&mut self, citations: Vec<Value>) {
        if self.should_start_block || self.content_blocks.last().is_none_or(|last| last["type"] != "text") {
            self.append_block_text("text", "text", "");
        }
        if let Some(last) = self.content_blocks.last_mut() {
            match &mut last["citations"] {
                Value::Array(existing) => existing.extend(citations),
                none => *none = citations.into(),
            }
        }
    }

    fn add_citations(&mut self, cites: &CitationSet<'_>) {
        let claims = cites.citations.iter().map(|citation| citation.claim_range.clone());
        self.cited_ranges.extend(claims.zip(cites.to_anthropic(&self.context.document_names)));
        if self.context.is_strict {
            self.context.record_dropped_citations(cites, true);
        } else if let Some(value) = self.context.parse_extra(cites.name, cites.json) {
            merge_field(&mut self.extra_fields, cites.name, value);
        }
    }

    fn set_thinking_signature(&mut self, signature: &str) {
        self.append_block_text("thinking", "thinking", "");
        if let Some(last) = self.content_blocks.last_mut() {
            last["signature"] = signature.into();
        }
    }

    fn add_tool_call(&mut self, id: &str, name: &str, signature: Option<&str>) {
        let mut block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        if let Some(signature) = signature {
            block["thought_signature"] = signature.into();
        }
        self.tool_calls.push((self.content_blocks.len(), String::new()));
        self.content_blocks.push(block);
    }
}

impl EventSink for ResponseBuilder {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        match event {
            ResponseEvent::Start { id, model } => {
                if !id.is_empty() {
                    id.clone_into(&mut self.id);
                }
                if !model.is_empty() {
                    model.clone_into(&mut self.model);
                }
            }
            ResponseEvent::TextBlockStart => self.should_start_block = true,
            ResponseEvent::Text("")
            | ResponseEvent::Refusal("")
            | ResponseEvent::Thinking("")
            | ResponseEvent::Failed { .. }
            | ResponseEvent::End => (),
            ResponseEvent::Text(text) | ResponseEvent::Refusal(text) => self.append_block_text("text", "text", text),
            ResponseEvent::Thinking(text) => self.append_block_text("thinking", "thinking", text),
            ResponseEvent::ThinkingSignature(signature) => self.set_thinking_signature(signature),
            ResponseEvent::RedactedThinking(data) => {
                self.content_blocks.push(json!({"type": "redacted_thinking", "data": data}));
            }
            ResponseEvent::TextSignature(signature) => {
                self.content_blocks
                    .push(json!({"type": "redacted_thinking", "data": format!("{TEXT_SIGNATURE_PREFIX}{signature}")}));
            }
            ResponseEvent::Image { mime, data } if self.context.should_show_images => {
                self.content_blocks.push(image_block(mime, data));
            }
            ResponseEvent::Image { .. } => self.context.record_dropped("image"),
            ResponseEvent::ExtraField { scope, name, json } => {
                if let Some(citations) = parse_citations(scope, name, json) {
                    self.attach_citations(citations);
                } else if let Some(value) = self.context.parse_extra(name, json) {
                    merge_field(&mut self.extra_fields, name, value);
                }
            }
            ResponseEvent::Citations(cites) => self.add_citations(&cites),
            ResponseEvent::NativeBlock { kind, json } => {
                self.content_blocks.extend(self.context.parse_extra(kind, json));
            }
            ResponseEvent::ToolCall { id, name, signature } => self.add_tool_call(id, name, signature),
            ResponseEvent::ToolCallArguments { call_index: call, json } => {
                if let Some((_, arguments)) = self.tool_calls.get_mut(call) {
                    arguments.push_str(json);
                }
            }
            ResponseEvent::Usage(usage) => self.usage = usage,
            ResponseEvent::Finish { reason, stop_sequence } => {
                reason.clone_into(&mut self.finish_reason);
                self.stop_sequence = stop_sequence.map(ToOwned::to_owned);
            }
        }
    }
}

impl ResponseWriter for ResponseBuilder {
    fn take_output(&mut self) -> Vec<u8> {
        for (block, arguments) in std::mem::take(&mut self.tool_calls) {
            let input = self.context.parse_arguments(&arguments);
            if let Some(block) = self.content_blocks.get_mut(block) {
                block["input"] = input.into();
            }
        }
        let mut content = std::mem::take(&mut self.content_blocks);
        if !self.cited_ranges.is_empty() {
            content = citations::split_cited_blocks(content, std::mem::take(&mut self.cited_ranges));
        }
        let mut response = json!({"id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": finish_reason::to_anthropic(&self.finish_reason),
            "stop_sequence": self.stop_sequence, "usage": encode_usage(&self.usage)});
        move_fields(&mut response, &mut self.extra_fields);
        response.to_string().into_bytes()
    }
}
