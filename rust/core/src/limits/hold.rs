//! Amount of a limit that a request reserves, and the amount that remains for further requests.

use std::sync::Arc;

use super::rule::{LimitRule, OwnerKind, WorkspaceLimits};

/// Reference to one of the limits of an object.
#[derive(Debug, Clone)]
pub struct RuleRef {
    pub rules: Arc<[LimitRule]>,
    pub index: usize,
}

impl RuleRef {
    /// Returns the current state of the limit, given the current limits of its workspace. `None` if it was deleted.
    pub fn find_current(&self, limits: Option<&WorkspaceLimits>) -> Option<Self> {
        let id = &self.owner.id;
        let rules = match self.owner.kind {
            // The limits of a token never change.
            OwnerKind::Token => return Some(self.clone()),
            OwnerKind::Policy | OwnerKind::Workspace => limits?.all.as_ref(),
            OwnerKind::ApiKey => limits?.api_keys.get(id),
            OwnerKind::Provider => limits?.providers.get(id),
            OwnerKind::Integration => limits?.integrations.get(id),
        }?;
        let index = rules.iter().position(|rule| rule.id == self.id)?;
        Some(Self { rules: Arc::clone(rules), index })
    }
}

impl std::ops::Deref for RuleRef {
    type Target = LimitRule;

    fn deref(&self) -> &LimitRule {
        &self.rules[self.index]
    }
}

/// Amount of a limit that is reserved for one request. It stays reserved until it is settled or the window ends.
#[derive(Debug)]
pub struct Hold {
    pub rule: RuleRef,
    pub group: Box<str>,
    pub amount: u64,
    /// Start of the window in which the amount was taken.
    pub start_ms: u64,
}

/// What a request does if a lease has too little for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct TakeTurn {
    /// True if the request cannot get more from Redis and try again.
    pub is_last: bool,
    /// True if the request can wait for another worker that has locked the node's counter, and try again.
    pub can_wait: bool,
}

impl TakeTurn {
    /// The last turn of a request, which takes what it gets.
    pub const LAST: Self = Self { is_last: true, can_wait: false };
}

/// Why nothing was taken of a limit, with the amount that remains as far as this worker knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeError {
    /// Less remains than the request accepts.
    Exceeded(Remaining),
    /// Another worker has locked the node's counter.
    Locked(Remaining),
}

impl TakeError {
    pub fn remaining(self) -> Remaining {
        match self {
            Self::Exceeded(remaining) | Self::Locked(remaining) => remaining,
        }
    }
}

/// Amount of a limit that remains for further requests, as far as this worker knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    pub amount: u64,
    /// Amount reserved by running requests of all workers, plus the leases of other workers. Unused parts are
    /// returned.
    pub reserved: u64,
    /// Time at which the count starts again. `None`: never.
    pub reset_ms: Option<u64>,
    /// True if the node's counters cannot be reached, so that this worker admits only its share.
    pub is_share: bool,
}
