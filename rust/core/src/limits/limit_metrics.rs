//! Counters of admissions by limits.

use crate::process::metrics::Counter as Metric;

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
