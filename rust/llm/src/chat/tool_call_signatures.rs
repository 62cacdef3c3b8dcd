//! Cache of tool call signatures. Providers that sign tool calls require the signature in later requests, but many
//! clients do not send it back.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// Lifetime of a signature in milliseconds. A longer turn continues without it.
const SIGNATURE_TTL_MS: u64 = 60 * 60 * 1000;
/// Maximum length of a signature. Longer ones are not stored.
const MAX_SIGNATURE_BYTES: usize = 64 * 1024;
/// Estimated memory use of an entry without its strings.
const ENTRY_OVERHEAD_BYTES: usize = 256;

/// Maximum number of missing signatures that a request looks up in the shared store.
const MAX_MISSED_CALLS: usize = 64;

/// Callback for each new signature, with its owner, the ID of the tool call and the signature.
pub type SignatureCallback = Box<dyn Fn(u64, &str, &str) + Send + Sync>;

/// Signature cache with a limited size and lifetime. Evicts the oldest entries first.
pub struct SignatureCache {
    state: Mutex<CacheState>,
    max_bytes: usize,
    on_new_signature: Option<SignatureCallback>,
}

impl fmt::Debug for SignatureCache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SignatureCache")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SignatureKey {
    owner_hash: u64,
    call: Box<str>,
}

#[derive(Debug, Default)]
struct CacheState {
    entries: HashMap<SignatureKey, (Box<str>, u64)>,
    /// Keys with their expiry times, in order of expiry.
    expiry_queue: VecDeque<(SignatureKey, u64)>,
    used_bytes: usize,
}

impl SignatureCache {
    pub fn new(max_bytes: usize) -> Self {
        Self { state: Mutex::default(), max_bytes, on_new_signature: None }
    }

    /// Creates a cache with a callback for new signatures, which shares them with other workers.
    pub fn with_callback(max_bytes: usize, callback: SignatureCallback) -> Self {
        Self { on_new_signature: Some(callback), ..Self::new(max_bytes) }
    }

    /// Returns the estimated memory use in bytes.
    pub fn used_bytes(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).used_bytes
    }

    /// Stores a signature; returns true if it is new.
    fn insert(&self, key: SignatureKey, signature: &str, now: u64) -> bool {
        if signature.len() > MAX_SIGNATURE_BYTES {
            return false;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // A tool call is signed only once.
        if state.entries.contains_key(&key) {
            return false;
        }
        let end = now.saturating_add(SIGNATURE_TTL_MS);
        state.used_bytes += entry_bytes(&key, signature);
        state.entries.insert(key.clone(), (signature.into(), end));
        state.expiry_queue.push_back((key, end));
        while state.used_bytes > self.max_bytes || state.expiry_queue.front().is_some_and(|(_, end)| *end < now) {
            state.evict_oldest();
        }
        true
    }

    fn get(&self, key: &SignatureKey, now: u64) -> Option<Box<str>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.entries.get(key).filter(|(_, end)| *end >= now).map(|(signature, _)| signature.clone())
    }
}

impl CacheState {
    fn evict_oldest(&mut self) {
        let oldest = self.expiry_queue.pop_front().map(|(key, _)| key);
        let dropped =
            oldest.and_then(|key| self.entries.remove(&key).map(|(signature, _)| entry_bytes(&key, &signature)));
        self.used_bytes -= dropped.unwrap_or_default();
    }
}

fn entry_bytes(key: &SignatureKey, signature: &str) -> usize {
    // The key is stored in both collections.
    ENTRY_OVERHEAD_BYTES + 2 * key.call.len() + signature.len()
}

/// View of the signature cache for one caller of one model at one provider. Signatures of others are not visible.
#[derive(Debug, Clone)]
pub struct ScopedSignatures {
    pub cache: Arc<SignatureCache>,
    /// Hash that identifies caller, provider and model.
    pub owner_hash: u64,
    /// Current time in milliseconds since 1970.
    pub now_ms: u64,
    /// IDs of tool calls whose signatures are not in the cache.
    missed_calls: Arc<Mutex<Vec<Box<str>>>>,
}

impl ScopedSignatures {
    pub fn new(cache: Arc<SignatureCache>, owner_hash: u64, now_ms: u64) -> Self {
        Self { cache, owner_hash, now_ms, missed_calls: Arc::default() }
    }

    /// Removes and returns the IDs of tool calls whose signatures are not here but may be in the shared store.
    pub fn take_missed_calls(&self) -> Vec<Box<str>> {
        std::mem::take(&mut *self.missed_calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn key(&self, call: &str) -> SignatureKey {
        SignatureKey { owner_hash: self.owner_hash, call: call.into() }
    }

    /// Stores a signature from the shared store, without calling the callback.
    pub fn insert_shared(&self, call: &str, signature: &str) {
        self.cache.insert(self.key(call), signature, self.now_ms);
    }

    pub(crate) fn insert(&self, call: &str, signature: &str) {
        let is_new = self.cache.insert(self.key(call), signature, self.now_ms);
        if let (true, Some(callback)) = (is_new, &self.cache.on_new_signature) {
            callback(self.owner_hash, call, signature);
        }
    }

    pub(crate) fn get(&self, call: &str) -> Option<Box<str>> {
        let signature = self.cache.get(&self.key(call), self.now_ms);
        if signature.is_none() && self.cache.on_new_signature.is_some() {
            let mut missed = self.missed_calls.lock().unwrap_or_else(PoisonError::into_inner);
            if missed.len() < MAX_MISSED_CALLS {
                missed.push(call.into());
            }
        }
        signature
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scoped_signatures(max_bytes: usize) -> ScopedSignatures {
        ScopedSignatures::new(Arc::new(SignatureCache::new(max_bytes)), 1, 1000)
    }

    #[test]
    fn calls_back_for_new_signatures_and_lists_missed_calls() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&calls);
        let callback = move |owner, call: &str, signature: &str| {
            sink.lock().unwrap().push((owner, call.to_owned(), signature.to_owned()));
        };
        let signatures =
            ScopedSignatures::new(Arc::new(SignatureCache::with_callback(10_000, Box::new(callback))), 1, 1000);
        signatures.insert("call_1", "signed");
        signatures.insert("call_1", "signed");
        assert_eq!(*calls.lock().unwrap(), [(1, "call_1".to_owned(), "signed".to_owned())]);
        assert_eq!(
            (signatures.get("call_1").is_some(), signatures.get("call_2"), signatures.take_missed_calls()),
            (true, None, vec!["call_2".into()])
        );
        // The callback is not called for signatures from the shared store.
        signatures.insert_shared("call_2", "by another");
        assert_eq!(
            (signatures.get("call_2").as_deref(), signatures.take_missed_calls().len()),
            (Some("by another"), 0)
        );
        assert_eq!(calls.lock().unwrap().len(), 1);
    }

    #[test]
    fn returns_a_signature_only_to_its_owner_until_it_expires() {
        let signatures = scoped_signatures(10_000);
        signatures.insert("call_1", "signed");
        let find = |owner, now| ScopedSignatures { owner_hash: owner, now_ms: now, ..signatures.clone() }.get("call_1");
        assert_eq!((find(1, 1000).as_deref(), signatures.get("call_2")), (Some("signed"), None));
        assert_eq!(
            (find(2, 1000), find(1, 1000 + SIGNATURE_TTL_MS).is_some(), find(1, 1001 + SIGNATURE_TTL_MS)),
            (None, true, None)
        );
        // Expired entries are removed when the next one is stored.
        ScopedSignatures { now_ms: 2000 + SIGNATURE_TTL_MS, ..signatures.clone() }.insert("call_3", "s");
        assert_eq!(signatures.cache.used_bytes(), entry_bytes(&signatures.key("call_3"), "s"));
    }

    #[test]
    fn evicts_the_oldest_entries_and_does_not_store_long_signatures() {
        let signatures = scoped_signatures(1000);
        for call in ["a", "b", "c", "a", "d", "e"] {
            signatures.insert(call, "signed");
            assert!(signatures.cache.used_bytes() <= 1000);
        }
        let remaining: Vec<_> =
            ["a", "b", "c", "d", "e"].into_iter().filter(|call| signatures.get(call).is_some()).collect();
        assert_eq!(remaining, ["c", "d", "e"]);
        signatures.insert("f", &"x".repeat(MAX_SIGNATURE_BYTES + 1));
        assert!(signatures.get("f").is_none() && signatures.get("d").is_some());
    }
}
