//! The bodies that Claude's models take on Bedrock: messages, their events in frames.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    api_format::{ApiFormat, bedrock},
    chat::{
        clients::anthropic_messages,
        event::{Piece, Taker},
        request::{Asked, Refusal, body},
        response_context::Answering,
        response_writer::Teller,
    },
    stream::{aws_event_stream::encode, sse},
    translation::errors,
    usage::Usage,
};

/// Reads a request as its vendor has it. Of the many shapes that there are only Claude's says the same to all.
pub fn read(json: &[u8], model: &str, stream: bool) -> Result<Asked, Refusal> {
    if body(json)?.get("anthropic_version").and_then(Value::as_str).is_none() {
        let message =
            "only bodies of Claude's models (`anthropic_version`) can be said to others: send a Converse request";
        return Err(Refusal::new("$", message));
    }
    let mut asked = anthropic_messages::read(json)?;
    asked.fields.shift_remove("anthropic_version");
    Ok(Asked { model: model.to_owned(), stream, ..asked })
}

/// Each event of a streamed message as a frame.
#[derive(Debug)]
pub struct Stream {
    inner: anthropic_messages::Stream,
    usage: Usage,
    out: Vec<u8>,
}

impl Stream {
    pub fn new(answering: Answering) -> Self {
        Self { inner: anthropic_messages::Stream::new(answering), usage: Usage::default(), out: Vec::new() }
    }

    fn frame(&mut self, data: &[u8]) {
        let Ok(mut event) = serde_json::from_slice::<Value>(data) else { return };
        if event["type"] == "message_stop" {
            // Bedrock's own count, which its clients read.
            let Usage { input, audio_in, image_in, cache_write_5m, cache_write_1h, .. } = self.usage;
            event["amazon-bedrock-invocationMetrics"] = json!({
                "inputTokenCount": input.saturating_add(audio_in).saturating_add(image_in),
                "outputTokenCount": self.usage.total_out(), "cacheReadInputTokenCount": self.usage.total_cache_read(),
                "cacheWriteInputTokenCount": cache_write_5m.saturating_add(cache_write_1h)});
        }
        let payload = json!({"bytes": STANDARD.encode(event.to_string())}).to_string();
        self.out.extend_from_slice(&encode("event", "chunk", payload.as_bytes()));
    }
}

impl Taker for Stream {
    fn take(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Failed { kind, message, code } => {
                let told = self.told();
                let failure = errors::on_the_way(ApiFormat::Bedrock, kind, message, code);
                self.out = [told, bedrock::error_event(&failure)].concat();
            }
            piece => {
                if let Piece::Usage(usage) = piece {
                    self.usage = usage;
                }
                self.inner.take(piece);
            }
        }
    }
}

impl Teller for Stream {
    fn told(&mut self) -> Vec<u8> {
        let events = self.inner.told();
        for event in sse::split(&events) {
            if let Some(data) = sse::data(event) {
                self.frame(&data);
            }
        }
        std::mem::take(&mut self.out)
    }
}
