//! Request bodies: whole where they are small, fed in bounded pieces where they are large.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use bytes::Bytes;

use crate::error::{Error, Result};

/// A feeder is told to pause when this many bytes wait to be read.
const HIGH_WATER: usize = 256 * 1024;

/// A request's body.
#[derive(Debug)]
pub enum Body {
    Whole(Bytes),
    /// More is to come; the length where the caller declared one.
    Fed(Feed, Option<u64>),
}

impl Body {
    pub fn empty() -> Self {
        Self::Whole(Bytes::new())
    }

    /// The declared or known length in bytes.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Whole(bytes) => Some(bytes.len() as u64),
            Self::Fed(_, length) => *length,
        }
    }

    /// The same, with an error in the place of what comes after `limit` bytes.
    #[must_use]
    pub fn limited(self, limit: usize) -> Self {
        match self {
            Self::Fed(feed, length) => Self::Fed(Feed { limit, ..feed }, length),
            whole @ Self::Whole(_) => whole,
        }
    }

    /// Reads it to its end; more than `limit` bytes is an error.
    pub async fn collect(self, limit: usize) -> Result<Bytes> {
        if self.length().is_some_and(|length| length > limit as u64) {
            return Err(Error::BodyTooLarge { limit });
        }
        let (mut feed, length) = match self {
            Self::Whole(bytes) => return Ok(bytes),
            Self::Fed(feed, length) => (feed, length),
        };
        let mut whole = Vec::with_capacity(length.map_or(HIGH_WATER, |length| length as usize));
        while let Some(piece) = feed.next().await {
            whole.extend_from_slice(&piece?);
            if whole.len() > limit {
                return Err(Error::BodyTooLarge { limit });
            }
        }
        Ok(Bytes::from(whole))
    }
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Bytes>,
    waiting: usize,
    paused: bool,
    /// `Some(true)`: complete. `Some(false)`: the caller left or broke the framing.
    ended: Option<bool>,
    reader: Option<Waker>,
    resume: Option<Box<dyn Fn() + Send>>,
}

/// The reading end of a body that is still arriving. The other end is a [`Feeder`].
pub struct Feed {
    state: Arc<Mutex<State>>,
    taken: usize,
    limit: usize,
}

/// The writing end: whoever talks to the caller's connection.
#[derive(Clone)]
pub struct Feeder(Arc<Mutex<State>>);

/// A feed and its feeder. `resume` is called when the feeder was told to pause and may go on.
pub fn feed(resume: impl Fn() + Send + 'static) -> (Feeder, Feed) {
    let state = State { resume: Some(Box::new(resume)), ..State::default() };
    let shared = Arc::new(Mutex::new(state));
    (Feeder(Arc::clone(&shared)), Feed { state: shared, taken: 0, limit: usize::MAX })
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feeder {
    /// Adds a piece; `false` asks to pause until `resume` is called.
    pub fn push(&self, piece: Bytes) -> bool {
        let mut state = lock(&self.0);
        state.waiting += piece.len();
        state.pieces.push_back(piece);
        state.paused = state.waiting >= HIGH_WATER;
        let more = !state.paused;
        wake(state);
        more
    }

    /// The body is complete, or (`complete == false`) will never be.
    pub fn end(&self, complete: bool) {
        let mut state = lock(&self.0);
        state.ended.get_or_insert(complete);
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
    /// The next piece; `None` at the end; an error where the caller left before it or sent too much.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        let piece = self.piece().await;
        self.taken += piece.as_ref().map_or(0, |piece| piece.as_ref().map_or(0, Bytes::len));
        if self.taken > self.limit { Some(Err(Error::BodyTooLarge { limit: self.limit })) } else { piece }
    }

    async fn piece(&self) -> Option<Result<Bytes>> {
        poll_fn(|context| {
            let mut state = lock(&self.state);
            if let Some(piece) = state.pieces.pop_front() {
                state.waiting -= piece.len();
                if state.paused && state.waiting < HIGH_WATER / 2 {
                    state.paused = false;
                    if let Some(resume) = &state.resume {
                        resume();
                    }
                }
                return Poll::Ready(Some(Ok(piece)));
            }
            match state.ended {
                Some(true) => Poll::Ready(None),
                Some(false) => Poll::Ready(Some(Err(Error::BrokenBody))),
                None => {
                    state.reader = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Feed")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn collects_what_was_fed() {
        let (feeder, feed) = feed(|| ());
        feeder.push(Bytes::from_static(b"ab"));
        feeder.push(Bytes::from_static(b"c"));
        feeder.end(true);
        assert_eq!(Body::Fed(feed, None).collect(10).await.unwrap(), "abc");
    }

    #[tokio::test]
    async fn refuses_more_than_the_limit() {
        let (feeder, feed) = feed(|| ());
        feeder.push(Bytes::from(vec![0; 11]));
        feeder.end(true);
        let refused = Body::Fed(feed, None).collect(10).await;
        assert!(matches!(refused, Err(Error::BodyTooLarge { limit: 10 })));
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
    }

    #[tokio::test]
    async fn a_caller_that_leaves_is_an_error() {
        let (feeder, feed) = feed(|| ());
        feeder.end(false);
        assert!(matches!(Body::Fed(feed, None).collect(10).await, Err(Error::BrokenBody)));
    }
}
