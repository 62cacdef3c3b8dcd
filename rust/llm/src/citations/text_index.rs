//! What an answer has said so far, for finding the stretches of it that are cited.

use std::ops::Range;

use serde_json::Value;

use crate::citations::cited_text::{Cited, page};

/// Of what is longer, nothing is found.
const MOST: usize = 1024 * 1024;
/// How far apart the places are whose characters were counted, in bytes: no more is counted to find one.
const STEP: usize = 4096;
/// A sentence is no longer, in bytes.
const LONGEST_CLAIM: usize = 8 * 1024;
/// Words that are not where they should be are looked for in what is no longer.
const MOST_SEARCHED: usize = 64 * 1024;
/// So many stretches are found, and no more.
pub const MOST_CITED: usize = 1024;
/// So much is said of where they are from, in bytes: a page that is cited again and again is told each time.
pub const MOST_TOLD: usize = 256 * 1024;
/// What ends a sentence, where nothing or a space follows.
const ENDS: [char; 4] = ['.', '!', '?', '…'];
/// Likewise, where anything does.
const ENDS_ALWAYS: [char; 4] = ['\n', '。', '！', '？'];

#[derive(Debug, Default)]
pub struct Spoken {
    text: String,
    is_too_long: bool,
    /// Places in it, in bytes, and how many characters stand before each.
    places: Vec<(usize, usize)>,
}

impl Spoken {
    pub fn push(&mut self, text: &str) {
        self.is_too_long |= self.text.len() + text.len() > MOST;
        if self.is_too_long {
            return;
        }
        self.text.push_str(text);
        let (mut bytes, mut chars) = self.places.last().copied().unwrap_or_default();
        while self.text.len() - bytes > STEP {
            let to = self.text.floor_char_boundary(bytes + STEP);
            chars += self.text[bytes..to].chars().count();
            bytes = to;
            self.places.push((bytes, chars));
        }
    }

    fn text(&self) -> &str {
        if self.is_too_long { "" } else { &self.text }
    }

    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// How many characters were said.
    pub fn chars(&self) -> usize {
        self.before(self.text.len())
    }

    /// Whether a stretch of bytes is there and says this.
    pub fn says(&self, at: &Range<usize>, said: Option<&str>) -> bool {
        let there = self.text().get(at.clone());
        there.is_some_and(|there| !there.is_empty() && said.is_none_or(|said| said == there))
    }

    /// A stretch of bytes, in characters. Where it does not say what it should, it is found by that, if only one does.
    pub fn of_bytes(&self, at: Range<usize>, said: Option<&str>) -> Option<Range<usize>> {
        let text = self.text();
        let at = Some(at).filter(|at| self.says(at, said)).or_else(|| {
            let said = said.filter(|said| !said.is_empty() && text.len() <= MOST_SEARCHED)?;
            let start = text.find(said).filter(|at| text.rfind(said) == Some(*at))?;
            Some(start..start + said.len())
        })?;
        Some(self.before(at.start)..self.before(at.end))
    }

    /// Likewise of characters.
    pub fn of_chars(&self, at: Range<usize>, said: Option<&str>) -> Option<Range<usize>> {
        let [start, end] = [at.start, at.end].map(|at| self.byte(at).unwrap_or(usize::MAX));
        self.of_bytes(start..end, said)
    }

    /// How many characters stand before a byte.
    fn before(&self, at: usize) -> usize {
        let (bytes, chars) = self.place(|(bytes, _)| *bytes <= at);
        chars + self.text[bytes..at].chars().count()
    }

    /// At which byte a character begins, or the text ends.
    fn byte(&self, at: usize) -> Option<usize> {
        let (bytes, chars) = self.place(|(_, chars)| *chars <= at);
        let rest = self.text().get(bytes..)?;
        let mut places = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
        places.nth(at - chars).map(|at| bytes + at)
    }

    /// The last place of which something holds, as it does of those before.
    fn place(&self, is_before: impl Fn(&(usize, usize)) -> bool) -> (usize, usize) {
        let behind = self.places.partition_point(is_before);
        behind.checked_sub(1).map_or((0, 0), |last| self.places[last])
    }

    /// For a mark in characters, where the words begin that it stands behind: with their sentence, but behind `floor`.
    pub fn claim(&self, mark: &Range<usize>, floor: usize) -> usize {
        let places = self.byte(mark.start).zip(self.byte(floor)).filter(|(at, floor)| floor < at);
        let Some((at, floor)) = places else { return mark.start };
        let floor = floor.max(self.text.floor_char_boundary(at.saturating_sub(LONGEST_CLAIM)));
        let words = self.text[floor..at].trim_end().trim_end_matches(ENDS).trim_end_matches(ENDS_ALWAYS);
        let is_end = |&(at, one): &(usize, char)| {
            let next = words[at + one.len_utf8()..].chars().next();
            ENDS_ALWAYS.contains(&one) || ENDS.contains(&one) && next.is_none_or(char::is_whitespace)
        };
        let end = words.char_indices().rev().find(is_end).map_or(0, |(at, one)| at + one.len_utf8());
        let begins = end + (words[end..].len() - words[end..].trim_start().len());
        self.before(floor + begins).min(mark.start)
    }

    /// What stands behind marks such as `[1]`, each of which is the number of a page; and whether every page has a mark.
    pub fn marked(&self, pages: &[(String, Value, String)]) -> (Vec<Cited>, bool) {
        let (mut cited, mut has_mark) = (Vec::<Cited>::new(), vec![false; pages.len()]);
        let (mut rest, mut at, mut told) = (self.text(), 0, 0);
        while let Some(open) = rest.find('[') {
            at += rest[..open].chars().count();
            let behind = &rest[open + 1..];
            let digits = behind.find(|one: char| !one.is_ascii_digit()).unwrap_or(behind.len());
            rest = &behind[digits..];
            let mark = at..at + digits + 2;
            at += digits + 1;
            let number = behind[..digits].parse::<usize>().ok().filter(|_| rest.starts_with(']'));
            let Some((url, title, text)) = number.and_then(|number| pages.get(number.checked_sub(1)?)) else {
                continue;
            };
            if cited.len() >= MOST_CITED || told > MOST_TOLD {
                return (cited, false);
            }
            has_mark[number.unwrap_or(1) - 1] = true;
            let start = match cited.last() {
                // Marks in a row stand behind the same words.
                Some(last) if last.mark.end == mark.start => last.claim.start,
                last => self.claim(&mark, last.map_or(0, |last| last.mark.end)),
            };
            let source = page(url, title, text);
            let one = Cited { claim: start..mark.end, mark, source, document: None };
            told += one.weight();
            cited.push(one);
        }
        (cited, has_mark.into_iter().all(|one| one))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spoken(text: &str) -> Spoken {
        let mut spoken = Spoken::default();
        spoken.push(text);
        spoken
    }

    #[test]
    fn a_mark_stands_behind_its_sentence_and_counts_characters() {
        let pages = ["https://a.example", "https://b.example"].map(|url| (url.to_owned(), Value::Null, String::new()));
        let text = "Ålesund is nice. It is in Norway[1][2]. Bergen is.[2] x[0] y[3] z[] [1";
        let (cited, is_all) = spoken(text).marked(&pages);
        let said = |at: &Range<usize>| text.chars().skip(at.start).take(at.len()).collect::<String>();
        let told: Vec<_> = cited.iter().map(|one| (said(&one.claim), said(&one.mark))).collect();
        let told: Vec<_> = told.iter().map(|(claim, mark)| (claim.as_str(), mark.as_str())).collect();
        assert_eq!(told, [("It is in Norway[1]", "[1]"), ("It is in Norway[1][2]", "[2]"), ("Bergen is.[2]", "[2]"),]);
        assert!(is_all);
        assert!(!spoken("nothing [2]").marked(&pages).1);
    }

    #[test]
    fn places_in_a_long_text_are_those_that_are_counted_from_its_beginning() {
        let word = "é𝄞ab. ";
        let mut said = Spoken::default();
        (0..50).for_each(|_| said.push(&word.repeat(40)));
        let counted = |at: usize| said.text[..at].chars().count();
        for (byte, one) in said.text.char_indices().step_by(97) {
            let char = counted(byte);
            assert_eq!((said.before(byte), said.byte(char)), (char, Some(byte)));
            assert_eq!(said.of_bytes(byte..byte + one.len_utf8(), None), Some(char..char + 1));
        }
        let all = said.chars();
        assert_eq!((all, said.byte(all), said.byte(all + 1)), (50 * 40 * 6, Some(said.len()), None));
        assert_eq!(said.claim(&(all - 2..all), 0), all - 6);
    }

    #[test]
    fn many_marks_of_a_long_text_are_found_soon() {
        let mut said = spoken(&"𝄞 ".repeat(MOST / 6));
        said.push("[1]");
        let all = said.chars();
        let began = std::time::Instant::now();
        for at in 0..MOST_CITED {
            let far = all - 1 - at;
            assert_eq!(said.of_chars(far..far + 1, None), Some(far..far + 1));
            assert!(said.claim(&(far..all), 0) <= far);
        }
        assert!(began.elapsed().as_millis() < 2000, "{:?}", began.elapsed());
    }

    #[test]
    fn a_stretch_that_is_not_where_it_should_be_is_found_by_its_words() {
        let said = spoken("é ab é cd");
        assert_eq!(said.of_bytes(0..2, Some("é")), Some(0..1));
        assert_eq!(said.of_bytes(3..5, None), Some(2..4));
        assert_eq!(said.of_bytes(1..4, None), None, "a character is not cut");
        assert_eq!(said.of_bytes(0..2, Some("cd")), Some(7..9));
        assert_eq!(said.of_bytes(3..5, Some("é")), None, "there are two of them");
        assert_eq!(said.of_chars(7..9, Some("cd")), Some(7..9));
        assert_eq!(said.of_chars(7..99, None), None);
        let mut long = spoken("a");
        long.push(&"b".repeat(MOST));
        assert_eq!(long.of_bytes(0..1, None), None);
    }
}
