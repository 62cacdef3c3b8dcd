//! Minimal gzip encoder. It writes stored blocks, so that each chunk of a stream is a block of its own. It also builds
//! a decompression bomb.

use std::sync::LazyLock;

const MEMBER_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
const MAX_BLOCK_BYTES: usize = 65_535;

/// Returns the header of a gzip member.
pub fn member_header() -> &'static [u8] {
    &MEMBER_HEADER
}

/// Encodes `data` as stored blocks, which may stand anywhere in the member.
pub fn stored_blocks(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() + 5);
    for part in data.chunks(MAX_BLOCK_BYTES) {
        out.push(0);
        out.extend_from_slice(&(part.len() as u16).to_le_bytes());
        out.extend_from_slice(&(!(part.len() as u16)).to_le_bytes());
        out.extend_from_slice(part);
    }
    out
}

/// Returns the final block and trailer of a member with the content `content`.
pub fn member_trailer(content: &[u8]) -> Vec<u8> {
    let mut out = vec![1, 0, 0, 0xff, 0xff];
    out.extend_from_slice(&crc32fast::hash(content).to_le_bytes());
    out.extend_from_slice(&(content.len() as u32).to_le_bytes());
    out
}

pub fn encode_member(data: &[u8]) -> Vec<u8> {
    [member_header(), &stored_blocks(data), &member_trailer(data)].concat()
}

/// Number of copies of 258 letters in the bomb: 45 KB expand to 7 MB.
const BOMB_REPEATS: usize = 28_000;

/// Returns a member that expands to an error body with a message of several megabytes.
pub fn bomb_member() -> &'static [u8] {
    static BOMB: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let (before, after) = (br#"{"error":{"message":""#, br#""}}"#);
        let letters = vec![b'A'; 1 + BOMB_REPEATS * 258];
        let content = [&before[..], &letters, &after[..]].concat();
        [
            member_header(),
            &stored_blocks(before),
            &repeated_letter_block(),
            &stored_blocks(after),
            &member_trailer(&content),
        ]
        .concat()
    });
    &BOMB
}

/// Encodes a block with fixed Huffman codes (RFC 1951 §3.2.6): an `A`, then `BOMB_REPEATS` copies of maximum length at
/// distance 1.
fn repeated_letter_block() -> Vec<u8> {
    let (kind, letter, copy, end) = ("010", "01110001", "1100010100000", "0000000");
    let mut bits: Vec<u8> =
        [kind, letter, &copy.repeat(BOMB_REPEATS), end].concat().bytes().map(|bit| bit - b'0').collect();
    // An empty stored block aligns the next block to a byte boundary.
    bits.extend([0, 0, 0]);
    let mut out: Vec<u8> = bits.chunks(8).map(|byte| byte.iter().rev().fold(0, |sum, bit| sum << 1 | bit)).collect();
    out.extend_from_slice(&[0, 0, 0xff, 0xff]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_large_data_into_several_blocks() {
        assert_eq!(encode_member(&vec![7; 70_000]).len(), 10 + 5 + 65_535 + 5 + 4_465 + 5 + 8);
    }
}
