//! What a stream has said so far: whether another model can go on from there, and how it is asked to.

use bytes::Bytes;
use serde_json::{Value, json};

use super::sse::Splitter;
use crate::dialect::{Dialect, edit};

/// A stream with a longer event is not continued.
const MOST_HELD: usize = 1024 * 1024;

/// The text of an answer, as long as it is nothing but text.
#[derive(Debug)]
pub struct Said {
    dialect: Dialect,
    splitter: Splitter,
    text: String,
    id: String,
    has_begun: bool,
    /// There was something that cannot be said again: a call of a tool, a thought, a second choice.
    has_more: bool,
    has_ended: bool,
    open: Option<u64>,
    blocks: u64,
}

impl Said {
    pub fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            splitter: Splitter::new(MOST_HELD),
            text: String::new(),
            id: String::new(),
            has_begun: false,
            has_more: false,
            has_ended: false,
            open: None,
            blocks: 0,
        }
    }

    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// By which the caller knows the answer.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    pub fn ends_in_space(&self) -> bool {
        self.text.ends_with(char::is_whitespace)
    }

    /// The block of a message that has begun and not ended.
    pub fn open_block(&self) -> Option<u64> {
        self.open
    }

    /// How many blocks there were.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Whether somebody else could say the rest.
    pub fn is_unfinished_text(&self) -> bool {
        !self.has_more && !self.has_ended
    }

    /// Nothing was said: whoever goes on begins anew.
    pub fn is_silent(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// Takes what the caller got.
    pub fn take(&mut self, events: Bytes) {
        let read: Vec<_> = self.splitter.push(events).collect();
        for event in read {
            let Ok(event) = event else {
                self.has_more = true;
                return;
            };
            let value = event.data().and_then(|data| serde_json::from_slice::<Value>(&data).ok());
            match (value, self.dialect) {
                (Some(value), Dialect::OpenAi) => self.take_chunk(&value),
                (Some(value), Dialect::Anthropic) => self.take_message_event(&value),
                // Who reads these is not told more by others.
                (Some(_), Dialect::Gemini | Dialect::Bedrock) => self.has_more = true,
                (None, _) => (),
            }
        }
    }

    fn take_chunk(&mut self, chunk: &Value) {
        if let (true, Some(id)) = (self.id.is_empty(), chunk["id"].as_str()) {
            id.clone_into(&mut self.id);
        }
        self.has_more |= !chunk["error"].is_null();
        for choice in chunk["choices"].as_array().into_iter().flatten() {
            self.has_begun = true;
            self.has_more |= choice["index"].as_u64().is_some_and(|index| index > 0);
            self.has_ended |= choice["finish_reason"].is_string();
            for (key, value) in choice["delta"].as_object().into_iter().flatten() {
                match (key.as_str(), value) {
                    ("role", _) | (_, Value::Null) => (),
                    ("content", Value::String(text)) => self.text += text,
                    (_, Value::String(text)) if text.is_empty() => (),
                    _ => self.has_more = true,
                }
            }
        }
    }

    fn take_message_event(&mut self, event: &Value) {
        let index = event["index"].as_u64();
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => self.has_begun = true,
            "content_block_start" => {
                self.open = index;
                self.blocks = index.map_or(self.blocks, |index| index + 1);
                self.take_text(&event["content_block"], "text");
            }
            "content_block_delta" => self.take_text(&event["delta"], "text_delta"),
            "content_block_stop" => self.open = None,
            "message_delta" => self.has_ended |= event["delta"]["stop_reason"].is_string(),
            "error" => self.has_more = true,
            _ => (),
        }
    }

    fn take_text(&mut self, part: &Value, kind: &str) {
        match part["text"].as_str() {
            Some(text) if part["type"] == kind => self.text += text,
            _ => self.has_more = true,
        }
    }

    /// The request again, with what was said as the beginning of its answer. `None` where it has no messages.
    pub fn ask_again(&self, body: &[u8]) -> Option<Vec<u8>> {
        // Some models refuse a beginning that ends in space.
        let said = self.text.trim_end();
        if said.is_empty() {
            return Some(body.to_vec());
        }
        let picked = edit::pick(body, &["messages".to_owned()]).pop()??;
        let Value::Array(mut messages) = picked else { return None };
        match messages.last_mut() {
            // The caller had begun the answer.
            Some(last) if last["role"] == "assistant" => {
                let begun = last["content"].as_str()?.to_owned();
                last["content"] = json!(begun + said);
            }
            _ => messages.push(json!({"role": "assistant", "content": said})),
        }
        edit::set(body, &[], &[edit::field("messages", &Value::Array(messages))]).ok()
    }
}
