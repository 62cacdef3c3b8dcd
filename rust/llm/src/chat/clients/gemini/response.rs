//! Builder of complete (not streamed) Gemini content.

use serde_json::Value;

use super::parts::{self, GeminiResponseChunk, PendingToolCall};
use crate::{
    chat::{
        event::{EventSink, ResponseEvent},
        response_context::ResponseContext,
        response_writer::ResponseWriter,
    },
    citations::CitationSet,
    usage::Usage,
};

#[derive(Debug)]
pub struct ResponseBuilder {
    context: ResponseContext,
    id: String,
    model: String,
    parts: Vec<Value>,
    /// Part index and data of each tool call.
    tool_calls: Vec<(usize, PendingToolCall)>,
    usage: Option<Usage>,
    finish_reason: String,
}

impl ResponseBuilder {
    pub fn new(context: ResponseContext) -> Self {
        Self {
            context,
            id: String::new(),
            model: String::new(),
            parts: Vec::new(),
            tool_calls: Vec::new(),
            usage: None,
            finish_reason: String::new(),
        }
    }

    /// Appends to the last part if that is of the same kind; otherwise adds a new part.
    fn append_part(&mut self, part: Value) {
        let is_open = |last: &&mut Value| {
            last["text"].is_string() && last["thought"] == part["thought"] && last.get("thoughtSignature").is_none()
        };
        let Some(last) = self.parts.last_mut().filter(is_open) else { return self.parts.push(part) };
        if let (Value::String(so_far), Some(more)) = (&mut last["text"], part["text"].as_str()) {
            so_far.push_str(more);
        }
        if let Some(signature) = part.get("thoughtSignature") {
            last["thoughtSignature"] = signature.clone();
        }
    }
}

impl EventSink for ResponseBuilder {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        match event {
            ResponseEvent::Start { id, model } => {
                id.clone_into(&mut self.id);
                model.clone_into(&mut self.model);
            }
            ResponseEvent::Text("")
            | ResponseEvent::TextBlockStart
            | ResponseEvent::Refusal("")
            | ResponseEvent::Thinking("")
            | ResponseEvent::Failed { .. }
            | ResponseEvent::End => (),
            ResponseEvent::Text(text) | ResponseEvent::Refusal(text) => self.append_part(parts::text_part(text)),
            ResponseEvent::Thinking(text) if self.context.should_show_thinking => {
                self.append_part(parts::thought_part(text));
            }
            ResponseEvent::ThinkingSignature(text) if self.context.should_show_thinking => {
                self.append_part(parts::thought_signature_part(text));
            }
            ResponseEvent::RedactedThinking(data) if self.context.should_show_thinking => {
                self.parts.push(parts::redacted_part(data));
            }
            ResponseEvent::Thinking(_) | ResponseEvent::ThinkingSignature(_) | ResponseEvent::RedactedThinking(_) => (),
            ResponseEvent::TextSignature(signature) => self.append_part(parts::text_signature_part(signature)),
            ResponseEvent::Image { mime, data } => self.parts.push(parts::image_part(mime, data)),
            ResponseEvent::ExtraField { name, .. }
            | ResponseEvent::Citations(CitationSet { name, .. })
            | ResponseEvent::NativeBlock { kind: name, .. } => {
                self.context.record_dropped(name);
            }
            ResponseEvent::ToolCall { id, name, signature } => {
                self.tool_calls.push((self.parts.len(), PendingToolCall::new(id, name, signature)));
                self.parts.push(Value::Null);
            }
            ResponseEvent::ToolCallArguments { call_index: call, json } => {
                if let Some((_, call)) = self.tool_calls.get_mut(call) {
                    call.arguments.push_str(json);
                }
            }
            ResponseEvent::Usage(usage) => self.usage = Some(usage),
            ResponseEvent::Finish { reason, .. } => reason.clone_into(&mut self.finish_reason),
        }
    }
}

impl ResponseWriter for ResponseBuilder {
    fn take_output(&mut self) -> Vec<u8> {
        for (part, call) in &self.tool_calls {
            self.parts[*part] = call.to_json(&self.context);
        }
        let parts = std::mem::take(&mut self.parts);
        let response =
            GeminiResponseChunk { parts, finish_reason: Some(&self.finish_reason), usage: self.usage.as_ref() };
        response.into_json(&self.context, &self.id, &self.model).to_string().into_bytes()
    }
}
