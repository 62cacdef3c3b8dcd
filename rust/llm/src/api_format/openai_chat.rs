//! `OpenAI` error format and end-of-stream marker.

use serde::Serialize;

use super::failure::Failure;

/// Last event of a stream.
pub const DONE_EVENT: &[u8] = b"data: [DONE]\n\n";

#[derive(Serialize)]
struct OpenAiErrorBody<'a> {
    error: OpenAiErrorDetail<'a>,
}

#[derive(Serialize)]
struct OpenAiErrorDetail<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

pub fn error_body(failure: &Failure) -> Vec<u8> {
    error_body_with_param(failure, None)
}

/// Builds an error body that may name the offending parameter.
pub fn error_body_with_param(failure: &Failure, param: Option<&str>) -> Vec<u8> {
    let error = OpenAiErrorDetail {
        message: failure.message,
        kind: failure.error_type.unwrap_or_else(|| error_type_for_status(failure.status)),
        param,
        code: failure.code,
    };
    serde_json::to_vec(&OpenAiErrorBody { error }).unwrap_or_default()
}

pub fn error_event(failure: &Failure) -> Vec<u8> {
    [b"data: ", error_body(failure).as_slice(), b"\n\n"].concat()
}

/// Returns the error type for an HTTP status.
pub(crate) fn error_type_for_status(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        429 => "rate_limit_error",
        400..500 => "invalid_request_error",
        _ => "server_error",
    }
}
