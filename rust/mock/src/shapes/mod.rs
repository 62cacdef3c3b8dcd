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
use crate::steps::STAMP;

/// The provider whose manners a path has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    OpenAi,
    Anthropic,
    Gemini,
    Bedrock,
    Cohere,
}

impl Family {
    pub fn of(path: &str) -> Self {
        match path {
            _ if path.starts_with("/v1/messages") => Self::Anthropic,
            _ if path.contains("/models/") && path.contains(':') => Self::Gemini,
            _ if path.starts_with("/model/") => Self::Bedrock,
            "/v2/chat" | "/v2/embed" | "/v2/rerank" => Self::Cohere,
            _ => Self::OpenAi,
        }
    }

    pub fn error(self, status: u32, message: &str) -> Value {
        match self {
            Self::OpenAi => openai::error(status, message),
            Self::Anthropic => anthropic::error(status, message),
            Self::Gemini => gemini::error(status, message),
            Self::Bedrock => bedrock::error(message),
            Self::Cohere => cohere::error(message),
        }
    }

    /// The error that a provider out of capacity sends: its status and its message.
    pub fn overloaded(self) -> (u32, Value) {
        match self {
            Self::OpenAi => (503, openai::overloaded()),
            Self::Anthropic => (529, anthropic::error(529, "Overloaded")),
            Self::Gemini => (503, gemini::error(503, "The model is overloaded.")),
            Self::Bedrock => (503, bedrock::error("Too many connections, please wait.")),
            Self::Cohere => (503, cohere::error("The model is overloaded.")),
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
    pub fn headers(self) -> &'static str {
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
pub struct Ask<'a> {
    pub model: &'a str,
    pub include_usage: bool,
    pub behaviour: &'a Behaviour,
    pub created: u64,
    /// The request brings what a tool gave back.
    pub answers_call: bool,
}

impl Ask<'_> {
    /// The tool that is called, and with what.
    pub fn call(&self) -> Option<(&str, &str)> {
        let name = self.behaviour.call.as_deref().filter(|_| !self.answers_call)?;
        Some((name, self.behaviour.arguments.as_deref().unwrap_or("{}")))
    }

    /// The same as a value; what is no JSON is nothing.
    pub fn call_with_input(&self) -> Option<(&str, Value)> {
        let (name, arguments) = self.call()?;
        Some((name, serde_json::from_str(arguments).unwrap_or_default()))
    }
}

/// The generating endpoints: text whole, or text in pieces.
pub trait Shape {
    fn family(&self) -> Family;
    fn whole(&self, ask: &Ask<'_>, text: &str) -> Value;
    /// Everything before the first piece.
    fn opening(&self, ask: &Ask<'_>) -> String;
    fn piece(&self, ask: &Ask<'_>, text: &str) -> String;
    /// Everything between the last piece and the mark of the end.
    fn closing(&self, ask: &Ask<'_>) -> String;
    /// The mark of the end.
    fn done(&self, ask: &Ask<'_>) -> String;
    fn ping(&self) -> &'static str;
    fn error_event(&self) -> String;
    /// An event that breaks off in the middle of its JSON.
    fn malformed(&self) -> &'static str;

    /// What is wrong with a request, where the provider looks so closely.
    fn fault(&self, _body: &Value) -> Option<String> {
        None
    }

    /// Turns what a stream says into what goes on the wire, where that is not text.
    fn frame(&self, said: &[u8]) -> Vec<u8> {
        said.to_vec()
    }

    fn stream_kind(&self) -> &'static str {
        "text/event-stream; charset=utf-8"
    }
}

const WORDS: [&str; 8] = ["Hello ", "from ", "the ", "pretend ", "provider: ", "all ", "is ", "well. "];

/// The texts of a stream's chunks, which repeat in this order.
pub fn texts(behaviour: &Behaviour) -> Vec<String> {
    if let Some(rest) = &behaviour.rest {
        return rest.split_inclusive(' ').map(str::to_owned).collect();
    }
    match (behaviour.stamp, behaviour.chunk_bytes) {
        (true, size) => vec![padded(format!("{STAMP} "), size.unwrap_or(0))],
        (false, Some(size)) => vec![padded(String::new(), size)],
        (false, None) => WORDS.map(str::to_owned).to_vec(),
    }
}

/// The text of a whole answer: what the stream's chunks come to.
pub fn text(behaviour: &Behaviour) -> String {
    texts(behaviour).iter().cycle().take(behaviour.chunks as usize).map(String::as_str).collect()
}

/// Text of a certain length.
pub fn filler(size: usize) -> String {
    padded(String::new(), size)
}

fn padded(mut text: String, size: usize) -> String {
    const FILLER: &str = "pretend text ";
    let wanted = size.saturating_sub(text.len());
    text += &FILLER.repeat(wanted.div_ceil(FILLER.len()))[..wanted];
    text
}
