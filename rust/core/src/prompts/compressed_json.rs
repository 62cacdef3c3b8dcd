//! Compressed JSON of the versions of prompts. Few of the published versions are used, so most are never decompressed.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Minimum bytes of JSON that is compressed. Shorter JSON would hardly become smaller.
const MIN_COMPRESSED_BYTES: usize = 256;
/// Extra capacity of the output for blocks of content that cannot be compressed.
const EXTRA_BYTES: usize = 64;

thread_local! {
    /// Compressor of this thread. It is reused, because its tables are larger than most versions.
    static COMPRESSOR: RefCell<Compress> = RefCell::new(Compress::new(Compression::fast(), false));
}

/// Valid JSON, compressed if this makes it smaller.
#[derive(Debug)]
pub(super) struct CompressedJson {
    bytes: Box<[u8]>,
    /// Length of the JSON before compression.
    length: usize,
}

impl CompressedJson {
    pub fn new(json: &str) -> Self {
        let compressed = if json.len() < MIN_COMPRESSED_BYTES { None } else { compress(json.as_bytes()) };
        let bytes = compressed.unwrap_or_else(|| json.as_bytes().into());
        Self { bytes, length: json.len() }
    }

    /// Returns the length of the JSON in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the JSON; `None` if memory was corrupted.
    pub fn decompress(&self) -> Option<Vec<u8>> {
        if self.bytes.len() == self.length {
            return Some(self.bytes.to_vec());
        }
        let mut json = Vec::with_capacity(self.length);
        Decompress::new(false).decompress_vec(&self.bytes, &mut json, FlushDecompress::Finish).ok()?;
        (json.len() == self.length).then_some(json)
    }
}

impl<'de> Deserialize<'de> for CompressedJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|json| Self::new(json.get()))
    }
}

/// Returns the compressed bytes; `None` if they are not fewer than those of the JSON.
fn compress(json: &[u8]) -> Option<Box<[u8]>> {
    COMPRESSOR.with_borrow_mut(|compressor| {
        compressor.reset();
        let mut bytes = Vec::with_capacity(json.len() + EXTRA_BYTES);
        let status = compressor.compress_vec(json, &mut bytes, FlushCompress::Finish).ok()?;
        (status == Status::StreamEnd && bytes.len() < json.len()).then(|| bytes.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_read_back_as_it_was() {
        let noise: String =
            (0..2000_u32).map(|at| char::from(b'!' + (at.wrapping_mul(2_654_435_761) >> 24) as u8 % 90)).collect();
        for text in ["1".to_owned(), "a sentence that repeats itself; ".repeat(500), noise.replace(['"', '\\'], "")] {
            let json = format!("{{\"string\": \"{text}\"}}");
            let stored: CompressedJson = serde_json::from_str(&json).unwrap();
            assert_eq!((stored.len(), stored.decompress().unwrap()), (json.len(), json.clone().into_bytes()));
            assert!(stored.bytes.len() <= json.len());
        }
        let long = CompressedJson::new(&format!("\"{}\"", "text ".repeat(1000)));
        assert!(long.bytes.len() < 200, "{}", long.bytes.len());
    }
}
