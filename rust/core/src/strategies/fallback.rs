//! Fallback routing strategy. Tries targets in order until one succeeds.

use crate::strategies::hedge::Hedge;

/// Failures after which the next target is tried.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FallbackPolicy {
    /// Only these statuses count as failures. If there are none, every status except 2xx does.
    pub failure_statuses: Vec<u16>,
    /// Hedging policy; if set, the second target is tried too while the first is slow.
    pub hedge: Option<Hedge>,
}

impl FallbackPolicy {
    /// Returns true if the next target should be tried after this status, or after no response (`None`). Exactly the
    /// listed statuses count; without a list, all but 2xx.
    pub fn should_fall_back(&self, status: Option<u16>) -> bool {
        status.is_none_or(|status| match (status, &self.failure_statuses[..]) {
            // The connection became a WebSocket.
            (101, _) => false,
            (status, []) => !(200..300).contains(&status),
            (status, listed) => listed.contains(&status),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_except_success_is_a_failure_without_a_list() {
        assert!(![101, 200, 204].into_iter().any(|status| FallbackPolicy::default().should_fall_back(Some(status))));
        assert!(
            [400, 401, 404, 429, 500, 529, 302]
                .into_iter()
                .all(|status| FallbackPolicy::default().should_fall_back(Some(status)))
        );
        assert!(FallbackPolicy::default().should_fall_back(None));
    }

    #[test]
    fn exactly_the_listed_statuses_are_failures() {
        let listed = FallbackPolicy { failure_statuses: vec![429, 200], hedge: None };
        assert!([Some(429), Some(200), None].into_iter().all(|status| listed.should_fall_back(status)));
        assert!(![400, 401, 500, 503, 529, 201].into_iter().any(|status| listed.should_fall_back(Some(status))));
    }
}
