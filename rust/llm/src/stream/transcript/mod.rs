//! What a stream has said so far: whether another model can go on from there, and how it is asked to.

pub(crate) mod response_output;

use bytes::Bytes;
use serde_json::{Value, json};

use super::sse::Splitter;
pub use crate::stream::transcript::response_output::{OpenMessage, ResponseOutput};
use crate::{api_format::ApiFormat, json::edit, operation::Operation};

/// A stream with a longer event is not continued.
const MAX_EVENT_BYTES: usize = 1024 * 1024;

/// The streams that can be gone on from, by how they say their text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFormat {
    Chat,
    Completions,
    Messages,
    Responses,
}

impl StreamFormat {
    pub fn for_operation(operation: Operation, dialect: ApiFormat) -> Option<Self> {
        match (operation, dialect) {
            (Operation::ChatComplete, ApiFormat::OpenAi) => Some(Self::Chat),
            (Operation::Complete, ApiFormat::OpenAi) => Some(Self::Completions),
            (Operation::Messages, ApiFormat::Anthropic) => Some(Self::Messages),
            (Operation::CreateModelResponse, ApiFormat::OpenAi) => Some(Self::Responses),
            _ => None,
        }
    }

    /// Where a request has what was said before.
    fn conversation_field(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages => "messages",
            Self::Completions => "prompt",
            Self::Responses => "input",
        }
    }
}

/// A request to say the rest.
#[derive(Debug)]
pub struct ResumeRequest {
    pub body: Vec<u8>,
    /// With what the conversation ends; empty where it does not end with a beginning.
    pub prefill: String,
}

/// Why nobody else can say the rest.
const TOOL_CALLED: &str = "a tool was called";
const SEVERAL_CHOICES: &str = "it gives several choices";
const ALREADY_ENDED: &str = "it has ended";
const ERROR_REPORTED: &str = "it told of an error";
const NOT_ONLY_TEXT: &str = "it holds more than text";
const DURING_REASONING: &str = "it broke off within a thought";

/// The text of an answer, as long as it is nothing but text, or text after a thought that has ended.
#[derive(Debug)]
pub struct Transcript {
    format: StreamFormat,
    splitter: Splitter,
    text: String,
    id: String,
    has_started: bool,
    is_thinking: bool,
    /// What there was that cannot be said again.
    resume_obstacle: Option<&'static str>,
    open_block: Option<u64>,
    block_count: u64,
    /// Of a response.
    output: ResponseOutput,
}

impl Transcript {
    pub fn new(format: StreamFormat) -> Self {
        Self {
            format,
            splitter: Splitter::new(MAX_EVENT_BYTES),
            text: String::new(),
            id: String::new(),
            has_started: false,
            is_thinking: false,
            resume_obstacle: None,
            open_block: None,
            block_count: 0,
            output: ResponseOutput::default(),
        }
    }

    pub fn format(&self) -> StreamFormat {
        self.format
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// By which the caller knows the answer.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn has_started(&self) -> bool {
        self.has_started
    }

    /// Whether the space at its end is one that is said again: a prompt is gone on from to the letter.
    pub fn ends_in_space(&self) -> bool {
        self.format != StreamFormat::Completions && self.text.ends_with(char::is_whitespace)
    }

    /// The block of a message that has begun and not ended.
    pub fn open_block(&self) -> Option<u64> {
        self.open_block
    }

    /// How many blocks there were.
    pub fn block_count(&self) -> u64 {
        self.block_count
    }

    pub fn output(&self) -> &ResponseOutput {
        &self.output
    }

    /// How many bytes of it are remembered.
    pub fn buffered_bytes(&self) -> usize {
        self.text.len() + self.output.buffered_bytes()
    }

    /// Why nobody else could say the rest, if so.
    pub fn resume_obstacle(&self) -> Option<&'static str> {
        self.resume_obstacle.or(self.is_thinking.then_some(DURING_REASONING))
    }

    /// Nothing was said: whoever goes on begins anew.
    pub fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// Takes what the caller got.
    pub fn record_events(&mut self, events: Bytes) {
        let read: Vec<_> = self.splitter.push(events).collect();
        for event in read {
            let Ok(event) = event else { return self.set_obstacle(NOT_ONLY_TEXT) };
            let Some(value) = event.data().and_then(|data| serde_json::from_slice::<Value>(&data).ok()) else {
                continue;
            };
            match self.format {
                StreamFormat::Chat | StreamFormat::Completions => self.record_chunk(&value),
                StreamFormat::Messages => self.record_message_event(&value),
                StreamFormat::Responses => self.record_response_event(&value),
            }
        }
    }

    /// The first obstacle is the one that is told.
    fn set_obstacle(&mut self, because: &'static str) {
        self.resume_obstacle.get_or_insert(because);
    }

    fn record_chunk(&mut self, chunk: &Value) {
        if let (true, Some(id)) = (self.id.is_empty(), chunk["id"].as_str()) {
            id.clone_into(&mut self.id);
        }
        if !chunk["error"].is_null() {
            self.set_obstacle(ERROR_REPORTED);
        }
        for choice in chunk["choices"].as_array().into_iter().flatten() {
            self.has_started = true;
            if choice["index"].as_u64().is_some_and(|index| index > 0) {
                self.set_obstacle(SEVERAL_CHOICES);
            }
            self.text += choice["text"].as_str().unwrap_or_default();
            for (key, value) in choice["delta"].as_object().into_iter().flatten() {
                self.record_delta(key, value);
            }
            if choice["finish_reason"].is_string() {
                self.set_obstacle(ALREADY_ENDED);
            }
        }
    }

    fn record_delta(&mut self, key: &str, value: &Value) {
        match (key, value) {
            ("role", _) | (_, Value::Null) => (),
            (_, Value::String(text)) if text.is_empty() => (),
            // A thought has no end of its own: it is over when the answer begins.
            ("content", Value::String(text)) => {
                self.is_thinking = false;
                self.text += text;
            }
            ("reasoning_content" | "reasoning" | "reasoning_details", _) => self.is_thinking = true,
            ("tool_calls" | "function_call", _) => self.set_obstacle(TOOL_CALLED),
            _ => self.set_obstacle(NOT_ONLY_TEXT),
        }
    }

    fn record_message_event(&mut self, event: &Value) {
        let index = event["index"].as_u64();
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => self.has_started = true,
            "content_block_start" => {
                self.open_block = index;
                self.block_count = index.map_or(self.block_count, |index| index.saturating_add(1));
                match event["content_block"]["type"].as_str().unwrap_or_default() {
                    "text" => self.record_text(&event["content_block"]),
                    "thinking" | "redacted_thinking" => self.is_thinking = true,
                    kind if kind.contains("tool") => self.set_obstacle(TOOL_CALLED),
                    _ => self.set_obstacle(NOT_ONLY_TEXT),
                }
            }
            "content_block_delta" if self.is_thinking => (),
            "content_block_delta" => self.record_text(&event["delta"]),
            "content_block_stop" => (self.open_block, self.is_thinking) = (None, false),
            "message_delta" if event["delta"]["stop_reason"].is_string() => self.set_obstacle(ALREADY_ENDED),
            "error" => self.set_obstacle(ERROR_REPORTED),
            _ => (),
        }
    }

    fn record_text(&mut self, part: &Value) {
        match part["text"].as_str() {
            Some(text) => self.text += text,
            None => self.set_obstacle(NOT_ONLY_TEXT),
        }
    }

    fn record_response_event(&mut self, event: &Value) {
        let kind = event["type"].as_str().unwrap_or_default();
        if let (true, Some(id)) = (self.id.is_empty(), event["response"]["id"].as_str()) {
            id.clone_into(&mut self.id);
        }
        self.has_started |= kind.starts_with("response.");
        match kind {
            "response.output_item.added" => match event["item"]["type"].as_str().unwrap_or_default() {
                "message" => (),
                "reasoning" => self.is_thinking = true,
                kind if kind.ends_with("_call") => self.set_obstacle(TOOL_CALLED),
                _ => self.set_obstacle(NOT_ONLY_TEXT),
            },
            "response.output_item.done" => self.is_thinking = false,
            "response.content_part.added" if event["part"]["type"] != "output_text" && !self.is_thinking => {
                self.set_obstacle(NOT_ONLY_TEXT);
            }
            "response.output_text.delta" => self.text += event["delta"].as_str().unwrap_or_default(),
            "response.output_text.annotation.added" => self.set_obstacle(NOT_ONLY_TEXT),
            "response.completed" | "response.incomplete" => self.set_obstacle(ALREADY_ENDED),
            "response.failed" | "error" => self.set_obstacle(ERROR_REPORTED),
            _ => (),
        }
        self.output.record_event(kind, event);
    }

    /// The request again, with what was said as the beginning of its answer. `None` where it has no conversation.
    pub fn build_resume_request(&self, body: &[u8]) -> Option<ResumeRequest> {
        // Some models refuse a beginning that ends in space.
        let said = self.text.trim_end();
        if said.is_empty() {
            return Some(ResumeRequest { body: body.to_vec(), prefill: String::new() });
        }
        let key = self.format.conversation_field();
        let mut picked = edit::pick_values(body, &[key.to_owned(), "echo".to_owned()]).into_iter();
        let mut messages = match (picked.next()??, picked.next()?) {
            // An echo was part of what was said.
            (Value::String(prompt), None | Some(Value::Bool(false))) if self.format == StreamFormat::Completions => {
                let body = edit::set_fields(body, &[], &[edit::json_field(key, &json!(prompt + &self.text))]).ok()?;
                return Some(ResumeRequest { body, prefill: String::new() });
            }
            (Value::Array(messages), _) if self.format != StreamFormat::Completions => messages,
            (Value::String(question), _) if self.format == StreamFormat::Responses => {
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
        Some(ResumeRequest { body, prefill: beginning })
    }
}
