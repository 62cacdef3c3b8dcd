//! An answer on its way to the caller: whole, or a stream that meters itself and closes its record.

use std::time::Duration;

use bytes::Bytes;
use penstock_llm::{
    dialect::{Dialect, Failure, error_event},
    usage::Meter,
};
use tokio::time::{Instant, sleep_until};

use crate::{
    error::Error,
    headers::{Headers, Whole},
    record::{Outcome, Record},
    upstream::AnswerBody,
};

/// Status and header fields.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Headers,
}

impl Reply {
    pub fn new(status: u16, headers: Headers) -> Self {
        Self { status, headers }
    }

    /// Whether the body is a stream of events.
    pub fn is_events(&self) -> bool {
        self.headers.text("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
    }

    pub fn set_length(&mut self, length: Option<usize>) {
        if let Some(length) = length {
            self.headers.push(b"content-length", itoa::Buffer::new().format(length).as_bytes());
        }
    }
}

pub struct Answer {
    pub reply: Reply,
    pub body: Contents,
}

/// The body of an answer.
pub enum Contents {
    Whole(Bytes),
    Stream(Box<Stream>),
}

impl From<Bytes> for Contents {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(bytes)
    }
}

impl From<Stream> for Contents {
    fn from(stream: Stream) -> Self {
        Self::Stream(Box::new(stream))
    }
}

impl Answer {
    pub fn text(status: u16, text: &'static str) -> Self {
        let mut reply = Reply::new(status, Headers::with_capacity(2));
        reply.headers.push(b"content-type", b"text/plain; charset=utf-8");
        reply.set_length(Some(text.len()));
        Self { reply, body: Bytes::from_static(text.as_bytes()).into() }
    }

    /// What is said where the walk itself failed.
    pub fn internal_error() -> Self {
        Self::error(&Error::Panicked, Dialect::OpenAi)
    }

    /// An error outside the walk: it has no record.
    pub fn error(error: &Error, dialect: Dialect) -> Self {
        let Whole { answered, body } = error.answer(dialect);
        let mut reply = Reply::new(answered.status, answered.headers);
        reply.set_length(Some(body.len()));
        Self { reply, body: body.into() }
    }
}

/// The rest of an answer, read as the caller takes it.
pub struct Stream {
    body: AnswerBody,
    /// Only for streams of events.
    meter: Option<(Meter, Dialect)>,
    /// A good stream of this operation ends with an event that says so.
    ends_with_event: bool,
    record: Option<Record>,
    pace: Pace,
    over: bool,
}

/// Lets what comes in quick succession leave together. A provider that sends a hundred events one by one within a
/// millisecond would otherwise cost a crossing and two system calls for each of them.
#[derive(Default)]
struct Pace {
    last: Option<Instant>,
    /// How many small pieces in a row came quickly one after the other.
    quick: u8,
}

/// Pieces that are closer to each other than this are quick. Timers ring to the millisecond.
const GATHER: Duration = Duration::from_millis(1);
/// So many quick pieces leave at once: the first words of an answer must not wait.
const UNGATHERED: u8 = 4;
/// A larger piece has been gathered already.
const SMALL: usize = 4 * 1024;

impl Pace {
    /// Waits, in the middle of a quick row, for more to come.
    async fn gather(&self) {
        if let Some(last) = self.last
            && self.quick >= UNGATHERED
        {
            sleep_until(last + GATHER).await;
        }
    }

    fn passed(&mut self, bytes: usize) {
        let now = Instant::now();
        // A piece that was waited for comes a little later than the row's own limit.
        let is_quick = self.last.is_some_and(|last| now - last < GATHER * 3) && bytes < SMALL;
        self.quick = if is_quick { self.quick.saturating_add(1) } else { 0 };
        self.last = Some(now);
    }
}

/// A body that broke off where nothing can be said within it: the caller's connection must not end well.
#[derive(Debug, PartialEq, Eq)]
pub struct Cut;

impl Stream {
    pub fn new(mut body: AnswerBody, events: Option<Dialect>, ends_with_event: bool, record: Record) -> Self {
        body.in_small_pieces();
        let meter = events.map(|dialect| (Meter::new(dialect), dialect));
        Self { body, meter, ends_with_event, record: Some(record), pace: Pace::default(), over: false }
    }

    /// A stream that is only passed on: no meter, no record.
    pub fn plain(body: AnswerBody) -> Self {
        Self { body, meter: None, ends_with_event: false, record: None, pace: Pace::default(), over: false }
    }

    /// All bytes that are ready, as the provider sent them; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Cut> {
        if self.over {
            return Ok(None);
        }
        if !self.body.is_done() {
            self.pace.gather().await;
        }
        match self.body.next().await {
            Some(Ok(bytes)) => {
                self.pace.passed(bytes.len());
                if let Some((meter, _)) = &mut self.meter {
                    meter.feed(&bytes);
                }
                if let Some(record) = &mut self.record {
                    record.passed_on(bytes.len());
                }
                Ok(Some(bytes))
            }
            None => self.finish(None),
            Some(Err(error)) => self.finish(Some(&error)),
        }
    }

    /// Whether what comes next needs no waiting: all of the body was read.
    pub fn is_ended(&self) -> bool {
        self.over || self.body.is_done()
    }

    /// Ends it before its time, because this process is about to end.
    pub fn stop(&mut self) -> Result<Option<Bytes>, Cut> {
        self.finish(Some(&Error::Draining))
    }

    /// The end: the record closes, and where the end is not a good one the caller is told so.
    fn finish(&mut self, error: Option<&Error>) -> Result<Option<Bytes>, Cut> {
        self.over = true;
        let (metered, dialect) = match self.meter.take() {
            Some((meter, dialect)) => (Some(meter.finish()), Some(dialect)),
            None => (None, None),
        };
        let failed = metered.as_ref().is_some_and(|metered| metered.error_event);
        let is_told = failed || metered.as_ref().is_some_and(|metered| metered.terminated);
        // After the event that says how it ended, it does not matter how the connection does.
        let is_cut = !is_told && (error.is_some() || (self.ends_with_event && metered.is_some()));
        if let Some(mut record) = self.record.take() {
            record.facts.usage = metered.and_then(|metered| metered.usage);
            record.facts.error = if is_cut {
                Some(error.map_or("upstream_broke", Error::code))
            } else {
                failed.then_some("upstream_error_event")
            };
            record.close(if is_cut { Outcome::Cut } else { Outcome::Complete });
        }
        match (is_cut, dialect) {
            (false, _) => Ok(None),
            (true, Some(dialect)) => Ok(Some(told(dialect, error))),
            (true, None) => Err(Cut),
        }
    }
}

impl Drop for Stream {
    /// A caller who left has still cost what the provider counted so far.
    fn drop(&mut self) {
        if let (Some(record), Some((meter, _))) = (&mut self.record, self.meter.take()) {
            record.facts.usage = meter.finish().usage;
        }
    }
}

/// The error as the last event of the stream.
fn told(dialect: Dialect, error: Option<&Error>) -> Bytes {
    let unfinished = Error::UpstreamBroke { cause: "its stream ended before it was complete".into() };
    let error = error.unwrap_or(&unfinished);
    let message = error.message();
    let failure =
        Failure { status: error.status(), kind: None, message: &message, code: Some(error.code()), request_id: None };
    // A blank line first: what was cut may be the middle of an event.
    [b"\n\n", error_event(dialect, &failure).as_slice()].concat().into()
}
