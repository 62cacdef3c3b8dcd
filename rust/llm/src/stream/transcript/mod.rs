//! What a stream has said so far: whether another model can go on from there, and how it is asked to.

pub(crate) mod response_output;

use bytes::Bytes;
use serde_json::{Value, json};

use super::sse::Splitter;
pub use crate::stream::transcript::response_output::{Open, Output};
use crate::{api_format::ApiFormat, json::edit, operation::Operation};

/// A stream with a longer event is not continued.
const MOST_HELD: usize = 1024 * 1024;

/// The streams that can be gone on from, by how they say their text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Chat,
    Completions,
    Messages,
    Responses,
}

impl Form {
    pub fn of(operation: Operation, dialect: ApiFormat) -> Option<Self> {
        match (operation, dialect) {
            (Operation::ChatComplete, ApiFormat::OpenAi) => Some(Self::Chat),
            (Operation::Complete, ApiFormat::OpenAi) => Some(Self::Completions),
            (Operation::Messages, ApiFormat::Anthropic) => Some(Self::Messages),
            (Operation::CreateModelResponse, ApiFormat::OpenAi) => Some(Self::Responses),
            _ => None,
        }
    }

    /// Where a request has what was said before.
    fn conversation(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages => "messages",
            Self::Completions => "prompt",
            Self::Responses => "input",
        }
    }
}

/// A request to say the rest.
#[derive(Debug)]
pub struct Again {
    pub body: Vec<u8>,
    /// With what the conversation ends; empty where it does not end with a beginning.
    pub beginning: String,
}

/// Why nobody else can say the rest.
const CALLED: &str = "a tool was called";
const CHOICES: &str = "it gives several choices";
const ENDED: &str = "it has ended";
const FAILED: &str = "it told of an error";
const MORE: &str = "it holds more than text";
const WITHIN_A_THOUGHT: &str = "it broke off within a thought";

/// The text of an answer, as long as it is nothing but text, or text after a thought that has ended.
#[derive(Debug)]
pub struct Said {
    form: Form,
    splitter: Splitter,
    text: String,
    id: String,
    has_begun: bool,
    is_thinking: bool,
    /// What there was that cannot be said again.
    obstacle: Option<&'static str>,
    open: Option<u64>,
    blocks: u64,
    /// Of a response.
    output: Output,
}

impl Said {
    pub fn new(form: Form) -> Self {
        Self {
            form,
            splitter: Splitter::new(MOST_HELD),
            text: String::new(),
            id: String::new(),
            has_begun: false,
            is_thinking: false,
            obstacle: None,
            open: None,
            blocks: 0,
            output: Output::default(),
        }
    }

    pub fn form(&self) -> Form {
        self.form
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

    /// Whether the space at its end is one that is said again: a prompt is gone on from to the letter.
    pub fn ends_in_space(&self) -> bool {
        self.form != Form::Completions && self.text.ends_with(char::is_whitespace)
    }

    /// The block of a message that has begun and not ended.
    pub fn open_block(&self) -> Option<u64> {
        self.open
    }

    /// How many blocks there were.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    pub fn output(&self) -> &Output {
        &self.output
    }

    /// How many bytes of it are remembered.
    pub fn held(&self) -> usize {
        self.text.len() + self.output.held()
    }

    /// Why nobody else could say the rest, if so.
    pub fn obstacle(&self) -> Option<&'static str> {
        self.obstacle.or(self.is_thinking.then_some(WITHIN_A_THOUGHT))
    }

    /// Nothing was said: whoever goes on begins anew.
    pub fn is_silent(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// Takes what the caller got.
    pub fn take(&mut self, events: Bytes) {
        let read: Vec<_> = self.splitter.push(events).collect();
        for event in read {
            let Ok(event) = event else { return self.stop(MORE) };
            let Some(value) = event.data().and_then(|data| serde_json::from_slice::<Value>(&data).ok()) else {
                continue;
            };
            match self.form {
                Form::Chat | Form::Completions => self.take_chunk(&value),
                Form::Messages => self.take_message_event(&value),
                Form::Responses => self.take_response_event(&value),
            }
        }
    }

    /// The first obstacle is the one that is told.
    fn stop(&mut self, because: &'static str) {
        self.obstacle.get_or_insert(because);
    }

    fn take_chunk(&mut self, chunk: &Value) {
        if let (true, Some(id)) = (self.id.is_empty(), chunk["id"].as_str()) {
            id.clone_into(&mut self.id);
        }
        if !chunk["error"].is_null() {
            self.stop(FAILED);
        }
        for choice in chunk["choices"].as_array().into_iter().flatten() {
            self.has_begun = true;
            if choice["index"].as_u64().is_some_and(|index| index > 0) {
                self.stop(CHOICES);
            }
            self.text += choice["text"].as_str().unwrap_or_default();
            for (key, value) in choice["delta"].as_object().into_iter().flatten() {
                self.take_delta(key, value);
            }
            if choice["finish_reason"].is_string() {
                self.stop(ENDED);
            }
        }
    }

    fn take_delta(&mut self, key: &str, value: &Value) {
        match (key, value) {
            ("role", _) | (_, Value::Null) => (),
            (_, Value::String(text)) if text.is_empty() => (),
            // A thought has no end of its own: it is over when the answer begins.
            ("content", Value::String(text)) => {
                self.is_thinking = false;
                self.text += text;
            }
            ("reasoning_content" | "reasoning" | "reasoning_details", _) => self.is_thinking = true,
            ("tool_calls" | "function_call", _) => self.stop(CALLED),
            _ => self.stop(MORE),
        }
    }

    fn take_message_event(&mut self, event: &Value) {
        let index = event["index"].as_u64();
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => self.has_begun = true,
            "content_block_start" => {
                self.open = index;
                self.blocks = index.map_or(self.blocks, |index| index.saturating_add(1));
                match event["content_block"]["type"].as_str().unwrap_or_default() {
                    "text" => self.take_text(&event["content_block"]),
                    "thinking" | "redacted_thinking" => self.is_thinking = true,
                    kind if kind.contains("tool") => self.stop(CALLED),
                    _ => self.stop(MORE),
                }
            }
            "content_block_delta" if self.is_thinking => (),
            "content_block_delta" => self.take_text(&event["delta"]),
            "content_block_stop" => (self.open, self.is_thinking) = (None, false),
            "message_delta" if event["delta"]["stop_reason"].is_string() => self.stop(ENDED),
            "error" => self.stop(FAILED),
            _ => (),
        }
    }

    fn take_text(&mut self, part: &Value) {
        match part["text"].as_str() {
            Some(text) => self.text += text,
            None => self.stop(MORE),
        }
    }

    fn take_response_event(&mut self, event: &Value) {
        let kind = event["type"].as_str().unwrap_or_default();
        if let (true, Some(id)) = (self.id.is_empty(), event["response"]["id"].as_str()) {
            id.clone_into(&mut self.id);
        }
        self.has_begun |= kind.starts_with("response.");
        match kind {
            "response.output_item.added" => match event["item"]["type"].as_str().unwrap_or_default() {
                "message" => (),
                "reasoning" => self.is_thinking = true,
                kind if kind.ends_with("_call") => self.stop(CALLED),
                _ => self.stop(MORE),
            },
            "response.output_item.done" => self.is_thinking = false,
            "response.content_part.added" if event["part"]["type"] != "output_text" && !self.is_thinking => {
                self.stop(MORE);
            }
            "response.output_text.delta" => self.text += event["delta"].as_str().unwrap_or_default(),
            "response.output_text.annotation.added" => self.stop(MORE),
            "response.completed" | "response.incomplete" => self.stop(ENDED),
            "response.failed" | "error" => self.stop(FAILED),
            _ => (),
        }
        self.output.take(kind, event);
    }

    /// The request again, with what was said as the beginning of its answer. `None` where it has no conversation.
    pub fn ask_again(&self, body: &[u8]) -> Option<Again> {
        // Some models refuse a beginning that ends in space.
        let said = self.text.trim_end();
        if said.is_empty() {
            return Some(Again { body: body.to_vec(), beginning: String::new() });
        }
        let key = self.form.conversation();
        let mut picked = edit::pick_values(body, &[key.to_owned(), "echo".to_owned()]).into_iter();
        let mut messages = match (picked.next()??, picked.next()?) {
            // An echo was part of what was said.
            (Value::String(prompt), None | Some(Value::Bool(false))) if self.form == Form::Completions => {
                let body = edit::set_fields(body, &[], &[edit::json_field(key, &json!(prompt + &self.text))]).ok()?;
                return Some(Again { body, beginning: String::new() });
            }
            (Value::Array(messages), _) if self.form != Form::Completions => messages,
            (Value::String(question), _) if self.form == Form::Responses => {
                vec![json!({"role": "user", "content": question})]
            }
            _ => return None,
        };
        let beginning = match messages.last_mut() {
            // The caller had begun the answer.
            Some(last) if last["role"] == "assistant" => {
                let whole = last["content"].as_str()?.to_owned() + said;
                last["content"] = json!(whole);
                whole
            }
            _ => {
                messages.push(json!({"role": "assistant", "content": said}));
                said.to_owned()
            }
        };
        let body = edit::set_fields(body, &[], &[edit::json_field(key, &Value::Array(messages))]).ok()?;
        Some(Again { body, beginning })
    }
}
