//! Response shapes of the providers on the wire, complete and streamed.

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

/// Provider whose API a path belongs to.
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

    /// Returns the status and the body of the error that a provider out of capacity sends.
    pub fn overloaded_error(self) -> (u32, Value) {
        match self {
            Self::OpenAi => (503, openai::overloaded_error()),
            Self::Anthropic => (529, anthropic::error_body(529, "Overloaded")),
            Self::Gemini => (503, gemini::error_body(503, "The model is overloaded.")),
            Self::Bedrock => (503, bedrock::error_body("Too many connections, please wait.")),
            Self::Cohere => (503, cohere::error_body("The model is overloaded.")),
        }
    }

    /// Returns the header lines that the provider adds to an error response.
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

    /// Returns the header lines that the provider adds to every response.
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

/// Inputs from which a response is rendered.
#[derive(Clone, Debug)]
pub struct ResponseContext<'a> {
    pub model: &'a str,
    pub include_usage: bool,
    pub behaviour: &'a Behaviour,
    pub created: u64,
    /// True if the request contains a tool result.
    pub has_tool_result: bool,
}

impl ResponseContext<'_> {
    /// Returns the name of the tool to call and its arguments as JSON text.
    pub fn tool_call(&self) -> Option<(&str, &str)> {
        let name = self.behaviour.call.as_deref().filter(|_| !self.has_tool_result)?;
        Some((name, self.behaviour.arguments.as_deref().unwrap_or("{}")))
    }

    /// Like `tool_call`, with the arguments parsed; invalid JSON becomes null.
    pub fn tool_call_with_input(&self) -> Option<(&str, Value)> {
        let (name, arguments) = self.tool_call()?;
        Some((name, serde_json::from_str(arguments).unwrap_or_default()))
    }
}

/// Response shape of an endpoint that generates text, complete or streamed.
pub trait ResponseShape: StreamShape + FaultEvents {
    fn family(&self) -> ProviderFamily;
    fn complete_body(&self, context: &ResponseContext<'_>, text: &str) -> Value;

    /// Returns the provider's validation error for a request; `None` if it is valid or the provider does not validate
    /// it.
    fn validation_error(&self, _body: &Value) -> Option<String> {
        None
    }
}

/// Events of a stream that ends well.
pub trait StreamShape {
    /// Events before the first chunk.
    fn opening_events(&self, context: &ResponseContext<'_>) -> String;
    fn chunk_event(&self, context: &ResponseContext<'_>, text: &str) -> String;
    /// Events between the last chunk and the end event.
    fn closing_events(&self, context: &ResponseContext<'_>) -> String;
    /// Event that marks the end of the stream.
    fn end_event(&self, context: &ResponseContext<'_>) -> String;

    /// Encodes the text of a stream in the provider's binary framing, if it has one.
    fn encode_frames(&self, events: &[u8]) -> Vec<u8> {
        events.to_vec()
    }

    fn stream_content_type(&self) -> &'static str {
        "text/event-stream; charset=utf-8"
    }
}

/// Events that faults add to a stream.
pub trait FaultEvents {
    fn ping_event(&self) -> &'static str;
    fn error_event(&self) -> String;
    /// Event that breaks off in the middle of its JSON.
    fn malformed_event(&self) -> &'static str;
}

const CHUNK_TEXTS: [&str; 8] = ["Hello ", "from ", "the ", "pretend ", "provider: ", "all ", "is ", "well. "];

/// Returns the texts of a stream's chunks, which repeat in this order.
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

/// Returns the text of a complete response, equal to the concatenated chunks of the stream.
pub fn complete_text(behaviour: &Behaviour) -> String {
    chunk_texts(behaviour).iter().cycle().take(behaviour.chunks as usize).map(String::as_str).collect()
}

/// Returns filler text of `size` bytes.
pub fn filler_text(size: usize) -> String {
    pad_text(String::new(), size)
}

fn pad_text(mut text: String, size: usize) -> String {
    const FILLER_TEXT: &str = "pretend text ";
    let missing = size.saturating_sub(text.len());
    text += &FILLER_TEXT.repeat(missing.div_ceil(FILLER_TEXT.len()))[..missing];
    text
}
