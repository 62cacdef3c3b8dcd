//! Generated text of a response, buffered until the provider reports usage. If it reports none, the tokens of this text
//! are counted.

/// Maximum buffered text in bytes. Tokens of longer texts are extrapolated.
const MAX_BUFFERED_BYTES: usize = 8 * 1024;

/// Beginning of the generated text, and the length of the rest.
#[derive(Debug, Default)]
pub struct GeneratedText {
    prefix: String,
    overflow_bytes: usize,
}

impl GeneratedText {
    /// Appends text.
    pub fn push_text(&mut self, text: &str) {
        // After an overflow nothing is appended, so that the buffer remains a prefix of the text.
        let free_bytes = if self.overflow_bytes > 0 { 0 } else { MAX_BUFFERED_BYTES.saturating_sub(self.prefix.len()) };
        let end = (0..=free_bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        self.prefix.push_str(&text[..end]);
        self.overflow_bytes += text.len() - end;
    }

    /// Returns the number of tokens, extrapolated from the tokens of the buffered beginning. `count_tokens` counts
    /// these.
    pub fn count_tokens(&self, count_tokens: impl FnOnce(&str) -> usize) -> usize {
        let total_bytes = self.prefix.len() + self.overflow_bytes;
        count_tokens(&self.prefix) * total_bytes / self.prefix.len().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_extrapolated_from_their_beginning() {
        let mut text = GeneratedText::default();
        assert_eq!(text.count_tokens(str::len), 0);
        text.push_text("ab");
        assert_eq!(text.count_tokens(str::len), 2);
        text.push_text(&"ä".repeat(MAX_BUFFERED_BYTES));
        text.push_text("c");
        assert_eq!(text.prefix.len(), MAX_BUFFERED_BYTES);
        assert_eq!(text.count_tokens(|text| text.len() / 4), (2 + 2 * MAX_BUFFERED_BYTES + 1) / 4);
    }
}
