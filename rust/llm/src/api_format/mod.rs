//! API formats of clients and providers: the parts of a request that the gateway reads, and the error format of each
//! API.

pub mod anthropic_messages;
mod background;
pub mod bedrock;
pub(crate) mod format;
pub mod gemini;
pub(crate) mod image_units;
pub mod openai_chat;
pub(crate) mod secondary_models;

pub use crate::api_format::format::ApiFormat;
pub use crate::api_format::image_units::{ImageCounter, ImageParams};
pub use crate::api_format::secondary_models::secondary_models;
pub use crate::http_form::form::FormScanner;
pub use crate::http_form::upload::UploadParser;
pub use crate::json::lines::{LineSplitter, LineTooLong};
pub use crate::json::peek::{Peek, peek};
pub use crate::json::scan::{MAX_DEPTH, ScanError, is_complete_json};
pub use background::unfinished_response_id;

/// Error to report in the client's API format.
#[derive(Debug, Clone, Copy)]
pub struct Failure<'a> {
    pub status: u16,
    /// Error type in the API format; `None` derives it from the status.
    pub error_type: Option<&'a str>,
    pub message: &'a str,
    pub code: Option<&'a str>,
    pub request_id: Option<&'a str>,
}

/// Builds a complete JSON error body.
pub fn error_body(dialect: ApiFormat, failure: &Failure) -> Vec<u8> {
    match dialect {
        ApiFormat::OpenAi => openai_chat::error_body(failure),
        ApiFormat::Anthropic => anthropic_messages::error_body(failure),
        ApiFormat::Gemini => gemini::error_body(failure),
        ApiFormat::Bedrock => bedrock::error_body(failure),
    }
}

/// Builds an error as one event or frame of a stream.
pub fn error_event(dialect: ApiFormat, failure: &Failure) -> Vec<u8> {
    match dialect {
        ApiFormat::OpenAi => openai_chat::error_event(failure),
        ApiFormat::Anthropic => anthropic_messages::error_event(failure),
        ApiFormat::Gemini => gemini::error_event(failure),
        ApiFormat::Bedrock => bedrock::error_event(failure),
    }
}
