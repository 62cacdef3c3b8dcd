//! Splits a text into its JSON objects, and completes an object whose end was cut off. So the masks of secrets read a
//! recorded body that was cut as they read a complete one.

use memchr::{memchr, memchr2, memmem};

/// Part of a text.
pub(super) enum TextPart<'t> {
    /// Text that is in no object, such as the brackets of a list.
    Between(&'t [u8]),
    /// Text from an opening brace to the closing brace that belongs to it.
    Object(&'t [u8]),
    CutObject(CutObject<'t>),
}

impl<'t> TextPart<'t> {
    pub(super) fn text(&self) -> &'t [u8] {
        match self {
            Self::Between(text) | Self::Object(text) => text,
            Self::CutObject(object) => object.text,
        }
    }
}

/// Object at the end of a text, whose own end is missing.
pub(super) struct CutObject<'t> {
    pub(super) text: &'t [u8],
    /// Length of the part that `closers` complete. What follows is not complete enough: a key, or a part of a word.
    used_bytes: usize,
    /// Offset of the last string, if it is a value that was cut.
    pub(super) cut_string: Option<usize>,
    /// Closing quotation mark and brackets that are missing.
    closers: Vec<u8>,
}

impl CutObject<'_> {
    /// Returns the object with its missing end.
    pub(super) fn complete(&self) -> Vec<u8> {
        [&self.text[..self.used_bytes], &self.closers].concat()
    }

    /// Returns the object with its missing end, and this text as the content of the string that was cut.
    pub(super) fn complete_with(&self, cut_string: usize, content: &[u8]) -> Vec<u8> {
        [&self.text[..=cut_string], content, &self.closers].concat()
    }

    /// Removes the end that was added to the completed object, and appends the rest of the text.
    pub(super) fn cut_again(&self, mut completed: Vec<u8>) -> Vec<u8> {
        if completed.ends_with(&self.closers) {
            completed.truncate(completed.len() - self.closers.len());
        }
        // A cut string leaves only an incomplete character or escape sequence, which is dropped.
        if self.cut_string.is_none() {
            completed.extend_from_slice(&self.text[self.used_bytes..]);
        }
        completed
    }

    /// Returns true if the last string was cut, and may be a URL or JSON. Its secrets cannot be found without its end.
    pub(super) fn ends_in_structured_string(&self) -> bool {
        let Some(start) = self.cut_string else { return false };
        let content = &self.text[start + 1..self.used_bytes];
        let has = |part: &[u8]| memmem::find(content, part).is_some();
        matches!(content.trim_ascii_start().first(), Some(b'{' | b'[')) || has(b"://") || has(b":\\/\\/")
    }
}

/// Splits a text into its objects and the text between them. An object within another one is a part of it.
pub(super) fn split_objects(text: &[u8]) -> impl Iterator<Item = TextPart<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let start = memchr(b'{', rest).unwrap_or(rest.len());
        let (part, length) = match (start, rest) {
            (_, []) => return None,
            (0, _) => match scan_object(rest) {
                Ok(length) => (TextPart::Object(&rest[..length]), length),
                Err(object) => (TextPart::CutObject(object), rest.len()),
            },
            _ => (TextPart::Between(&rest[..start]), start),
        };
        rest = &rest[length..];
        Some(part)
    })
}

/// Returns the length of the object with which the text begins, and an error if it was cut. Finds only its end: the
/// object may be invalid.
fn scan_object(text: &[u8]) -> Result<usize, CutObject<'_>> {
    let mut closers = Vec::new();
    // Offset up to which the object needs only `closers` to be complete.
    let mut used_bytes = 0;
    let mut is_key = false;
    let mut at = 0;
    let cut = |used_bytes, cut_string: Option<usize>, mut closers: Vec<u8>| {
        closers.extend(cut_string.map(|_| b'"'));
        closers.reverse();
        CutObject { text, used_bytes, cut_string, closers }
    };
    while let Some(byte) = text.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'{' | b'[' => {
                is_key = *byte == b'{';
                closers.push(if is_key { b'}' } else { b']' });
                used_bytes = at;
            }
            b'}' | b']' => {
                closers.pop();
                if closers.is_empty() {
                    return Ok(at);
                }
                (used_bytes, is_key) = (at, false);
            }
            b',' => is_key = closers.last() == Some(&b'}'),
            b':' | b' ' | b'\t' | b'\r' | b'\n' => (),
            b'"' => match find_string_end(text, at) {
                Some(end) => {
                    at = end;
                    (used_bytes, is_key) = (if is_key { used_bytes } else { end }, false);
                }
                None if is_key => break,
                None => return Err(cut(at + complete_chars(&text[at..]), Some(start), closers)),
            },
            // A number, `true`, `false` or `null`.
            _ => {
                let length = text[at..].iter().position(|byte| b",:{}[]\" \t\r\n".contains(byte));
                at = length.map_or(text.len(), |length| at + length);
                let word = if length.is_some() { &text[start..at] } else { cut_number(&text[start..]) };
                if !is_key && !word.is_empty() {
                    used_bytes = start + word.len();
                }
            }
        }
    }
    Err(cut(used_bytes, None, closers))
}

/// Returns the offset after the closing quotation mark of a string whose content begins at `at`; `None` if it has none.
pub(super) fn find_string_end(text: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// Returns the beginning of a cut number that is a number itself; empty if there is none.
fn cut_number(word: &[u8]) -> &[u8] {
    let length = word.iter().rposition(u8::is_ascii_digit).map_or(0, |last| last + 1);
    if matches!(word[0], b'-' | b'0'..=b'9') { &word[..length] } else { &[] }
}

/// Length in bytes of `\u` and four digits.
const UNICODE_ESCAPE_BYTES: usize = 6;

/// Returns the length of a string's content without a character or escape sequence at its end that was cut.
fn complete_chars(content: &[u8]) -> usize {
    let mut at = 0;
    while let Some(next) = content.get(at..).and_then(|rest| memchr(b'\\', rest)) {
        let escape = &content[at + next..];
        let length = match escape.get(1..4) {
            // The first half of a character that is written as two escape sequences.
            Some([b'u', b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B'])
                if escape.len() <= UNICODE_ESCAPE_BYTES || escape[UNICODE_ESCAPE_BYTES] == b'\\' =>
            {
                2 * UNICODE_ESCAPE_BYTES
            }
            _ if escape.get(1) == Some(&b'u') => UNICODE_ESCAPE_BYTES,
            _ => 2,
        };
        if length > escape.len() {
            return at + next;
        }
        at += next + length;
    }
    // The end of the content may be the beginning of a character of several bytes.
    let cut = (1..=content.len().min(3)).find(|back| match content[content.len() - back] {
        0xC0..=0xDF => *back < 2,
        0xE0..=0xEF => *back < 3,
        0xF0..=0xFF => *back < 4,
        _ => false,
    });
    content.len() - cut.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn complete(text: &str) -> Option<String> {
        match split_objects(text.as_bytes()).last()? {
            TextPart::CutObject(object) => Some(String::from_utf8(object.complete()).unwrap()),
            _ => None,
        }
    }

    #[test]
    fn completes_objects_at_any_place() {
        for (text, completed) in [
            ("{", "{}"),
            (r#"{"a"#, "{}"),
            (r#"{"a":"#, "{}"),
            (r#"{"a":1,"#, r#"{"a":1}"#),
            (r#"{"a":1,"b"#, r#"{"a":1}"#),
            (r#"{"a":12"#, r#"{"a":12}"#),
            (r#"{"a":12."#, r#"{"a":12}"#),
            (r#"{"a":-"#, "{}"),
            (r#"{"a":tru"#, "{}"),
            (r#"{"a":true,"b":["x","y"#, r#"{"a":true,"b":["x","y"]}"#),
            (r#"{"a":[{"b":"x\"#, r#"{"a":[{"b":"x"}]}"#),
            (r#"{"a":"x\u004"#, r#"{"a":"x"}"#),
            (r#"{"a":"x\ud83d"#, r#"{"a":"x"}"#),
            (r#"{"a":"x\ud83d\ude0"#, r#"{"a":"x"}"#),
            (r#"{"a":"x\ud83d\ude00\\"#, r#"{"a":"x\ud83d\ude00\\"}"#),
            (r#"[{"a":1},{"b":"}"#, r#"{"b":"}"}"#),
        ] {
            assert_eq!(complete(text).as_deref(), Some(completed), "{text}");
        }
        assert_eq!(complete(r#"[{"a":1},{"b":"}"}]"#), None);
    }

    proptest! {
        #[test]
        fn every_cut_of_an_object_can_be_completed(texts in proptest::collection::vec(".{0,12}", 1..4), number: f64) {
            let value = serde_json::json!({"texts": texts, "a": [{"n": number, "b": [true, null, {"é": {}}]}]});
            let text = serde_json::to_vec_pretty(&value).unwrap();
            for end in 1..text.len() {
                let Some(TextPart::CutObject(object)) = split_objects(&text[..end]).last() else { panic!("{end}") };
                let completed = object.complete();
                prop_assert!(serde_json::from_slice::<Value>(&completed).is_ok(), "{}", String::from_utf8_lossy(&completed));
                let again = object.cut_again(completed);
                prop_assert!(text[..end].starts_with(&again) && end - again.len() <= 2 * UNICODE_ESCAPE_BYTES);
            }
        }
    }
}
