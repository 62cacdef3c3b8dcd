//! Comparison of a value with those that are expected.

use serde::Deserialize;

use crate::guardrails::javascript_pattern::{JavaScriptFlags, JavaScriptPattern};

/// How a value is compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum MatchType {
    #[default]
    Exact,
    /// The value contains at least one of the expected values.
    Contains,
    /// The value contains every expected value.
    ContainsAll,
    /// One of the expected patterns matches the value.
    Regex,
}

#[derive(Debug)]
pub(super) struct ExpectedValues {
    values: Vec<String>,
    patterns: Vec<JavaScriptPattern>,
    match_type: MatchType,
}

impl ExpectedValues {
    /// Compiles expected values.
    ///
    /// # Errors
    /// If a pattern is not valid. The message contains the reason.
    pub fn compile(values: Vec<String>, match_type: MatchType) -> Result<Self, String> {
        let compile = |value: &String| JavaScriptPattern::compile(value, JavaScriptFlags::default());
        let is_regex = match_type == MatchType::Regex;
        let patterns = if is_regex { values.iter().map(compile).collect::<Result<_, _>>()? } else { Vec::new() };
        Ok(Self { values, patterns, match_type })
    }

    /// Returns true if a list of values is as expected. With `Exact`, it must have all expected values and no others.
    pub fn match_list(&self, actual: &[String]) -> bool {
        let has = |value: &String| actual.contains(value);
        match self.match_type {
            MatchType::Exact => self.values.iter().all(has) && actual.iter().all(|value| self.values.contains(value)),
            MatchType::Contains => self.values.iter().any(has),
            MatchType::ContainsAll => self.values.iter().all(has),
            MatchType::Regex => actual.iter().any(|value| self.matches_pattern(value)),
        }
    }

    /// Returns true if a single value is as expected. With `Exact`, it must be one of the expected values.
    pub fn match_one(&self, actual: &str) -> bool {
        match self.match_type {
            MatchType::Exact => self.values.iter().any(|value| value == actual),
            MatchType::Contains => self.values.iter().any(|value| actual.split([' ', ',']).any(|part| part == value)),
            MatchType::ContainsAll => {
                self.values.iter().all(|value| actual.split([' ', ',']).any(|part| part == value))
            }
            MatchType::Regex => self.matches_pattern(actual),
        }
    }

    fn matches_pattern(&self, text: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.is_match(text).unwrap_or_default())
    }

    pub fn memory_bytes(&self) -> usize {
        self.patterns.iter().map(JavaScriptPattern::memory_bytes).sum()
    }

    pub fn is_costly(&self) -> bool {
        self.patterns.iter().any(JavaScriptPattern::is_costly)
    }
}
