//! A regular expression of a config: matched in linear time, and bounded in what it holds.

use std::collections::HashMap;

use regex_automata::{meta, nfa::thompson::WhichCaptures};

/// Bytes of its text: some of its classes are thousands of times as large as they are written.
const MAX_PATTERN_BYTES: usize = 2048;
/// Bytes that one may hold compiled, and all of a config.
const MAX_COMPILED_BYTES: usize = 256 * 1024;
const MAX_TOTAL_COMPILED_BYTES: usize = 4 * 1024 * 1024;
/// Bytes that matching may keep beside it.
const MATCH_CACHE_BYTES: usize = 64 * 1024;

const UNSUPPORTED_PATTERN: &str =
    "is no regular expression that is matched in linear time: it has neither look-around nor back references";

#[derive(Debug, Clone)]
pub struct Pattern(meta::Regex);

impl Pattern {
    pub fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    /// About so many bytes it holds; what matching keeps is mostly no more than that.
    pub fn estimated_bytes(&self) -> usize {
        self.0.memory_usage() * 2
    }
}

/// The patterns of a config, and what they hold so far.
#[derive(Debug, Default)]
pub struct PatternCache {
    compiled_bytes: usize,
    compiled: HashMap<String, meta::Regex>,
}

impl PatternCache {
    /// Compiles one more; an empty message where it was told before that there are too many.
    pub fn compile(&mut self, text: &str) -> Result<Pattern, String> {
        if self.compiled_bytes > MAX_TOTAL_COMPILED_BYTES {
            return Err(String::new());
        }
        if let Some(known) = self.compiled.get(text) {
            return Ok(Pattern(known.clone()));
        }
        let compiled = compile_regex(text);
        // What is given up has cost as much.
        self.compiled_bytes += compiled.as_ref().map_or(MAX_COMPILED_BYTES, meta::Regex::memory_usage);
        if self.compiled_bytes > MAX_TOTAL_COMPILED_BYTES {
            return Err(format!(
                "makes all regular expressions hold more than {MAX_TOTAL_COMPILED_BYTES} bytes when they are compiled"
            ));
        }
        let compiled = compiled?;
        self.compiled.insert(text.to_owned(), compiled.clone());
        Ok(Pattern(compiled))
    }
}

fn compile_regex(text: &str) -> Result<meta::Regex, String> {
    if text.len() > MAX_PATTERN_BYTES {
        return Err(format!("must be a regular expression of at most {MAX_PATTERN_BYTES} bytes, not {}", text.len()));
    }
    let config = meta::Config::new()
        .nfa_size_limit(Some(MAX_COMPILED_BYTES))
        .hybrid_cache_capacity(MATCH_CACHE_BYTES)
        // Nobody asks where in a text it matched.
        .which_captures(WhichCaptures::Implicit);
    meta::Builder::new().configure(config).build(text).map_err(|error| match error.size_limit() {
        Some(_) => {
            format!("must hold at most {MAX_COMPILED_BYTES} bytes when it is compiled: repeat large classes less often")
        }
        None => UNSUPPORTED_PATTERN.to_owned(),
    })
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
        assert!(PatternCache::default().compile(r"^[\w.+-]+@\w+\.\w{2,3}$").unwrap().is_match("zoë@example.org"));
    }

    #[test]
    fn rejects_large_patterns_and_too_many_patterns() {
        let mut patterns = PatternCache::default();
        assert!(patterns.compile(r"\w{20}").unwrap_err().contains("262144"));
        assert!(patterns.compile(&"a".repeat(MAX_PATTERN_BYTES + 1)).unwrap_err().contains("2048"));
        assert!(patterns.compile("(?=x)").unwrap_err().contains("linear time"));
        let mut patterns = PatternCache::default();
        let told: Vec<_> = (0..1000).map(|number| patterns.compile(&format!(r"\w\pL{number}")).map(drop)).collect();
        let first = told.iter().position(Result::is_err).unwrap();
        assert!(told[first].as_ref().unwrap_err().contains("4194304"), "{:?}", told[first]);
        assert!(told[first + 1..].iter().all(|told| *told == Err(String::new())));
    }

    #[test]
    fn same_pattern_counts_once() {
        let mut patterns = PatternCache::default();
        assert!((0..100_000).all(|_| patterns.compile(r"^\w+$").is_ok()));
    }

    #[test]
    fn stops_compiling_after_many_oversized_patterns() {
        let (began, mut patterns) = (std::time::Instant::now(), PatternCache::default());
        assert!((0..5000).all(|number| patterns.compile(&format!(r"\w{{99}}{number}")).is_err()));
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
    }
}
