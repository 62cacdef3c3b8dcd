//! Request bodies: complete if small, streamed in bounded chunks if large, and always read with a timeout.

mod buffering;
mod limits;
mod read_clock;

use std::{
    collections::VecDeque,
    future::poll_fn,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    error::{Error, Result},
    memory_budget::MemoryPermit,
};
pub use buffering::MAX_UNCHARGED_BYTES;
pub use limits::BodyLimits;
use read_clock::WaitClock;

/// Number of unread bytes at which the feeder is asked to pause.
const HIGH_WATER_BYTES: usize = 256 * 1024;
/// Complete bodies up to this size are rewritten in place, which takes far less than a millisecond.
const MAX_INLINE_REWRITE_BYTES: usize = 256 * 1024;

/// A request's body.
#[derive(Debug)]
pub enum Body {
    Complete(Bytes),
    /// More data is to come; holds the length if the client declared one. Boxed, because bodies are moved often and
    /// most are complete.
    Streamed(Box<Feed>, Option<u64>),
}

impl Body {
    pub fn empty() -> Self {
        Self::Complete(Bytes::new())
    }

    /// Returns the bytes of a complete body; an empty slice if the body is streamed.
    pub fn complete_bytes(&self) -> &[u8] {
        match self {
            Self::Complete(bytes) => bytes,
            Self::Streamed(..) => b"",
        }
    }

    /// Returns the declared or known length in bytes.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Complete(bytes) => Some(bytes.len() as u64),
            Self::Streamed(_, length) => *length,
        }
    }

    /// Returns the progress of the upload if the body is still arriving.
    pub fn upload_progress(&self) -> Option<UploadProgress> {
        match self {
            Self::Streamed(feed, _) => Some(UploadProgress(Arc::clone(&feed.state))),
            Self::Complete(_) => None,
        }
    }

    /// Returns a copy that can be sent again; `None` if the body is streamed.
    pub fn try_clone(&self) -> Option<Self> {
        match self {
            Self::Complete(bytes) => Some(Self::Complete(bytes.clone())),
            Self::Streamed(..) => None,
        }
    }

    /// Prepares the body for an attempt that may fail before it reads anything. If the body is dropped unread, the
    /// returned handle recovers it.
    pub fn make_recoverable(mut self) -> (Self, Option<BodyRecovery>) {
        let Self::Streamed(feed, length) = &mut self else { return (self, None) };
        let home = ReturnSlot::default();
        (feed.return_slot, feed.baseline_bytes_read) = (Some(Arc::clone(&home)), feed.bytes_read);
        let recovery = BodyRecovery { return_slot: home, length: *length };
        (self, Some(recovery))
    }

    /// Applies limits. Rejects a body whose declared length is too large; a streamed body that exceeds a limit fails
    /// while it is read.
    pub fn with_limits(mut self, limits: BodyLimits) -> Result<Self> {
        if self.length().is_some_and(|length| length > limits.max_bytes as u64) {
            return Err(limits.too_large_error());
        }
        if let Self::Streamed(feed, _) = &mut self {
            feed.limits = Some(limits);
        }
        Ok(self)
    }

    /// Adds a watcher that sees every chunk as it passes through, after those that were added before.
    #[must_use]
    pub fn with_watcher(mut self, mut watcher: ChunkWatcher) -> Self {
        match &mut self {
            Self::Streamed(feed, _) => {
                feed.watcher = Some(match feed.watcher.take() {
                    None => watcher,
                    Some(mut first) => Box::new(move |chunk| {
                        first(chunk);
                        watcher(chunk);
                    }),
                });
            }
            Self::Complete(bytes) => watcher(bytes),
        }
        self
    }

    /// Adds a guard that can reject each chunk as it passes through, and the end of the body.
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

    /// Waits until `is_enough` accepts a chunk or `most` bytes have arrived. The bytes can still be read afterwards.
    pub async fn wait_for_prefix(&mut self, most: usize, mut is_enough: impl FnMut(&[u8]) -> bool) -> Result<()> {
        let Self::Streamed(feed, _) = self else { return Ok(()) };
        let mut beginning = Vec::new();
        while beginning.len() < most {
            let Some(chunk) = feed.next().await else { break };
            let chunk = chunk?;
            beginning.extend_from_slice(&chunk);
            if is_enough(&chunk) {
                break;
            }
        }
        feed.put_back(beginning.into());
        Ok(())
    }

    /// Rewrites the bytes that have arrived and are unread. Large complete bodies are rewritten on a blocking thread,
    /// because other requests would wait here.
    pub async fn rewrite_buffered(
        &mut self,
        change: impl FnOnce(&[u8]) -> Option<Vec<u8>> + Send + 'static,
    ) -> Result<()> {
        match self {
            Self::Complete(bytes) if bytes.len() > MAX_INLINE_REWRITE_BYTES => {
                let large = bytes.clone();
                // Boxed: inline, it would enlarge the future of every request. The rewrite neither panics nor is
                // cancelled, unless the process is shutting down.
                let changed = Box::pin(tokio::task::spawn_blocking(move || change(&large))).await;
                if let Some(changed) = changed.map_err(|_| Error::ShuttingDown)? {
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

    /// Returns the next chunk; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        match self {
            Self::Complete(bytes) => {
                Some(Ok(std::mem::take(bytes))).filter(|taken| !matches!(taken, Ok(bytes) if bytes.is_empty()))
            }
            Self::Streamed(feed, _) => feed.next().await,
        }
    }
}

/// Slot to which an unread feed returns when it is dropped.
type ReturnSlot = Arc<Mutex<Option<Box<Feed>>>>;

/// Handle to a body that was passed on and may come back unread.
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

/// How a body ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEnd {
    Complete,
    /// The client disconnected before the end.
    Disconnected,
    /// The client is still connected, but its body is malformed.
    Malformed,
}

/// State of the reading end, as the feeder sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReaderState {
    #[default]
    Reading,
    /// The response was sent without the rest of the body.
    Closed,
    /// The rest of the body took too long.
    TimedOut,
}

#[derive(Default)]
struct FeedState {
    chunks: VecDeque<Bytes>,
    buffered_bytes: usize,
    is_paused: bool,
    reader_state: ReaderState,
    end: Option<BodyEnd>,
    /// When the reading end last got what it asked for; `None` while it waits for the client.
    last_read_at: Option<Instant>,
    reader_waker: Option<Waker>,
    resume_callback: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// Reading end of a body that is still arriving. The writing end is a [`Feeder`].
pub struct Feed {
    state: Arc<Mutex<FeedState>>,
    bytes_read: usize,
    limits: Option<BodyLimits>,
    clock: WaitClock,
    watcher: Option<ChunkWatcher>,
    guard: Option<ChunkGuard>,
    /// Permit of the memory budget for bodies, used if the body is collected.
    memory_permit: Option<MemoryPermit>,
    /// Slot to which the feed returns if no bytes were read beyond `baseline_bytes_read`.
    return_slot: Option<ReturnSlot>,
    baseline_bytes_read: usize,
}

/// Callback that sees every chunk before it is forwarded.
pub type ChunkWatcher = Box<dyn FnMut(&[u8]) + Send + Sync>;

/// Callback that accepts or rejects every chunk before it is forwarded, and the end of the body (`None`).
pub type ChunkGuard = Box<dyn FnMut(Option<&[u8]>) -> Result<()> + Send + Sync>;

/// Writing end of a body, for the code that reads the client's connection.
#[derive(Clone)]
pub struct Feeder(Arc<Mutex<FeedState>>);

/// Progress of a body while it is sent upstream.
#[derive(Clone)]
pub struct UploadProgress(Arc<Mutex<FeedState>>);

impl UploadProgress {
    /// Returns when the last chunk was read; `None` while the gateway waits for the client.
    pub fn last_read_at(&self) -> Option<Instant> {
        lock_state(&self.0).last_read_at
    }
}

impl std::fmt::Debug for UploadProgress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Upload")
    }
}

/// Creates a feeder and its feed. `resume` is called when a paused feeder may continue, or when the body is no longer
/// read.
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
    /// Adds a chunk. Returns false if the feeder must pause until `resume` is called.
    pub fn push(&self, chunk: Bytes) -> bool {
        let mut state = lock_state(&self.0);
        if state.reader_state != ReaderState::Reading {
            return true;
        }
        state.buffered_bytes += chunk.len();
        state.chunks.push_back(chunk);
        state.is_paused = state.buffered_bytes >= HIGH_WATER_BYTES;
        let more = !state.is_paused;
        wake_reader(state);
        more
    }

    /// Pauses the feeder until the reading end asks for data.
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

    /// Marks the end of the body.
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
    /// Returns the next chunk; `None` at the end. Fails if the client disconnected early, sent too much or was too
    /// slow.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        let chunk = poll_fn(|context| self.poll_next(context)).await;
        if let Some(Ok(bytes)) = &chunk {
            self.bytes_read += bytes.len();
            if let Some(limits) = self.limits.filter(|limits| self.bytes_read > limits.max_bytes) {
                return Some(Err(limits.too_large_error()));
            }
            if let Some(watcher) = &mut self.watcher {
                watcher(bytes);
            }
        }
        match (&mut self.guard, &chunk) {
            (Some(guard), None) => guard(None).err().map(Err),
            (Some(guard), Some(Ok(bytes))) => guard(Some(bytes)).err().map(Err).or(chunk),
            _ => chunk,
        }
    }

    /// Returns true if nothing was read since `make_recoverable` and the body can still be read.
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
        if let Poll::Ready(chunk) = poll_chunk(&self.state, context) {
            self.clock.stop_waiting();
            return Poll::Ready(chunk);
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
    let chunk = state.chunks.pop_front();
    state.buffered_bytes -= chunk.as_ref().map_or(0, Bytes::len);
    let resume = if state.is_paused && state.buffered_bytes < HIGH_WATER_BYTES / 2 {
        state.is_paused = false;
        state.resume_callback.clone()
    } else {
        None
    };
    let polled = match (chunk, state.end) {
        (Some(chunk), _) => Poll::Ready(Some(Ok(chunk))),
        (None, Some(BodyEnd::Complete)) => Poll::Ready(None),
        (None, Some(BodyEnd::Disconnected)) => Poll::Ready(Some(Err(Error::IncompleteBody))),
        (None, Some(BodyEnd::Malformed)) => Poll::Ready(Some(Err(Error::InvalidFraming))),
        (None, None) => {
            state.last_read_at = None;
            state.reader_waker = Some(context.waker().clone());
            Poll::Pending
        }
    };
    // The callback may wait for a thread that waits for this lock.
    drop(state);
    if let Some(resume) = resume {
        resume();
    }
    polled
}

impl Drop for Feed {
    /// Returns an unread feed to its slot. Otherwise resumes a paused feeder, which learns that no more data is wanted.
    fn drop(&mut self) {
        if let Some(home) = self.return_slot.take().filter(|_| self.is_untouched()) {
            let back = Self {
                state: Arc::clone(&self.state),
                bytes_read: self.bytes_read,
                limits: self.limits,
                clock: mem::take(&mut self.clock),
                watcher: self.watcher.take(),
                // The guard belonged to one target only.
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

    /// Collects a streamed body that gets `bytes` bytes every `seconds` seconds. Returns the result and the elapsed
    /// seconds.
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
        // The grace period is 15 seconds, and each chunk earns one second.
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
        // The feeder must not wait for a reader that is gone.
        assert_eq!((resumed.load(Ordering::Relaxed), feeder.reader_state()), (2, ReaderState::Closed));
        assert!(feeder.push(Bytes::from(vec![0; HIGH_WATER_BYTES])) && !feeder.is_paused());
    }

    #[tokio::test]
    async fn client_disconnect_and_malformed_body_have_errors_of_their_own() {
        for (end, is_malformed) in [(BodyEnd::Disconnected, false), (BodyEnd::Malformed, true)] {
            let (feeder, feed) = feed_channel(|| ());
            feeder.finish(end);
            let error = Body::Streamed(feed, None).collect().await.unwrap_err();
            assert_eq!(matches!(error, Error::InvalidFraming), is_malformed, "{error}");
            assert_eq!(matches!(error, Error::IncompleteBody), !is_malformed, "{error}");
        }
    }
}
