//! Checks of a stream in portions. A part of a text is sent when more text cannot complete a match that begins in it.

use std::{collections::HashMap, ops::Range};

use penstock_llm::texts::TextKind;

use super::text_scope::TextScope;

/// Minimum number of bytes of new text that are checked together.
pub const MIN_PORTION_BYTES: usize = 512;
/// Minimum number of bytes that are held back, so that a match is complete before any part of it is sent.
pub const OVERLAP_BYTES: usize = 256;

/// A match of a check in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowMatch {
    pub range: Range<usize>,
    /// Text that replaces the range. `None`: the check fails.
    pub replacement: Option<String>,
    /// Kind of the match for the results; never the text itself.
    pub kind: &'static str,
}

/// Placeholder names that replace the values in one stream. The same value always has the same name.
#[derive(Debug, Default)]
pub struct PlaceholderNames {
    /// Suffix of every name. It distinguishes the names of one check from those of other checks.
    tag: String,
    names: HashMap<(&'static str, String), String>,
    counts: HashMap<&'static str, usize>,
}

impl PlaceholderNames {
    pub fn with_tag(tag: &str) -> Self {
        Self { tag: tag.to_owned(), ..Self::default() }
    }

    /// Returns the placeholder name of a value, such as `{{EMAIL_ADDRESS_1}}`.
    pub fn name_of(&mut self, kind: &'static str, value: &str) -> &str {
        let (counts, tag) = (&mut self.counts, &self.tag);
        self.names.entry((kind, value.to_owned())).or_insert_with(|| {
            let count = counts.entry(kind).or_default();
            *count += 1;
            format!("{{{{{kind}_{count}{tag}}}}}")
        })
    }

    /// Yields all names, each with its value.
    pub fn into_values(self) -> impl Iterator<Item = (String, String)> {
        self.names.into_iter().map(|((_, value), name)| (name, value))
    }
}

/// A check that can examine a text in portions.
pub trait WindowCheck {
    fn scope(&self) -> TextScope;

    /// Returns true if the check examines texts of this kind in a response.
    fn includes(&self, kind: TextKind) -> bool {
        self.scope().includes_output(kind)
    }

    /// Returns the length in bytes of the longest match. By default, that many bytes are held back.
    fn longest_match(&self) -> usize;

    /// Returns the position up to which the text is settled: more text cannot complete a match that begins before it.
    fn settled_end(&self, text: &str) -> usize {
        text.len().saturating_sub(self.longest_match().max(OVERLAP_BYTES))
    }

    /// Returns the matches that begin before `settled`, in order and without overlaps.
    fn find(&self, text: &str, settled: usize, names: &mut PlaceholderNames) -> Vec<WindowMatch>;
}
