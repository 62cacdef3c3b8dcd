//! Regular expressions of a config. Matching takes linear time, and the memory of compiled patterns is bounded.
//! `\d`, `\w` and `\b` mean ASCII characters, as in JavaScript, so that other text does not cost more.

use std::collections::HashMap;

use regex_automata::{meta, nfa::thompson::WhichCaptures, util::syntax};

/// Maximum bytes of a pattern's text. Some character classes compile to thousands of times their written size.
const MAX_PATTERN_BYTES: usize = 2048;
/// Maximum compiled bytes of one pattern.
const MAX_COMPILED_BYTES: usize = 256 * 1024;
/// Maximum compiled bytes of all patterns of a config.
const MAX_TOTAL_COMPILED_BYTES: usize = 4 * 1024 * 1024;
/// Maximum bytes of the cache that matching may use in addition.
const MATCH_CACHE_BYTES: usize = 64 * 1024;

const UNSUPPORTED_PATTERN: &str =
    "is not a regular expression that can be matched in linear time; look-around and back references are not supported";

#[derive(Debug, Clone)]
pub struct Pattern {
    /// Number of the pattern within its config; equal texts have equal numbers.
    pub number: usize,
    regex: meta::Regex,
}

impl Pattern {
    pub fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// Returns the approximate memory use in bytes. Counts the compiled size twice, because the match cache is rarely
    /// larger than that.
    pub fn estimated_bytes(&self) -> usize {
        self.regex.memory_usage() * 2
    }
}

/// Compiled patterns of one config, and their total size so far.
#[derive(Debug, Default)]
pub struct PatternCache {
    compiled_bytes: usize,
    compiled: HashMap<String, Pattern>,
}

impl PatternCache {
    /// Compiles a pattern, or returns the one compiled before from the same text. The error message is empty if the
    /// total limit was already reported.
    pub fn compile(&mut self, text: &str) -> Result<Pattern, String> {
        if self.compiled_bytes > MAX_TOTAL_COMPILED_BYTES {
            return Err(String::new());
        }
        if let Some(cached) = self.compiled.get(text) {
            return Ok(cached.clone());
        }
        let compiled = compile_regex(text);
        // A rejected pattern counts as the maximum, because compiling it cost as much.
        self.compiled_bytes += compiled.as_ref().map_or(MAX_COMPILED_BYTES, meta::Regex::memory_usage);
        if self.compiled_bytes > MAX_TOTAL_COMPILED_BYTES {
            return Err(format!(
                "makes all regular expressions hold more than {MAX_TOTAL_COMPILED_BYTES} bytes when they are compiled"
            ));
        }
        let pattern = Pattern { number: self.compiled.len(), regex: compiled? };
        self.compiled.insert(text.to_owned(), pattern.clone());
        Ok(pattern)
    }
}

fn compile_regex(text: &str) -> Result<meta::Regex, String> {
    if text.len() > MAX_PATTERN_BYTES {
        return Err(format!("must be a regular expression of at most {MAX_PATTERN_BYTES} bytes, not {}", text.len()));
    }
    let config = meta::Config::new()
        .nfa_size_limit(Some(MAX_COMPILED_BYTES))
        .hybrid_cache_capacity(MATCH_CACHE_BYTES)
        // Capture positions are not needed, because patterns only test whether a text matches.
        .which_captures(WhichCaptures::Implicit);
    // A text is searched as a whole, so an empty match within a character does no harm.
    let syntax = syntax::Config::new().utf8(false);
    let text = use_ascii_classes(text);
    meta::Builder::new().configure(config.utf8_empty(false)).syntax(syntax).build(&text).map_err(|error| {
        match error.size_limit() {
            Some(_) => {
                format!(
                    "must hold at most {MAX_COMPILED_BYTES} bytes when it is compiled: repeat large classes less often"
                )
            }
            None => UNSUPPORTED_PATTERN.to_owned(),
        }
    })
}

/// Replaces Perl classes and word boundaries by their ASCII forms, which JavaScript uses.
fn use_ascii_classes(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut class_depth = 0_usize;
    let mut rest = pattern.chars();
    while let Some(character) = rest.next() {
        match character {
            '[' => class_depth += 1,
            ']' => class_depth = class_depth.saturating_sub(1),
            '\\' => {
                let escaped = rest.next().unwrap_or_default();
                let is_plain_boundary = class_depth == 0 && !rest.as_str().starts_with('{');
                match escaped {
                    'd' => out.push_str("[0-9]"),
                    'D' => out.push_str("[^0-9]"),
                    'w' => out.push_str("[0-9A-Za-z_]"),
                    'W' => out.push_str("[^0-9A-Za-z_]"),
                    'b' | 'B' if is_plain_boundary => {
                        out.push_str("(?-u:\\");
                        out.push(escaped);
                        out.push(')');
                    }
                    '\0' => out.push(character),
                    _ => out.extend([character, escaped]),
                }
                continue;
            }
            _ => (),
        }
        out.push(character);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typical_patterns_fit_many_times() {
        let mut patterns = PatternCache::default();
        for number in 0..200 {
            let pattern = patterns.compile(&format!("^(gpt|claude)-{number}[a-z0-9.-]*$")).unwrap();
            assert!(pattern.is_match(&format!("gpt-{number}-mini")) && !pattern.is_match("o3"));
        }
        assert!(PatternCache::default().compile(r"^[\w.+-]+@\w+\.\w{2,3}$").unwrap().is_match("zoe@example.org"));
    }

    #[test]
    fn classes_and_boundaries_are_ascii_as_in_javascript() {
        for (pattern, text, expected) in [
            (r"^\w+$", "zoë", false),
            (r"^[\w-]+$", "a-b_1", true),
            (r"^[^\W\d]+$", "abc", true),
            (r"^[^\W\d]+$", "ab1", false),
            (r"^\d$", "\u{664}", false),
            (r"zo\b", "zoë", true),
            (r"\Bo\b", "zo", true),
            (r"^.{3}$", "zoë", true),
            (r"^\D\W$", "ëë", true),
            (r"^\\d$", r"\d", true),
            (r"^[\]\w]$", "]", true),
            (r"\s", "a\u{a0}b", true),
        ] {
            let compiled = PatternCache::default().compile(pattern).unwrap();
            assert_eq!(compiled.is_match(text), expected, "{pattern} {text}");
        }
        assert!(PatternCache::default().compile("a\\").is_err());
    }

    #[test]
    fn rejects_large_patterns_and_too_many_patterns() {
        let mut patterns = PatternCache::default();
        assert!(patterns.compile(r"\pL{20}").unwrap_err().contains("262144"));
        assert!(patterns.compile(&"a".repeat(MAX_PATTERN_BYTES + 1)).unwrap_err().contains("2048"));
        assert!(patterns.compile("(?=x)").unwrap_err().contains("linear time"));
        let mut patterns = PatternCache::default();
        let results: Vec<_> = (0..1000).map(|number| patterns.compile(&format!(r"\pN\pL{number}")).map(drop)).collect();
        let first = results.iter().position(Result::is_err).unwrap();
        assert!(results[first].as_ref().unwrap_err().contains("4194304"), "{:?}", results[first]);
        assert!(results[first + 1..].iter().all(|reported| *reported == Err(String::new())));
    }

    #[test]
    fn same_pattern_counts_once() {
        let mut patterns = PatternCache::default();
        assert!((0..100_000).all(|_| patterns.compile(r"^\w+$").is_ok()));
    }

    #[test]
    fn stops_compiling_after_many_oversized_patterns() {
        // Stays fast: a rejected pattern counts with the maximum size, so only the first ones are compiled. A pattern
        // that was not compiled has an empty error message.
        let mut patterns = PatternCache::default();
        let results: Vec<_> = (0..5000).map(|number| patterns.compile(&format!(r"\pL{{99}}{number}"))).collect();
        assert!(results.iter().all(Result::is_err));
        let compiled = results.iter().filter(|result| result.as_ref().is_err_and(|error| !error.is_empty())).count();
        assert_eq!(compiled, MAX_TOTAL_COMPILED_BYTES / MAX_COMPILED_BYTES + 1);
    }
}
