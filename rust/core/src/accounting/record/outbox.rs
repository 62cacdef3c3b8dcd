//! Records on their way out: JSON lines that wait in bounded memory until the control process has taken them.

use std::{
    mem,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

/// A batch leaves when it has grown to this size, or when [`LINGER`] is over.
const BATCH: usize = 1024 * 1024;
const LINGER: Duration = Duration::from_millis(100);
/// Room larger than this is given back.
const MOST_SPARE: usize = 2 * BATCH;

pub struct Outbox {
    waiting: Mutex<Vec<u8>>,
    /// The room of a batch that has left, for the next.
    spare: Mutex<Vec<u8>>,
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
            spare: Mutex::default(),
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
    pub async fn batch(&self) -> Option<Vec<u8>> {
        drop(tokio::time::timeout(LINGER, self.full_batch.notified()).await);
        self.take()
    }

    /// Every line that waits now.
    pub fn take(&self) -> Option<Vec<u8>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // Room that was used before needs neither be grown by steps nor be made by the kernel; while nothing waits there is none.
        let room = mem::take(&mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner));
        (!waiting.is_empty()).then(|| mem::replace(&mut *waiting, room))
    }

    /// Lines were taken over; their bytes no longer count.
    pub fn acknowledge(&self, mut lines: Vec<u8>) {
        self.held.fetch_sub(lines.len(), Ordering::Relaxed);
        if lines.capacity() <= MOST_SPARE {
            lines.clear();
            *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = lines;
        }
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
        outbox.acknowledge(lines);
        outbox.put(|lines| lines.extend_from_slice(b"more"));
        assert_eq!((outbox.accepted(), outbox.held()), (2, 5));
    }

    #[test]
    fn a_batch_takes_the_room_of_one_that_has_left_as_long_as_there_are_any() {
        let outbox = Outbox::new(usize::MAX);
        let fill = |bytes: usize| {
            outbox.put(|lines| lines.resize(bytes, b' '));
            outbox.take().unwrap()
        };
        let first = fill(1000);
        let place = first.as_ptr();
        outbox.acknowledge(first);
        let (second, third) = (fill(10), fill(10));
        assert!(second.as_ptr() != place && third.as_ptr() == place);
        outbox.acknowledge(fill(MOST_SPARE + 1));
        assert_eq!(outbox.spare.lock().unwrap().capacity(), 0);
        outbox.acknowledge(fill(1000));
        assert!(outbox.take().is_none() && outbox.spare.lock().unwrap().capacity() == 0);
    }

    #[tokio::test]
    async fn an_empty_outbox_gives_no_batch() {
        assert!(Outbox::new(8).batch().await.is_none());
    }
}
