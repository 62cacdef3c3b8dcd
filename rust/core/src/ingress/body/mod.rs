//! Request bodies: whole where they are small, fed in bounded pieces where they are large, and never waited for without end.

pub(crate) mod buffering;
mod limits;
pub(crate) mod read_clock;

use std::{
    collections::VecDeque,
    future::poll_fn,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use tokio::time::Instant;

pub(crate) use crate::ingress::body::buffering::MAX_UNCHARGED_BYTES;
use crate::ingress::body::read_clock::WaitClock;
pub use limits::BodyLimits;

use crate::{
    error::{Error, Result},
    state::shared::memory_budget::MemoryPermit,
};

/// A feeder is told to pause when this many bytes wait to be read.
const HIGH_WATER_BYTES: usize = 256 * 1024;
/// Whole bodies up to this size are changed in far less than a millisecond.
const MAX_INLINE_REWRITE_BYTES: usize = 256 * 1024;

/// A request's body.
#[derive(Debug)]
pub enum Body {
    Complete(Bytes),
    /// More is to come; the length where the caller declared one. In a box: bodies are moved often, and most are whole.
    Streamed(Box<Feed>, Option<u64>),
}

impl Body {
    pub fn empty() -> Self {
        Self::Complete(Bytes::new())
    }

    /// What has come, where that is all of it; else nothing.
    pub fn complete_bytes(&self) -> &[u8] {
        match self {
            Self::Complete(bytes) => bytes,
            Self::Streamed(..) => b"",
        }
    }

    /// The declared or known length in bytes.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Complete(bytes) => Some(bytes.len() as u64),
            Self::Streamed(_, length) => *length,
        }
    }

    /// How far it has come, where it is still arriving.
    pub fn upload_progress(&self) -> Option<UploadProgress> {
        match self {
            Self::Streamed(feed, _) => Some(UploadProgress(Arc::clone(&feed.state))),
            Self::Complete(_) => None,
        }
    }

    /// The same once more, where it is there to be sent again.
    pub fn try_clone(&self) -> Option<Self> {
        match self {
            Self::Complete(bytes) => Some(Self::Complete(bytes.clone())),
            Self::Streamed(..) => None,
        }
    }

    /// The same for somebody who may come to nothing with it: as long as nothing was read of it, it comes back.
    pub fn make_recoverable(mut self) -> (Self, Option<BodyRecovery>) {
        let Self::Streamed(feed, length) = &mut self else { return (self, None) };
        let home = ReturnSlot::default();
        (feed.return_slot, feed.baseline_bytes_read) = (Some(Arc::clone(&home)), feed.bytes_read);
        let lent = BodyRecovery { return_slot: home, length: *length };
        (self, Some(lent))
    }

    /// The same within limits: what is known to be too large is refused, what turns out so ends in an error.
    pub fn with_limits(mut self, limits: BodyLimits) -> Result<Self> {
        if self.length().is_some_and(|length| length > limits.max_bytes as u64) {
            return Err(limits.too_large_error());
        }
        if let Self::Streamed(feed, _) = &mut self {
            feed.limits = Some(limits);
        }
        Ok(self)
    }

    /// The same, with someone who sees all of it on its way.
    #[must_use]
    pub fn with_watcher(mut self, mut watcher: ChunkWatcher) -> Self {
        match &mut self {
            Self::Streamed(feed, _) => feed.watcher = Some(watcher),
            Self::Complete(bytes) => watcher(bytes),
        }
        self
    }

    /// The same, with someone who says of all of it on its way whether it may go on, and of its end.
    pub fn with_guard(mut self, mut guard: ChunkGuard) -> Result<Self> {
        match &mut self {
            Self::Streamed(feed, _) => feed.guard = Some(guard),
            Self::Complete(bytes) => {
                guard(Some(bytes))?;
                guard(None)?;
            }
        }
        Ok(self)
    }

    /// Waits until enough of its beginning has come, or so many bytes. They are still to be read.
    pub async fn wait_for_prefix(&mut self, most: usize, mut is_enough: impl FnMut(&[u8]) -> bool) -> Result<()> {
        let Self::Streamed(feed, _) = self else { return Ok(()) };
        let mut beginning = Vec::new();
        while beginning.len() < most {
            let Some(piece) = feed.next().await else { break };
            let piece = piece?;
            beginning.extend_from_slice(&piece);
            if is_enough(&piece) {
                break;
            }
        }
        feed.put_back(beginning.into());
        Ok(())
    }

    /// Changes what has come of it and waits to be read; what is large and whole is changed elsewhere: here others wait.
    pub async fn rewrite_buffered(
        &mut self,
        change: impl FnOnce(&[u8]) -> Option<Vec<u8>> + Send + 'static,
    ) -> Result<()> {
        match self {
            Self::Complete(bytes) if bytes.len() > MAX_INLINE_REWRITE_BYTES => {
                let large = bytes.clone();
                // In a box of its own: it would make the future of every request larger. Changing neither panics nor is
                // cancelled, unless the process ends.
                let changed = Box::pin(tokio::task::spawn_blocking(move || change(&large))).await;
                if let Some(changed) = changed.map_err(|_| Error::Draining)? {
                    *bytes = changed.into();
                }
            }
            Self::Complete(bytes) => {
                if let Some(changed) = change(bytes) {
                    *bytes = changed.into();
                }
            }
            Self::Streamed(feed, length) => {
                let mut state = lock_state(&feed.state);
                let Some(first) = state.chunks.front_mut() else { return Ok(()) };
                let Some(changed) = change(first) else { return Ok(()) };
                let (before, after) = (first.len(), changed.len());
                *first = changed.into();
                state.buffered_bytes = state.buffered_bytes - before + after;
                *length = length.map(|length| length - before as u64 + after as u64);
            }
        }
        Ok(())
    }

    /// The next piece of it; `None` at its end.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        match self {
            Self::Complete(bytes) => {
                Some(Ok(std::mem::take(bytes))).filter(|taken| !matches!(taken, Ok(bytes) if bytes.is_empty()))
            }
            Self::Streamed(feed, _) => feed.next().await,
        }
    }
}

/// Where a feed comes back to.
type ReturnSlot = Arc<Mutex<Option<Box<Feed>>>>;

/// A body that is somewhere else, or has come back from there.
#[derive(Debug)]
pub struct BodyRecovery {
    return_slot: ReturnSlot,
    length: Option<u64>,
}

impl BodyRecovery {
    pub fn is_returned(&self) -> bool {
        self.return_slot.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub fn recover(self) -> Option<Body> {
        let feed = self.return_slot.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Body::Streamed(feed, self.length))
    }
}

/// How a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEnd {
    Complete,
    /// The caller left before.
    Disconnected,
    /// The caller is there, but what it sends is no body.
    Malformed,
}

/// What the reading end makes of what is fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReaderState {
    #[default]
    Reading,
    /// The request was answered without the rest.
    Closed,
    /// The rest took too long.
    TimedOut,
}

#[derive(Default)]
struct FeedState {
    chunks: VecDeque<Bytes>,
    buffered_bytes: usize,
    is_paused: bool,
    reader_state: ReaderState,
    end: Option<BodyEnd>,
    /// When the reading end got what it asked for last; `None` while it waits for the caller.
    last_read_at: Option<Instant>,
    reader_waker: Option<Waker>,
    resume_callback: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// The reading end of a body that is still arriving. The other end is a [`Feeder`].
pub struct Feed {
    state: Arc<Mutex<FeedState>>,
    bytes_read: usize,
    limits: Option<BodyLimits>,
    clock: WaitClock,
    watcher: Option<ChunkWatcher>,
    guard: Option<ChunkGuard>,
    /// What it takes of the room for bodies, should it be gathered.
    memory_permit: Option<MemoryPermit>,
    /// Where it comes back to as long as no more was taken than `lent`.
    return_slot: Option<ReturnSlot>,
    baseline_bytes_read: usize,
}

/// Sees every piece before it goes on.
pub type ChunkWatcher = Box<dyn FnMut(&[u8]) + Send + Sync>;

/// Says of every piece before it goes on, and of the end (`None`), whether it may.
pub type ChunkGuard = Box<dyn FnMut(Option<&[u8]>) -> Result<()> + Send + Sync>;

/// The writing end: whoever talks to the caller's connection.
#[derive(Clone)]
pub struct Feeder(Arc<Mutex<FeedState>>);

/// What is known of a body while it is being sent on.
#[derive(Clone)]
pub struct UploadProgress(Arc<Mutex<FeedState>>);

impl UploadProgress {
    /// When the last piece was taken; `None` while the caller is waited for.
    pub fn last_read_at(&self) -> Option<Instant> {
        lock_state(&self.0).last_read_at
    }
}

impl std::fmt::Debug for UploadProgress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Upload")
    }
}

/// A feed and its feeder. `resume` is called when the feeder was told to pause and may go on, or when nobody reads any more.
pub fn feed_channel(resume: impl Fn() + Send + Sync + 'static) -> (Feeder, Box<Feed>) {
    let state = FeedState { resume_callback: Some(Arc::new(resume)), ..FeedState::default() };
    let shared = Arc::new(Mutex::new(state));
    let feed = Feed {
        state: shared.clone(),
        bytes_read: 0,
        limits: None,
        clock: WaitClock::default(),
        watcher: None,
        guard: None,
        memory_permit: None,
        return_slot: None,
        baseline_bytes_read: 0,
    };
    (Feeder(shared), Box::new(feed))
}

fn lock_state(state: &Mutex<FeedState>) -> MutexGuard<'_, FeedState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feeder {
    /// Adds a piece; `false` asks to pause until `resume` is called.
    pub fn push(&self, piece: Bytes) -> bool {
        let mut state = lock_state(&self.0);
        if state.reader_state != ReaderState::Reading {
            return true;
        }
        state.buffered_bytes += piece.len();
        state.chunks.push_back(piece);
        state.is_paused = state.buffered_bytes >= HIGH_WATER_BYTES;
        let more = !state.is_paused;
        wake_reader(state);
        more
    }

    /// Sends nothing before it is asked to.
    pub fn pause(&self) {
        lock_state(&self.0).is_paused = true;
    }

    pub fn is_paused(&self) -> bool {
        let state = lock_state(&self.0);
        state.is_paused && state.reader_state == ReaderState::Reading
    }

    pub fn reader_state(&self) -> ReaderState {
        lock_state(&self.0).reader_state
    }

    /// There is no more to come.
    pub fn finish(&self, end: BodyEnd) {
        let mut state = lock_state(&self.0);
        state.end.get_or_insert(end);
        wake_reader(state);
    }
}

fn wake_reader(mut state: MutexGuard<'_, FeedState>) {
    let reader = state.reader_waker.take();
    drop(state);
    if let Some(reader) = reader {
        reader.wake();
    }
}

impl Feed {
    /// The next piece; `None` at the end; an error where the caller left before it, sent too much or too slowly.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        let piece = poll_fn(|context| self.poll_next(context)).await;
        if let Some(Ok(bytes)) = &piece {
            self.bytes_read += bytes.len();
            if let Some(limits) = self.limits.filter(|limits| self.bytes_read > limits.max_bytes) {
                return Some(Err(limits.too_large_error()));
            }
            if let Some(watcher) = &mut self.watcher {
                watcher(bytes);
            }
        }
        match (&mut self.guard, &piece) {
            (Some(guard), None) => guard(None).err().map(Err),
            (Some(guard), Some(Ok(bytes))) => guard(Some(bytes)).err().map(Err).or(piece),
            _ => piece,
        }
    }

    /// Whether nothing was taken since it was lent, and it can still be read.
    fn is_untouched(&self) -> bool {
        self.bytes_read == self.baseline_bytes_read && lock_state(&self.state).reader_state == ReaderState::Reading
    }

    fn put_back(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.bytes_read -= bytes.len();
        let mut state = lock_state(&self.state);
        state.buffered_bytes += bytes.len();
        state.chunks.push_front(bytes);
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        if let Poll::Ready(piece) = poll_chunk(&self.state, context) {
            self.clock.stop_waiting();
            return Poll::Ready(piece);
        }
        let Some(limits) = self.limits else { return Poll::Pending };
        let (patience, limit) = limits.remaining_wait(self.bytes_read, self.clock.total_wait);
        ready!(self.clock.poll_expired(context, patience));
        lock_state(&self.state).reader_state = ReaderState::TimedOut;
        Poll::Ready(Some(Err(limits.timeout_error(limit))))
    }
}

fn poll_chunk(shared: &Mutex<FeedState>, context: &Context<'_>) -> Poll<Option<Result<Bytes>>> {
    let mut state = lock_state(shared);
    state.last_read_at = Some(Instant::now());
    let piece = state.chunks.pop_front();
    state.buffered_bytes -= piece.as_ref().map_or(0, Bytes::len);
    let resume = if state.is_paused && state.buffered_bytes < HIGH_WATER_BYTES / 2 {
        state.is_paused = false;
        state.resume_callback.clone()
    } else {
        None
    };
    let polled = match (piece, state.end) {
        (Some(piece), _) => Poll::Ready(Some(Ok(piece))),
        (None, Some(BodyEnd::Complete)) => Poll::Ready(None),
        (None, Some(BodyEnd::Disconnected)) => Poll::Ready(Some(Err(Error::IncompleteBody))),
        (None, Some(BodyEnd::Malformed)) => Poll::Ready(Some(Err(Error::InvalidFraming))),
        (None, None) => {
            state.last_read_at = None;
            state.reader_waker = Some(context.waker().clone());
            Poll::Pending
        }
    };
    // Whoever resumes may wait for a thread that waits for this lock.
    drop(state);
    if let Some(resume) = resume {
        resume();
    }
    polled
}

impl Drop for Feed {
    /// The feeder may wait to be asked for more: it learns that it will not be.
    fn drop(&mut self) {
        if let Some(home) = self.return_slot.take().filter(|_| self.is_untouched()) {
            let back = Self {
                state: Arc::clone(&self.state),
                bytes_read: self.bytes_read,
                limits: self.limits,
                clock: mem::take(&mut self.clock),
                watcher: self.watcher.take(),
                // What was to be looked at there was for one target.
                guard: None,
                memory_permit: self.memory_permit.take(),
                return_slot: None,
                baseline_bytes_read: 0,
            };
            *home.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(back));
            return;
        }
        let mut state = lock_state(&self.state);
        if state.reader_state == ReaderState::Reading {
            state.reader_state = ReaderState::Closed;
        }
        state.chunks.clear();
        let resume = state
            .resume_callback
            .take()
            .filter(|_| !matches!(state.end, Some(BodyEnd::Complete | BodyEnd::Disconnected)));
        drop(state);
        if let Some(resume) = resume {
            resume();
        }
    }
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Feed")
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use super::*;

    const LIMITS: BodyLimits = BodyLimits {
        max_bytes: 10_000,
        idle_timeout: Duration::from_secs(10),
        total_timeout: Duration::from_mins(1),
        grace_period: Duration::from_secs(15),
        min_bytes_per_second: 100,
    };

    /// A fed body that gets so many bytes every so many seconds, and how it ends after how long.
    async fn collect_slowly(bytes: usize, seconds: u64) -> (Result<usize>, u64) {
        let (feeder, feed) = feed_channel(|| ());
        let started = Instant::now();
        let dripping = tokio::spawn(async move {
            for _ in 0..200 {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                feeder.push(Bytes::from(vec![0; bytes]));
            }
            feeder.finish(BodyEnd::Complete);
        });
        let ended = Body::Streamed(feed, None).with_limits(LIMITS).unwrap().collect().await;
        dripping.abort();
        (ended.map(|bytes| bytes.len()), started.elapsed().as_secs())
    }

    fn exceeded_limit<T>(ended: &Result<T>) -> &'static str {
        match ended {
            Err(Error::BodyTimeout { setting: limit, .. }) => limit,
            _ => "none",
        }
    }

    #[tokio::test]
    async fn collects_all_chunks() {
        let (feeder, feed) = feed_channel(|| ());
        feeder.push(Bytes::from_static(b"ab"));
        feeder.push(Bytes::from_static(b"c"));
        feeder.finish(BodyEnd::Complete);
        assert_eq!(Body::Streamed(feed, None).collect().await.unwrap(), "abc");
    }

    #[tokio::test]
    async fn rejects_a_body_above_the_size_limit() {
        let (feeder, feed) = feed_channel(|| ());
        feeder.push(Bytes::from(vec![0; 10_001]));
        feeder.finish(BodyEnd::Complete);
        let refused = Body::Streamed(feed, None).with_limits(LIMITS).unwrap().collect().await;
        assert!(matches!(refused, Err(Error::BodyTooLarge { limit: 10_000 })));
    }

    #[tokio::test(start_paused = true)]
    async fn limits_waiting_per_chunk_by_rate_and_in_total() {
        let (ended, seconds) = collect_slowly(1, 11).await;
        assert_eq!((exceeded_limit(&ended), seconds), ("body_idle_ms", 10));
        // Fifteen seconds are forgiven, and each piece earns a second.
        let (ended, seconds) = collect_slowly(100, 4).await;
        assert_eq!((exceeded_limit(&ended), seconds), ("body_rate", 19));
        let (ended, seconds) = collect_slowly(45, 1).await;
        assert_eq!((exceeded_limit(&ended), seconds), ("body_rate", 26));
        let (ended, seconds) = collect_slowly(150, 1).await;
        assert_eq!((exceeded_limit(&ended), seconds), ("body_total_ms", 60));
        let (ended, seconds) = collect_slowly(50, 0).await;
        assert_eq!((ended.unwrap(), seconds), (10_000, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_a_slow_reader_does_not_count_against_the_client() {
        let (feeder, feed) = feed_channel(|| ());
        let Body::Streamed(mut feed, _) = Body::Streamed(feed, None).with_limits(LIMITS).unwrap() else {
            unreachable!()
        };
        for _ in 0..20 {
            feeder.push(Bytes::from_static(b"x"));
            tokio::time::sleep(Duration::from_secs(9)).await;
            assert_eq!(feed.next().await.unwrap().unwrap(), "x");
        }
        assert_eq!(exceeded_limit(&feed.next().await.unwrap()), "body_idle_ms");
        assert_eq!(feeder.reader_state(), ReaderState::TimedOut);
    }

    #[tokio::test]
    async fn pauses_a_fast_feeder_and_resumes_it() {
        let resumed = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&resumed);
        let (feeder, mut feed) = feed_channel(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        assert!(!feeder.push(Bytes::from(vec![0; HIGH_WATER_BYTES])));
        feed.next().await.unwrap().unwrap();
        assert_eq!(resumed.load(Ordering::Relaxed), 1);
        assert!(!feeder.push(Bytes::from(vec![0; HIGH_WATER_BYTES])) && feeder.is_paused());
        drop(feed);
        // It must not wait for somebody who is not there.
        assert_eq!((resumed.load(Ordering::Relaxed), feeder.reader_state()), (2, ReaderState::Closed));
        assert!(feeder.push(Bytes::from(vec![0; HIGH_WATER_BYTES])) && !feeder.is_paused());
    }

    #[tokio::test]
    async fn client_disconnect_and_malformed_body_have_their_own_error_codes() {
        for (end, code) in [(BodyEnd::Disconnected, "broken_body"), (BodyEnd::Malformed, "bad_framing")] {
            let (feeder, feed) = feed_channel(|| ());
            feeder.finish(end);
            assert_eq!(Body::Streamed(feed, None).collect().await.unwrap_err().code(), code);
        }
    }
}
