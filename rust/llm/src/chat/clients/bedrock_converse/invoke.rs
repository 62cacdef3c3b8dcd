//! `InvokeModel` requests and streams for Claude models on Bedrock: Anthropic messages, whose stream events are wrapped
//! in AWS frames.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    api_format::{bedrock, format::ApiFormat},
    chat::{
        clients::anthropic_messages,
        event::{EventSink, ResponseEvent},
        request::ChatRequest,
        response_context::ResponseContext,
        response_writer::ResponseWriter,
    },
    error_response,
    errors::RequestError,
    fields::parse_body,
    stream::{aws_event_stream::encode_frame, sse},
    usage::Usage,
};

/// Parses an `InvokeModel` request in its vendor's own format. Supports only Claude's format, because it is the only
/// one that can be translated to every provider.
pub fn parse_request(json: &[u8], model: &str, stream: bool) -> Result<ChatRequest, RequestError> {
    if parse_body(json)?.get("anthropic_version").and_then(Value::as_str).is_none() {
        let message = "only bodies of Claude models (with `anthropic_version`) can be translated to other providers; send a Converse request";
        return Err(RequestError::new("$", message));
    }
    let mut request = anthropic_messages::parse_request(json)?;
    request.fields.shift_remove("anthropic_version");
    Ok(ChatRequest { model: model.to_owned(), stream, ..request })
}

/// Writer that wraps each event of a streamed message in an AWS frame.
#[derive(Debug)]
pub struct StreamWriter {
    message_writer: anthropic_messages::StreamWriter,
    usage: Usage,
    output: Vec<u8>,
}

impl StreamWriter {
    pub fn new(context: ResponseContext) -> Self {
        Self {
            message_writer: anthropic_messages::StreamWriter::new(context),
            usage: Usage::default(),
            output: Vec::new(),
        }
    }

    fn write_frame(&mut self, data: &[u8]) {
        let Ok(mut event) = serde_json::from_slice::<Value>(data) else { return };
        if event["type"] == "message_stop" {
            // Bedrock's own token counts, which its clients read.
            let Usage { input, audio_in, image_in, cache_write_5m, cache_write_1h, .. } = self.usage;
            event["amazon-bedrock-invocationMetrics"] = json!({
                "inputTokenCount": input.saturating_add(audio_in).saturating_add(image_in),
                "outputTokenCount": self.usage.total_output(), "cacheReadInputTokenCount": self.usage.total_cache_read(),
                "cacheWriteInputTokenCount": cache_write_5m.saturating_add(cache_write_1h)});
        }
        let payload = json!({"bytes": STANDARD.encode(event.to_string())}).to_string();
        self.output.extend_from_slice(&encode_frame("event", "chunk", payload.as_bytes()));
    }
}

impl EventSink for StreamWriter {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        match event {
            ResponseEvent::Failed { kind, message, code } => {
                let pending = self.take_output();
                let failure = error_response::stream_failure(ApiFormat::Bedrock, kind, message, code);
                self.output = [pending, bedrock::error_event(&failure)].concat();
            }
            other => {
                if let ResponseEvent::Usage(usage) = other {
                    self.usage = usage;
                }
                self.message_writer.push_event(other);
            }
        }
    }
}

impl ResponseWriter for StreamWriter {
    fn take_output(&mut self) -> Vec<u8> {
        let events = self.message_writer.take_output();
        for event in sse::split_events(&events) {
            if let Some(data) = sse::event_data(event) {
                self.write_frame(&data);
            }
        }
        std::mem::take(&mut self.output)
    }
}
