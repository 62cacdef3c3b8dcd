//! Fallback routing strategy. Tries targets one after the other until one succeeds.

use crate::strategies::hedge::Hedge;

/// Failures after which the next target is tried.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FallbackPolicy {
    /// Statuses that count as failures; if empty, every unsuccessful status does.
    pub failure_statuses: Vec<u16>,
    /// Hedging policy; if set, the second target is tried too while the first is slow.
    pub hedge: Option<Hedge>,
}

impl FallbackPolicy {
    /// Returns true if the next target should be tried after this status, or after no response (`None`). A success is
    /// never a failure, and a 5xx status always is. `failure_statuses` decides about all others.
    pub fn should_fall_back(&self, status: Option<u16>) -> bool {
        status.is_none_or(|status| match status {
            // 101: the connection became a WebSocket.
            101 | 200..=299 => false,
            500..=599 => true,
            status => self.failure_statuses.is_empty() || self.failure_statuses.contains(&status),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_is_never_a_failure() {
        assert!(!FallbackPolicy::default().should_fall_back(Some(200)));
        assert!(!FallbackPolicy { failure_statuses: vec![200], hedge: None }.should_fall_back(Some(200)));
    }

    #[test]
    fn every_other_status_is_a_failure_without_a_list() {
        assert!(
            [400, 401, 404, 429, 500, 529, 302]
                .into_iter()
                .all(|status| FallbackPolicy::default().should_fall_back(Some(status)))
        );
        assert!(FallbackPolicy::default().should_fall_back(None));
    }

    #[test]
    fn list_selects_client_errors_but_server_errors_always_fail() {
        let listed = FallbackPolicy { failure_statuses: vec![429], hedge: None };
        assert!(
            listed.should_fall_back(Some(429)) && listed.should_fall_back(Some(503)) && listed.should_fall_back(None)
        );
        assert!(!listed.should_fall_back(Some(400)) && !listed.should_fall_back(Some(401)));
    }
}
