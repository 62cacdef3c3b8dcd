//! What a provider could not be told: named to the caller instead of dropped in silence.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::chat::request::{Fields, says_nothing};
use crate::usage::Usage;

/// So many names are told, and how many more there are.
const TOLD: usize = 16;
/// So many are kept.
const MOST: usize = 256;
/// A name that a caller made up may be of any length.
const LONGEST: usize = 64;

/// Names of parameters and parts, each once, in the order in which they were lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lost(Vec<String>);

impl Lost {
    pub fn add(&mut self, name: &str) {
        let is_named = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.[]".contains(&byte);
        let name: String =
            name.bytes().take(LONGEST).map(|byte| if is_named(byte) { byte.into() } else { '_' }).collect();
        if self.0.len() < MOST && !self.0.contains(&name) {
            self.0.push(name);
        }
    }

    /// What nobody took of an object, but for what says nothing.
    pub fn rest(&mut self, of: &str, rest: &Fields) {
        for (key, _) in rest.iter().filter(|(_, value)| !says_nothing(value)) {
            self.add(&format!("{of}.{key}"));
        }
    }

    /// What was lost elsewhere too.
    pub fn join(&mut self, other: &Self) {
        other.0.iter().for_each(|name| self.add(name));
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// As the value of a header.
    pub fn text(&self) -> String {
        let told = self.0[..self.0.len().min(TOLD)].join(", ");
        match self.0.len().saturating_sub(TOLD) {
            0 => told,
            more if self.0.len() == MOST => format!("{told}, and at least {more} more"),
            more => format!("{told}, and {more} more"),
        }
    }
}

/// What of an answer a caller could not be told: found while it is told, read when that is over.
#[derive(Debug, Clone, Default)]
pub struct Unsaid(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    lost: Lost,
    usage: Option<Usage>,
}

impl Unsaid {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is the first of this name.
    pub fn add(&self, name: &str) -> bool {
        let mut held = self.held();
        let before = held.lost.len();
        held.lost.add(name);
        held.lost.len() > before
    }

    /// Notes what it cost, as its provider said it: not every dialect has a word for each of the buckets.
    pub(crate) fn cost(&self, usage: Usage) {
        self.held().usage = Some(usage);
    }

    pub fn usage(&self) -> Option<Usage> {
        self.held().usage
    }

    /// Everything that was lost of a request and its answer; `None` where that is nothing.
    pub fn text(&self, asked: &Lost) -> Option<String> {
        let mut all = asked.clone();
        self.held().lost.0.iter().for_each(|name| all.add(name));
        Some(all.text()).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_told_once_and_cannot_break_a_header() {
        let mut lost = Lost::default();
        for name in ["seed", "seed", "a\r\nx: y", "ä"] {
            lost.add(name);
        }
        assert_eq!(lost.text(), "seed, a__x__y, __");
        (0..99).for_each(|n| lost.add(&n.to_string()));
        assert!(lost.text().ends_with(", 12, and 86 more"), "{}", lost.text());
        (0..999).for_each(|n| lost.add(&n.to_string()));
        assert!(lost.text().ends_with(", 12, and at least 240 more"), "{}", lost.text());
        assert_eq!(lost.len(), MOST);
    }
}
