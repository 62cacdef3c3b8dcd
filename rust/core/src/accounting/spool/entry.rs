//! Spool entry of one request: its bodies, and the frames that begin and end its record.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use uuid::Uuid;

use super::{
    Source, Spool, Written,
    frame::{FLAG_AMENDMENT_FOLLOWS, FLAG_CUT, FLAG_DROPPED, FLAG_REFUSED, FrameBatch, FrameKind},
};

/// Chunks of a body are collected up to this size, because one write for each chunk of a stream would cost too much.
const COLLECTED_BYTES: usize = 4 * 1024;
/// Maximum length of the payload of a body frame.
const MAX_BODY_FRAME_BYTES: usize = 1024 * 1024;
/// Maximum length of a recorded head of a request. A longer one is not recorded.
const MAX_UPSTREAM_HEAD_BYTES: usize = 64 * 1024;
/// Body kinds, in the order of their numbers.
const BODY_KINDS: [FrameKind; 5] = [
    FrameKind::ClientRequest,
    FrameKind::UpstreamRequest,
    FrameKind::UpstreamResponse,
    FrameKind::ClientResponse,
    FrameKind::UpstreamHead,
];

/// States if the bodies of a request are recorded completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyStatus {
    Complete,
    /// At least one body was cut at the limit.
    Cut,
    /// At least one body was left out, because the spool was nearly full or could not be written.
    Dropped,
    /// Bodies are not recorded.
    Off,
}

impl BodyStatus {
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Cut => "cut",
            Self::Dropped => "dropped",
            Self::Off => "off",
        }
    }
}

/// Entry of one request in the spool.
pub struct SpoolEntry {
    spool: Arc<Spool>,
    pub id: Uuid,
    pub created_at: Duration,
    /// Length of the client's body, as far as it was read.
    pub request_bytes: AtomicU64,
    bodies: Mutex<Bodies>,
}

impl std::fmt::Debug for SpoolEntry {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SpoolEntry({})", self.id)
    }
}

#[derive(Default)]
struct Bodies {
    /// One for each of `BODY_KINDS`.
    parts: [BodyPart; 5],
    is_cut: bool,
    is_dropped: bool,
}

/// Part of a body that is not written yet.
#[derive(Default)]
struct BodyPart {
    /// Bytes recorded so far, including those that are written.
    recorded_bytes: usize,
    is_cut: bool,
    /// True if the body is cut, and no frame with `FLAG_CUT` is written yet.
    has_cut_to_report: bool,
    /// A complete body. It is written before the bytes in `collected`.
    complete: Bytes,
    collected: Vec<u8>,
}

impl BodyPart {
    fn is_empty(&self) -> bool {
        self.complete.is_empty() && self.collected.is_empty() && !self.has_cut_to_report
    }
}

impl Bodies {
    fn add_frames<'b>(&'b self, batch: &mut FrameBatch<'_, 'b>) {
        for (kind, part) in BODY_KINDS.into_iter().zip(&self.parts) {
            let flags = if part.has_cut_to_report { FLAG_CUT } else { 0 };
            let chunks = part.complete.chunks(MAX_BODY_FRAME_BYTES);
            chunks.for_each(|chunk| batch.add_body(kind, flags, chunk));
            if !part.collected.is_empty() || (part.has_cut_to_report && part.complete.is_empty()) {
                batch.add_body(kind, flags, &part.collected);
            }
        }
    }

    fn clear(&mut self) {
        for part in &mut self.parts {
            part.complete = Bytes::new();
            part.collected.clear();
            part.has_cut_to_report = false;
        }
    }

    fn status(&self) -> BodyStatus {
        match (self.is_dropped, self.is_cut) {
            (true, _) => BodyStatus::Dropped,
            (_, true) => BodyStatus::Cut,
            _ => BodyStatus::Complete,
        }
    }

    /// Returns how many of the next `length` bytes of a body are within the limit, and counts them. `None` if the body
    /// is cut or dropped already.
    fn admit(&mut self, kind: FrameKind, length: usize, limit: usize) -> Option<usize> {
        let part = &mut self.parts[kind_index(kind)];
        if part.is_cut || self.is_dropped {
            return None;
        }
        let remaining = length.min(limit.saturating_sub(part.recorded_bytes));
        part.recorded_bytes += remaining;
        part.is_cut = remaining < length;
        part.has_cut_to_report = part.is_cut;
        self.is_cut |= part.is_cut;
        Some(remaining)
    }
}

fn kind_index(kind: FrameKind) -> usize {
    (kind as usize).saturating_sub(FrameKind::ClientRequest as usize).min(BODY_KINDS.len() - 1)
}

impl SpoolEntry {
    pub fn new(spool: Arc<Spool>, id: Uuid, created_at: Duration) -> Self {
        Self { spool, id, created_at, request_bytes: AtomicU64::new(0), bodies: Mutex::default() }
    }

    /// Returns true if the settings allow to record bodies.
    pub fn keeps_bodies(&self) -> bool {
        self.spool.keeps_bodies
    }

    /// Returns the maximum length of a body.
    pub fn body_limit(&self) -> usize {
        self.spool.body_bytes
    }

    /// Writes the frame that begins a record, followed by the bodies that were added so far.
    pub fn begin(&self, source: Source, write: impl Fn(&mut Vec<u8>)) {
        let mut bodies = self.lock_bodies();
        let first = |batch: &mut FrameBatch<'_, '_>| batch.add_json(FrameKind::Begin, 0, &write);
        self.write_bodies(&mut bodies, source, false, first, |_, _| ());
    }

    /// Adds a complete body. It is written with the next frame of this record.
    pub fn add_complete_body(&self, kind: FrameKind, mut body: Bytes) {
        let mut bodies = self.lock_bodies();
        if let Some(remaining) = bodies.admit(kind, body.len(), self.spool.body_bytes) {
            body.truncate(remaining);
            bodies.parts[kind_index(kind)].complete = body;
        }
    }

    /// Adds the head of the request to the provider. It is complete whatever the limit for bodies is.
    pub fn add_upstream_head(&self, head: Bytes) {
        let mut bodies = self.lock_bodies();
        if !bodies.is_dropped && head.len() <= MAX_UPSTREAM_HEAD_BYTES {
            bodies.parts[kind_index(FrameKind::UpstreamHead)].complete = head;
        }
    }

    /// Adds a chunk of a body that is passing through.
    pub fn add_body_chunk(&self, kind: FrameKind, chunk: &[u8]) {
        let mut bodies = self.lock_bodies();
        let Some(remaining) = bodies.admit(kind, chunk.len(), self.spool.body_bytes) else { return };
        for chunk in chunk[..remaining].chunks(MAX_BODY_FRAME_BYTES) {
            let part = &mut bodies.parts[kind_index(kind)];
            part.collected.extend_from_slice(chunk);
            if part.collected.len() >= COLLECTED_BYTES {
                self.write_bodies(&mut bodies, Source::Bodies, false, |_| (), |_, _| ());
            }
        }
    }

    /// Writes the frame that ends a record, after its remaining bodies. `write` appends the record.
    pub fn end(&self, source: Source, is_off: bool, write: impl Fn(&mut Vec<u8>, BodyStatus)) {
        self.write_end(source, if matches!(source, Source::Refused) { FLAG_REFUSED } else { 0 }, is_off, write);
    }

    /// Writes the frame that ends a record whose usage is not known yet.
    pub fn end_early(&self, source: Source, is_off: bool, write: impl Fn(&mut Vec<u8>, BodyStatus)) {
        self.write_end(source, FLAG_AMENDMENT_FOLLOWS, is_off, write);
    }

    fn write_end(&self, source: Source, flags: u8, is_off: bool, write: impl Fn(&mut Vec<u8>, BodyStatus)) {
        let mut bodies = self.lock_bodies();
        let is_off = is_off || !self.spool.keeps_bodies;
        let last = |batch: &mut FrameBatch<'_, '_>, status| {
            let status = if is_off { BodyStatus::Off } else { status };
            let flags = flags | if status == BodyStatus::Dropped { FLAG_DROPPED } else { 0 };
            batch.add_json(FrameKind::End, flags, |out| write(out, status));
        };
        self.write_bodies(&mut bodies, source, true, |_| (), last);
        if bodies.is_dropped {
            self.spool.counters.bodies_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes an amendment: fields that replace those of a record that is already complete.
    pub fn amend(&self, source: Source, write: impl Fn(&mut Vec<u8>)) {
        self.spool.write(source, self.id, false, |batch| batch.add_json(FrameKind::Amend, 0, &write));
    }

    /// Writes the bodies that are collected in memory, between the frames that `add_first` and `add_last` add.
    fn write_bodies(
        &self,
        bodies: &mut Bodies,
        source: Source,
        is_end: bool,
        add_first: impl Fn(&mut FrameBatch<'_, '_>),
        add_last: impl Fn(&mut FrameBatch<'_, '_>, BodyStatus),
    ) {
        let has_bodies = !bodies.parts.iter().all(BodyPart::is_empty);
        let written = {
            let waiting = &*bodies;
            self.spool.write(source, self.id, is_end, |batch| {
                let drops = has_bodies && !batch.keeps_bodies();
                add_first(batch);
                waiting.add_frames(batch);
                add_last(batch, if drops { BodyStatus::Dropped } else { waiting.status() });
            })
        };
        bodies.is_dropped |= has_bodies && written != Written::Complete;
        bodies.clear();
    }

    fn lock_bodies(&self) -> MutexGuard<'_, Bodies> {
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
