//! Counters of admissions by limits.

use crate::process::metrics::Counter as Metric;

/// Budgets whose held amounts are listed, and how long what other workers hold is known.
pub const MAX_HELD_SHOWN: usize = 1000;
pub const HELD_SHOWN_MS: u64 = 10_000;

/// Counters of admissions, exported as metrics.
#[derive(Debug, Default)]
pub struct LimitMetrics {
    pub rejected: Metric,
    /// Rejections that a dry run only counted.
    pub would_reject: Metric,
    /// Accesses to the node's counters, and those that failed.
    pub counter_updates: Metric,
    pub counter_failures: Metric,
    /// Requests whose group value shares a counter, because there are too many values.
    pub shared_groups: Metric,
}
