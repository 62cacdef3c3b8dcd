//! Pub/sub messages about shared state: circuit breaker counts and replaced cached responses. Workers and nodes
//! exchange them through Redis.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::features::cache::CacheKey;
use crate::state::shared::{
    circuit_breakers::CircuitBreakers, monotonic_clock::MonotonicClock, response_cache::ResponseCache,
};

/// Requests and failures that one worker counted for a target since its last message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerDelta {
    pub target: u64,
    pub cooldown_ms: u64,
    pub requests: u64,
    pub failures: u64,
}

/// One pub/sub message. Unknown fields of newer versions are ignored.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PubSubMessage {
    /// Id of the sending worker. Every worker also receives its own messages and skips them by this id.
    pub from: u64,
    pub breaker_deltas: Vec<BreakerDelta>,
    pub opened: Vec<u64>,
    pub closed: Vec<u64>,
    /// Keys of cached responses that were replaced by newer ones.
    pub refreshed: Vec<CacheKey>,
}

impl PubSubMessage {
    pub fn is_empty(&self) -> bool {
        self.breaker_deltas.is_empty() && self.opened.is_empty() && self.closed.is_empty() && self.refreshed.is_empty()
    }
}

/// Applies received messages to the worker's own state.
#[derive(Clone)]
pub struct PubSubHandler {
    pub response_cache: Arc<ResponseCache>,
    pub breakers: Arc<CircuitBreakers>,
    pub clock: Arc<MonotonicClock>,
}

impl PubSubHandler {
    pub fn apply(&self, message: &PubSubMessage) {
        let now = self.clock.now();
        message.breaker_deltas.iter().for_each(|delta| self.breakers.apply_delta(delta, now));
        message.opened.iter().for_each(|target| self.breakers.open(*target, now));
        message.closed.iter().for_each(|target| self.breakers.close(*target, now));
        message.refreshed.iter().for_each(|key| self.response_cache.invalidate(key));
    }

    /// Opens breakers that other workers opened before this worker connected, each with the time since it was opened.
    pub fn restore_open_breakers(&self, opened: impl Iterator<Item = (u64, Duration)>) {
        let now = self.clock.now();
        opened.for_each(|(target, age)| self.breakers.open(target, now.saturating_sub(age)));
    }
}
