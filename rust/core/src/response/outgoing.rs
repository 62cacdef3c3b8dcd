//! An answer on its way to the caller: whole, or a stream that meters itself and closes its record.

use std::{mem, time::Duration};

use bytes::Bytes;
use penstock_llm::{
    api_format::{Dialect, Failure, error_event},
    stream::include_usage,
    usage::{FrameMeter, ItemMeter, Meter, Metered, Skim, Usage},
};
use tokio::time::{Instant, sleep_until};

use crate::response::compressed::Packed;
use crate::response::partial_event::Held;

use crate::{
    accounting::{
        record::{Outcome, Record},
        token_counting::Answered,
    },
    error::Error,
    ingress::headers::{Headers, Whole},
    response::delivery,
    routing::Continuation,
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
        delivery::is_events(&self.headers)
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
        let Whole { answered, body } = error.answer(dialect, None);
        let mut reply = Reply::new(answered.status, answered.headers);
        reply.set_length(Some(body.len()));
        Self { reply, body: body.into() }
    }
}

/// What is read of an answer as it passes by.
#[derive(Default)]
pub enum Reading {
    Events(Box<Meter>),
    /// A stream of Amazon's.
    Frames(Box<FrameMeter>),
    /// A stream of one array.
    Items(Box<(ItemMeter, Skim)>),
    /// A whole answer that is too large to be held.
    Body(Skim),
    Packed(Packed),
    #[default]
    Nothing,
}

/// What an answer turned out to be.
#[derive(Default)]
pub struct Read {
    usage: Option<Usage>,
    /// What there is to count where usage is none.
    answered: Option<Answered>,
    is_events: bool,
    /// Whether it said how it ended; `None` where an end says nothing.
    pub told: Option<bool>,
    pub failed: bool,
    /// How many images there were.
    drawn: Option<u64>,
    /// The response that goes on in the background.
    begun: Option<String>,
}

impl Read {
    /// Closes the record of what was read.
    fn settle(self, mut record: Record, outcome: Outcome) {
        let Self { usage, answered, drawn, begun, .. } = self;
        record.facts.paid.drawn = drawn;
        let goes_on = usage.is_none() && begun.is_some_and(|id| record.facts.owes_for(&id));
        record.settle(usage, answered.filter(|_| !goes_on), outcome);
    }
}

impl Reading {
    pub fn feed(&mut self, bytes: &[u8]) {
        match self {
            Self::Events(meter) => meter.feed(bytes),
            Self::Frames(meter) => meter.feed(bytes),
            Self::Items(read) => {
                read.0.feed(bytes);
                read.1.feed(bytes);
            }
            Self::Body(skim) => skim.feed(bytes),
            Self::Packed(packed) => packed.feed(bytes),
            Self::Nothing => (),
        }
    }

    /// How much of what was read last belongs to an event that is not complete.
    fn incomplete(&self) -> usize {
        if let Self::Events(meter) = self { meter.incomplete() } else { 0 }
    }

    /// `is_cut`: it did not end well by itself.
    pub fn finish(self, dialect: Dialect, is_cut: bool) -> Read {
        match self {
            Self::Nothing => Read::default(),
            Self::Packed(packed) => Read { answered: Some(Answered::Packed(packed)), ..Read::default() },
            Self::Body(mut skim) => {
                let (drawn, answered) = (skim.drawn(), Some(Answered::Length(skim.length())));
                Read { usage: skim.finish(dialect), answered, drawn, ..Read::default() }
            }
            Self::Frames(meter) => {
                let Metered { usage, terminated, error_event: failed, .. } = meter.finish();
                Read { usage, is_events: true, told: Some(failed || terminated), failed, ..Read::default() }
            }
            Self::Items(read) => {
                let (meter, skim) = *read;
                let answered = Some(Answered::Length(skim.length()));
                let (told, failed) = (Some(meter.is_told()), meter.has_failed());
                Read { usage: skim.finish(dialect), answered, told, failed, ..Read::default() }
            }
            Self::Events(meter) => {
                let Metered { usage, terminated, finished, error_event: failed, deltas, begun, .. } = meter.finish();
                // Who failed before the first word has done nothing that costs.
                let deltas = deltas.filter(|deltas| !deltas.is_empty() || (terminated && !failed));
                // After the event that says how it ended, it does not matter how the connection does.
                let told = Some(failed || terminated || (finished && !is_cut));
                let answered = deltas.map(Answered::Deltas);
                Read { usage, answered, is_events: true, told, failed, begun, ..Read::default() }
            }
        }
    }
}

/// The rest of an answer, read as the caller takes it.
pub struct Stream {
    body: AnswerBody,
    reading: Reading,
    dialect: Dialect,
    /// A good stream of this operation ends with an event that says so.
    ends_with_event: bool,
    record: Option<Record>,
    pace: Pace,
    held: Held,
    /// Another target goes on where it breaks off.
    continuation: Option<Box<Continuation>>,
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

/// A comment, which readers of events skip: it keeps those awake who close what is quiet for long.
const HEARTBEAT: &[u8] = b": keep-alive\n\n";

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
    pub fn new(mut body: AnswerBody, read: (Reading, Dialect), ends_with_event: bool, record: Record) -> Self {
        body.in_small_pieces();
        let (reading, dialect) = read;
        let (pace, held) = <(Pace, Held)>::default();
        Self {
            body,
            reading,
            dialect,
            ends_with_event,
            record: Some(record),
            pace,
            held,
            continuation: None,
            over: false,
        }
    }

    /// Says a word in each silence of this length, where it falls between two events.
    #[must_use]
    pub fn with_heartbeat(mut self, every: Duration) -> Self {
        self.body.in_steps(every);
        self
    }

    /// A stream that is only passed on: no meter, no record.
    pub fn plain(body: AnswerBody) -> Self {
        let (reading, dialect) = (Reading::Nothing, Dialect::OpenAi);
        let (pace, held) = <(Pace, Held)>::default();
        Self {
            body,
            reading,
            dialect,
            ends_with_event: false,
            record: None,
            pace,
            held,
            continuation: None,
            over: false,
        }
    }

    /// All bytes that are ready, as the provider sent them, or a heartbeat; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Cut> {
        if self.over {
            return Ok(None);
        }
        if !self.body.is_done() {
            self.pace.gather().await;
        }
        loop {
            match self.body.next().await {
                Some(Ok(silence)) if silence.is_empty() => {
                    if !self.held.is_open() && matches!(&self.reading, Reading::Events(meter) if !meter.terminated()) {
                        return Ok(Some(Bytes::from_static(HEARTBEAT)));
                    }
                }
                Some(Ok(bytes)) => {
                    let bytes = self.read(bytes);
                    if !bytes.is_empty() {
                        return Ok(Some(bytes));
                    }
                }
                None if self.goes_on(None).await => (),
                None => return self.finish(None),
                Some(Err(error)) if self.goes_on(Some(&error)).await => (),
                Some(Err(error)) => return self.finish(Some(&error)),
            }
        }
    }

    /// Looks at what the provider sent, and says what of it may leave.
    fn read(&mut self, bytes: Bytes) -> Bytes {
        self.pace.passed(bytes.len());
        self.reading.feed(&bytes);
        let bytes = self.held.pass(bytes, self.reading.incomplete());
        let bytes = if self.hides_usage() { include_usage::hide(bytes) } else { bytes };
        if let Some(continuation) = &mut self.continuation
            && !continuation.hear(&bytes)
        {
            self.continuation = None;
            self.record.iter().for_each(|record| record.metrics().unheld.add(1));
        }
        if let Some(record) = &mut self.record {
            record.passed_on(&bytes);
            if matches!(&self.reading, Reading::Events(meter) if meter.has_usage()) {
                record.facts.asked = None;
            }
        }
        bytes
    }

    /// Whether its events say what the caller did not ask for.
    fn hides_usage(&self) -> bool {
        let hides = self.record.as_ref().is_some_and(|record| record.facts.hides_usage);
        hides && matches!(self.reading, Reading::Events(_))
    }

    pub(crate) fn follow(&mut self, continuation: Box<Continuation>) {
        self.continuation = Some(continuation);
    }

    /// Whether somebody else says the rest of what ends here before its time.
    async fn goes_on(&mut self, error: Option<&Error>) -> bool {
        // In a box of its own: it would make the future of every stream larger.
        self.continuation.is_some() && Box::pin(self.resume(error)).await
    }

    async fn resume(&mut self, error: Option<&Error>) -> bool {
        let (Some(mut continuation), Some(record)) = (self.continuation.take(), &mut self.record) else { return false };
        let is_cut = match &self.reading {
            Reading::Events(meter) => meter.is_cut(error.is_some(), self.ends_with_event),
            _ => false,
        };
        if !is_cut || self.held.is_open() {
            return false;
        }
        let Some(mut body) = continuation.resume(error.map_or("upstream_broke", Error::code), record).await else {
            return false;
        };
        // The beginning of an event that has no end.
        self.held.rest();
        body.in_small_pieces();
        if let Some(every) = continuation.heartbeat() {
            body.in_steps(every);
        }
        self.body = body;
        let meter = match record.facts.operation {
            Some(operation) => Meter::counting(self.dialect, operation),
            None => Meter::new(self.dialect),
        };
        self.reading = Reading::Events(meter.into());
        self.continuation = Some(continuation);
        true
    }

    /// Whether what comes next needs no waiting: all of the body was read.
    pub fn is_ended(&self) -> bool {
        self.over || self.body.is_done()
    }

    /// Ends it before its time, because this process is about to end.
    pub fn stop(&mut self) -> Result<Option<Bytes>, Cut> {
        self.finish(Some(&Error::Draining))
    }

    /// Ends it before its time, because its caller does not read.
    pub fn leave_unread(&mut self, limit: Duration) -> Result<Option<Bytes>, Cut> {
        self.finish(Some(&Error::Unread { milliseconds: limit.as_millis() as u64 }))
    }

    /// The end: the record closes, and where the end is not a good one the caller is told so.
    fn finish(&mut self, error: Option<&Error>) -> Result<Option<Bytes>, Cut> {
        self.over = true;
        let hides_usage = self.hides_usage();
        // Nothing can be said in the middle of a frame.
        let is_within = matches!(&self.reading, Reading::Frames(meter) if meter.is_within());
        let read = mem::take(&mut self.reading).finish(self.dialect, error.is_some());
        let is_events = read.is_events;
        let is_cut = match read.told {
            Some(true) => false,
            Some(false) => error.is_some() || self.ends_with_event,
            None => error.is_some(),
        };
        let rest = if is_cut { Bytes::new() } else { self.held.rest() };
        let rest = if hides_usage { include_usage::hide(rest) } else { rest };
        if let Some(mut record) = self.record.take() {
            record.facts.error = if is_cut {
                Some(error.map_or("upstream_broke", Error::code))
            } else {
                read.failed.then_some("upstream_error_event")
            };
            if !rest.is_empty() {
                record.passed_on(&rest);
            }
            read.settle(record, if is_cut { Outcome::Cut } else { Outcome::Complete });
        }
        match (is_cut, is_events && !is_within) {
            (false, _) => Ok((!rest.is_empty()).then_some(rest)),
            (true, true) => Ok(Some(told(self.dialect, error, self.held.is_open()))),
            (true, false) => Err(Cut),
        }
    }
}

impl Drop for Stream {
    /// A caller who left has still cost what the provider counted so far.
    fn drop(&mut self) {
        if let (Some(record), false) = (self.record.take(), std::thread::panicking()) {
            let read = mem::take(&mut self.reading).finish(self.dialect, true);
            read.settle(record, Outcome::Aborted);
        }
    }
}

/// The error as the last event of the stream.
fn told(dialect: Dialect, error: Option<&Error>, is_within: bool) -> Bytes {
    let unfinished = Error::UpstreamBroke { cause: "its stream ended before it was complete".into() };
    let error = error.unwrap_or(&unfinished);
    let message = error.message();
    let failure =
        Failure { status: error.status(), kind: None, message: &message, code: Some(error.code()), request_id: None };
    // A blank line ends the event in the middle of which it is said.
    let end: &[u8] = if is_within { b"\n\n" } else { b"" };
    [end, error_event(dialect, &failure).as_slice()].concat().into()
}
