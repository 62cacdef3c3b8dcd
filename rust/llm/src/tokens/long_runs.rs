//! Counts texts with words of hundreds of letters, spaces or symbols, which are slow to merge in one piece.
//!
//! Tokens are what merging makes of a piece exactly if every two neighbours are what merging makes of the two. So a long
//! piece can be merged in windows that overlap: where the second window begins with the token that the first has at that
//! place, the rows of tokens on either side are one row, the one that merging the whole piece gives.

use std::{ops::Range, sync::OnceLock};

use tiktoken::CoreBpe;

use super::Encoding;
use crate::tokens::{
    ascii_words::{next_word, pieces},
    bpe::{LONGEST, Parts, Ranks},
};

/// Runs from this length on are merged in windows.
const LONG: usize = 256;
/// A run that long cannot lie between two places that are this far apart.
const STRIDE: usize = LONG / 2;
/// The smallest window, and how many bytes the next one begins before its end at least. The end of a window may be cut into
/// more tokens than belong there: as many of them as two of an overlap of this length do not count either.
const WINDOW: usize = 80;
const OVERLAP: usize = 12;
const BYTES_PER_TOKEN: usize = 6;
/// A window with more tokens than this is wide enough.
const PLENTY: usize = 20;

/// How a vocabulary's pattern cuts text, of those where it was checked that what follows a place within a run is cut into
/// pieces as in the whole text.
struct Pattern {
    name: &'static str,
    /// A capital begins a new piece.
    by_case: bool,
    /// However many digits are one piece.
    whole_numbers: bool,
    ranks: OnceLock<Ranks>,
}

static PATTERNS: [Pattern; 8] = [
    Pattern::new("o200k_base", true, false),
    Pattern::new("o200k_harmony", true, false),
    Pattern::new("cl100k_base", false, false),
    Pattern::new("llama3", false, false),
    Pattern::new("qwen2", false, false),
    Pattern::new("p50k_base", false, true),
    Pattern::new("p50k_edit", false, true),
    Pattern::new("r50k_base", false, true),
];

impl Pattern {
    const fn new(name: &'static str, by_case: bool, whole_numbers: bool) -> Self {
        Self { name, by_case, whole_numbers, ranks: OnceLock::new() }
    }
}

/// How many tokens a text has.
pub(crate) fn count(encoding: Encoding, vocabulary: &CoreBpe, text: &str) -> usize {
    let Some(pattern) = PATTERNS.iter().find(|pattern| pattern.name == encoding.name()) else {
        return vocabulary.count(text);
    };
    let (mut tokens, mut from, mut scratch) = (0, 0, Parts::default());
    while let Some(word) = next_word(text, from, pattern.by_case) {
        tokens += pattern.count(vocabulary, &text[from..word.start]);
        from = word.end;
        for piece in pieces(&text[word], pattern.by_case) {
            tokens += pattern.count_piece(vocabulary, piece, &mut scratch);
        }
    }
    tokens + pattern.count(vocabulary, &text[from..])
}

impl Pattern {
    /// Of a text without words whose pieces are known.
    fn count(&'static self, vocabulary: &CoreBpe, text: &str) -> usize {
        match next_run(self, text, 0) {
            Some(run) => Windows::over(self, vocabulary, text, run).count(),
            None => vocabulary.count(text),
        }
    }

    fn count_piece(&'static self, vocabulary: &CoreBpe, piece: &str, scratch: &mut Parts) -> usize {
        if piece.len() < LONG {
            return self.ranks(vocabulary).count(piece.as_bytes(), scratch);
        }
        Windows::over(self, vocabulary, piece, 0..piece.len()).count()
    }

    fn ranks(&self, vocabulary: &CoreBpe) -> &Ranks {
        self.ranks.get_or_init(|| Ranks::of(vocabulary))
    }
}

/// Characters of which a run is one piece, or the same part of one, from any place within it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    /// Where case matters: small letters and those without case, and capitals.
    Small,
    Capital,
    Digit,
    Space,
    Newline,
    Symbol,
    Smiley,
}

impl Class {
    fn of(pattern: &Pattern, character: char) -> Option<Self> {
        let class = match character {
            // First: most of what is long is of these.
            'a'..='z' | '一'..='龥' => Self::Small,
            'A'..='Z' | 'À'..='Ö' | 'Ø'..='Þ' | 'Α'..='Ρ' | 'Σ'..='Ω' | 'Ѐ'..='Я' => Self::Capital,
            _ if is_small(character) || is_sign(character) => Self::Small,
            '0'..='9' if pattern.whole_numbers => Self::Digit,
            ' ' | '\t' => Self::Space,
            '\n' | '\r' => Self::Newline,
            '!'..='/' | ':'..='@' | '['..='`' | '{'..='~' => Self::Symbol,
            '\u{1f300}'..='\u{1faff}' => Self::Smiley,
            _ => return None,
        };
        let is_letter = matches!(class, Self::Small | Self::Capital);
        Some(if is_letter && !pattern.by_case { Self::Letter } else { class })
    }

    /// Whether a run between these two is a piece, or the same part of one wherever the text is cut within it.
    fn is_one_piece(self, run: &str, before: Option<char>, after: Option<char>) -> bool {
        let breaks_line = |character: char| matches!(character, '\r' | '\n');
        match self {
            Self::Letter | Self::Capital | Self::Digit | Self::Smiley => true,
            // Letters without case between small ones and capitals belong to the former in the whole text, to the latter alone.
            Self::Small => {
                run.ends_with(is_small)
                    || after.is_none_or(|after| {
                        after.is_ascii() && !after.is_ascii_alphabetic() || ('\u{3000}'..='\u{303f}').contains(&after)
                    })
            }
            // Spaces between two line breaks are a piece together with these.
            Self::Space => {
                before.is_none_or(|before| !before.is_whitespace()) || after.is_none_or(|after| !after.is_whitespace())
            }
            // Symbols take the line breaks and slashes that follow them.
            Self::Newline => before.is_none_or(|before| before.is_ascii_alphanumeric() || before == ' '),
            Self::Symbol => !run.starts_with('/') || !before.is_some_and(breaks_line),
        }
    }
}

fn is_small(character: char) -> bool {
    matches!(character, 'a'..='z' | 'ß'..='ö' | 'ø'..='ÿ' | 'α'..='ω' | 'а'..='џ')
}

/// A letter without case.
fn is_sign(character: char) -> bool {
    matches!(character, '一'..='龥' | 'ぁ'..='ゖ' | 'ァ'..='ヺ' | '가'..='힣' | 'א'..='ת' | 'ء'..='غ' | 'ف'..='ي')
}

/// The next long run of one class.
fn next_run(pattern: &Pattern, text: &str, from: usize) -> Option<Range<usize>> {
    let class_of = |character| Class::of(pattern, character);
    let mut probe = from + STRIDE;
    while probe < text.len() {
        let at = text.floor_char_boundary(probe);
        let class = class_of(text[at..].chars().next()?);
        let length = |same: &mut dyn Iterator<Item = char>| -> usize {
            same.take_while(|other| class_of(*other) == class).map(char::len_utf8).sum()
        };
        let run = at - length(&mut text[from..at].chars().rev())..at + length(&mut text[at..].chars());
        let (before, after) = (text[..run.start].chars().next_back(), text[run.end..].chars().next());
        if run.len() >= LONG && class.is_some_and(|class| class.is_one_piece(&text[run.clone()], before, after)) {
            return Some(run);
        }
        probe = run.end.max(probe) + STRIDE;
    }
    None
}

/// Where each token of a part of the text ends.
struct Window(Vec<usize>);

/// Where the next window may begin.
#[derive(Clone, Copy)]
struct Place {
    /// How many tokens come before it.
    index: usize,
    /// How many bytes these are.
    offset: usize,
}

impl Window {
    /// How long the token with this number is.
    fn length(&self, index: usize) -> Option<usize> {
        let start = index.checked_sub(1).map_or(0, |before| self.0[before]);
        self.0.get(index).map(|end| end - start)
    }
}

struct Windows<'t> {
    pattern: &'static Pattern,
    vocabulary: &'t CoreBpe,
    text: &'t str,
    /// The run in which windows are cut.
    run: Range<usize>,
    /// The part that is looked at.
    part: Range<usize>,
    /// Tokens before it.
    tokens: usize,
    /// How long the next part is, and how far before the end of this one it begins.
    width: usize,
    overlap: usize,
    scratch: Parts,
}

impl<'t> Windows<'t> {
    fn over(pattern: &'static Pattern, vocabulary: &'t CoreBpe, text: &'t str, run: Range<usize>) -> Self {
        let part = 0..text.floor_char_boundary(run.start + WINDOW);
        Self {
            pattern,
            vocabulary,
            text,
            run,
            part,
            tokens: 0,
            width: WINDOW,
            overlap: OVERLAP,
            scratch: Parts::default(),
        }
    }

    fn count(mut self) -> usize {
        let mut window = self.read(&self.part.clone());
        while self.part.end < self.text.len() {
            let Some(place) = self.place(&window) else {
                self.width = 2 * self.part.len();
                self.overlap = OVERLAP;
                self.part.end = self.next_end(self.part.start + self.width);
                window = self.read(&self.part.clone());
                continue;
            };
            let start = self.part.start + place.offset;
            let run = self.run.clone();
            let part = start..self.next_end(start + self.width);
            // Texts made to be slow repeat themselves.
            let is_again = self.text[part.clone()] == self.text[self.part.clone()];
            let next = if is_again { None } else { Some(self.read(&part)) };
            if next.as_ref().unwrap_or(&window).length(0) != window.length(place.index) {
                // They do not meet here: perhaps at an earlier place.
                self.overlap *= 2;
                self.run = run;
                continue;
            }
            self.tokens += place.index;
            self.part = part;
            window = next.unwrap_or(window);
            self.overlap = OVERLAP;
            if place.index > PLENTY {
                self.width = WINDOW.max(self.width / 2);
            }
        }
        self.tokens + window.0.len()
    }

    /// Where the part that would end here ends: within this run, within the next one, or with the text.
    fn next_end(&mut self, end: usize) -> usize {
        let end = end.max(self.part.end + 1);
        if end < self.run.end {
            return self.text.ceil_char_boundary(end);
        }
        match next_run(self.pattern, self.text, self.run.end) {
            Some(run) => {
                let end = self.text.floor_char_boundary(run.start + WINDOW);
                self.run = run;
                end
            }
            None => self.text.len(),
        }
    }

    fn read(&mut self, part: &Range<usize>) -> Window {
        let text = &self.text[part.clone()];
        let ranks = self.pattern.ranks(self.vocabulary);
        if part.start >= self.run.start && part.end <= self.run.end && text.len() <= LONGEST {
            return Window(ranks.merge(text.as_bytes(), &mut self.scratch));
        }
        let ends = self.vocabulary.encode(text).into_iter().scan(0, |end, token| {
            *end += ranks.length(token);
            Some(*end)
        });
        Window(ends.collect())
    }

    /// The last place that is far enough from the end and within the run.
    fn place(&self, window: &Window) -> Option<Place> {
        let from = self.run.start.max(self.part.start);
        let far = window.0.partition_point(|end| self.part.len() - end >= self.overlap);
        let most = window.0.len().saturating_sub(self.overlap / BYTES_PER_TOKEN);
        let ends = window.0[..far.min(most)].iter().enumerate().rev();
        ends.map(|(index, end)| Place { index: index + 1, offset: *end })
            .take_while(|place| self.part.start + place.offset > from)
            .find(|place| self.text.is_char_boundary(self.part.start + place.offset))
    }
}
