//! Cache of inline configs. Compiles a config that requests bring along once, as long as it keeps being used.

use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::{
    config::{Config, Strictness},
    error::Problem,
    process::settings::TargetLimits,
    state::shared::bounded_cache::BoundedCache,
};

/// Approximate number of copies of its text that a compiled config holds.
const TEXT_COPIES: usize = 2;
/// Approximate memory of a cache entry in addition to its config.
const ENTRY_OVERHEAD_BYTES: usize = 256;

/// Keyed by the SHA-256 digest of the config text, so that credentials in it are not stored in clear as keys.
#[derive(Debug)]
pub struct InlineConfigCache(Mutex<BoundedCache<[u8; 32], Arc<Config>>>);

impl InlineConfigCache {
    /// Creates a cache of about this many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Mutex::new(BoundedCache::new(bytes)))
    }

    /// Returns the compiled config of this text. Validation errors are not cached: each call reports them again.
    pub fn get_or_compile(&self, text: &str, limits: TargetLimits) -> Result<Arc<Config>, Vec<Problem>> {
        let key = Sha256::digest(text).into();
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = lock().get(&key) {
            return Ok(cached);
        }
        // Compiles without holding the lock, so that other requests do not wait for a large config.
        let config = Arc::new(Config::parse_with_limits(Some(limits), text.as_bytes(), Strictness::Lenient)?);
        let size = config.estimated_bytes() + text.len() * TEXT_COPIES + ENTRY_OVERHEAD_BYTES;
        lock().put(key, Arc::clone(&config), size);
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn compile_text(configs: &InlineConfigCache, text: &str) -> Result<Arc<Config>, Vec<Problem>> {
        configs.get_or_compile(text, TargetLimits::default())
    }

    #[test]
    fn compiles_the_same_text_once() {
        let configs = InlineConfigCache::new(1024 * 1024);
        let first = compile_text(&configs, r#"{"provider":"openai"}"#).unwrap();
        assert!(Arc::ptr_eq(&first, &compile_text(&configs, r#"{"provider":"openai"}"#).unwrap()));
        assert!(!Arc::ptr_eq(&first, &compile_text(&configs, r#"{"provider": "openai"}"#).unwrap()));
        assert_eq!(compile_text(&configs, "{").unwrap_err().len(), 1);
    }

    /// Returns how many of 100 such configs stay in the cache.
    fn count_retained(config: impl Fn(usize) -> String) -> usize {
        let configs = InlineConfigCache::new(8 * 1024 * 1024);
        (0..100).for_each(|number| drop(compile_text(&configs, &config(number)).unwrap()));
        configs.0.lock().unwrap().len()
    }

    #[test]
    fn config_counts_by_its_memory_not_its_text_length() {
        assert_eq!(count_retained(|number| json!({"provider": "openai", "note": number}).to_string()), 100);
        let matching = |number| {
            let query = json!({"params.m": {"$regex": r"^\w+$"}, "params.n": number});
            json!({"strategy": {"mode": "conditional", "default": "a", "conditions": [{"query": query, "then": "a"}]},
                "targets": [{"name": "a"}]})
            .to_string()
        };
        assert!(count_retained(matching) < 90, "{}", count_retained(matching));
        let inheriting = |number| {
            json!({"override_params": {"text": "x".repeat(3000), "n": number}, "strategy": {"mode": "fallback"},
                "targets": vec![json!({}); 60]})
            .to_string()
        };
        assert!(count_retained(inheriting) < 50, "{}", count_retained(inheriting));
    }
}
