//! Response parts in Gemini's format, used by complete responses and by stream chunks.

use serde_json::{Value, json};

use crate::{
    chat::{finish_reason, response_context::ResponseContext},
    usage::Usage,
};

/// Prefix of redacted thinking, which is sent in the signature field because clients return signatures unchanged.
pub const REDACTED_PREFIX: &str = "redacted_thinking:";

pub fn text_part(text: &str) -> Value {
    json!({"text": text})
}

pub fn thought_part(text: &str) -> Value {
    json!({"text": text, "thought": true})
}

pub fn thought_signature_part(signature: &str) -> Value {
    json!({"text": "", "thought": true, "thoughtSignature": signature})
}

pub fn redacted_part(data: &str) -> Value {
    thought_signature_part(&format!("{REDACTED_PREFIX}{data}"))
}

/// Returns a part with the signature of the text before it.
pub fn text_signature_part(signature: &str) -> Value {
    json!({"text": "", "thoughtSignature": signature})
}

pub fn image_part(mime: &str, data: &str) -> Value {
    json!({"inlineData": {"mimeType": mime, "data": data}})
}

/// Tool call whose arguments arrive as JSON fragments and are sent as one object.
#[derive(Debug, Default)]
pub struct PendingToolCall {
    pub id: String,
    pub name: String,
    pub arguments: String,
    pub signature: Option<String>,
}

impl PendingToolCall {
    pub fn new(id: &str, name: &str, signature: Option<&str>) -> Self {
        let signature = signature.map(ToOwned::to_owned);
        Self { id: id.to_owned(), name: name.to_owned(), arguments: String::new(), signature }
    }

    pub fn to_json(&self, context: &ResponseContext) -> Value {
        let args = context.parse_arguments(&self.arguments);
        let mut part = json!({"functionCall": {"id": self.id, "name": self.name, "args": args}});
        if let Some(signature) = &self.signature {
            part["thoughtSignature"] = signature.as_str().into();
        }
        part
    }
}

/// Complete response, or one chunk of a streamed response.
pub struct GeminiResponseChunk<'a> {
    pub parts: Vec<Value>,
    pub finish_reason: Option<&'a str>,
    pub usage: Option<&'a Usage>,
}

impl GeminiResponseChunk<'_> {
    pub fn into_json(self, context: &ResponseContext, id: &str, model: &str) -> Value {
        let mut candidate = json!({"content": {"parts": self.parts, "role": "model"}});
        if let Some(reason) = self.finish_reason {
            candidate["finishReason"] = finish_reason::to_gemini(reason).into();
        }
        candidate["index"] = 0.into();
        let mut response = json!({"candidates": [candidate]});
        if let Some(cost) = self.usage {
            response["usageMetadata"] = encode_usage(cost);
        }
        let model = if model.is_empty() { &context.model } else { model };
        response["modelVersion"] = model.into();
        response["responseId"] = if id.is_empty() { context.generate_id().into() } else { id.into() };
        response
    }
}

/// Encodes token usage as JSON. Cached tokens are part of the prompt tokens. Thinking tokens are not part of the
/// candidates' tokens.
fn encode_usage(token_usage: &Usage) -> Value {
    let mut usage = json!({"promptTokenCount": token_usage.total_input()});
    if token_usage.total_cache_read() > 0 {
        usage["cachedContentTokenCount"] = token_usage.total_cache_read().into();
    }
    usage["candidatesTokenCount"] = token_usage.total_output().saturating_sub(token_usage.reasoning).into();
    if token_usage.reasoning > 0 {
        usage["thoughtsTokenCount"] = token_usage.reasoning.into();
    }
    usage["totalTokenCount"] = token_usage.total().into();
    let sides = [
        (
            "promptTokensDetails",
            [
                ("AUDIO", token_usage.audio_in + token_usage.cache_read_audio),
                ("IMAGE", token_usage.image_in + token_usage.cache_read_image),
            ],
        ),
        ("cacheTokensDetails", [("AUDIO", token_usage.cache_read_audio), ("IMAGE", token_usage.cache_read_image)]),
        ("candidatesTokensDetails", [("AUDIO", token_usage.audio_out), ("IMAGE", token_usage.image_out)]),
    ];
    for (side, kinds) in sides {
        let kinds = kinds.into_iter().filter(|(_, count)| *count > 0);
        let details: Vec<_> = kinds.map(|(kind, count)| json!({"modality": kind, "tokenCount": count})).collect();
        if !details.is_empty() {
            usage[side] = details.into();
        }
    }
    usage
}
