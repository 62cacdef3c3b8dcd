//! Inline data of recorded bodies: long base64 strings in JSON, such as images, audio and files. Logs show their size
//! and digest instead, because the data itself is large and nobody reads it as text.

use std::ops::Range;

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use bytes::Bytes;
use sha2::{Digest, Sha256};

/// Minimum length of a base64 text that is replaced, in characters.
pub const MIN_INLINE_CHARS: usize = 4096;
/// Maximum length of the beginning of a data URL, such as `data:image/png;base64,`.
const MAX_URL_PREFIX_BYTES: usize = 200;
/// Characters that are decoded at once. A multiple of four, so that each block can be decoded alone.
const BLOCK_CHARS: usize = 4096;

const DECODER: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Replaces long base64 in a JSON body, or in the events of a stream, by text such as `[base64 image/png, 123456 bytes,
/// sha256 …]`. Returns `None` if the body has no long base64. Takes linear time.
///
/// Base64 is replaced if it is in a data URL, or if it is a complete JSON string.
pub fn replace_inline_data(body: &[u8]) -> Option<Vec<u8>> {
    let (mut replaced, mut copied, mut from) = (Vec::new(), 0, 0);
    while let Some(run) = find_long_run(body, from) {
        from = run.end;
        if let Some(data) = InlineData::parse(body, run) {
            replaced.extend_from_slice(&body[copied..data.range.start]);
            replaced.extend_from_slice(data.describe().as_bytes());
            copied = data.range.end;
        }
    }
    (copied > 0).then(|| {
        replaced.extend_from_slice(&body[copied..]);
        replaced
    })
}

/// Returns true for characters of base64 in both alphabets, and for the backslash, with which JSON may escape them.
fn is_run_char(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=' | b'\\')
}

/// Finds the next run of at least `MIN_INLINE_CHARS` characters for which `is_run_char` is true. Scans each window
/// backwards, so that most of a body without base64 is skipped.
fn find_long_run(body: &[u8], from: usize) -> Option<Range<usize>> {
    // All bytes from `start` to `checked` are in the run.
    let (mut start, mut checked) = (from, from);
    loop {
        let end = start + MIN_INLINE_CHARS;
        let unchecked = body.get(checked..end)?;
        if let Some(position) = unchecked.iter().rposition(|byte| !is_run_char(*byte)) {
            (start, checked) = (checked + position + 1, end);
        } else {
            let rest = &body[end..];
            let more = rest.iter().position(|byte| !is_run_char(*byte)).unwrap_or(rest.len());
            return Some(start..end + more);
        }
    }
}

/// Base64 data in a body.
struct InlineData {
    /// Position in the body, including the beginning of the data URL.
    range: Range<usize>,
    media_type: Option<String>,
    bytes: usize,
    /// SHA-256 digest of the decoded data; `None` if the body ends within the data.
    digest: Option<[u8; 32]>,
}

impl InlineData {
    /// Parses a run of base64 characters. Returns `None` if the run is not inline data.
    fn parse(body: &[u8], run: Range<usize>) -> Option<Self> {
        let before = &body[..run.start];
        let url = parse_url_prefix(before);
        if url.is_none() && before.last() != Some(&b'"') {
            return None;
        }
        let (decoded, length) = decode(&body[run.clone()])?;
        let end = run.start + length;
        let is_ended = match (&url, &body[end..]) {
            (_, []) => false,
            // The rest is percent-encoded, so only a part of the data was decoded.
            (Some(_), [b'%', ..]) => return None,
            (Some(_), _) | (None, [b'"', ..] | [b'\\', b'"', ..]) => true,
            (None, _) => return None,
        };
        // A single character after the last group of four cannot encode a byte.
        if decoded.chars < MIN_INLINE_CHARS || (is_ended && decoded.chars % 4 == 1) {
            return None;
        }
        let (start, media_type) = url.map_or((run.start, None), |(start, media_type)| (start, Some(media_type)));
        let digest = is_ended.then(|| decoded.hasher.finalize().into());
        Some(Self { range: start..end, media_type, bytes: decoded.bytes, digest })
    }

    fn describe(&self) -> String {
        let media_type = self.media_type.as_deref().map_or_else(String::new, |media_type| format!(" {media_type}"));
        let Some(digest) = self.digest else {
            return format!("[base64{media_type}, at least {} bytes]", self.bytes);
        };
        format!("[base64{media_type}, {} bytes, sha256 {}]", self.bytes, to_hex(&digest))
    }
}

fn to_hex(digest: &[u8]) -> String {
    format!("{:x}", Bytes::copy_from_slice(digest))
}

/// Parses the beginning of a data URL at the end of `before`. Returns its position and the media type, or `None` if
/// `before` does not end with a data URL.
fn parse_url_prefix(before: &[u8]) -> Option<(usize, String)> {
    let head = before.strip_suffix(b";base64,")?;
    let from = head.len().saturating_sub(MAX_URL_PREFIX_BYTES);
    let at = head[from..].windows(5).rposition(|window| window.eq_ignore_ascii_case(b"data:"))? + from;
    // A slash may be escaped. Parameters such as a character set may follow the type.
    let kind = str::from_utf8(&head[at + 5..]).ok()?.replace('\\', "");
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "/+-._;=".contains(character);
    kind.chars().all(is_plain).then(|| (at, kind.split(';').next().unwrap_or_default().to_owned()))
}

/// Result of decoding base64.
struct Decoded {
    hasher: Sha256,
    /// Number of characters that encode data, without padding and line breaks.
    chars: usize,
    /// Number of decoded bytes.
    bytes: usize,
}

/// Decodes the base64 at the start of `text`, up to the first character that cannot be part of it. Also returns the
/// length of the base64 in `text`. Returns `None` if the base64 is invalid.
fn decode(text: &[u8]) -> Option<(Decoded, usize)> {
    let mut decoded = Decoded { hasher: Sha256::new(), chars: 0, bytes: 0 };
    let (mut block, mut used) = ([0; BLOCK_CHARS], 0);
    let (mut at, mut padding) = (0, 0);
    while let Some((character, length)) = next_char(&text[at..]) {
        match character {
            Some(b'=') => padding += 1,
            // Data after the padding is invalid.
            Some(_) if padding > 0 => return None,
            Some(byte) => {
                block[used] = byte;
                used += 1;
            }
            // An escaped line break encodes no data.
            None => (),
        }
        at += length;
        if used == BLOCK_CHARS {
            decoded.add(&block)?;
            used = 0;
        }
    }
    // The body may end within the last group of four characters.
    decoded.add(&block[..used - usize::from(used % 4 == 1)])?;
    decoded.chars += usize::from(used % 4 == 1);
    (padding <= 2).then_some((decoded, at))
}

impl Decoded {
    fn add(&mut self, block: &[u8]) -> Option<()> {
        let mut bytes = [0; BLOCK_CHARS / 4 * 3];
        let length = DECODER.decode_slice(block, &mut bytes).ok()?;
        self.hasher.update(&bytes[..length]);
        (self.chars, self.bytes) = (self.chars + block.len(), self.bytes + length);
        Some(())
    }
}

/// Returns the next character, converted to the standard alphabet, and its length in JSON. The character is `None` for
/// an escaped line break. Returns `None` at the end of the text or before any other escape sequence.
fn next_char(text: &[u8]) -> Option<(Option<u8>, usize)> {
    Some(match *text {
        [b'-', ..] => (Some(b'+'), 1),
        [b'_', ..] => (Some(b'/'), 1),
        [byte, ..] if byte != b'\\' => (Some(byte), 1),
        [b'\\', b'/', ..] => (Some(b'/'), 2),
        [b'\\', b'n' | b'r', ..] => (None, 2),
        // Some serialisers escape these characters.
        [b'\\', b'u', b'0', b'0', b'2', b'b' | b'B', ..] => (Some(b'+'), 6),
        [b'\\', b'u', b'0', b'0', b'2', b'f' | b'F', ..] => (Some(b'/'), 6),
        [b'\\', b'u', b'0', b'0', b'3', b'd' | b'D', ..] => (Some(b'='), 6),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const DATA: [u8; 5000] = {
        let mut data = [0; 5000];
        let mut index = 0;
        while index < data.len() {
            data[index] = (index * index % 251) as u8;
            index += 1;
        }
        data
    };

    fn digest_text(media_type: &str, data: &[u8]) -> String {
        format!("[base64{media_type}, {} bytes, sha256 {}]", data.len(), to_hex(&Sha256::digest(data)))
    }

    fn replace(body: &str) -> Option<String> {
        replace_inline_data(body.as_bytes()).map(|replaced| String::from_utf8(replaced).unwrap())
    }

    /// Parts of bodies of each API format, with `DATA` in place of the data.
    fn bodies() -> Vec<(&'static str, Value)> {
        let message = |part: Value| json!({"model": "m", "messages": [{"role": "user", "content": [part]}]});
        let gemini = |name: &str| json!({"contents": [{"parts": [{name: {"mimeType": "image/png", "data": "DATA"}}]}]});
        let response = |kind: &str, name: &str| {
            let part = json!({"type": kind, name: "data:image/png;base64,DATA"});
            json!({"input": [{"role": "user", "content": [part]}]})
        };
        vec![
            ("chat", message(json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,DATA"}}))),
            ("chat audio", message(json!({"type": "input_audio", "input_audio": {"data": "DATA", "format": "wav"}}))),
            ("chat file", message(json!({"type": "file", "file": {"file_data": "data:application/pdf;base64,DATA"}}))),
            ("responses", response("input_image", "image_url")),
            ("responses file", response("input_file", "file_data")),
            ("responses result", json!({"output": [{"type": "image_generation_call", "result": "DATA"}]})),
            ("images", json!({"data": [{"b64_json": "DATA"}]})),
            (
                "messages",
                message(json!({"type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "DATA"}})),
            ),
            ("gemini", gemini("inlineData")),
            ("gemini", gemini("inline_data")),
            ("converse", message(json!({"image": {"format": "png", "source": {"bytes": "DATA"}}}))),
            ("titan", json!({"taskType": "IMAGE_VARIATION", "imageVariationParams": {"images": ["DATA"]}})),
            ("embeddings", json!({"input": [{"image": "data:image/png;base64,DATA"}]})),
        ]
    }

    #[test]
    fn data_of_every_api_format_is_replaced() {
        let encoded = BASE64_STANDARD.encode(DATA);
        for (name, template) in bodies() {
            let body = template.to_string();
            let media_type = if body.contains("data:application") {
                " application/pdf"
            } else if body.contains("data:image") {
                " image/png"
            } else {
                ""
            };
            let url = format!("data:{};base64,DATA", media_type.trim());
            let expected = body.replace(&url, "DATA").replace("DATA", &digest_text(media_type, &DATA));
            assert_eq!(replace(&body.replace("DATA", &encoded)), Some(expected), "{name}");
            let event = format!("event: x\ndata: {body}\n\ndata: [DONE]\n\n");
            let replaced = replace(&event.replace("DATA", &encoded)).unwrap();
            assert!(replaced.contains(&digest_text(media_type, &DATA)) && replaced.ends_with("\n\ndata: [DONE]\n\n"));
        }
    }

    #[test]
    fn every_spelling_of_base64_is_decoded() {
        let standard = BASE64_STANDARD.encode(DATA);
        let lines = |end: &str| {
            let lines: Vec<_> = standard.as_bytes().chunks(76).map(|line| str::from_utf8(line).unwrap()).collect();
            lines.join(end)
        };
        let spellings = [
            standard.clone(),
            BASE64_STANDARD_NO_PAD.encode(DATA),
            BASE64_URL_SAFE.encode(DATA),
            BASE64_URL_SAFE_NO_PAD.encode(DATA),
            standard.replace('/', "\\/"),
            standard.replace('+', "\\u002B").replace('=', "\\u003d"),
            lines("\\n"),
            lines("\\r\\n"),
        ];
        for spelling in spellings {
            let body = format!(r#"{{"a":"{spelling}","b":1}}"#);
            let replaced = replace(&body).unwrap_or_else(|| panic!("{}", &body[..200]));
            assert_eq!(replaced, format!(r#"{{"a":"{}","b":1}}"#, digest_text("", &DATA)));
            let url = body.replacen(":\"", ":\"data:image\\/png;charset=utf-8;base64,", 1);
            assert_eq!(replace(&url).unwrap(), format!(r#"{{"a":"{}","b":1}}"#, digest_text(" image/png", &DATA)));
        }
    }

    #[test]
    fn json_within_strings_and_links_within_text_are_replaced() {
        let encoded = BASE64_STANDARD.encode(DATA);
        let arguments = json!({"arguments": json!({"file": encoded}).to_string()}).to_string();
        let expected = json!({"arguments": json!({"file": digest_text("", &DATA)}).to_string()}).to_string();
        assert_eq!(replace(&arguments), Some(expected));
        let link = format!(r#"{{"content":"see ![x](data:image/gif;base64,{encoded}) here"}}"#);
        let expected = format!(r#"{{"content":"see ![x]({}) here"}}"#, digest_text(" image/gif", &DATA));
        assert_eq!(replace(&link), Some(expected));
    }

    #[test]
    fn several_parts_are_replaced_each() {
        let encoded = BASE64_STANDARD.encode(DATA);
        let other = BASE64_STANDARD.encode(&DATA[1..]);
        let replaced = replace(&json!([encoded, "text", other, encoded]).to_string()).unwrap();
        let (first, second) = (digest_text("", &DATA), digest_text("", &DATA[1..]));
        assert_eq!(replaced, json!([first, "text", second, first]).to_string());
    }

    #[test]
    fn a_body_that_was_cut_has_no_digest() {
        let encoded = BASE64_STANDARD.encode(DATA);
        for (start, media_type) in [("", ""), ("data:image/png;base64,", " image/png")] {
            for length in 4096..4100 {
                let body = format!(r#"{{"a":"{start}{}"#, &encoded[..length]);
                let bytes = length / 4 * 3 + (length % 4).saturating_sub(1);
                assert_eq!(replace(&body), Some(format!(r#"{{"a":"[base64{media_type}, at least {bytes} bytes]"#)));
            }
        }
    }

    #[test]
    fn other_text_stays() {
        let encoded = BASE64_STANDARD.encode(DATA);
        let (short, long) = (&encoded[..4092], encoded.trim_end_matches('='));
        let word = "a".repeat(4097);
        for body in [
            format!(r#"{{"a":"{short}"}}"#),
            format!(r#"{{"a":"{word}"}}"#),
            format!(r#"{{"a":"two {long}"}}"#),
            format!(r#"{{"a":"{long} words"}}"#),
            format!(r#"{{"a":"{long}.{long}"}}"#),
            format!(r#"{{"a":"{long}==={long}"}}"#),
            format!(r#"{{"a":"data:image/png;base64,{long}%3D"}}"#),
            format!(r#"{{"a":"data:image png;base64,{long}"}}"#),
            long.to_owned(),
            "plain text ".repeat(1000),
            String::new(),
        ] {
            assert_eq!(replace(&body), None, "{}", &body[..body.len().min(60)]);
        }
    }

    proptest! {
        #[test]
        fn replaced_bodies_are_json_and_nothing_else_changes(
            data in proptest::collection::vec(any::<u8>(), 3000..9000),
            texts in proptest::collection::vec(".{0,40}", 0..4),
        ) {
            let body = json!({"texts": texts, "data": BASE64_STANDARD.encode(&data)}).to_string();
            let replaced = replace_inline_data(body.as_bytes());
            prop_assert_eq!(replaced.is_some(), data.len().div_ceil(3) * 4 - (3 - data.len() % 3) % 3 >= MIN_INLINE_CHARS);
            let found: Value = serde_json::from_slice(replaced.as_deref().unwrap_or(body.as_bytes())).unwrap();
            prop_assert_eq!(&found["texts"], &json!(texts));
            if replaced.is_some() {
                prop_assert_eq!(&found["data"], &json!(digest_text("", &data)));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            parts in proptest::collection::vec((0..5_usize, "[A-Za-z0-9+/=_\\\\\"%,-]{0,80}"), 0..40),
        ) {
            let fixed = ["\"", ";base64,", "data:", "\\", "A"];
            let body: String = parts.iter().map(|(index, text)| fixed[*index].repeat(if *index == 4 { 900 } else { 1 }) + text).collect();
            drop(replace_inline_data(body.as_bytes()));
        }
    }
}
