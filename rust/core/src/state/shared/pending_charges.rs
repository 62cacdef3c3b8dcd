//! Responses that go on in the background: each is paid for once, by who is told first what it used. Other workers know of them
//! through Redis; without one those of the same node do, through the control process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::redis::RedisClient;
use crate::state::shared::{bounded_cache::BoundedCache, node_store::NodeStoreClient};

/// Bytes of all that one worker remembers, and of one of them with its place.
const MAX_TOTAL_BYTES: usize = 4 * 1024 * 1024;
const ENTRY_OVERHEAD_BYTES: usize = 96;
/// An id that is longer is none.
const MAX_ID_BYTES: usize = 512;
/// What is noted of one that is paid for.
const PAID_MARKER: &str = "";

#[derive(Debug)]
pub struct PendingCharges {
    /// By provider and id: the model as it was asked for, and its own name where it has another.
    entries: Mutex<BoundedCache<Box<str>, Box<str>>>,
    shared_store: SharedStore,
}

/// Who else may be asked for a response, or be told what it used.
#[derive(Debug)]
pub enum SharedStore {
    None,
    Redis(Arc<RedisClient>),
    NodeStore(Arc<NodeStoreClient>),
}

impl SharedStore {
    fn put(&self, name: String, said: &str) {
        match self {
            Self::None => (),
            Self::Redis(redis) => redis.put(name, said),
            Self::NodeStore(neighbours) => neighbours.put(name, said.to_owned()),
        }
    }

    /// Leaves a note, and says what was noted there before.
    async fn swap(&self, name: String, said: &str) -> Option<String> {
        match self {
            Self::None => None,
            Self::Redis(redis) => redis.swap(&name, said).await,
            Self::NodeStore(neighbours) => neighbours.swap(name, said.to_owned()).await,
        }
    }

    /// What one of them noted last.
    async fn get(&self, name: String) -> Option<String> {
        match self {
            Self::None => None,
            Self::Redis(redis) => redis.get_many(&[name]).await.pop().flatten(),
            Self::NodeStore(neighbours) => neighbours.get(name).await,
        }
    }
}

impl PendingCharges {
    pub fn new(shared_store: SharedStore) -> Self {
        Self { entries: Mutex::new(BoundedCache::new(MAX_TOTAL_BYTES)), shared_store }
    }

    /// What it will have used nobody knows yet.
    pub fn add(&self, provider: &str, id: &str, (model, own): (&str, Option<&str>)) {
        if id.len() > MAX_ID_BYTES {
            return;
        }
        let (key, said) = (format!("{provider}/{id}"), format!("{model}\n{}", own.unwrap_or_default()));
        self.shared_store.put(store_key(&key), &said);
        self.put_local(key.into(), said.into());
    }

    /// Whether it is to be paid for.
    pub async fn find(self: &Arc<Self>, provider: &str, id: &str) -> Option<PendingCharge> {
        if id.len() > MAX_ID_BYTES {
            return None;
        }
        let key: Box<str> = format!("{provider}/{id}").into();
        match self.shared_store.get(store_key(&key)).await {
            // Whoever it was that paid.
            Some(said) if said == PAID_MARKER => self.lock_entries().remove(&key),
            Some(said) => self.put_local(key.clone(), said.into()),
            None => (),
        }
        let is_owed = self.lock_entries().get(&key).is_some();
        is_owed.then(|| PendingCharge { charges: Arc::clone(self), key })
    }

    fn lock_entries(&self) -> MutexGuard<'_, BoundedCache<Box<str>, Box<str>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_local(&self, key: Box<str>, said: Box<str>) {
        let bytes = key.len() + said.len() + ENTRY_OVERHEAD_BYTES;
        self.lock_entries().put(key, said, bytes);
    }
}

fn store_key(key: &str) -> String {
    format!("due:{key}")
}

/// One that is not paid for.
#[derive(Debug)]
pub struct PendingCharge {
    charges: Arc<PendingCharges>,
    key: Box<str>,
}

impl PendingCharge {
    /// Whether somebody else may pay for it too.
    pub fn is_shared(&self) -> bool {
        !matches!(self.charges.shared_store, SharedStore::None)
    }

    /// Tells all others that it is paid for now; whether nobody did so before. Who hears nothing of others is the first.
    pub async fn claim_first_payment(&self) -> bool {
        self.charges
            .shared_store
            .swap(store_key(&self.key), PAID_MARKER)
            .await
            .is_none_or(|before| before != PAID_MARKER)
    }

    /// The model, and its own name where it has another; `None` where somebody else was faster.
    pub fn settle(self) -> Option<(String, Option<String>)> {
        let Self { charges: dues, key } = self;
        let said = {
            let mut owed = dues.lock_entries();
            let said = owed.get(&key)?;
            owed.remove(&key);
            said
        };
        dues.shared_store.put(store_key(&key), PAID_MARKER);
        let (model, own) = said.split_once('\n')?;
        Some((model.to_owned(), (!own.is_empty()).then(|| own.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn charge_is_settled_once_and_only_for_its_provider() {
        let dues = Arc::new(PendingCharges::new(SharedStore::None));
        dues.add("openai", "resp_1", ("m", Some("own")));
        dues.add("openai", &"x".repeat(MAX_ID_BYTES + 1), ("m", None));
        assert!(dues.find("azure-openai", "resp_1").await.is_none());
        assert!(dues.find("openai", &"x".repeat(MAX_ID_BYTES + 1)).await.is_none());
        // Two see it, and one of them pays.
        let (one, other) = (dues.find("openai", "resp_1").await.unwrap(), dues.find("openai", "resp_1").await.unwrap());
        assert_eq!((one.settle(), other.settle()), (Some(("m".to_owned(), Some("own".to_owned()))), None));
        assert!(dues.find("openai", "resp_1").await.is_none());
    }
}
