//! Pending charges of background responses. Each response is charged once, by the worker that first learns its usage.
//! Workers share pending charges through Redis, or else on the same node through the control process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::redis::RedisClient;
use crate::state::shared::{bounded_cache::BoundedCache, node_store::NodeStoreClient};

/// Maximum bytes of all pending charges of one worker.
const MAX_TOTAL_BYTES: usize = 4 * 1024 * 1024;
/// Approximate memory of an entry in addition to its key and value.
const ENTRY_OVERHEAD_BYTES: usize = 96;
/// Maximum bytes of a response id; longer ids are ignored.
const MAX_ID_BYTES: usize = 512;
/// Value stored for a response that is already charged.
const PAID_MARKER: &str = "";

#[derive(Debug)]
pub struct PendingCharges {
    /// Maps provider and response id to the requested model, and the provider's own model name if it differs.
    entries: Mutex<BoundedCache<Box<str>, Box<str>>>,
    shared_store: SharedStore,
}

/// Store through which workers share pending charges.
#[derive(Debug)]
pub enum SharedStore {
    None,
    Redis(Arc<RedisClient>),
    NodeStore(Arc<NodeStoreClient>),
}

impl SharedStore {
    fn put(&self, name: String, value: &str) {
        match self {
            Self::None => (),
            Self::Redis(redis) => redis.put(name, value),
            Self::NodeStore(node_store) => node_store.put(name, value.to_owned()),
        }
    }

    /// Stores a value and returns the previous one.
    async fn swap(&self, name: String, value: &str) -> Option<String> {
        match self {
            Self::None => None,
            Self::Redis(redis) => redis.swap(&name, value).await,
            Self::NodeStore(node_store) => node_store.swap(name, value.to_owned()).await,
        }
    }

    /// Returns the value that was stored last.
    async fn get(&self, name: String) -> Option<String> {
        match self {
            Self::None => None,
            Self::Redis(redis) => redis.get_many(&[name]).await.pop().flatten(),
            Self::NodeStore(node_store) => node_store.get(name).await,
        }
    }
}

impl PendingCharges {
    pub fn new(shared_store: SharedStore) -> Self {
        Self { entries: Mutex::new(BoundedCache::new(MAX_TOTAL_BYTES)), shared_store }
    }

    /// Adds the charge of a background response whose usage is not known yet.
    pub fn add(&self, provider: &str, id: &str, model: &str, provider_model: Option<&str>) {
        if id.len() > MAX_ID_BYTES {
            return;
        }
        let (key, value) = (format!("{provider}/{id}"), format!("{model}\n{}", provider_model.unwrap_or_default()));
        self.shared_store.put(store_key(&key), &value);
        self.put_local(key.into(), value.into());
    }

    /// Returns the pending charge of a response; `None` if there is none or it is already paid.
    pub async fn find(self: &Arc<Self>, provider: &str, id: &str) -> Option<PendingCharge> {
        if id.len() > MAX_ID_BYTES {
            return None;
        }
        let key: Box<str> = format!("{provider}/{id}").into();
        match self.shared_store.get(store_key(&key)).await {
            // Another worker, or this one, has already charged it.
            Some(value) if value == PAID_MARKER => self.lock_entries().remove(&key),
            Some(value) => self.put_local(key.clone(), value.into()),
            None => (),
        }
        let is_owed = self.lock_entries().get(&key).is_some();
        is_owed.then(|| PendingCharge { charges: Arc::clone(self), key, is_claimed: false })
    }

    fn lock_entries(&self) -> MutexGuard<'_, BoundedCache<Box<str>, Box<str>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_local(&self, key: Box<str>, value: Box<str>) {
        let bytes = key.len() + value.len() + ENTRY_OVERHEAD_BYTES;
        self.lock_entries().put(key, value, bytes);
    }
}

fn store_key(key: &str) -> String {
    format!("due:{key}")
}

/// Background response that is not charged yet.
#[derive(Debug)]
pub struct PendingCharge {
    charges: Arc<PendingCharges>,
    key: Box<str>,
    /// True if `PAID_MARKER` was already written to the shared store.
    is_claimed: bool,
}

impl PendingCharge {
    /// Returns true if another worker may also charge this response.
    pub fn is_shared(&self) -> bool {
        !matches!(self.charges.shared_store, SharedStore::None)
    }

    /// Marks the response as charged for all workers. Returns true if no other worker has charged it before, or if the
    /// shared store does not reply.
    pub async fn claim_first_payment(&mut self) -> bool {
        self.is_claimed = true;
        self.charges
            .shared_store
            .swap(store_key(&self.key), PAID_MARKER)
            .await
            .is_none_or(|before| before != PAID_MARKER)
    }

    /// Removes the charge. Returns the requested model, and the provider's own model name if it differs; `None` if
    /// another request settled it first.
    pub fn take_models(self) -> Option<(String, Option<String>)> {
        let Self { charges, key, is_claimed } = self;
        let value = {
            let mut entries = charges.lock_entries();
            let value = entries.get(&key)?;
            entries.remove(&key);
            value
        };
        if !is_claimed {
            charges.shared_store.put(store_key(&key), PAID_MARKER);
        }
        let (model, provider_model) = value.split_once('\n')?;
        Some((model.to_owned(), (!provider_model.is_empty()).then(|| provider_model.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn charge_is_settled_once_and_only_for_its_provider() {
        let charges = Arc::new(PendingCharges::new(SharedStore::None));
        charges.add("openai", "resp_1", "m", Some("own"));
        charges.add("openai", &"x".repeat(MAX_ID_BYTES + 1), "m", None);
        assert!(charges.find("azure-openai", "resp_1").await.is_none());
        assert!(charges.find("openai", &"x".repeat(MAX_ID_BYTES + 1)).await.is_none());
        // Two requests find the charge, and one of them settles it.
        let (first, other) =
            (charges.find("openai", "resp_1").await.unwrap(), charges.find("openai", "resp_1").await.unwrap());
        assert_eq!((first.take_models(), other.take_models()), (Some(("m".to_owned(), Some("own".to_owned()))), None));
        assert!(charges.find("openai", "resp_1").await.is_none());
    }
}
