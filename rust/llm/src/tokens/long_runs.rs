//! Token counting of texts with words of hundreds of letters, spaces or symbols, which are slow to merge in one piece.
//!
//! Merging a piece results in a sequence of tokens exactly if merging the text of any two neighbours in it results in
//! these two tokens. So a long piece can be merged in windows that overlap. Two windows are joined at a token that both
//! have at the same position. The tokens of the first window up to there and the later tokens of the second window form
//! one sequence. It equals the result of merging the complete piece.

use std::{ops::Range, sync::OnceLock};

use tiktoken::CoreBpe;

use super::Encoding;
use crate::tokens::{
    ascii_words::{find_next_word, split_word},
    bpe::{MAX_PIECE_BYTES, MergeState, RankTable},
};

/// Runs of at least this length are merged in windows.
const LONG_RUN_BYTES: usize = 256;
/// Distance between probes. A long run cannot lie between two positions that are this far apart.
const PROBE_STRIDE_BYTES: usize = LONG_RUN_BYTES / 2;
/// Minimum length of a window.
const MIN_WINDOW_BYTES: usize = 80;
/// Minimum overlap of two windows. Near the cut at its end, a window may have more tokens than the complete text has
/// there.
const MIN_OVERLAP_BYTES: usize = 12;
/// Number of overlapping bytes for which one token at the end of a window is ignored.
const BYTES_PER_TOKEN: usize = 6;
/// After a window with more tokens than this, the next window may be smaller.
const WIDE_WINDOW_TOKENS: usize = 20;

/// How the pattern of a vocabulary splits text. `PATTERNS` contains only vocabularies that were verified: they split
/// the text after a cut within a run as they split it in the complete text.
struct SplitPattern {
    name: &'static str,
    /// True if a capital letter begins a new piece.
    splits_on_case: bool,
    /// True if digits form one piece, however many there are.
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

/// Counts the tokens of a text; merges long runs in windows.
pub(crate) fn count_by_runs(encoding: Encoding, vocabulary: &CoreBpe, text: &str) -> usize {
    let Some(pattern) = PATTERNS.iter().find(|pattern| pattern.name == encoding.name()) else {
        return vocabulary.count(text);
    };
    let (mut tokens, mut from, mut scratch) = (0, 0, MergeState::default());
    while let Some(word) = find_next_word(text, from, pattern.splits_on_case) {
        tokens += pattern.count_text(vocabulary, &text[from..word.start]);
        from = word.end;
        for chunk in split_word(&text[word], pattern.splits_on_case) {
            tokens += pattern.count_chunk(vocabulary, chunk, &mut scratch);
        }
    }
    tokens + pattern.count_text(vocabulary, &text[from..])
}

impl SplitPattern {
    /// Counts the tokens of a text that has no long ASCII words.
    fn count_text(&'static self, vocabulary: &CoreBpe, text: &str) -> usize {
        match find_next_run(self, text, 0) {
            Some(run) => WindowedCounter::new(self, vocabulary, text, run).count_tokens(),
            None => vocabulary.count(text),
        }
    }

    fn count_chunk(&'static self, vocabulary: &CoreBpe, chunk: &str, scratch: &mut MergeState) -> usize {
        if chunk.len() < LONG_RUN_BYTES {
            return self.rank_table(vocabulary).count_tokens(chunk.as_bytes(), scratch);
        }
        WindowedCounter::new(self, vocabulary, chunk, 0..chunk.len()).count_tokens()
    }

    fn rank_table(&self, vocabulary: &CoreBpe) -> &RankTable {
        self.rank_table.get_or_init(|| RankTable::from_vocabulary(vocabulary))
    }
}

/// Character class. A run of one class is one piece, or the same part of a piece wherever the run is cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CharClass {
    /// Any letter; used if the pattern does not split on case.
    Letter,
    /// Lowercase or caseless letter; used if the pattern splits on case.
    Lowercase,
    /// Uppercase letter; used if the pattern splits on case.
    Uppercase,
    Digit,
    Space,
    Newline,
    Symbol,
    Emoji,
}

impl CharClass {
    fn from_char(pattern: &SplitPattern, character: char) -> Option<Self> {
        let class = match character {
            // The first arm is checked first, and most long runs consist of these characters.
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

    /// Returns true if a run between these two characters is a piece, or the same part of a piece wherever the run is
    /// cut.
    fn is_single_chunk(self, run: &str, before: Option<char>, after: Option<char>) -> bool {
        let breaks_line = |character: char| matches!(character, '\r' | '\n');
        match self {
            Self::Letter | Self::Uppercase | Self::Digit | Self::Emoji => true,
            // In the complete text, caseless letters between lowercase letters and capitals belong to the lowercase
            // letters. In a cut text they belong to the capitals.
            Self::Lowercase => {
                run.ends_with(is_lowercase)
                    || after.is_none_or(|after| {
                        after.is_ascii() && !after.is_ascii_alphabetic() || ('\u{3000}'..='\u{303f}').contains(&after)
                    })
            }
            // Spaces between two line breaks form one piece with them.
            Self::Space => {
                before.is_none_or(|before| !before.is_whitespace()) || after.is_none_or(|after| !after.is_whitespace())
            }
            // Symbols absorb the line breaks and slashes that follow them.
            Self::Newline => before.is_none_or(|before| before.is_ascii_alphanumeric() || before == ' '),
            Self::Symbol => !run.starts_with('/') || !before.is_some_and(breaks_line),
        }
    }
}

fn is_lowercase(character: char) -> bool {
    matches!(character, 'a'..='z' | 'ß'..='ö' | 'ø'..='ÿ' | 'α'..='ω' | 'а'..='џ')
}

/// Returns true for a letter without case.
fn is_caseless(character: char) -> bool {
    matches!(character, '一'..='龥' | 'ぁ'..='ゖ' | 'ァ'..='ヺ' | '가'..='힣' | 'א'..='ת' | 'ء'..='غ' | 'ف'..='ي')
}

/// Returns the next long run of one class.
fn find_next_run(pattern: &SplitPattern, text: &str, from: usize) -> Option<Range<usize>> {
    let class_of = |character| CharClass::from_char(pattern, character);
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
            && class.is_some_and(|class| class.is_single_chunk(&text[run.clone()], before, after))
        {
            return Some(run);
        }
        probe = run.end.max(probe) + PROBE_STRIDE_BYTES;
    }
    None
}

/// End of each token in one window of the text.
struct WindowTokens(Vec<usize>);

/// Position where the next window may begin.
#[derive(Clone, Copy)]
struct CutPoint {
    /// Number of tokens of the window before this position.
    token_count: usize,
    /// Number of bytes of the window before this position.
    byte_offset: usize,
}

impl WindowTokens {
    /// Returns the length in bytes of the token with this index.
    fn token_length(&self, index: usize) -> Option<usize> {
        let start = index.checked_sub(1).map_or(0, |before| self.0[before]);
        self.0.get(index).map(|end| end - start)
    }
}

struct WindowedCounter<'t> {
    pattern: &'static SplitPattern,
    vocabulary: &'t CoreBpe,
    text: &'t str,
    /// Run in which windows are cut.
    run: Range<usize>,
    /// Range of the current window.
    window_range: Range<usize>,
    /// Number of tokens before the current window.
    tokens_before: usize,
    /// Length of the next window.
    window_bytes: usize,
    /// Overlap of the next window with the current one.
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
            let Some(cut) = self.find_cut_point(&window) else {
                self.window_bytes = 2 * self.window_range.len();
                self.overlap_bytes = MIN_OVERLAP_BYTES;
                self.window_range.end = self.next_window_end(self.window_range.start + self.window_bytes);
                window = self.merge_window(&self.window_range.clone());
                continue;
            };
            let start = self.window_range.start + cut.byte_offset;
            let run = self.run.clone();
            let part = start..self.next_window_end(start + self.window_bytes);
            // Texts that are made to be slow repeat themselves, so an identical window is not merged again.
            let is_repeated = self.text[part.clone()] == self.text[self.window_range.clone()];
            let next = if is_repeated { None } else { Some(self.merge_window(&part)) };
            if next.as_ref().unwrap_or(&window).token_length(0) != window.token_length(cut.token_count) {
                // The two windows have different tokens at this position, so an earlier one is tried.
                self.overlap_bytes *= 2;
                self.run = run;
                continue;
            }
            self.tokens_before += cut.token_count;
            self.window_range = part;
            window = next.unwrap_or(window);
            self.overlap_bytes = MIN_OVERLAP_BYTES;
            if cut.token_count > WIDE_WINDOW_TOKENS {
                self.window_bytes = MIN_WINDOW_BYTES.max(self.window_bytes / 2);
            }
        }
        self.tokens_before + window.0.len()
    }

    /// Returns the actual end of a window that would end here: within this run, within the next one, or at the end of
    /// the text.
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

    /// Returns the last cut point that is far enough from the end of the window and within the run.
    fn find_cut_point(&self, window: &WindowTokens) -> Option<CutPoint> {
        let from = self.run.start.max(self.window_range.start);
        let far = window.0.partition_point(|end| self.window_range.len() - end >= self.overlap_bytes);
        let max_position = window.0.len().saturating_sub(self.overlap_bytes / BYTES_PER_TOKEN);
        let ends = window.0[..far.min(max_position)].iter().enumerate().rev();
        ends.map(|(index, end)| CutPoint { token_count: index + 1, byte_offset: *end })
            .take_while(|cut| self.window_range.start + cut.byte_offset > from)
            .find(|cut| self.text.is_char_boundary(self.window_range.start + cut.byte_offset))
    }
}
