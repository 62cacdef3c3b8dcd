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
