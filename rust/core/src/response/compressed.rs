//! Answers that come compressed: kept as they pass by, within bounds, and read when they are over, where nobody waits for it.

use std::{
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use penstock_llm::{
    api_format::Dialect,
    operation::Operation,
    usage::{Meter, Usage},
};

use crate::{accounting::token_counting::Answered, ingress::headers::Headers};

/// So much of an answer is kept; of one that is larger nothing is read.
const LARGEST: usize = 256 * 1024;
/// So much is read of what comes out of it.
const LARGEST_PLAIN: u64 = 8 * 1024 * 1024;
const PIECE: usize = 16 * 1024;

/// Whether an answer is compressed in the way that is read here.
pub fn is_packed(headers: &Headers) -> bool {
    headers.text("content-encoding").is_some_and(|coding| matches!(coding, "gzip" | "x-gzip"))
}

/// What a small compressed answer says; `None` where that is more than `most`, or cannot be read: no more of it is unpacked.
pub fn plain(bytes: &[u8], most: usize) -> Option<Bytes> {
    let mut plain = Vec::new();
    MultiGzDecoder::new(bytes).take(most as u64 + 1).read_to_end(&mut plain).ok()?;
    (plain.len() <= most).then(|| plain.into())
}

/// A compressed answer.
pub struct Packed {
    bytes: Vec<u8>,
    dialect: Dialect,
    is_events: bool,
    is_too_large: bool,
    /// What all requests keep, and may keep at most.
    kept: Arc<AtomicUsize>,
    most_kept: usize,
}

impl Packed {
    pub fn new(dialect: Dialect, is_events: bool, (kept, most_kept): (Arc<AtomicUsize>, usize)) -> Self {
        Self { bytes: Vec::new(), dialect, is_events, is_too_large: false, kept, most_kept }
    }

    /// Takes the next bytes of the answer.
    pub fn feed(&mut self, bytes: &[u8]) {
        let has_room = self.kept.load(Ordering::Relaxed) + bytes.len() <= self.most_kept;
        self.is_too_large |= !has_room || self.bytes.len() + bytes.len() > LARGEST;
        if self.is_too_large {
            self.release();
        } else {
            self.kept.fetch_add(bytes.len(), Ordering::Relaxed);
            self.bytes.extend_from_slice(bytes);
        }
    }

    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// What the provider said that the answer cost; and what there is to count where it did not, if anything can be read.
    pub fn read(&self, operation: Operation) -> (Option<Usage>, Option<Answered>) {
        let mut plain = MultiGzDecoder::new(self.bytes.as_slice()).take(LARGEST_PLAIN);
        if self.is_events {
            let mut meter = Meter::counting(self.dialect, operation);
            let mut piece = [0; PIECE];
            // Where it breaks off or is none, what came before counts.
            while let Some(read) = plain.read(&mut piece).ok().filter(|read| *read > 0) {
                meter.feed(&piece[..read]);
            }
            let metered = meter.finish();
            return (metered.usage, metered.deltas.filter(|deltas| !deltas.is_empty()).map(Answered::Deltas));
        }
        let mut body = Vec::new();
        drop(plain.read_to_end(&mut body));
        let usage = Usage::from_answer(self.dialect, &body);
        (usage, (!body.is_empty()).then(|| Answered::Whole(body.into())))
    }

    fn release(&mut self) {
        self.kept.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        self.bytes = Vec::new();
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        self.release();
    }
}
