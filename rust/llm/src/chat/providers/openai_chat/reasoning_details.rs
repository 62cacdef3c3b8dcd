//! `OpenRouter`'s `reasoning_details`: structured reasoning that its models require back unchanged.

use serde_json::{Value, value::RawValue};

use crate::chat::event::{EventSink, ResponseEvent};

/// Prefix of a signature that holds encoded reasoning details. Every API format has a signature field, and clients send
/// it back unread.
const SIGNATURE_PREFIX: &str = "reasoning_details:";
/// Keys whose text a stream sends in increments.
const TEXT_KEYS: [&str; 2] = ["text", "summary"];

/// Reasoning details that were received and not emitted yet.
#[derive(Debug, Default)]
pub struct ReasoningDetails(Vec<Value>);

impl ReasoningDetails {
    /// Appends reasoning details and returns their text. In a stream, an entry may continue the last one.
    pub fn append(&mut self, more: &RawValue, is_whole: bool) -> String {
        let more: Vec<Value> = serde_json::from_str(more.get()).unwrap_or_default();
        let text = more.iter().flat_map(|item| TEXT_KEYS.iter().filter_map(|key| item[key].as_str())).collect();
        for item in more {
            match self.0.last_mut().filter(|last| !is_whole && continues_entry(last, &item)) {
                Some(last) => merge_into_entry(last, item),
                None => self.0.push(item),
            }
        }
        text
    }

    pub fn emit_signature(&mut self, sink: &mut dyn EventSink) {
        if !self.0.is_empty() {
            let json = Value::from(std::mem::take(&mut self.0));
            sink.push_event(ResponseEvent::ThinkingSignature(&format!("{SIGNATURE_PREFIX}{json}")));
        }
    }
}

fn continues_entry(last: &Value, more: &Value) -> bool {
    let has_text = TEXT_KEYS.iter().any(|key| last[key].is_string());
    has_text && ["type", "index", "id"].iter().all(|key| last[key] == more[key] || more[key].is_null())
}

fn merge_into_entry(last: &mut Value, more: Value) {
    let (Some(last), Value::Object(more)) = (last.as_object_mut(), more) else { return };
    for (key, value) in more {
        match (last.get_mut(&key), value) {
            (Some(Value::String(text)), Value::String(more)) if TEXT_KEYS.contains(&key.as_str()) => {
                text.push_str(&more);
            }
            (Some(existing), Value::Null) if !existing.is_null() => (),
            (_, value) => drop(last.insert(key, value)),
        }
    }
}

/// Returns true if the signature holds encoded reasoning details.
pub fn is_encoded_in(signature: &str) -> bool {
    signature.starts_with(SIGNATURE_PREFIX)
}

/// Decodes the reasoning details that a signature holds; `None` if it holds none.
pub fn decode_signature(signature: &str) -> Option<Vec<Value>> {
    serde_json::from_str(signature.strip_prefix(SIGNATURE_PREFIX)?).ok()
}
