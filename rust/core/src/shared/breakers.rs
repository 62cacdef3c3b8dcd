//! The circuit breakers of all targets of this worker.

use std::{sync::Arc, time::Duration};

use super::Ledger;
use crate::features::circuit_breaker::{Breaker, Policy, Verdict};

#[derive(Debug, Default)]
pub struct Breakers(Ledger<Breaker>);

impl Breakers {
    pub fn verdict(&self, target: u64, policy: &Policy, now: Duration) -> Verdict {
        self.0.look(target, |breaker| breaker.verdict(policy, now)).unwrap_or(Verdict::Closed)
    }

    /// A request goes to a target. It says how it ended, or is forgotten.
    pub fn begin(self: &Arc<Self>, target: u64, policy: &Policy, now: Duration) -> Passage {
        let is_closed = |breaker: &Breaker| breaker.verdict(policy, now) == Verdict::Closed;
        let is_probe = self.0.with(target, is_closed, |breaker| breaker.begin(policy, now));
        Passage { breakers: Arc::clone(self), target, is_probe }
    }
}

/// One request on its way through a breaker.
#[derive(Debug)]
pub struct Passage {
    breakers: Arc<Breakers>,
    target: u64,
    is_probe: bool,
}

impl Passage {
    /// Says whether the breaker is open from now on.
    pub fn end(mut self, policy: &Policy, now: Duration, failed: bool) -> bool {
        let is_probe = std::mem::take(&mut self.is_probe);
        self.breakers.0.with(self.target, |_| false, |breaker| breaker.end(policy, now, is_probe, failed))
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        if self.is_probe {
            self.breakers.0.with(self.target, |_| false, Breaker::forget);
        }
    }
}
