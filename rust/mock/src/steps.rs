//! Responses as lists of socket steps. A list is built once, and a connection plays it for every identical request.

use std::ops::Range;
use std::time::Duration;

use memchr::memmem;

/// Placeholder in prepared bytes for the time of the write.
pub const TIMESTAMP_PLACEHOLDER: &str = "@00000000000000000000@";
/// Placeholder in a prepared head for the id of the ledger entry.
pub const REQUEST_ID_PLACEHOLDER: &str = "req_0000000000000000";
/// Maximum size of a block that is copied completely. Above it, two writes are cheaper than a copy.
const MAX_COPY_BYTES: usize = 256 * 1024;
/// Maximum total size of a chunk sequence that is merged into one write, because the merged bytes stay in memory.
const MAX_BURST_BYTES: usize = 4 * 1024 * 1024;

/// Bytes to write, with the offsets of the placeholders to fill in before each write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteBlock {
    pub bytes: Vec<u8>,
    pub timestamp_offsets: Vec<usize>,
    pub request_id_offsets: Vec<usize>,
}

impl WriteBlock {
    pub fn without_placeholders(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), ..Self::default() }
    }

    pub fn with_placeholders(bytes: Vec<u8>) -> Self {
        let timestamp_offsets = memmem::find_iter(&bytes, TIMESTAMP_PLACEHOLDER).map(|at| at + 1).collect();
        let request_id_offsets = memmem::find_iter(&bytes, REQUEST_ID_PLACEHOLDER).map(|at| at + 4).collect();
        Self { bytes, timestamp_offsets, request_id_offsets }
    }

    pub fn is_fixed(&self) -> bool {
        self.timestamp_offsets.is_empty() && self.request_id_offsets.is_empty()
    }

    /// Copies the block into `out` with its placeholders filled in. Copies a large block only up to its last
    /// placeholder.
    ///
    /// Returns the number of bytes copied.
    pub fn fill_into(&self, out: &mut Vec<u8>, id: u64, now_ns: u64) -> usize {
        let placeholder_end = self
            .timestamp_offsets
            .iter()
            .chain(&self.request_id_offsets)
            .max()
            .map_or(0, |at| at + TIMESTAMP_PLACEHOLDER.len());
        let copied =
            if self.bytes.len() <= MAX_COPY_BYTES { self.bytes.len() } else { placeholder_end.min(self.bytes.len()) };
        out.clear();
        out.extend_from_slice(&self.bytes[..copied]);
        for &at in &self.request_id_offsets {
            write_digits(out, at..at + 16, id);
        }
        for &at in &self.timestamp_offsets {
            write_digits(out, at..at + 20, now_ns);
        }
        copied
    }

    fn append(&mut self, next: &WriteBlock) {
        let shift = self.bytes.len();
        self.bytes.extend_from_slice(&next.bytes);
        self.timestamp_offsets.extend(next.timestamp_offsets.iter().map(|at| at + shift));
        self.request_id_offsets.extend(next.request_id_offsets.iter().map(|at| at + shift));
    }
}

fn write_digits(out: &mut [u8], range: Range<usize>, mut value: u64) {
    if let Some(digits) = out.get_mut(range) {
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (value % 10) as u8;
            value /= 10;
        }
    }
}

/// Chunks written one by one: `count` writes that cycle through the blocks, with `gap` between two writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkSequence {
    pub blocks: Vec<WriteBlock>,
    pub count: u32,
    pub gap: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Send(WriteBlock),
    Chunks(ChunkSequence),
    Pause(Duration),
    /// Writes one byte at a time.
    SlowBytes {
        bytes: Vec<u8>,
        gap: Duration,
    },
    /// Sends FIN; the other direction stays open.
    HalfClose,
    /// Closes the connection with FIN.
    Close,
    /// Closes the connection with RST.
    Reset,
    /// Sends nothing more and waits until the client disconnects.
    Hold,
}

/// Merges successive sends into one write, up to the next pause or other step.
pub fn merge_writes(steps: Vec<Step>) -> Vec<Step> {
    let mut merged: Vec<Step> = Vec::with_capacity(steps.len());
    for step in steps {
        let block = match step {
            Step::Chunks(sequence) if sequence.max_total_bytes() <= MAX_BURST_BYTES => sequence.concat_blocks(),
            Step::Send(block) => block,
            other => {
                merged.push(other);
                continue;
            }
        };
        match merged.last_mut() {
            Some(Step::Send(last)) => last.append(&block),
            _ => merged.push(Step::Send(block)),
        }
    }
    merged
}

/// Merges the writes, then sends each byte by byte with `gap` between two bytes.
pub fn convert_to_drip(steps: Vec<Step>, gap: Duration) -> Vec<Step> {
    let slow = |step| match step {
        Step::Send(block) => Step::SlowBytes { bytes: block.bytes, gap },
        other => other,
    };
    merge_writes(steps).into_iter().map(slow).collect()
}

impl ChunkSequence {
    fn max_total_bytes(&self) -> usize {
        let widest = self.blocks.iter().map(|block| block.bytes.len()).max().unwrap_or(0);
        widest.saturating_mul(self.count as usize)
    }

    fn concat_blocks(&self) -> WriteBlock {
        let mut joined = WriteBlock::default();
        for block in self.blocks.iter().cycle().take(self.count as usize) {
            joined.append(block);
        }
        joined
    }
}

impl Step {
    pub fn prepared_bytes(&self) -> usize {
        match self {
            Self::Send(block) => block.bytes.len(),
            Self::Chunks(sequence) => sequence.blocks.iter().map(|block| block.bytes.len()).sum(),
            Self::SlowBytes { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_placeholders() {
        let block =
            WriteBlock::with_placeholders(format!("{REQUEST_ID_PLACEHOLDER} {TIMESTAMP_PLACEHOLDER}").into_bytes());
        let mut out = Vec::new();
        block.fill_into(&mut out, 42, 7);
        assert_eq!(out, b"req_0000000000000042 @00000000000000000007@");
    }

    #[test]
    fn merges_burst_into_one_write() {
        let make_block =
            |text: &str| WriteBlock::with_placeholders(format!("{text}{TIMESTAMP_PLACEHOLDER}").into_bytes());
        let sequence = ChunkSequence { blocks: vec![make_block("a"), make_block("b")], count: 3, gap: Duration::ZERO };
        let merged = merge_writes(vec![
            Step::Send(WriteBlock::without_placeholders("head")),
            Step::Chunks(sequence),
            Step::Send(WriteBlock::without_placeholders("end")),
            Step::Hold,
        ]);
        let [Step::Send(block), Step::Hold] = merged.as_slice() else { panic!("{merged:?}") };
        assert_eq!(
            block.bytes,
            format!("heada{TIMESTAMP_PLACEHOLDER}b{TIMESTAMP_PLACEHOLDER}a{TIMESTAMP_PLACEHOLDER}end").into_bytes()
        );
        assert_eq!(block.timestamp_offsets, [6, 29, 52]);
    }
}
