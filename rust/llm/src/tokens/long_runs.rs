//! Counts texts with words of hundreds of letters, spaces or symbols, which are slow to merge in one piece.
//!
//! Tokens are what merging makes of a piece exactly if every two neighbours are what merging makes of the two. So a long
//! piece can be merged in windows that overlap: where the second window begins with the token that the first has at that
//! place, the rows of tokens on either side are one row, the one that merging the whole piece gives.

use std::{ops::Range, sync::OnceLock};

use tiktoken::CoreBpe;

use super::Encoding;
use crate::tokens::{
    ascii_words::{find_next_word, split_word},
    bpe::{MAX_PIECE_BYTES, MergeState, RankTable},
};

/// Runs from this length on are merged in windows.
const LONG_RUN_BYTES: usize = 256;
/// A run that long cannot lie between two places that are this far apart.
const PROBE_STRIDE_BYTES: usize = LONG_RUN_BYTES / 2;
/// The smallest window, and how many bytes the next one begins before its end at least. The end of a window may be cut into
/// more tokens than belong there: as many of them as two of an overlap of this length do not count either.
const MIN_WINDOW_BYTES: usize = 80;
const MIN_OVERLAP_BYTES: usize = 12;
const BYTES_PER_TOKEN: usize = 6;
/// A window with more tokens than this is wide enough.
const WIDE_WINDOW_TOKENS: usize = 20;

/// How a vocabulary's pattern cuts text, of those where it was checked that what follows a place within a run is cut into
/// pieces as in the whole text.
struct SplitPattern {
    name: &'static str,
    /// A capital begins a new piece.
    splits_on_case: bool,
    /// However many digits are one piece.
    joins_digits: bool,
    rank_table: OnceLock<RankTable>,
}

static PATTERNS: [SplitPattern; 8] = [
    SplitPattern::new("o200k_base", true, false),
    SplitPattern::new("o200k_harmony", true, false),
    SplitPattern::new("cl100k_base", false, false),
    SplitPattern::new("llama3", false, false),
    SplitPattern::new("qwen2", false, false),
    SplitPattern::new("p50k_base", false, true),
    SplitPattern::new("p50k_edit", false, true),
    SplitPattern::new("r50k_base", false, true),
];

impl SplitPattern {
    const fn new(name: &'static str, splits_on_case: bool, joins_digits: bool) -> Self {
        Self { name, splits_on_case, joins_digits, rank_table: OnceLock::new() }
    }
}

/// How many tokens a text has.
pub(crate) fn count_by_runs(encoding: Encoding, vocabulary: &CoreBpe, text: &str) -> usize {
    let Some(pattern) = PATTERNS.iter().find(|pattern| pattern.name == encoding.name()) else {
        return vocabulary.count(text);
    };
    let (mut tokens, mut from, mut scratch) = (0, 0, MergeState::default());
    while let Some(word) = find_next_word(text, from, pattern.splits_on_case) {
        tokens += pattern.count_text(vocabulary, &text[from..word.start]);
        from = word.end;
        for piece in split_word(&text[word], pattern.splits_on_case) {
            tokens += pattern.count_piece(vocabulary, piece, &mut scratch);
        }
    }
    tokens + pattern.count_text(vocabulary, &text[from..])
}

impl SplitPattern {
    /// Of a text without words whose pieces are known.
    fn count_text(&'static self, vocabulary: &CoreBpe, text: &str) -> usize {
        match find_next_run(self, text, 0) {
            Some(run) => WindowedCounter::new(self, vocabulary, text, run).count_tokens(),
            None => vocabulary.count(text),
        }
    }

    fn count_piece(&'static self, vocabulary: &CoreBpe, piece: &str, scratch: &mut MergeState) -> usize {
        if piece.len() < LONG_RUN_BYTES {
            return self.rank_table(vocabulary).count_tokens(piece.as_bytes(), scratch);
        }
        WindowedCounter::new(self, vocabulary, piece, 0..piece.len()).count_tokens()
    }

    fn rank_table(&self, vocabulary: &CoreBpe) -> &RankTable {
        self.rank_table.get_or_init(|| RankTable::from_vocabulary(vocabulary))
    }
}

/// Characters of which a run is one piece, or the same part of one, from any place within it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CharClass {
    Letter,
    /// Where case matters: small letters and those without case, and capitals.
    Lowercase,
    Uppercase,
    Digit,
    Space,
    Newline,
    Symbol,
    Emoji,
}

impl CharClass {
    fn of_char(pattern: &SplitPattern, character: char) -> Option<Self> {
        let class = match character {
            // First: most of what is long is of these.
            'a'..='z' | '一'..='龥' => Self::Lowercase,
            'A'..='Z' | 'À'..='Ö' | 'Ø'..='Þ' | 'Α'..='Ρ' | 'Σ'..='Ω' | 'Ѐ'..='Я' => Self::Uppercase,
            _ if is_lowercase(character) || is_caseless(character) => Self::Lowercase,
            '0'..='9' if pattern.joins_digits => Self::Digit,
            ' ' | '\t' => Self::Space,
            '\n' | '\r' => Self::Newline,
            '!'..='/' | ':'..='@' | '['..='`' | '{'..='~' => Self::Symbol,
            '\u{1f300}'..='\u{1faff}' => Self::Emoji,
            _ => return None,
        };
        let is_letter = matches!(class, Self::Lowercase | Self::Uppercase);
        Some(if is_letter && !pattern.splits_on_case { Self::Letter } else { class })
    }

    /// Whether a run between these two is a piece, or the same part of one wherever the text is cut within it.
    fn is_one_piece(self, run: &str, before: Option<char>, after: Option<char>) -> bool {
        let breaks_line = |character: char| matches!(character, '\r' | '\n');
        match self {
            Self::Letter | Self::Uppercase | Self::Digit | Self::Emoji => true,
            // Letters without case between small ones and capitals belong to the former in the whole text, to the latter alone.
            Self::Lowercase => {
                run.ends_with(is_lowercase)
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

fn is_lowercase(character: char) -> bool {
    matches!(character, 'a'..='z' | 'ß'..='ö' | 'ø'..='ÿ' | 'α'..='ω' | 'а'..='џ')
}

/// A letter without case.
fn is_caseless(character: char) -> bool {
    matches!(character, '一'..='龥' | 'ぁ'..='ゖ' | 'ァ'..='ヺ' | '가'..='힣' | 'א'..='ת' | 'ء'..='غ' | 'ف'..='ي')
}

/// The next long run of one class.
fn find_next_run(pattern: &SplitPattern, text: &str, from: usize) -> Option<Range<usize>> {
    let class_of = |character| CharClass::of_char(pattern, character);
    let mut probe = from + PROBE_STRIDE_BYTES;
    while probe < text.len() {
        let at = text.floor_char_boundary(probe);
        let class = class_of(text[at..].chars().next()?);
        let length = |same: &mut dyn Iterator<Item = char>| -> usize {
            same.take_while(|other| class_of(*other) == class).map(char::len_utf8).sum()
        };
        let run = at - length(&mut text[from..at].chars().rev())..at + length(&mut text[at..].chars());
        let (before, after) = (text[..run.start].chars().next_back(), text[run.end..].chars().next());
        if run.len() >= LONG_RUN_BYTES
            && class.is_some_and(|class| class.is_one_piece(&text[run.clone()], before, after))
        {
            return Some(run);
        }
        probe = run.end.max(probe) + PROBE_STRIDE_BYTES;
    }
    None
}

/// Where each token of a part of the text ends.
struct WindowTokens(Vec<usize>);

/// Where the next window may begin.
#[derive(Clone, Copy)]
struct CutPoint {
    /// How many tokens come before it.
    token_count: usize,
    /// How many bytes these are.
    byte_offset: usize,
}

impl WindowTokens {
    /// How long the token with this number is.
    fn token_length(&self, index: usize) -> Option<usize> {
        let start = index.checked_sub(1).map_or(0, |before| self.0[before]);
        self.0.get(index).map(|end| end - start)
    }
}

struct WindowedCounter<'t> {
    pattern: &'static SplitPattern,
    vocabulary: &'t CoreBpe,
    text: &'t str,
    /// The run in which windows are cut.
    run: Range<usize>,
    /// The part that is looked at.
    window_range: Range<usize>,
    /// Tokens before it.
    tokens_before: usize,
    /// How long the next part is, and how far before the end of this one it begins.
    window_bytes: usize,
    overlap_bytes: usize,
    scratch: MergeState,
}

impl<'t> WindowedCounter<'t> {
    fn new(pattern: &'static SplitPattern, vocabulary: &'t CoreBpe, text: &'t str, run: Range<usize>) -> Self {
        let window_range = 0..text.floor_char_boundary(run.start + MIN_WINDOW_BYTES);
        Self {
            pattern,
            vocabulary,
            text,
            run,
            window_range,
            tokens_before: 0,
            window_bytes: MIN_WINDOW_BYTES,
            overlap_bytes: MIN_OVERLAP_BYTES,
            scratch: MergeState::default(),
        }
    }

    fn count_tokens(mut self) -> usize {
        let mut window = self.merge_window(&self.window_range.clone());
        while self.window_range.end < self.text.len() {
            let Some(place) = self.find_cut_point(&window) else {
                self.window_bytes = 2 * self.window_range.len();
                self.overlap_bytes = MIN_OVERLAP_BYTES;
                self.window_range.end = self.next_window_end(self.window_range.start + self.window_bytes);
                window = self.merge_window(&self.window_range.clone());
                continue;
            };
            let start = self.window_range.start + place.byte_offset;
            let run = self.run.clone();
            let part = start..self.next_window_end(start + self.window_bytes);
            // Texts made to be slow repeat themselves.
            let is_again = self.text[part.clone()] == self.text[self.window_range.clone()];
            let next = if is_again { None } else { Some(self.merge_window(&part)) };
            if next.as_ref().unwrap_or(&window).token_length(0) != window.token_length(place.token_count) {
                // They do not meet here: perhaps at an earlier place.
                self.overlap_bytes *= 2;
                self.run = run;
                continue;
            }
            self.tokens_before += place.token_count;
            self.window_range = part;
            window = next.unwrap_or(window);
            self.overlap_bytes = MIN_OVERLAP_BYTES;
            if place.token_count > WIDE_WINDOW_TOKENS {
                self.window_bytes = MIN_WINDOW_BYTES.max(self.window_bytes / 2);
            }
        }
        self.tokens_before + window.0.len()
    }

    /// Where the part that would end here ends: within this run, within the next one, or with the text.
    fn next_window_end(&mut self, end: usize) -> usize {
        let end = end.max(self.window_range.end + 1);
        if end < self.run.end {
            return self.text.ceil_char_boundary(end);
        }
        match find_next_run(self.pattern, self.text, self.run.end) {
            Some(run) => {
                let end = self.text.floor_char_boundary(run.start + MIN_WINDOW_BYTES);
                self.run = run;
                end
            }
            None => self.text.len(),
        }
    }

    fn merge_window(&mut self, part: &Range<usize>) -> WindowTokens {
        let text = &self.text[part.clone()];
        let ranks = self.pattern.rank_table(self.vocabulary);
        if part.start >= self.run.start && part.end <= self.run.end && text.len() <= MAX_PIECE_BYTES {
            return WindowTokens(ranks.merge(text.as_bytes(), &mut self.scratch));
        }
        let ends = self.vocabulary.encode(text).into_iter().scan(0, |end, token| {
            *end += ranks.token_length(token);
            Some(*end)
        });
        WindowTokens(ends.collect())
    }

    /// The last place that is far enough from the end and within the run.
    fn find_cut_point(&self, window: &WindowTokens) -> Option<CutPoint> {
        let from = self.run.start.max(self.window_range.start);
        let far = window.0.partition_point(|end| self.window_range.len() - end >= self.overlap_bytes);
        let most = window.0.len().saturating_sub(self.overlap_bytes / BYTES_PER_TOKEN);
        let ends = window.0[..far.min(most)].iter().enumerate().rev();
        ends.map(|(index, end)| CutPoint { token_count: index + 1, byte_offset: *end })
            .take_while(|place| self.window_range.start + place.byte_offset > from)
            .find(|place| self.text.is_char_boundary(self.window_range.start + place.byte_offset))
    }
}
