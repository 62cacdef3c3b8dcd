//! Which target the sessions of a sticky load balance were given to: workers that share through Redis agree with the one who was
//! first, for as long as it holds. Without Redis nothing is remembered, and all come to the same by themselves.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::redis::RedisClient;
use crate::state::shared::bounded_cache::BoundedCache;

/// Bytes of all that one worker remembers, and of one of them with its place.
const MAX_CACHE_BYTES: usize = 8 * 1024 * 1024;
const ENTRY_BYTES: usize = 64;

/// A session that is to be given to a target, by what stands for both.
#[derive(Debug, Clone, Copy)]
pub struct SessionAssignment {
    pub key: u64,
    pub target: u64,
    pub ttl: Duration,
}

#[derive(Debug)]
pub struct StickySessionStore {
    /// Targets, and until when they hold.
    assignments: Mutex<BoundedCache<u64, (u64, Duration)>>,
    redis: Option<Arc<RedisClient>>,
}

impl StickySessionStore {
    pub fn new(redis: Option<Arc<RedisClient>>) -> Self {
        Self { assignments: Mutex::new(BoundedCache::new(MAX_CACHE_BYTES)), redis }
    }

    /// The target of a session, which is given to the one that is wanted where it has none that is still there. `None` where
    /// nobody remembers, now or at all.
    pub async fn assign_target(
        &self,
        wanted: SessionAssignment,
        now: Duration,
        is_there: impl Fn(u64) -> bool + Send,
    ) -> Option<u64> {
        let redis = self.redis.as_ref()?;
        if let Some(target) = self.cached_target(wanted.key, now).filter(|target| is_there(*target)) {
            return Some(target);
        }
        let mut told = redis.assign_session(wanted, false).await;
        if told.is_some_and(|(target, _)| !is_there(target)) {
            told = redis.assign_session(wanted, true).await;
        }
        let (target, left) = told?;
        let until = now.saturating_add(left);
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner).put(wanted.key, (target, until), ENTRY_BYTES);
        Some(target)
    }

    /// The target that this worker remembers.
    pub fn cached_target(&self, key: u64, now: Duration) -> Option<u64> {
        let given = self.assignments.lock().unwrap_or_else(PoisonError::into_inner).get(&key);
        given.filter(|(_, until)| *until > now).map(|(target, _)| target)
    }
}
