//! Rate limits and budgets. `rule` defines which requests a limit counts, `window` when its count starts again, and
//! `counter` how much is used. `limiter` admits requests from leases of this worker. `node_counters` stores the counts
//! that all workers of the node share.

pub mod claims;
pub mod cluster;
pub mod counter;
pub mod group_counts;
pub mod header_items;
pub mod hold;
pub mod limit_metrics;
pub mod limiter;
pub mod node_counters;
pub mod recent;
pub mod request_holds;
pub mod rule;
pub mod seen_tokens;
pub mod shared_counter;
mod value_pattern;
pub mod window;

use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum number of group values of one limit that have counters of their own. Further ones share a counter.
pub(crate) const MAX_GROUPS: usize = 100_000;
/// Group value of those that share a counter.
pub(crate) const OTHER_GROUPS: &str = "(others)";

/// Returns the milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
