//! What an answer has said so far, for finding the stretches of it that are cited.

use std::ops::Range;

use serde_json::Value;

use super::cited::{Cited, page};

/// Of what is longer, nothing is found.
const MOST: usize = 1024 * 1024;
/// So many stretches are found, and no more.
pub const MOST_CITED: usize = 1024;
/// What ends a sentence, where nothing or a space follows.
const ENDS: [char; 4] = ['.', '!', '?', '…'];
/// Likewise, where anything does.
const ENDS_ALWAYS: [char; 4] = ['\n', '。', '！', '？'];

#[derive(Debug, Default)]
pub struct Spoken {
    text: String,
    is_too_long: bool,
}

impl Spoken {
    pub fn push(&mut self, text: &str) {
        self.is_too_long |= self.text.len() + text.len() > MOST;
        if !self.is_too_long {
            self.text.push_str(text);
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
        self.text.chars().count()
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
            let said = said.filter(|said| !said.is_empty())?;
            let start = text.find(said).filter(|at| text.rfind(said) == Some(*at))?;
            Some(start..start + said.len())
        })?;
        Some(self.counted(&at))
    }

    /// Likewise of characters.
    pub fn of_chars(&self, at: Range<usize>, said: Option<&str>) -> Option<Range<usize>> {
        let byte = |at: usize| {
            let mut places = self.text().char_indices().map(|(at, _)| at).chain([self.text().len()]);
            places.nth(at).unwrap_or(usize::MAX)
        };
        self.of_bytes(byte(at.start)..byte(at.end), said)
    }

    fn counted(&self, at: &Range<usize>) -> Range<usize> {
        let start = self.text[..at.start].chars().count();
        start..start + self.text[at.clone()].chars().count()
    }

    /// For a mark in characters, where the words begin that it stands behind: with their sentence, but behind `floor`.
    pub fn claim(&self, mark: &Range<usize>, floor: usize) -> usize {
        let Some((at, _)) = self.text().char_indices().nth(mark.start) else { return mark.start };
        let words = self.text[..at].trim_end().trim_end_matches(ENDS).trim_end_matches(ENDS_ALWAYS);
        let is_end = |&(at, one): &(usize, char)| {
            let next = words[at + one.len_utf8()..].chars().next();
            ENDS_ALWAYS.contains(&one) || ENDS.contains(&one) && next.is_none_or(char::is_whitespace)
        };
        let end = words.char_indices().rev().find(is_end).map_or(0, |(at, one)| at + one.len_utf8());
        let begins = end + (words[end..].len() - words[end..].trim_start().len());
        self.text[..begins].chars().count().max(floor).min(mark.start)
    }

    /// What stands behind marks such as `[1]`, each of which is the number of a page; and whether every page has a mark.
    pub fn marked(&self, pages: &[(String, Value, String)]) -> (Vec<Cited>, bool) {
        let (mut cited, mut has_mark) = (Vec::<Cited>::new(), vec![false; pages.len()]);
        let (mut rest, mut at) = (self.text(), 0);
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
            if cited.len() >= MOST_CITED {
                return (cited, false);
            }
            has_mark[number.unwrap_or(1) - 1] = true;
            let start = match cited.last() {
                // Marks in a row stand behind the same words.
                Some(last) if last.mark.end == mark.start => last.claim.start,
                last => self.claim(&mark, last.map_or(0, |last| last.mark.end)),
            };
            let source = page(url, title, text);
            cited.push(Cited { claim: start..mark.end, mark, source, document: None });
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
