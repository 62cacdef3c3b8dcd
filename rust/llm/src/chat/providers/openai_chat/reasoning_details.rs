//! What `OpenRouter` says of thoughts besides their words (`reasoning_details`): its models want it back as it was.

use serde_json::{Value, value::RawValue};

use crate::chat::event::{Piece, Taker};

/// How it stands in the place of a signature, which every dialect has and every client gives back unread.
const SEAL: &str = "reasoning_details:";
/// What a stream says word by word.
const WORDS: [&str; 2] = ["text", "summary"];

/// What came of them, and was not told yet.
#[derive(Debug, Default)]
pub struct Details(Vec<Value>);

impl Details {
    /// More of them; what they say in words. In a stream, words go on where they were.
    pub fn add(&mut self, more: &RawValue, is_whole: bool) -> String {
        let more: Vec<Value> = serde_json::from_str(more.get()).unwrap_or_default();
        let words = more.iter().flat_map(|one| WORDS.iter().filter_map(|key| one[key].as_str())).collect();
        for one in more {
            match self.0.last_mut().filter(|last| !is_whole && goes_on(last, &one)) {
                Some(last) => join(last, one),
                None => self.0.push(one),
            }
        }
        words
    }

    pub fn tell(&mut self, taker: &mut dyn Taker) {
        if !self.0.is_empty() {
            let json = Value::from(std::mem::take(&mut self.0));
            taker.take(Piece::Signature(&format!("{SEAL}{json}")));
        }
    }
}

fn goes_on(last: &Value, more: &Value) -> bool {
    let is_worded = WORDS.iter().any(|key| last[key].is_string());
    is_worded && ["type", "index", "id"].iter().all(|key| last[key] == more[key] || more[key].is_null())
}

fn join(last: &mut Value, more: Value) {
    let (Some(last), Value::Object(more)) = (last.as_object_mut(), more) else { return };
    for (key, value) in more {
        match (last.get_mut(&key), value) {
            (Some(Value::String(words)), Value::String(more)) if WORDS.contains(&key.as_str()) => words.push_str(&more),
            (Some(known), Value::Null) if !known.is_null() => (),
            (_, value) => drop(last.insert(key, value)),
        }
    }
}

/// Whether what stands in the place of a signature is this.
pub fn are_in(signature: &str) -> bool {
    signature.starts_with(SEAL)
}

/// Those that stand in the place of a signature.
pub fn of(signature: &str) -> Option<Vec<Value>> {
    serde_json::from_str(signature.strip_prefix(SEAL)?).ok()
}
