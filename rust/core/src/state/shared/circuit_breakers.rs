//! The circuit breakers of all targets of this worker, and through Redis of all workers.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{
    Ledger,
    redis::{Order, Redis},
};
use crate::features::circuit_breaker::{Breaker, Policy, Verdict};
use crate::state::shared::pubsub::Seen;

/// The right to try a target is asked for again after this.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Of all workers one sends the request that tries a target: the one that Redis gave the right to.
#[derive(Debug, Clone, Copy, Default)]
enum Claim {
    #[default]
    None,
    Asked(Duration),
    Held(Duration),
}

#[derive(Debug, Default)]
struct State {
    breaker: Breaker,
    claim: Claim,
    untold: Seen,
}

impl State {
    fn verdict(&self, policy: &Policy, now: Duration, is_shared: bool) -> Verdict {
        let verdict = self.breaker.verdict(policy, now);
        if is_shared && verdict == Verdict::HalfOpen && !self.holds_claim(policy, now) {
            return Verdict::Open;
        }
        verdict
    }

    fn holds_claim(&self, policy: &Policy, now: Duration) -> bool {
        matches!(self.claim, Claim::Held(at) if now.saturating_sub(at) < policy.cooldown())
    }

    /// Whether it is time to ask for the right to try.
    fn asks(&mut self, policy: &Policy, now: Duration) -> bool {
        let is_asked = matches!(self.claim, Claim::Asked(at) if now.saturating_sub(at) < ASK_AGAIN);
        let is_due = self.breaker.verdict(policy, now) == Verdict::HalfOpen;
        let asks = is_due && !is_asked && !self.holds_claim(policy, now);
        if asks {
            self.claim = Claim::Asked(now);
        }
        asks
    }

    /// Says whether there was nothing to be told before.
    fn remember(&mut self, target: u64, policy: &Policy, failed: bool) -> bool {
        let is_first = self.untold.requests == 0;
        self.untold.target = target;
        self.untold.cooldown_ms = policy.cooldown().as_millis() as u64;
        self.untold.requests += 1;
        self.untold.failures += u64::from(failed);
        is_first
    }
}

#[derive(Debug, Default)]
pub struct Breakers {
    ledger: Ledger<State>,
    redis: Option<Arc<Redis>>,
    /// Targets of which something is to be told.
    untold: Mutex<Vec<u64>>,
}

fn is_closed(state: &State) -> bool {
    state.breaker.opened().is_none()
}

impl Breakers {
    pub fn new(redis: Option<Arc<Redis>>) -> Self {
        Self { redis, ..Self::default() }
    }

    fn redis(&self) -> Option<&Redis> {
        self.redis.as_deref().filter(|redis| redis.is_there())
    }

    /// What a request would be told. It changes nothing.
    pub fn look(&self, target: u64, policy: &Policy, now: Duration) -> Verdict {
        let is_shared = self.redis().is_some();
        self.ledger.look(target, |state| state.verdict(policy, now, is_shared)).unwrap_or(Verdict::Closed)
    }

    /// The same for a request that may go there: where it is time to try, the right to is asked for.
    pub fn verdict(&self, target: u64, policy: &Policy, now: Duration) -> Verdict {
        let redis = self.redis();
        let look = |state: &mut State| (state.verdict(policy, now, redis.is_some()), state.asks(policy, now));
        let (verdict, asks) = self.ledger.look(target, look).unwrap_or((Verdict::Closed, false));
        self.claim(asks, target, policy);
        verdict
    }

    /// A request goes to a target, unless that is closed off; of a half-open one it is the request that tries. It says how it
    /// ended, or is forgotten. `always`: where it is closed off too.
    pub fn begin(self: &Arc<Self>, target: u64, policy: &Policy, now: Duration, always: bool) -> Option<Passage> {
        let is_shared = self.redis().is_some();
        let is_idle = |state: &State| state.breaker.verdict(policy, now) == Verdict::Closed;
        let (verdict, asks) = self.ledger.with(target, is_idle, |state| {
            let verdict = state.verdict(policy, now, is_shared);
            if verdict == Verdict::HalfOpen {
                state.breaker.begin(policy, now);
            }
            (verdict, state.asks(policy, now))
        });
        self.claim(asks, target, policy);
        let (is_probe, is_desperate) = (verdict == Verdict::HalfOpen, verdict == Verdict::Open);
        let passage = Passage { breakers: Arc::clone(self), target, is_probe, is_desperate };
        Some(passage).filter(|_| always || verdict != Verdict::Open)
    }

    fn claim(&self, asks: bool, target: u64, policy: &Policy) {
        if let (Some(redis), true) = (self.redis(), asks) {
            redis.order(Order::Claim { target, cooldown: policy.cooldown() });
        }
    }

    /// So many targets are closed off now.
    pub fn open_now(&self) -> usize {
        self.ledger.count(|state| !is_closed(state))
    }

    fn end(&self, (target, is_probe): (u64, bool), policy: &Policy, now: Duration, failed: bool) -> bool {
        let is_told = self.redis.is_some();
        let (opened, is_first) = self.ledger.with(
            target,
            |_| false,
            |state| {
                let opened = state.breaker.end(policy, now, is_probe, failed);
                if is_probe {
                    state.claim = Claim::None;
                }
                let counts = is_told && !is_probe && is_closed(state);
                (opened, counts && state.remember(target, policy, failed))
            },
        );
        if is_first {
            self.untold.lock().unwrap_or_else(PoisonError::into_inner).push(target);
        }
        if let Some(redis) = &self.redis {
            let order = match (opened, is_probe) {
                (true, _) => Some(Order::Opened { target, at: now }),
                (false, true) => Some(Order::Closed { target }),
                (false, false) => failed.then_some(Order::Tell),
            };
            if let Some(order) = order {
                redis.order(order);
            }
        }
        opened
    }

    /// What this worker saw and others do not know.
    pub fn untold(&self) -> Vec<Seen> {
        let targets = mem::take(&mut *self.untold.lock().unwrap_or_else(PoisonError::into_inner));
        let take = |target: u64| self.ledger.look(target, |state| mem::take(&mut state.untold));
        targets.into_iter().filter_map(take).filter(|seen| seen.requests > 0).collect()
    }

    /// What another worker saw.
    pub fn add(&self, seen: &Seen, now: Duration) {
        let cooldown = Duration::from_millis(seen.cooldown_ms);
        let add = |state: &mut State| state.breaker.add(cooldown, now, seen.requests, seen.failures);
        self.ledger.with(seen.target, is_closed, add);
    }

    /// Another worker closed a target off.
    pub fn open(&self, target: u64, at: Duration) {
        self.ledger.with(target, is_closed, |state| {
            state.breaker.open(at);
            (state.claim, state.untold) = (Claim::None, Seen::default());
        });
    }

    /// Another worker's request succeeded there.
    pub fn close(&self, target: u64, now: Duration) {
        self.ledger.look(target, |state| {
            state.breaker.close(now);
            (state.claim, state.untold) = (Claim::None, Seen::default());
        });
    }

    /// Redis said who tries.
    pub fn claimed(&self, target: u64, now: Duration, is_ours: bool) {
        if is_ours {
            self.ledger.look(target, |state| state.claim = Claim::Held(now));
        }
    }
}

/// One request on its way through a breaker.
#[derive(Debug)]
pub struct Passage {
    breakers: Arc<Breakers>,
    target: u64,
    is_probe: bool,
    /// It goes although the target is closed off: there is no other.
    is_desperate: bool,
}

impl Passage {
    /// Whether it tries a target that was closed off, for all others.
    pub fn is_probe(&self) -> bool {
        self.is_probe
    }

    /// How an attempt ended; says whether the breaker opened with it.
    pub fn count(&mut self, policy: &Policy, now: Duration, failed: bool) -> bool {
        let is_probe = mem::take(&mut self.is_probe);
        self.breakers.end((self.target, is_probe), policy, now, failed)
    }

    /// Whether the target was closed off since.
    pub fn is_closed_off(&self, policy: &Policy, now: Duration) -> bool {
        !self.is_desperate && self.breakers.look(self.target, policy, now) != Verdict::Closed
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        if self.is_probe {
            self.breakers.ledger.look(self.target, |state| state.breaker.forget());
        }
    }
}
