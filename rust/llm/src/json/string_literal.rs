//! Bytes of JSON string literals: quotes, escapes and control characters, and their decoding.

use std::borrow::Cow;

use memchr::memchr;

/// Decodes a string literal, which includes its quotes; `None` if it is invalid.
pub(crate) fn unescape(literal: &[u8]) -> Option<String> {
    serde_json::from_slice(literal).ok()
}

/// Decodes a string literal and borrows it if nothing in it is escaped.
pub fn decode_string(literal: &[u8]) -> Option<Cow<'_, str>> {
    let plain = literal.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr(b'\\', plain).is_some() {
        return unescape(literal).map(Cow::Owned);
    }
    std::str::from_utf8(plain).ok().map(Cow::Borrowed)
}

/// Returns a mask with the high bit set for each byte that is a quote. Bits above the lowest set bit may be wrong.
fn quote_mask(word: u64) -> u64 {
    const LOW_BITS: u64 = u64::from_le_bytes([1; 8]);
    const HIGH_BITS: u64 = u64::from_le_bytes([0x80; 8]);
    let zero_where_quote = word ^ u64::from_le_bytes([b'"'; 8]);
    zero_where_quote.wrapping_sub(LOW_BITS) & !zero_where_quote & HIGH_BITS
}

/// Returns true if the byte after `before` is escaped, that is, if `before` ends in an odd number of backslashes.
pub(super) fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// Returns a mask with the high bit set for each byte that is a quote, a backslash or a control character. Bits above
/// the lowest set bit may be wrong.
pub(super) fn special_byte_mask(word: u64) -> u64 {
    const LOW_BITS: u64 = u64::from_le_bytes([1; 8]);
    const HIGH_BITS: u64 = u64::from_le_bytes([0x80; 8]);
    let zero_where_backslash = word ^ u64::from_le_bytes([b'\\'; 8]);
    let backslashes = zero_where_backslash.wrapping_sub(LOW_BITS) & !zero_where_backslash;
    let controls = word.wrapping_sub(u64::from_le_bytes([b' '; 8])) & !word;
    (backslashes | controls) & HIGH_BITS | quote_mask(word)
}

/// Returns true if the text contains a control character. The loop has no early exit so that the compiler vectorises
/// it.
pub(super) fn has_control_character(text: &[u8]) -> bool {
    text.iter().fold(u8::MAX, |lowest_byte, byte| lowest_byte.min(*byte)) < b' '
}

/// Returns the length of the escape sequence at the beginning of the text; `None` if it is invalid.
pub(super) fn escape_len(text: &[u8]) -> Option<usize> {
    match text.get(1)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(2),
        b'u' if text.get(2..6)?.iter().all(u8::is_ascii_hexdigit) => Some(6),
        _ => None,
    }
}

/// Returns the offset and the reason if the text contains a control character or an invalid escape.
pub(super) fn check_string_content(text: &[u8]) -> Result<(), (usize, &'static str)> {
    if let Some(at) = text.iter().position(|byte| *byte < b' ') {
        return Err((at, "control character in a string"));
    }
    let mut at = 0;
    while let Some(next) = memchr(b'\\', &text[at..]) {
        at += next;
        at += escape_len(&text[at..]).ok_or((at, "invalid escape"))?;
    }
    Ok(())
}
