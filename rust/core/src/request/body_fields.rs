//! Fields of a request body that routing and records need: model, user and stream flag.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use penstock_llm::{
    api_format::{self, Peek, ScanError},
    http_form::form::FormScanner,
};
use penstock_net::{
    body::{Body, BodyLimits},
    headers,
};

use crate::{
    accounting::record::RequestLog,
    error::{Error, Result},
    resolve::target_resolver::ClientRequest,
};

/// Maximum bytes of a JSON body that is scanned on the async thread; larger ones go to a blocking thread. Scanning this
/// much takes less than a millisecond. It is also the maximum size of a chunk that crosses the Python boundary.
pub(crate) const MAX_INLINE_PEEK_BYTES: usize = 1024 * 1024;
/// Maximum bytes at the start of a form that the gateway waits for to find the model.
const MAX_FORM_PREFIX_BYTES: usize = 64 * 1024;

/// Reads the fields of a body that must be known before it is forwarded: its model, user and stream flag.
pub(crate) async fn read_body_fields(
    limits: BodyLimits,
    client_request: &ClientRequest<'_>,
    body: Body,
    log: &mut RequestLog,
) -> Result<Body> {
    let operation = client_request.route.operation;
    let mut body = body.with_limits(limits)?;
    let fields = &client_request.head.headers;
    if !operation.has_json_body() {
        if let (true, Some(kind)) = (operation.has_model_in_form(), fields.get_str("content-type")) {
            // Boxed because an inline future would enlarge the future of every request.
            log.model = Box::pin(read_form_model(kind, &mut body)).await?;
        }
        return Ok(observe_body(client_request, body, log).await);
    }
    let bytes = body.collect().await?;
    let peek = peek_json(&bytes).await.map_err(|error| match fields.get_str("content-encoding") {
        None | Some("identity") => Error::BodyInvalid { offset: error.offset, message: error.message },
        Some(coding) => {
            let message = format!("`{coding}` is not supported; send uncompressed JSON");
            Error::HeaderInvalid { name: "content-encoding", message }
        }
    })?;
    if let Some(user) = &peek.user {
        log.metadata.add_user(user);
    }
    let streams = peek.is_streaming();
    (log.model, log.is_streaming) = match client_request.route.model() {
        Some(model) => (model.into_owned(), operation.is_always_streaming()),
        None => (peek.model.unwrap_or_default(), streams),
    };
    log.user = peek.user;
    Ok(Body::Complete(bytes))
}

/// Returns the model named in the first bytes of a form that is still arriving. The model may carry a provider prefix.
async fn read_form_model(kind: &str, body: &mut Body) -> Result<String> {
    let Some(mut form) = FormScanner::from_content_type(kind) else { return Ok(String::new()) };
    let is_enough = |chunk: &[u8]| {
        form.feed(chunk);
        form.model().is_some() || form.is_finished()
    };
    body.wait_for_prefix(MAX_FORM_PREFIX_BYTES, is_enough).await?;
    Ok(form.model().unwrap_or_default().to_owned())
}

/// Extracts the routing fields of a JSON body. Scans a large body on a blocking thread, so that other requests do not
/// wait.
async fn peek_json(body: &Bytes) -> std::result::Result<Peek, ScanError> {
    if body.len() <= MAX_INLINE_PEEK_BYTES {
        return api_format::peek(body);
    }
    let body = body.clone();
    let scanned = tokio::task::spawn_blocking(move || api_format::peek(&body)).await;
    // Scanning neither panics nor is cancelled, except during shutdown.
    scanned.unwrap_or(Err(ScanError { offset: 0, message: "the body could not be scanned" }))
}

/// Extracts model, user and stream flag from a body that is forwarded as it arrives. Ignores errors, because the
/// provider validates the body.
async fn observe_body(client_request: &ClientRequest<'_>, body: Body, log: &mut RequestLog) -> Body {
    let Some(kind) = client_request.head.headers.get_str("content-type") else { return body };
    if let Some(form) = FormScanner::from_content_type(kind) {
        let form = Arc::new(Mutex::new(form));
        log.form = Some(Arc::clone(&form));
        let body =
            body.with_watcher(Box::new(move |bytes| form.lock().unwrap_or_else(PoisonError::into_inner).feed(bytes)));
        log.apply_form_fields();
        return body;
    }
    if let Body::Complete(bytes) = &body
        && headers::is_json_media_type(kind.as_bytes())
        && let Ok(peek) = peek_json(bytes).await
    {
        if let Some(user) = &peek.user {
            log.metadata.add_user(user);
        }
        log.is_streaming = peek.is_streaming();
        log.model = peek.model.unwrap_or_default();
    }
    body
}
