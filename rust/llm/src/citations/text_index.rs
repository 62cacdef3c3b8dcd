//! Index of the response text so far. Converts byte offsets to character offsets and locates cited ranges.

use std::ops::Range;

use serde_json::Value;

use crate::citations::cited_text::{Citation, web_page_source};

/// Maximum length of a text that is indexed. Nothing is located in longer texts.
const MAX_TEXT_BYTES: usize = 1024 * 1024;
/// Distance between two checkpoints. Converting an offset counts the characters of at most this many bytes.
const CHECKPOINT_INTERVAL_BYTES: usize = 4096;
/// Maximum length of a sentence that is assumed as the claim of a marker.
const MAX_CLAIM_BYTES: usize = 8 * 1024;
/// Maximum length of a text that is searched for a cited string which is not at the stated range.
const MAX_SEARCHED_BYTES: usize = 64 * 1024;
/// Maximum number of citations per response.
pub const MAX_CITATIONS: usize = 1024;
/// Maximum total size of the sources of citations. A page that is cited repeatedly is sent each time.
pub const MAX_SOURCE_BYTES: usize = 256 * 1024;
/// Characters that end a sentence if whitespace or the end of the text follows.
const SENTENCE_ENDS: [char; 4] = ['.', '!', '?', '…'];
/// Characters that end a sentence whatever follows.
const UNCONDITIONAL_SENTENCE_ENDS: [char; 4] = ['\n', '。', '！', '？'];

#[derive(Debug, Default)]
pub struct TextIndex {
    text: String,
    is_too_long: bool,
    /// Byte offsets in the text, each with the number of characters before it.
    checkpoints: Vec<(usize, usize)>,
}

impl TextIndex {
    pub fn push_str(&mut self, text: &str) {
        self.is_too_long |= self.text.len() + text.len() > MAX_TEXT_BYTES;
        if self.is_too_long {
            return;
        }
        self.text.push_str(text);
        let (mut bytes, mut chars) = self.checkpoints.last().copied().unwrap_or_default();
        while self.text.len() - bytes > CHECKPOINT_INTERVAL_BYTES {
            let to = self.text.floor_char_boundary(bytes + CHECKPOINT_INTERVAL_BYTES);
            chars += self.text[bytes..to].chars().count();
            bytes = to;
            self.checkpoints.push((bytes, chars));
        }
    }

    fn indexed_text(&self) -> &str {
        if self.is_too_long { "" } else { &self.text }
    }

    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Returns the number of characters so far.
    pub fn char_count(&self) -> usize {
        self.chars_before(self.text.len())
    }

    /// Returns true if the byte range is valid, not empty, and contains the expected text if one is given.
    pub fn matches_at(&self, at: &Range<usize>, expected: Option<&str>) -> bool {
        let actual = self.indexed_text().get(at.clone());
        actual.is_some_and(|actual_bytes| {
            !actual_bytes.is_empty() && expected.is_none_or(|expected_bytes| expected_bytes == actual_bytes)
        })
    }

    /// Converts a byte range to a character range. If the range does not contain the expected text, searches for that
    /// text, which must occur exactly once.
    pub fn locate_bytes(&self, at: Range<usize>, expected: Option<&str>) -> Option<Range<usize>> {
        let text = self.indexed_text();
        let at = Some(at).filter(|at| self.matches_at(at, expected)).or_else(|| {
            let quote = expected.filter(|candidate| !candidate.is_empty() && text.len() <= MAX_SEARCHED_BYTES)?;
            let start = text.find(quote).filter(|at| text.rfind(quote) == Some(*at))?;
            Some(start..start + quote.len())
        })?;
        Some(self.chars_before(at.start)..self.chars_before(at.end))
    }

    /// Validates a range of characters. If it does not contain the expected text, searches for that text, which must
    /// occur exactly once.
    pub fn locate_chars(&self, at: Range<usize>, expected: Option<&str>) -> Option<Range<usize>> {
        let [start, end] = [at.start, at.end].map(|at| self.byte_offset(at).unwrap_or(usize::MAX));
        self.locate_bytes(start..end, expected)
    }

    /// Returns the number of characters before a byte offset.
    fn chars_before(&self, at: usize) -> usize {
        let (bytes, chars) = self.last_checkpoint(|(bytes, _)| *bytes <= at);
        chars + self.text[bytes..at].chars().count()
    }

    /// Returns the byte offset at which a character begins or the text ends; `None` beyond the end.
    fn byte_offset(&self, at: usize) -> Option<usize> {
        let (bytes, chars) = self.last_checkpoint(|(_, chars)| *chars <= at);
        let rest = self.indexed_text().get(bytes..)?;
        let mut offsets = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
        offsets.nth(at - chars).map(|at| bytes + at)
    }

    /// Returns the last checkpoint for which the predicate holds. It must hold for all checkpoints before that one too.
    fn last_checkpoint(&self, is_before: impl Fn(&(usize, usize)) -> bool) -> (usize, usize) {
        let count = self.checkpoints.partition_point(is_before);
        count.checked_sub(1).map_or((0, 0), |last| self.checkpoints[last])
    }

    /// Returns where the claim before a marker begins, in characters: at the start of its sentence, but not before
    /// `floor`.
    pub fn claim_start(&self, mark: &Range<usize>, floor: usize) -> usize {
        let offsets = self.byte_offset(mark.start).zip(self.byte_offset(floor)).filter(|(at, floor)| floor < at);
        let Some((at, floor)) = offsets else { return mark.start };
        let floor = floor.max(self.text.floor_char_boundary(at.saturating_sub(MAX_CLAIM_BYTES)));
        let window = self.text[floor..at]
            .trim_end()
            .trim_end_matches(SENTENCE_ENDS)
            .trim_end_matches(UNCONDITIONAL_SENTENCE_ENDS);
        let is_end = |&(at, character): &(usize, char)| {
            let next = window[at + character.len_utf8()..].chars().next();
            UNCONDITIONAL_SENTENCE_ENDS.contains(&character)
                || SENTENCE_ENDS.contains(&character) && next.is_none_or(char::is_whitespace)
        };
        let end = window.char_indices().rev().find(is_end).map_or(0, |(at, character)| at + character.len_utf8());
        let begins = end + (window[end..].len() - window[end..].trim_start().len());
        self.chars_before(floor + begins).min(mark.start)
    }

    /// Finds the citations for markers such as `[1]`, where the number selects a page. Also returns true if every page
    /// has a marker.
    pub fn find_marked_citations(&self, pages: &[(String, Value, String)]) -> (Vec<Citation>, bool) {
        let (mut cited, mut has_mark) = (Vec::<Citation>::new(), vec![false; pages.len()]);
        let (mut rest, mut at, mut total_bytes) = (self.indexed_text(), 0, 0);
        while let Some(open) = rest.find('[') {
            at += rest[..open].chars().count();
            let tail = &rest[open + 1..];
            let digits = tail.find(|character: char| !character.is_ascii_digit()).unwrap_or(tail.len());
            rest = &tail[digits..];
            let mark = at..at + digits + 2;
            at += digits + 1;
            let number = tail[..digits].parse::<usize>().ok().filter(|_| rest.starts_with(']'));
            let Some((url, title, text)) = number.and_then(|number| pages.get(number.checked_sub(1)?)) else {
                continue;
            };
            if cited.len() >= MAX_CITATIONS || total_bytes > MAX_SOURCE_BYTES {
                return (cited, false);
            }
            has_mark[number.unwrap_or(1) - 1] = true;
            let start = match cited.last() {
                // Adjacent markers refer to the same claim.
                Some(last) if last.marker_range.end == mark.start => last.claim_range.start,
                last => self.claim_start(&mark, last.map_or(0, |last| last.marker_range.end)),
            };
            let source = web_page_source(url, title, text);
            let citation = Citation { claim_range: start..mark.end, marker_range: mark, source, document_id: None };
            total_bytes += citation.source_bytes();
            cited.push(citation);
        }
        (cited, has_mark.into_iter().all(|is_marked| is_marked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_index(text: &str) -> TextIndex {
        let mut index = TextIndex::default();
        index.push_str(text);
        index
    }

    #[test]
    fn a_marker_cites_the_sentence_before_it_in_character_offsets() {
        let pages = ["https://a.example", "https://b.example"].map(|url| (url.to_owned(), Value::Null, String::new()));
        let text = "Ålesund is nice. It is in Norway[1][2]. Bergen is.[2] x[0] y[3] z[] [1";
        let (cited, is_all) = text_index(text).find_marked_citations(&pages);
        let extract = |at: &Range<usize>| text.chars().skip(at.start).take(at.len()).collect::<String>();
        let pairs: Vec<_> =
            cited.iter().map(|citation| (extract(&citation.claim_range), extract(&citation.marker_range))).collect();
        let actual: Vec<_> = pairs.iter().map(|(claim, mark)| (claim.as_str(), mark.as_str())).collect();
        assert_eq!(
            actual,
            [("It is in Norway[1]", "[1]"), ("It is in Norway[1][2]", "[2]"), ("Bergen is.[2]", "[2]"),]
        );
        assert!(is_all);
        assert!(!text_index("nothing [2]").find_marked_citations(&pages).1);
    }

    #[test]
    fn offsets_in_a_long_text_match_a_full_count() {
        let sample = "é𝄞ab. ";
        let mut index = TextIndex::default();
        (0..50).for_each(|_| index.push_str(&sample.repeat(40)));
        let counted = |at: usize| index.text[..at].chars().count();
        for (byte, character) in index.text.char_indices().step_by(97) {
            let char = counted(byte);
            assert_eq!((index.chars_before(byte), index.byte_offset(char)), (char, Some(byte)));
            assert_eq!(index.locate_bytes(byte..byte + character.len_utf8(), None), Some(char..char + 1));
        }
        let all = index.char_count();
        assert_eq!((all, index.byte_offset(all), index.byte_offset(all + 1)), (50 * 40 * 6, Some(index.len()), None));
        assert_eq!(index.claim_start(&(all - 2..all), 0), all - 6);
    }

    #[test]
    fn locates_many_citations_of_a_long_text() {
        let mut index = text_index(&"𝄞 ".repeat(MAX_TEXT_BYTES / 6));
        index.push_str("[1]");
        let all = index.char_count();
        // The index makes each lookup short, so this takes milliseconds; a scan per lookup would hang the test.
        for at in 0..MAX_CITATIONS {
            let far = all - 1 - at;
            assert_eq!(index.locate_chars(far..far + 1, None), Some(far..far + 1));
            assert!(index.claim_start(&(far..all), 0) <= far);
        }
    }

    #[test]
    fn locates_a_misplaced_range_by_its_text() {
        let index = text_index("é ab é cd");
        assert_eq!(index.locate_bytes(0..2, Some("é")), Some(0..1));
        assert_eq!(index.locate_bytes(3..5, None), Some(2..4));
        assert_eq!(index.locate_bytes(1..4, None), None, "a character is not cut");
        assert_eq!(index.locate_bytes(0..2, Some("cd")), Some(7..9));
        assert_eq!(index.locate_bytes(3..5, Some("é")), None, "there are two of them");
        assert_eq!(index.locate_chars(7..9, Some("cd")), Some(7..9));
        assert_eq!(index.locate_chars(7..99, None), None);
        let mut long = text_index("a");
        long.push_str(&"b".repeat(MAX_TEXT_BYTES));
        assert_eq!(long.locate_bytes(0..1, None), None);
    }
}
