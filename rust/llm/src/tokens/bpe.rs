//! Merges a few dozen bytes without a break at a time, with the tokens of a vocabulary in a table of its own.

use tiktoken::CoreBpe;

/// What `merge` takes at most: a place in it has so many bits beside the rank.
pub const LONGEST: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 10;
/// No such token.
const NONE: u32 = u32::MAX;
/// So many are compared at once, in so many rows beside each other.
const LANES: usize = 4;
const ROWS: usize = 4;
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
        let mut next = place(parts.lowest());
        while let Some(at) = next {
            let (before, end) = parts.join(at);
            left -= 1;
            let after = if end < length { self.rank(&piece[at..parts.end(end)]) } else { NONE };
            let earlier = before.map(|before| (before, self.rank(&piece[before..end])));
            // Before the new ranks are written: what was written just now cannot be read in bulk for a while.
            let mut lowest = less(parts.lowest(), parts.rank(at, after));
            if let Some((before, joined)) = earlier {
                lowest = less(lowest, parts.rank(before, joined));
            }
            next = place(lowest);
        }
        left
    }
}

/// A piece that is being merged; each part is known by the place where it starts.
#[derive(Default)]
pub struct Parts {
    /// The rank of what a part and the next one make with the part's place behind it, as bits: numbers of this kind are in
    /// the same order as their bits, and the least of four is found in one step.
    ranked: Vec<[[f32; LANES]; ROWS]>,
    ends: Vec<u16>,
    before: Vec<u16>,
}

impl Parts {
    /// Every byte is a part.
    fn split(&mut self, length: usize) {
        let length = length as u16;
        self.ranked.clear();
        self.ranked.resize(usize::from(length).div_ceil(ROWS * LANES), [[f32::INFINITY; LANES]; ROWS]);
        self.ends.clear();
        self.ends.extend(1..=length);
        self.before.clear();
        self.before.extend((0..length).map(|at| at.saturating_sub(1)));
    }

    fn end(&self, at: usize) -> usize {
        self.ends[at].into()
    }

    /// Writes which token a part and the next one make, and gives it as it is written.
    fn rank(&mut self, at: usize, rank: u32) -> f32 {
        let bits = NORMAL | rank << PLACE_BITS | at as u32;
        let ranked = if rank == NONE { f32::INFINITY } else { f32::from_bits(bits) };
        self.ranked[at / (ROWS * LANES)][at / LANES % ROWS][at % LANES] = ranked;
        ranked
    }

    /// The lowest of what is written.
    fn lowest(&self) -> f32 {
        let mut lowest = [[f32::INFINITY; LANES]; ROWS];
        for some in &self.ranked {
            for (lowest, some) in lowest.iter_mut().zip(some) {
                *lowest = lesser(*lowest, *some);
            }
        }
        // By halves: in a row each would wait for the one before.
        let [one, two, three, four] = lowest;
        let [one, two, three, four] = lesser(lesser(one, two), lesser(three, four));
        less(less(one, two), less(three, four))
    }

    /// Joins a part with the next one, and says which one is before it and where it ends now; what it makes with these is
    /// not known then.
    fn join(&mut self, at: usize) -> (Option<usize>, usize) {
        let next = self.end(at);
        let end = self.end(next);
        let before = (at > 0).then(|| self.before[at].into());
        self.ends[at] = end as u16;
        self.rank(next, NONE);
        self.rank(at, NONE);
        if let Some(before) = before {
            self.rank(before, NONE);
        }
        if let Some(before) = self.before.get_mut(end) {
            *before = at as u16;
        }
        (before, end)
    }
}

fn less(one: f32, other: f32) -> f32 {
    if one < other { one } else { other }
}

/// Likewise of each two at the same place: the compiler makes one instruction of it.
fn lesser(one: [f32; LANES], other: [f32; LANES]) -> [f32; LANES] {
    std::array::from_fn(|lane| less(one[lane], other[lane]))
}

/// The part that what is lowest begins with.
fn place(lowest: f32) -> Option<usize> {
    lowest.is_finite().then(|| lowest.to_bits() as usize & (LONGEST - 1))
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
