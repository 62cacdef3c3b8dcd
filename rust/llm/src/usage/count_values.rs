//! Values of token counts: parsing, raising and splitting them.

use crate::json::scan::{for_each_element_from, for_each_field};

/// Subtracts up to `part` tokens from `total` and returns how many were subtracted.
pub(super) fn split_off_tokens(total: &mut u64, part: u64) -> u64 {
    let part = part.min(*total);
    *total -= part;
    part
}

pub(crate) fn raise_count(slot: &mut u64, is_present: &mut bool, value: &[u8]) {
    if let Some(count) = parse_count(value) {
        *slot = count.max(*slot);
        *is_present = true;
    }
}

pub(super) fn raise_counts(slots: [&mut u64; 2], counts: [u64; 2]) {
    for (slot, count) in slots.into_iter().zip(counts) {
        *slot = count.max(*slot);
    }
}

/// Returns Gemini's audio and image token counts. Video and documents are billed like text.
pub(super) fn audio_and_image_tokens(array: &[u8]) -> [u64; 2] {
    sum_counts_by_kind(array, b"modality", [b"\"AUDIO\"", b"\"IMAGE\""], b"tokenCount")
}

/// Sums the counts of two kinds in an array whose items each have a kind and a count.
pub(super) fn sum_counts_by_kind(array: &[u8], name: &[u8], kinds: [&[u8]; 2], counted: &[u8]) -> [u64; 2] {
    let mut counts = [0_u64; 2];
    // If the JSON is malformed, the elements before the error count.
    let _ = for_each_element_from(array, 0, |at| {
        let (mut kind, mut tokens) = (None, 0);
        let item = &array[at];
        for_each_field(item, |key, at| {
            let value = &item[at];
            if key == name {
                kind = kinds.iter().position(|candidate| *candidate == value);
            } else if key == counted {
                tokens = parse_count(value).unwrap_or_default();
            }
            Ok(())
        })?;
        if let Some(kind) = kind {
            counts[kind] = counts[kind].saturating_add(tokens);
        }
        Ok(())
    });
    counts
}

/// Parses a count from any JSON number, or from a string that has one; negative numbers are zero.
pub(crate) fn parse_count(value: &[u8]) -> Option<u64> {
    let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    // Fewer digits than `u64::MAX` has, so the sum cannot overflow.
    if (1..20).contains(&value.len()) && value.iter().all(u8::is_ascii_digit) {
        return Some(value.iter().fold(0, |count, digit| count * 10 + u64::from(digit - b'0')));
    }
    let text = std::str::from_utf8(value).ok()?;
    let number = || text.parse().ok().filter(|number: &f64| number.is_finite());
    #[allow(clippy::cast_sign_loss)] // The cast saturates, so negative numbers become zero.
    text.parse().ok().or_else(|| number().map(|number| number as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_numbers_of_any_spelling() {
        for (value, count) in [
            ("12", Some(12)),
            ("\"12\"", Some(12)),
            ("12.0", Some(12)),
            ("\"12.5\"", Some(12)),
            ("1.2e1", Some(12)),
            ("-3", Some(0)),
            ("-0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("null", None),
            ("\"\"", None),
            ("\"inf\"", None),
            ("1e400", None),
            ("\"many\"", None),
            ("{}", None),
        ] {
            assert_eq!(parse_count(value.as_bytes()), count, "{value}");
        }
    }
}
