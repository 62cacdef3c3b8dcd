//! Paths that the gateway serves itself, and rejections of requests that have no record.

use crate::{
    error::Error,
    gateway_state::GatewayState,
    ingress::{client_sdk, head_validation, message::RequestHead},
    process::settings::Settings,
    response::{client_response::ClientResponse, delivery},
};

/// Returns the response for a path that the gateway serves itself, else 404.
pub(crate) fn builtin_response(state: &GatewayState, head: &RequestHead) -> ClientResponse {
    let is_ready = state.is_ready();
    match (head.method.as_str(), head.path.as_str()) {
        ("GET" | "HEAD", "/live") => ClientResponse::plain_text(200, "live"),
        ("GET" | "HEAD", "/ready") if is_ready => ClientResponse::plain_text(200, "ready"),
        ("GET" | "HEAD", "/ready") => ClientResponse::plain_text(503, "not ready"),
        ("GET" | "HEAD", "/") => ClientResponse::plain_text(200, "Penstock says hey!"),
        _ => reject_without_record(&state.settings, &Error::NotFound, head),
    }
}

/// Validates a request head for any destination. Returns the error, or `None` if the head is valid.
pub(crate) fn find_head_error(settings: &Settings, head: &RequestHead) -> Option<Error> {
    let limit = settings.header_bytes;
    if head.size_bytes() > limit {
        return Some(Error::HeadersTooLarge { limit });
    }
    let codings = head.headers.iter().filter(|(name, _)| *name == b"transfer-encoding").map(|(_, value)| value);
    if let Some(coding) = codings.into_iter().find(|coding| !coding.trim_ascii().eq_ignore_ascii_case(b"chunked")) {
        return Some(Error::TransferCodingUnsupported { coding: coding.escape_ascii().to_string() });
    }
    let fault = head_validation::find_header_error(&head.headers, &settings.header_aliases);
    fault.map(|(name, message)| Error::HeaderInvalid { name, message })
}

/// Returns a gateway error response for a request that has no record.
pub(crate) fn reject_without_record(settings: &Settings, error: &Error, head: &RequestHead) -> ClientResponse {
    let format = client_sdk::shared_path_format(&head.headers);
    delivery::add_request_ids(ClientResponse::from_error(error, format), head, &settings.header_aliases)
}
