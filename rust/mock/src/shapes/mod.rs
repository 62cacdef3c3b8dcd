//! What the providers' answers look like on the wire, whole and streamed.

pub mod anthropic;
pub mod bedrock;
pub mod cohere;
pub mod gemini;
pub mod objects;
pub mod openai;
pub mod responses;

use serde_json::Value;

use crate::behaviour::Behaviour;
use crate::steps::TIMESTAMP_PLACEHOLDER;

/// The provider whose manners a path has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderFamily {
    OpenAi,
    Anthropic,
    Gemini,
    Bedrock,
    Cohere,
}

impl ProviderFamily {
    pub fn from_path(path: &str) -> Self {
        match path {
            _ if path.starts_with("/v1/messages") => Self::Anthropic,
            _ if path.contains("/models/") && path.contains(':') => Self::Gemini,
            _ if path.starts_with("/model/") => Self::Bedrock,
            "/v2/chat" | "/v2/embed" | "/v2/rerank" => Self::Cohere,
            _ => Self::OpenAi,
        }
    }

    pub fn error_body(self, status: u32, message: &str) -> Value {
        match self {
            Self::OpenAi => openai::error_body(status, message),
            Self::Anthropic => anthropic::error_body(status, message),
            Self::Gemini => gemini::error_body(status, message),
            Self::Bedrock => bedrock::error_body(message),
            Self::Cohere => cohere::error_body(message),
        }
    }

    /// The error that a provider out of capacity sends: its status and its message.
    pub fn overloaded_error(self) -> (u32, Value) {
        match self {
            Self::OpenAi => (503, openai::overloaded_error()),
            Self::Anthropic => (529, anthropic::error_body(529, "Overloaded")),
            Self::Gemini => (503, gemini::error_body(503, "The model is overloaded.")),
            Self::Bedrock => (503, bedrock::error_body("Too many connections, please wait.")),
            Self::Cohere => (503, cohere::error_body("The model is overloaded.")),
        }
    }

    /// Headers that the provider puts on an error.
    pub fn error_headers(self, status: u32) -> &'static str {
        match (self, status) {
            (Self::Bedrock, 401 | 403) => "x-amzn-errortype: AccessDeniedException\r\n",
            (Self::Bedrock, 429) => "x-amzn-errortype: ThrottlingException\r\n",
            (Self::Bedrock, 503) => "x-amzn-errortype: ServiceUnavailableException\r\n",
            (Self::Bedrock, 500..) => "x-amzn-errortype: InternalServerException\r\n",
            (Self::Bedrock, 400..) => "x-amzn-errortype: ValidationException\r\n",
            _ => "",
        }
    }

    /// Headers that the provider puts on every answer.
    pub fn response_headers(self) -> &'static str {
        match self {
            Self::OpenAi => {
                "x-request-id: req_0000000000000000\r\nopenai-version: 2020-10-01\r\nopenai-processing-ms: 1\r\n"
            }
            Self::Anthropic => "request-id: req_0000000000000000\r\nanthropic-organization-id: org-mock\r\n",
            Self::Gemini => "server-timing: gfet4t7; dur=1\r\n",
            Self::Bedrock => "x-amzn-requestid: req_0000000000000000\r\n",
            Self::Cohere => "x-debug-trace-id: req_0000000000000000\r\n",
        }
    }
}

/// What an answer is made from.
#[derive(Clone, Debug)]
pub struct ResponseContext<'a> {
    pub model: &'a str,
    pub include_usage: bool,
    pub behaviour: &'a Behaviour,
    pub created: u64,
    /// The request brings what a tool gave back.
    pub has_tool_result: bool,
}

impl ResponseContext<'_> {
    /// The tool that is called, and with what.
    pub fn tool_call(&self) -> Option<(&str, &str)> {
        let name = self.behaviour.call.as_deref().filter(|_| !self.has_tool_result)?;
        Some((name, self.behaviour.arguments.as_deref().unwrap_or("{}")))
    }

    /// The same as a value; what is no JSON is nothing.
    pub fn tool_call_with_input(&self) -> Option<(&str, Value)> {
        let (name, arguments) = self.tool_call()?;
        Some((name, serde_json::from_str(arguments).unwrap_or_default()))
    }
}

/// The generating endpoints: text whole, or text in pieces.
pub trait ResponseShape {
    fn family(&self) -> ProviderFamily;
    fn complete_body(&self, ask: &ResponseContext<'_>, text: &str) -> Value;
    /// Everything before the first piece.
    fn opening_events(&self, ask: &ResponseContext<'_>) -> String;
    fn chunk_event(&self, ask: &ResponseContext<'_>, text: &str) -> String;
    /// Everything between the last piece and the mark of the end.
    fn closing_events(&self, ask: &ResponseContext<'_>) -> String;
    /// The mark of the end.
    fn end_event(&self, ask: &ResponseContext<'_>) -> String;
    fn ping_event(&self) -> &'static str;
    fn error_event(&self) -> String;
    /// An event that breaks off in the middle of its JSON.
    fn malformed_event(&self) -> &'static str;

    /// What is wrong with a request, where the provider looks so closely.
    fn validation_error(&self, _body: &Value) -> Option<String> {
        None
    }

    /// Turns what a stream says into what goes on the wire, where that is not text.
    fn encode_frames(&self, said: &[u8]) -> Vec<u8> {
        said.to_vec()
    }

    fn stream_content_type(&self) -> &'static str {
        "text/event-stream; charset=utf-8"
    }
}

const CHUNK_TEXTS: [&str; 8] = ["Hello ", "from ", "the ", "pretend ", "provider: ", "all ", "is ", "well. "];

/// The texts of a stream's chunks, which repeat in this order.
pub fn chunk_texts(behaviour: &Behaviour) -> Vec<String> {
    if let Some(rest) = &behaviour.rest {
        return rest.split_inclusive(' ').map(str::to_owned).collect();
    }
    match (behaviour.stamp, behaviour.chunk_bytes) {
        (true, size) => vec![pad_text(format!("{TIMESTAMP_PLACEHOLDER} "), size.unwrap_or(0))],
        (false, Some(size)) => vec![pad_text(String::new(), size)],
        (false, None) => CHUNK_TEXTS.map(str::to_owned).to_vec(),
    }
}

/// The text of a whole answer: what the stream's chunks come to.
pub fn complete_text(behaviour: &Behaviour) -> String {
    chunk_texts(behaviour).iter().cycle().take(behaviour.chunks as usize).map(String::as_str).collect()
}

/// Text of a certain length.
pub fn filler_text(size: usize) -> String {
    pad_text(String::new(), size)
}

fn pad_text(mut text: String, size: usize) -> String {
    const FILLER_TEXT: &str = "pretend text ";
    let wanted = size.saturating_sub(text.len());
    text += &FILLER_TEXT.repeat(wanted.div_ceil(FILLER_TEXT.len()))[..wanted];
    text
}
