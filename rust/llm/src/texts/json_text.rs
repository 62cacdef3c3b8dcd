//! Texts that are JSON, such as the arguments of a tool call. Checks read their strings as a client does, without
//! escapes. Only the escapes of quotes and backslashes stay, so that the text can be converted back to JSON.

use std::{borrow::Cow, fmt::Write};

use serde::de::IgnoredAny;

/// Length of the longest escape, which is a surrogate pair.
const MAX_ESCAPE_BYTES: usize = 12;

/// Decodes the escapes of a JSON text that arrives in deltas.
#[derive(Debug, Default)]
pub struct JsonTextDecoder {
    /// True if the text begins like JSON; `None` before its first letter. Other text is not decoded.
    is_json: Option<bool>,
    is_in_string: bool,
    /// Beginning of an escape whose end has not arrived.
    pending: String,
}

/// Result of reading an escape.
enum Escape {
    /// The decoded letter, and the length of the escape in bytes.
    Letter(char, usize),
    /// The escape is not decoded; its length in bytes.
    Undecoded(usize),
    Incomplete,
}

impl JsonTextDecoder {
    pub fn is_json(&self) -> bool {
        self.is_json == Some(true)
    }

    /// Appends the decoded text of a delta. An escape that the delta does not complete is appended with the next delta.
    pub fn decode(&mut self, delta: &str, output: &mut String) {
        if self.is_json.is_none() && !delta.trim_start().is_empty() {
            self.is_json = Some(begins_like_json(delta));
        }
        if !self.is_json() {
            return output.push_str(delta);
        }
        let joined;
        let mut rest = if self.pending.is_empty() {
            delta
        } else {
            joined = std::mem::take(&mut self.pending) + delta;
            &joined
        };
        while let Some(first) = rest.chars().next() {
            let mut length = first.len_utf8();
            match first {
                '\\' if self.is_in_string => match read_escape(rest) {
                    Escape::Letter(letter, bytes) => {
                        output.push(letter);
                        length = bytes;
                    }
                    Escape::Undecoded(bytes) => {
                        output.push_str(&rest[..bytes]);
                        length = bytes;
                    }
                    Escape::Incomplete => return self.pending.push_str(rest),
                },
                '"' => {
                    self.is_in_string = !self.is_in_string;
                    output.push(first);
                }
                // Between two values, a line break is a space like any other.
                '\n' | '\r' | '\t' if !self.is_in_string => output.push(' '),
                _ => {
                    let next = rest[length..].find(['\\', '"', '\n', '\r', '\t']);
                    length = next.map_or(rest.len(), |next| length + next);
                    output.push_str(&rest[..length]);
                }
            }
            rest = &rest[length..];
        }
    }
}

/// Returns true if a text may be JSON with strings.
pub fn begins_like_json(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[', '"'])
}

fn read_escape(text: &str) -> Escape {
    let Some(name) = text[1..].chars().next() else { return Escape::Incomplete };
    let letter = match name {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'b' => '\u{8}',
        'f' => '\u{c}',
        '/' => '/',
        'u' => return read_code_escape(text),
        _ => return Escape::Undecoded(1 + name.len_utf8()),
    };
    Escape::Letter(letter, 2)
}

/// Reads an escape such as `\u00fc`, or the two escapes of a surrogate pair.
fn read_code_escape(text: &str) -> Escape {
    let code_at = |begin: usize| {
        let escape = text.get(begin..begin + 6).filter(|escape| escape.starts_with("\\u"))?;
        let digits = escape[2..].bytes().all(|digit| digit.is_ascii_hexdigit());
        u16::from_str_radix(&escape[2..], 16).ok().filter(|_| digits)
    };
    // Returns true if the text at this position may become an escape when more of it arrives.
    let may_complete = |begin: usize| {
        let escape = &text.as_bytes()[begin.min(text.len())..];
        escape.len() < 6
            && escape.iter().enumerate().all(|(at, byte)| match at {
                0 => *byte == b'\\',
                1 => *byte == b'u',
                _ => byte.is_ascii_hexdigit(),
            })
    };
    let Some(first) = code_at(0) else {
        return if may_complete(0) { Escape::Incomplete } else { Escape::Undecoded(2) };
    };
    let is_high = (0xd800..0xdc00).contains(&first);
    if is_high && text.len() < MAX_ESCAPE_BYTES && may_complete(6) {
        return Escape::Incomplete;
    }
    let second = if is_high { code_at(6) } else { None };
    match char::decode_utf16([first].into_iter().chain(second)).next() {
        Some(Ok('"' | '\\')) => Escape::Undecoded(6),
        Some(Ok(letter)) => Escape::Letter(letter, if second.is_some() { 12 } else { 6 }),
        // Half a surrogate pair does not encode a letter.
        _ => Escape::Undecoded(6),
    }
}

/// Decodes the escapes of a complete JSON text.
pub fn decode_json_text(text: &str) -> Cow<'_, str> {
    if !text.contains(['\\', '\n', '\r', '\t']) {
        return text.into();
    }
    let (mut decoder, mut output) = (JsonTextDecoder::default(), String::with_capacity(text.len()));
    decoder.decode(text, &mut output);
    output.push_str(&decoder.pending);
    output.into()
}

/// Converts a decoded text back to JSON.
pub fn encode_json_text(text: &str) -> Cow<'_, str> {
    if !text.bytes().any(|byte| byte < b' ') {
        return text.into();
    }
    let mut encoded = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            '\n' => encoded.push_str("\\n"),
            '\r' => encoded.push_str("\\r"),
            '\t' => encoded.push_str("\\t"),
            letter if letter < ' ' => {
                // Writing to a string cannot fail.
                let _ = write!(encoded, "\\u{:04x}", u32::from(letter));
            }
            letter => encoded.push(letter),
        }
    }
    encoded.into()
}

/// Encodes a text that a check changed. If only the original text was JSON, the result is an object that contains the
/// changed text as a string.
pub fn encode_changed_text(before: &str, changed: &str) -> String {
    let encoded = encode_json_text(changed);
    if is_json(&encoded) || !is_json(&encode_json_text(before)) {
        return encoded.into_owned();
    }
    serde_json::json!({"text": changed}).to_string()
}

pub fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_decoded_and_written_again() {
        for (json, decoded, again) in [
            (r#"{"a":"\u0043\u00fc\/"}"#, r#"{"a":"Cü/"}"#, r#"{"a":"Cü/"}"#),
            (r#"{"a":"1\n2\t\u0007"}"#, "{\"a\":\"1\n2\t\u{7}\"}", r#"{"a":"1\n2\t\u0007"}"#),
            (
                r#"{"a":"\"\\u0043\u0022\u005c"}"#,
                r#"{"a":"\"\\u0043\u0022\u005c"}"#,
                r#"{"a":"\"\\u0043\u0022\u005c"}"#,
            ),
            (r#"{"a":"\ud83d\ude00 \ud83d"}"#, r#"{"a":"😀 \ud83d"}"#, r#"{"a":"😀 \ud83d"}"#),
            ("{\n\t\"a\": 1\n}", "{  \"a\": 1 }", "{  \"a\": 1 }"),
            (r"C:\users\n", r"C:\users\n", r"C:\users\n"),
        ] {
            assert_eq!(decode_json_text(json), decoded);
            assert_eq!(encode_json_text(decoded), again);
        }
    }

    #[test]
    fn deltas_may_cut_an_escape_anywhere() {
        let text = r#"{"a":"x\u0043\ud83d\ude00\n\\u0043\"y","b":"\u00"#;
        let complete = decode_json_text(text).into_owned();
        for size in 1..20 {
            let (mut decoder, mut output) = (JsonTextDecoder::default(), String::new());
            for delta in text.as_bytes().chunks(size) {
                decoder.decode(std::str::from_utf8(delta).unwrap(), &mut output);
            }
            assert_eq!(output + &decoder.pending, complete, "{size}");
        }
    }

    #[test]
    fn a_changed_text_is_still_json() {
        assert_eq!(encode_changed_text(r#"{"a":"b"}"#, "{\"a\":\"\n\"}"), r#"{"a":"\n"}"#);
        assert_eq!(encode_changed_text(r#"{"a":"b"}"#, r#"{"a":"""}"#), r#"{"text":"{\"a\":\"\"\"}"}"#);
        assert_eq!(encode_changed_text("no json", "changed"), "changed");
    }
}
