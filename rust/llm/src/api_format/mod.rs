//! API formats of clients and providers: the parts of a request that the gateway reads, and the error format of each
//! API.

pub mod anthropic_messages;
mod background;
pub mod bedrock;
mod failure;
pub(crate) mod format;
pub mod gemini;
pub(crate) mod image_units;
pub mod named_models;
pub mod openai_chat;

pub use crate::api_format::failure::Failure;
pub use crate::api_format::format::ApiFormat;
pub use crate::api_format::image_units::{ImageCounter, ImageParams};
pub use crate::api_format::named_models::{NamedModel, UnlistableModels, is_model_key, named_models};
pub use crate::json::lines::{LineSplitter, LineTooLong};
pub use crate::json::peek::{Peek, peek};
pub use crate::json::scan::{MAX_DEPTH, ScanError, is_complete_json};
pub use background::unfinished_response_id;

/// Builds a complete JSON error body.
pub fn error_body(api_format: ApiFormat, failure: &Failure) -> Vec<u8> {
    match api_format {
        ApiFormat::OpenAi => openai_chat::error_body(failure),
        ApiFormat::Anthropic => anthropic_messages::error_body(failure),
        ApiFormat::Gemini => gemini::error_body(failure),
        ApiFormat::Bedrock => bedrock::error_body(failure),
    }
}

/// Builds an error as one event or frame of a stream.
pub fn error_event(api_format: ApiFormat, failure: &Failure) -> Vec<u8> {
    match api_format {
        ApiFormat::OpenAi => openai_chat::error_event(failure),
        ApiFormat::Anthropic => anthropic_messages::error_event(failure),
        ApiFormat::Gemini => gemini::error_event(failure),
        ApiFormat::Bedrock => bedrock::error_event(failure),
    }
}
