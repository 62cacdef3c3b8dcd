//! Search for long ASCII words. Their pieces, the units into which the tokenizer splits text, are known without running
//! the vocabulary's pattern.

use std::ops::Range;

/// Minimum number of letters of a word that is found.
const MIN_WORD_BYTES: usize = 48;
/// Length of a probe. Every word of `MIN_WORD_BYTES` letters contains a probe that starts at a multiple of
/// `STRIDE_BYTES`.
const PROBE_BYTES: usize = 16;
/// Distance between the starts of two probes.
const STRIDE_BYTES: usize = MIN_WORD_BYTES - PROBE_BYTES;

/// Returns the range of the next long word, with the space that belongs to it. The pattern of every vocabulary begins a
/// piece with the first byte of the range and ends one with its last byte.
pub fn find_next_word(text: &str, mut from: usize, by_case: bool) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    while let Some(probe) = bytes.get(from..from + PROBE_BYTES) {
        // Checks all bytes at once, without a branch per byte.
        let is_word = probe.iter().fold(true, |all, byte| all & byte.is_ascii_alphabetic());
        if !is_word {
            from += STRIDE_BYTES;
            continue;
        }
        let letters = letters_around(bytes, from);
        from = letters.end + 1;
        let start = first_piece_start(bytes, &letters)
            .or_else(|| Some(letters.start + second_part_start(&bytes[letters.clone()], by_case)?));
        if let Some(start) = start.filter(|_| is_piece_end(bytes, letters.end) && letters.len() >= MIN_WORD_BYTES) {
            return Some(start..letters.end);
        }
    }
    None
}

/// Splits a word into parts. With `by_case`, each capital after a lowercase letter starts a new part.
pub fn split_word(word: &str, by_case: bool) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let (chunk, after) = rest.split_at(second_part_start(rest.as_bytes(), by_case).unwrap_or(rest.len()));
        rest = after;
        Some(chunk).filter(|chunk| !chunk.is_empty())
    })
}

/// Returns the range of the letters around a position.
fn letters_around(bytes: &[u8], at: usize) -> Range<usize> {
    let is_other = |byte: &u8| !byte.is_ascii_alphabetic();
    let start = bytes[..at].iter().rposition(is_other).map_or(0, |before| before + 1);
    let end = bytes[at..].iter().position(is_other).map_or(bytes.len(), |length| at + length);
    start..end
}

/// Returns where the piece of the first letter begins; `None` if that depends on the text before.
fn first_piece_start(bytes: &[u8], letters: &Range<usize>) -> Option<usize> {
    match bytes[..letters.start] {
        [] => Some(0),
        [.., b'0'..=b'9'] => Some(letters.start),
        [.., before, b' '] if before.is_ascii_alphanumeric() => Some(letters.start - 1),
        [.., before, b'\n'] if before.is_ascii_alphanumeric() => Some(letters.start),
        _ => None,
    }
}

/// Returns true if a piece ends with the letter before this position. Endings such as `'s` and non-ASCII letters belong
/// to the same piece.
fn is_piece_end(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_none_or(|after| after.is_ascii() && *after != b'\'')
}

/// Returns where the second piece begins; `None` if there is only one.
fn second_part_start(word: &[u8], by_case: bool) -> Option<usize> {
    let begins = |pair: &[u8]| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase();
    word.windows(2).position(begins).filter(|_| by_case).map(|before| before + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_words(text: &str, by_case: bool) -> Vec<&str> {
        let mut from = 0;
        let words = std::iter::from_fn(|| {
            let word = find_next_word(text, from, by_case)?;
            from = word.end;
            Some(&text[word])
        });
        words.collect()
    }

    #[test]
    fn finds_long_words_at_any_position() {
        let word = "x".repeat(MIN_WORD_BYTES);
        for at in 0..2 * MIN_WORD_BYTES {
            let text = format!("{} {word} {word}\n{word}1{word}.", "y".repeat(at));
            let spaced = format!(" {word}");
            let before = "y".repeat(at);
            let mut expected = vec![spaced.as_str(), &spaced, &word, &word];
            match at {
                0 => drop(expected.remove(0)),
                1..MIN_WORD_BYTES => (),
                _ => expected.insert(0, &before),
            }
            assert_eq!(find_words(&text, true), expected, "{at}");
        }
    }

    #[test]
    fn skips_words_whose_ends_are_uncertain() {
        let word = "x".repeat(100);
        for text in
            [format!("({word}"), format!("  {word}"), format!("{word}'s"), format!("{word}é"), format!("é{word}")]
        {
            assert_eq!(find_words(&text, true), [""; 0], "{text}");
        }
    }

    #[test]
    fn splits_at_capitals_after_lowercase_letters_if_case_matters() {
        assert_eq!(split_word("abCDefGH", true).collect::<Vec<_>>(), ["ab", "CDef", "GH"]);
        assert_eq!(split_word("abCDefGH", false).collect::<Vec<_>>(), ["abCDefGH"]);
        let text = format!("({}{}", "x".repeat(50), "Yz".repeat(50));
        assert_eq!(find_words(&text, true), ["Yz".repeat(50)]);
        assert_eq!(find_words(&text, false), [""; 0]);
    }
}
