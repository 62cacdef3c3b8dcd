//! The dialects that callers and providers speak, what is read of a request, and how errors are said in each.

pub mod anthropic_messages;
mod background;
pub mod bedrock;
pub mod gemini;
pub(crate) mod image_units;
pub mod openai_chat;
pub(crate) mod secondary_models;

pub use crate::api_format::image_units::{ImageCounter, ImageParams};
pub use crate::api_format::secondary_models::secondary_models;
pub use crate::http_form::form::FormScanner;
pub use crate::http_form::upload::UploadParser;
pub use crate::json::lines::{LineSplitter, LineTooLong};
pub use crate::json::peek::{Peek, peek};
pub use crate::json::scan::{MAX_DEPTH, ScanError, is_complete_json};
pub use background::unfinished_response_id;

/// The shape of requests, answers, streams and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApiFormat {
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
    pub error_type: Option<&'a str>,
    pub message: &'a str,
    pub code: Option<&'a str>,
    pub request_id: Option<&'a str>,
}

/// A whole JSON error body.
pub fn error_body(dialect: ApiFormat, failure: &Failure) -> Vec<u8> {
    match dialect {
        ApiFormat::OpenAi => openai_chat::error_body(failure),
        ApiFormat::Anthropic => anthropic_messages::error_body(failure),
        ApiFormat::Gemini => gemini::error_body(failure),
        ApiFormat::Bedrock => bedrock::error_body(failure),
    }
}

/// An error as one event or frame of a stream.
pub fn error_event(dialect: ApiFormat, failure: &Failure) -> Vec<u8> {
    match dialect {
        ApiFormat::OpenAi => openai_chat::error_event(failure),
        ApiFormat::Anthropic => anthropic_messages::error_event(failure),
        ApiFormat::Gemini => gemini::error_event(failure),
        ApiFormat::Bedrock => bedrock::error_event(failure),
    }
}
