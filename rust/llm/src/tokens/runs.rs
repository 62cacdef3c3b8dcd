//! Counts texts with words of thousands of letters, spaces or symbols, which are slow to merge in one piece.
//!
//! Tokens are what merging makes of a piece exactly if every two neighbours are what merging makes of the two. So a long
//! piece can be merged in windows that overlap: where the second window begins with the token that the first has at that
//! place, the rows of tokens on either side are one row, the one that merging the whole piece gives.

use std::ops::Range;

use tiktoken::CoreBpe;

use super::Encoding;

/// Runs from this length on are merged in windows.
const LONG: usize = 2 * WINDOW;
const WINDOW: usize = 1024;
/// How far a window begins before the one before it ends: longer than any token.
const OVERLAP: usize = 160;

/// A run that long cannot lie between two places that are this far apart.
const STRIDE: usize = LONG / 2;

/// Those of whose patterns it was checked that what follows a place within a run is cut into pieces as in the whole text.
const WINDOWED: [&str; 8] =
    ["o200k_base", "o200k_harmony", "cl100k_base", "llama3", "qwen2", "p50k_base", "p50k_edit", "r50k_base"];

/// How many tokens a text has.
pub(super) fn count(encoding: Encoding, vocabulary: &CoreBpe, text: &str) -> usize {
    match next_run(text, 0).filter(|_| WINDOWED.contains(&encoding.name())) {
        Some(run) => Windows::over(vocabulary, text, run).count(),
        None => vocabulary.count(text),
    }
}

/// Characters of which a run is cut into the same pieces from any place within it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Those that have two cases.
    Letter,
    Han,
    Space,
    Newline,
    Symbol,
    Smiley,
}

impl Class {
    fn of(character: char) -> Option<Self> {
        match character {
            'a'..='z'
            | 'A'..='Z'
            | 'À'..='Ö'
            | 'Ø'..='ö'
            | 'ø'..='ÿ'
            | 'Α'..='Ρ'
            | 'Σ'..='Ω'
            | 'α'..='ω'
            | 'Ѐ'..='џ' => Some(Self::Letter),
            '一'..='龥' | 'ぁ'..='ゖ' | 'ァ'..='ヺ' => Some(Self::Han),
            ' ' | '\t' => Some(Self::Space),
            '\n' | '\r' => Some(Self::Newline),
            '!'..='/' | ':'..='@' | '['..='`' | '{'..='~' => Some(Self::Symbol),
            '\u{1f300}'..='\u{1faff}' => Some(Self::Smiley),
            _ => None,
        }
    }

    /// Whether a run between these two is a piece, or the same part of one wherever the text is cut within it.
    fn is_one_piece(self, before: Option<char>, first: char, after: Option<char>) -> bool {
        let breaks_line = |character: char| matches!(character, '\r' | '\n');
        match self {
            Self::Letter | Self::Smiley => true,
            // Small letters before and large ones behind would be divided otherwise.
            Self::Han => after.is_none_or(|after| {
                after.is_ascii() && !after.is_ascii_alphabetic() || ('\u{3000}'..='\u{303f}').contains(&after)
            }),
            // Spaces between two line breaks are a piece together with these.
            Self::Space => {
                before.is_none_or(|before| !before.is_whitespace()) || after.is_none_or(|after| !after.is_whitespace())
            }
            // Symbols take the line breaks and slashes that follow them.
            Self::Newline => before.is_none_or(|before| before.is_ascii_alphanumeric() || before == ' '),
            Self::Symbol => first != '/' || !before.is_some_and(breaks_line),
        }
    }
}

/// The next long run of one class.
fn next_run(text: &str, from: usize) -> Option<Range<usize>> {
    let mut probe = from + STRIDE;
    while probe < text.len() {
        let at = text.floor_char_boundary(probe);
        let class = Class::of(text[at..].chars().next()?);
        let length = |same: &mut dyn Iterator<Item = char>| -> usize {
            same.take_while(|other| Class::of(*other) == class).map(char::len_utf8).sum()
        };
        let run = at - length(&mut text[from..at].chars().rev())..at + length(&mut text[at..].chars());
        let first = text[run.start..].chars().next()?;
        let (before, after) = (text[..run.start].chars().next_back(), text[run.end..].chars().next());
        if run.len() >= LONG && class.is_some_and(|class| class.is_one_piece(before, first, after)) {
            return Some(run);
        }
        probe = run.end.max(probe) + STRIDE;
    }
    None
}

/// Tokens of a part of the text, and the place among them where the next part may begin.
struct Window {
    tokens: Vec<u32>,
    place: Option<Place>,
}

#[derive(Clone, Copy)]
struct Place {
    /// How many tokens come before it.
    index: usize,
    /// How many bytes these are.
    offset: usize,
}

struct Windows<'t> {
    vocabulary: &'t CoreBpe,
    text: &'t str,
    /// The run in which windows are cut.
    run: Range<usize>,
    /// The part that is looked at.
    part: Range<usize>,
    /// Tokens before it.
    tokens: usize,
    /// How long the next part is.
    width: usize,
}

impl<'t> Windows<'t> {
    fn over(vocabulary: &'t CoreBpe, text: &'t str, run: Range<usize>) -> Self {
        let part = 0..text.floor_char_boundary(run.start + WINDOW);
        Self { vocabulary, text, run, part, tokens: 0, width: WINDOW }
    }

    fn count(mut self) -> usize {
        let mut window = self.read(&self.part.clone());
        while self.part.end < self.text.len() {
            let start = window.place.map_or(self.part.start, |place| self.part.start + place.offset);
            let part = start..self.next_end(start);
            // Texts made to be slow repeat themselves.
            let is_again = self.text[part.clone()] == self.text[self.part.clone()];
            let next = if is_again { None } else { Some(self.read(&part)) };
            let first = next.as_ref().unwrap_or(&window).tokens.first();
            match window.place {
                Some(place) if window.tokens.get(place.index) == first => {
                    self.tokens += place.index;
                    self.part = part;
                    window = next.unwrap_or(window);
                }
                // They do not meet: both as one.
                _ => {
                    self.width *= 2;
                    self.part.end = part.end;
                    window = self.read(&self.part.clone());
                }
            }
        }
        self.tokens + window.tokens.len()
    }

    /// Where the part that begins here ends: within this run, within the next one, or with the text.
    fn next_end(&mut self, start: usize) -> usize {
        let end = self.part.end.max(start) + self.width - OVERLAP;
        if end < self.run.end {
            return self.text.floor_char_boundary(end);
        }
        match next_run(self.text, self.run.end) {
            Some(run) => {
                let end = self.text.floor_char_boundary(run.start + WINDOW);
                self.run = run;
                end
            }
            None => self.text.len(),
        }
    }

    fn read(&self, part: &Range<usize>) -> Window {
        let tokens = self.vocabulary.encode(&self.text[part.clone()]);
        let place = if part.end < self.text.len() { self.place(part, &tokens) } else { None };
        Window { tokens, place }
    }

    /// The last place that is far enough from the end and within the run.
    fn place(&self, part: &Range<usize>, tokens: &[u32]) -> Option<Place> {
        let mut at = part.end;
        for (index, token) in tokens.iter().enumerate().rev() {
            at -= self.vocabulary.decode(&[*token]).len().min(at);
            if at <= self.run.start.max(part.start) {
                return None;
            }
            if part.end - at >= OVERLAP && self.text.is_char_boundary(at) {
                return Some(Place { index, offset: at - part.start });
            }
        }
        None
    }
}
