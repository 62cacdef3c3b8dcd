//! Which models a published price is of: clauses about their names.

use std::sync::OnceLock;

use regex::Regex;
use serde::Deserialize;

/// Which names a model goes by; all of them in small letters.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Clause {
    Is(Box<str>),
    Starts(Box<str>),
    Ends(Box<str>),
    Has(Box<str>),
    Like(Pattern),
    Not(Box<Self>),
    Any(Vec<Self>),
    All(Vec<Self>),
}

/// Compiled when it is first needed: few are, and a compiled one is large.
#[derive(Debug, Deserialize)]
#[serde(from = "String")]
pub(crate) struct Pattern {
    text: String,
    compiled: OnceLock<Option<Regex>>,
}

impl From<String> for Pattern {
    fn from(text: String) -> Self {
        Self { text, compiled: OnceLock::new() }
    }
}

impl Pattern {
    fn fits(&self, name: &str) -> bool {
        let compiled = self.compiled.get_or_init(|| Regex::new(&self.text).ok());
        compiled.as_ref().is_some_and(|pattern| pattern.is_match(name))
    }
}

impl Clause {
    pub(crate) fn fits(&self, name: &str) -> bool {
        match self {
            Self::Is(text) => name == &**text,
            Self::Starts(text) => name.starts_with(&**text),
            Self::Ends(text) => name.ends_with(&**text),
            Self::Has(text) => name.contains(&**text),
            Self::Like(pattern) => pattern.fits(name),
            Self::Not(clause) => !clause.fits(name),
            Self::Any(clauses) => clauses.iter().any(|clause| clause.fits(name)),
            Self::All(clauses) => clauses.iter().all(|clause| clause.fits(name)),
        }
    }
}
