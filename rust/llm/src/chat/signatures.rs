//! Signatures of calls, kept for callers whose clients do not: who signed a call wants its signature back with it.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// So long they are kept, in milliseconds: a turn that takes longer goes on without.
const LIFE: u64 = 60 * 60 * 1000;
/// One that is longer is not kept.
const LONGEST: usize = 64 * 1024;
/// What one takes besides its letters.
const BESIDE: usize = 256;

/// So many that are not there are asked for elsewhere.
const MOST_MISSED: usize = 64;

/// Hears of each that is kept: whose it is, of which call, and the signature.
pub type Hearing = Box<dyn Fn(u64, &str, &str) + Send + Sync>;

/// Bounded in bytes and in time; the oldest go first.
pub struct Signatures {
    held: Mutex<Held>,
    most: usize,
    hearing: Option<Hearing>,
}

impl fmt::Debug for Signatures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Signatures")
    }
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
        Self { held: Mutex::default(), most: most_bytes, hearing: None }
    }

    /// Likewise, where somebody shares them with others.
    pub fn shared(most_bytes: usize, hearing: Hearing) -> Self {
        Self { hearing: Some(hearing), ..Self::new(most_bytes) }
    }

    /// How many bytes they take.
    pub fn used(&self) -> usize {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }

    /// Whether it was not there.
    fn keep(&self, key: Key, signature: &str, now: u64) -> bool {
        if signature.len() > LONGEST {
            return false;
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // A call is signed once.
        if held.kept.contains_key(&key) {
            return false;
        }
        let end = now.saturating_add(LIFE);
        held.bytes += cost(&key, signature);
        held.kept.insert(key.clone(), (signature.into(), end));
        held.order.push_back((key, end));
        while held.bytes > self.most || held.order.front().is_some_and(|(_, end)| *end < now) {
            held.drop_oldest();
        }
        true
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
    /// Calls whose signatures were looked for and are not here.
    missed: Arc<Mutex<Vec<Box<str>>>>,
}

impl Kept {
    pub fn new(signatures: Arc<Signatures>, owner: u64, now: u64) -> Self {
        Self { signatures, owner, now, missed: Arc::default() }
    }

    /// The calls that had none, while somebody else may have theirs.
    pub fn missed(&self) -> Vec<Box<str>> {
        std::mem::take(&mut *self.missed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes one that somebody else kept.
    pub fn learn(&self, call: &str, signature: &str) {
        self.signatures.keep((self.owner, call.into()), signature, self.now);
    }

    pub(crate) fn keep(&self, call: &str, signature: &str) {
        let is_new = self.signatures.keep((self.owner, call.into()), signature, self.now);
        if let (true, Some(hearing)) = (is_new, &self.signatures.hearing) {
            hearing(self.owner, call, signature);
        }
    }

    pub(crate) fn find(&self, call: &str) -> Option<Box<str>> {
        let found = self.signatures.find(&(self.owner, call.into()), self.now);
        if found.is_none() && self.signatures.hearing.is_some() {
            let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
            if missed.len() < MOST_MISSED {
                missed.push(call.into());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(most: usize) -> Kept {
        Kept::new(Arc::new(Signatures::new(most)), 1, 1000)
    }

    #[test]
    fn who_shares_them_hears_of_new_ones_and_is_asked_for_those_that_are_not_here() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hearing = Arc::clone(&heard);
        let hear = move |owner, call: &str, signature: &str| {
            hearing.lock().unwrap().push((owner, call.to_owned(), signature.to_owned()));
        };
        let kept = Kept::new(Arc::new(Signatures::shared(10_000, Box::new(hear))), 1, 1000);
        kept.keep("call_1", "signed");
        kept.keep("call_1", "signed");
        assert_eq!(*heard.lock().unwrap(), [(1, "call_1".to_owned(), "signed".to_owned())]);
        assert_eq!(
            (kept.find("call_1").is_some(), kept.find("call_2"), kept.missed()),
            (true, None, vec!["call_2".into()])
        );
        // What was learned is nothing new to who told it.
        kept.learn("call_2", "by another");
        assert_eq!((kept.find("call_2").as_deref(), kept.missed().len()), (Some("by another"), 0));
        assert_eq!(heard.lock().unwrap().len(), 1);
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
