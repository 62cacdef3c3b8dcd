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
    api_format::ApiFormat,
    operation::Operation,
    usage::{Meter, Usage},
};

use crate::{accounting::token_counting::CountableResponse, ingress::headers::Headers};

/// So much of an answer is kept; of one that is larger nothing is read.
const MAX_COMPRESSED_BYTES: usize = 256 * 1024;
/// So much is read of what comes out of it.
const MAX_DECOMPRESSED_BYTES: u64 = 8 * 1024 * 1024;
const READ_CHUNK_BYTES: usize = 16 * 1024;

/// Whether an answer is compressed in the way that is read here.
pub fn is_gzip(headers: &Headers) -> bool {
    headers.get_str("content-encoding").is_some_and(|coding| matches!(coding, "gzip" | "x-gzip"))
}

/// What a small compressed answer says; `None` where that is more than `most`, or cannot be read: no more of it is unpacked.
pub fn decompress(bytes: &[u8], most: usize) -> Option<Bytes> {
    let mut plain = Vec::new();
    MultiGzDecoder::new(bytes).take(most as u64 + 1).read_to_end(&mut plain).ok()?;
    (plain.len() <= most).then(|| plain.into())
}

/// A compressed answer.
pub struct CompressedResponse {
    bytes: Vec<u8>,
    api_format: ApiFormat,
    is_event_stream: bool,
    is_too_large: bool,
    /// What all requests keep, and may keep at most.
    total_buffered_bytes: Arc<AtomicUsize>,
    max_total_buffered_bytes: usize,
}

impl CompressedResponse {
    pub fn new(
        api_format: ApiFormat,
        is_event_stream: bool,
        (total_buffered_bytes, max_total_buffered_bytes): (Arc<AtomicUsize>, usize),
    ) -> Self {
        Self {
            bytes: Vec::new(),
            api_format,
            is_event_stream,
            is_too_large: false,
            total_buffered_bytes,
            max_total_buffered_bytes,
        }
    }

    /// Takes the next bytes of the answer.
    pub fn feed(&mut self, bytes: &[u8]) {
        let has_room = self.total_buffered_bytes.load(Ordering::Relaxed) + bytes.len() <= self.max_total_buffered_bytes;
        self.is_too_large |= !has_room || self.bytes.len() + bytes.len() > MAX_COMPRESSED_BYTES;
        if self.is_too_large {
            self.release_buffer();
        } else {
            self.total_buffered_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
            self.bytes.extend_from_slice(bytes);
        }
    }

    pub fn compressed_length(&self) -> usize {
        self.bytes.len()
    }

    /// What the provider said that the answer cost; and what there is to count where it did not, if anything can be read.
    pub fn read_usage(&self, operation: Operation) -> (Option<Usage>, Option<CountableResponse>) {
        let mut plain = MultiGzDecoder::new(self.bytes.as_slice()).take(MAX_DECOMPRESSED_BYTES);
        if self.is_event_stream {
            let mut meter = Meter::with_deltas(self.api_format, operation);
            let mut piece = [0; READ_CHUNK_BYTES];
            // Where it breaks off or is none, what came before counts.
            while let Some(read) = plain.read(&mut piece).ok().filter(|read| *read > 0) {
                meter.feed(&piece[..read]);
            }
            let metered = meter.finish();
            return (metered.usage, metered.deltas.filter(|deltas| !deltas.is_empty()).map(CountableResponse::Deltas));
        }
        let mut body = Vec::new();
        drop(plain.read_to_end(&mut body));
        let usage = Usage::from_response(self.api_format, &body);
        (usage, (!body.is_empty()).then(|| CountableResponse::Complete(body.into())))
    }

    fn release_buffer(&mut self) {
        self.total_buffered_bytes.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        self.bytes = Vec::new();
    }
}

impl Drop for CompressedResponse {
    fn drop(&mut self) {
        self.release_buffer();
    }
}
