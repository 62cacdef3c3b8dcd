//! Buffer for compressed responses. Collects a bounded number of their bytes as they pass through. The thread of
//! `TokenCounter` decompresses them after the response has ended.

use std::{
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use penstock_llm::{api_format::ApiFormat, operation::Operation, stream::meter::SseMeter, usage::Usage};
use penstock_net::headers::Headers;

use crate::accounting::token_counting::CountableResponse;

/// Maximum number of compressed bytes of a response that are buffered. The usage in a larger response is not read.
const MAX_COMPRESSED_BYTES: usize = 256 * 1024;
/// Maximum number of decompressed bytes of a response that are read.
const MAX_DECOMPRESSED_BYTES: u64 = 8 * 1024 * 1024;
const READ_CHUNK_BYTES: usize = 16 * 1024;

/// Returns true if the response is gzip-compressed, the only encoding that this module decompresses.
pub fn is_gzip(headers: &Headers) -> bool {
    headers.get_str("content-encoding").is_some_and(|coding| matches!(coding, "gzip" | "x-gzip"))
}

/// Decompresses a small response. Returns `None` if it exceeds `max_bytes` bytes or cannot be read; decompression stops
/// at that limit.
pub fn decompress(bytes: &[u8], max_bytes: usize) -> Option<Bytes> {
    let mut plain = Vec::new();
    MultiGzDecoder::new(bytes).take(max_bytes as u64 + 1).read_to_end(&mut plain).ok()?;
    (plain.len() <= max_bytes).then(|| plain.into())
}

/// Decompresses the beginning of a gzip response, at most `max_bytes` bytes. Returns fewer if the data ends or is not
/// gzip.
pub fn decompress_start(bytes: &[u8], max_bytes: usize) -> Vec<u8> {
    let mut plain = Vec::new();
    // Decompression ends with an error if more of the response is still to come. The output so far is valid.
    drop(MultiGzDecoder::new(bytes).take(max_bytes as u64).read_to_end(&mut plain));
    plain
}

/// Compressed response that is buffered for metering.
pub struct CompressedResponse {
    bytes: Vec<u8>,
    api_format: ApiFormat,
    is_event_stream: bool,
    is_too_large: bool,
    /// Number of bytes that all requests together have buffered.
    total_buffered_bytes: Arc<AtomicUsize>,
    /// Maximum of `total_buffered_bytes`.
    max_total_buffered_bytes: usize,
}

impl CompressedResponse {
    pub fn new(
        api_format: ApiFormat,
        is_event_stream: bool,
        total_buffered_bytes: Arc<AtomicUsize>,
        max_total_buffered_bytes: usize,
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

    /// Buffers the next bytes of the response.
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

    /// Returns the usage that the provider reported. If it reported none, the second value is the content to count
    /// tokens from, if any can be read.
    pub fn read_usage(&self, operation: Operation) -> (Option<Usage>, Option<CountableResponse>) {
        let mut plain = MultiGzDecoder::new(self.bytes.as_slice()).take(MAX_DECOMPRESSED_BYTES);
        if self.is_event_stream {
            let mut meter = SseMeter::with_deltas(self.api_format, operation);
            let mut buffer = [0; READ_CHUNK_BYTES];
            // If the data is truncated or not gzip, everything decompressed before that still counts.
            while let Some(read) = plain.read(&mut buffer).ok().filter(|read| *read > 0) {
                meter.feed(&buffer[..read]);
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
