//! Merges a few dozen bytes without a break at a time, with the tokens of a vocabulary in a table of its own.

use tiktoken::CoreBpe;

/// What `merge` takes at most: a place in it has so many bits beside the rank.
pub const LONGEST: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 10;
/// No such token.
const NONE: u32 = u32::MAX;
/// So many are compared at once.
const LANES: usize = 16;
/// Ranks have fewer bits; as bits of a number it is one of those that every machine compares quickly.
const NORMAL: u32 = 1 << 29;
const KNOWN_BITS: usize = 1 << 21;

/// A vocabulary's tokens by their bytes.
pub struct Ranks {
    /// Of every two bytes.
    pairs: Box<[u32]>,
    /// A bit for the hash of each longer token: most of what is asked for is none, and this is small enough to be near.
    known: Box<[u64]>,
    /// Of more than two bytes.
    slots: Box<[Slot]>,
    /// Those of more than eight bytes.
    long: Vec<u8>,
    /// How many bytes each has.
    lengths: Box<[u16]>,
}

#[derive(Clone, Copy)]
struct Slot {
    /// Up to eight bytes of the token, or where it begins among the long ones.
    key: u64,
    rank: u32,
    length: u32,
}

const EMPTY: Slot = Slot { key: 0, rank: 0, length: 0 };

impl Ranks {
    pub fn of(vocabulary: &CoreBpe) -> Self {
        let count = vocabulary.vocab_size() + vocabulary.num_special_tokens();
        let mut ranks = Self {
            pairs: vec![NONE; 1 << 16].into(),
            known: vec![0; KNOWN_BITS / 64].into(),
            slots: vec![EMPTY; (2 * count).next_power_of_two()].into(),
            long: Vec::new(),
            lengths: vec![0; count].into(),
        };
        for rank in 0..count as u32 {
            let token = vocabulary.decode(&[rank]);
            ranks.lengths[rank as usize] = token.len() as u16;
            if !is_special(vocabulary, &token) {
                ranks.insert(&token, rank);
            }
        }
        ranks
    }

    fn insert(&mut self, token: &[u8], rank: u32) {
        match *token {
            [] | [_] => (),
            [first, second] => self.pairs[pair(first, second)] = rank,
            _ => {
                let hash = hash(token);
                let (word, bit) = known(hash);
                self.known[word] |= bit;
                let key = short(token).unwrap_or_else(|| {
                    self.long.extend_from_slice(token);
                    (self.long.len() - token.len()) as u64
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
    pub fn length(&self, token: u32) -> usize {
        self.lengths.get(token as usize).copied().unwrap_or_default().into()
    }

    fn rank(&self, bytes: &[u8]) -> u32 {
        if let [first, second] = *bytes {
            return self.pairs[pair(first, second)];
        }
        let hash = hash(bytes);
        let (word, bit) = known(hash);
        if self.known[word] & bit == 0 {
            return NONE;
        }
        let (short, length) = (short(bytes), bytes.len() as u32);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.length == 0 {
                return NONE;
            }
            let is_it = match short {
                Some(key) => slot.key == key,
                None => self.long.get(slot.key as usize..).is_some_and(|long| long.starts_with(bytes)),
            };
            if slot.length == length && is_it {
                return slot.rank;
            }
            at = (at + 1) & mask;
        }
    }

    /// How many tokens a piece of up to `LONGEST` bytes has.
    pub fn count(&self, piece: &[u8], parts: &mut Parts) -> usize {
        if piece.len() < 2 || self.rank(piece) != NONE { piece.len().min(1) } else { self.join(piece, parts) }
    }

    /// Where each token ends in a piece of up to `LONGEST` bytes.
    pub fn merge(&self, piece: &[u8], parts: &mut Parts) -> Vec<usize> {
        self.join(piece, parts);
        let length = piece.len().min(LONGEST);
        std::iter::successors(Some(parts.end(0)), |end| (*end < length).then(|| parts.end(*end))).collect()
    }

    /// Merges the pair that makes the token of the lowest rank first, of equal ones the first, until no pair makes one; says
    /// how many parts are left.
    fn join(&self, piece: &[u8], parts: &mut Parts) -> usize {
        let length = piece.len().min(LONGEST);
        let mut left = length;
        parts.split(length);
        for at in 1..length {
            parts.rank(at - 1, self.rank(&piece[at - 1..=at]));
        }
        let mut next = parts.lowest();
        while let Some(at) = next {
            let rank = parts.ranked(at);
            let end = parts.join(at);
            left -= 1;
            let mut least = NONE;
            if end < length {
                let joined = self.rank(&piece[at..parts.end(end)]);
                parts.rank(at, joined);
                least = joined;
            }
            if at > 0 {
                let before = parts.before(at);
                let joined = self.rank(&piece[before..end]);
                parts.rank(before, joined);
                least = least.min(joined);
            }
            // Of a run the next two make the same: what is lower now can only be new.
            let is_again = end < length && least > rank && parts.ranked(end) == rank;
            next = if is_again { Some(end) } else { parts.lowest() };
        }
        left
    }
}

/// A piece that is being merged; each part is known by the place where it starts.
#[derive(Default)]
pub struct Parts {
    /// The rank of what a part and the next one make with the part's place behind it, as bits: numbers of this kind are in
    /// the same order as their bits, and the least of four is found in one step.
    ranked: Vec<[f32; LANES]>,
    ends: Vec<u16>,
    before: Vec<u16>,
}

impl Parts {
    /// Every byte is a part.
    fn split(&mut self, length: usize) {
        let length = length as u16;
        self.ranked.clear();
        self.ranked.resize(usize::from(length).div_ceil(LANES), [f32::INFINITY; LANES]);
        self.ends.clear();
        self.ends.extend(1..=length);
        self.before.clear();
        self.before.extend((0..length).map(|at| at.saturating_sub(1)));
    }

    fn end(&self, at: usize) -> usize {
        self.ends[at].into()
    }

    fn before(&self, at: usize) -> usize {
        self.before[at].into()
    }

    /// Which token a part and the next one make; more than any where they make none.
    fn ranked(&self, at: usize) -> u32 {
        (self.ranked[at / LANES][at % LANES].to_bits() & !NORMAL) >> PLACE_BITS
    }

    fn rank(&mut self, at: usize, rank: u32) {
        let bits = NORMAL | rank << PLACE_BITS | at as u32;
        self.ranked[at / LANES][at % LANES] = if rank == NONE { f32::INFINITY } else { f32::from_bits(bits) };
    }

    /// The part to join with the next one.
    fn lowest(&self) -> Option<usize> {
        let less = |one: f32, other: f32| if one < other { one } else { other };
        let mut lowest = [f32::INFINITY; LANES];
        for some in &self.ranked {
            for (lane, one) in lowest.iter_mut().zip(some) {
                *lane = less(*one, *lane);
            }
        }
        // By halves: in a row each would wait for the one before.
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                lowest[lane] = less(lowest[lane], lowest[lane + half]);
            }
        }
        let lowest = lowest[0];
        lowest.is_finite().then(|| lowest.to_bits() as usize & (LONGEST - 1))
    }

    /// Joins a part with the next one, and says where they end; what they make with their neighbours is not known then.
    fn join(&mut self, at: usize) -> usize {
        let next = self.end(at);
        let end = self.end(next);
        self.ends[at] = end as u16;
        self.rank(next, NONE);
        self.rank(at, NONE);
        if let Some(before) = self.before.get_mut(end) {
            *before = at as u16;
        }
        end
    }
}

/// Marks such as `<|endoftext|>` have numbers, but merging never makes one.
fn is_special(vocabulary: &CoreBpe, token: &[u8]) -> bool {
    let text = std::str::from_utf8(token).unwrap_or_default();
    text.starts_with("<|") && text.ends_with("|>") && vocabulary.count(text) > 1
}

fn pair(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}

/// The word and its bit that stand for a hash.
fn known(hash: u64) -> (usize, u64) {
    let bit = (hash >> 32) as usize & (KNOWN_BITS - 1);
    (bit / 64, 1 << (bit % 64))
}

/// Three to eight bytes as a number; together with the length it tells them from all others.
fn short(bytes: &[u8]) -> Option<u64> {
    let number = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
    match (bytes, bytes.first_chunk(), bytes.last_chunk()) {
        ([first, second, third], ..) => Some(number(&[*first, *second, *third, 0])),
        (_, Some(first), Some(last)) if bytes.len() <= 8 => Some(number(last) << 32 | number(first)),
        _ => None,
    }
}

/// Of the ends of longer tokens alone: few share them.
fn hash(bytes: &[u8]) -> u64 {
    let length = bytes.len() as u64;
    if let Some(number) = short(bytes) {
        return mix(length, number);
    }
    let eight = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    mix(mix(length, eight(bytes.last_chunk())), eight(bytes.first_chunk()))
}

fn mix(hash: u64, number: u64) -> u64 {
    let product = u128::from(hash ^ number ^ 0x9e37_79b9_7f4a_7c15) * 0xa24b_aed4_963e_e407;
    product as u64 ^ (product >> 64) as u64
}
