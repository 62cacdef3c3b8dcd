//! Cache of versions of prompts that are not in the snapshot. Versions never change, so entries never become stale.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{prompts::saved::SavedVersion, state::shared::bounded_cache::BoundedCache};

/// Maximum size of the cached versions in bytes of JSON.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Prompt id and version number.
type VersionKey = (Box<str>, u32);

#[derive(Debug)]
pub struct PromptVersionCache(Mutex<BoundedCache<VersionKey, Arc<SavedVersion>>>);

impl Default for PromptVersionCache {
    fn default() -> Self {
        Self(Mutex::new(BoundedCache::new(MAX_BYTES)))
    }
}

impl PromptVersionCache {
    pub fn find(&self, prompt_id: &str, number: u32) -> Option<Arc<SavedVersion>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(prompt_id.into(), number))
    }

    /// Stores a version whose JSON has this size, and returns it.
    pub fn insert(&self, prompt_id: &str, number: u32, version: SavedVersion, bytes: usize) -> Arc<SavedVersion> {
        let version = Arc::new(version);
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cache.put((prompt_id.into(), number), Arc::clone(&version), bytes);
        version
    }
}
