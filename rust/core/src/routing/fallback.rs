//! The strategy that tries one target after the other.

use super::hedge::Hedge;
use crate::{error::Result, response::delivery::Served};

/// After which answers the next target is tried.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fallback {
    /// Empty: after any failure.
    pub statuses: Vec<u16>,
    /// The second target is tried too while the first is slow.
    pub hedge: Option<Hedge>,
}

impl Fallback {
    /// Whether to go on after this. What a provider's policy refuses is for the caller to know, not for others to answer,
    /// unless its status is listed.
    pub(crate) fn has_failed(&self, result: &Result<Served>) -> bool {
        match result {
            Ok(served) => {
                let status = served.status();
                self.goes_on(Some(status)) && (self.statuses.contains(&status) || !served.is_policy_refusal())
            }
            Err(error) => !error.ends_walk() && self.goes_on(None),
        }
    }

    /// Whether to go on after an answer of this status, or after none. A success is never a failure. Where statuses are
    /// listed they decide which answers of a provider that works are failures; one that does not work has always failed.
    pub fn goes_on(&self, status: Option<u16>) -> bool {
        status.is_none_or(|status| match status {
            // 101: a WebSocket.
            101 | 200..=299 => false,
            500..=599 => true,
            status => self.statuses.is_empty() || self.statuses.contains(&status),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_is_never_a_failure() {
        assert!(!Fallback::default().goes_on(Some(200)));
        assert!(!Fallback { statuses: vec![200], hedge: None }.goes_on(Some(200)));
    }

    #[test]
    fn without_a_list_all_else_is_one() {
        assert!(
            [400, 401, 404, 429, 500, 529, 302].into_iter().all(|status| Fallback::default().goes_on(Some(status)))
        );
        assert!(Fallback::default().goes_on(None));
    }

    #[test]
    fn a_list_says_which_refusals_count_and_what_does_not_work_has_failed_anyway() {
        let listed = Fallback { statuses: vec![429], hedge: None };
        assert!(listed.goes_on(Some(429)) && listed.goes_on(Some(503)) && listed.goes_on(None));
        assert!(!listed.goes_on(Some(400)) && !listed.goes_on(Some(401)));
    }
}
