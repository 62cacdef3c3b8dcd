//! Which target of a config answers, and what happens when one fails.

pub mod asked;
mod attempts;
mod carried;
pub mod conditional;
mod continuation;
pub mod decision;
mod explain;
pub mod fallback;
pub mod hedge;
mod keeping;
pub mod loadbalance;
pub mod pattern;
mod served;
mod walk;

pub(crate) use continuation::{Continuation, Place};
pub(crate) use explain::{explain, is_asked};
pub(crate) use walk::{open, readdress, route};

use conditional::Conditional;
use fallback::Fallback;
use loadbalance::LoadBalance;

/// How one of several targets is chosen.
#[derive(Debug, Clone, Default)]
pub enum Strategy {
    /// The first; also where there are none.
    #[default]
    Single,
    Fallback(Fallback),
    LoadBalance(LoadBalance),
    Conditional(Conditional),
}

impl Strategy {
    /// Whether a second target is tried while the first is slow.
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
