//! The dialects that callers and providers speak, what is read of a request, and how errors are said in each.

pub mod anthropic_messages;
mod background;
pub mod bedrock;
pub mod gemini;
pub(crate) mod image_units;
pub mod openai_chat;
pub(crate) mod secondary_models;

pub use crate::api_format::image_units::{Drawing, Drawn};
pub use crate::api_format::secondary_models::beside;
pub use crate::http_form::form::Form;
pub use crate::http_form::upload::Upload;
pub use crate::json::lines::{Lines, TooLong};
pub use crate::json::peek::{Peek, peek};
pub use crate::json::scan::{MAX_DEPTH, PeekError, is_closed};
pub use background::begun;

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
        Dialect::OpenAi => openai_chat::error_body(failure),
        Dialect::Anthropic => anthropic_messages::error_body(failure),
        Dialect::Gemini => gemini::error_body(failure),
        Dialect::Bedrock => bedrock::error_body(failure),
    }
}

/// An error as one event or frame of a stream.
pub fn error_event(dialect: Dialect, failure: &Failure) -> Vec<u8> {
    match dialect {
        Dialect::OpenAi => openai_chat::error_event(failure),
        Dialect::Anthropic => anthropic_messages::error_event(failure),
        Dialect::Gemini => gemini::error_event(failure),
        Dialect::Bedrock => bedrock::error_event(failure),
    }
}
