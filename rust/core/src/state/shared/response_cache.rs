//! Response cache of a worker, bounded in bytes. Cached responses are shared with other workers through Redis.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;

use super::redis::{CachedLookup, RedisClient, RedisCommand};
use crate::features::cache::CacheKey;
use crate::state::shared::{bounded_cache::BoundedCache, monotonic_clock::MonotonicClock};

/// Approximate memory of a cache entry in addition to its content.
const ENTRY_OVERHEAD_BYTES: usize = 256;
/// Time for which a local entry is used without checking that Redis still has it.
const REDIS_RECHECK_INTERVAL: Duration = Duration::from_mins(1);

/// Complete response in the cache.
#[derive(Debug, Clone)]
pub struct CachedResponse {
    pub content_type: Arc<str>,
    pub body: Bytes,
    expires_at: Duration,
    /// Time of the next check in Redis; `Duration::MAX` if Redis does not have this response.
    recheck_at: Duration,
}

#[derive(Debug)]
pub struct ResponseCache {
    entries: Mutex<BoundedCache<CacheKey, CachedResponse>>,
    /// Maximum bytes of one response.
    max_response_bytes: usize,
    clock: Arc<MonotonicClock>,
    redis: Option<Arc<RedisClient>>,
}

impl ResponseCache {
    /// Creates a cache of about this many bytes.
    pub fn new(bytes: usize, clock: Arc<MonotonicClock>, redis: Option<Arc<RedisClient>>) -> Self {
        Self { entries: Mutex::new(BoundedCache::new(bytes)), max_response_bytes: bytes / 8, clock, redis }
    }

    /// Returns the cached response for a key: from this worker, or from Redis if it responds in time.
    pub async fn find(&self, key: &CacheKey) -> Option<CachedResponse> {
        let local = self.find_local(key);
        let Some(redis) = self.redis.as_ref().filter(|redis| redis.is_available()) else { return local };
        let now = self.clock.now();
        if local.as_ref().is_some_and(|cached| cached.recheck_at > now) {
            return local;
        }
        // Boxed, because few requests wait here and an inline future would enlarge the future of every request.
        match Box::pin(redis.find_response(key)).await {
            CachedLookup::Hit { content_type: kind, body, remaining_ttl } => {
                let cached = CachedResponse {
                    content_type: kind,
                    body,
                    expires_at: now.saturating_add(remaining_ttl),
                    recheck_at: now + REDIS_RECHECK_INTERVAL,
                };
                self.put_local(*key, cached.clone());
                Some(cached)
            }
            CachedLookup::Miss => {
                self.invalidate(key);
                None
            }
            CachedLookup::Unavailable => local,
        }
    }

    fn find_local(&self, key: &CacheKey) -> Option<CachedResponse> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(key)?;
        if entry.expires_at <= self.clock.now() {
            entries.remove(key);
            return None;
        }
        Some(entry)
    }

    fn put_local(&self, key: CacheKey, response: CachedResponse) {
        let bytes = response.body.len() + response.content_type.len() + ENTRY_OVERHEAD_BYTES;
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).put(key, response, bytes);
    }

    /// Removes a local entry, because another worker has stored a newer response.
    pub fn invalidate(&self, key: &CacheKey) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// Response that is being sent to the client and is cached once it is complete.
#[derive(Debug)]
pub struct PendingCacheEntry {
    cache: Arc<ResponseCache>,
    key: CacheKey,
    max_age: Duration,
    content_type: Arc<str>,
    body: Vec<u8>,
    is_too_large: bool,
    /// True if the response replaces an older one, because the client requested a refresh.
    is_refresh: bool,
}

impl PendingCacheEntry {
    pub fn new(cache: Arc<ResponseCache>, key: CacheKey, is_refresh: bool, max_age: Duration, kind: &str) -> Self {
        Self { cache, key, max_age, content_type: kind.into(), body: Vec::new(), is_too_large: false, is_refresh }
    }

    /// Appends a chunk of the response; drops the content if it exceeds the size limit.
    pub fn append(&mut self, chunk: &[u8]) {
        self.is_too_large |= self.body.len() + chunk.len() > self.cache.max_response_bytes;
        if self.is_too_large {
            self.body = Vec::new();
        } else {
            self.body.extend_from_slice(chunk);
        }
    }

    /// Stores the complete response in this worker and, if connected, in Redis.
    pub fn store(self) {
        let Self { cache: responses, key, max_age: age, content_type: kind, body, is_too_large, is_refresh: refreshes } =
            self;
        if is_too_large {
            return;
        }
        let (now, body) = (responses.clock.now(), Bytes::from(body));
        let order = || RedisCommand::StoreResponse {
            key,
            content_type: Arc::clone(&kind),
            body: body.clone(),
            ttl: age,
            is_refresh: refreshes,
        };
        let is_shared = responses.redis.as_ref().is_some_and(|redis| redis.enqueue(order()));
        let agreed = if is_shared { now + REDIS_RECHECK_INTERVAL } else { Duration::MAX };
        responses.put_local(
            key,
            CachedResponse { content_type: kind, body, expires_at: now.saturating_add(age), recheck_at: agreed },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::cache::Partition;

    fn store_response(responses: &Arc<ResponseCache>, key: CacheKey, age: Duration, body: &[u8]) {
        let mut entry = PendingCacheEntry::new(Arc::clone(responses), key, false, age, "text/plain");
        body.chunks(3).for_each(|chunk| entry.append(chunk));
        entry.store();
    }

    #[test]
    fn stores_complete_responses_until_they_expire() {
        let clock = Arc::<MonotonicClock>::default();
        let responses = Arc::new(ResponseCache::new(64 * 1024, Arc::clone(&clock), None));
        let key = |name: &str| CacheKey::compute(Partition::Namespace(name), &[]);
        store_response(&responses, key("a"), Duration::from_mins(1), b"answer");
        store_response(&responses, key("long"), Duration::from_mins(2), b"answer");
        store_response(&responses, key("ever"), Duration::MAX, b"answer");
        store_response(&responses, key("large"), Duration::from_mins(1), &[0; 9000]);
        let cached = responses.find_local(&key("a")).unwrap();
        assert_eq!((&*cached.content_type, &cached.body[..]), ("text/plain", &b"answer"[..]));
        assert!(responses.find_local(&key("large")).is_none());
        clock.advance(Duration::from_mins(1));
        assert!(responses.find_local(&key("a")).is_none() && responses.find_local(&key("long")).is_some());
        clock.advance(Duration::from_hours(24 * 365));
        assert!(responses.find_local(&key("long")).is_none() && responses.find_local(&key("ever")).is_some());
    }
}
