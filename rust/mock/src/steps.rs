//! An answer as a list of steps on the socket: prepared once, played for every request that asks for the same.

use std::ops::Range;
use std::time::Duration;

use memchr::memmem;

/// Stands in prepared bytes where the time of the write goes.
pub const STAMP: &str = "@00000000000000000000@";
/// Stands in a prepared head where the ledger's id goes.
pub const REQUEST_ID: &str = "req_0000000000000000";
/// Above this, two writes are cheaper than a copy.
const COPY_LIMIT: usize = 256 * 1024;
/// More than this is not held in memory for one write.
const BURST_LIMIT: usize = 4 * 1024 * 1024;

/// Bytes as they go on the wire, and the places to fill in before each write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    pub bytes: Vec<u8>,
    pub stamps: Vec<usize>,
    pub ids: Vec<usize>,
}

impl Block {
    pub fn plain(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), ..Self::default() }
    }

    pub fn marked(bytes: Vec<u8>) -> Self {
        let stamps = memmem::find_iter(&bytes, STAMP).map(|at| at + 1).collect();
        let ids = memmem::find_iter(&bytes, REQUEST_ID).map(|at| at + 4).collect();
        Self { bytes, stamps, ids }
    }

    pub fn is_fixed(&self) -> bool {
        self.stamps.is_empty() && self.ids.is_empty()
    }

    /// Copies the block into `out`, the places filled in; of a large one only as much as has places.
    ///
    /// Returns how much was copied.
    pub fn fill(&self, out: &mut Vec<u8>, id: u64, now_ns: u64) -> usize {
        let places = self.stamps.iter().chain(&self.ids).max().map_or(0, |at| at + STAMP.len());
        let copied = if self.bytes.len() <= COPY_LIMIT { self.bytes.len() } else { places.min(self.bytes.len()) };
        out.clear();
        out.extend_from_slice(&self.bytes[..copied]);
        for &at in &self.ids {
            write_digits(out, at..at + 16, id);
        }
        for &at in &self.stamps {
            write_digits(out, at..at + 20, now_ns);
        }
        copied
    }

    fn append(&mut self, next: &Block) {
        let shift = self.bytes.len();
        self.bytes.extend_from_slice(&next.bytes);
        self.stamps.extend(next.stamps.iter().map(|at| at + shift));
        self.ids.extend(next.ids.iter().map(|at| at + shift));
    }
}

fn write_digits(out: &mut [u8], place: Range<usize>, mut value: u64) {
    if let Some(digits) = out.get_mut(place) {
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (value % 10) as u8;
            value /= 10;
        }
    }
}

/// Chunks written one by one: the blocks in turn, `count` in all, `gap` between two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    pub blocks: Vec<Block>,
    pub count: u32,
    pub gap: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Send(Block),
    Pieces(Pieces),
    Pause(Duration),
    /// One byte at a time.
    Drip {
        bytes: Vec<u8>,
        gap: Duration,
    },
    /// FIN, while the other direction stays open.
    HalfClose,
    /// FIN.
    Close,
    /// RST.
    Reset,
    /// Nothing more, until the client goes away.
    Hold,
}

/// Makes one write of all that would be sent without a pause between.
pub fn burst(steps: Vec<Step>) -> Vec<Step> {
    let mut merged: Vec<Step> = Vec::with_capacity(steps.len());
    for step in steps {
        let block = match step {
            Step::Pieces(pieces) if pieces.size() <= BURST_LIMIT => pieces.joined(),
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

/// Sends everything up to the end of the first pause-free part byte by byte.
pub fn drip(steps: Vec<Step>, gap: Duration) -> Vec<Step> {
    let slow = |step| match step {
        Step::Send(block) => Step::Drip { bytes: block.bytes, gap },
        other => other,
    };
    burst(steps).into_iter().map(slow).collect()
}

impl Pieces {
    fn size(&self) -> usize {
        let widest = self.blocks.iter().map(|block| block.bytes.len()).max().unwrap_or(0);
        widest.saturating_mul(self.count as usize)
    }

    fn joined(&self) -> Block {
        let mut joined = Block::default();
        for block in self.blocks.iter().cycle().take(self.count as usize) {
            joined.append(block);
        }
        joined
    }
}

impl Step {
    pub fn size(&self) -> usize {
        match self {
            Self::Send(block) => block.bytes.len(),
            Self::Pieces(pieces) => pieces.blocks.iter().map(|block| block.bytes.len()).sum(),
            Self::Drip { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_in() {
        let block = Block::marked(format!("{REQUEST_ID} {STAMP}").into_bytes());
        let mut out = Vec::new();
        block.fill(&mut out, 42, 7);
        assert_eq!(out, b"req_0000000000000042 @00000000000000000007@");
    }

    #[test]
    fn a_burst_is_one_write() {
        let piece = |text: &str| Block::marked(format!("{text}{STAMP}").into_bytes());
        let pieces = Pieces { blocks: vec![piece("a"), piece("b")], count: 3, gap: Duration::ZERO };
        let merged = burst(vec![
            Step::Send(Block::plain("head")),
            Step::Pieces(pieces),
            Step::Send(Block::plain("end")),
            Step::Hold,
        ]);
        let [Step::Send(block), Step::Hold] = merged.as_slice() else { panic!("{merged:?}") };
        assert_eq!(block.bytes, format!("heada{STAMP}b{STAMP}a{STAMP}end").into_bytes());
        assert_eq!(block.stamps, [6, 29, 52]);
    }
}
