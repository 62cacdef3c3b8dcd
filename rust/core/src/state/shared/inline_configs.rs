//! Configs that requests bring along, compiled once for as long as they keep coming.

use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::state::shared::bounded_cache::BoundedCache;
use crate::{
    config::{Config, Strictness, TargetLimits},
    error::Problem,
};

/// Its texts are there about so often.
const TEXT_COPIES: usize = 2;
/// So much an entry takes beside its config.
const ENTRY_OVERHEAD_BYTES: usize = 256;

/// By the digest of their text: what they hold of credentials is not kept in clear beside them.
#[derive(Debug)]
pub struct InlineConfigCache(Mutex<BoundedCache<[u8; 32], Arc<Config>>>);

impl InlineConfigCache {
    /// For about so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Mutex::new(BoundedCache::new(bytes)))
    }

    /// The config that this text means. What is wrong with one is told each time.
    pub fn get_or_compile(&self, text: &str, limits: TargetLimits) -> Result<Arc<Config>, Vec<Problem>> {
        let key = Sha256::digest(text).into();
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&key) {
            return Ok(known);
        }
        // Not under the lock: others need not wait for a large one.
        let config = Arc::new(Config::parse_with_limits(Some(limits), text.as_bytes(), Strictness::Lenient)?);
        let held = config.estimated_bytes() + text.len() * TEXT_COPIES + ENTRY_OVERHEAD_BYTES;
        lock().put(key, Arc::clone(&config), held);
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

    /// How many configs of this kind stay.
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
