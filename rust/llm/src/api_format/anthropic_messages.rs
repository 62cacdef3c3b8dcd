//! Anthropic error format and end-of-stream event.

use serde::Serialize;

use super::failure::Failure;
use crate::json::scan::for_each_field;

/// Last event of a stream.
pub const STOP_EVENT: &[u8] = b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

#[derive(Serialize)]
struct AnthropicErrorBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: AnthropicErrorDetail<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
}

#[derive(Serialize)]
struct AnthropicErrorDetail<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    message: &'a str,
}

pub fn error_body(failure: &Failure) -> Vec<u8> {
    let error = AnthropicErrorDetail {
        kind: failure.error_type.unwrap_or_else(|| error_type_for_status(failure.status)),
        message: failure.message,
    };
    let body = AnthropicErrorBody { kind: "error", error, request_id: failure.request_id };
    serde_json::to_vec(&body).unwrap_or_default()
}

pub fn error_event(failure: &Failure) -> Vec<u8> {
    [b"event: error\ndata: ", error_body(failure).as_slice(), b"\n\n"].concat()
}

/// Returns true if the data of a stream event is an `overloaded_error`, which corresponds to status 529.
pub fn is_overloaded_error(data: &[u8]) -> bool {
    let mut kind = None;
    let read = for_each_field(data, |key, at| {
        if key == b"error" {
            kind = read_error_type(&data[at]);
        }
        Ok(())
    });
    read.is_ok() && kind == Some(b"\"overloaded_error\"")
}

fn read_error_type(error: &[u8]) -> Option<&[u8]> {
    let mut kind = None;
    let read = for_each_field(error, |key, at| {
        if key == b"type" {
            kind = Some(&error[at]);
        }
        Ok(())
    });
    read.ok().and(kind)
}

fn error_type_for_status(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        400..500 => "invalid_request_error",
        _ => "api_error",
    }
}
