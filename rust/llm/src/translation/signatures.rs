//! Signatures of calls, kept for callers whose clients do not: who signed a call wants its signature back with it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

/// So long they are kept, in milliseconds: a turn that takes longer goes on without.
const LIFE: u64 = 60 * 60 * 1000;
/// One that is longer is not kept.
const LONGEST: usize = 64 * 1024;
/// What one takes besides its letters.
const BESIDE: usize = 256;

/// Bounded in bytes and in time; the oldest go first.
#[derive(Debug)]
pub struct Signatures {
    held: Mutex<Held>,
    most: usize,
}

type Key = (u64, Box<str>);

#[derive(Debug, Default)]
struct Held {
    kept: HashMap<Key, (Box<str>, u64)>,
    /// In the order in which they end.
    order: VecDeque<(Key, u64)>,
    bytes: usize,
}

impl Signatures {
    pub fn new(most_bytes: usize) -> Self {
        Self { held: Mutex::default(), most: most_bytes }
    }

    /// How many bytes they take.
    pub fn used(&self) -> usize {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }

    fn keep(&self, key: Key, signature: &str, now: u64) {
        if signature.len() > LONGEST {
            return;
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // A call is signed once.
        if held.kept.contains_key(&key) {
            return;
        }
        let end = now.saturating_add(LIFE);
        held.bytes += cost(&key, signature);
        held.kept.insert(key.clone(), (signature.into(), end));
        held.order.push_back((key, end));
        while held.bytes > self.most || held.order.front().is_some_and(|(_, end)| *end < now) {
            held.drop_oldest();
        }
    }

    fn find(&self, key: &Key, now: u64) -> Option<Box<str>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.kept.get(key).filter(|(_, end)| *end >= now).map(|(signature, _)| signature.clone())
    }
}

impl Held {
    fn drop_oldest(&mut self) {
        let oldest = self.order.pop_front().map(|(key, _)| key);
        let dropped = oldest.and_then(|key| self.kept.remove(&key).map(|(signature, _)| cost(&key, &signature)));
        self.bytes -= dropped.unwrap_or_default();
    }
}

fn cost(key: &Key, signature: &str) -> usize {
    // The key stands in both lists.
    BESIDE + 2 * key.1.len() + signature.len()
}

/// What is kept for one caller of one model at one provider: no other finds it.
#[derive(Debug, Clone)]
pub struct Kept {
    pub signatures: Arc<Signatures>,
    /// Stands for the three.
    pub owner: u64,
    /// In milliseconds since 1970.
    pub now: u64,
}

impl Kept {
    pub(super) fn keep(&self, call: &str, signature: &str) {
        self.signatures.keep((self.owner, call.into()), signature, self.now);
    }

    pub(super) fn find(&self, call: &str) -> Option<Box<str>> {
        self.signatures.find(&(self.owner, call.into()), self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(most: usize) -> Kept {
        Kept { signatures: Arc::new(Signatures::new(most)), owner: 1, now: 1000 }
    }

    #[test]
    fn a_signature_is_found_by_its_owner_until_it_ends() {
        let kept = kept(10_000);
        kept.keep("call_1", "signed");
        let find = |owner, now| Kept { owner, now, ..kept.clone() }.find("call_1");
        assert_eq!((find(1, 1000).as_deref(), kept.find("call_2")), (Some("signed"), None));
        assert_eq!((find(2, 1000), find(1, 1000 + LIFE).is_some(), find(1, 1001 + LIFE)), (None, true, None));
        // What is over goes when something comes.
        Kept { now: 2000 + LIFE, ..kept.clone() }.keep("call_3", "s");
        assert_eq!(kept.signatures.used(), cost(&(1, "call_3".into()), "s"));
    }

    #[test]
    fn the_oldest_go_where_there_is_no_room_and_very_long_ones_are_not_kept() {
        let kept = kept(1000);
        for call in ["a", "b", "c", "a", "d", "e"] {
            kept.keep(call, "signed");
            assert!(kept.signatures.used() <= 1000);
        }
        let there: Vec<_> = ["a", "b", "c", "d", "e"].into_iter().filter(|call| kept.find(call).is_some()).collect();
        assert_eq!(there, ["c", "d", "e"]);
        kept.keep("f", &"x".repeat(LONGEST + 1));
        assert!(kept.find("f").is_none() && kept.find("d").is_some());
    }
}
