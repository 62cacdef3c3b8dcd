//! Writer of streamed completions.

use std::io::Write;

use serde_json::{Value, json};

use crate::{
    api_format::{format::ApiFormat, openai_chat},
    chat::{
        clients::{
            openai_chat::encode_usage,
            openai_completions::response::{build_choices, dropped_event_name},
        },
        event::{EventSink, ResponseEvent},
        response_context::ResponseContext,
        response_writer::ResponseWriter,
    },
    error_response,
    usage::Usage,
};

#[derive(Debug)]
pub struct StreamWriter {
    output: Vec<u8>,
    context: ResponseContext,
    id: String,
    model: String,
    usage: Option<Usage>,
    finish_reason: String,
    is_finished: bool,
}

impl StreamWriter {
    pub fn new(context: ResponseContext) -> Self {
        Self {
            output: Vec::new(),
            id: context.generate_id(),
            model: context.model.clone(),
            context,
            usage: None,
            finish_reason: String::new(),
            is_finished: false,
        }
    }

    fn write_chunk(&mut self, key: &str, value: Value, choices: &Value) {
        let mut chunk = json!({"id": self.id, "object": "text_completion", "created": self.context.created,
            "model": self.model, "provider": self.context.provider, "choices": choices});
        if !key.is_empty() {
            chunk[key] = value;
        }
        // Writing to a `Vec` cannot fail.
        let _ = write!(self.output, "data: {chunk}\n\n");
    }

    /// Reports a dropped field in an SSE comment, because the response headers are already sent.
    fn report_dropped(&mut self, name: &str) {
        if self.context.report.add(name) {
            let _ = write!(self.output, ": not translated: {name}\n\n");
        }
    }

    fn write_end(&mut self) {
        self.is_finished = true;
        let reason = std::mem::take(&mut self.finish_reason);
        let choices = build_choices("", Some(self.context.finish_reason(&reason)));
        self.write_chunk("", Value::Null, &choices);
        // Usage has an event of its own, which is removed later if the client did not ask for it.
        if let Some(cost) = self.usage.take() {
            self.write_chunk("usage", encode_usage(&cost), &json!([]));
        }
        self.output.extend_from_slice(openai_chat::DONE_EVENT);
    }
}

impl EventSink for StreamWriter {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        if self.is_finished {
            return;
        }
        match event.without_citations() {
            ResponseEvent::Start { id, model } => {
                for (current, incoming) in [(&mut self.id, id), (&mut self.model, model)] {
                    if !incoming.is_empty() {
                        incoming.clone_into(current);
                    }
                }
            }
            ResponseEvent::Text("") | ResponseEvent::TextBlockStart | ResponseEvent::Refusal("") => (),
            ResponseEvent::Text(text) | ResponseEvent::Refusal(text) => {
                self.write_chunk("", Value::Null, &build_choices(text, None));
            }
            ResponseEvent::ExtraField { name, .. } if self.context.is_strict => self.report_dropped(name),
            ResponseEvent::ExtraField { name, json, .. } => {
                if let Ok(value) = serde_json::from_str(json) {
                    self.write_chunk(name, value, &build_choices("", None));
                }
            }
            ResponseEvent::Usage(usage) => self.usage = Some(usage),
            ResponseEvent::Finish { reason, .. } => reason.clone_into(&mut self.finish_reason),
            ResponseEvent::Failed { kind, message, code } => {
                self.is_finished = true;
                let failure = error_response::stream_failure(ApiFormat::OpenAi, kind, message, code);
                self.output.extend_from_slice(&openai_chat::error_event(&failure));
            }
            ResponseEvent::End => self.write_end(),
            other => {
                if let Some(name) = dropped_event_name(&other) {
                    self.report_dropped(name);
                }
            }
        }
    }
}

impl ResponseWriter for StreamWriter {
    fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }
}
