//! Routing of a request to the targets of its config. Chooses the target, and decides what happens when one fails.

mod attempts;
pub(crate) mod cache_lookup;
pub mod condition_input;
pub mod conditional;
mod continuation;
pub mod decision;
pub(crate) mod executor;
mod explain;
pub mod fallback;
pub mod hedge;
pub mod loadbalance;
pub mod pattern;
pub(crate) mod replay_body;
pub(crate) mod upstream_response;

pub(crate) use crate::routing::executor::{open_websocket, resolve_model_prefix, route_request};
pub(crate) use continuation::{Continuation, ResumePoint};
pub(crate) use explain::{explain_routing, is_explain_request};

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
