//! Replaces spans of texts. Partners count characters, and count over all texts if they were sent as one.

use std::ops::Range;

use super::{super::replacement::replace_ranges, SentText};

/// Replacement of a span without a label.
pub(super) const REDACTED: &str = "[REDACTED]";

/// Characters from `start` to before `end`, and the label that replaces them.
#[derive(Debug, Clone)]
pub(super) struct TextSpan {
    pub start: usize,
    pub end: usize,
    pub label: String,
}

impl TextSpan {
    /// Returns a span; `None` if the numbers are not valid.
    pub(super) fn new(start: Option<u64>, end: Option<u64>, label: String) -> Option<Self> {
        let (start, end) = (usize::try_from(start?).ok()?, usize::try_from(end?).ok()?);
        (start < end).then_some(Self { start, end, label })
    }
}

/// Replaces spans of a text; `None` if a span extends beyond the text.
pub(super) fn replace_spans(text: &str, mut spans: Vec<TextSpan>) -> Option<String> {
    spans.sort_by_key(|span| (span.start, span.end));
    // Positions of all characters, and of the end.
    let positions: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let mut ranges: Vec<(Range<usize>, String)> = Vec::new();
    for span in spans {
        let (start, end) = (*positions.get(span.start)?, *positions.get(span.end)?);
        match ranges.last_mut() {
            Some((before, _)) if start < before.end => before.end = before.end.max(end),
            _ => ranges.push((start..end, span.label)),
        }
    }
    Some(replace_ranges(text, ranges.iter().map(|(range, label)| (range.clone(), label.as_str()))))
}

/// Replaces spans of texts that were sent as one, with a line break between each two.
pub(super) fn replace_joined_spans(texts: &[SentText], spans: &[TextSpan]) -> Option<Vec<String>> {
    let mut first = 0;
    let mut replaced = Vec::with_capacity(texts.len());
    for sent in texts {
        let length = sent.text.chars().count();
        let own = spans.iter().filter(|span| span.start < first + length && span.end > first).map(|span| TextSpan {
            start: span.start.max(first) - first,
            end: span.end.min(first + length) - first,
            label: span.label.clone(),
        });
        replaced.push(replace_spans(&sent.text, own.collect())?);
        first += length + 1;
    }
    // A span beyond the last text means that the partner counts differently.
    spans.iter().all(|span| span.end < first).then_some(replaced)
}

#[cfg(test)]
mod tests {
    use penstock_llm::texts::{TextKind, TextRole};

    use super::*;

    fn span(start: u64, end: u64) -> TextSpan {
        TextSpan::new(Some(start), Some(end), "X".into()).unwrap()
    }

    #[test]
    fn spans_count_characters_and_may_overlap() {
        assert_eq!(replace_spans("äb cd", vec![span(3, 5), span(0, 1), span(4, 5)]).unwrap(), "Xb X");
        assert!(replace_spans("ab", vec![span(1, 3)]).is_none());
        assert!(TextSpan::new(Some(2), Some(2), String::new()).is_none());
        assert!(TextSpan::new(None, Some(2), String::new()).is_none());
    }

    #[test]
    fn spans_of_joined_texts_are_divided() {
        let texts: Vec<_> = ["äbc", "def"]
            .into_iter()
            .enumerate()
            .map(|(index, text)| SentText { index, role: TextRole::User, kind: TextKind::Text, text: text.into() })
            .collect();
        assert_eq!(replace_joined_spans(&texts, &[span(1, 2), span(5, 7)]).unwrap(), ["äXc", "dX"]);
        assert_eq!(replace_joined_spans(&texts, &[span(2, 5)]).unwrap(), ["äbX", "Xef"]);
        assert!(replace_joined_spans(&texts, &[span(1, 9)]).is_none());
    }
}
