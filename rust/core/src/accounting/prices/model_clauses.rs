//! Model name patterns: decide which models a published price applies to.

use std::sync::OnceLock;

use regex::Regex;
use serde::Deserialize;

/// Condition on a model name in lower case.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NameClause {
    Is(Box<str>),
    #[serde(rename = "starts")]
    StartsWith(Box<str>),
    #[serde(rename = "ends")]
    EndsWith(Box<str>),
    #[serde(rename = "has")]
    Contains(Box<str>),
    Like(LazyRegex),
    Not(Box<Self>),
    Any(Vec<Self>),
    All(Vec<Self>),
}

/// Regular expression compiled on first use. Few are ever used, and a compiled one is large.
#[derive(Debug, Deserialize)]
#[serde(from = "String")]
pub(crate) struct LazyRegex {
    text: String,
    compiled: OnceLock<Option<Regex>>,
}

impl From<String> for LazyRegex {
    fn from(text: String) -> Self {
        Self { text, compiled: OnceLock::new() }
    }
}

impl LazyRegex {
    fn matches(&self, name: &str) -> bool {
        let compiled = self.compiled.get_or_init(|| Regex::new(&self.text).ok());
        compiled.as_ref().is_some_and(|pattern| pattern.is_match(name))
    }
}

impl NameClause {
    pub(crate) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Is(text) => name == &**text,
            Self::StartsWith(text) => name.starts_with(&**text),
            Self::EndsWith(text) => name.ends_with(&**text),
            Self::Contains(text) => name.contains(&**text),
            Self::Like(pattern) => pattern.matches(name),
            Self::Not(clause) => !clause.matches(name),
            Self::Any(clauses) => clauses.iter().any(|clause| clause.matches(name)),
            Self::All(clauses) => clauses.iter().all(|clause| clause.matches(name)),
        }
    }
}
