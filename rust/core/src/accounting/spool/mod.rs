//! Spool of request records. Each worker appends frames to segment files of its own with `write(2)`, so a record
//! survives a crash of the worker. The log worker reads the segments. While the spool cannot be written, records wait
//! in bounded memory.

mod entry;
pub mod frame;
pub mod frame_list;
mod group_sync;
mod segment;

use std::{
    io::{self, IoSlice},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use uuid::Uuid;

use crate::{
    accounting::record::outbox::{Outbox, Owner},
    process::settings::Settings,
};
pub use entry::{BodyStatus, SpoolEntry};
use frame::{FRAME_HEADER_BYTES, FrameBatch, FrameReader};
use group_sync::GroupSync;
use segment::{SegmentWriter, WriterIdentity, measure_folder};

/// Time between a failed write and the next attempt.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum length of one write of frames that waited in memory.
const FLUSH_BYTES: usize = 1024 * 1024;
/// A buffer with a larger capacity is freed after use.
const MAX_BUFFER_BYTES: usize = 256 * 1024;
/// Percentage of the spool's limit above which bodies are left out.
const BODY_LIMIT_PERCENT: u64 = 90;
/// Percentage of the spool's limit above which requests without a valid key leave no record.
const REFUSED_LIMIT_PERCENT: u64 = 50;
/// Maximum bytes of records of requests without a valid key that wait in memory. Small, so that they cannot displace
/// others. Such records may also write this number of bytes per second, and in one burst.
const REFUSED_BYTES: usize = 512 * 1024;

/// Origin of frames that are written together.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// A request with a valid key, or one that needs none.
    Admitted(Owner),
    /// A request without a valid key.
    Refused,
    /// Body frames without a frame of the record. They never wait in memory.
    Bodies,
}

/// What happened to frames that were written together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// All frames are in the segment.
    Complete,
    /// The frames are in the segment or wait in memory, but without bodies.
    WithoutBodies,
    Dropped,
}

/// Counters of a spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpoolCounters {
    pub records: u64,
    pub records_dropped: u64,
    pub refused_records: u64,
    pub refused_records_dropped: u64,
    /// Records whose bodies were left out.
    pub bodies_dropped: u64,
    /// Bytes of records that wait in memory.
    pub waiting_bytes: usize,
    /// Bytes of all segments of all writers.
    pub used_bytes: u64,
    /// Number of group commits to the disk.
    pub syncs: u64,
    /// Number of group commits that failed, and of responses that stopped waiting for one.
    pub sync_failures: u64,
}

#[derive(Default)]
struct Counters {
    records: AtomicU64,
    records_dropped: AtomicU64,
    refused_records: AtomicU64,
    refused_records_dropped: AtomicU64,
    bodies_dropped: AtomicU64,
}

/// Spool of one worker.
pub struct Spool {
    root: PathBuf,
    identity: WriterIdentity,
    /// Maximum bytes of the segments of all writers.
    limit_bytes: u64,
    /// Maximum bytes of one body.
    body_bytes: usize,
    keeps_bodies: bool,
    state: Mutex<WriteState>,
    /// Frames of admitted requests that wait until the spool can be written.
    waiting: Outbox,
    /// Frames of requests without a valid key that wait until the spool can be written.
    waiting_refused: Outbox,
    used_bytes: AtomicU64,
    has_measured: AtomicBool,
    counters: Counters,
    /// Set if records are written to the disk before the client has the complete response.
    group_sync: Option<GroupSync>,
}

#[derive(Default)]
struct WriteState {
    writer: Option<SegmentWriter>,
    /// Reused buffer in which frames are encoded before they are written.
    buffer: Vec<u8>,
    /// Earliest time of the next write; set after a failed write.
    retry_at: Option<Instant>,
    /// Frames that were taken from `waiting` (first) and `waiting_refused` (second), each with the number of bytes that
    /// are written already.
    unflushed: [Option<(Vec<u8>, usize)>; 2],
    refused_budget: RefusedBudget,
}

/// Rate limit on the bytes that records of requests without a valid key write.
#[derive(Default)]
struct RefusedBudget {
    spent_bytes: f64,
    updated_at: Option<Instant>,
}

impl RefusedBudget {
    fn has_room(&mut self) -> bool {
        let now = Instant::now();
        let elapsed = self.updated_at.replace(now).map_or(Duration::ZERO, |before| now - before);
        self.spent_bytes = (self.spent_bytes - elapsed.as_secs_f64() * REFUSED_BYTES as f64).max(0.0);
        self.spent_bytes < REFUSED_BYTES as f64
    }
}

impl Spool {
    /// Creates the spool of a worker; `None` if the settings name no folder for it. Files are created with the first
    /// record, after the process has forked.
    pub fn from_settings(settings: &Settings) -> Option<Self> {
        let root = PathBuf::from(settings.spool_path.as_ref().filter(|_| settings.records)?);
        let node = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
        Some(Self {
            root,
            identity: WriterIdentity { node, writer: format!("edge-{}", settings.worker) },
            limit_bytes: settings.spool_bytes,
            body_bytes: settings.record_body_bytes,
            keeps_bodies: settings.record_bodies,
            state: Mutex::default(),
            waiting: Outbox::new(settings.outbox_bytes),
            waiting_refused: Outbox::new(REFUSED_BYTES),
            used_bytes: AtomicU64::new(0),
            has_measured: AtomicBool::new(false),
            counters: Counters::default(),
            group_sync: settings.sync_records.then(GroupSync::default),
        })
    }

    /// Writes the frames that `compose` adds, with one system call. `is_end` is true if they end a record.
    pub fn write<'b>(
        &self,
        source: Source,
        id: Uuid,
        is_end: bool,
        compose: impl Fn(&mut FrameBatch<'_, 'b>),
    ) -> Written {
        let written = self.write_or_wait(source, id, compose);
        if is_end {
            let counters = &self.counters;
            let counter = match (source, written) {
                (Source::Refused, Written::Dropped) => &counters.refused_records_dropped,
                (Source::Refused, _) => &counters.refused_records,
                (_, Written::Dropped) => &counters.records_dropped,
                _ => &counters.records,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            if let Some(sync) = self.group_sync.as_ref().filter(|_| written != Written::Dropped) {
                sync.add_record();
            }
        }
        written
    }

    fn write_or_wait<'b>(&self, source: Source, id: Uuid, compose: impl Fn(&mut FrameBatch<'_, 'b>)) -> Written {
        let mut state = self.lock_state();
        let is_refused = matches!(source, Source::Refused);
        if is_refused && (self.is_used_above(REFUSED_LIMIT_PERCENT) || !state.refused_budget.has_room()) {
            return Written::Dropped;
        }
        if self.can_write(&mut state) {
            let keeps_bodies = !self.is_used_above(BODY_LIMIT_PERCENT);
            let mut buffer = std::mem::take(&mut state.buffer);
            buffer.clear();
            let mut batch = FrameBatch::new(id, &mut buffer, keeps_bodies);
            compose(&mut batch);
            let mut parts = batch.parts().map(IoSlice::new);
            let result = self.append(&mut state, &mut parts);
            let length = buffer.len();
            state.buffer = if buffer.capacity() > MAX_BUFFER_BYTES { Vec::new() } else { buffer };
            if is_refused {
                state.refused_budget.spent_bytes += length as f64;
            }
            if result.is_ok() {
                return if keeps_bodies { Written::Complete } else { Written::WithoutBodies };
            }
        }
        // `state` is still locked, so that the frames of a record wait in their order.
        let push = |outbox: &Outbox, owner| outbox.push(owner, |out| compose(&mut FrameBatch::new(id, out, false)));
        let waits = match source {
            Source::Admitted(owner) => push(&self.waiting, owner),
            Source::Refused => push(&self.waiting_refused, 0),
            Source::Bodies => false,
        };
        if waits { Written::WithoutBodies } else { Written::Dropped }
    }

    /// Measures the spool, opens it again if it was deleted, and writes the frames that wait in memory. Must be called
    /// every second.
    pub fn maintain(&self) {
        self.used_bytes.store(measure_folder(&self.root), Ordering::Relaxed);
        let mut state = self.lock_state();
        if state.writer.as_ref().is_some_and(|writer| !writer.is_intact()) {
            state.writer = None;
        }
        state.retry_at = None;
        self.can_write(&mut state);
    }

    /// Returns true if records are written to the disk before the client has the complete response.
    pub fn is_durable(&self) -> bool {
        self.group_sync.is_some()
    }

    /// Waits until the records that have ended so far are on the disk. Returns at once if the settings do not require
    /// that, and after a limited time if the disk does not respond.
    pub async fn wait_until_durable(self: &Arc<Self>) {
        if let Some(sync) = &self.group_sync {
            sync.wait(self).await;
        }
    }

    /// Writes the frames that the kernel still holds in memory to the disk. `state` is not locked meanwhile, so that
    /// further frames can be appended.
    fn sync(&self) -> io::Result<()> {
        let files = self.lock_state().writer.as_mut().map(SegmentWriter::take_unsynced).unwrap_or_default();
        files.iter().try_for_each(|file| file.sync_data())
    }

    pub fn counters(&self) -> SpoolCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SpoolCounters {
            records: read(&self.counters.records),
            records_dropped: read(&self.counters.records_dropped),
            refused_records: read(&self.counters.refused_records),
            refused_records_dropped: read(&self.counters.refused_records_dropped),
            bodies_dropped: read(&self.counters.bodies_dropped),
            waiting_bytes: self.waiting.unacknowledged_bytes() + self.waiting_refused.unacknowledged_bytes(),
            used_bytes: read(&self.used_bytes),
            syncs: self.group_sync.as_ref().map_or(0, GroupSync::syncs),
            sync_failures: self.group_sync.as_ref().map_or(0, GroupSync::failures),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, WriteState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_used_above(&self, percent: u64) -> bool {
        let used = u128::from(self.used_bytes.load(Ordering::Relaxed));
        used * 100 >= u128::from(self.limit_bytes) * u128::from(percent)
    }

    /// Writes the frames that wait in memory. Returns true if further frames can be written now.
    fn can_write(&self, state: &mut WriteState) -> bool {
        if state.retry_at.is_some_and(|retry_at| Instant::now() < retry_at) {
            return false;
        }
        if !self.has_measured.swap(true, Ordering::Relaxed) {
            self.used_bytes.store(measure_folder(&self.root), Ordering::Relaxed);
        }
        if self.is_used_above(100) {
            return false;
        }
        let flushed = [&self.waiting, &self.waiting_refused].into_iter().enumerate().try_for_each(|(index, outbox)| {
            if outbox.unacknowledged_bytes() == 0 { Ok(()) } else { self.flush_waiting(state, index, outbox) }
        });
        flushed.is_ok()
    }

    /// Writes the frames that wait in an outbox.
    fn flush_waiting(&self, state: &mut WriteState, index: usize, outbox: &Outbox) -> io::Result<()> {
        loop {
            let pending = state.unflushed[index].take().or_else(|| Some((outbox.take_pending()?, 0)));
            let Some((frames, mut written)) = pending else { return Ok(()) };
            while written < frames.len() {
                let end = written + whole_frames(&frames[written..], FLUSH_BYTES);
                if let Err(error) = self.append(state, &mut [IoSlice::new(&frames[written..end])]) {
                    state.unflushed[index] = Some((frames, written));
                    return Err(error);
                }
                written = end;
            }
            outbox.acknowledge(frames);
        }
    }

    /// Appends to the current segment, and opens one if necessary. After an error, the next write is delayed.
    fn append(&self, state: &mut WriteState, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let result = self.try_append(state, parts);
        match &result {
            Ok(written) => {
                state.retry_at = None;
                self.used_bytes.fetch_add(*written, Ordering::Relaxed);
            }
            Err(error) => {
                state.retry_at = Some(Instant::now() + RETRY_INTERVAL);
                // Any other error may come from the open file, so the next write opens a new segment.
                if error.kind() != io::ErrorKind::StorageFull {
                    state.writer = None;
                }
            }
        }
        result.map(drop)
    }

    fn try_append(&self, state: &mut WriteState, parts: &mut [IoSlice<'_>]) -> io::Result<u64> {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if state.writer.is_none() {
            state.writer = Some(SegmentWriter::open(&self.root, self.identity.clone(), self.is_durable())?);
        }
        match &mut state.writer {
            Some(writer) => writer.append(parts, now),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Returns the total length of the frames at the beginning of `frames` that fit in `max_bytes` bytes. If the first
/// frame is longer, returns its length.
fn whole_frames(frames: &[u8], max_bytes: usize) -> usize {
    let mut reader = FrameReader::new(frames, 0);
    let mut length = 0;
    while let Some(frame) = reader.next() {
        if length > 0 && reader.offset() > max_bytes {
            break;
        }
        debug_assert!(reader.offset() >= FRAME_HEADER_BYTES + frame.payload.len());
        length = reader.offset();
    }
    // Frames in memory are complete. If one were not, the rest would be written as it is.
    if length == 0 { frames.len() } else { length }
}

#[cfg(test)]
mod tests;
