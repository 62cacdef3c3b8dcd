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
const BATCH: usize = 256 * 1024;
const LINGER: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Waiting {
    lines: Vec<u8>,
    records: u64,
}

/// Lines that left the outbox together.
#[derive(Debug, Clone)]
pub struct Batch {
    pub lines: Bytes,
    pub records: u64,
}

pub struct Outbox {
    waiting: Mutex<Waiting>,
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
        let before = waiting.lines.len();
        write(&mut waiting.lines);
        waiting.lines.push(b'\n');
        waiting.records += 1;
        let after = waiting.lines.len();
        drop(waiting);
        self.held.fetch_add(after - before, Ordering::Relaxed);
        self.accepted.fetch_add(1, Ordering::Relaxed);
        if before < BATCH && after >= BATCH {
            self.full_batch.notify_one();
        }
    }

    /// The next batch, after it is full or has lingered; `None` where nothing waits.
    pub async fn batch(&self) -> Option<Batch> {
        drop(tokio::time::timeout(LINGER, self.full_batch.notified()).await);
        self.take()
    }

    /// Everything that waits now.
    pub fn take(&self) -> Option<Batch> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.records == 0 {
            return None;
        }
        // As large as the last one: growing by steps would copy every record several times.
        let next = Waiting { lines: Vec::with_capacity(waiting.lines.len().min(BATCH * 2)), records: 0 };
        let Waiting { lines, records } = mem::replace(&mut *waiting, next);
        Some(Batch { lines: lines.into(), records })
    }

    /// A batch was taken over; its bytes no longer count.
    pub fn acknowledge(&self, batch: &Batch) {
        self.held.fetch_sub(batch.lines.len(), Ordering::Relaxed);
    }

    /// A batch will never be taken over.
    pub fn lose(&self, batch: &Batch) {
        self.dropped.fetch_add(batch.records, Ordering::Relaxed);
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
        let batch = outbox.take().unwrap();
        assert_eq!((&batch.lines[..], batch.records), (&b"0123456789\n"[..], 1));
        outbox.acknowledge(&batch);
        outbox.put(|lines| lines.extend_from_slice(b"more"));
        assert_eq!((outbox.accepted(), outbox.held()), (2, 5));
    }

    #[tokio::test]
    async fn an_empty_outbox_gives_no_batch() {
        assert!(Outbox::new(8).batch().await.is_none());
    }
}
