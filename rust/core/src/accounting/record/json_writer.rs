//! Compact JSON writer that appends members directly to a byte buffer. Every request writes a record, and a general
//! serialiser would dominate that cost.

use std::time::Duration;

use penstock_llm::timestamp;
use serde::Serialize;

/// Writer of the members of one JSON object.
pub struct ObjectWriter<'o>(&'o mut Vec<u8>);

/// Writes one JSON object, whose members the closure writes.
pub fn write_object(out: &mut Vec<u8>, members: impl FnOnce(&mut ObjectWriter<'_>)) {
    out.push(b'{');
    members(&mut ObjectWriter(out));
    out.push(b'}');
}

#[allow(clippy::inline_always, reason = "inlining turns keys that are known at compile time into constant copies")]
impl ObjectWriter<'_> {
    #[inline(always)]
    pub fn text(&mut self, key: &str, value: &str) {
        write_string(self.write_key(key), value.as_bytes());
    }

    /// Writes a string member, or nothing if there is no value.
    #[inline(always)]
    pub fn optional_text(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(key, value);
        }
    }

    /// Writes a key and a string value from bytes. Invalid UTF-8 is replaced by U+FFFD.
    pub fn bytes(&mut self, key: &[u8], value: &[u8]) {
        self.write_separator();
        write_string(self.0, key);
        self.0.push(b':');
        write_string(self.0, value);
    }

    #[inline(always)]
    pub fn number(&mut self, key: &str, value: impl itoa::Integer) {
        let mut digits = itoa::Buffer::new();
        self.write_key(key).extend_from_slice(digits.format(value).as_bytes());
    }

    #[inline(always)]
    pub fn boolean(&mut self, key: &str, value: bool) {
        self.write_key(key).extend_from_slice(if value { b"true" } else { b"false" });
    }

    pub fn null(&mut self, key: &str) {
        self.write_key(key).extend_from_slice(b"null");
    }

    /// Writes an RFC 3339 timestamp with milliseconds.
    pub fn timestamp(&mut self, key: &str, since_epoch: Duration) {
        write_unescaped_string(self.write_key(key), &timestamp::format_rfc3339_millis(since_epoch));
    }

    /// Writes a duration in milliseconds with one to three decimal places.
    pub fn milliseconds(&mut self, key: &str, duration: Duration) {
        let micros = duration.as_micros() as u64;
        self.number(key, micros / 1000);
        let (mut fraction, mut digits) = (micros % 1000, 3);
        while digits > 1 && fraction.is_multiple_of(10) {
            fraction /= 10;
            digits -= 1;
        }
        let mut letters = itoa::Buffer::new();
        let letters = letters.format(fraction).as_bytes();
        self.0.push(b'.');
        self.0.extend_from_slice(&b"00"[..digits - letters.len()]);
        self.0.extend_from_slice(letters);
    }

    pub fn object(&mut self, key: &str, members: impl FnOnce(&mut ObjectWriter<'_>)) {
        write_object(self.write_key(key), members);
    }

    /// Writes an array. `write` writes each item.
    pub fn list<T>(&mut self, key: &str, items: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
        let out = self.write_key(key);
        out.push(b'[');
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            write(out, item);
        }
        out.push(b']');
    }

    /// Writes a value with the general serialiser. Slower; for rare members only.
    pub fn serialize_value(&mut self, key: &str, value: &impl Serialize) {
        drop(serde_json::to_writer(self.write_key(key), value));
    }

    /// Writes a value with the general serialiser, unless its JSON is longer than `max_bytes`. Returns true if it was
    /// written.
    pub fn serialize_if_short(&mut self, key: &str, value: &impl Serialize, max_bytes: usize) -> bool {
        let member_start = self.0.len();
        let value_start = self.write_key(key).len();
        let is_short = serde_json::to_writer(&mut *self.0, value).is_ok() && self.0.len() - value_start <= max_bytes;
        if !is_short {
            self.0.truncate(member_start);
        }
        is_short
    }

    /// Writes a key. `key` must not need escaping.
    #[inline(always)]
    fn write_key(&mut self, key: &str) -> &mut Vec<u8> {
        self.write_separator();
        self.0.push(b'"');
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"\":");
        self.0
    }

    fn write_separator(&mut self) {
        // No complete value ends with `{`, so this is the first member.
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
    }
}

fn write_string(out: &mut Vec<u8>, text: &[u8]) {
    if is_plain_ascii(text) {
        write_unescaped_string(out, text);
    } else {
        drop(serde_json::to_writer(out, &String::from_utf8_lossy(text)));
    }
}

fn write_unescaped_string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    out.extend_from_slice(text);
    out.push(b'"');
}

/// Returns true if the text is ASCII and needs no escaping.
fn is_plain_ascii(text: &[u8]) -> bool {
    let (words, rest) = text.as_chunks::<8>();
    match text.last_chunk::<8>() {
        Some(last) => words.iter().chain([last]).all(|word| special_byte_mask(u64::from_le_bytes(*word)) == 0),
        None => rest.iter().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')),
    }
}

/// Returns a non-zero value if any of the eight bytes is a quote, a backslash, a control character or not ASCII.
fn special_byte_mask(word: u64) -> u64 {
    const LOW_BITS: u64 = u64::from_le_bytes([1; 8]);
    const HIGH_BITS: u64 = u64::from_le_bytes([0x80; 8]);
    let quotes = (word ^ u64::from_le_bytes([b'"'; 8])).wrapping_sub(LOW_BITS);
    let backslashes = (word ^ u64::from_le_bytes([b'\\'; 8])).wrapping_sub(LOW_BITS);
    let controls = word.wrapping_sub(u64::from_le_bytes([b' '; 8]));
    (quotes | backslashes | controls | word) & HIGH_BITS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn write_to_string(members: impl FnOnce(&mut ObjectWriter<'_>)) -> String {
        let mut out = Vec::new();
        write_object(&mut out, members);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn writes_members_in_order() {
        let text = write_to_string(|line| {
            line.text("text", "a \"b\"");
            line.object("none", |_| ());
            line.object("inner", |inner| inner.number("small", -1));
            line.boolean("is", true);
            line.null("nothing");
            line.timestamp("at", Duration::from_millis(1500));
            line.list("objects", &[1, 2], |out, n| write_object(out, |inner| inner.number("n", *n)));
            line.serialize_value("list", &[1, 2]);
        });
        let expected = concat!(
            r#"{"text":"a \"b\"","none":{},"inner":{"small":-1},"is":true,"nothing":null,"#,
            r#""at":"1970-01-01T00:00:01.500Z","objects":[{"n":1},{"n":2}],"list":[1,2]}"#
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn durations_always_have_a_decimal_point() {
        let rendered = |micros| write_to_string(|line| line.milliseconds("t", Duration::from_micros(micros)));
        for (micros, text) in
            [(0, "0.0"), (7, "0.007"), (1000, "1.0"), (1050, "1.05"), (12_345, "12.345"), (100, "0.1")]
        {
            assert_eq!(rendered(micros), format!("{{\"t\":{text}}}"));
        }
    }

    proptest! {
        #[test]
        fn reads_back_written_json(key in any::<Vec<u8>>(), value in any::<Vec<u8>>(), text in any::<String>()) {
            let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let read: Value = serde_json::from_str(&write_to_string(|line| {
                line.bytes(&key, &value);
                line.object("inner", |inner| inner.text("text", &text));
            })).unwrap();
            prop_assert_eq!(&read["inner"]["text"], &json!(text));
            prop_assume!(key != b"inner");
            prop_assert_eq!(&read[text_of(&key)], &json!(text_of(&value)));
        }

        #[test]
        fn times_are_what_a_general_serialiser_writes(micros in 0..1u64 << 50) {
            let read: Value = serde_json::from_str(&write_to_string(|line| line.milliseconds("t", Duration::from_micros(micros)))).unwrap();
            prop_assert_eq!(&read["t"], &json!(micros as f64 / 1000.0));
        }
    }
}
