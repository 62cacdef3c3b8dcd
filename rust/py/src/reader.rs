//! Request body reader. Buffers small and fast bodies, and feeds others to the engine in chunks.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use penstock_core::ingress::{Request, message::RequestHead};
use penstock_net::body::{Body, BodyEnd, Feeder, ReaderState, feed_channel};
use pyo3::{prelude::*, types::PyDict};
use tokio::sync::oneshot;

use crate::{
    callback::{self, BodyMessage},
    exchange::{CompletionGuard, Exchange},
    peer,
    runtime::{Job, JobRunner},
    scope::ExpectedBody,
};

/// Maximum size of a body that the engine gets as one complete body.
const MAX_BUFFERED_BYTES: usize = 1024 * 1024;
/// Time for which the rest of a body is read and discarded after the response. If the connection were closed with
/// unread bytes, a client that is still sending would lose the response.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum pause between two chunks while discarding.
const LINGER_IDLE_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_LINGER_BYTES: usize = 32 * 1024 * 1024;

/// Reads the body of one request.
pub struct BodyReader {
    id: u64,
    job_runner: JobRunner,
    proto: Py<PyAny>,
    scope: Py<PyDict>,
    /// Keeps the server's own task alive while the body is read. The end of that task would close the connection.
    _completion: Option<Arc<CompletionGuard>>,
    expected_bytes: Option<u64>,
    read_bytes: u64,
    stage: Stage,
}

#[allow(clippy::large_enum_variant, reason = "a reader is always boxed")]
enum Stage {
    /// Collects the body. The engine gets the request with the complete body, unless the body is large or slow.
    Buffering {
        head: RequestHead,
        exchange: Exchange,
        buffered: Vec<u8>,
        was_polled: bool,
    },
    /// The engine has the request and gets the body in chunks.
    Feeding(BodyFeed),
    /// Discards the rest of the body. Still reports a disconnect while the response is being sent.
    Discarding {
        disconnect_sender: oneshot::Sender<()>,
        started_at: Instant,
        last_chunk_at: Instant,
        remaining_bytes: usize,
    },
    /// The body is invalid and nothing more can be read. The disconnect sender stays alive until the engine has
    /// responded, because dropping it would report a disconnect.
    Broken(BodyFeed),
    Finished,
}

struct BodyFeed {
    feeder: Feeder,
    /// Reports a disconnect. Only the reader can notice it while a body is being received.
    disconnect_sender: oneshot::Sender<()>,
}

/// Result of a periodic check of a reader.
pub enum PollOutcome {
    Waiting,
    /// The body is slow. The engine gets the request now, waits for the rest and applies its own timeout.
    HandOver(Box<Job>),
    Finished,
}

impl BodyReader {
    /// Starts to read. The engine gets the request with the complete body, or with the first part of a large one.
    pub fn start(
        scope: &Bound<'_, PyDict>,
        jobs: JobRunner,
        head: RequestHead,
        exchange: Exchange,
        expected: ExpectedBody,
    ) {
        let py = scope.py();
        let expected = if let ExpectedBody::Length(length) = expected { Some(length) } else { None };
        let is_large = expected.is_some_and(|length| length > MAX_BUFFERED_BYTES as u64);
        let expects_continue = head.headers.get("expect").is_some();
        let buffered = Vec::with_capacity(expected.map_or(0, |length| (length as usize).min(MAX_BUFFERED_BYTES)));
        let mut reader = Box::new(Self {
            id: jobs.body_readers.new_id(),
            proto: exchange.proto(py),
            scope: scope.clone().unbind(),
            _completion: exchange.completion(),
            job_runner: jobs,
            expected_bytes: expected,
            read_bytes: 0,
            stage: Stage::Buffering { head, exchange, buffered, was_polled: false },
        });
        if !is_large {
            return reader.request_more(py);
        }
        // Submits the request first, because the engine may reject it before the body arrives.
        let jobs = reader.job_runner.clone();
        let job = reader.start_feeding();
        if let (true, Stage::Feeding(BodyFeed { feeder, .. })) = (expects_continue, &reader.stage) {
            feeder.pause();
            jobs.body_readers.park(reader);
            jobs.submit_if_some(job);
        } else {
            jobs.submit_if_some(job);
            reader.request_more(py);
        }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// Handles a chunk; `None` means that no more chunks will come.
    pub fn handle_chunk(mut self: Box<Self>, py: Python<'_>, message: Option<BodyMessage<'_>>) {
        let Some(BodyMessage { body: Some(body), has_more: more }) = message else { return self.fail_body(py) };
        let chunk = body.as_bytes();
        self.read_bytes += chunk.len() as u64;
        let complete = !more || self.expected_bytes == Some(self.read_bytes);
        match &mut self.stage {
            Stage::Buffering { buffered, .. } => {
                buffered.extend_from_slice(chunk);
                if complete {
                    return self.submit_complete();
                }
                if buffered.len() > MAX_BUFFERED_BYTES {
                    let job = self.start_feeding();
                    self.job_runner.submit_if_some(job);
                }
                self.request_more(py);
            }
            Stage::Feeding(BodyFeed { feeder, .. }) => {
                if complete || feeder.reader_state() == ReaderState::Reading {
                    return self.feed_chunk(py, Bytes::copy_from_slice(chunk), complete);
                }
                self.start_discarding();
                self.request_more(py);
            }
            Stage::Discarding { disconnect_sender, last_chunk_at: last, remaining_bytes, .. } => {
                *last = Instant::now();
                *remaining_bytes = remaining_bytes.saturating_sub(chunk.len());
                if complete {
                    self.watch_disconnect(py);
                } else if *remaining_bytes > 0 || !disconnect_sender.is_closed() {
                    self.request_more(py);
                }
            }
            Stage::Broken(_) | Stage::Finished => (),
        }
    }

    /// Continues to read when the engine requests more. If the engine no longer needs the body, discards the rest.
    pub fn resume(mut self: Box<Self>, py: Python<'_>) {
        let (Stage::Feeding(BodyFeed { feeder, .. }) | Stage::Broken(BodyFeed { feeder, .. })) = &self.stage else {
            return;
        };
        match (&self.stage, feeder.reader_state()) {
            (Stage::Broken(_), ReaderState::Reading) => {
                let jobs = self.job_runner.clone();
                jobs.body_readers.park(self);
            }
            (Stage::Broken(_), _) => (),
            (_, ReaderState::Reading) => self.request_more(py),
            // Nothing to discard: the client sent `Expect: 100-continue` and got its response before it sent any body.
            _ if self.read_bytes == 0 => (),
            _ => {
                self.start_discarding();
                self.request_more(py);
            }
        }
    }

    /// Checks a reader that waits for a chunk. Returns the job of a slow body for the engine, and ends a wait that has
    /// timed out.
    pub fn check_timeouts(&mut self, now: Instant) -> PollOutcome {
        match &mut self.stage {
            Stage::Buffering { was_polled, .. } => {
                if std::mem::replace(was_polled, true) {
                    return self
                        .start_feeding()
                        .map_or(PollOutcome::Waiting, |job| PollOutcome::HandOver(Box::new(job)));
                }
                PollOutcome::Waiting
            }
            Stage::Feeding(BodyFeed { feeder, .. }) => match feeder.reader_state() {
                ReaderState::Reading => PollOutcome::Waiting,
                ReaderState::TimedOut => PollOutcome::Finished,
                ReaderState::Closed => {
                    self.start_discarding();
                    PollOutcome::Waiting
                }
            },
            Stage::Discarding { disconnect_sender, started_at: since, last_chunk_at: last, .. } => {
                if !disconnect_sender.is_closed() {
                    *since = now;
                    *last = now;
                }
                if now.saturating_duration_since(*since) > LINGER_TIMEOUT
                    || now.saturating_duration_since(*last) > LINGER_IDLE_TIMEOUT
                {
                    return PollOutcome::Finished;
                }
                PollOutcome::Waiting
            }
            Stage::Broken(_) | Stage::Finished => PollOutcome::Finished,
        }
    }

    fn feed_chunk(self: Box<Self>, py: Python<'_>, chunk: Bytes, complete: bool) {
        let Stage::Feeding(BodyFeed { feeder, .. }) = &self.stage else { return };
        let feeder = feeder.clone();
        let has_capacity = feeder.push(chunk);
        if complete {
            feeder.finish(BodyEnd::Complete);
            self.watch_disconnect(py);
        } else if has_capacity {
            self.request_more(py);
        } else {
            let (jobs, id) = (self.job_runner.clone(), self.id);
            jobs.body_readers.park(self);
            // The engine may have requested more before this reader was parked.
            if !feeder.is_paused()
                && let Some(reader) = jobs.body_readers.take_parked(id)
            {
                reader.resume(py);
            }
        }
    }

    fn request_more(self: Box<Self>, py: Python<'_>) {
        let proto = self.proto.clone_ref(py);
        callback::receive_chunk(py, &proto, self);
    }

    pub fn job_runner(&self) -> &JobRunner {
        &self.job_runner
    }

    /// Lets the server report a disconnect, now that the body was read completely.
    fn watch_disconnect(mut self: Box<Self>, py: Python<'_>) {
        let stage = std::mem::replace(&mut self.stage, Stage::Finished);
        if let Stage::Feeding(BodyFeed { disconnect_sender, .. }) | Stage::Discarding { disconnect_sender, .. } = stage
            && !disconnect_sender.is_closed()
        {
            callback::watch_disconnect(py, &self.proto, disconnect_sender);
        }
    }

    fn start_discarding(&mut self) {
        let stage = std::mem::replace(&mut self.stage, Stage::Finished);
        if let Stage::Feeding(BodyFeed { disconnect_sender, .. }) = stage {
            let now = Instant::now();
            self.stage = Stage::Discarding {
                disconnect_sender,
                started_at: now,
                last_chunk_at: now,
                remaining_bytes: MAX_LINGER_BYTES,
            };
        }
    }

    fn submit_complete(mut self: Box<Self>) {
        if let Stage::Buffering { head, exchange, buffered, .. } = std::mem::replace(&mut self.stage, Stage::Finished) {
            self.job_runner.submit(Job { request: Request { head, body: Body::Complete(buffered.into()) }, exchange });
        }
    }

    /// Creates the job for the engine and switches to feeding chunks. Returns `None` unless the reader is buffering.
    fn start_feeding(&mut self) -> Option<Job> {
        let Stage::Buffering { head, exchange, buffered, .. } = std::mem::replace(&mut self.stage, Stage::Finished)
        else {
            return None;
        };
        let (jobs, id) = (self.job_runner.clone(), self.id);
        let (feeder, reading) = feed_channel(move || {
            if let Some(reader) = jobs.body_readers.take_parked(id) {
                Python::attach(|py| reader.resume(py));
            }
        });
        if !buffered.is_empty() {
            feeder.push(buffered.into());
        }
        let (disconnect_sender, disconnect) = oneshot::channel();
        self.stage = Stage::Feeding(BodyFeed { feeder, disconnect_sender });
        let body = Body::Streamed(reading, self.expected_bytes);
        Some(Job { request: Request { head, body }, exchange: exchange.with_disconnect_signal(disconnect) })
    }

    fn fail_body(mut self: Box<Self>, py: Python<'_>) {
        // A request that the engine does not have yet goes to it now, so that it gets a response and a record.
        let job = if let Stage::Buffering { .. } = self.stage { self.start_feeding() } else { None };
        let Stage::Feeding(BodyFeed { feeder, disconnect_sender }) =
            std::mem::replace(&mut self.stage, Stage::Finished)
        else {
            return;
        };
        let jobs = self.job_runner.clone();
        if peer::is_connected(self.scope.bind(py)) {
            self.stage = Stage::Broken(BodyFeed { feeder: feeder.clone(), disconnect_sender });
            jobs.body_readers.park(self);
            feeder.finish(BodyEnd::Malformed);
        } else {
            // The order matters: a consumer of the body must see the broken body first. Only a request that does not
            // wait for the body should see the disconnect.
            feeder.finish(BodyEnd::Disconnected);
            disconnect_sender.send(()).ok();
        }
        jobs.submit_if_some(job);
    }
}
