//! Verdicts of guardrails and checks, counted from the field `hook_results` of records.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
};

use serde::{Deserialize, de::IgnoredAny};

use super::{MAX_LABEL_CHARS, OTHER};

/// Number of results in one record, by the id of a guardrail or check, and its verdict.
type ById<'j> = HashMap<(Cow<'j, str>, &'static str), u64>;

/// Numbers of verdicts of guardrails and of checks in one record.
pub(super) struct RecordVerdicts<'j> {
    guardrails: ById<'j>,
    checks: ById<'j>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MeteredResults<'j> {
    #[serde(borrow)]
    before_request_hooks: Vec<MeteredGuardrail<'j>>,
    #[serde(borrow)]
    after_request_hooks: Vec<MeteredGuardrail<'j>>,
}

#[derive(Deserialize)]
#[serde(default)]
#[allow(clippy::struct_excessive_bools, reason = "fields of a record")]
struct MeteredGuardrail<'j> {
    #[serde(borrow)]
    id: Cow<'j, str>,
    verdict: bool,
    deny: bool,
    would_deny: bool,
    skipped: bool,
    #[serde(borrow)]
    checks: Vec<MeteredCheck<'j>>,
}

#[derive(Deserialize)]
#[serde(default)]
struct MeteredCheck<'j> {
    #[serde(borrow)]
    id: Cow<'j, str>,
    verdict: bool,
    error: Option<IgnoredAny>,
}

impl Default for MeteredGuardrail<'_> {
    fn default() -> Self {
        let (id, checks) = (Cow::default(), Vec::new());
        Self { id, verdict: true, deny: false, would_deny: false, skipped: false, checks }
    }
}

impl Default for MeteredCheck<'_> {
    fn default() -> Self {
        Self { id: Cow::default(), verdict: true, error: None }
    }
}

impl MeteredGuardrail<'_> {
    fn verdict_name(&self) -> &'static str {
        match self {
            Self { deny: true, .. } => "denied",
            // A guardrail in a dry run has `would_deny` in place of `deny`.
            Self { would_deny: true, .. } => "would_deny",
            Self { skipped: true, .. } => "skipped",
            Self { verdict: true, .. } => "passed",
            Self { verdict: false, .. } => "failed",
        }
    }
}

impl MeteredCheck<'_> {
    fn verdict_name(&self) -> &'static str {
        match self {
            Self { error: Some(_), .. } => "error",
            Self { verdict: true, .. } => "passed",
            Self { verdict: false, .. } => "failed",
        }
    }
}

/// Counts the verdicts in the JSON of `hook_results`, which may be empty. Returns `None` if the JSON has an unexpected
/// form.
pub(super) fn count_verdicts(json: &[u8]) -> Option<RecordVerdicts<'_>> {
    let mut counted = RecordVerdicts { guardrails: HashMap::new(), checks: HashMap::new() };
    if json.is_empty() {
        return Some(counted);
    }
    let results: MeteredResults<'_> = serde_json::from_slice(json).ok()?;
    for result in results.before_request_hooks.into_iter().chain(results.after_request_hooks) {
        let verdict = result.verdict_name();
        *counted.guardrails.entry((result.id, verdict)).or_default() += 1;
        for check in result.checks {
            let verdict = check.verdict_name();
            *counted.checks.entry((check.id, verdict)).or_default() += 1;
        }
    }
    Some(counted)
}

/// Number of results by the id of a guardrail or check, and its verdict.
pub type Verdicts = BTreeMap<(String, &'static str), u64>;

/// Verdicts of all records. The number of different ids is bounded.
#[derive(Debug)]
pub struct VerdictCounts {
    pub guardrails: Verdicts,
    pub checks: Verdicts,
    max_values: usize,
    overflow_count: u64,
}

impl VerdictCounts {
    pub(super) fn new(max_values: usize) -> Self {
        Self { guardrails: Verdicts::new(), checks: Verdicts::new(), max_values, overflow_count: 0 }
    }

    pub(super) fn overflow_count(&self) -> u64 {
        self.overflow_count
    }

    /// Adds the verdicts of a record, `now`. For an amendment, `before` has the verdicts of the record that it changes,
    /// which are not added again.
    pub(super) fn add(&mut self, now: &RecordVerdicts<'_>, before: &RecordVerdicts<'_>) {
        for (counts, now, before) in [
            (&mut self.guardrails, &now.guardrails, &before.guardrails),
            (&mut self.checks, &now.checks, &before.checks),
        ] {
            for (key, count) in now {
                let new = count.saturating_sub(before.get(key).copied().unwrap_or_default());
                if new == 0 {
                    continue;
                }
                let (id, verdict) = key;
                let mut key = (id.chars().take(MAX_LABEL_CHARS).collect(), *verdict);
                if counts.len() >= self.max_values && !counts.contains_key(&key) {
                    OTHER.clone_into(&mut key.0);
                    self.overflow_count += 1;
                }
                *counts.entry(key).or_default() += new;
            }
        }
    }
}
