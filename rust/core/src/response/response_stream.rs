//! Streamed response to the client. Meters its usage, sends heartbeats, resumes it if it breaks off, and closes the
//! record of the request.

use std::{mem, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use penstock_llm::{
    api_format::{ApiFormat, Failure, error_event},
    stream::{include_usage, meter::SseMeter},
};
use penstock_net::ResponseBody;

use crate::{
    accounting::{
        record::{Outcome, Record},
        spool::Spool,
    },
    error::Error,
    response::{
        chunk_coalescer::ChunkCoalescer,
        client_rewriter::RewriteForClient,
        partial_event::PartialEventBuffer,
        response_meter::{MeteredResponse, ResponseMeter},
    },
};

/// Resumes a stream that broke off, at another target.
pub(crate) trait ResumeStream: Send {
    /// Records events that the client receives. Returns false if the memory budget is exhausted.
    fn record_events(&mut self, events: &Bytes) -> bool;

    /// Returns the silence after which the client receives a heartbeat; `None` if heartbeats are disabled.
    fn heartbeat_interval(&self) -> Option<Duration>;

    /// Returns the body with which another target continues the broken stream; `None` if no target can.
    fn resume<'r>(
        &'r mut self,
        error: &'static str,
        record: &'r mut Record,
    ) -> Pin<Box<dyn Future<Output = Option<ResponseBody>> + Send + 'r>>;
}

/// Rest of a response, metered as the client reads it.
pub struct ResponseStream {
    body: ResponseBody,
    meter: ResponseMeter,
    api_format: ApiFormat,
    /// True if a complete stream of this operation ends with a terminal event.
    expects_end_event: bool,
    record: Option<Record>,
    coalescer: ChunkCoalescer,
    partial_event: PartialEventBuffer,
    /// Resumes the stream at another target if it breaks off.
    continuation: Option<Box<dyn ResumeStream>>,
    rewriter: Option<Box<dyn RewriteForClient>>,
    is_finished: bool,
    /// Set if the record was closed before the client received the last chunk.
    settled: Option<SettledStream>,
    /// Spool in which the record must be on the disk before the client gets the last chunk.
    durable_spool: Option<Arc<Spool>>,
    /// Chunk or end that `next` returns once the record is on the disk. Survives if `next` is cancelled meanwhile.
    held_end: Option<NextChunk>,
}

/// Next bytes of a stream; `None` at its end.
type NextChunk = Result<Option<Bytes>, BodyTruncated>;

/// Data of a stream that is still needed after its record is closed.
struct SettledStream {
    /// True if usage must be removed from the remaining chunks.
    hides_usage: bool,
}

/// SSE comment, which event parsers skip. Prevents proxies and clients from closing a connection that is silent for
/// long.
const HEARTBEAT_COMMENT: &[u8] = b": keep-alive\n\n";

/// Error for a response that was truncated where no error event can be sent. The client connection must not end
/// cleanly.
#[derive(Debug, PartialEq, Eq)]
pub struct BodyTruncated;

impl ResponseStream {
    pub fn new(
        mut body: ResponseBody,
        meter: ResponseMeter,
        api_format: ApiFormat,
        expects_end_event: bool,
        record: Record,
    ) -> Self {
        body.use_small_chunks();
        let mut stream = Self::passthrough(body);
        (stream.meter, stream.api_format, stream.expects_end_event) = (meter, api_format, expects_end_event);
        (stream.durable_spool, stream.record) = (record.durable_spool().cloned(), Some(record));
        stream
    }

    /// Sends a heartbeat after each silence of this length, but only between two events.
    #[must_use]
    pub fn with_heartbeat(mut self, every: Duration) -> Self {
        self.body.report_idle_every(every);
        self
    }

    /// Creates a stream that is passed through without a meter or a record.
    pub fn passthrough(body: ResponseBody) -> Self {
        Self {
            body,
            meter: ResponseMeter::Unmetered,
            api_format: ApiFormat::OpenAi,
            expects_end_event: false,
            record: None,
            coalescer: ChunkCoalescer::default(),
            partial_event: PartialEventBuffer::default(),
            continuation: None,
            rewriter: None,
            is_finished: false,
            settled: None,
            durable_spool: None,
            held_end: None,
        }
    }

    /// Sets the rewriter, which changes the bytes for the client after they were metered and recorded.
    #[must_use]
    pub fn with_rewriter(mut self, rewriter: Option<Box<dyn RewriteForClient>>) -> Self {
        self.rewriter = rewriter;
        self
    }

    /// Returns the next bytes for the client, or a heartbeat; `None` at the end.
    pub async fn next(&mut self) -> NextChunk {
        loop {
            let chunk = self.next_recorded().await?;
            let Some(rewriter) = &mut self.rewriter else { return Ok(chunk) };
            let Some(bytes) = chunk else {
                let rest = rewriter.finish();
                self.rewriter = None;
                return Ok(Some(rest).filter(|rest| !rest.is_empty()));
            };
            let rewritten = rewriter.rewrite_chunk(bytes);
            if !rewritten.is_empty() {
                return Ok(Some(rewritten));
            }
        }
    }

    /// Returns all bytes that are ready, as the provider sent them, or a heartbeat; `None` at the end.
    async fn next_recorded(&mut self) -> NextChunk {
        if self.is_finished {
            return Ok(None);
        }
        if !self.body.is_done() {
            self.coalescer.wait_for_more().await;
        }
        loop {
            match self.body.next_chunk().await {
                Some(Ok(silence)) if silence.is_empty() => {
                    if !self.partial_event.is_mid_event()
                        && matches!(&self.meter, ResponseMeter::SseEvents(meter) if !meter.is_terminated())
                    {
                        return Ok(Some(Bytes::from_static(HEARTBEAT_COMMENT)));
                    }
                }
                Some(Ok(bytes)) => {
                    let bytes = self.process_chunk(bytes);
                    if self.has_empty_end() {
                        // The client must not get the end of an empty response.
                        self.partial_event.take_held();
                        if self.try_resume(None).await {
                            continue;
                        }
                        let end = self.finish(None);
                        return self.hold_until_durable(end).await;
                    }
                    self.settle_before_last_chunk();
                    if !bytes.is_empty() {
                        return self.hold_until_durable(Ok(Some(bytes))).await;
                    }
                }
                None if self.try_resume(None).await => (),
                None => {
                    let end = self.finish(None);
                    return self.hold_until_durable(end).await;
                }
                Some(Err(error)) => {
                    let error = Error::from(error);
                    if !self.try_resume(Some(&error)).await {
                        let end = self.finish(Some(&error));
                        return self.hold_until_durable(end).await;
                    }
                }
            }
        }
    }

    /// Returns the next chunk. If the record was closed before it, waits until the record is on the disk, where the
    /// settings demand that.
    async fn hold_until_durable(&mut self, chunk: NextChunk) -> NextChunk {
        let Some(spool) = self.durable_spool.take_if(|_| self.record.is_none()) else { return chunk };
        self.held_end = Some(chunk);
        Box::pin(spool.wait_until_durable()).await;
        self.held_end.take().unwrap_or(Ok(None))
    }

    /// Meters bytes from the provider and returns those that can be sent to the client now.
    fn process_chunk(&mut self, bytes: Bytes) -> Bytes {
        self.coalescer.record_chunk(bytes.len());
        self.meter.feed(&bytes);
        self.record.iter().for_each(|record| record.record_received_chunk(&bytes));
        if self.has_empty_end() {
            return Bytes::new();
        }
        let bytes = self.partial_event.hold_incomplete(bytes, self.meter.incomplete_bytes());
        let bytes = if self.should_hide_usage() { include_usage::strip_usage(bytes) } else { bytes };
        if let Some(continuation) = &mut self.continuation
            && !continuation.record_events(&bytes)
        {
            self.continuation = None;
            self.record.iter().for_each(|record| record.metrics().stream_recovery_overflows.add(1));
        }
        if let Some(record) = &mut self.record {
            record.record_chunk(&bytes);
            if matches!(&self.meter, ResponseMeter::SseEvents(meter) if meter.has_usage()) {
                record.log.count_input = None;
            }
        }
        bytes
    }

    /// Closes the record if the client is about to receive the last chunk. A client that has the complete response may
    /// rely on its record, even if this process is killed at that moment.
    fn settle_before_last_chunk(&mut self) {
        let Some(record) = &self.record else { return };
        let is_read = self.body.is_done();
        let is_complete = match &self.meter {
            ResponseMeter::SseEvents(meter) => {
                // A pending cache entry also needs the bytes after the terminal event.
                let has_ended = meter.is_terminated() && record.log.pending_cache_entry.is_none();
                (has_ended || is_read) && !meter.is_truncated(false, self.expects_end_event)
            }
            ResponseMeter::AwsFrames(meter) => is_read && (meter.is_terminated() || !self.expects_end_event),
            ResponseMeter::ArrayItems(read) => is_read && (read.0.has_ended() || !self.expects_end_event),
            ResponseMeter::LargeBody(_) | ResponseMeter::Compressed(_) | ResponseMeter::Unmetered => is_read,
        };
        if is_complete && !self.partial_event.has_held() && !self.partial_event.is_mid_event() {
            let hides_usage = self.should_hide_usage();
            let read = mem::take(&mut self.meter).finish(self.api_format, false);
            self.settle_record(read, None, &Bytes::new(), Outcome::Complete);
            self.settled = Some(SettledStream { hides_usage });
        }
    }

    /// Returns true if the stream should have content, but has ended without any.
    fn has_empty_end(&self) -> bool {
        self.expects_end_event && self.meter.has_empty_end()
    }

    /// Returns true if the events contain usage that the client did not request.
    fn should_hide_usage(&self) -> bool {
        let hides = self.record.as_ref().is_some_and(|record| record.log.hides_usage);
        self.settled.as_ref().is_some_and(|settled| settled.hides_usage)
            || (hides && matches!(self.meter, ResponseMeter::SseEvents(_)))
    }

    pub(crate) fn set_continuation(&mut self, continuation: Box<dyn ResumeStream>) {
        self.continuation = Some(continuation);
    }

    /// Tries to continue a truncated stream at another target; returns true if it was resumed.
    async fn try_resume(&mut self, error: Option<&Error>) -> bool {
        // Boxed: inline, it would enlarge the future of every stream.
        self.continuation.is_some() && Box::pin(self.resume(error)).await
    }

    async fn resume(&mut self, error: Option<&Error>) -> bool {
        let (Some(mut continuation), Some(record)) = (self.continuation.take(), &mut self.record) else { return false };
        let is_cut = match &self.meter {
            ResponseMeter::SseEvents(meter) => meter.is_truncated(error.is_some(), self.expects_end_event),
            _ => false,
        };
        if !is_cut || self.partial_event.is_mid_event() {
            return false;
        }
        let Some(mut body) = continuation.resume(error.map_or("upstream_disconnected", Error::code), record).await
        else {
            return false;
        };
        // Discards the start of an event that will never be completed.
        self.partial_event.take_held();
        body.use_small_chunks();
        if let Some(every) = continuation.heartbeat_interval() {
            body.report_idle_every(every);
        }
        record.log.bodies.open_tap();
        self.body = body;
        let meter = match record.log.operation {
            Some(operation) => SseMeter::with_deltas(self.api_format, operation),
            None => SseMeter::new(self.api_format),
        };
        self.meter = ResponseMeter::SseEvents(meter.into());
        self.continuation = Some(continuation);
        true
    }

    /// Returns true if all of the body was read, so that `next` does not wait.
    pub fn is_ended(&self) -> bool {
        self.is_finished || self.body.is_done()
    }

    /// Ends the stream early because this process is shutting down.
    pub fn stop_for_drain(&mut self) -> Result<Option<Bytes>, BodyTruncated> {
        if let Some(end) = self.held_end.take() {
            self.is_finished = true;
            return end;
        }
        self.finish(Some(&Error::Draining))
    }

    /// Ends the stream early because the client does not read.
    pub fn stop_unread(&mut self, limit: Duration) -> Result<Option<Bytes>, BodyTruncated> {
        self.finish(Some(&Error::ClientReadTimeout { milliseconds: limit.as_millis() as u64 }))
    }

    /// Ends the stream and closes its record. Reports a truncation to the client as an error event where possible.
    fn finish(&mut self, error: Option<&Error>) -> Result<Option<Bytes>, BodyTruncated> {
        self.is_finished = true;
        if self.settled.is_some() {
            return Ok(None);
        }
        let hides_usage = self.should_hide_usage();
        // An error event cannot be inserted in the middle of a frame.
        let is_within = matches!(&self.meter, ResponseMeter::AwsFrames(meter) if meter.has_partial_frame());
        let read = mem::take(&mut self.meter).finish(self.api_format, error.is_some());
        let is_events = read.is_event_stream;
        let is_cut = match read.has_end_marker {
            Some(true) => false,
            Some(false) => error.is_some() || self.expects_end_event,
            None => error.is_some(),
        };
        let rest = if is_cut { Bytes::new() } else { self.partial_event.take_held() };
        let rest = if hides_usage { include_usage::strip_usage(rest) } else { rest };
        let error_code = is_cut.then(|| error.map_or("upstream_disconnected", Error::code));
        self.settle_record(read, error_code, &rest, if is_cut { Outcome::Truncated } else { Outcome::Complete });
        match (is_cut, is_events && !is_within) {
            (false, _) => Ok((!rest.is_empty()).then_some(rest)),
            (true, true) => Ok(Some(encode_error_event(self.api_format, error, self.partial_event.is_mid_event()))),
            (true, false) => Err(BodyTruncated),
        }
    }
}

impl ResponseStream {
    /// Closes the record, if there is one. `rest` is the last chunk that the client gets.
    fn settle_record(
        &mut self,
        read: MeteredResponse,
        error_code: Option<&'static str>,
        rest: &[u8],
        outcome: Outcome,
    ) {
        let Some(mut record) = self.record.take() else { return };
        record.log.error_code = error_code.or_else(|| read.has_failed.then_some("upstream_error_event"));
        if !rest.is_empty() {
            record.record_chunk(rest);
        }
        read.settle_record(record, outcome);
    }
}

impl Drop for ResponseStream {
    /// Records the usage so far: a response costs what the provider counted, even if the client disconnects.
    fn drop(&mut self) {
        if let (Some(record), false) = (self.record.take(), std::thread::panicking()) {
            let read = mem::take(&mut self.meter).finish(self.api_format, true);
            read.settle_record(record, Outcome::Aborted);
        }
    }
}

/// Encodes the error as the last event of the stream.
fn encode_error_event(api_format: ApiFormat, error: Option<&Error>, is_within: bool) -> Bytes {
    let unfinished = Error::UpstreamResponseBroken { cause: "its stream ended before it was complete".into() };
    let error = error.unwrap_or(&unfinished);
    let message = error.message();
    let failure = Failure {
        status: error.status(),
        error_type: None,
        message: &message,
        code: Some(error.code()),
        request_id: None,
    };
    // A blank line terminates the event that was cut in the middle.
    let end: &[u8] = if is_within { b"\n\n" } else { b"" };
    [end, error_event(api_format, &failure).as_slice()].concat().into()
}
