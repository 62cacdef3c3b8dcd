//! Normalisation of responses that need no translation: provider-specific error shapes, and the cases that `Normaliser`
//! (`rust/llm/src/translation/normalise.rs`) lists. Successful responses without such a case bypass this module.

use std::borrow::Cow;

use bytes::Bytes;
use penstock_llm::{
    operation::Operation,
    stream::sse,
    translation::{self, Normaliser},
};
use penstock_net::{Deadline, IncomingResponse, ResponseBody, ResponseHead, headers::Headers};
use serde::de::IgnoredAny;

use crate::{
    accounting::compressed_response,
    error::{Error, Result},
    ingress::client_sdk,
    resolve::{target::Target, target_resolver::ClientRequest},
    response::{
        delivery::{self, MAX_BUFFERED_RESPONSE_BYTES, StreamFraming},
        offload::{run_offloaded, with_content_type},
    },
};

/// Header fields in which providers return the ID of a request.
const REQUEST_ID_HEADERS: [&str; 5] =
    ["x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "x-ms-request-id"];

/// Maximum bytes of an error body that is parsed; of longer ones, only the status is used. Parsing runs on a thread
/// that also serves other requests.
pub const MAX_ERROR_BODY_BYTES: usize = 256 * 1024;

/// Number of decompressed bytes that are examined to decide whether a compressed response may be an error.
const MAX_ERROR_START_BYTES: usize = 512;

/// Maximum bytes of all pages of a list together. Parsing a list takes many times its size in memory.
pub(crate) const MAX_LIST_BYTES: usize = 4 * 1024 * 1024;
/// Maximum bytes of a successful response that is normalised. Longer ones are passed through unchanged.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// UTF-8 byte order mark, which may precede any text.
const UTF8_BOM: &[u8] = b"\xef\xbb\xbf";

/// HTTP status for an exhausted budget. A response with this status is passed to the client unchanged, whatever server
/// sent it.
pub const BUDGET_EXHAUSTED_STATUS: u16 = 412;

/// Returns the normaliser for responses of this target; `None` if they are passed through unchanged.
/// `body` is the request body, on which the form of some responses depends.
pub fn normaliser_for(client_request: &ClientRequest<'_>, target: &Target<'_>, body: &[u8]) -> Option<Normaliser> {
    let operation = client_request.route.operation;
    // All other operations keep the provider's own format on purpose.
    let is_known = operation.api_format().is_some() || operation.is_file_operation() || operation == Operation::Models;
    let normaliser = || {
        Normaliser::new(target.provider.row(), operation, client_request.api_format, target.is_strict)
            .for_request(body)
            .for_list_shape(client_sdk::model_list_shape(operation, &client_request.head.headers))
    };
    (is_known && !target.is_passthrough).then(normaliser)
}

/// Returns true if this response needs normalising.
pub fn needs_normalising(normaliser: Normaliser, incoming: &IncomingResponse) -> bool {
    incoming.head.status >= 400 || normaliser.changes_responses() || is_html_page(normaliser, &incoming.head)
}

/// Returns true if the response is an HTML page. No API returns one, so another server responded in place of the
/// provider.
fn is_html_page(normaliser: Normaliser, head: &ResponseHead) -> bool {
    head.status == 200 && !normaliser.may_return_html() && head.headers.has_media_type("text/html")
}

/// Returns the response in the form that the client receives.
pub async fn normalise_response(
    normaliser: Normaliser,
    incoming: IncomingResponse,
    deadline: &mut Deadline,
) -> Result<IncomingResponse> {
    let head = &incoming.head;
    let (is_plain, is_events) = (delivery::is_uncompressed(&head.headers), delivery::is_event_stream(&head.headers));
    let is_json = head.headers.is_json();
    match head.status {
        // The body of a budget error is passed through unchanged.
        BUDGET_EXHAUSTED_STATUS => Ok(with_request_id(incoming)),
        400.. if is_plain || compressed_response::is_gzip(&head.headers) => {
            Box::pin(normalise_error(normaliser, incoming, deadline)).await
        }
        200 if is_html_page(normaliser, head) => Err(invalid_response_error(normaliser, incoming, deadline).await?),
        200 if is_plain && is_events => {
            let IncomingResponse { head, body } = incoming;
            Ok(IncomingResponse { head, body: body.map_chunks(normaliser.stream_normaliser()) })
        }
        200 if is_plain && is_json => normalise_body(normaliser, incoming, deadline).await,
        _ => Ok(incoming),
    }
}

/// Gives a response that is an error an error status, so that retries, fallbacks and the cache treat it as a failure.
/// Some providers and proxies send errors with the status 200.
pub async fn expose_error_status(
    operation: Operation,
    incoming: IncomingResponse,
    deadline: &mut Deadline,
) -> Result<IncomingResponse> {
    let IncomingResponse { mut head, mut body } = incoming;
    let Some(first) = deadline.enforce(async { body.next_chunk().await.transpose() }).await? else {
        return Ok(IncomingResponse { head, body });
    };
    let is_gzip = compressed_response::is_gzip(&head.headers);
    let may_be_error = if is_gzip {
        translation::may_begin_error(&compressed_response::decompress_start(&first, MAX_ERROR_START_BYTES))
    } else {
        translation::may_begin_error(&first)
    };
    body.put_back(first);
    if may_be_error
        && let Some(response) = deadline.enforce(penstock_net::collect(&mut body, MAX_BUFFERED_RESPONSE_BYTES)).await?
    {
        let plain = if is_gzip {
            compressed_response::decompress(&response, MAX_BUFFERED_RESPONSE_BYTES)
        } else {
            Some(response.clone())
        };
        body = ResponseBody::from_bytes(response);
        if let Some((plain, status)) =
            plain.and_then(|plain| translation::hidden_error_status(operation, &plain).map(|status| (plain, status)))
        {
            head.status = status;
            head.headers.retain(|name| !matches!(name, b"content-length" | b"content-encoding"));
            body = ResponseBody::from_bytes(plain);
        }
    }
    Ok(IncomingResponse { head, body })
}

/// Returns true if this response may be an error with a success status: JSON that is short or of unknown length.
pub fn may_hide_error(operation: Operation, incoming: &IncomingResponse) -> bool {
    let head = &incoming.head;
    head.status == 200
        && translation::may_hide_errors(operation)
        && StreamFraming::detect(operation, head, incoming.body.content_length()).is_none()
        && head.headers.is_json()
        && (delivery::is_uncompressed(&head.headers) || compressed_response::is_gzip(&head.headers))
        && incoming.body.content_length().is_none_or(|length| length <= MAX_BUFFERED_RESPONSE_BYTES)
}

async fn normalise_body(
    normaliser: Normaliser,
    incoming: IncomingResponse,
    deadline: &mut Deadline,
) -> Result<IncomingResponse> {
    let IncomingResponse { head, mut body } = incoming;
    let max_bytes = if normaliser.is_for_model_list() { MAX_LIST_BYTES } else { MAX_BODY_BYTES };
    if body.content_length().is_none_or(|length| length <= max_bytes)
        && let Some(response) = deadline.enforce(penstock_net::collect(&mut body, max_bytes)).await?
    {
        let (status, length) = (head.status, response.len());
        let job = move || {
            let text = response.strip_prefix(UTF8_BOM).unwrap_or(&response);
            match serde_json::from_slice::<IgnoredAny>(text) {
                Ok(_) => Ok(normaliser.normalise_body(response)),
                Err(_) => Err(Error::invalid_response(normaliser.provider(), status, &response)),
            }
        };
        body = ResponseBody::from_bytes(run_offloaded(length, job).await??);
    }
    Ok(IncomingResponse { head, body })
}

/// Reads a successful response that does not come from the provider's API and converts it to an error.
async fn invalid_response_error(
    normaliser: Normaliser,
    incoming: IncomingResponse,
    deadline: &mut Deadline,
) -> Result<Error> {
    let IncomingResponse { head, mut body } = incoming;
    let error_body =
        deadline.enforce(penstock_net::collect(&mut body, MAX_ERROR_BODY_BYTES)).await?.unwrap_or_default();
    let error_body = if delivery::is_uncompressed(&head.headers) { error_body } else { Bytes::new() };
    Ok(Error::invalid_response(normaliser.provider(), head.status, &error_body))
}

async fn normalise_error(
    normaliser: Normaliser,
    incoming: IncomingResponse,
    deadline: &mut Deadline,
) -> Result<IncomingResponse> {
    let IncomingResponse { mut head, mut body } = incoming;
    let Some(response) = deadline.enforce(penstock_net::collect(&mut body, MAX_ERROR_BODY_BYTES)).await? else {
        return Ok(IncomingResponse { head, body });
    };
    let plain = if delivery::is_uncompressed(&head.headers) {
        Some(response.clone())
    } else {
        compressed_response::decompress(&response, MAX_ERROR_BODY_BYTES)
    };
    add_request_id_header(&mut head.headers);
    let id = provider_request_id(&head.headers).map(ToOwned::to_owned);
    let is_events = delivery::is_event_stream(&head.headers);
    let rewritten = plain.and_then(|plain| {
        let error_body = extract_error_body(&head.headers, plain);
        normaliser
            .normalise_error(head.status, &error_body, id.as_deref())
            .or_else(|| is_events.then(|| error_body.into()))
    });
    let response = match rewritten {
        None => response,
        Some(rewritten) => {
            head.headers = with_content_type(head.headers, b"application/json");
            Bytes::from(rewritten)
        }
    };
    Ok(IncomingResponse { head, body: ResponseBody::from_bytes(response) })
}

/// Returns the error body. For an event stream this is the data of the first event, which holds the complete error.
pub fn extract_error_body(headers: &Headers, response: Bytes) -> Bytes {
    let first = || sse::split_events(&response).find_map(|event| sse::event_data(event).map(Cow::into_owned));
    if delivery::is_event_stream(headers) { first().map_or_else(|| response.clone(), Bytes::from) } else { response }
}

/// Adds the provider's request ID to an error and leaves the rest unchanged.
pub fn with_request_id(mut incoming: IncomingResponse) -> IncomingResponse {
    add_request_id_header(&mut incoming.head.headers);
    incoming
}

/// Copies the provider's request ID to `x-request-id` if it came in a field that clients do not read.
pub fn add_request_id_header(headers: &mut Headers) {
    let is_read = ["x-request-id", "request-id"].iter().any(|name| headers.get(name).is_some());
    if let (false, Some(id)) = (is_read, provider_request_id(headers).map(ToOwned::to_owned)) {
        headers.push(b"x-request-id", id.as_bytes());
    }
}

/// Returns the provider's ID for this request.
pub fn provider_request_id(headers: &Headers) -> Option<&str> {
    REQUEST_ID_HEADERS.iter().find_map(|name| headers.get_str(name))
}
