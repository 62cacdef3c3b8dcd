//! Text of a stream, buffered as received until it is clear whether the gateway must count its tokens.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::{
    json::{
        keys::value_start,
        scan::{for_each_field_from, string_literal_at},
        string_literal::unescape,
    },
    operation::Operation,
};

/// Maximum buffered text. Tokens of longer texts are extrapolated.
const MAX_BUFFERED_BYTES: usize = 8 * 1024;

static DELTA_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"delta\""));
static TEXT_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"text\""));
static ARGUMENTS_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"arguments\""));

/// Concatenated text of the deltas, with its JSON escapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaText {
    is_legacy_completion: bool,
    escaped_text: Vec<u8>,
    overflow_bytes: usize,
}

impl DeltaText {
    pub(crate) fn for_operation(operation: Operation) -> Self {
        // Legacy completions have no deltas: each chunk is a choice with its text.
        Self { is_legacy_completion: operation == Operation::Complete, escaped_text: Vec::new(), overflow_bytes: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.escaped_text.is_empty()
    }

    /// Returns the length of the whole text in bytes, including the part that is not buffered.
    pub fn total_bytes(&self) -> usize {
        self.escaped_text.len() + self.overflow_bytes
    }

    /// Returns the buffered text without JSON escapes.
    pub fn buffered_text(&self) -> String {
        let literal = [b"\"", self.escaped_text.as_slice(), b"\""].concat();
        unescape(&literal).unwrap_or_else(|| String::from_utf8_lossy(&self.escaped_text).into_owned())
    }

    /// Extrapolates the token count of the whole text from `tokens`, the count of the buffered part.
    pub fn extrapolate_tokens(&self, tokens: usize) -> usize {
        tokens * self.total_bytes() / self.escaped_text.len().max(1)
    }

    /// Appends the text in complete events. Quotes within JSON strings are escaped, so a key cannot match inside text.
    pub(crate) fn read_events(&mut self, events: &[u8]) {
        let (key, length) = if self.is_legacy_completion { (&TEXT_KEY, 6) } else { (&DELTA_KEY, 7) };
        for at in key.find_iter(events) {
            match value_start(events, at + length) {
                Some((at, b'"')) => self.append_literal(string_literal_at(events, at)),
                Some((at, b'{')) => self.read_delta_object(events, at),
                _ => (),
            }
        }
    }

    fn read_delta_object(&mut self, events: &[u8], at: usize) {
        // If the JSON is invalid, the fields before the error count.
        let _ = for_each_field_from(events, at, |key, at| {
            let value = &events[at];
            match (key, value.first()) {
                (
                    b"content" | b"text" | b"refusal" | b"reasoning" | b"reasoning_content" | b"thinking"
                    | b"partial_json",
                    Some(b'"'),
                ) => self.append_literal(value),
                (b"tool_calls" | b"function_call", Some(b'[' | b'{')) => self.read_tool_arguments(value),
                _ => (),
            }
            Ok(())
        });
    }

    fn read_tool_arguments(&mut self, calls: &[u8]) {
        for at in ARGUMENTS_KEY.find_iter(calls) {
            if let Some((at, b'"')) = value_start(calls, at + 11) {
                self.append_literal(string_literal_at(calls, at));
            }
        }
    }

    fn append_literal(&mut self, literal: &[u8]) {
        let text = literal.get(1..literal.len().saturating_sub(1)).unwrap_or_default();
        // After an overflow nothing more is buffered; otherwise an escape sequence could lose its second half.
        if self.overflow_bytes == 0 && self.escaped_text.len() + text.len() <= MAX_BUFFERED_BYTES {
            self.escaped_text.extend_from_slice(text);
        } else {
            self.overflow_bytes += text.len();
        }
    }
}
