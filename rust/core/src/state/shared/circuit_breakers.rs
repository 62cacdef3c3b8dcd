//! Circuit breakers of all targets of this worker. Their state is shared with other workers through Redis.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{
    redis::{RedisClient, RedisCommand},
    target_states::TargetStates,
};
use crate::{
    features::circuit_breaker::{Breaker, BreakerPolicy, Verdict},
    state::shared::pubsub::BreakerDelta,
};

/// Time after which an unanswered claim to probe a target is repeated.
const CLAIM_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Claim to probe a half-open target. Redis grants it to one worker, so that only one probe request is sent.
#[derive(Debug, Clone, Copy, Default)]
enum ProbeClaim {
    #[default]
    None,
    Requested(Duration),
    Granted(Duration),
}

#[derive(Debug, Default)]
struct BreakerState {
    breaker: Breaker,
    probe_claim: ProbeClaim,
    unsent_delta: BreakerDelta,
}

impl BreakerState {
    fn verdict(&self, policy: &BreakerPolicy, now: Duration, is_shared: bool) -> Verdict {
        let verdict = self.breaker.verdict(policy, now);
        if is_shared && verdict == Verdict::HalfOpen && !self.holds_probe_claim(policy, now) {
            return Verdict::Open;
        }
        verdict
    }

    fn holds_probe_claim(&self, policy: &BreakerPolicy, now: Duration) -> bool {
        matches!(self.probe_claim, ProbeClaim::Granted(at) if now.saturating_sub(at) < policy.cooldown())
    }

    /// Marks the probe claim as requested if it is due; returns true if so.
    fn start_claim_if_due(&mut self, policy: &BreakerPolicy, now: Duration) -> bool {
        let is_already_requested =
            matches!(self.probe_claim, ProbeClaim::Requested(at) if now.saturating_sub(at) < CLAIM_RETRY_INTERVAL);
        let is_due = self.breaker.verdict(policy, now) == Verdict::HalfOpen;
        let requests = is_due && !is_already_requested && !self.holds_probe_claim(policy, now);
        if requests {
            self.probe_claim = ProbeClaim::Requested(now);
        }
        requests
    }

    /// Adds a result to the unsent delta; returns true if the delta was empty before.
    fn add_to_delta(&mut self, target: u64, policy: &BreakerPolicy, failed: bool) -> bool {
        let is_first = self.unsent_delta.requests == 0;
        self.unsent_delta.target = target;
        self.unsent_delta.cooldown_ms = policy.cooldown().as_millis() as u64;
        self.unsent_delta.requests += 1;
        self.unsent_delta.failures += u64::from(failed);
        is_first
    }
}

#[derive(Debug, Default)]
pub struct CircuitBreakers {
    states: TargetStates<BreakerState>,
    redis: Option<Arc<RedisClient>>,
    /// Targets whose breaker counters have changed since this worker last published them to Redis.
    unsent_targets: Mutex<Vec<u64>>,
}

fn is_breaker_closed(state: &BreakerState) -> bool {
    state.breaker.opened_at().is_none()
}

impl CircuitBreakers {
    pub fn new(redis: Option<Arc<RedisClient>>) -> Self {
        Self { redis, ..Self::default() }
    }

    fn connected_redis(&self) -> Option<&RedisClient> {
        self.redis.as_deref().filter(|redis| redis.is_available())
    }

    /// Returns the verdict for a request without changing any state.
    pub fn peek_verdict(&self, target: u64, policy: &BreakerPolicy, now: Duration) -> Verdict {
        let is_shared = self.connected_redis().is_some();
        self.states.with_existing(target, |state| state.verdict(policy, now, is_shared)).unwrap_or(Verdict::Closed)
    }

    /// Returns the verdict for a request that may be sent. If a probe is due, claims it in Redis.
    pub fn verdict_and_claim(&self, target: u64, policy: &BreakerPolicy, now: Duration) -> Verdict {
        let redis = self.connected_redis();
        let check = |state: &mut BreakerState| {
            (state.verdict(policy, now, redis.is_some()), state.start_claim_if_due(policy, now))
        };
        let (verdict, requests) = self.states.with_existing(target, check).unwrap_or((Verdict::Closed, false));
        self.request_claim(requests, target, policy);
        verdict
    }

    /// Admits a request to a target; `None` if the breaker is open. The request becomes the probe if the breaker is
    /// half-open. The outcome must be recorded with the permit; dropping it releases the probe. With `always`, an open
    /// breaker admits the request too.
    pub fn admit(
        self: &Arc<Self>,
        target: u64,
        policy: &BreakerPolicy,
        now: Duration,
        always: bool,
    ) -> Option<BreakerPermit> {
        let is_shared = self.connected_redis().is_some();
        let is_idle = |state: &BreakerState| state.breaker.verdict(policy, now) == Verdict::Closed;
        let (verdict, requests) = self.states.with_entry(target, is_idle, |state| {
            let verdict = state.verdict(policy, now, is_shared);
            if verdict == Verdict::HalfOpen {
                state.breaker.start_request(policy, now);
            }
            (verdict, state.start_claim_if_due(policy, now))
        });
        self.request_claim(requests, target, policy);
        let (is_probe, is_desperate) = (verdict == Verdict::HalfOpen, verdict == Verdict::Open);
        let permit =
            BreakerPermit { breakers: Arc::clone(self), target_key: target, is_probe, is_forced: is_desperate };
        Some(permit).filter(|_| always || verdict != Verdict::Open)
    }

    fn request_claim(&self, requests: bool, target: u64, policy: &BreakerPolicy) {
        if let (Some(redis), true) = (self.connected_redis(), requests) {
            redis.enqueue(RedisCommand::ClaimProbe { target, cooldown: policy.cooldown() });
        }
    }

    /// Returns the number of open breakers.
    pub fn open_count(&self) -> usize {
        self.states.count_matching(|state| !is_breaker_closed(state))
    }

    fn record_outcome(&self, target: u64, is_probe: bool, policy: &BreakerPolicy, now: Duration, failed: bool) -> bool {
        let is_shared = self.redis.is_some();
        let (opened, is_first) = self.states.with_entry(
            target,
            |_| false,
            |state| {
                let opened = state.breaker.record_result(policy, now, is_probe, failed);
                if is_probe {
                    state.probe_claim = ProbeClaim::None;
                }
                let counts = is_shared && !is_probe && is_breaker_closed(state);
                (opened, counts && state.add_to_delta(target, policy, failed))
            },
        );
        if is_first {
            self.unsent_targets.lock().unwrap_or_else(PoisonError::into_inner).push(target);
        }
        if let Some(redis) = &self.redis {
            let order = match (opened, is_probe) {
                (true, _) => Some(RedisCommand::BreakerOpened { target, opened_at: now }),
                (false, true) => Some(RedisCommand::BreakerClosed { target }),
                (false, false) => failed.then_some(RedisCommand::Flush),
            };
            if let Some(order) = order {
                redis.enqueue(order);
            }
        }
        opened
    }

    /// Removes and returns the results that this worker has not published yet.
    pub fn drain_deltas(&self) -> Vec<BreakerDelta> {
        let targets = mem::take(&mut *self.unsent_targets.lock().unwrap_or_else(PoisonError::into_inner));
        let take_delta = |target: u64| self.states.with_existing(target, |state| mem::take(&mut state.unsent_delta));
        targets.into_iter().filter_map(take_delta).filter(|delta| delta.requests > 0).collect()
    }

    /// Adds results that another worker published.
    pub fn apply_delta(&self, delta: &BreakerDelta, now: Duration) {
        let cooldown = Duration::from_millis(delta.cooldown_ms);
        let add =
            |state: &mut BreakerState| state.breaker.add_remote_counts(cooldown, now, delta.requests, delta.failures);
        self.states.with_entry(delta.target, is_breaker_closed, add);
    }

    /// Opens a breaker that another worker opened.
    pub fn open(&self, target: u64, at: Duration) {
        self.states.with_entry(target, is_breaker_closed, |state| {
            state.breaker.open(at);
            (state.probe_claim, state.unsent_delta) = (ProbeClaim::None, BreakerDelta::default());
        });
    }

    /// Closes a breaker after another worker's request succeeded.
    pub fn close(&self, target: u64, now: Duration) {
        self.states.with_existing(target, |state| {
            state.breaker.close(now);
            (state.probe_claim, state.unsent_delta) = (ProbeClaim::None, BreakerDelta::default());
        });
    }

    /// Applies the reply of Redis to a probe claim.
    pub fn apply_claim_reply(&self, target: u64, now: Duration, is_ours: bool) {
        if is_ours {
            self.states.with_existing(target, |state| state.probe_claim = ProbeClaim::Granted(now));
        }
    }
}

/// Permit of a circuit breaker for one request.
#[derive(Debug)]
pub struct BreakerPermit {
    breakers: Arc<CircuitBreakers>,
    target_key: u64,
    is_probe: bool,
    /// True if the request is sent although the breaker is open, because there is no other target.
    is_forced: bool,
}

impl BreakerPermit {
    /// Returns true if this request probes a half-open target on behalf of all others.
    pub fn is_probe(&self) -> bool {
        self.is_probe
    }

    /// Records the outcome of an attempt; returns true if it opened the breaker.
    pub fn record_outcome(&mut self, policy: &BreakerPolicy, now: Duration, failed: bool) -> bool {
        let is_probe = mem::take(&mut self.is_probe);
        self.breakers.record_outcome(self.target_key, is_probe, policy, now, failed)
    }

    /// Returns true if the breaker has opened since the request was admitted.
    pub fn has_breaker_opened(&self, policy: &BreakerPolicy, now: Duration) -> bool {
        !self.is_forced && self.breakers.peek_verdict(self.target_key, policy, now) != Verdict::Closed
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        if self.is_probe {
            self.breakers.states.with_existing(self.target_key, |state| state.breaker.discard_probe());
        }
    }
}
