//! Counters of admissions by limits.

use crate::process::metrics::Counter as Metric;

/// Maximum number of budgets whose reserved amounts are listed.
pub const MAX_RESERVED_SHOWN: usize = 1000;
/// Time after the last request for a budget in which the amount that other workers hold of it is listed.
pub const RESERVED_SHOWN_MS: u64 = 10_000;

/// Counters of admissions, exported as metrics.
#[derive(Debug, Default)]
pub struct LimitMetrics {
    pub rejected: Metric,
    /// Rejections that a dry run only counted.
    pub would_reject: Metric,
    /// Updates of the node's counters.
    pub counter_updates: Metric,
    /// Accesses to the node's counters that failed.
    pub counter_failures: Metric,
    /// Requests whose group value shares a counter, because there are too many values.
    pub shared_groups: Metric,
}
