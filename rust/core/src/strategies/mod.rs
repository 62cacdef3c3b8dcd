//! Routing strategies of a config: how a group chooses one of its targets.

pub mod condition_input;
pub mod conditional;
pub mod fallback;
pub mod hedge;
pub mod loadbalance;
pub mod query;

use conditional::ConditionalRouting;
use fallback::FallbackPolicy;
use loadbalance::LoadBalancer;

/// Strategy by which a group chooses one of its targets.
#[derive(Debug, Clone, Default)]
pub enum Strategy {
    /// Uses the first target; also the strategy of a node without targets.
    #[default]
    Single,
    Fallback(FallbackPolicy),
    LoadBalance(LoadBalancer),
    Conditional(ConditionalRouting),
}

impl Strategy {
    /// Returns the hedging policy, if a second target is tried while the first is slow.
    pub fn hedge(&self) -> Option<&hedge::Hedge> {
        if let Self::Fallback(fallback) = self { fallback.hedge.as_ref() } else { None }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Fallback(_) => "fallback",
            Self::LoadBalance(_) => "loadbalance",
            Self::Conditional(_) => "conditional",
        }
    }
}
