//! Records that wait in bounded memory until they can be written. Workspaces share the memory fairly, so that the
//! records of one cannot displace those of others.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// A buffer with a larger capacity is freed instead of reused.
const MAX_SPARE_BYTES: usize = 2 * 1024 * 1024;

/// Owner of a record: a hash of its workspace.
pub type Owner = u64;

#[derive(Default)]
struct Pending {
    lines: Vec<u8>,
    /// For each owner, the number of all its unacknowledged bytes, and the number of those that are in `lines`.
    owners: HashMap<Owner, (usize, usize)>,
    /// For each batch that `take_pending` returned, the number of bytes of each owner. The oldest batch is first.
    unacknowledged: VecDeque<Vec<(Owner, usize)>>,
}

pub struct Outbox {
    pending: Mutex<Pending>,
    /// Buffer of an acknowledged batch, reused for the next one.
    spare_buffer: Mutex<Vec<u8>>,
    /// Bytes of pending lines and of batches that are not yet acknowledged.
    unacknowledged: AtomicUsize,
    limit_bytes: usize,
    accepted_count: AtomicU64,
    dropped_count: AtomicU64,
}

impl Outbox {
    /// Creates an outbox that holds at most `limit_bytes` bytes.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            pending: Mutex::default(),
            spare_buffer: Mutex::default(),
            unacknowledged: AtomicUsize::new(0),
            limit_bytes,
            accepted_count: AtomicU64::new(0),
            dropped_count: AtomicU64::new(0),
        }
    }

    /// Appends one line that `write` produces, or drops and counts it as `push` does.
    pub fn push_line(&self, owner: Owner, write: impl FnOnce(&mut Vec<u8>)) {
        self.push(owner, |lines| {
            write(lines);
            lines.push(b'\n');
        });
    }

    /// Appends the bytes that `write` produces. If the outbox is full or the owner uses more than its share, counts a
    /// drop and returns false. The share is the limit divided by one more than the number of owners with unacknowledged
    /// bytes.
    pub fn push(&self, owner: Owner, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let is_full = self.unacknowledged.load(Ordering::Relaxed) >= self.limit_bytes;
        let mut queue = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let count = queue.owners.len();
        let Pending { lines, owners, .. } = &mut *queue;
        let used = owners.entry(owner).or_default();
        let owner_count = count.max(1) + usize::from(used.0 == 0 && count > 0);
        if is_full || used.0 >= self.limit_bytes / (owner_count + 1) {
            if used.0 == 0 {
                owners.remove(&owner);
            }
            self.dropped_count.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let before = lines.len();
        write(lines);
        let after = lines.len();
        used.0 += after - before;
        used.1 += after - before;
        drop(queue);
        self.unacknowledged.fetch_add(after - before, Ordering::Relaxed);
        self.accepted_count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Returns all pending lines; `None` if there are none.
    pub fn take_pending(&self) -> Option<Vec<u8>> {
        let mut queue = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        // Reuses a buffer, because it already has its full capacity and its pages are mapped. An idle outbox holds no
        // buffer.
        let buffer = mem::take(&mut *self.spare_buffer.lock().unwrap_or_else(PoisonError::into_inner));
        if queue.lines.is_empty() {
            return None;
        }
        let in_batch = queue.owners.iter_mut().map(|(owner, (_, pending))| (*owner, mem::take(pending)));
        let in_batch = in_batch.filter(|(_, bytes)| *bytes > 0).collect();
        queue.unacknowledged.push_back(in_batch);
        Some(mem::replace(&mut queue.lines, buffer))
    }

    /// Releases the oldest batch that `take_pending` returned, after it was written. Its bytes no longer count towards
    /// the limit.
    pub fn acknowledge(&self, mut lines: Vec<u8>) {
        let mut queue = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for (owner, bytes) in queue.unacknowledged.pop_front().unwrap_or_default() {
            if let Some(used) = queue.owners.get_mut(&owner) {
                used.0 = used.0.saturating_sub(bytes);
                if used.0 == 0 {
                    queue.owners.remove(&owner);
                }
            }
        }
        drop(queue);
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
        outbox.push_line(0, |lines| lines.extend_from_slice(b"0123456789"));
        outbox.push_line(0, |lines| lines.extend_from_slice(b"more"));
        assert_eq!((outbox.accepted_lines(), outbox.dropped_lines()), (1, 1));
        let lines = outbox.take_pending().unwrap();
        assert_eq!(lines, &b"0123456789\n"[..]);
        outbox.acknowledge(lines);
        outbox.push_line(0, |lines| lines.extend_from_slice(b"more"));
        assert_eq!((outbox.accepted_lines(), outbox.unacknowledged_bytes()), (2, 5));
    }

    #[test]
    fn owner_share_of_the_outbox_is_bounded() {
        let outbox = Outbox::new(1200);
        let push = |owner| outbox.push_line(owner, |lines| lines.extend_from_slice(&[b'x'; 99]));
        (0..50).for_each(|_| push(1));
        assert_eq!((outbox.accepted_lines(), outbox.dropped_lines()), (6, 44));
        (0..3).for_each(|_| push(2));
        assert_eq!((outbox.accepted_lines(), outbox.dropped_lines()), (9, 44));
        let first = outbox.take_pending().unwrap();
        push(1);
        assert_eq!(outbox.dropped_lines(), 45, "lines that were taken still count");
        outbox.acknowledge(first);
        (0..50).for_each(|_| push(1));
        assert_eq!(outbox.accepted_lines(), 15);
        let second = outbox.take_pending().unwrap();
        outbox.acknowledge(second);
        assert_eq!((outbox.unacknowledged_bytes(), outbox.pending.lock().unwrap().owners.len()), (0, 0));
    }

    #[test]
    fn reuses_acknowledged_buffers_and_frees_them_when_idle() {
        let outbox = Outbox::new(usize::MAX);
        let fill = |bytes: usize| {
            outbox.push_line(0, |lines| lines.resize(bytes, b' '));
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

    #[test]
    fn empty_outbox_returns_no_lines() {
        assert!(Outbox::new(8).take_pending().is_none());
    }
}
