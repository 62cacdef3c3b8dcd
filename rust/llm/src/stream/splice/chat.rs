//! Chunks of a second chat or completion: the id of the first, no second role, usage added up.

use serde_json::{Value, json};

use super::{Joint, Overlap, Said, Spent, add, characters};

#[derive(Debug)]
pub(super) struct Chat {
    spent: Spent,
    /// Of the first stream.
    id: String,
    has_begun: bool,
    overlap: Overlap,
    /// So many characters were said before.
    before: i64,
}

impl Chat {
    pub fn after(said: &Said, spent: Spent, overlap: Overlap) -> Self {
        let before = characters(said.text());
        Self { spent, id: said.id().to_owned(), has_begun: said.has_begun(), overlap, before }
    }
}

impl Joint for Chat {
    fn pass(&mut self, mut chunk: Value) -> Vec<u8> {
        if !self.id.is_empty() {
            chunk["id"] = json!(self.id);
        }
        let mut says_something = chunk["choices"].as_array().is_none_or(Vec::is_empty);
        for choice in chunk["choices"].as_array_mut().into_iter().flatten() {
            says_something |= choice["finish_reason"].is_string();
            says_something |= choice["text"].as_str().is_some_and(|text| !text.is_empty());
            let Some(Value::Object(delta)) = choice.get_mut("delta") else { continue };
            if self.has_begun {
                delta.remove("role");
            }
            if let Some(Value::String(text)) = delta.get_mut("content") {
                self.overlap.strip(text);
            }
            if let Some(annotations) = delta.get_mut("annotations") {
                self.overlap.place(annotations, self.before);
            }
            says_something |= delta.values().any(|value| !value.is_null() && value != "");
        }
        if !says_something && self.has_begun {
            return Vec::new();
        }
        self.has_begun = true;
        if chunk["usage"].is_object() {
            self.spent.add_to(&mut chunk["usage"], ["prompt_tokens", "completion_tokens"]);
            add(&mut chunk["usage"]["total_tokens"], self.spent.total());
        }
        format!("data: {chunk}\n\n").into_bytes()
    }
}
