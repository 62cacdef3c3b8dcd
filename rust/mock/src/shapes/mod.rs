//! What the providers' answers look like on the wire, whole and streamed.

pub mod anthropic;
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
}

impl Family {
    pub fn of(path: &str) -> Self {
        if path.starts_with("/v1/messages") { Self::Anthropic } else { Self::OpenAi }
    }

    pub fn error(self, status: u32, message: &str) -> Value {
        match self {
            Self::OpenAi => openai::error(status, message),
            Self::Anthropic => anthropic::error(status, message),
        }
    }

    /// The error that a provider out of capacity sends: its status and its message.
    pub fn overloaded(self) -> (u32, Value) {
        match self {
            Self::OpenAi => (503, openai::overloaded()),
            Self::Anthropic => (529, anthropic::error(529, "Overloaded")),
        }
    }

    /// Headers that the provider puts on every answer.
    pub fn headers(self) -> &'static str {
        match self {
            Self::OpenAi => {
                "x-request-id: req_0000000000000000\r\nopenai-version: 2020-10-01\r\nopenai-processing-ms: 1\r\n"
            }
            Self::Anthropic => "request-id: req_0000000000000000\r\nanthropic-organization-id: org-mock\r\n",
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
    fn done(&self) -> &'static str;
    fn ping(&self) -> &'static str;
    fn error_event(&self) -> String;
    /// An event that breaks off in the middle of its JSON.
    fn malformed(&self) -> &'static str;
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
