//! Detects how a stream of one JSON array ends. The array has an item per chunk, as in Google's streams without SSE.

/// Maximum length of a key that the meter looks for.
const MAX_KEY_BYTES: usize = 16;

/// Reads a stream of any chunk size without buffering it.
#[derive(Debug, Default)]
pub struct ItemMeter {
    depth: u32,
    /// Beginning of the last string, which is a key if a colon follows.
    string_prefix: Vec<u8>,
    lexer_state: LexerState,
    /// True after the first key of an item.
    has_items: bool,
    has_end_reason: bool,
    has_error_item: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum LexerState {
    #[default]
    OutsideString,
    InString,
    /// After a backslash.
    AfterBackslash,
}

impl ItemMeter {
    /// Reads the next bytes of the stream.
    pub fn feed(&mut self, chunk: &[u8]) {
        for byte in chunk {
            match (self.lexer_state, byte) {
                (LexerState::OutsideString, byte) => self.read_outside_string(*byte),
                (LexerState::InString, b'"') => self.lexer_state = LexerState::OutsideString,
                (LexerState::InString, b'\\') => self.lexer_state = LexerState::AfterBackslash,
                (LexerState::InString, byte) => self.append_to_string_prefix(*byte),
                (LexerState::AfterBackslash, byte) => {
                    self.lexer_state = LexerState::InString;
                    self.append_to_string_prefix(*byte);
                }
            }
        }
    }

    /// Returns true if an item has begun.
    pub fn has_items(&self) -> bool {
        self.has_items
    }

    /// Returns true if an item has a finish reason or is an error.
    pub fn has_ended(&self) -> bool {
        self.has_end_reason || self.has_error_item
    }

    /// Returns true if an item is an error.
    pub fn has_failed(&self) -> bool {
        self.has_error_item
    }

    fn read_outside_string(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.string_prefix.clear();
                self.lexer_state = LexerState::InString;
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b':' => self.read_key(),
            _ => (),
        }
    }

    /// Reads a key, which ends here.
    fn read_key(&mut self) {
        self.has_items = true;
        match (self.depth, &self.string_prefix[..]) {
            (2, b"error") => self.has_error_item = true,
            // A rejected prompt has a `blockReason`. Other streams may have safety ratings of the prompt there, before
            // the response.
            (3, b"blockReason") | (4, b"finishReason") => self.has_end_reason = true,
            _ => (),
        }
    }

    fn append_to_string_prefix(&mut self, byte: u8) {
        if self.string_prefix.len() < MAX_KEY_BYTES {
            self.string_prefix.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn meter_chunks(chunks: &[&[u8]]) -> (bool, bool) {
        let mut meter = ItemMeter::default();
        for chunk in chunks {
            meter.feed(chunk);
        }
        (meter.has_ended(), meter.has_failed())
    }

    #[test]
    fn detects_the_item_that_ends_the_response() {
        for (items, expected) in [
            (r#"[{"candidates":[{"content":{"parts":[{"text":"a"}]}}]},"#, (false, false)),
            (r#"[{"candidates":[{"content":{}}]},{"candidates":[{"finishReason":"STOP"}]}]"#, (true, false)),
            (r#"[{"promptFeedback" : {"blockReason":"SAFETY"}}]"#, (true, false)),
            (
                r#"[{"promptFeedback":{"safetyRatings":[{"blocked":false}]},"candidates":[{"content":{}}]}]"#,
                (false, false),
            ),
            (r#"[{"candidates":[]},{"error":{"code":503}}]"#, (true, true)),
            // Text inside the response does not end it.
            (r#"[{"candidates":[{"content":{"parts":[{"text":"\"finishReason\": {\"error\":"}]}}]}]"#, (false, false)),
            (
                r#"[{"candidates":[{"content":{"parts":[{"functionCall":{"args":{"error":"x","finishReason":1}}}]}}]}]"#,
                (false, false),
            ),
            (r#"[{"candidates":[{"text":"error"}]},{"finishReasons":[1]}]"#, (false, false)),
            ("", (false, false)),
        ] {
            assert_eq!(meter_chunks(&[items.as_bytes()]), expected, "{items}");
        }
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_the_stream_was_cut(at in 0_usize..80, end in prop::bool::ANY) {
            let last = if end { r#","finishReason":"STOP"}]}]"# } else { "}]}]" };
            let items = [r#"[{"candidates":[{"content":{"parts":[{"text":"a \" \\"}]}"#, last].concat();
            let (one, two) = items.as_bytes().split_at(at.min(items.len()));
            prop_assert_eq!(meter_chunks(&[one, two]), (end, false));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut meter = ItemMeter::default();
            meter.feed(&bytes);
            prop_assert!(meter.string_prefix.len() <= MAX_KEY_BYTES);
        }
    }
}
