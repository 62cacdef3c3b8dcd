//! Configs that requests bring along, compiled once for as long as they keep coming.

use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::state::shared::bounded_cache::Generations;
use crate::{
    config::{Config, TargetLimits, Unknown},
    error::Problem,
};

/// Its texts are there about so often.
const GROWTH: usize = 2;
/// So much an entry takes beside its config.
const ROOM: usize = 256;

/// By the digest of their text: what they hold of credentials is not kept in clear beside them.
#[derive(Debug)]
pub struct InlineConfigs(Mutex<Generations<[u8; 32], Arc<Config>>>);

impl InlineConfigs {
    /// For about so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Mutex::new(Generations::new(bytes)))
    }

    /// The config that this text means. What is wrong with one is told each time.
    pub fn compiled(&self, text: &str, limits: TargetLimits) -> Result<Arc<Config>, Vec<Problem>> {
        let key = Sha256::digest(text).into();
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&key) {
            return Ok(known);
        }
        // Not under the lock: others need not wait for a large one.
        let config = Arc::new(Config::within(Some(limits), text.as_bytes(), Unknown::Ignored)?);
        let held = config.held() + text.len() * GROWTH + ROOM;
        lock().put(key, Arc::clone(&config), held);
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn compiled(configs: &InlineConfigs, text: &str) -> Result<Arc<Config>, Vec<Problem>> {
        configs.compiled(text, TargetLimits::default())
    }

    #[test]
    fn the_same_text_is_compiled_once() {
        let configs = InlineConfigs::new(1024 * 1024);
        let first = compiled(&configs, r#"{"provider":"openai"}"#).unwrap();
        assert!(Arc::ptr_eq(&first, &compiled(&configs, r#"{"provider":"openai"}"#).unwrap()));
        assert!(!Arc::ptr_eq(&first, &compiled(&configs, r#"{"provider": "openai"}"#).unwrap()));
        assert_eq!(compiled(&configs, "{").unwrap_err().len(), 1);
    }

    /// How many configs of this kind stay.
    fn kept(config: impl Fn(usize) -> String) -> usize {
        let configs = InlineConfigs::new(8 * 1024 * 1024);
        (0..100).for_each(|number| drop(compiled(&configs, &config(number)).unwrap()));
        configs.0.lock().unwrap().len()
    }

    #[test]
    fn a_config_counts_as_what_it_holds_and_not_as_its_text() {
        assert_eq!(kept(|number| json!({"provider": "openai", "note": number}).to_string()), 100);
        let matching = |number| {
            let query = json!({"params.m": {"$regex": r"^\w+$"}, "params.n": number});
            json!({"strategy": {"mode": "conditional", "default": "a", "conditions": [{"query": query, "then": "a"}]},
                "targets": [{"name": "a"}]})
            .to_string()
        };
        assert!(kept(matching) < 90, "{}", kept(matching));
        let inheriting = |number| {
            json!({"override_params": {"text": "x".repeat(3000), "n": number}, "strategy": {"mode": "fallback"},
                "targets": vec![json!({}); 60]})
            .to_string()
        };
        assert!(kept(inheriting) < 50, "{}", kept(inheriting));
    }
}
