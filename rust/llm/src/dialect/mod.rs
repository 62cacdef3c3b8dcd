//! The dialects that callers and providers speak, what is read of a request, and how errors are said in each.

mod background;
pub mod batch_lines;
pub mod bedrock;
mod beside;
pub mod chat;
mod drawing;
pub mod edit;
pub mod form;
pub mod gemini;
mod lines;
pub mod messages;
mod peek;
pub(crate) mod scan;
pub mod upload;

pub use background::begun;
pub use beside::beside;
pub use drawing::{Drawing, Drawn};
pub use form::Form;
pub use lines::{Lines, TooLong};
pub use peek::{Peek, peek};
pub use scan::{MAX_DEPTH, PeekError, is_closed};
pub use upload::Upload;

/// The shape of requests, answers, streams and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    OpenAi,
    Anthropic,
    Gemini,
    Bedrock,
}

/// What went wrong, to be said in the caller's dialect.
#[derive(Debug, Clone, Copy)]
pub struct Failure<'a> {
    pub status: u16,
    /// The dialect's word for it; `None` takes the one that belongs to the status.
    pub kind: Option<&'a str>,
    pub message: &'a str,
    pub code: Option<&'a str>,
    pub request_id: Option<&'a str>,
}

/// A whole JSON error body.
pub fn error_body(dialect: Dialect, failure: &Failure) -> Vec<u8> {
    match dialect {
        Dialect::OpenAi => chat::error_body(failure),
        Dialect::Anthropic => messages::error_body(failure),
        Dialect::Gemini => gemini::error_body(failure),
        Dialect::Bedrock => bedrock::error_body(failure),
    }
}

/// An error as one event or frame of a stream.
pub fn error_event(dialect: Dialect, failure: &Failure) -> Vec<u8> {
    match dialect {
        Dialect::OpenAi => chat::error_event(failure),
        Dialect::Anthropic => messages::error_event(failure),
        Dialect::Gemini => gemini::error_event(failure),
        Dialect::Bedrock => bedrock::error_event(failure),
    }
}
