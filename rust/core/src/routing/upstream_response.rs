//! What came back from a target, as long as it is not decided whether the caller gets it.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use penstock_llm::{
    api_format::{ApiFormat, is_complete_json},
    operation::Operation,
    stream::sse,
    usage::Meter,
};

use crate::{
    error::{Error, Result},
    gateway,
    ingress::{body::Body, headers::Headers},
    process::{coarse_timer::CoarseTimer, deadline::Deadline},
    resolve::{target::Target, target_resolver::Call},
    response::{
        delivery::{self, StreamFraming, UpstreamResponse},
        outgoing::{MeteredResponse, ResponseMeter},
    },
    state::shared::{
        memory_budget::{BudgetedBytes, MemoryPermit},
        response_cache::CachedResponse,
    },
    upstream::{self, IncomingResponse, ResponseBody, ResponseHead},
};

/// The rest of an answer that nobody wants is read up to this, so that its connection can be used again.
const MAX_DISCARDED_BYTES: usize = 16 * 1024;
const DISCARD_TIMEOUT: Duration = Duration::from_millis(50);

/// A length that is too short makes a whole answer of half of one.
fn reject_truncated_json(head: &ResponseHead, bytes: &[u8]) -> Result<()> {
    let is_json = head.headers.is_json() && delivery::is_uncompressed(&head.headers);
    if head.status < 300 && is_json && !bytes.is_empty() && !is_complete_json(bytes) {
        return Err(Error::UpstreamResponseBroken { cause: "what it sent as JSON is none".into() });
    }
    Ok(())
}

/// How providers call it when their safety system refuses a request.
const POLICY_ERROR_CODES: [&str; 4] =
    ["content_policy_violation", "content_filter", "moderation_blocked", "ResponsibleAIPolicyViolation"];

fn has_policy_error_code(body: &[u8]) -> bool {
    let Ok(said) = serde_json::from_slice::<serde_json::Value>(body) else { return false };
    let error = &said["error"];
    [&error["code"], &error["type"], &error["innererror"]["code"]]
        .into_iter()
        .filter_map(serde_json::Value::as_str)
        .any(|code| POLICY_ERROR_CODES.contains(&code))
}

/// A stream that has come to its end without saying how it ended, or that said it failed.
fn reject_incomplete_stream(read: &MeteredResponse, ends_with_event: bool, bytes: &[u8]) -> Result<()> {
    if read.has_failed {
        let told = last_error_message(bytes).unwrap_or_else(|| "it did not say why".to_owned());
        return Err(Error::UpstreamResponseBroken { cause: format!("its stream ended in an error: {told}") });
    }
    if read.has_end_marker == Some(true) || !ends_with_event {
        return Ok(());
    }
    Err(Error::UpstreamResponseBroken { cause: "its stream ended before it was complete".into() })
}

/// So much of a provider's own words is told.
const MAX_ERROR_MESSAGE_CHARS: usize = 300;

fn last_error_message(events: &[u8]) -> Option<String> {
    let said = |event| serde_json::from_slice::<serde_json::Value>(&sse::event_data(event)?).ok();
    let message = |said: serde_json::Value| said["error"]["message"].as_str().map(ToOwned::to_owned);
    let told = sse::split_events(events).filter_map(|event| said(event).and_then(message)).last();
    told.map(|told| told.chars().take(MAX_ERROR_MESSAGE_CHARS).collect())
}

impl UpstreamResponse {
    pub(crate) fn status(&self) -> u16 {
        self.incoming.head.status
    }

    pub(crate) fn headers(&self) -> &Headers {
        &self.incoming.head.headers
    }

    /// Once there is something of its body, or all of it where it is small: until then nothing is passed on, and what
    /// breaks off has failed. A stream that says nothing for so long has begun all the same.
    pub(crate) async fn await_body_start(&mut self, operation: Operation, patience: Duration) -> Result<()> {
        let Self { incoming: IncomingResponse { head, body }, deadline, .. } = self;
        // Both pinned here: what an async function takes it keeps twice.
        if delivery::should_buffer(
            StreamFraming::detect(operation, head, body.content_length()),
            head,
            body.content_length(),
        ) {
            let whole = {
                let collecting = pin!(upstream::collect(body, delivery::MAX_BUFFERED_RESPONSE_BYTES));
                deadline.enforce(collecting).await?
            };
            if let Some(bytes) = whole {
                reject_truncated_json(head, &bytes)?;
                *body = ResponseBody::from_bytes(bytes);
            }
        } else {
            let first = pin!(body.wait_for_first_chunk());
            let begun = pin!(deadline.enforce(first));
            if let Ok(begun) = tokio::time::timeout(patience, begun).await {
                begun?;
            }
        }
        Ok(())
    }

    /// Whether it is a stream of events in the making.
    pub(crate) fn is_event_stream(&self) -> bool {
        self.status() == 200 && delivery::is_event_stream(self.headers())
    }

    /// What it consists of, where it is a stream in the making.
    pub(crate) fn chunk_format(&self, operation: Operation) -> Option<StreamFraming> {
        let IncomingResponse { head, body } = &self.incoming;
        StreamFraming::detect(operation, head, body.content_length()).filter(|_| head.status == 200)
    }

    /// Once all of its pieces are there, good to the end; and whether that was so. One for which there is no room goes on
    /// as it comes.
    pub(crate) async fn buffer_stream(
        &mut self,
        pieces: StreamFraming,
        asked: Operation,
        mut share: MemoryPermit,
    ) -> Result<bool> {
        let Self { incoming: IncomingResponse { head, body }, dialect, .. } = self;
        let mut reading = match pieces {
            StreamFraming::SseEvents => ResponseMeter::SseEvents(Meter::for_operation(*dialect, asked).into()),
            StreamFraming::AwsFrames => ResponseMeter::AwsFrames(Box::default()),
            StreamFraming::JsonArrayItems => ResponseMeter::ArrayItems(Box::default()),
        };
        let is_plain = delivery::is_uncompressed(&head.headers);
        let mut bytes = Vec::new();
        while let Some(piece) = body.next_chunk().await.transpose()? {
            if is_plain {
                reading.feed(&piece);
            }
            bytes.extend_from_slice(&piece);
            if !share.try_reserve(piece.len()) {
                body.put_back(bytes.into());
                return Ok(false);
            }
        }
        if is_plain {
            reject_incomplete_stream(&reading.finish(*dialect, false), asked.has_terminal_event(), &bytes)?;
        }
        *body = ResponseBody::from_bytes(Bytes::from_owner(BudgetedBytes { bytes, permit: share }));
        Ok(true)
    }

    /// Whether its provider refused what was asked, and not only to answer it: others are not to be asked instead.
    pub(crate) fn is_policy_refusal(&self) -> bool {
        let body = || self.incoming.body.buffered_bytes();
        matches!(self.status(), 400 | 403) && body().is_some_and(|body| has_policy_error_code(body))
    }

    /// Nobody wants it: its connection may still serve others.
    pub(crate) async fn discard(mut self) {
        let body = &mut self.incoming.body;
        if body.content_length().is_some_and(|length| length <= MAX_DISCARDED_BYTES) {
            drop(tokio::time::timeout(DISCARD_TIMEOUT, upstream::collect(body, MAX_DISCARDED_BYTES)).await);
        }
    }

    /// An answer that was kept.
    pub(crate) fn from_cache(kept: CachedResponse, call: &Call<'_>, target: &Target<'_>, grace: &CoarseTimer) -> Self {
        Self::with_complete_body(&kept.content_type, kept.body, gateway::response_api_format(call, target), grace)
    }

    /// An answer of the gateway's own.
    pub(crate) fn from_gateway(json: Bytes, dialect: ApiFormat, grace: &CoarseTimer) -> Self {
        Self::with_complete_body("application/json", json, dialect, grace)
    }

    fn with_complete_body(kind: &str, body: Bytes, dialect: ApiFormat, grace: &CoarseTimer) -> Self {
        let mut headers = Headers::with_capacity(16);
        headers.push(b"content-type", kind.as_bytes());
        let incoming =
            IncomingResponse { head: ResponseHead { status: 200, headers }, body: ResponseBody::from_bytes(body) };
        // There is nothing to wait for.
        Self::new(incoming, dialect, Deadline::new(Duration::MAX, &Body::empty(), grace))
    }
}
