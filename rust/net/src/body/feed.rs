//! Channel of a request body that is still arriving: the feeder writes chunks, the feed reads them within the limits.

use std::{
    collections::VecDeque,
    future::poll_fn,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{limits::BodyLimits, read_clock::WaitClock};
use crate::{
    error::{Error, Result},
    memory_budget::MemoryPermit,
};

/// Number of unread bytes at which `Feeder::push` requires the feeder to pause.
pub(super) const HIGH_WATER_BYTES: usize = 256 * 1024;

/// Slot that receives a feed that is dropped before anything was read from it.
pub(super) type ReturnSlot = Arc<Mutex<Option<Box<Feed>>>>;

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
    /// The feed was dropped: the gateway needs no more of the body.
    Closed,
    /// The client sent the body too slowly.
    TimedOut,
}

#[derive(Default)]
struct FeedState {
    chunks: VecDeque<Bytes>,
    buffered_bytes: usize,
    is_paused: bool,
    reader_state: ReaderState,
    end: Option<BodyEnd>,
    /// Time at which the reader last received a chunk or the end; `None` while it waits for the client.
    last_read_at: Option<Instant>,
    reader_waker: Option<Waker>,
    resume_callback: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// Reading end of a body that is still arriving. The writing end is a [`Feeder`].
pub struct Feed {
    state: Arc<Mutex<FeedState>>,
    pub(super) bytes_read: usize,
    pub(super) limits: Option<BodyLimits>,
    clock: WaitClock,
    pub(super) watcher: Option<ChunkWatcher>,
    pub(super) guard: Option<ChunkGuard>,
    /// Permit of the memory budget for bodies, used if the body is collected.
    pub(super) memory_permit: Option<MemoryPermit>,
    /// Slot that receives the feed if it is dropped before anything was read since `Body::make_recoverable`.
    pub(super) return_slot: Option<ReturnSlot>,
    /// Value of `bytes_read` when `Body::make_recoverable` was called.
    pub(super) baseline_bytes_read: usize,
}

/// Callback that sees every chunk before it is forwarded.
pub type ChunkWatcher = Box<dyn FnMut(&[u8]) + Send + Sync>;

/// Callback that accepts or rejects every chunk before it is forwarded, and at last the end of the body (`None`).
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

/// Creates a feeder and its feed. The feed calls `resume` when a paused feeder may continue, or when nothing more of
/// the body is read.
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

    /// Pauses the feeder until the reader requests data.
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
    pub(super) fn is_untouched(&self) -> bool {
        self.bytes_read == self.baseline_bytes_read && lock_state(&self.state).reader_state == ReaderState::Reading
    }

    /// Returns the progress of the upload.
    pub(super) fn upload_progress(&self) -> UploadProgress {
        UploadProgress(Arc::clone(&self.state))
    }

    /// Rewrites the first unread chunk. Returns its length before and after; `None` if there is no unread chunk or
    /// `change` returns `None`.
    pub(super) fn rewrite_first_chunk(&self, change: impl FnOnce(&[u8]) -> Option<Vec<u8>>) -> Option<(usize, usize)> {
        let mut state = lock_state(&self.state);
        let first = state.chunks.front_mut()?;
        let changed = change(first)?;
        let (before, after) = (first.len(), changed.len());
        *first = changed.into();
        state.buffered_bytes = state.buffered_bytes - before + after;
        Some((before, after))
    }

    pub(super) fn put_back(&mut self, bytes: Bytes) {
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
        let (max_wait, limit) = limits.remaining_wait(self.bytes_read, self.clock.total_wait);
        ready!(self.clock.poll_expired(context, max_wait));
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
    // Unlocks first, because the callback may wait for a thread that waits for this lock.
    drop(state);
    if let Some(resume) = resume {
        resume();
    }
    polled
}

impl Drop for Feed {
    /// Puts an unread feed into its return slot. Otherwise calls the resume callback, so that a paused feeder notices
    /// that nothing more is read.
    fn drop(&mut self) {
        if let Some(return_slot) = self.return_slot.take().filter(|_| self.is_untouched()) {
            let back = Self {
                state: Arc::clone(&self.state),
                bytes_read: self.bytes_read,
                limits: self.limits,
                clock: mem::take(&mut self.clock),
                watcher: self.watcher.take(),
                // The guard belonged to the target of this attempt; the next attempt may have another target.
                guard: None,
                memory_permit: self.memory_permit.take(),
                return_slot: None,
                baseline_bytes_read: 0,
            };
            *return_slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(back));
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
