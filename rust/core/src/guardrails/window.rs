//! Checks of a stream in portions: a part of a text leaves when no match can begin in it that more text could complete.

use std::{collections::HashMap, ops::Range};

use penstock_llm::texts::TextKind;

use super::text_scope::TextScope;

/// Bytes of new text after which a portion is checked.
pub const PORTION_BYTES: usize = 512;
/// Bytes that are held back at least, so that a match is complete before any of it leaves.
pub const OVERLAP_BYTES: usize = 256;

/// What a check found in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowMatch {
    pub range: Range<usize>,
    /// What stands in its place. `None`: the check fails.
    pub replacement: Option<String>,
    /// What was found, for the results; never the text itself.
    pub kind: &'static str,
}

/// Names by which values of one stream are replaced, the same name for the same value.
#[derive(Debug, Default)]
pub struct PlaceholderNames {
    /// End of every name, which tells the names of one check from those of others.
    tag: String,
    names: HashMap<(&'static str, String), String>,
    counts: HashMap<&'static str, usize>,
}

impl PlaceholderNames {
    pub fn with_tag(tag: &str) -> Self {
        Self { tag: tag.to_owned(), ..Self::default() }
    }

    /// Returns the name of a value, such as `{{EMAIL_ADDRESS_1}}`.
    pub fn name_of(&mut self, kind: &'static str, value: &str) -> &str {
        let (counts, tag) = (&mut self.counts, &self.tag);
        self.names.entry((kind, value.to_owned())).or_insert_with(|| {
            let count = counts.entry(kind).or_default();
            *count += 1;
            format!("{{{{{kind}_{count}{tag}}}}}")
        })
    }

    /// Returns all values with their names.
    pub fn into_values(self) -> impl Iterator<Item = (String, String)> {
        self.names.into_iter().map(|((_, value), name)| (name, value))
    }
}

/// A check that can look at a text in portions.
pub trait WindowCheck {
    fn scope(&self) -> TextScope;

    /// Returns true if the check looks at texts of this kind in a response.
    fn includes(&self, kind: TextKind) -> bool {
        self.scope().includes_output(kind)
    }

    /// Returns the length in bytes of the longest match. Without it, the whole text is held.
    fn longest_match(&self) -> usize;

    /// Returns the position before which no match begins that more text could complete.
    fn settled_end(&self, text: &str) -> usize {
        text.len().saturating_sub(self.longest_match().max(OVERLAP_BYTES))
    }

    /// Returns the matches that begin before `settled`, in order and without overlaps.
    fn find(&self, text: &str, settled: usize, names: &mut PlaceholderNames) -> Vec<WindowMatch>;
}
