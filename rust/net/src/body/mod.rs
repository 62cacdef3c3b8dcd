//! Request bodies: complete if small, streamed in bounded chunks if large, and always read with a timeout.

mod buffering;
mod feed;
mod limits;
mod read_clock;

use std::sync::{Arc, PoisonError};

use bytes::Bytes;

use crate::error::{Error, Result};
pub use buffering::MAX_UNCHARGED_BYTES;
use feed::ReturnSlot;
pub use feed::{BodyEnd, ChunkGuard, ChunkWatcher, Feed, Feeder, ReaderState, UploadProgress, feed_channel};
pub use limits::BodyLimits;

/// Maximum size of a complete body that is rewritten on the current thread, which takes far less than a millisecond.
const MAX_INLINE_REWRITE_BYTES: usize = 256 * 1024;

/// A request's body.
#[derive(Debug)]
pub enum Body {
    Complete(Bytes),
    /// A body that is still arriving, with its length if the client declared one. Boxed, because bodies are moved often
    /// and most are complete.
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
            Self::Streamed(feed, _) => Some(feed.upload_progress()),
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
        let return_slot = ReturnSlot::default();
        (feed.return_slot, feed.baseline_bytes_read) = (Some(Arc::clone(&return_slot)), feed.bytes_read);
        let recovery = BodyRecovery { return_slot, length: *length };
        (self, Some(recovery))
    }

    /// Applies limits. Rejects a body whose declared length is too large. A streamed body that exceeds a limit fails
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

    /// Adds a callback that sees every chunk before it is forwarded. Callbacks run in the order in which they were
    /// added.
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

    /// Sets a callback that can reject each chunk before it is forwarded, and the end of the body.
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

    /// Waits until `is_enough` accepts a chunk or `max_bytes` bytes have arrived. The bytes can still be read afterwards.
    pub async fn wait_for_prefix(&mut self, max_bytes: usize, mut is_enough: impl FnMut(&[u8]) -> bool) -> Result<()> {
        let Self::Streamed(feed, _) = self else { return Ok(()) };
        let mut beginning = Vec::new();
        while beginning.len() < max_bytes {
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

    /// Rewrites a complete body, or the first unread chunk of a streamed one. Large complete bodies are rewritten on a
    /// blocking thread, because other requests would wait here.
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
                let Some((before, after)) = feed.rewrite_first_chunk(change) else { return Ok(()) };
                *length = length.map(|length| length - before as u64 + after as u64);
            }
        }
        Ok(())
    }

    /// Returns the next chunk; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        match self {
            Self::Complete(bytes) => Some(Ok(std::mem::take(bytes)))
                .filter(|bytes_or_error| !matches!(bytes_or_error, Ok(bytes) if bytes.is_empty())),
            Self::Streamed(feed, _) => feed.next().await,
        }
    }
}

/// Handle that recovers a body if an attempt dropped it unread; see [`Body::make_recoverable`].
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

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use tokio::time::Instant;

    use super::{feed::HIGH_WATER_BYTES, *};

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
        // The feeder must not wait any more, because its reader was dropped.
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
