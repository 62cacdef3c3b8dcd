//! Reads how a stream ends that is told item by item of one array, as Google's is to who does not ask for events.

/// No key that is looked for is longer.
const LONGEST_KEY: usize = 16;

/// Reads such a stream, in chunks of any size, and keeps nothing of it.
#[derive(Debug, Default)]
pub struct ItemMeter {
    depth: u32,
    /// The beginning of the last string, which is a key if a colon follows.
    text: Vec<u8>,
    place: Place,
    told: bool,
    failed: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Outside,
    InString,
    /// Behind a backslash.
    Escaped,
}

impl ItemMeter {
    /// Takes the next bytes of the stream.
    pub fn feed(&mut self, chunk: &[u8]) {
        for byte in chunk {
            match (self.place, byte) {
                (Place::Outside, byte) => self.step(*byte),
                (Place::InString, b'"') => self.place = Place::Outside,
                (Place::InString, b'\\') => self.place = Place::Escaped,
                (Place::InString, byte) => self.keep(*byte),
                (Place::Escaped, byte) => {
                    self.place = Place::InString;
                    self.keep(*byte);
                }
            }
        }
    }

    /// Whether an item has said how the answer ended, or that it failed.
    pub fn is_told(&self) -> bool {
        self.told || self.failed
    }

    /// Whether an item is an error.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    fn step(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.text.clear();
                self.place = Place::InString;
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b':' => match (self.depth, &self.text[..]) {
                (2, b"error") => self.failed = true,
                // What was refused as a whole says so of the prompt. Of others its ratings may stand there, before the answer.
                (3, b"blockReason") | (4, b"finishReason") => self.told = true,
                _ => (),
            },
            _ => (),
        }
    }

    fn keep(&mut self, byte: u8) {
        if self.text.len() < LONGEST_KEY {
            self.text.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(chunks: &[&[u8]]) -> (bool, bool) {
        let mut meter = ItemMeter::default();
        for chunk in chunks {
            meter.feed(chunk);
        }
        (meter.is_told(), meter.has_failed())
    }

    #[test]
    fn an_answer_has_ended_where_an_item_says_how() {
        for (items, expected) in [
            (r#"[{"candidates":[{"content":{"parts":[{"text":"a"}]}}]},"#, (false, false)),
            (r#"[{"candidates":[{"content":{}}]},{"candidates":[{"finishReason":"STOP"}]}]"#, (true, false)),
            (r#"[{"promptFeedback" : {"blockReason":"SAFETY"}}]"#, (true, false)),
            (
                r#"[{"promptFeedback":{"safetyRatings":[{"blocked":false}]},"candidates":[{"content":{}}]}]"#,
                (false, false),
            ),
            (r#"[{"candidates":[]},{"error":{"code":503}}]"#, (true, true)),
            // What is said within an answer is no word of its end.
            (r#"[{"candidates":[{"content":{"parts":[{"text":"\"finishReason\": {\"error\":"}]}}]}]"#, (false, false)),
            (
                r#"[{"candidates":[{"content":{"parts":[{"functionCall":{"args":{"error":"x","finishReason":1}}}]}}]}]"#,
                (false, false),
            ),
            (r#"[{"candidates":[{"text":"error"}]},{"finishReasons":[1]}]"#, (false, false)),
            ("", (false, false)),
        ] {
            assert_eq!(read(&[items.as_bytes()]), expected, "{items}");
        }
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_the_stream_was_cut(at in 0_usize..80, end in prop::bool::ANY) {
            let last = if end { r#","finishReason":"STOP"}]}]"# } else { "}]}]" };
            let items = [r#"[{"candidates":[{"content":{"parts":[{"text":"a \" \\"}]}"#, last].concat();
            let (one, two) = items.as_bytes().split_at(at.min(items.len()));
            prop_assert_eq!(read(&[one, two]), (end, false));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut meter = ItemMeter::default();
            meter.feed(&bytes);
            prop_assert!(meter.text.len() <= LONGEST_KEY);
        }
    }
}
