//! Regular expressions of conditions that take long to match. They are matched on a blocking thread before a target is
//! chosen, so that other requests do not wait for them. The work is limited.

use std::{collections::HashMap, sync::LazyLock, time::Duration};

use crate::{
    config::Node,
    error::{Error, Result},
    parse::bounded_regex::Pattern,
    state::shared::fair_permits::FairPermits,
    strategies::condition_input::{ConditionInput, PatternResults, ValueSource},
};

/// Maximum bytes that all patterns together search on a thread that serves requests. A byte takes up to a microsecond.
const MAX_INLINE_SEARCH_BYTES: usize = 4 * 1024;
/// Maximum bytes that all patterns of one request may search.
const MAX_SEARCH_BYTES: usize = 2 * 1024 * 1024;
/// Permits to match patterns: for two requests at the same time, and one of each workspace. Other requests wait.
static SEARCHES: LazyLock<FairPermits> = LazyLock::new(|| FairPermits::new(2, 1));
/// Maximum wait for the patterns of other requests.
const MAX_PERMIT_WAIT: Duration = Duration::from_secs(5);

/// Patterns to match with texts of one request. The text of each source is copied once.
pub(super) struct PatternJobs {
    texts: HashMap<ValueSource, Option<String>>,
    patterns: Vec<(Pattern, ValueSource)>,
}

impl PatternJobs {
    /// Collects the patterns below a node; `None` if they are cheap enough to be matched when they are needed. Fails if
    /// they would search more than the limit.
    pub fn collect(root: &Node, input: &ConditionInput<'_>) -> Result<Option<Self>> {
        let mut bytes = 0_usize;
        root.visit_patterns(&mut |_, source| {
            bytes = bytes.saturating_add(source.resolve(input).as_str().map_or(0, str::len));
        });
        if bytes > MAX_SEARCH_BYTES {
            return Err(Error::ConditionsTooExpensive { bytes, limit: MAX_SEARCH_BYTES });
        }
        if bytes <= MAX_INLINE_SEARCH_BYTES {
            return Ok(None);
        }
        let mut jobs = Self { texts: HashMap::new(), patterns: Vec::new() };
        root.visit_patterns(&mut |pattern, source| {
            jobs.texts.entry(source.clone()).or_insert_with(|| source.resolve(input).to_scalar_string());
            jobs.patterns.push((pattern.clone(), source.clone()));
        });
        Ok(Some(jobs))
    }

    /// Matches the patterns for a request of this workspace. Fails if other requests take too long.
    pub async fn run(self, workspace: Option<&str>) -> Result<PatternResults> {
        // A search neither panics nor is cancelled, unless the process shuts down.
        let waiting = tokio::time::timeout(MAX_PERMIT_WAIT, SEARCHES.acquire(workspace));
        let permit = waiting.await.map_err(|_| Error::Overloaded)?.ok_or(Error::Draining)?;
        let search = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let Self { texts, patterns } = self;
            let mut results = PatternResults::new();
            for (pattern, source) in patterns {
                let text = texts.get(&source).and_then(Option::as_deref);
                let number = pattern.number;
                results.entry((number, source)).or_insert_with(|| text.is_some_and(|text| pattern.is_match(text)));
            }
            results
        });
        search.await.map_err(|_| Error::Draining)
    }
}
