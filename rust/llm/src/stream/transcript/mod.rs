//! Transcript of a stream: the content that the client has received so far. Decides if another target can resume the
//! stream, and builds the resume request.

pub(crate) mod response_output;

use bytes::Bytes;
use serde_json::{Value, json};

use super::sse::Splitter;
pub use crate::stream::transcript::response_output::{OpenMessage, ResponseOutput};
use crate::{api_format::format::ApiFormat, json::edit, operation::Operation};

/// Maximum size of one event. A stream with a longer event is not resumed.
const MAX_EVENT_BYTES: usize = 1024 * 1024;

/// Formats of the streams that can be resumed. They differ in where events carry their text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFormat {
    Chat,
    Completions,
    Messages,
    Responses,
}

impl StreamFormat {
    pub fn for_operation(operation: Operation, api_format: ApiFormat) -> Option<Self> {
        match (operation, api_format) {
            (Operation::ChatComplete, ApiFormat::OpenAi) => Some(Self::Chat),
            (Operation::Complete, ApiFormat::OpenAi) => Some(Self::Completions),
            (Operation::Messages, ApiFormat::Anthropic) => Some(Self::Messages),
            (Operation::CreateModelResponse, ApiFormat::OpenAi) => Some(Self::Responses),
            _ => None,
        }
    }

    /// Returns the name of the request field that holds the conversation.
    fn conversation_field(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages => "messages",
            Self::Completions => "prompt",
            Self::Responses => "input",
        }
    }
}

/// Request that asks a target for the rest of a response.
#[derive(Debug)]
pub struct ResumeRequest {
    pub body: Vec<u8>,
    /// Assistant text at the end of the conversation; empty if the conversation does not end with such text.
    pub prefill: String,
}

// Reasons why no other target can resume the stream:
const TOOL_CALLED: &str = "a tool was called";
const SEVERAL_CHOICES: &str = "it has several choices";
const ALREADY_ENDED: &str = "it has ended";
const ERROR_REPORTED: &str = "it reported an error";
const NOT_ONLY_TEXT: &str = "it contains more than text";
const DURING_REASONING: &str = "it broke off during reasoning";

/// Records the text of a response. A stream can be resumed only if it is plain text, or text after reasoning that has
/// ended.
#[derive(Debug)]
pub struct Transcript {
    format: StreamFormat,
    splitter: Splitter,
    text: String,
    id: String,
    has_started: bool,
    is_thinking: bool,
    /// Received content that a resume request cannot express, if any.
    resume_obstacle: Option<&'static str>,
    open_block: Option<u64>,
    block_count: u64,
    /// Output of the response so far; only for the responses API.
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

    /// Response id that the client has received.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn has_started(&self) -> bool {
        self.has_started
    }

    /// Returns true if the text ends in whitespace that the resumed stream may repeat. The resume request trims that
    /// whitespace, except in completion prompts, which are continued verbatim.
    pub fn ends_in_space(&self) -> bool {
        self.format != StreamFormat::Completions && self.text.ends_with(char::is_whitespace)
    }

    /// Returns the index of the message block that has started but not ended.
    pub fn open_block(&self) -> Option<u64> {
        self.open_block
    }

    /// Returns the number of message blocks that have started.
    pub fn block_count(&self) -> u64 {
        self.block_count
    }

    pub fn output(&self) -> &ResponseOutput {
        &self.output
    }

    /// Returns the number of buffered bytes.
    pub fn buffered_bytes(&self) -> usize {
        self.text.len() + self.output.buffered_bytes()
    }

    /// Returns the reason why the stream cannot be resumed; `None` if it can be.
    pub fn resume_obstacle(&self) -> Option<&'static str> {
        self.resume_obstacle.or(self.is_thinking.then_some(DURING_REASONING))
    }

    /// Returns true if no text was received. The resumed response then starts from the beginning.
    pub fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// Records events that the client has received.
    pub fn record_events(&mut self, events: Bytes) {
        let read: Vec<_> = self.splitter.push(events).collect();
        for event in read {
            let Ok(event) = event else { return self.set_obstacle(NOT_ONLY_TEXT) };
            let Some(value) = event.data().and_then(|data| serde_json::from_slice::<Value>(&data).ok()) else {
                continue;
            };
            match self.format {
                StreamFormat::Chat | StreamFormat::Completions => self.record_chat_chunk(&value),
                StreamFormat::Messages => self.record_messages_api_event(&value),
                StreamFormat::Responses => self.record_responses_api_event(&value),
            }
        }
    }

    /// Records why the stream cannot be resumed. Only the first reason is stored, because it is the one that is
    /// reported.
    fn set_obstacle(&mut self, reason: &'static str) {
        self.resume_obstacle.get_or_insert(reason);
    }

    fn record_chat_chunk(&mut self, chunk: &Value) {
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
            // Reasoning has no end marker of its own: it ends when the answer text begins.
            ("content", Value::String(text)) => {
                self.is_thinking = false;
                self.text += text;
            }
            ("reasoning_content" | "reasoning" | "reasoning_details", _) => self.is_thinking = true,
            ("tool_calls" | "function_call", _) => self.set_obstacle(TOOL_CALLED),
            _ => self.set_obstacle(NOT_ONLY_TEXT),
        }
    }

    fn record_messages_api_event(&mut self, event: &Value) {
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

    fn record_responses_api_event(&mut self, event: &Value) {
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

    /// Builds the request that resumes the stream: the client's request, with the received text as an assistant
    /// prefill. `None` if the conversation of the request cannot be extended.
    pub fn build_resume_request(&self, body: &[u8]) -> Option<ResumeRequest> {
        // Some models reject a prefill that ends in whitespace.
        let received = self.text.trim_end();
        if received.is_empty() {
            return Some(ResumeRequest { body: body.to_vec(), prefill: String::new() });
        }
        let key = self.format.conversation_field();
        let mut picked = edit::pick_values(body, &[key.to_owned(), "echo".to_owned()]).into_iter();
        let mut messages = match (picked.next()??, picked.next()?) {
            // Requests with `echo` are not resumed here, because their recorded text already contains the prompt.
            (Value::String(prompt), None | Some(Value::Bool(false))) if self.format == StreamFormat::Completions => {
                let body = edit::set_fields(body, &[], &[edit::json_field(key, &json!(prompt + &self.text))]).ok()?;
                return Some(ResumeRequest { body, prefill: String::new() });
            }
            (Value::Array(messages), _) if self.format != StreamFormat::Completions => messages,
            (Value::String(text), _) if self.format == StreamFormat::Responses => {
                vec![json!({"role": "user", "content": text})]
            }
            _ => return None,
        };
        let beginning = match messages.last_mut() {
            // The client sent an assistant prefill of its own.
            Some(last) if last["role"] == "assistant" => {
                let combined = last["content"].as_str()?.to_owned() + received;
                last["content"] = json!(combined);
                combined
            }
            _ => {
                messages.push(json!({"role": "assistant", "content": received}));
                received.to_owned()
            }
        };
        let body = edit::set_fields(body, &[], &[edit::json_field(key, &Value::Array(messages))]).ok()?;
        Some(ResumeRequest { body, prefill: beginning })
    }
}
