//! Writer of streamed Gemini content. Each event is a response with the next parts.

use std::io::Write;

use serde_json::Value;

use super::parts::{self, GeminiResponseChunk, PendingToolCall};
use crate::{
    api_format::{format::ApiFormat, gemini},
    chat::{
        event::{EventSink, ResponseEvent},
        response_context::ResponseContext,
        response_writer::ResponseWriter,
    },
    citations::CitationSet,
    error_response,
    usage::Usage,
};

#[derive(Debug)]
pub struct StreamWriter {
    output: Vec<u8>,
    context: ResponseContext,
    id: String,
    model: String,
    /// Tool calls are sent when they are complete, because their arguments are an object in this format.
    tool_calls: Vec<PendingToolCall>,
    sent_call_count: usize,
    usage: Option<Usage>,
    finish_reason: Option<String>,
    is_finished: bool,
}

impl StreamWriter {
    pub fn new(context: ResponseContext) -> Self {
        Self {
            output: Vec::new(),
            context,
            id: String::new(),
            model: String::new(),
            tool_calls: Vec::new(),
            sent_call_count: 0,
            usage: None,
            finish_reason: None,
            is_finished: false,
        }
    }

    fn write_response(&mut self, response: GeminiResponseChunk<'_>) {
        let json = response.into_json(&self.context, &self.id, &self.model);
        // Writing to a `Vec` cannot fail.
        let _ = write!(self.output, "data: {json}\n\n");
    }

    fn write_part(&mut self, part: Value) {
        self.write_pending_calls();
        self.write_response(GeminiResponseChunk { parts: vec![part], finish_reason: None, usage: None });
    }

    fn write_pending_calls(&mut self) {
        let parts: Vec<_> =
            self.tool_calls[self.sent_call_count..].iter().map(|call| call.to_json(&self.context)).collect();
        self.sent_call_count = self.tool_calls.len();
        if !parts.is_empty() {
            self.write_response(GeminiResponseChunk { parts, finish_reason: None, usage: None });
        }
    }

    fn write_end(&mut self) {
        self.is_finished = true;
        self.write_pending_calls();
        let (reason, usage) = (self.finish_reason.take().unwrap_or_default(), self.usage.take());
        self.write_response(GeminiResponseChunk {
            parts: vec![parts::text_part("")],
            finish_reason: Some(&reason),
            usage: usage.as_ref(),
        });
    }
}

impl EventSink for StreamWriter {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        if self.is_finished {
            return;
        }
        match event {
            ResponseEvent::Start { id, model } => {
                id.clone_into(&mut self.id);
                model.clone_into(&mut self.model);
            }
            ResponseEvent::Text("")
            | ResponseEvent::TextBlockStart
            | ResponseEvent::Refusal("")
            | ResponseEvent::Thinking("") => (),
            ResponseEvent::Text(text) | ResponseEvent::Refusal(text) => self.write_part(parts::text_part(text)),
            ResponseEvent::Thinking(text) if self.context.should_show_thinking => {
                self.write_part(parts::thought_part(text));
            }
            ResponseEvent::ThinkingSignature(text) if self.context.should_show_thinking => {
                self.write_part(parts::thought_signature_part(text));
            }
            ResponseEvent::RedactedThinking(data) if self.context.should_show_thinking => {
                self.write_part(parts::redacted_part(data));
            }
            ResponseEvent::Thinking(_) | ResponseEvent::ThinkingSignature(_) | ResponseEvent::RedactedThinking(_) => (),
            ResponseEvent::TextSignature(signature) => self.write_part(parts::text_signature_part(signature)),
            ResponseEvent::Image { mime, data } => self.write_part(parts::image_part(mime, data)),
            // Dropped fields are not reported in SSE comments, because Google's clients parse every line as JSON.
            ResponseEvent::ExtraField { name, .. }
            | ResponseEvent::Citations(CitationSet { name, .. })
            | ResponseEvent::NativeBlock { kind: name, .. } => {
                self.context.record_dropped(name);
            }
            ResponseEvent::ToolCall { id, name, signature } => {
                self.tool_calls.push(PendingToolCall::new(id, name, signature));
            }
            ResponseEvent::ToolCallArguments { call_index: call, json } => {
                if let Some(call) = self.tool_calls.get_mut(call) {
                    call.arguments.push_str(json);
                }
            }
            ResponseEvent::Usage(usage) => self.usage = Some(usage),
            ResponseEvent::Finish { reason, .. } => self.finish_reason = Some(reason.to_owned()),
            ResponseEvent::Failed { kind, message, code } => {
                self.is_finished = true;
                let failure = error_response::stream_failure(ApiFormat::Gemini, kind, message, code);
                self.output.extend_from_slice(&gemini::error_event(&failure));
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
