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

pub(crate) use crate::ingress::body::buffering::SMALL;
use crate::ingress::body::read_clock::Clock;
pub use limits::Limits;

use crate::{
    error::{Error, Result},
    state::shared::memory_budget::Share,
};

/// A feeder is told to pause when this many bytes wait to be read.
const HIGH_WATER: usize = 256 * 1024;
/// Whole bodies up to this size are changed in far less than a millisecond.
const CHANGED_HERE: usize = 256 * 1024;

/// A request's body.
#[derive(Debug)]
pub enum Body {
    Whole(Bytes),
    /// More is to come; the length where the caller declared one. In a box: bodies are moved often, and most are whole.
    Fed(Box<Feed>, Option<u64>),
}

impl Body {
    pub fn empty() -> Self {
        Self::Whole(Bytes::new())
    }

    /// What has come, where that is all of it; else nothing.
    pub fn whole(&self) -> &[u8] {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Fed(..) => b"",
        }
    }

    /// The declared or known length in bytes.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Whole(bytes) => Some(bytes.len() as u64),
            Self::Fed(_, length) => *length,
        }
    }

    /// How far it has come, where it is still arriving.
    pub fn upload(&self) -> Option<Upload> {
        match self {
            Self::Fed(feed, _) => Some(Upload(Arc::clone(&feed.state))),
            Self::Whole(_) => None,
        }
    }

    /// The same once more, where it is there to be sent again.
    pub fn again(&self) -> Option<Self> {
        match self {
            Self::Whole(bytes) => Some(Self::Whole(bytes.clone())),
            Self::Fed(..) => None,
        }
    }

    /// The same for somebody who may come to nothing with it: as long as nothing was read of it, it comes back.
    pub fn lend(mut self) -> (Self, Option<Lent>) {
        let Self::Fed(feed, length) = &mut self else { return (self, None) };
        let home = Home::default();
        (feed.home, feed.lent) = (Some(Arc::clone(&home)), feed.taken);
        let lent = Lent { home, length: *length };
        (self, Some(lent))
    }

    /// The same within limits: what is known to be too large is refused, what turns out so ends in an error.
    pub fn limited(mut self, limits: Limits) -> Result<Self> {
        if self.length().is_some_and(|length| length > limits.bytes as u64) {
            return Err(limits.too_large());
        }
        if let Self::Fed(feed, _) = &mut self {
            feed.limits = Some(limits);
        }
        Ok(self)
    }

    /// The same, with someone who sees all of it on its way.
    #[must_use]
    pub fn watched(mut self, mut watcher: Watcher) -> Self {
        match &mut self {
            Self::Fed(feed, _) => feed.watcher = Some(watcher),
            Self::Whole(bytes) => watcher(bytes),
        }
        self
    }

    /// The same, with someone who says of all of it on its way whether it may go on, and of its end.
    pub fn guarded(mut self, mut guard: Guard) -> Result<Self> {
        match &mut self {
            Self::Fed(feed, _) => feed.guard = Some(guard),
            Self::Whole(bytes) => {
                guard(Some(bytes))?;
                guard(None)?;
            }
        }
        Ok(self)
    }

    /// Waits until enough of its beginning has come, or so many bytes. They are still to be read.
    pub async fn begun(&mut self, most: usize, mut is_enough: impl FnMut(&[u8]) -> bool) -> Result<()> {
        let Self::Fed(feed, _) = self else { return Ok(()) };
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
    pub async fn change(&mut self, change: impl FnOnce(&[u8]) -> Option<Vec<u8>> + Send + 'static) -> Result<()> {
        match self {
            Self::Whole(bytes) if bytes.len() > CHANGED_HERE => {
                let large = bytes.clone();
                // In a box of its own: it would make the future of every request larger. Changing neither panics nor is
                // cancelled, unless the process ends.
                let changed = Box::pin(tokio::task::spawn_blocking(move || change(&large))).await;
                if let Some(changed) = changed.map_err(|_| Error::Draining)? {
                    *bytes = changed.into();
                }
            }
            Self::Whole(bytes) => {
                if let Some(changed) = change(bytes) {
                    *bytes = changed.into();
                }
            }
            Self::Fed(feed, length) => {
                let mut state = lock(&feed.state);
                let Some(first) = state.pieces.front_mut() else { return Ok(()) };
                let Some(changed) = change(first) else { return Ok(()) };
                let (before, after) = (first.len(), changed.len());
                *first = changed.into();
                state.waiting = state.waiting - before + after;
                *length = length.map(|length| length - before as u64 + after as u64);
            }
        }
        Ok(())
    }

    /// The next piece of it; `None` at its end.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        match self {
            Self::Whole(bytes) => {
                Some(Ok(std::mem::take(bytes))).filter(|taken| !matches!(taken, Ok(bytes) if bytes.is_empty()))
            }
            Self::Fed(feed, _) => feed.next().await,
        }
    }
}

/// Where a feed comes back to.
type Home = Arc<Mutex<Option<Box<Feed>>>>;

/// A body that is somewhere else, or has come back from there.
#[derive(Debug)]
pub struct Lent {
    home: Home,
    length: Option<u64>,
}

impl Lent {
    pub fn is_back(&self) -> bool {
        self.home.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub fn back(self) -> Option<Body> {
        let feed = self.home.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Body::Fed(feed, self.length))
    }
}

/// How a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Complete,
    /// The caller left before.
    Left,
    /// The caller is there, but what it sends is no body.
    Broken,
}

/// What the reading end makes of what is fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interest {
    #[default]
    Reads,
    /// The request was answered without the rest.
    Lost,
    /// The rest took too long.
    TimedOut,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Bytes>,
    waiting: usize,
    paused: bool,
    interest: Interest,
    ended: Option<End>,
    /// When the reading end got what it asked for last; `None` while it waits for the caller.
    taken: Option<Instant>,
    reader: Option<Waker>,
    resume: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// The reading end of a body that is still arriving. The other end is a [`Feeder`].
pub struct Feed {
    state: Arc<Mutex<State>>,
    taken: usize,
    limits: Option<Limits>,
    clock: Clock,
    watcher: Option<Watcher>,
    guard: Option<Guard>,
    /// What it takes of the room for bodies, should it be gathered.
    share: Option<Share>,
    /// Where it comes back to as long as no more was taken than `lent`.
    home: Option<Home>,
    lent: usize,
}

/// Sees every piece before it goes on.
pub type Watcher = Box<dyn FnMut(&[u8]) + Send + Sync>;

/// Says of every piece before it goes on, and of the end (`None`), whether it may.
pub type Guard = Box<dyn FnMut(Option<&[u8]>) -> Result<()> + Send + Sync>;

/// The writing end: whoever talks to the caller's connection.
#[derive(Clone)]
pub struct Feeder(Arc<Mutex<State>>);

/// What is known of a body while it is being sent on.
#[derive(Clone)]
pub struct Upload(Arc<Mutex<State>>);

impl Upload {
    /// When the last piece was taken; `None` while the caller is waited for.
    pub fn last_taken(&self) -> Option<Instant> {
        lock(&self.0).taken
    }
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Upload")
    }
}

/// A feed and its feeder. `resume` is called when the feeder was told to pause and may go on, or when nobody reads any more.
pub fn feed(resume: impl Fn() + Send + Sync + 'static) -> (Feeder, Box<Feed>) {
    let state = State { resume: Some(Arc::new(resume)), ..State::default() };
    let shared = Arc::new(Mutex::new(state));
    let feed = Feed {
        state: shared.clone(),
        taken: 0,
        limits: None,
        clock: Clock::default(),
        watcher: None,
        guard: None,
        share: None,
        home: None,
        lent: 0,
    };
    (Feeder(shared), Box::new(feed))
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feeder {
    /// Adds a piece; `false` asks to pause until `resume` is called.
    pub fn push(&self, piece: Bytes) -> bool {
        let mut state = lock(&self.0);
        if state.interest != Interest::Reads {
            return true;
        }
        state.waiting += piece.len();
        state.pieces.push_back(piece);
        state.paused = state.waiting >= HIGH_WATER;
        let more = !state.paused;
        wake(state);
        more
    }

    /// Sends nothing before it is asked to.
    pub fn pause(&self) {
        lock(&self.0).paused = true;
    }

    pub fn is_paused(&self) -> bool {
        let state = lock(&self.0);
        state.paused && state.interest == Interest::Reads
    }

    pub fn interest(&self) -> Interest {
        lock(&self.0).interest
    }

    /// There is no more to come.
    pub fn end(&self, end: End) {
        let mut state = lock(&self.0);
        state.ended.get_or_insert(end);
        wake(state);
    }
}

fn wake(mut state: MutexGuard<'_, State>) {
    let reader = state.reader.take();
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
            self.taken += bytes.len();
            if let Some(limits) = self.limits.filter(|limits| self.taken > limits.bytes) {
                return Some(Err(limits.too_large()));
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
        self.taken == self.lent && lock(&self.state).interest == Interest::Reads
    }

    fn put_back(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.taken -= bytes.len();
        let mut state = lock(&self.state);
        state.waiting += bytes.len();
        state.pieces.push_front(bytes);
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        if let Poll::Ready(piece) = poll_piece(&self.state, context) {
            self.clock.stop();
            return Poll::Ready(piece);
        }
        let Some(limits) = self.limits else { return Poll::Pending };
        let (patience, limit) = limits.patience(self.taken, self.clock.waited);
        ready!(self.clock.poll_rings(context, patience));
        lock(&self.state).interest = Interest::TimedOut;
        Poll::Ready(Some(Err(limits.timeout(limit))))
    }
}

fn poll_piece(shared: &Mutex<State>, context: &Context<'_>) -> Poll<Option<Result<Bytes>>> {
    let mut state = lock(shared);
    state.taken = Some(Instant::now());
    let piece = state.pieces.pop_front();
    state.waiting -= piece.as_ref().map_or(0, Bytes::len);
    let resume = if state.paused && state.waiting < HIGH_WATER / 2 {
        state.paused = false;
        state.resume.clone()
    } else {
        None
    };
    let polled = match (piece, state.ended) {
        (Some(piece), _) => Poll::Ready(Some(Ok(piece))),
        (None, Some(End::Complete)) => Poll::Ready(None),
        (None, Some(End::Left)) => Poll::Ready(Some(Err(Error::BrokenBody))),
        (None, Some(End::Broken)) => Poll::Ready(Some(Err(Error::BadFraming))),
        (None, None) => {
            state.taken = None;
            state.reader = Some(context.waker().clone());
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
        if let Some(home) = self.home.take().filter(|_| self.is_untouched()) {
            let back = Self {
                state: Arc::clone(&self.state),
                taken: self.taken,
                limits: self.limits,
                clock: mem::take(&mut self.clock),
                watcher: self.watcher.take(),
                // What was to be looked at there was for one target.
                guard: None,
                share: self.share.take(),
                home: None,
                lent: 0,
            };
            *home.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(back));
            return;
        }
        let mut state = lock(&self.state);
        if state.interest == Interest::Reads {
            state.interest = Interest::Lost;
        }
        state.pieces.clear();
        let resume = state.resume.take().filter(|_| !matches!(state.ended, Some(End::Complete | End::Left)));
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

    const LIMITS: Limits = Limits {
        bytes: 10_000,
        idle: Duration::from_secs(10),
        total: Duration::from_mins(1),
        grace: Duration::from_secs(15),
        rate: 100,
    };

    /// A fed body that gets so many bytes every so many seconds, and how it ends after how long.
    async fn dripped(bytes: usize, seconds: u64) -> (Result<usize>, u64) {
        let (feeder, feed) = feed(|| ());
        let started = Instant::now();
        let dripping = tokio::spawn(async move {
            for _ in 0..200 {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                feeder.push(Bytes::from(vec![0; bytes]));
            }
            feeder.end(End::Complete);
        });
        let ended = Body::Fed(feed, None).limited(LIMITS).unwrap().collect().await;
        dripping.abort();
        (ended.map(|bytes| bytes.len()), started.elapsed().as_secs())
    }

    fn limit<T>(ended: &Result<T>) -> &'static str {
        match ended {
            Err(Error::BodyTimeout { limit, .. }) => limit,
            _ => "none",
        }
    }

    #[tokio::test]
    async fn collects_what_was_fed() {
        let (feeder, feed) = feed(|| ());
        feeder.push(Bytes::from_static(b"ab"));
        feeder.push(Bytes::from_static(b"c"));
        feeder.end(End::Complete);
        assert_eq!(Body::Fed(feed, None).collect().await.unwrap(), "abc");
    }

    #[tokio::test]
    async fn refuses_more_than_the_limit() {
        let (feeder, feed) = feed(|| ());
        feeder.push(Bytes::from(vec![0; 10_001]));
        feeder.end(End::Complete);
        let refused = Body::Fed(feed, None).limited(LIMITS).unwrap().collect().await;
        assert!(matches!(refused, Err(Error::BodyTooLarge { limit: 10_000 })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_limited_for_each_piece_by_the_rate_and_in_all() {
        let (ended, seconds) = dripped(1, 11).await;
        assert_eq!((limit(&ended), seconds), ("body_idle_ms", 10));
        // Fifteen seconds are forgiven, and each piece earns a second.
        let (ended, seconds) = dripped(100, 4).await;
        assert_eq!((limit(&ended), seconds), ("body_rate", 19));
        let (ended, seconds) = dripped(45, 1).await;
        assert_eq!((limit(&ended), seconds), ("body_rate", 26));
        let (ended, seconds) = dripped(150, 1).await;
        assert_eq!((limit(&ended), seconds), ("body_total_ms", 60));
        let (ended, seconds) = dripped(50, 0).await;
        assert_eq!((ended.unwrap(), seconds), (10_000, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_a_slow_reader_is_not_held_against_the_caller() {
        let (feeder, feed) = feed(|| ());
        let Body::Fed(mut feed, _) = Body::Fed(feed, None).limited(LIMITS).unwrap() else { unreachable!() };
        for _ in 0..20 {
            feeder.push(Bytes::from_static(b"x"));
            tokio::time::sleep(Duration::from_secs(9)).await;
            assert_eq!(feed.next().await.unwrap().unwrap(), "x");
        }
        assert_eq!(limit(&feed.next().await.unwrap()), "body_idle_ms");
        assert_eq!(feeder.interest(), Interest::TimedOut);
    }

    #[tokio::test]
    async fn pauses_a_fast_feeder_and_resumes_it() {
        let resumed = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&resumed);
        let (feeder, mut feed) = feed(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        assert!(!feeder.push(Bytes::from(vec![0; HIGH_WATER])));
        feed.next().await.unwrap().unwrap();
        assert_eq!(resumed.load(Ordering::Relaxed), 1);
        assert!(!feeder.push(Bytes::from(vec![0; HIGH_WATER])) && feeder.is_paused());
        drop(feed);
        // It must not wait for somebody who is not there.
        assert_eq!((resumed.load(Ordering::Relaxed), feeder.interest()), (2, Interest::Lost));
        assert!(feeder.push(Bytes::from(vec![0; HIGH_WATER])) && !feeder.is_paused());
    }

    #[tokio::test]
    async fn a_caller_that_leaves_and_one_that_sends_no_body_are_errors_of_their_own() {
        for (end, code) in [(End::Left, "broken_body"), (End::Broken, "bad_framing")] {
            let (feeder, feed) = feed(|| ());
            feeder.end(end);
            assert_eq!(Body::Fed(feed, None).collect().await.unwrap_err().code(), code);
        }
    }
}
