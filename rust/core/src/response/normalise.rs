//! The little that is mended of answers in the caller's own dialect: errors in a shape of their provider's, and what `Mending`
//! names besides. Good answers in which there is nothing to mend never come here.

use std::borrow::Cow;

use bytes::Bytes;
use penstock_llm::{operation::Operation, stream::sse, translation::Normaliser};
use serde::de::IgnoredAny;

use crate::{
    endpoints::model_list,
    error::{Error, Result},
    ingress::headers::Headers,
    process::deadline::Deadline,
    request::translate::{run_offloaded, with_content_type},
    resolve::{target::Target, target_resolver::Call},
    response::{compressed, delivery},
    upstream::{self, IncomingResponse, ResponseBody, ResponseHead},
};

/// Under these names providers say how they call a request.
const REQUEST_ID_HEADERS: [&str; 5] =
    ["x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "x-ms-request-id"];

/// Of an error that says more, nothing but its status is read: that is done where other requests wait meanwhile.
pub const MAX_ERROR_BODY_BYTES: usize = 256 * 1024;

/// A good answer that is longer passes as it came.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// May stand before any text.
const UTF8_BOM: &[u8] = b"\xef\xbb\xbf";

/// The status of a budget that is spent: whoever says so says it to the caller.
pub const BUDGET_EXHAUSTED_STATUS: u16 = 412;

/// What is mended of the answers of this target; `None` where they are to stay as they are.
pub fn normaliser_for(call: &Call<'_>, target: &Target<'_>) -> Option<Normaliser> {
    let operation = call.route.operation;
    // What is left is said in the provider's own words on purpose.
    let is_known = operation.api_format().is_some() || operation.is_file_operation() || operation == Operation::Models;
    let mending = || Normaliser::new(target.provider, operation, call.client_api_format(), target.is_strict);
    (is_known && !target.is_passthrough).then(mending)
}

/// Whether there is something to mend of this one.
pub fn needs_normalising(mending: Normaliser, incoming: &IncomingResponse) -> bool {
    incoming.head.status >= 400 || mending.changes_responses() || is_html_page(mending, &incoming.head)
}

/// Whether it is a page for a browser, which no API answers with: somebody else did, in the provider's place.
fn is_html_page(mending: Normaliser, head: &ResponseHead) -> bool {
    head.status == 200 && !mending.may_return_html() && head.headers.has_media_type("text/html")
}

/// The answer as the caller gets it.
pub async fn normalise_response(
    mending: Normaliser,
    incoming: IncomingResponse,
    deadline: &mut Deadline,
) -> Result<IncomingResponse> {
    let head = &incoming.head;
    let (is_plain, is_events) = (delivery::is_uncompressed(&head.headers), delivery::is_event_stream(&head.headers));
    let is_json = head.headers.is_json();
    match head.status {
        // What a limit says passes untouched.
        BUDGET_EXHAUSTED_STATUS => Ok(with_request_id(incoming)),
        400.. if is_plain || compressed::is_gzip(&head.headers) => {
            Box::pin(normalise_error(mending, incoming, deadline)).await
        }
        200 if is_html_page(mending, head) => Err(invalid_response_error(mending, incoming, deadline).await?),
        200 if is_plain && is_events => {
            let IncomingResponse { head, body } = incoming;
            Ok(IncomingResponse { head, body: body.map_chunks(mending.stream_normaliser()) })
        }
        200 if is_plain && is_json => normalise_body(mending, incoming, deadline).await,
        _ => Ok(incoming),
    }
}

async fn normalise_body(
    mending: Normaliser,
    incoming: IncomingResponse,
    deadline: &mut Deadline,
) -> Result<IncomingResponse> {
    let IncomingResponse { head, mut body } = incoming;
    let most = if mending.is_for_model_list() { model_list::MAX_LIST_BYTES } else { MAX_BODY_BYTES };
    if body.content_length().is_none_or(|length| length <= most)
        && let Some(answer) = deadline.enforce(upstream::collect(&mut body, most)).await?
    {
        let (status, length) = (head.status, answer.len());
        let work = move || {
            let text = answer.strip_prefix(UTF8_BOM).unwrap_or(&answer);
            match serde_json::from_slice::<IgnoredAny>(text) {
                Ok(_) => Ok(mending.normalise_body(answer)),
                Err(_) => Err(Error::invalid_response(mending.provider(), status, &answer)),
            }
        };
        body = ResponseBody::from_bytes(run_offloaded(length, work).await??);
    }
    Ok(IncomingResponse { head, body })
}

/// A good answer that is none of its provider's.
async fn invalid_response_error(
    mending: Normaliser,
    incoming: IncomingResponse,
    deadline: &mut Deadline,
) -> Result<Error> {
    let IncomingResponse { head, mut body } = incoming;
    let said = deadline.enforce(upstream::collect(&mut body, MAX_ERROR_BODY_BYTES)).await?.unwrap_or_default();
    let said = if delivery::is_uncompressed(&head.headers) { said } else { Bytes::new() };
    Ok(Error::invalid_response(mending.provider(), head.status, &said))
}

async fn normalise_error(
    mending: Normaliser,
    incoming: IncomingResponse,
    deadline: &mut Deadline,
) -> Result<IncomingResponse> {
    let IncomingResponse { mut head, mut body } = incoming;
    let Some(answer) = deadline.enforce(upstream::collect(&mut body, MAX_ERROR_BODY_BYTES)).await? else {
        return Ok(IncomingResponse { head, body });
    };
    let plain = if delivery::is_uncompressed(&head.headers) {
        Some(answer.clone())
    } else {
        compressed::decompress(&answer, MAX_ERROR_BODY_BYTES)
    };
    add_request_id_header(&mut head.headers);
    let id = provider_request_id(&head.headers).map(ToOwned::to_owned);
    let is_events = delivery::is_event_stream(&head.headers);
    let told = plain.and_then(|plain| {
        let said = extract_error_body(&head.headers, plain);
        mending.normalise_error(head.status, &said, id.as_deref()).or_else(|| is_events.then(|| said.into()))
    });
    let answer = match told {
        None => answer,
        Some(told) => {
            head.headers = with_content_type(head.headers, b"application/json");
            Bytes::from(told)
        }
    };
    Ok(IncomingResponse { head, body: ResponseBody::from_bytes(answer) })
}

/// What an error says: of one that is told as a stream the first event, which is all of it.
pub fn extract_error_body(headers: &Headers, answer: Bytes) -> Bytes {
    let first = || sse::split_events(&answer).find_map(|event| sse::event_data(event).map(Cow::into_owned));
    if delivery::is_event_stream(headers) { first().map_or_else(|| answer.clone(), Bytes::from) } else { answer }
}

/// An error as it came, under the provider's own name for its request.
pub fn with_request_id(mut incoming: IncomingResponse) -> IncomingResponse {
    add_request_id_header(&mut incoming.head.headers);
    incoming
}

/// Has clients know a failed request by the provider's own name for it, where that came in a field that they do not read.
pub fn add_request_id_header(headers: &mut Headers) {
    let is_read = ["x-request-id", "request-id"].iter().any(|name| headers.get(name).is_some());
    if let (false, Some(id)) = (is_read, provider_request_id(headers).map(ToOwned::to_owned)) {
        headers.push(b"x-request-id", id.as_bytes());
    }
}

/// How the provider calls this request.
pub fn provider_request_id(headers: &Headers) -> Option<&str> {
    REQUEST_ID_HEADERS.iter().find_map(|name| headers.get_str(name))
}
