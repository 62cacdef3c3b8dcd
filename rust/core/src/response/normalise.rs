//! The little that is mended of answers in the caller's own dialect: errors in a shape of their provider's, and what `Mending`
//! names besides. Good answers in which there is nothing to mend never come here.

use std::borrow::Cow;

use bytes::Bytes;
use penstock_llm::{operation::Operation, stream::sse, translation::Mending};
use serde::de::IgnoredAny;

use crate::{
    endpoints::model_list,
    error::{Error, Result},
    ingress::headers::Headers,
    process::deadline::Deadline,
    request::translate::{retyped, worked},
    resolve::{target::Target, target_resolver::Call},
    response::{compressed, delivery},
    upstream::{self, AnswerBody, AnswerHead, Incoming},
};

/// Under these names providers say how they call a request.
const IDS: [&str; 5] = ["x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "x-ms-request-id"];

/// Of an error that says more, nothing but its status is read: that is done where other requests wait meanwhile.
pub const MOST_OF_ERROR: usize = 256 * 1024;

/// A good answer that is longer passes as it came.
const MOST: usize = 16 * 1024 * 1024;

/// May stand before any text.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// The status of a budget that is spent: whoever says so says it to the caller.
pub const LIMIT: u16 = 412;

/// What is mended of the answers of this target; `None` where they are to stay as they are.
pub fn of(call: &Call<'_>, target: &Target<'_>) -> Option<Mending> {
    let operation = call.route.operation;
    // What is left is said in the provider's own words on purpose.
    let is_known = operation.dialect().is_some() || operation.is_of_files() || operation == Operation::Models;
    let mending = || Mending::of(target.provider, operation, call.dialect(), target.strict);
    (is_known && !target.passthrough).then(mending)
}

/// Whether there is something to mend of this one.
pub fn is_due(mending: Mending, incoming: &Incoming) -> bool {
    incoming.head.status >= 400 || mending.mends() || is_page(mending, &incoming.head)
}

/// Whether it is a page for a browser, which no API answers with: somebody else did, in the provider's place.
fn is_page(mending: Mending, head: &AnswerHead) -> bool {
    head.status == 200 && !mending.may_be_page() && head.headers.is_kind("text/html")
}

/// The answer as the caller gets it.
pub async fn mend(mending: Mending, incoming: Incoming, deadline: &mut Deadline) -> Result<Incoming> {
    let head = &incoming.head;
    let (is_plain, is_events) = (delivery::is_plain(&head.headers), delivery::is_events(&head.headers));
    let is_json = head.headers.is_json();
    match head.status {
        // What a limit says passes untouched.
        LIMIT => Ok(named(incoming)),
        400.. if is_plain || compressed::is_packed(&head.headers) => {
            Box::pin(mend_error(mending, incoming, deadline)).await
        }
        200 if is_page(mending, head) => Err(no_answer(mending, incoming, deadline).await?),
        200 if is_plain && is_events => {
            let Incoming { head, body } = incoming;
            Ok(Incoming { head, body: body.through(mending.stream()) })
        }
        200 if is_plain && is_json => mend_whole(mending, incoming, deadline).await,
        _ => Ok(incoming),
    }
}

async fn mend_whole(mending: Mending, incoming: Incoming, deadline: &mut Deadline) -> Result<Incoming> {
    let Incoming { head, mut body } = incoming;
    let most = if mending.is_of_list() { model_list::MOST } else { MOST };
    if body.expected().is_none_or(|length| length <= most)
        && let Some(answer) = deadline.bound(upstream::collect(&mut body, most)).await?
    {
        let (status, length) = (head.status, answer.len());
        let work = move || {
            let text = answer.strip_prefix(BOM).unwrap_or(&answer);
            match serde_json::from_slice::<IgnoredAny>(text) {
                Ok(_) => Ok(mending.whole(answer)),
                Err(_) => Err(Error::invalid_answer(mending.provider(), status, &answer)),
            }
        };
        body = AnswerBody::whole(worked(length, work).await??);
    }
    Ok(Incoming { head, body })
}

/// A good answer that is none of its provider's.
async fn no_answer(mending: Mending, incoming: Incoming, deadline: &mut Deadline) -> Result<Error> {
    let Incoming { head, mut body } = incoming;
    let said = deadline.bound(upstream::collect(&mut body, MOST_OF_ERROR)).await?.unwrap_or_default();
    let said = if delivery::is_plain(&head.headers) { said } else { Bytes::new() };
    Ok(Error::invalid_answer(mending.provider(), head.status, &said))
}

async fn mend_error(mending: Mending, incoming: Incoming, deadline: &mut Deadline) -> Result<Incoming> {
    let Incoming { mut head, mut body } = incoming;
    let Some(answer) = deadline.bound(upstream::collect(&mut body, MOST_OF_ERROR)).await? else {
        return Ok(Incoming { head, body });
    };
    let plain = if delivery::is_plain(&head.headers) {
        Some(answer.clone())
    } else {
        compressed::plain(&answer, MOST_OF_ERROR)
    };
    name_request(&mut head.headers);
    let id = request_id(&head.headers).map(ToOwned::to_owned);
    let is_events = delivery::is_events(&head.headers);
    let told = plain.and_then(|plain| {
        let said = said(&head.headers, plain);
        mending.error(head.status, &said, id.as_deref()).or_else(|| is_events.then(|| said.into()))
    });
    let answer = match told {
        None => answer,
        Some(told) => {
            head.headers = retyped(head.headers, b"application/json");
            Bytes::from(told)
        }
    };
    Ok(Incoming { head, body: AnswerBody::whole(answer) })
}

/// What an error says: of one that is told as a stream the first event, which is all of it.
pub fn said(headers: &Headers, answer: Bytes) -> Bytes {
    let first = || sse::split(&answer).find_map(|event| sse::data(event).map(Cow::into_owned));
    if delivery::is_events(headers) { first().map_or_else(|| answer.clone(), Bytes::from) } else { answer }
}

/// An error as it came, under the provider's own name for its request.
pub fn named(mut incoming: Incoming) -> Incoming {
    name_request(&mut incoming.head.headers);
    incoming
}

/// Has clients know a failed request by the provider's own name for it, where that came in a field that they do not read.
pub fn name_request(headers: &mut Headers) {
    let is_read = ["x-request-id", "request-id"].iter().any(|name| headers.get(name).is_some());
    if let (false, Some(id)) = (is_read, request_id(headers).map(ToOwned::to_owned)) {
        headers.push(b"x-request-id", id.as_bytes());
    }
}

/// How the provider calls this request.
pub fn request_id(headers: &Headers) -> Option<&str> {
    IDS.iter().find_map(|name| headers.text(name))
}
