//! The text of a stream, kept as it came until it is clear whether somebody has to count it.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::{
    json::scan::{for_each_field_from, string_literal_at, unescape},
    operation::Operation,
    usage::value_start,
};

/// More than this is not kept: what is beyond is counted in proportion.
const MOST: usize = 8 * 1024;

static DELTA: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"delta\""));
static TEXT: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"text\""));
static ARGUMENTS: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"arguments\""));

/// The text of the deltas, one behind the other, with the escapes of their JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deltas {
    is_legacy: bool,
    escaped: Vec<u8>,
    beyond: usize,
}

impl Deltas {
    pub(crate) fn of(operation: Operation) -> Self {
        // Legacy completions have no deltas: each piece is a choice with its text.
        Self { is_legacy: operation == Operation::Complete, escaped: Vec::new(), beyond: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.escaped.is_empty()
    }

    /// How long all of it was, in bytes.
    pub fn length(&self) -> usize {
        self.escaped.len() + self.beyond
    }

    /// What was kept, as a reader sees it.
    pub fn text(&self) -> String {
        let literal = [b"\"", self.escaped.as_slice(), b"\""].concat();
        unescape(&literal).unwrap_or_else(|| String::from_utf8_lossy(&self.escaped).into_owned())
    }

    /// How many tokens there are of all, if there are so many of what was kept.
    pub fn in_proportion(&self, tokens: usize) -> usize {
        tokens * self.length() / self.escaped.len().max(1)
    }

    /// Takes the text out of whole events. Quotes within JSON strings are escaped, so keys are not found in text.
    pub(crate) fn take(&mut self, events: &[u8]) {
        let (key, length) = if self.is_legacy { (&TEXT, 6) } else { (&DELTA, 7) };
        for at in key.find_iter(events) {
            match value_start(events, at + length) {
                Some((at, b'"')) => self.push(string_literal_at(events, at)),
                Some((at, b'{')) => self.take_object(events, at),
                _ => (),
            }
        }
    }

    fn take_object(&mut self, events: &[u8], at: usize) {
        // Of a broken one counts what stands before the fault.
        let _ = for_each_field_from(events, at, |key, at| {
            let value = &events[at];
            match (key, value.first()) {
                (
                    b"content" | b"text" | b"refusal" | b"reasoning" | b"reasoning_content" | b"thinking"
                    | b"partial_json",
                    Some(b'"'),
                ) => self.push(value),
                (b"tool_calls" | b"function_call", Some(b'[' | b'{')) => self.take_arguments(value),
                _ => (),
            }
            Ok(())
        });
    }

    fn take_arguments(&mut self, calls: &[u8]) {
        for at in ARGUMENTS.find_iter(calls) {
            if let Some((at, b'"')) = value_start(calls, at + 11) {
                self.push(string_literal_at(calls, at));
            }
        }
    }

    fn push(&mut self, literal: &[u8]) {
        let text = literal.get(1..literal.len().saturating_sub(1)).unwrap_or_default();
        // Once something was left out everything is, or an escape may lose its second half.
        if self.beyond == 0 && self.escaped.len() + text.len() <= MOST {
            self.escaped.extend_from_slice(text);
        } else {
            self.beyond += text.len();
        }
    }
}
