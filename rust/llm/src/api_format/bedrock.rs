//! Bedrock error format, for response bodies and for exception frames of an event stream.

use serde_json::json;

use super::failure::Failure;
use crate::stream::aws_event_stream::encode_frame;

/// Builds an error body. Clients read the error type from a header, and from `__type` if that header is missing.
pub fn error_body(failure: &Failure) -> Vec<u8> {
    json!({"__type": error_type_for_status(failure.status), "message": failure.message}).to_string().into_bytes()
}

pub fn error_event(failure: &Failure) -> Vec<u8> {
    let name = match failure.status {
        429 => "throttlingException",
        408 | 504 => "modelTimeoutException",
        502 | 503 | 529 => "serviceUnavailableException",
        400..500 => "validationException",
        _ => "modelStreamErrorException",
    };
    encode_frame("exception", name, json!({"message": failure.message}).to_string().as_bytes())
}

fn error_type_for_status(status: u16) -> &'static str {
    match status {
        401 | 403 => "AccessDeniedException",
        402 => "ServiceQuotaExceededException",
        404 => "ResourceNotFoundException",
        408 | 504 => "ModelTimeoutException",
        409 => "ConflictException",
        424 => "ModelErrorException",
        429 => "ThrottlingException",
        502 | 503 | 529 => "ServiceUnavailableException",
        400..500 => "ValidationException",
        _ => "InternalServerException",
    }
}
