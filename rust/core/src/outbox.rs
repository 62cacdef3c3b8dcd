//! Records on their way out: JSON lines that wait in bounded memory until the control process has taken them.

use std::{
    mem,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::Notify;

/// A batch leaves when it has grown to this size, or when [`LINGER`] is over.
const BATCH: usize = 1024 * 1024;
const LINGER: Duration = Duration::from_millis(100);

pub struct Outbox {
    waiting: Mutex<Vec<u8>>,
    /// Bytes here and in batches that are not acknowledged.
    held: AtomicUsize,
    limit: usize,
    full_batch: Notify,
    accepted: AtomicU64,
    dropped: AtomicU64,
}

impl Outbox {
    /// Holds at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            waiting: Mutex::default(),
            held: AtomicUsize::new(0),
            limit,
            full_batch: Notify::new(),
            accepted: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Lets `write` add one line. Where the outbox is full the line is dropped and counted.
    pub fn put(&self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.held.load(Ordering::Relaxed) >= self.limit {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = waiting.len();
        write(&mut waiting);
        waiting.push(b'\n');
        let after = waiting.len();
        drop(waiting);
        self.held.fetch_add(after - before, Ordering::Relaxed);
        self.accepted.fetch_add(1, Ordering::Relaxed);
        if before < BATCH && after >= BATCH {
            self.full_batch.notify_one();
        }
    }

    /// The next lines, after they fill a batch or have lingered; `None` where nothing waits.
    pub async fn batch(&self) -> Option<Bytes> {
        drop(tokio::time::timeout(LINGER, self.full_batch.notified()).await);
        self.take()
    }

    /// Every line that waits now.
    pub fn take(&self) -> Option<Bytes> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_empty() {
            return None;
        }
        // As large as the last one: growing by steps would copy every record several times.
        let next = Vec::with_capacity(waiting.len().min(BATCH + BATCH / 8));
        Some(mem::replace(&mut *waiting, next).into())
    }

    /// Lines were taken over; their bytes no longer count.
    pub fn acknowledge(&self, lines: &Bytes) {
        self.held.fetch_sub(lines.len(), Ordering::Relaxed);
    }

    /// Records that are held and not acknowledged, in bytes.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_and_counts_what_does_not_fit() {
        let outbox = Outbox::new(8);
        outbox.put(|lines| lines.extend_from_slice(b"0123456789"));
        outbox.put(|lines| lines.extend_from_slice(b"more"));
        assert_eq!((outbox.accepted(), outbox.dropped()), (1, 1));
        let lines = outbox.take().unwrap();
        assert_eq!(lines, &b"0123456789\n"[..]);
        outbox.acknowledge(&lines);
        outbox.put(|lines| lines.extend_from_slice(b"more"));
        assert_eq!((outbox.accepted(), outbox.held()), (2, 5));
    }

    #[tokio::test]
    async fn an_empty_outbox_gives_no_batch() {
        assert!(Outbox::new(8).batch().await.is_none());
    }
}
