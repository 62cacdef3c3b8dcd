//! Findings of a partner in texts, and the verdict that follows from them.

use serde_json::json;

use super::SentText;
use crate::guardrails::check::{Change, CheckOutcome};

/// Maximum number of names in the data of a result. A reply may have any number.
const MAX_NAMES: usize = 50;
/// Maximum number of characters of a name in the data of a result.
const MAX_NAME_CHARS: usize = 80;

/// Findings of a partner. They contain names of categories, never parts of texts, because results are shown and logged.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Names of categories that make the check fail.
    pub failed: Vec<String>,
    /// Names of categories that make the check fail, unless `replaced` has new texts.
    pub replaceable: Vec<String>,
    /// The texts that were sent to the partner, without the parts that it found.
    pub replaced: Option<Vec<String>>,
    /// Explanation of the result that replaces the names.
    pub explanation: Option<String>,
}

impl Findings {
    pub(super) fn failed(names: Vec<String>) -> Self {
        Self { failed: names, ..Self::default() }
    }

    /// Returns findings with a single failed name if something was found, else empty findings.
    pub(super) fn failed_if(is_found: bool, name: &str) -> Self {
        Self::failed(is_found.then(|| name.to_owned()).into_iter().collect())
    }

    /// Returns the outcome of the check.
    pub(super) fn conclude(self, partner: &str, texts: &[SentText]) -> CheckOutcome {
        let replaced = self.replaced.filter(|replaced| replaced.len() == texts.len()).unwrap_or_default();
        let changes: Vec<_> = texts
            .iter()
            .zip(replaced)
            .filter(|(sent, new)| sent.text != *new)
            .map(|(sent, new)| (sent.index, new))
            .collect();
        let is_replaced = !changes.is_empty();
        let verdict = self.failed.is_empty() && (self.replaceable.is_empty() || is_replaced);
        let mut names: Vec<String> = self.failed.into_iter().chain(self.replaceable).collect();
        names.sort_unstable();
        names.dedup();
        names.truncate(MAX_NAMES);
        let names: Vec<String> = names.into_iter().map(|name| name.chars().take(MAX_NAME_CHARS).collect()).collect();
        let explanation = self.explanation.unwrap_or_else(|| match (&names[..], is_replaced) {
            ([], _) => format!("{partner} found nothing"),
            (names, false) => format!("{partner} found: {}", names.join(", ")),
            (names, true) => format!("{partner} found and replaced: {}", names.join(", ")),
        });
        let data = json!({"verdict": verdict, "explanation": explanation, "detected": names});
        CheckOutcome { change: is_replaced.then_some(Change::Texts(changes)), ..CheckOutcome::new(verdict, data) }
    }
}
