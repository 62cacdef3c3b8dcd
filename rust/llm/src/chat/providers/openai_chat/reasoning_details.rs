//! What `OpenRouter` says of thoughts besides their words (`reasoning_details`): its models want it back as it was.

use serde_json::{Value, value::RawValue};

use crate::chat::event::{EventSink, ResponseEvent};

/// How it stands in the place of a signature, which every dialect has and every client gives back unread.
const SIGNATURE_PREFIX: &str = "reasoning_details:";
/// What a stream says word by word.
const TEXT_KEYS: [&str; 2] = ["text", "summary"];

/// What came of them, and was not told yet.
#[derive(Debug, Default)]
pub struct ReasoningDetails(Vec<Value>);

impl ReasoningDetails {
    /// More of them; what they say in words. In a stream, words go on where they were.
    pub fn append(&mut self, more: &RawValue, is_whole: bool) -> String {
        let more: Vec<Value> = serde_json::from_str(more.get()).unwrap_or_default();
        let words = more.iter().flat_map(|one| TEXT_KEYS.iter().filter_map(|key| one[key].as_str())).collect();
        for one in more {
            match self.0.last_mut().filter(|last| !is_whole && continues_entry(last, &one)) {
                Some(last) => merge_into_entry(last, one),
                None => self.0.push(one),
            }
        }
        words
    }

    pub fn emit_signature(&mut self, taker: &mut dyn EventSink) {
        if !self.0.is_empty() {
            let json = Value::from(std::mem::take(&mut self.0));
            taker.push_event(ResponseEvent::ThinkingSignature(&format!("{SIGNATURE_PREFIX}{json}")));
        }
    }
}

fn continues_entry(last: &Value, more: &Value) -> bool {
    let is_worded = TEXT_KEYS.iter().any(|key| last[key].is_string());
    is_worded && ["type", "index", "id"].iter().all(|key| last[key] == more[key] || more[key].is_null())
}

fn merge_into_entry(last: &mut Value, more: Value) {
    let (Some(last), Value::Object(more)) = (last.as_object_mut(), more) else { return };
    for (key, value) in more {
        match (last.get_mut(&key), value) {
            (Some(Value::String(words)), Value::String(more)) if TEXT_KEYS.contains(&key.as_str()) => {
                words.push_str(&more)
            }
            (Some(known), Value::Null) if !known.is_null() => (),
            (_, value) => drop(last.insert(key, value)),
        }
    }
}

/// Whether what stands in the place of a signature is this.
pub fn is_encoded_in(signature: &str) -> bool {
    signature.starts_with(SIGNATURE_PREFIX)
}

/// Those that stand in the place of a signature.
pub fn decode_signature(signature: &str) -> Option<Vec<Value>> {
    serde_json::from_str(signature.strip_prefix(SIGNATURE_PREFIX)?).ok()
}
