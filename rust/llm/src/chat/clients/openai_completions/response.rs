//! Builder of complete (not streamed) completions.

use serde_json::{Value, json};

use crate::{
    chat::{
        clients::openai_chat::encode_usage,
        event::{EventSink, ResponseEvent},
        finish_reason,
        response_context::{ResponseContext, merge_field, move_fields},
        response_writer::ResponseWriter,
    },
    fields::Fields,
    usage::Usage,
};

#[derive(Debug)]
pub struct ResponseBuilder {
    context: ResponseContext,
    id: String,
    model: String,
    text: String,
    usage: Option<Usage>,
    finish_reason: String,
    /// The provider's own fields, which are added to the response.
    extra_fields: Fields,
}

impl ResponseBuilder {
    pub fn new(context: ResponseContext) -> Self {
        Self {
            id: context.generate_id(),
            model: context.model.clone(),
            context,
            text: String::new(),
            usage: None,
            finish_reason: String::new(),
            extra_fields: Fields::new(),
        }
    }
}

impl EventSink for ResponseBuilder {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        match event.without_citations() {
            ResponseEvent::Start { id, model } => {
                for (current, incoming) in [(&mut self.id, id), (&mut self.model, model)] {
                    if !incoming.is_empty() {
                        incoming.clone_into(current);
                    }
                }
            }
            ResponseEvent::Text(text) | ResponseEvent::Refusal(text) => self.text.push_str(text),
            ResponseEvent::ExtraField { name, json, .. } => {
                if let Some(value) = self.context.parse_extra(name, json) {
                    merge_field(&mut self.extra_fields, name, value);
                }
            }
            ResponseEvent::Usage(usage) => self.usage = Some(usage),
            ResponseEvent::Finish { reason, .. } => reason.clone_into(&mut self.finish_reason),
            ResponseEvent::TextBlockStart | ResponseEvent::Failed { .. } | ResponseEvent::End => (),
            other => dropped_event_name(&other).into_iter().for_each(|name| self.context.record_dropped(name)),
        }
    }
}

/// Returns the name under which an event that is not text is reported as dropped; `None` if nothing is to be reported.
pub(crate) fn dropped_event_name<'a>(event: &ResponseEvent<'a>) -> Option<&'a str> {
    match event {
        ResponseEvent::Thinking("") | ResponseEvent::ThinkingSignature(_) | ResponseEvent::ToolCallArguments { .. } => {
            None
        }
        ResponseEvent::Thinking(_) | ResponseEvent::RedactedThinking(_) => Some("thinking"),
        ResponseEvent::TextSignature(_) => Some("thought_signature"),
        ResponseEvent::Image { .. } => Some("image"),
        ResponseEvent::ToolCall { .. } => Some("tool_calls"),
        ResponseEvent::NativeBlock { kind, .. } => Some(kind),
        _ => None,
    }
}

/// Returns the `choices` array, which holds a single choice.
pub(crate) fn build_choices(text: &str, reason: Option<&str>) -> Value {
    json!([{"text": text, "index": 0, "logprobs": null, "finish_reason": reason}])
}

impl ResponseContext {
    /// Returns the finish reason for the client: `OpenAI`'s value in strict mode, otherwise the provider's own.
    pub(crate) fn finish_reason<'r>(&self, reason: &'r str) -> &'r str {
        if self.is_strict { finish_reason::to_openai(reason) } else { reason }
    }
}

impl ResponseWriter for ResponseBuilder {
    fn take_output(&mut self) -> Vec<u8> {
        let choices = build_choices(&self.text, Some(self.context.finish_reason(&self.finish_reason)));
        let mut response = json!({"id": self.id, "object": "text_completion", "created": self.context.created,
            "model": self.model, "provider": self.context.provider, "choices": choices});
        if let Some(cost) = &self.usage {
            response["usage"] = encode_usage(cost);
        }
        move_fields(&mut response, &mut self.extra_fields);
        response.to_string().into_bytes()
    }
}
