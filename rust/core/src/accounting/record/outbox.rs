//! Outbox of record lines. Holds JSON lines in bounded memory until the control process has acknowledged them.

use std::{
    mem,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

/// Size in bytes at which a batch is sent. A smaller batch is sent after [`BATCH_LINGER`].
const BATCH_BYTES: usize = 1024 * 1024;
const BATCH_LINGER: Duration = Duration::from_millis(100);
/// A buffer with a larger capacity is freed instead of reused.
const MAX_SPARE_BYTES: usize = 2 * BATCH_BYTES;

pub struct Outbox {
    pending: Mutex<Vec<u8>>,
    /// Buffer of an acknowledged batch, reused for the next one.
    spare_buffer: Mutex<Vec<u8>>,
    /// Bytes of pending lines and of batches that are not yet acknowledged.
    unacknowledged: AtomicUsize,
    limit_bytes: usize,
    full_batch: Notify,
    accepted_count: AtomicU64,
    dropped_count: AtomicU64,
}

impl Outbox {
    /// Creates an outbox that holds at most `limit` bytes.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            pending: Mutex::default(),
            spare_buffer: Mutex::default(),
            unacknowledged: AtomicUsize::new(0),
            limit_bytes,
            full_batch: Notify::new(),
            accepted_count: AtomicU64::new(0),
            dropped_count: AtomicU64::new(0),
        }
    }

    /// Appends one line that `write` produces. If the outbox is full, drops and counts the line.
    pub fn push_line(&self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.unacknowledged.load(Ordering::Relaxed) >= self.limit_bytes {
            self.dropped_count.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut waiting = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let before = waiting.len();
        write(&mut waiting);
        waiting.push(b'\n');
        let after = waiting.len();
        drop(waiting);
        self.unacknowledged.fetch_add(after - before, Ordering::Relaxed);
        self.accepted_count.fetch_add(1, Ordering::Relaxed);
        if before < BATCH_BYTES && after >= BATCH_BYTES {
            self.full_batch.notify_one();
        }
    }

    /// Waits until a batch is full or the linger time is over, then returns its lines. `None` if there are none.
    pub async fn next_batch(&self) -> Option<Vec<u8>> {
        drop(tokio::time::timeout(BATCH_LINGER, self.full_batch.notified()).await);
        self.take_pending()
    }

    /// Returns all pending lines; `None` if there are none.
    pub fn take_pending(&self) -> Option<Vec<u8>> {
        let mut waiting = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        // A reused buffer has its full capacity already and its pages mapped. An idle outbox holds no buffer.
        let buffer = mem::take(&mut *self.spare_buffer.lock().unwrap_or_else(PoisonError::into_inner));
        (!waiting.is_empty()).then(|| mem::replace(&mut *waiting, buffer))
    }

    /// Releases lines that the control process has accepted. Their bytes no longer count towards the limit.
    pub fn acknowledge(&self, mut lines: Vec<u8>) {
        self.unacknowledged.fetch_sub(lines.len(), Ordering::Relaxed);
        if lines.capacity() <= MAX_SPARE_BYTES {
            lines.clear();
            *self.spare_buffer.lock().unwrap_or_else(PoisonError::into_inner) = lines;
        }
    }

    /// Returns the size of all records that are not yet acknowledged, in bytes.
    pub fn unacknowledged_bytes(&self) -> usize {
        self.unacknowledged.load(Ordering::Relaxed)
    }

    pub fn accepted_lines(&self) -> u64 {
        self.accepted_count.load(Ordering::Relaxed)
    }

    pub fn dropped_lines(&self) -> u64 {
        self.dropped_count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_and_counts_lines_over_the_limit() {
        let outbox = Outbox::new(8);
        outbox.push_line(|lines| lines.extend_from_slice(b"0123456789"));
        outbox.push_line(|lines| lines.extend_from_slice(b"more"));
        assert_eq!((outbox.accepted_lines(), outbox.dropped_lines()), (1, 1));
        let lines = outbox.take_pending().unwrap();
        assert_eq!(lines, &b"0123456789\n"[..]);
        outbox.acknowledge(lines);
        outbox.push_line(|lines| lines.extend_from_slice(b"more"));
        assert_eq!((outbox.accepted_lines(), outbox.unacknowledged_bytes()), (2, 5));
    }

    #[test]
    fn reuses_acknowledged_buffers_and_frees_them_when_idle() {
        let outbox = Outbox::new(usize::MAX);
        let fill = |bytes: usize| {
            outbox.push_line(|lines| lines.resize(bytes, b' '));
            outbox.take_pending().unwrap()
        };
        let first = fill(1000);
        let address = first.as_ptr();
        outbox.acknowledge(first);
        let (second, third) = (fill(10), fill(10));
        assert!(second.as_ptr() != address && third.as_ptr() == address);
        outbox.acknowledge(fill(MAX_SPARE_BYTES + 1));
        assert_eq!(outbox.spare_buffer.lock().unwrap().capacity(), 0);
        outbox.acknowledge(fill(1000));
        assert!(outbox.take_pending().is_none() && outbox.spare_buffer.lock().unwrap().capacity() == 0);
    }

    #[tokio::test]
    async fn empty_outbox_returns_no_batch() {
        assert!(Outbox::new(8).next_batch().await.is_none());
    }
}
