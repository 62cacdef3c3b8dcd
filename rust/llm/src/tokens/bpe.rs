//! Byte-pair encoding (BPE) of short pieces of text, with a table of token ranks that is built from the vocabulary.

use tiktoken::CoreBpe;

/// Maximum number of bytes that `merge` reads, because a stored rank has `OFFSET_BITS` bits for the offset of its part.
pub const MAX_PIECE_BYTES: usize = 1 << OFFSET_BITS;
/// Number of low bits of a stored rank that hold the offset of its part.
const OFFSET_BITS: u32 = 10;
/// Rank of bytes that are not a token.
const NO_RANK: u32 = u32::MAX;
/// Number of ranks that are compared at once.
const LANES: usize = 4;
/// Number of independent rows of `LANES` ranks.
const ROWS: usize = 4;
/// Bit above all bits of rank and offset. With it, the bits form a normal float, which every machine compares quickly.
const NORMAL_FLOAT_BIT: u32 = 1 << 29;
/// Number of bits of the filter in `RankTable`.
const FILTER_BITS: usize = 1 << 21;

/// Ranks of a vocabulary's tokens, by their bytes.
pub struct RankTable {
    /// Ranks of all pairs of two bytes.
    pair_ranks: Box<[u32]>,
    /// One bit for the hash of each longer token. Most lookups find no token, and this filter is small enough to stay
    /// in a CPU cache.
    filter: Box<[u64]>,
    /// Hash table of the tokens with more than two bytes.
    slots: Box<[Slot]>,
    /// Bytes of the tokens with more than eight bytes.
    long_tokens: Vec<u8>,
    /// Length of each token in bytes.
    token_lengths: Box<[u16]>,
}

#[derive(Clone, Copy)]
struct Slot {
    /// Bytes of a token of up to eight bytes, or the start of a longer one in `long_tokens`.
    key: u64,
    rank: u32,
    length: u32,
}

const EMPTY_SLOT: Slot = Slot { key: 0, rank: 0, length: 0 };

impl RankTable {
    pub fn from_vocabulary(vocabulary: &CoreBpe) -> Self {
        let count = vocabulary.vocab_size() + vocabulary.num_special_tokens();
        let mut ranks = Self {
            pair_ranks: vec![NO_RANK; 1 << 16].into(),
            filter: vec![0; FILTER_BITS / 64].into(),
            slots: vec![EMPTY_SLOT; (2 * count).next_power_of_two()].into(),
            long_tokens: Vec::new(),
            token_lengths: vec![0; count].into(),
        };
        for rank in 0..count as u32 {
            let token = vocabulary.decode(&[rank]);
            ranks.token_lengths[rank as usize] = token.len() as u16;
            if !is_special_token(vocabulary, &token) {
                ranks.insert(&token, rank);
            }
        }
        ranks
    }

    fn insert(&mut self, token: &[u8], rank: u32) {
        match *token {
            [] | [_] => (),
            [first, second] => self.pair_ranks[pair_index(first, second)] = rank,
            _ => {
                let hash = hash_token(token);
                let (word, bit) = filter_bit(hash);
                self.filter[word] |= bit;
                let key = pack_short(token).unwrap_or_else(|| {
                    self.long_tokens.extend_from_slice(token);
                    (self.long_tokens.len() - token.len()) as u64
                });
                let mask = self.slots.len() - 1;
                let mut at = hash as usize & mask;
                // The loop ends, because there are at least twice as many slots as tokens.
                while self.slots[at].length != 0 {
                    at = (at + 1) & mask;
                }
                self.slots[at] = Slot { key, rank, length: token.len() as u32 };
            }
        }
    }

    /// Returns the length of a token in bytes.
    pub fn token_length(&self, token: u32) -> usize {
        self.token_lengths.get(token as usize).copied().unwrap_or_default().into()
    }

    fn find_rank(&self, bytes: &[u8]) -> u32 {
        if let [first, second] = *bytes {
            return self.pair_ranks[pair_index(first, second)];
        }
        let hash = hash_token(bytes);
        let (word, bit) = filter_bit(hash);
        if self.filter[word] & bit == 0 {
            return NO_RANK;
        }
        let (short, length) = (pack_short(bytes), bytes.len() as u32);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.length == 0 {
                return NO_RANK;
            }
            let is_it = match short {
                Some(key) => slot.key == key,
                None => self.long_tokens.get(slot.key as usize..).is_some_and(|long| long.starts_with(bytes)),
            };
            if slot.length == length && is_it {
                return slot.rank;
            }
            at = (at + 1) & mask;
        }
    }

    /// Counts the tokens of a piece of up to `MAX_PIECE_BYTES` bytes.
    pub fn count_tokens(&self, chunk: &[u8], parts: &mut MergeState) -> usize {
        if chunk.len() < 2 || self.find_rank(chunk) != NO_RANK {
            chunk.len().min(1)
        } else {
            self.merge_pairs(chunk, parts)
        }
    }

    /// Merges a piece of up to `MAX_PIECE_BYTES` bytes and returns the end of each token.
    pub fn merge(&self, chunk: &[u8], parts: &mut MergeState) -> Vec<usize> {
        self.merge_pairs(chunk, parts);
        let length = chunk.len().min(MAX_PIECE_BYTES);
        std::iter::successors(Some(parts.part_end(0)), |end| (*end < length).then(|| parts.part_end(*end))).collect()
    }

    /// Merges the pair of parts whose token has the lowest rank, until no pair forms a token. Of pairs with equal
    /// ranks, the first one is merged. Returns the number of parts left.
    fn merge_pairs(&self, chunk: &[u8], parts: &mut MergeState) -> usize {
        let length = chunk.len().min(MAX_PIECE_BYTES);
        let mut remaining = length;
        parts.reset(length);
        for at in 1..length {
            parts.set_rank(at - 1, self.find_rank(&chunk[at - 1..=at]));
        }
        let mut next = part_offset(parts.lowest_ranked());
        while let Some(at) = next {
            let (before, end) = parts.join_next(at);
            remaining -= 1;
            let after = if end < length { self.find_rank(&chunk[at..parts.part_end(end)]) } else { NO_RANK };
            let earlier = before.map(|before| (before, self.find_rank(&chunk[before..end])));
            // Reads the lowest rank before the new ranks are stored: loading a vector right after a store to a part of
            // it is slow.
            let mut lowest = min_rank(parts.lowest_ranked(), parts.set_rank(at, after));
            if let Some((before, joined)) = earlier {
                lowest = min_rank(lowest, parts.set_rank(before, joined));
            }
            next = part_offset(lowest);
        }
        remaining
    }
}

/// Parts of a piece that is being merged. Each part is identified by its start offset.
#[derive(Default)]
pub struct MergeState {
    /// Rank of the token that a part and the next one form, followed by the offset of the part, as the bits of a float.
    /// Such floats sort in the same order as their bits, and the minimum of four is found in one step.
    ranked_pairs: Vec<[[f32; LANES]; ROWS]>,
    part_ends: Vec<u16>,
    previous_parts: Vec<u16>,
}

impl MergeState {
    /// Starts a new piece, in which every byte is a part.
    fn reset(&mut self, length: usize) {
        let length = length as u16;
        self.ranked_pairs.clear();
        self.ranked_pairs.resize(usize::from(length).div_ceil(ROWS * LANES), [[f32::INFINITY; LANES]; ROWS]);
        self.part_ends.clear();
        self.part_ends.extend(1..=length);
        self.previous_parts.clear();
        self.previous_parts.extend((0..length).map(|at| at.saturating_sub(1)));
    }

    fn part_end(&self, at: usize) -> usize {
        self.part_ends[at].into()
    }

    /// Stores the rank of the token that a part and the next one form. Returns the value as it is stored.
    fn set_rank(&mut self, at: usize, rank: u32) -> f32 {
        let bits = NORMAL_FLOAT_BIT | rank << OFFSET_BITS | at as u32;
        let ranked = if rank == NO_RANK { f32::INFINITY } else { f32::from_bits(bits) };
        self.ranked_pairs[at / (ROWS * LANES)][at / LANES % ROWS][at % LANES] = ranked;
        ranked
    }

    /// Returns the lowest stored value.
    fn lowest_ranked(&self) -> f32 {
        let mut lowest = [[f32::INFINITY; LANES]; ROWS];
        for some in &self.ranked_pairs {
            for (lowest, some) in lowest.iter_mut().zip(some) {
                *lowest = min_lanes(*lowest, *some);
            }
        }
        // Reduces by halves, because in a chain each step would wait for the previous one.
        let [one, two, three, four] = lowest;
        let [first, two, three, four] = min_lanes(min_lanes(one, two), min_lanes(three, four));
        min_rank(min_rank(first, two), min_rank(three, four))
    }

    /// Joins a part with the next one. Returns the part before it, and its new end. Clears the ranks of the joined part
    /// and of its neighbours, which the caller of this function sets again.
    fn join_next(&mut self, at: usize) -> (Option<usize>, usize) {
        let next = self.part_end(at);
        let end = self.part_end(next);
        let before = (at > 0).then(|| self.previous_parts[at].into());
        self.part_ends[at] = end as u16;
        self.set_rank(next, NO_RANK);
        self.set_rank(at, NO_RANK);
        if let Some(before) = before {
            self.set_rank(before, NO_RANK);
        }
        if let Some(before) = self.previous_parts.get_mut(end) {
            *before = at as u16;
        }
        (before, end)
    }
}

fn min_rank(left: f32, other: f32) -> f32 {
    if left < other { left } else { other }
}

/// Returns the minimum of each lane. The compiler turns this into a single instruction.
fn min_lanes(left: [f32; LANES], other: [f32; LANES]) -> [f32; LANES] {
    std::array::from_fn(|lane| min_rank(left[lane], other[lane]))
}

/// Returns the offset of the part to which the lowest stored value belongs; `None` if no pair forms a token.
fn part_offset(lowest: f32) -> Option<usize> {
    lowest.is_finite().then(|| lowest.to_bits() as usize & (MAX_PIECE_BYTES - 1))
}

/// Returns true for special tokens such as `<|endoftext|>`. They have ranks, but merging never forms one.
fn is_special_token(vocabulary: &CoreBpe, token: &[u8]) -> bool {
    let text = std::str::from_utf8(token).unwrap_or_default();
    text.starts_with("<|") && text.ends_with("|>") && vocabulary.count(text) > 1
}

fn pair_index(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}

/// Returns the index of the filter word for a hash, and the bit in that word.
fn filter_bit(hash: u64) -> (usize, u64) {
    let bit = (hash >> 32) as usize & (FILTER_BITS - 1);
    (bit / 64, 1 << (bit % 64))
}

/// Packs three to eight bytes into a number, which together with the length is unique.
fn pack_short(bytes: &[u8]) -> Option<u64> {
    let number = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
    match (bytes, bytes.first_chunk(), bytes.last_chunk()) {
        ([first, second, third], ..) => Some(number(&[*first, *second, *third, 0])),
        (_, Some(first), Some(last)) if bytes.len() <= 8 => Some(number(last) << 32 | number(first)),
        _ => None,
    }
}

/// Hashes the length and the bytes of a token. Of longer tokens, only both ends are hashed, because few tokens share
/// them.
fn hash_token(bytes: &[u8]) -> u64 {
    let length = bytes.len() as u64;
    if let Some(number) = pack_short(bytes) {
        return mix_hash(length, number);
    }
    let eight = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    mix_hash(mix_hash(length, eight(bytes.last_chunk())), eight(bytes.first_chunk()))
}

fn mix_hash(hash: u64, number: u64) -> u64 {
    let product = u128::from(hash ^ number ^ 0x9e37_79b9_7f4a_7c15) * 0xa24b_aed4_963e_e407;
    product as u64 ^ (product >> 64) as u64
}
