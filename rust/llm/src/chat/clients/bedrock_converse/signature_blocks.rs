//! Blocks for thought signatures, which Converse has no field for. They travel as redacted reasoning, which clients
//! return unchanged.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::chat::request::Part;

/// Prefix of a signature that belongs to the tool call after it.
const CALL_SIGNATURE_PREFIX: &str = "thought_signature:call:";
/// Prefix of a signature that belongs to the text before it.
const TEXT_SIGNATURE_PREFIX: &str = "thought_signature:text:";

pub fn encode_call_signature(signature: &str) -> Value {
    encode_signature_block(CALL_SIGNATURE_PREFIX, signature)
}

pub fn encode_text_signature(signature: &str) -> Value {
    encode_signature_block(TEXT_SIGNATURE_PREFIX, signature)
}

fn encode_signature_block(prefix: &str, signature: &str) -> Value {
    json!({"reasoningContent": {"redactedContent": STANDARD.encode(format!("{prefix}{signature}"))}})
}

/// Moves the signatures that a client returned back to the tool calls and texts that they belong to.
pub fn restore_signatures(parts: Vec<Part>) -> Vec<Part> {
    let mut of_call = None;
    let mut opened = Vec::with_capacity(parts.len());
    for mut part in parts {
        if let Part::RedactedThinking { data } = &part
            && let Some(text) = STANDARD.decode(data).ok().and_then(|bytes| String::from_utf8(bytes).ok())
        {
            if let Some(signature) = text.strip_prefix(CALL_SIGNATURE_PREFIX) {
                of_call = Some(signature.to_owned());
                continue;
            }
            if let Some(signature) = text.strip_prefix(TEXT_SIGNATURE_PREFIX) {
                part = Part::Signature(signature.to_owned());
            }
        }
        if let Part::ToolCall(call) = &mut part {
            call.signature = of_call.take();
        }
        opened.push(part);
    }
    opened
}
