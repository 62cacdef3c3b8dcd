//! Splicing of chat and completion streams. Chunks of the second stream get the id of the first stream and no second
//! role, and usage is summed up.

use serde_json::{Value, json};

use super::{EventRewriter, OverlapFilter, PriorUsage, Transcript, add_to_count, count_chars};

#[derive(Debug)]
pub(super) struct ChatRewriter {
    prior_usage: PriorUsage,
    /// Id of the first stream.
    id: String,
    has_started: bool,
    overlap: OverlapFilter,
    /// Number of characters in the text before the second stream.
    prior_chars: i64,
}

impl ChatRewriter {
    pub fn new(transcript: &Transcript, prior_usage: PriorUsage, overlap: OverlapFilter) -> Self {
        let prior_chars = count_chars(transcript.text());
        Self {
            prior_usage,
            id: transcript.id().to_owned(),
            has_started: transcript.has_started(),
            overlap,
            prior_chars,
        }
    }
}

impl EventRewriter for ChatRewriter {
    fn rewrite(&mut self, mut chunk: Value) -> Vec<u8> {
        if !self.id.is_empty() {
            chunk["id"] = json!(self.id);
        }
        let mut says_something = chunk["choices"].as_array().is_none_or(Vec::is_empty);
        for choice in chunk["choices"].as_array_mut().into_iter().flatten() {
            says_something |= choice["finish_reason"].is_string();
            says_something |= choice["text"].as_str().is_some_and(|text| !text.is_empty());
            let Some(Value::Object(delta)) = choice.get_mut("delta") else { continue };
            if self.has_started {
                delta.remove("role");
            }
            if let Some(Value::String(text)) = delta.get_mut("content") {
                self.overlap.strip_chunk(text);
            }
            if let Some(annotations) = delta.get_mut("annotations") {
                self.overlap.shift_annotations(annotations, self.prior_chars);
            }
            says_something |= delta.values().any(|value| !value.is_null() && value != "");
        }
        if !says_something && self.has_started {
            return Vec::new();
        }
        self.has_started = true;
        if chunk["usage"].is_object() {
            self.prior_usage.add_to_usage(&mut chunk["usage"], ["prompt_tokens", "completion_tokens"]);
            add_to_count(&mut chunk["usage"]["total_tokens"], self.prior_usage.total());
        }
        format!("data: {chunk}\n\n").into_bytes()
    }
}
