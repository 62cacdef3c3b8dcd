//! Body of a provider's response, the same for HTTP/1.1 and HTTP/2.

use std::{
    collections::VecDeque,
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::{http1, http2};
use crate::{
    connect::connection::MAX_READ_BYTES,
    deadline::{self, Deadline},
    error::{Error, Result},
};

/// Maximum size of a chunk for a slow client. About ten chunks may be buffered on the way to the client's socket.
/// Together they must stay below 256 KB.
const SMALL_CHUNK_BYTES: usize = 8 * 1024;

#[derive(Debug)]
enum BodySource {
    Http1(http1::Http1BodyReader),
    Http2(Box<http2::Http2BodyReader>),
    /// A complete body of this many bytes, already in memory.
    Buffered(usize),
    Sequence(Box<BodySequence>),
}

/// Function that starts the request for a body when the body is needed. There may be many of them, and a started
/// request takes far more memory than this function.
pub type DeferredBody = Box<dyn FnOnce() -> PendingBody + Send>;
/// Started request for a body.
pub type PendingBody = Pin<Box<dyn Future<Output = Result<ResponseBody>> + Send>>;

/// Bodies that are read in order.
struct BodySequence {
    current: ResponseBody,
    /// Request for the next body, if it has started. Stored here so that a reader may stop waiting and continue later.
    pending: Option<PendingBody>,
    remaining: VecDeque<DeferredBody>,
}

impl std::fmt::Debug for BodySequence {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "BodySequence({:?}, {} later)", self.current, self.remaining.len())
    }
}

impl BodySequence {
    /// Returns the next chunk of the current body or of the one after it.
    async fn next_chunk(&mut self, max_bytes: usize) -> Option<Result<Bytes>> {
        loop {
            self.current.max_chunk_bytes = max_bytes;
            match Box::pin(self.current.next_chunk()).await {
                // Skips an empty chunk, because it would report that nothing arrived for some time.
                Some(Ok(bytes)) if bytes.is_empty() && self.current.is_buffered() => continue,
                Some(read) => return Some(read),
                None => (),
            }
            if self.pending.is_none() {
                self.pending = Some(self.remaining.pop_front()?());
            }
            let body = self.pending.as_mut()?.await;
            self.pending = None;
            match body {
                Ok(body) => self.current = body,
                Err(error) => {
                    self.remaining.clear();
                    return Some(Err(error));
                }
            }
        }
    }
}

/// Body of a response, read in chunks.
#[derive(Debug)]
pub struct ResponseBody {
    source: BodySource,
    /// Maximum size of a returned chunk, in bytes.
    max_chunk_bytes: usize,
    unread: Option<Bytes>,
    transform: Option<ChunkTransform>,
    /// Flag that the transform sets to end the body. The output of that call is then the last.
    is_stopped: Option<Arc<AtomicBool>>,
}

/// Transforms the chunks of a body. Called with `None` at the end, when it may return remaining bytes.
struct ChunkTransform(Box<dyn FnMut(Option<Bytes>) -> Result<Bytes> + Send>);

impl std::fmt::Debug for ChunkTransform {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("ChunkTransform")
    }
}

impl From<http1::Http1BodyReader> for ResponseBody {
    fn from(reading: http1::Http1BodyReader) -> Self {
        Self {
            source: BodySource::Http1(reading),
            max_chunk_bytes: MAX_READ_BYTES,
            unread: None,
            transform: None,
            is_stopped: None,
        }
    }
}

impl From<http2::Http2BodyReader> for ResponseBody {
    fn from(reading: http2::Http2BodyReader) -> Self {
        Self {
            source: BodySource::Http2(Box::new(reading)),
            max_chunk_bytes: MAX_READ_BYTES,
            unread: None,
            transform: None,
            is_stopped: None,
        }
    }
}

impl ResponseBody {
    /// Returns a body that is already in memory.
    pub fn from_bytes(bytes: Bytes) -> Self {
        Self {
            source: BodySource::Buffered(bytes.len()),
            max_chunk_bytes: MAX_READ_BYTES,
            unread: Some(bytes),
            transform: None,
            is_stopped: None,
        }
    }

    /// Returns a body that consists of several responses. Each is requested when the previous one has ended.
    pub fn from_sequence(current: Self, remaining: VecDeque<DeferredBody>) -> Self {
        Self {
            source: BodySource::Sequence(Box::new(BodySequence { current, pending: None, remaining })),
            max_chunk_bytes: MAX_READ_BYTES,
            unread: None,
            transform: None,
            is_stopped: None,
        }
    }

    /// Applies a transform to all bytes of the body, including those that were put back.
    #[must_use]
    pub fn map_chunks(mut self, mut make: impl FnMut(Option<Bytes>) -> Bytes + Send + 'static) -> Self {
        self.unread = self.unread.map(|bytes| make(Some(bytes))).filter(|output| !output.is_empty());
        self.add_transform(move |chunk| Ok(make(chunk)))
    }

    /// Applies a transform that can end the body by setting `is_stopped`. Its output is then the last, and the rest of
    /// the body is not read.
    #[must_use]
    pub fn map_chunks_until(
        mut self,
        is_stopped: Arc<AtomicBool>,
        make: impl FnMut(Option<Bytes>) -> Bytes + Send + 'static,
    ) -> Self {
        self.is_stopped = Some(is_stopped);
        self.map_chunks(make)
    }

    /// Applies a fallible transform to the bytes that are not read yet. The body fails at the first error.
    #[must_use]
    pub fn try_map_chunks(self, make: impl FnMut(Option<Bytes>) -> Result<Bytes> + Send + 'static) -> Self {
        debug_assert!(self.unread.is_none(), "some of the body was already read");
        self.add_transform(make)
    }

    fn add_transform(mut self, mut make: impl FnMut(Option<Bytes>) -> Result<Bytes> + Send + 'static) -> Self {
        self.transform = Some(ChunkTransform(match self.transform.take() {
            None => Box::new(make),
            Some(mut first) => Box::new(move |chunk| match chunk {
                Some(chunk) => make(Some((first.0)(Some(chunk))?)),
                None => Ok([make(Some((first.0)(None)?))?, make(None)?].concat().into()),
            }),
        }));
        self
    }

    fn is_buffered(&self) -> bool {
        matches!(self.source, BodySource::Buffered(_))
    }

    /// Returns true if all bytes were read and none were put back.
    pub fn is_done(&self) -> bool {
        let is_read = match &self.source {
            BodySource::Http1(reading) => reading.is_done(),
            BodySource::Http2(reading) => reading.is_done(),
            BodySource::Buffered(_) => true,
            BodySource::Sequence(parts) => {
                parts.remaining.is_empty() && parts.pending.is_none() && parts.current.is_done()
            }
        };
        is_read && self.unread.is_none() && self.transform.is_none()
    }

    /// Returns the length that the provider declared, in bytes.
    pub fn content_length(&self) -> Option<usize> {
        if self.transform.is_some() {
            return None;
        }
        match &self.source {
            BodySource::Http1(reading) => reading.content_length(),
            BodySource::Http2(reading) => reading.content_length(),
            BodySource::Buffered(length) => Some(*length),
            BodySource::Sequence(_) => None,
        }
    }

    /// Returns the complete body if it is in memory and has no transform.
    pub fn buffered_bytes(&self) -> Option<&Bytes> {
        let is_at_hand = matches!(self.source, BodySource::Buffered(_)) && self.transform.is_none();
        self.unread.as_ref().filter(|_| is_at_hand)
    }

    /// Returns the chunk that `wait_for_first_chunk` read and that is not delivered yet.
    pub fn first_chunk(&self) -> Option<&Bytes> {
        let is_untransformed = matches!(self.source, BodySource::Buffered(_)) && self.transform.is_some();
        self.unread.as_ref().filter(|_| !is_untransformed)
    }

    /// Limits further chunks to `SMALL_CHUNK_BYTES`, because a slow client may have several of them buffered.
    pub fn use_small_chunks(&mut self) {
        self.max_chunk_bytes = SMALL_CHUNK_BYTES;
    }

    /// Makes `next_chunk` return an empty chunk whenever nothing was received for `step`.
    pub fn report_idle_every(&mut self, step: Duration) {
        match &mut self.source {
            BodySource::Http1(reading) => reading.read_timeout_mut().report_idle_every(step),
            BodySource::Http2(reading) => reading.read_timeout_mut().report_idle_every(step),
            BodySource::Buffered(_) => (),
            BodySource::Sequence(parts) => parts.current.report_idle_every(step),
        }
    }

    /// Limits the rest of the body by the deadline of the whole response.
    pub fn limit_by(&mut self, deadline: &Deadline) {
        match &mut self.source {
            BodySource::Http1(reading) => reading.read_timeout_mut().limit_by(deadline),
            BodySource::Http2(reading) => reading.read_timeout_mut().limit_by(deadline),
            BodySource::Buffered(_) => (),
            BodySource::Sequence(parts) => parts.current.limit_by(deadline),
        }
    }

    /// Waits for the first chunk or the end.
    pub async fn wait_for_first_chunk(&mut self) -> Result<()> {
        if self.unread.is_none()
            && let Some(first) = self.next_chunk().await.transpose()?
        {
            self.put_back(first);
        }
        Ok(())
    }

    /// Puts bytes back, to be read next.
    pub fn put_back(&mut self, bytes: Bytes) {
        // `split_to_max` may have returned only the beginning of a transformed chunk. The rest of the chunk is then
        // already in `unread`.
        self.unread = Some(match self.unread.take() {
            None => bytes,
            Some(rest) => [bytes, rest].concat().into(),
        });
    }

    /// Returns all bytes that are ready as one chunk; `None` at the end. Returns an empty chunk after an idle interval
    /// (see `report_idle_every`). Fails if the body was truncated, stalled or is invalid HTTP.
    pub async fn next_chunk(&mut self) -> Option<Result<Bytes>> {
        if let Some(bytes) = self.unread.take() {
            return Some(Ok(self.split_to_max(bytes)));
        }
        loop {
            if self.is_stopped.as_ref().is_some_and(|flag| flag.load(Ordering::Acquire)) {
                // Drops the connection: the provider need not send what nobody reads.
                (self.source, self.transform) = (BodySource::Buffered(0), None);
            }
            let read = match &mut self.source {
                BodySource::Http1(reading) => reading.next_chunk(self.max_chunk_bytes).await,
                BodySource::Http2(reading) => reading.next_chunk(self.max_chunk_bytes).await,
                BodySource::Buffered(_) => None,
                BodySource::Sequence(parts) => parts.next_chunk(self.max_chunk_bytes).await,
            };
            let Some(through) = &mut self.transform else { return read };
            let transformed = match read {
                Some(Ok(bytes)) if bytes.is_empty() => return Some(Ok(bytes)),
                Some(Ok(bytes)) => (through.0)(Some(bytes)),
                Some(Err(error)) => return Some(Err(error)),
                None => {
                    let last = (through.0)(None);
                    self.transform = None;
                    return last.map(|last| (!last.is_empty()).then(|| self.split_to_max(last))).transpose();
                }
            };
            match transformed {
                Ok(transformed) if transformed.is_empty() => (),
                Ok(transformed) => return Some(Ok(self.split_to_max(transformed))),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Returns at most `max_chunk_bytes`, and stores the rest in `unread` to be read next.
    fn split_to_max(&mut self, mut bytes: Bytes) -> Bytes {
        if bytes.len() > self.max_chunk_bytes {
            self.unread = Some(bytes.split_off(self.max_chunk_bytes));
        }
        bytes
    }
}

const MIN_COALESCED_TIMEOUT: Duration = Duration::from_secs(1);
const COALESCE_INTERVAL: Duration = Duration::from_millis(20);
/// Number of successive reads without a wait after which the clock is checked.
const MAX_UNCHECKED_READS: u8 = 8;

/// Timeouts for reading a response body: maximum idle time, maximum total time, and the interval at which idle time is
/// reported to the reader.
#[derive(Debug, Clone, Copy)]
pub struct ReadTimeout {
    idle_timeout: Duration,
    /// Total timeout in milliseconds.
    total_timeout_ms: u64,
    idle_report_interval: Duration,
    idle_time: Duration,
    /// Time at which the total timeout ends. Set at the first wait, or after `MAX_UNCHECKED_READS` reads.
    deadline: Option<Instant>,
    /// Reads since the clock was last checked.
    unchecked_reads: u8,
}

impl ReadTimeout {
    pub fn new(idle_timeout: Duration, total: Duration) -> Self {
        Self {
            idle_timeout,
            total_timeout_ms: total.as_millis() as u64,
            idle_report_interval: idle_timeout,
            idle_time: Duration::ZERO,
            deadline: None,
            unchecked_reads: 0,
        }
    }

    pub fn report_idle_every(&mut self, step: Duration) {
        self.idle_report_interval = step.min(self.idle_timeout);
    }

    fn limit_by(&mut self, deadline: &Deadline) {
        (self.total_timeout_ms, self.deadline) = (deadline.limit().as_millis() as u64, Some(deadline.expires_at()));
    }

    /// Waits for `operation`. Returns `None` if only the interval for reporting idle time has passed, and an error
    /// after the idle or total timeout.
    pub async fn wait_for<F: Future>(&mut self, operation: F) -> Result<Option<F::Output>> {
        let mut operation = pin!(operation);
        // Checks the clock if the result is not ready. If results are always ready, checks it every
        // `MAX_UNCHECKED_READS` reads.
        let first = std::future::poll_fn(|context| Poll::Ready(operation.as_mut().poll(context))).await;
        if let Poll::Ready(output) = first {
            self.idle_time = Duration::ZERO;
            self.unchecked_reads += 1;
            return if self.unchecked_reads < MAX_UNCHECKED_READS {
                Ok(Some(output))
            } else {
                self.check_total_timeout().map(|()| Some(output))
            };
        }
        let (now, step) =
            (Instant::now(), self.idle_report_interval.min(self.idle_timeout.saturating_sub(self.idle_time)));
        let end = self.total_deadline(now);
        tokio::select! {
            biased;
            output = operation => {
                self.idle_time = Duration::ZERO;
                return Ok(Some(output));
            }
            () = sleep_until(coalesce_deadline(now + step, step).min(end)) => (),
        }
        self.check_total_timeout()?;
        self.idle_time += step;
        if self.idle_time < self.idle_timeout {
            return Ok(None);
        }
        Err(Error::IdleTimeout { milliseconds: self.idle_timeout.as_millis() as u64 })
    }

    /// Fails if the total timeout has passed.
    fn check_total_timeout(&mut self) -> Result<()> {
        self.unchecked_reads = 0;
        let now = Instant::now();
        if self.total_deadline(now) > now {
            Ok(())
        } else {
            Err(Error::Timeout { milliseconds: self.total_timeout_ms })
        }
    }

    fn total_deadline(&mut self, now: Instant) -> Instant {
        *self
            .deadline
            .get_or_insert_with(|| deadline::saturating_add(now, Duration::from_millis(self.total_timeout_ms)))
    }
}

/// Rounds a deadline up to a multiple of `COALESCE_INTERVAL` if its limit is a second or more, so that several
/// deadlines expire together. Separate timers would wake two threads each.
fn coalesce_deadline(end: Instant, limit: Duration) -> Instant {
    static CLOCK_START: LazyLock<Instant> = LazyLock::new(Instant::now);
    if limit < MIN_COALESCED_TIMEOUT {
        return end;
    }
    let excess_ms = end.duration_since(*CLOCK_START).as_millis() % COALESCE_INTERVAL.as_millis();
    end + COALESCE_INTERVAL - Duration::from_millis(excess_ms as u64)
}

#[cfg(test)]
mod tests {
    use super::{super::incoming::collect, *};

    #[tokio::test(start_paused = true)]
    async fn total_timeout_applies_to_reads_that_never_wait() {
        let total = Duration::from_secs(9);
        let mut max_wait = ReadTimeout::new(Duration::from_secs(1), total);
        for _ in 0..u16::from(MAX_UNCHECKED_READS) * 2 {
            assert!(max_wait.wait_for(std::future::ready(())).await.is_ok());
        }
        tokio::time::advance(total).await;
        let mut ends = Vec::new();
        for _ in 0..MAX_UNCHECKED_READS {
            ends.push(max_wait.wait_for(std::future::ready(())).await.is_err());
        }
        assert_eq!(ends.iter().filter(|is_over| **is_over).count(), 1);
    }

    #[tokio::test]
    async fn transformed_bytes_are_split_into_small_chunks() {
        let mut body = ResponseBody::from_bytes(Bytes::from_static(b"a"));
        body = body.map_chunks(|chunk| if chunk.is_some() { Bytes::new() } else { Bytes::from(vec![7; 20_000]) });
        body.use_small_chunks();
        let mut lengths = Vec::new();
        while let Some(chunk) = body.next_chunk().await {
            lengths.push(chunk.unwrap().len());
        }
        assert_eq!(lengths, [SMALL_CHUNK_BYTES, SMALL_CHUNK_BYTES, 20_000 - 2 * SMALL_CHUNK_BYTES]);
        assert!(body.is_done());
    }

    fn deferred_body(body: Result<ResponseBody>) -> DeferredBody {
        Box::new(move || {
            Box::pin(async move {
                tokio::time::sleep(MIN_COALESCED_TIMEOUT).await;
                body
            })
        })
    }

    #[tokio::test(start_paused = true)]
    async fn reads_bodies_in_order_even_if_the_reader_stops_waiting() {
        let complete = |text: &'static str| ResponseBody::from_bytes(Bytes::from_static(text.as_bytes()));
        let broken = Err(Error::ResponseBroken { cause: "gone".into() });
        let later_ones = [Ok(complete("b")), Ok(complete("")), Ok(complete("cd")), broken, Ok(complete("e"))];
        let mut body = ResponseBody::from_sequence(complete("a"), later_ones.into_iter().map(deferred_body).collect());
        let (mut read, mut waits, mut errors) = (Vec::new(), 0, 0);
        while !body.is_done() {
            match tokio::time::timeout(Duration::from_millis(300), body.next_chunk()).await {
                Ok(Some(Ok(chunk))) => read.extend_from_slice(&chunk),
                Ok(Some(Err(_))) => errors += 1,
                Ok(None) => break,
                Err(_) => waits += 1,
            }
        }
        assert_eq!((read.as_slice(), errors, waits), (&b"abcd"[..], 1, 12));
        assert!(body.next_chunk().await.is_none() && body.is_done());
    }

    /// Returns a body that expands one byte to 200 KB in one chunk.
    fn expanding_body() -> (ResponseBody, Vec<u8>) {
        let expected: Vec<u8> = (0..200_000_u32).map(|at| (at % 251) as u8).collect();
        let output = Bytes::from(expected.clone());
        let body = ResponseBody::from_bytes(Bytes::from_static(b"a"));
        (body.map_chunks(move |chunk| if chunk.is_some() { Bytes::new() } else { output.clone() }), expected)
    }

    #[tokio::test]
    async fn keeps_all_bytes_of_an_expanded_chunk_after_waiting_or_put_back() {
        let (mut body, expected) = expanding_body();
        body.wait_for_first_chunk().await.unwrap();
        let first = body.next_chunk().await.unwrap().unwrap();
        body.put_back(first);
        let mut read = Vec::new();
        while let Some(chunk) = body.next_chunk().await {
            read.extend_from_slice(&chunk.unwrap());
        }
        assert!(read == expected, "{} bytes of {}", read.len(), expected.len());
    }

    #[tokio::test]
    async fn empty_body_in_a_sequence_does_not_time_out() {
        let first = ResponseBody::from_bytes(Bytes::from_static(b"a")).map_chunks(Option::unwrap_or_default);
        let part = |bytes: &'static [u8]| -> DeferredBody {
            Box::new(move || Box::pin(async move { Ok(ResponseBody::from_bytes(Bytes::from_static(bytes))) }))
        };
        let mut body = ResponseBody::from_sequence(first, VecDeque::from([part(b""), part(b"b"), part(b"")]));
        let mut chunks = Vec::new();
        while let Some(chunk) = body.next_chunk().await {
            chunks.push(chunk.unwrap());
        }
        assert_eq!(chunks, ["a", "b"]);
    }

    #[tokio::test]
    async fn collect_respects_the_limit_and_puts_everything_back() {
        for (mut body, expected) in
            [expanding_body(), (ResponseBody::from_bytes(Bytes::from_static(b"abc")), b"abc".to_vec())]
        {
            for limit in [0, 1, expected.len() - 1] {
                assert_eq!(collect(&mut body, limit).await.unwrap(), None);
            }
            assert!(collect(&mut body, expected.len()).await.unwrap().unwrap() == expected);
        }
    }
}
