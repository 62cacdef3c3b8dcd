//! Merges a few dozen bytes without a break at a time, with the tokens of a vocabulary in a table of its own.

use tiktoken::CoreBpe;

/// What `merge` takes at most: a place in it has so many bits beside the rank.
pub const MAX_PIECE_BYTES: usize = 1 << OFFSET_BITS;
const OFFSET_BITS: u32 = 10;
/// No such token.
const NO_RANK: u32 = u32::MAX;
/// So many are compared at once, in so many rows beside each other.
const LANES: usize = 4;
const ROWS: usize = 4;
/// Ranks have fewer bits; as bits of a number it is one of those that every machine compares quickly.
const NORMAL_FLOAT_BIT: u32 = 1 << 29;
const FILTER_BITS: usize = 1 << 21;

/// A vocabulary's tokens by their bytes.
pub struct RankTable {
    /// Of every two bytes.
    pair_ranks: Box<[u32]>,
    /// A bit for the hash of each longer token: most of what is asked for is none, and this is small enough to be near.
    filter: Box<[u64]>,
    /// Of more than two bytes.
    slots: Box<[Slot]>,
    /// Those of more than eight bytes.
    long_tokens: Vec<u8>,
    /// How many bytes each has.
    token_lengths: Box<[u16]>,
}

#[derive(Clone, Copy)]
struct Slot {
    /// Up to eight bytes of the token, or where it begins among the long ones.
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
                // There are at least twice as many slots as tokens.
                while self.slots[at].length != 0 {
                    at = (at + 1) & mask;
                }
                self.slots[at] = Slot { key, rank, length: token.len() as u32 };
            }
        }
    }

    /// How many bytes a token has.
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

    /// How many tokens a piece of up to `LONGEST` bytes has.
    pub fn count_tokens(&self, piece: &[u8], parts: &mut MergeState) -> usize {
        if piece.len() < 2 || self.find_rank(piece) != NO_RANK {
            piece.len().min(1)
        } else {
            self.merge_pairs(piece, parts)
        }
    }

    /// Where each token ends in a piece of up to `LONGEST` bytes.
    pub fn merge(&self, piece: &[u8], parts: &mut MergeState) -> Vec<usize> {
        self.merge_pairs(piece, parts);
        let length = piece.len().min(MAX_PIECE_BYTES);
        std::iter::successors(Some(parts.part_end(0)), |end| (*end < length).then(|| parts.part_end(*end))).collect()
    }

    /// Merges the pair that makes the token of the lowest rank first, of equal ones the first, until no pair makes one; says
    /// how many parts are left.
    fn merge_pairs(&self, piece: &[u8], parts: &mut MergeState) -> usize {
        let length = piece.len().min(MAX_PIECE_BYTES);
        let mut left = length;
        parts.reset(length);
        for at in 1..length {
            parts.set_rank(at - 1, self.find_rank(&piece[at - 1..=at]));
        }
        let mut next = part_offset(parts.lowest_ranked());
        while let Some(at) = next {
            let (before, end) = parts.join_next(at);
            left -= 1;
            let after = if end < length { self.find_rank(&piece[at..parts.part_end(end)]) } else { NO_RANK };
            let earlier = before.map(|before| (before, self.find_rank(&piece[before..end])));
            // Before the new ranks are written: what was written just now cannot be read in bulk for a while.
            let mut lowest = min_rank(parts.lowest_ranked(), parts.set_rank(at, after));
            if let Some((before, joined)) = earlier {
                lowest = min_rank(lowest, parts.set_rank(before, joined));
            }
            next = part_offset(lowest);
        }
        left
    }
}

/// A piece that is being merged; each part is known by the place where it starts.
#[derive(Default)]
pub struct MergeState {
    /// The rank of what a part and the next one make with the part's place behind it, as bits: numbers of this kind are in
    /// the same order as their bits, and the least of four is found in one step.
    ranked_pairs: Vec<[[f32; LANES]; ROWS]>,
    part_ends: Vec<u16>,
    previous_parts: Vec<u16>,
}

impl MergeState {
    /// Every byte is a part.
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

    /// Writes which token a part and the next one make, and gives it as it is written.
    fn set_rank(&mut self, at: usize, rank: u32) -> f32 {
        let bits = NORMAL_FLOAT_BIT | rank << OFFSET_BITS | at as u32;
        let ranked = if rank == NO_RANK { f32::INFINITY } else { f32::from_bits(bits) };
        self.ranked_pairs[at / (ROWS * LANES)][at / LANES % ROWS][at % LANES] = ranked;
        ranked
    }

    /// The lowest of what is written.
    fn lowest_ranked(&self) -> f32 {
        let mut lowest = [[f32::INFINITY; LANES]; ROWS];
        for some in &self.ranked_pairs {
            for (lowest, some) in lowest.iter_mut().zip(some) {
                *lowest = min_lanes(*lowest, *some);
            }
        }
        // By halves: in a row each would wait for the one before.
        let [one, two, three, four] = lowest;
        let [one, two, three, four] = min_lanes(min_lanes(one, two), min_lanes(three, four));
        min_rank(min_rank(one, two), min_rank(three, four))
    }

    /// Joins a part with the next one, and says which one is before it and where it ends now; what it makes with these is
    /// not known then.
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

fn min_rank(one: f32, other: f32) -> f32 {
    if one < other { one } else { other }
}

/// Likewise of each two at the same place: the compiler makes one instruction of it.
fn min_lanes(one: [f32; LANES], other: [f32; LANES]) -> [f32; LANES] {
    std::array::from_fn(|lane| min_rank(one[lane], other[lane]))
}

/// The part that what is lowest begins with.
fn part_offset(lowest: f32) -> Option<usize> {
    lowest.is_finite().then(|| lowest.to_bits() as usize & (MAX_PIECE_BYTES - 1))
}

/// Marks such as `<|endoftext|>` have numbers, but merging never makes one.
fn is_special_token(vocabulary: &CoreBpe, token: &[u8]) -> bool {
    let text = std::str::from_utf8(token).unwrap_or_default();
    text.starts_with("<|") && text.ends_with("|>") && vocabulary.count(text) > 1
}

fn pair_index(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}

/// The word and its bit that stand for a hash.
fn filter_bit(hash: u64) -> (usize, u64) {
    let bit = (hash >> 32) as usize & (FILTER_BITS - 1);
    (bit / 64, 1 << (bit % 64))
}

/// Three to eight bytes as a number; together with the length it tells them from all others.
fn pack_short(bytes: &[u8]) -> Option<u64> {
    let number = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
    match (bytes, bytes.first_chunk(), bytes.last_chunk()) {
        ([first, second, third], ..) => Some(number(&[*first, *second, *third, 0])),
        (_, Some(first), Some(last)) if bytes.len() <= 8 => Some(number(last) << 32 | number(first)),
        _ => None,
    }
}

/// Of the ends of longer tokens alone: few share them.
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
