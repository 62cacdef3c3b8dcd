//! Upstream response of a target before it is decided whether the client receives it.

use std::{pin::pin, sync::LazyLock, time::Duration};

use bytes::Bytes;
use memchr::memmem::Finder;
use penstock_llm::{
    api_format::{ApiFormat, is_complete_json},
    operation::Operation,
    stream::{meter::SseMeter, sse},
    usage::Usage,
};
use penstock_net::{
    Deadline, IncomingResponse, ResponseBody, ResponseHead,
    body::Body,
    coarse_timer::CoarseTimer,
    headers::Headers,
    memory_budget::{BudgetedBytes, MemoryPermit},
};

use crate::{
    endpoints::forward,
    error::{Error, Result},
    resolve::{target::Target, target_resolver::ClientRequest},
    response::{
        delivery::{self, StreamFraming, UpstreamResponse},
        response_meter::{MeteredResponse, ResponseMeter},
    },
    routing::first_event::{self, StreamBeginning},
    state::shared::response_cache::CachedResponse,
    strategies::fallback::FallbackPolicy,
};

/// Maximum bytes to read from a discarded response so that its connection can be reused.
const MAX_DISCARDED_BYTES: usize = 16 * 1024;
const DISCARD_TIMEOUT: Duration = Duration::from_millis(50);

/// Rejects a successful JSON response that is cut off. With a `content-length` that is too short, half a body looks
/// complete. Some providers send JSON lines as `application/json`.
fn reject_truncated_json(head: &ResponseHead, bytes: &[u8]) -> Result<()> {
    let is_json = head.headers.is_json() && delivery::is_uncompressed(&head.headers);
    let mut lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    if head.status < 300 && is_json && !is_complete_json(bytes) && !lines.all(is_complete_json) {
        return Err(Error::UpstreamResponseBroken { cause: "its JSON response is not complete JSON".into() });
    }
    Ok(())
}

static DONE_MARKER: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"[DONE]"));

/// Error codes with which providers report that their content policy rejected a request.
const POLICY_ERROR_CODES: [&str; 4] =
    ["content_policy_violation", "content_filter", "moderation_blocked", "ResponsibleAIPolicyViolation"];

fn has_policy_error_code(body: &[u8]) -> bool {
    let Ok(parsed) = serde_json::from_slice::<serde_json::Value>(body) else { return false };
    let error = &parsed["error"];
    [&error["code"], &error["type"], &error["innererror"]["code"]]
        .into_iter()
        .filter_map(serde_json::Value::as_str)
        .any(|code| POLICY_ERROR_CODES.contains(&code))
}

fn stream_meter(framing: StreamFraming, api_format: ApiFormat, operation: Operation) -> ResponseMeter {
    match framing {
        StreamFraming::SseEvents => ResponseMeter::SseEvents(SseMeter::for_operation(api_format, operation).into()),
        StreamFraming::AwsFrames => ResponseMeter::AwsFrames(Box::default()),
        StreamFraming::JsonArrayItems => ResponseMeter::ArrayItems(Box::default()),
    }
}

fn read_usage(
    bytes: &[u8],
    api_format: ApiFormat,
    operation: Operation,
    framing: Option<StreamFraming>,
) -> Option<Usage> {
    let Some(framing) = framing else { return Usage::from_response(api_format, bytes) };
    let mut meter = stream_meter(framing, api_format, operation);
    meter.feed(bytes);
    meter.finish(api_format, false).usage()
}

/// Rejects a stream that reported a failure, or that ended without its final event.
fn reject_incomplete_stream(read: &MeteredResponse, ends_with_event: bool, bytes: &[u8]) -> Result<()> {
    if read.has_failed {
        return Err(error_in_stream(&last_error_message(bytes).unwrap_or_else(|| "it gave no reason".to_owned())));
    }
    if read.has_end_marker == Some(true) || !ends_with_event {
        return Ok(());
    }
    Err(Error::UpstreamResponseBroken { cause: "its stream ended before it was complete".into() })
}

/// Maximum characters of a provider's error message that are reported.
const MAX_ERROR_MESSAGE_CHARS: usize = 300;

fn error_in_stream(message: &str) -> Error {
    let message: String = message.chars().take(MAX_ERROR_MESSAGE_CHARS).collect();
    Error::UpstreamResponseBroken { cause: format!("its stream ended in an error: {message}") }
}

fn last_error_message(events: &[u8]) -> Option<String> {
    let parse = |event| serde_json::from_slice::<serde_json::Value>(&sse::event_data(event)?).ok();
    let message = |data: serde_json::Value| data["error"]["message"].as_str().map(ToOwned::to_owned);
    sse::split_events(events).filter_map(|event| parse(event).and_then(message)).last()
}

impl UpstreamResponse {
    pub(crate) fn status(&self) -> u16 {
        self.incoming.head.status
    }

    pub(crate) fn headers(&self) -> &Headers {
        &self.incoming.head.headers
    }

    /// Waits until the body has begun, or is complete if it is small. Nothing is sent to the client before that, so a
    /// response that breaks off counts as a failed attempt. A stream that stays silent for `max_wait` counts as begun.
    pub(crate) async fn await_body_start(&mut self, operation: Operation, max_wait: Duration) -> Result<()> {
        let Self { incoming: IncomingResponse { head, body }, deadline, .. } = self;
        // Both futures are pinned here, because an async function stores its arguments twice.
        if delivery::should_buffer(
            StreamFraming::detect(operation, head, body.content_length()),
            head,
            body.content_length(),
        ) {
            let collected = {
                let collecting = pin!(penstock_net::collect(body, delivery::MAX_BUFFERED_RESPONSE_BYTES));
                deadline.enforce(collecting).await?
            };
            if let Some(bytes) = collected {
                if !operation.returns_stored_data() {
                    reject_truncated_json(head, &bytes)?;
                }
                *body = ResponseBody::from_bytes(bytes);
            }
        } else {
            let first = pin!(body.wait_for_first_chunk());
            let started = pin!(deadline.enforce(first));
            if let Ok(started) = tokio::time::timeout(max_wait, started).await {
                started?;
            }
        }
        Ok(())
    }

    /// Rejects a stream that begins with an error or ends without content. Nothing was sent to the client yet. A stream
    /// without an event for `max_wait` is accepted.
    pub(crate) async fn reject_failed_beginning(&mut self, operation: Operation, max_wait: Duration) -> Result<()> {
        let Some(framing) = self.chunk_format(operation).filter(|_| delivery::is_uncompressed(self.headers())) else {
            return Ok(());
        };
        let Self { incoming, deadline, api_format, .. } = self;
        let mut meter = stream_meter(framing, *api_format, operation);
        let StreamBeginning { bytes, has_ended } =
            first_event::peek_beginning(&mut incoming.body, deadline, &mut meter, max_wait).await?;
        if let Some(message) = first_event::first_error_message(framing, operation, &bytes) {
            return Err(error_in_stream(&message));
        }
        let is_empty = has_ended && meter.is_undecided() && meter.incomplete_bytes() == 0 || meter.has_empty_end();
        if is_empty && operation.has_terminal_event() {
            return Err(Error::UpstreamResponseBroken { cause: "its stream ended without content".into() });
        }
        reject_incomplete_stream(&meter.finish(*api_format, true), false, &bytes)
    }

    /// Returns true if the stream may already have ended without content.
    pub(crate) fn may_be_empty_stream(&self) -> bool {
        let body = &self.incoming.body;
        self.is_event_stream()
            && body.first_chunk().map_or_else(|| body.is_done(), |first| DONE_MARKER.find(first).is_some())
    }

    /// Returns true if this is a successful stream of SSE events.
    pub(crate) fn is_event_stream(&self) -> bool {
        self.status() == 200 && delivery::is_event_stream(self.headers())
    }

    /// Returns true if the provider responded, whichever status of success it uses.
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status())
    }

    /// Returns the chunk format of the response if it is a stream; `None` otherwise.
    pub(crate) fn chunk_format(&self, operation: Operation) -> Option<StreamFraming> {
        let IncomingResponse { head, body } = &self.incoming;
        StreamFraming::detect(operation, head, body.content_length()).filter(|_| self.is_success())
    }

    /// Buffers the complete stream and checks that it ended well. Returns false if the memory budget is exhausted; the
    /// stream is then delivered as it arrives.
    pub(crate) async fn buffer_stream(
        &mut self,
        framing: StreamFraming,
        operation: Operation,
        mut share: MemoryPermit,
    ) -> Result<bool> {
        let Self { incoming: IncomingResponse { head, body }, api_format, .. } = self;
        let mut reading = stream_meter(framing, *api_format, operation);
        let is_plain = delivery::is_uncompressed(&head.headers);
        let mut bytes = Vec::new();
        while let Some(chunk) = body.next_chunk().await.transpose()? {
            if is_plain {
                reading.feed(&chunk);
            }
            bytes.extend_from_slice(&chunk);
            if !share.try_reserve(chunk.len()) {
                body.put_back(bytes.into());
                return Ok(false);
            }
        }
        if is_plain {
            reject_incomplete_stream(&reading.finish(*api_format, false), operation.has_terminal_event(), &bytes)?;
        }
        *body = ResponseBody::from_bytes(Bytes::from_owner(BudgetedBytes { bytes, permit: share }));
        Ok(true)
    }

    /// Returns true if the provider's content policy rejected the request. Such a request must not be sent to other
    /// targets instead.
    pub(crate) fn is_policy_refusal(&self) -> bool {
        let body = || self.incoming.body.buffered_bytes();
        matches!(self.status(), 400 | 403) && body().is_some_and(|body| has_policy_error_code(body))
    }

    /// Returns the body if it is an error that was read completely, and is neither compressed nor long.
    pub(crate) fn error_body(&self) -> Option<&[u8]> {
        if self.status() < 400 || !delivery::is_uncompressed(self.headers()) {
            return None;
        }
        self.incoming.body.buffered_bytes().filter(|body| body.len() <= MAX_DISCARDED_BYTES).map(|body| &body[..])
    }

    /// Returns this denial with the usage of the response that it replaces. `framing` is that of a stream.
    pub(crate) fn with_usage_of_replaced(
        mut self,
        bytes: &[u8],
        operation: Operation,
        framing: Option<StreamFraming>,
    ) -> Self {
        self.replaced_usage = read_usage(bytes, self.api_format, operation, framing).map(Box::new);
        self.with_unknown_usage()
    }

    /// Returns this denial as that of a response whose usage cannot be read.
    pub(crate) fn with_unknown_usage(self) -> Self {
        Self { is_replacement: true, ..self }
    }

    /// Returns the usage of a response that was read completely.
    pub(crate) fn buffered_usage(&self, operation: Operation) -> Option<Usage> {
        let bytes = self.incoming.body.buffered_bytes().filter(|_| delivery::is_uncompressed(self.headers()))?;
        read_usage(bytes, self.api_format, operation, self.chunk_format(operation))
    }

    /// Discards the response. Reads the rest of a short body, so that the connection can be reused.
    pub(crate) async fn discard(mut self) {
        let body = &mut self.incoming.body;
        if body.content_length().is_some_and(|length| length <= MAX_DISCARDED_BYTES) {
            drop(tokio::time::timeout(DISCARD_TIMEOUT, penstock_net::collect(body, MAX_DISCARDED_BYTES)).await);
        }
    }

    /// Reads the rest of a short body, so that the connection can be reused while the response is stored.
    pub(crate) async fn release_connection(mut self) -> Self {
        let body = &mut self.incoming.body;
        if body.content_length().is_some_and(|length| length <= MAX_DISCARDED_BYTES) {
            let collecting = penstock_net::collect(body, MAX_DISCARDED_BYTES);
            if let Ok(Ok(Some(bytes))) = tokio::time::timeout(DISCARD_TIMEOUT, collecting).await {
                self.incoming.body = ResponseBody::from_bytes(bytes);
            }
        }
        self
    }

    /// Creates a response from the cache.
    pub(crate) fn from_cache(
        cached: CachedResponse,
        client_request: &ClientRequest<'_>,
        target: &Target<'_>,
        timer: &CoarseTimer,
    ) -> Self {
        Self::with_complete_body(
            &cached.content_type,
            cached.body,
            forward::response_api_format(client_request, target),
            timer,
        )
    }

    /// Creates a JSON response that the gateway itself produced.
    pub(crate) fn from_gateway(json: Bytes, api_format: ApiFormat, timer: &CoarseTimer) -> Self {
        Self::with_complete_body("application/json", json, api_format, timer)
    }

    fn with_complete_body(kind: &str, body: Bytes, api_format: ApiFormat, timer: &CoarseTimer) -> Self {
        let mut headers = Headers::with_capacity(16);
        headers.push(b"content-type", kind.as_bytes());
        let incoming =
            IncomingResponse { head: ResponseHead { status: 200, headers }, body: ResponseBody::from_bytes(body) };
        // No deadline: the body is complete.
        Self::new(incoming, api_format, Deadline::new(Duration::MAX, &Body::empty(), timer))
    }
}

/// Returns true if the next target should be tried after this result. A content policy refusal goes to the client
/// instead of other targets, unless its status is listed.
pub(crate) fn triggers_fallback(policy: &FallbackPolicy, result: &Result<UpstreamResponse>) -> bool {
    match result {
        Ok(response) => {
            let status = response.status();
            policy.should_fall_back(Some(status))
                && (policy.failure_statuses.contains(&status) || !response.is_policy_refusal())
        }
        // A target whose limit is reached counts as a target that responded with the status of the error.
        Err(error) if error.exceeded_limit().is_some() => {
            !error.stops_fallback() && policy.should_fall_back(Some(error.status()))
        }
        Err(error) => !error.stops_fallback() && policy.should_fall_back(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_json_is_rejected() {
        let mut head = ResponseHead { status: 200, headers: Headers::default() };
        head.headers.push(b"content-type", b"application/json");
        let is_complete = |text: &str| reject_truncated_json(&head, text.as_bytes()).is_ok();
        for text in ["", "{}", "{\n\"a\": [1,\n2]}\n", "{\"id\":1}\n{\"id\":2}\r\n\n{\"id\":3}"] {
            assert!(is_complete(text), "{text}");
        }
        for text in ["{", "{\"a\":\n[1,", "{\"id\":1}\n{\"id\":2", "<html>"] {
            assert!(!is_complete(text), "{text}");
        }
    }
}
