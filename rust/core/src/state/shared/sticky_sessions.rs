//! Target assignments of sticky sessions. Workers that share a Redis use the first assignment while it is valid;
//! without Redis nothing is stored, because every worker computes the same target.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::redis::RedisClient;
use crate::state::shared::bounded_cache::BoundedCache;

/// Maximum size of the local cache.
const MAX_CACHE_BYTES: usize = 8 * 1024 * 1024;
/// Estimated size of one entry of the local cache.
const ENTRY_BYTES: usize = 64;

/// Assignment of a session to a target, both identified by hashes.
#[derive(Debug, Clone, Copy)]
pub struct SessionAssignment {
    pub key: u64,
    pub target: u64,
    pub ttl: Duration,
}

#[derive(Debug)]
pub struct StickySessionStore {
    /// Targets by session key, each with the time until which the assignment is valid.
    assignments: Mutex<BoundedCache<u64, (u64, Duration)>>,
    redis: Option<Arc<RedisClient>>,
}

impl StickySessionStore {
    pub fn new(redis: Option<Arc<RedisClient>>) -> Self {
        Self { assignments: Mutex::new(BoundedCache::new(MAX_CACHE_BYTES)), redis }
    }

    /// Returns the target of a session. Assigns `requested.target` if the session has no target or its target is no
    /// longer available. `None` without Redis, or if Redis does not reply in time.
    pub async fn assign_target(
        &self,
        requested: SessionAssignment,
        now: Duration,
        is_there: impl Fn(u64) -> bool + Send,
    ) -> Option<u64> {
        let redis = self.redis.as_ref()?;
        if let Some(target) = self.cached_target(requested.key, now).filter(|target| is_there(*target)) {
            return Some(target);
        }
        let mut assignment = redis.assign_session(requested, false).await;
        if assignment.is_some_and(|(target, _)| !is_there(target)) {
            assignment = redis.assign_session(requested, true).await;
        }
        let (target, remaining_ttl) = assignment?;
        let until = now.saturating_add(remaining_ttl);
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner).put(
            requested.key,
            (target, until),
            ENTRY_BYTES,
        );
        Some(target)
    }

    /// Returns the target that this worker has cached for a session.
    pub fn cached_target(&self, key: u64, now: Duration) -> Option<u64> {
        let assigned = self.assignments.lock().unwrap_or_else(PoisonError::into_inner).get(&key);
        assigned.filter(|(_, until)| *until > now).map(|(target, _)| target)
    }
}
