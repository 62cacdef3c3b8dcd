//! Regular expressions in JavaScript's syntax, which guardrails use. Most of them are matched in linear time. The work
//! of those with look-around or back references is limited.

use std::{
    fmt::Write,
    ops::Range,
    time::{Duration, Instant},
};

use fancy_regex::RegexBuilder;
use regex_automata::{PatternID, meta, util::syntax};

/// Maximum bytes of a pattern's text.
const MAX_PATTERN_BYTES: usize = 4096;
/// Maximum compiled bytes of one pattern.
const MAX_COMPILED_BYTES: usize = 256 * 1024;
/// Maximum number of backtracking steps in one match of a pattern with look-around or back references.
const MAX_BACKTRACKS: usize = 50_000;
/// Maximum bytes of a text for a pattern with look-around or back references. Its work may grow with the square of the
/// text even without backtracking, as with `(?=(a+))\1+b`.
const MAX_BACKTRACKING_TEXT_BYTES: usize = 16 * 1024;
/// Maximum time of a search for all matches of a pattern with look-around or back references.
const MAX_SEARCH_TIME: Duration = Duration::from_secs(1);
/// Characters that JavaScript's dot does not match.
const LINE_ENDS: &str = r"\n\r\u{2028}\u{2029}";

/// Flags of a JavaScript regular expression that change what matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JavaScriptFlags {
    pub ignores_case: bool,
    pub is_multi_line: bool,
    pub dot_matches_all: bool,
}

#[derive(Debug, Clone)]
pub enum JavaScriptPattern {
    /// Matches in linear time. The number is the length that `longest_match` returns.
    Linear(meta::Regex, Option<usize>),
    /// Has look-around or back references, so that its work is limited.
    Backtracking(fancy_regex::Regex),
}

/// Matching stopped, because it would take too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooCostly;

/// A match with its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatternMatch {
    pub range: Range<usize>,
    /// Texts of the groups by number, from group 1 on.
    pub captures: Vec<Option<String>>,
    /// Texts of the named groups.
    pub groups: Vec<(String, Option<String>)>,
}

impl JavaScriptPattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// If the pattern is not valid. The message contains the reason.
    pub fn compile(source: &str, flags: JavaScriptFlags) -> Result<Self, String> {
        if source.len() > MAX_PATTERN_BYTES {
            return Err(format!("must be at most {MAX_PATTERN_BYTES} bytes long, not {}", source.len()));
        }
        let linear = translate(source, flags, RegexEngine::Linear)?;
        if let Some(regex) = compile_linear(&linear, flags) {
            return Ok(Self::Linear(regex, longest_match(&linear, flags)));
        }
        let regex = RegexBuilder::new(&translate(source, flags, RegexEngine::Backtracking)?)
            .case_insensitive(flags.ignores_case)
            .multi_line(flags.is_multi_line)
            .backtrack_limit(MAX_BACKTRACKS)
            .delegate_size_limit(MAX_COMPILED_BYTES)
            .delegate_dfa_size_limit(MAX_COMPILED_BYTES)
            .build()
            .map_err(|error| format!("is no valid regular expression: {error}"))?;
        Ok(Self::Backtracking(regex))
    }

    /// Compiles `/pattern/flags`, or a plain pattern.
    ///
    /// # Errors
    /// As for `compile`, and if a flag is unknown.
    pub fn compile_literal(source: &str) -> Result<Self, String> {
        let literal = source.strip_prefix('/').and_then(|rest| rest.rsplit_once('/'));
        let Some((pattern, flags)) = literal.filter(|(pattern, _)| !pattern.is_empty()) else {
            return Self::compile(source, JavaScriptFlags::default());
        };
        if let Some(unknown) = flags.chars().find(|flag| !"gimsuyd".contains(*flag)) {
            return Err(format!("has the unknown flag `{unknown}`; allowed are g, i, m, s, u, y and d"));
        }
        let flags = JavaScriptFlags {
            ignores_case: flags.contains('i'),
            is_multi_line: flags.contains('m'),
            dot_matches_all: flags.contains('s'),
        };
        Self::compile(pattern, flags)
    }

    /// Returns the approximate memory use in bytes.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Self::Linear(regex, _) => regex.memory_usage() * 2,
            Self::Backtracking(_) => MAX_COMPILED_BYTES / 4,
        }
    }

    /// Returns true if the work may grow faster than the text. Such a pattern must not run on a thread that serves
    /// requests.
    pub fn is_costly(&self) -> bool {
        matches!(self, Self::Backtracking(_))
    }

    /// Returns the length of the longest match in bytes. `None` if the length has no limit, or if a match depends on
    /// the beginning or end of the text.
    pub fn longest_match(&self) -> Option<usize> {
        match self {
            Self::Linear(_, longest) => *longest,
            Self::Backtracking(_) => None,
        }
    }

    fn check_length(&self, text: &str) -> Result<(), TooCostly> {
        if self.is_costly() && text.len() > MAX_BACKTRACKING_TEXT_BYTES { Err(TooCostly) } else { Ok(()) }
    }

    pub fn is_match(&self, text: &str) -> Result<bool, TooCostly> {
        self.check_length(text)?;
        match self {
            Self::Linear(regex, _) => Ok(regex.is_match(text)),
            Self::Backtracking(regex) => regex.is_match(text).map_err(|_| TooCostly),
        }
    }

    /// Returns the first match.
    pub fn find(&self, text: &str) -> Result<Option<PatternMatch>, TooCostly> {
        self.check_length(text)?;
        match self {
            Self::Linear(regex, _) => {
                let mut capture_groups = regex.create_captures();
                regex.captures(text, &mut capture_groups);
                let Some(whole) = capture_groups.get_match() else { return Ok(None) };
                let text_of =
                    |index| capture_groups.get_group(index).and_then(|span| text.get(span.range())).map(str::to_owned);
                let names = regex.group_info().pattern_names(PatternID::ZERO).enumerate();
                let groups = names.filter_map(|(index, name)| Some((name?.to_owned(), text_of(index)))).collect();
                let captures = (1..capture_groups.group_len()).map(text_of).collect();
                Ok(Some(PatternMatch { range: whole.range(), captures, groups }))
            }
            Self::Backtracking(regex) => {
                let Some(capture_groups) = regex.captures(text).map_err(|_| TooCostly)? else { return Ok(None) };
                let text_of = |group: Option<fancy_regex::Match<'_>>| group.map(|group| group.as_str().to_owned());
                let captures = (1..capture_groups.len()).map(|index| text_of(capture_groups.get(index))).collect();
                let names = regex.capture_names().flatten();
                let groups = names.map(|name| (name.to_owned(), text_of(capture_groups.name(name)))).collect();
                let range = capture_groups.get(0).map(|whole| whole.range()).unwrap_or_default();
                Ok(Some(PatternMatch { range, captures, groups }))
            }
        }
    }

    /// Returns the ranges of all matches that are not empty.
    pub fn find_all(&self, text: &str) -> Result<Vec<Range<usize>>, TooCostly> {
        self.check_length(text)?;
        match self {
            Self::Linear(regex, _) => {
                Ok(regex.find_iter(text).map(|matched| matched.range()).filter(|range| !range.is_empty()).collect())
            }
            Self::Backtracking(regex) => {
                let started_at = Instant::now();
                let mut ranges = Vec::new();
                for matched in regex.find_iter(text) {
                    let range = matched.map_err(|_| TooCostly)?.range();
                    // Each match may take many backtracking steps, and there may be many matches.
                    if started_at.elapsed() > MAX_SEARCH_TIME {
                        return Err(TooCostly);
                    }
                    if !range.is_empty() {
                        ranges.push(range);
                    }
                }
                Ok(ranges)
            }
        }
    }
}

/// Engine for which a pattern is translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RegexEngine {
    Linear,
    Backtracking,
}

/// Compiles a pattern for matching in linear time; `None` if that is not possible.
fn compile_linear(pattern: &str, flags: JavaScriptFlags) -> Option<meta::Regex> {
    // A text is searched as a whole, so an empty match within a character does no harm.
    let syntax = syntax::Config::new().utf8(false).case_insensitive(flags.ignores_case).multi_line(flags.is_multi_line);
    let config = meta::Config::new().nfa_size_limit(Some(MAX_COMPILED_BYTES)).utf8_empty(true);
    meta::Builder::new().configure(config).syntax(syntax).build(pattern).ok()
}

/// Maximum bytes of a match that a stream may be held back for.
const MAX_WINDOW_MATCH_BYTES: usize = 16 * 1024;

fn longest_match(pattern: &str, flags: JavaScriptFlags) -> Option<usize> {
    let syntax = syntax::Config::new().utf8(false).case_insensitive(flags.ignores_case).multi_line(flags.is_multi_line);
    let parsed = syntax::parse_with(pattern, &syntax).ok()?;
    let properties = parsed.properties();
    let is_anywhere = !properties.look_set().contains_anchor();
    properties.maximum_len().filter(|length| is_anywhere && *length <= MAX_WINDOW_MATCH_BYTES)
}

/// Translates a pattern to Rust's syntax.
fn translate(source: &str, flags: JavaScriptFlags, engine: RegexEngine) -> Result<String, String> {
    let letters: Vec<char> = source.chars().collect();
    let mut output = String::with_capacity(source.len() + 16);
    let mut at = 0;
    while let Some(letter) = letters.get(at).copied() {
        match letter {
            '\\' => at = translate_escape(&letters, at, false, engine, &mut output)?,
            '[' => at = translate_class(&letters, at, engine, &mut output)?,
            '.' if flags.dot_matches_all => push(&mut output, "(?s:.)", &mut at),
            '.' => {
                let _ = write!(output, "[^{LINE_ENDS}]");
                at += 1;
            }
            // A brace that begins no quantifier stands for itself.
            '{' if quantifier_length(&letters[at..]).is_none() => push(&mut output, r"\{", &mut at),
            '}' if !ends_in_open_quantifier(&output) => push(&mut output, r"\}", &mut at),
            // Rust has comments in its verbose mode only, and other extensions after `(?`, which JavaScript rejects.
            '(' if letters.get(at + 1) == Some(&'?') && !is_group_start(&letters[at + 2..]) => {
                return Err("is no valid regular expression: unknown kind of group".to_owned());
            }
            '$' if !flags.is_multi_line => push(&mut output, r"\z", &mut at),
            other => {
                output.push(other);
                at += 1;
            }
        }
    }
    Ok(output)
}

fn push(output: &mut String, text: &str, at: &mut usize) {
    output.push_str(text);
    *at += 1;
}

/// Returns true for characters that may follow `(?` in JavaScript.
fn is_group_start(rest: &[char]) -> bool {
    match rest {
        [':' | '=' | '!', ..] => true,
        ['<', next, ..] => *next == '=' || *next == '!' || next.is_alphabetic() || matches!(next, '_' | '$'),
        _ => false,
    }
}

/// Returns the length of a quantifier such as `{2,3}`.
fn quantifier_length(letters: &[char]) -> Option<usize> {
    let end = letters.iter().position(|letter| *letter == '}')?;
    let inside: String = letters[1..end].iter().collect();
    let (min_repeats, max_repeats) = inside.split_once(',').unwrap_or((&inside, ""));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(min_repeats) && (max_repeats.is_empty() || is_number(max_repeats))).then_some(end + 1)
}

/// Returns true if the output ends in an open quantifier, so that a brace closes it.
fn ends_in_open_quantifier(output: &str) -> bool {
    output.rfind('{').is_some_and(|open| {
        !output[..open].ends_with('\\')
            && output[open + 1..].bytes().all(|byte| byte.is_ascii_digit() || byte == b',')
            && output.len() > open + 1
    })
}

/// Translates an escape sequence; returns the position after it.
fn translate_escape(
    letters: &[char],
    at: usize,
    in_class: bool,
    engine: RegexEngine,
    output: &mut String,
) -> Result<usize, String> {
    let Some(letter) = letters.get(at + 1).copied() else {
        return Err("is no valid regular expression: it ends in a backslash".to_owned());
    };
    let hex = |from: usize, count: usize| -> Option<u32> {
        let digits: String = letters.get(from..from + count)?.iter().collect();
        u32::from_str_radix(&digits, 16).ok()
    };
    let mut end = at + 2;
    match letter {
        'd' => output.push_str(if in_class { "0-9" } else { "[0-9]" }),
        'D' => output.push_str("[^0-9]"),
        'w' => output.push_str(if in_class { "0-9A-Za-z_" } else { "[0-9A-Za-z_]" }),
        'W' => output.push_str("[^0-9A-Za-z_]"),
        's' => output.push_str(if in_class { r"\s\u{feff}" } else { r"[\s\u{feff}]" }),
        'S' => output.push_str(r"[^\s\u{feff}]"),
        'b' if in_class => output.push_str(r"\u{8}"),
        'b' if engine == RegexEngine::Linear => output.push_str(r"(?-u:\b)"),
        'B' if engine == RegexEngine::Linear => output.push_str(r"(?-u:\B)"),
        'b' => output.push_str(r"(?:(?<=[0-9A-Za-z_])(?![0-9A-Za-z_])|(?<![0-9A-Za-z_])(?=[0-9A-Za-z_]))"),
        'B' => output.push_str(r"(?:(?<=[0-9A-Za-z_])(?=[0-9A-Za-z_])|(?<![0-9A-Za-z_])(?![0-9A-Za-z_]))"),
        'n' | 'r' | 't' | 'f' | 'v' => {
            output.push('\\');
            output.push(letter);
        }
        '0' if !letters.get(end).is_some_and(char::is_ascii_digit) => output.push_str(r"\u{0}"),
        'c' if letters.get(end).is_some_and(char::is_ascii_alphabetic) => {
            let _ = write!(output, r"\u{{{:x}}}", u32::from(letters[end]) % 32);
            end += 1;
        }
        'x' => match hex(end, 2) {
            Some(code) => {
                let _ = write!(output, r"\u{{{code:x}}}");
                end += 2;
            }
            None => output.push('x'),
        },
        'u' => match unicode_escape(letters, end) {
            Some((code, after)) => {
                let _ = write!(output, r"\u{{{code:x}}}");
                end = after;
            }
            None => output.push('u'),
        },
        'p' | 'P' if letters.get(end) == Some(&'{') => {
            output.push('\\');
            output.push(letter);
        }
        'k' if letters.get(end) == Some(&'<') && !in_class => output.push_str(r"\k"),
        '1'..='9' if !in_class => {
            output.push('\\');
            output.push(letter);
        }
        letter if letter.is_ascii_alphanumeric() => output.push(letter),
        letter => {
            output.push('\\');
            output.push(letter);
        }
    }
    Ok(end)
}

/// Returns the code point of a `\u` escape, and the position after it. The escape has four digits, or digits in braces,
/// or is a surrogate pair of two escapes.
fn unicode_escape(letters: &[char], from: usize) -> Option<(u32, usize)> {
    let hex = |from: usize, end: usize| -> Option<u32> {
        let digits: String = letters.get(from..end)?.iter().collect();
        u32::from_str_radix(&digits, 16).ok()
    };
    if letters.get(from) == Some(&'{') {
        let close = from + letters[from..].iter().position(|letter| *letter == '}')?;
        let code = hex(from + 1, close)?;
        return char::from_u32(code).map(|_| (code, close + 1));
    }
    let high = hex(from, from + 4)?;
    if (0xd800..0xdc00).contains(&high) && letters.get(from + 4..from + 6) == Some(&['\\', 'u']) {
        let low = hex(from + 6, from + 10).filter(|low| (0xdc00..0xe000).contains(low))?;
        return Some((0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00), from + 10));
    }
    char::from_u32(high).map(|_| (high, from + 4))
}

/// Translates a character class; returns the position after it.
fn translate_class(letters: &[char], start: usize, engine: RegexEngine, output: &mut String) -> Result<usize, String> {
    let mut at = start + 1;
    let is_negated = letters.get(at) == Some(&'^');
    at += usize::from(is_negated);
    if letters.get(at) == Some(&']') {
        // In JavaScript, `[]` matches nothing and `[^]` matches any character.
        output.push_str(if is_negated { "(?s:.)" } else { r"[^\s\S]" });
        return Ok(at + 1);
    }
    output.push_str(if is_negated { "[^" } else { "[" });
    while let Some(letter) = letters.get(at).copied() {
        match letter {
            ']' => {
                output.push(']');
                return Ok(at + 1);
            }
            '\\' => at = translate_escape(letters, at, true, engine, output)?,
            // These begin nested classes and set operations in Rust.
            '[' | '&' | '~' => {
                output.push('\\');
                output.push(letter);
                at += 1;
            }
            '-' if letters.get(at + 1) == Some(&'-') => {
                output.push_str(r"\-");
                at += 1;
            }
            other => {
                output.push(other);
                at += 1;
            }
        }
    }
    Err("is no valid regular expression: a class is not closed".to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(pattern: &str, text: &str) -> Option<String> {
        let pattern = JavaScriptPattern::compile(pattern, JavaScriptFlags::default()).unwrap();
        pattern.find(text).unwrap().map(|matched| text[matched.range].to_owned())
    }

    #[test]
    fn patterns_match_as_in_javascript() {
        for (pattern, text, expected) in [
            (r"\d+", "a١٢34", Some("34")),
            (r"\w+", "ü1_", Some("1_")),
            (r"\bcat\b", "a cat.", Some("cat")),
            (r"a.c", "a\u{2028}c", None),
            (r"a[^]c", "a\nc", Some("a\nc")),
            (r"a[]c", "ac", None),
            (r"[[a]", "[", Some("[")),
            (r"[a&&b]+", "&&", Some("&&")),
            (r"[a--z]", "-", Some("-")),
            (r"[\w-]+", "a-b", Some("a-b")),
            (r"\/x\/", "/x/", Some("/x/")),
            (r"a{", "a{", Some("a{")),
            (r"a{2}", "aaa", Some("aa")),
            (r"a{,2}", "a{,2}", Some("a{,2}")),
            (r"}", "}", Some("}")),
            (r"\u0041\x42", "AB", Some("AB")),
            (r"\u{1F6B0}", "\u{1f6b0}", Some("\u{1f6b0}")),
            (r"\uD83D\uDEB0", "\u{1f6b0}", Some("\u{1f6b0}")),
            (r"\cJ", "\n", Some("\n")),
            (r"\0", "\0", Some("\0")),
            (r"\e\-", "e-", Some("e-")),
            (r"end$", "end\n", None),
            (r"end$", "the end", Some("end")),
            (r"(?<year>\d{4})-\k<year>", "2026-2026", Some("2026-2026")),
            (r"(a)\1", "aa", Some("aa")),
            (r"^(?!.*secret).*$", "nothing", Some("nothing")),
            (r"(?<=\$)\d+", "$42", Some("42")),
            (r"\s", "\u{feff}", Some("\u{feff}")),
            (r"[\s\S]+", "a\nb", Some("a\nb")),
            (r"[\b]", "\u{8}", Some("\u{8}")),
        ] {
            assert_eq!(found(pattern, text).as_deref(), expected, "{pattern} in {text:?}");
        }
    }

    #[test]
    fn literals_have_flags() {
        let matches =
            |source: &str, text: &str| JavaScriptPattern::compile_literal(source).unwrap().is_match(text).unwrap();
        assert!(matches("/ABC/i", "xabc") && !matches("/ABC/", "abc") && matches("/^b$/m", "a\nb"));
        assert!(matches("/a.b/s", "a\nb") && matches("a/b", "a/b") && matches("//", "//"));
        let message = JavaScriptPattern::compile_literal("/a/x").unwrap_err();
        assert!(message.contains("unknown flag `x`"), "{message}");
    }

    #[test]
    fn invalid_patterns_are_rejected() {
        for pattern in ["(", "[a", "a\\", "(?i)a", "(?#c)", "*", &"a".repeat(5000)] {
            assert!(JavaScriptPattern::compile(pattern, JavaScriptFlags::default()).is_err(), "{pattern}");
        }
    }

    #[test]
    fn work_is_limited() {
        let costly = JavaScriptPattern::compile(r"(\w+\s+)+\1z", JavaScriptFlags::default()).unwrap();
        assert_eq!(costly.is_match(&"word ".repeat(400)), Err(TooCostly));
    }

    #[test]
    fn returns_groups() {
        let pattern = JavaScriptPattern::compile(r"(?<a>x)(y)?", JavaScriptFlags::default()).unwrap();
        let matched = pattern.find("zx").unwrap().unwrap();
        assert_eq!((matched.range, matched.captures), (1..2, vec![Some("x".into()), None]));
        assert_eq!(matched.groups, [("a".to_owned(), Some("x".to_owned()))]);
    }

    proptest! {
        #[test]
        fn any_pattern_compiles_or_is_rejected(source in r"[\\\[\](){}?*+^$|.,:<>=!\-&~a-z0-9/]{0,24}", text in ".{0,40}") {
            if let Ok(pattern) = JavaScriptPattern::compile(&source, JavaScriptFlags::default()) {
                drop(pattern.find(&text));
                drop(pattern.find_all(&text));
            }
        }
    }
}
