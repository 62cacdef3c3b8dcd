//! Anthropic's way of saying that something failed and that a stream is over.

use serde::Serialize;

use super::Failure;
use crate::json::scan::fields;

/// The last event of a stream.
pub const STOP: &[u8] = b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: Error<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
}

#[derive(Serialize)]
struct Error<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    message: &'a str,
}

pub fn error_body(failure: &Failure) -> Vec<u8> {
    let error = Error { kind: failure.kind.unwrap_or_else(|| kind_of(failure.status)), message: failure.message };
    let body = Body { kind: "error", error, request_id: failure.request_id };
    serde_json::to_vec(&body).unwrap_or_default()
}

pub fn error_event(failure: &Failure) -> Vec<u8> {
    [b"event: error\ndata: ", error_body(failure).as_slice(), b"\n\n"].concat()
}

/// Whether the data of a stream's event is the error that stands for status 529.
pub fn is_overloaded(data: &[u8]) -> bool {
    let mut kind = None;
    let read = fields(data, |key, at| {
        if key == b"error" {
            kind = error_kind(&data[at]);
        }
        Ok(())
    });
    read.is_ok() && kind == Some(b"\"overloaded_error\"")
}

fn error_kind(error: &[u8]) -> Option<&[u8]> {
    let mut kind = None;
    let read = fields(error, |key, at| {
        if key == b"type" {
            kind = Some(&error[at]);
        }
        Ok(())
    });
    read.ok().and(kind)
}

fn kind_of(status: u16) -> &'static str {
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
