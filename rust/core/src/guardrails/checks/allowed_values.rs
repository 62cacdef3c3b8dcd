//! Values that a check should not report: an allow-list against false positives.

use std::collections::HashSet;

use crate::guardrails::javascript_pattern::{JavaScriptFlags, JavaScriptPattern};

/// Values that are not reported: exact texts, and patterns that must match the whole value.
#[derive(Debug, Default)]
pub(super) struct AllowedValues {
    texts: HashSet<String>,
    patterns: Vec<JavaScriptPattern>,
}

impl AllowedValues {
    /// Compiles an allow-list.
    ///
    /// # Errors
    /// If a pattern is not valid or cannot be matched in linear time: its parameter and a message.
    pub fn compile(texts: HashSet<String>, patterns: &[String]) -> Result<Self, (String, String)> {
        let invalid = |message: String| (".allowedPatterns".to_owned(), message);
        let mut compiled = Vec::with_capacity(patterns.len());
        for source in patterns {
            JavaScriptPattern::compile(source, JavaScriptFlags::default()).map_err(invalid)?;
            let whole = format!("^(?:{source})$");
            let pattern = JavaScriptPattern::compile(&whole, JavaScriptFlags::default()).map_err(invalid)?;
            if pattern.is_costly() {
                return Err(invalid("must not have look-around or back references".to_owned()));
            }
            compiled.push(pattern);
        }
        Ok(Self { texts, patterns: compiled })
    }

    pub fn includes(&self, text: &str) -> bool {
        self.texts.contains(text) || self.patterns.iter().any(|pattern| pattern.is_match(text).unwrap_or_default())
    }

    pub fn memory_bytes(&self) -> usize {
        self.patterns.iter().map(JavaScriptPattern::memory_bytes).sum()
    }
}
