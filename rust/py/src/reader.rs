//! A request's body on its way in: gathered where it is small and quick, fed to the engine in pieces where it is not.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use penstock_core::{
    gateway::Request,
    ingress::{
        body::{Body, BodyEnd, Feeder, ReaderState, feed_channel},
        headers::RequestHead,
    },
};
use pyo3::{prelude::*, types::PyDict};
use tokio::sync::oneshot;

use crate::{
    callback::{self, Message},
    exchange::{Done, Exchange},
    peer,
    runtime::{Job, Jobs},
    scope::Expected,
};

/// Bodies up to this size cross the border in one piece.
const GATHERED: usize = 1024 * 1024;
/// What is left of a body when its request was answered is read for this long and thrown away, so that a caller who is
/// still sending gets to read the answer: a connection that closes with something unread in it takes the answer along.
const LINGER: Duration = Duration::from_secs(5);
/// The same for a caller who pauses.
const LINGER_IDLE: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 32 * 1024 * 1024;

/// Reads the body of one request.
pub struct Reader {
    id: u64,
    jobs: Jobs,
    proto: Py<PyAny>,
    scope: Py<PyDict>,
    /// The server's own task ends no sooner than the reading: it would end the connection.
    _done: Option<Arc<Done>>,
    expected: Option<u64>,
    read: u64,
    stage: Stage,
}

#[allow(clippy::large_enum_variant, reason = "a reader is boxed as a whole")]
enum Stage {
    /// The request is handed to the engine with its whole body, unless that is large or takes its time.
    Gathering {
        head: RequestHead,
        exchange: Exchange,
        gathered: Vec<u8>,
        looked_at: bool,
    },
    /// The engine has the request.
    Feeding(Feeding),
    /// Nobody wants the rest; while the answer is on its way, whoever sends it must learn that the caller left.
    Discarding {
        tell: oneshot::Sender<()>,
        since: Instant,
        last: Instant,
        left: usize,
    },
    /// There is nothing more to read. The sender is kept until the engine has answered: its end would say that the caller left.
    Broken(Feeding),
    Over,
}

struct Feeding {
    feeder: Feeder,
    /// Tells that the caller left: while a body comes, only its reader can know.
    tell: oneshot::Sender<()>,
}

/// What becomes of a reader that the clock looked at.
pub enum Look {
    Stays,
    /// The body takes its time: from here on the engine waits for it, and bounds the wait.
    Feeds(Box<Job>),
    Ends,
}

impl Reader {
    /// Begins to read; the request is handed over with its body, or with the first part of a large one.
    pub fn begin(scope: &Bound<'_, PyDict>, jobs: Jobs, head: RequestHead, exchange: Exchange, expected: Expected) {
        let py = scope.py();
        let expected = if let Expected::Exactly(length) = expected { Some(length) } else { None };
        let is_large = expected.is_some_and(|length| length > GATHERED as u64);
        let is_asked_for = head.headers.get("expect").is_some();
        let gathered = Vec::with_capacity(expected.map_or(0, |length| (length as usize).min(GATHERED)));
        let mut reader = Box::new(Self {
            id: jobs.waiting.new_id(),
            proto: exchange.proto(py),
            scope: scope.clone().unbind(),
            _done: exchange.done(),
            jobs,
            expected,
            read: 0,
            stage: Stage::Gathering { head, exchange, gathered, looked_at: false },
        });
        if !is_large {
            return reader.more(py);
        }
        // The engine may refuse it before it has come.
        let jobs = reader.jobs.clone();
        let job = reader.hand_over();
        if let (true, Stage::Feeding(Feeding { feeder, .. })) = (is_asked_for, &reader.stage) {
            feeder.pause();
            jobs.waiting.park(reader);
            jobs.submit_some(job);
        } else {
            jobs.submit_some(job);
            reader.more(py);
        }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// A piece has come, or (`None`) will never come.
    pub fn take(mut self: Box<Self>, py: Python<'_>, message: Option<Message<'_>>) {
        let Some(Message { body: Some(body), more }) = message else { return self.fail(py) };
        let piece = body.as_bytes();
        self.read += piece.len() as u64;
        let complete = !more || self.expected == Some(self.read);
        match &mut self.stage {
            Stage::Gathering { gathered, .. } => {
                gathered.extend_from_slice(piece);
                if complete {
                    return self.submit_whole();
                }
                if gathered.len() > GATHERED {
                    let job = self.hand_over();
                    self.jobs.submit_some(job);
                }
                self.more(py);
            }
            Stage::Feeding(Feeding { feeder, .. }) => {
                if complete || feeder.reader_state() == ReaderState::Reading {
                    return self.push(py, Bytes::copy_from_slice(piece), complete);
                }
                self.discard();
                self.more(py);
            }
            Stage::Discarding { tell, last, left, .. } => {
                *last = Instant::now();
                *left = left.saturating_sub(piece.len());
                if complete {
                    self.watch(py);
                } else if *left > 0 || !tell.is_closed() {
                    self.more(py);
                }
            }
            Stage::Broken(_) | Stage::Over => (),
        }
    }

    /// The engine wants more, or nothing more.
    pub fn resume(mut self: Box<Self>, py: Python<'_>) {
        let (Stage::Feeding(Feeding { feeder, .. }) | Stage::Broken(Feeding { feeder, .. })) = &self.stage else {
            return;
        };
        match (&self.stage, feeder.reader_state()) {
            (Stage::Broken(_), ReaderState::Reading) => {
                let jobs = self.jobs.clone();
                jobs.waiting.park(self);
            }
            (Stage::Broken(_), _) => (),
            (_, ReaderState::Reading) => self.more(py),
            // The caller waits to be asked for it, and has its answer.
            _ if self.read == 0 => (),
            _ => {
                self.discard();
                self.more(py);
            }
        }
    }

    /// Looks, while a piece is waited for, whether that is still of use.
    pub fn look(&mut self, now: Instant) -> Look {
        match &mut self.stage {
            Stage::Gathering { looked_at, .. } => {
                if std::mem::replace(looked_at, true) {
                    return self.hand_over().map_or(Look::Stays, |job| Look::Feeds(Box::new(job)));
                }
                Look::Stays
            }
            Stage::Feeding(Feeding { feeder, .. }) => match feeder.reader_state() {
                ReaderState::Reading => Look::Stays,
                ReaderState::TimedOut => Look::Ends,
                ReaderState::Closed => {
                    self.discard();
                    Look::Stays
                }
            },
            Stage::Discarding { tell, since, last, .. } => {
                if !tell.is_closed() {
                    *since = now;
                    *last = now;
                }
                if now.saturating_duration_since(*since) > LINGER || now.saturating_duration_since(*last) > LINGER_IDLE
                {
                    return Look::Ends;
                }
                Look::Stays
            }
            Stage::Broken(_) | Stage::Over => Look::Ends,
        }
    }

    fn push(self: Box<Self>, py: Python<'_>, piece: Bytes, complete: bool) {
        let Stage::Feeding(Feeding { feeder, .. }) = &self.stage else { return };
        let feeder = feeder.clone();
        let wants_more = feeder.push(piece);
        if complete {
            feeder.finish(BodyEnd::Complete);
            self.watch(py);
        } else if wants_more {
            self.more(py);
        } else {
            let (jobs, id) = (self.jobs.clone(), self.id);
            jobs.waiting.park(self);
            // The engine may have asked before there was anybody to hear it.
            if !feeder.is_paused()
                && let Some(reader) = jobs.waiting.take_parked(id)
            {
                reader.resume(py);
            }
        }
    }

    fn more(self: Box<Self>, py: Python<'_>) {
        let proto = self.proto.clone_ref(py);
        callback::receive_piece(py, &proto, self);
    }

    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// All of it was read: from now on the server itself tells whether the caller leaves.
    fn watch(mut self: Box<Self>, py: Python<'_>) {
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        if let Stage::Feeding(Feeding { tell, .. }) | Stage::Discarding { tell, .. } = stage
            && !tell.is_closed()
        {
            callback::watch(py, &self.proto, tell);
        }
    }

    fn discard(&mut self) {
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        if let Stage::Feeding(Feeding { tell, .. }) = stage {
            let now = Instant::now();
            self.stage = Stage::Discarding { tell, since: now, last: now, left: LINGER_BYTES };
        }
    }

    fn submit_whole(mut self: Box<Self>) {
        if let Stage::Gathering { head, exchange, gathered, .. } = std::mem::replace(&mut self.stage, Stage::Over) {
            self.jobs.submit(Job { request: Request { head, body: Body::Complete(gathered.into()) }, exchange });
        }
    }

    /// From here on pieces are fed.
    fn hand_over(&mut self) -> Option<Job> {
        let Stage::Gathering { head, exchange, gathered, .. } = std::mem::replace(&mut self.stage, Stage::Over) else {
            return None;
        };
        let (jobs, id) = (self.jobs.clone(), self.id);
        let (feeder, reading) = feed_channel(move || {
            if let Some(reader) = jobs.waiting.take_parked(id) {
                Python::attach(|py| reader.resume(py));
            }
        });
        if !gathered.is_empty() {
            feeder.push(gathered.into());
        }
        let (tell, gone) = oneshot::channel();
        self.stage = Stage::Feeding(Feeding { feeder, tell });
        let body = Body::Streamed(reading, self.expected);
        Some(Job { request: Request { head, body }, exchange: exchange.watched(gone) })
    }

    fn fail(mut self: Box<Self>, py: Python<'_>) {
        // A request that was not handed over yet is, so that it is answered and has its record.
        let job = if let Stage::Gathering { .. } = self.stage { self.hand_over() } else { None };
        let Stage::Feeding(Feeding { feeder, tell }) = std::mem::replace(&mut self.stage, Stage::Over) else { return };
        let jobs = self.jobs.clone();
        if peer::is_there(self.scope.bind(py)) {
            self.stage = Stage::Broken(Feeding { feeder: feeder.clone(), tell });
            jobs.waiting.park(self);
            feeder.finish(BodyEnd::Malformed);
        } else {
            // In this order: whoever waits for the body learns that it is broken, whoever does not that nobody waits for him.
            feeder.finish(BodyEnd::Disconnected);
            tell.send(()).ok();
        }
        jobs.submit_some(job);
    }
}
