//! Cache of inline configs. A config that many requests contain is compiled only once while it is in use.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use sha2::{Digest, Sha256};

use crate::{
    config::{Config, Strictness},
    error::{Error, Problem},
    process::settings::TargetLimits,
    state::shared::{bounded_cache::BoundedCache, fair_permits::FairPermits},
};

/// Approximate number of copies of its text that a compiled config holds.
const TEXT_COPIES: usize = 2;
/// Approximate memory of a cache entry in addition to its config.
const ENTRY_OVERHEAD_BYTES: usize = 256;

/// Maximum length of a config that is compiled without a blocking thread. A longer config would delay other requests.
const MAX_INLINE_COMPILE_BYTES: usize = 2 * 1024;
/// Maximum time to wait for the compilation of other requests' configs.
const MAX_PERMIT_WAIT: Duration = Duration::from_secs(5);
/// Maximum time to compile a config, without the wait before.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of configs that are compiled on blocking threads at the same time. Others wait.
const MAX_CONCURRENT_COMPILATIONS: usize = 2;
/// Maximum number of configs of one tenant that are compiled on blocking threads at the same time.
const MAX_COMPILATIONS_OF_TENANT: usize = 1;

type Compiled = Result<Arc<Config>, Vec<Problem>>;

/// Result of a compilation on a blocking thread. `get_or_compile` returns it as long as this value exists.
#[derive(Debug)]
pub struct PreparedConfig(#[allow(dead_code, reason = "keeps the result alive")] Option<Arc<Compiled>>);

/// Cache of compiled inline configs. Its keys are SHA-256 digests of the config texts, so that they do not contain
/// credentials in clear.
pub struct InlineConfigCache {
    cached: Mutex<BoundedCache<[u8; 32], Arc<Config>>>,
    /// Results for requests that are being handled, including errors and configs too large for the cache.
    prepared: Mutex<HashMap<[u8; 32], Weak<Compiled>>>,
    compilations: FairPermits,
}

impl InlineConfigCache {
    /// Creates a cache of about this many bytes.
    pub fn new(bytes: usize) -> Self {
        Self {
            cached: Mutex::new(BoundedCache::new(bytes)),
            prepared: Mutex::default(),
            compilations: FairPermits::new(MAX_CONCURRENT_COMPILATIONS, MAX_COMPILATIONS_OF_TENANT),
        }
    }

    /// Returns the compiled config of this text. Validation errors are not cached: each call reports them again.
    pub fn get_or_compile(&self, text: &str, limits: TargetLimits) -> Compiled {
        let key = Sha256::digest(text).into();
        if let Some(cached) = self.find(&key) {
            return cached;
        }
        // Compiles without holding the lock, so that other requests do not wait for a large config.
        let config = compile(text, limits)?;
        self.insert(key, text, &config);
        Ok(config)
    }

    /// Compiles a large config on a blocking thread. A following `get_or_compile` returns the result at once. Fails if
    /// the configs of other requests take too long. Those of one tenant do not delay those of others.
    pub async fn prepare(
        &self,
        tenant: Option<&str>,
        text: &str,
        limits: TargetLimits,
    ) -> Result<PreparedConfig, Error> {
        if text.len() <= MAX_INLINE_COMPILE_BYTES {
            return Ok(PreparedConfig(None));
        }
        let key = Sha256::digest(text).into();
        if self.find(&key).is_some() {
            return Ok(PreparedConfig(self.find_prepared(&key)));
        }
        let owned = text.to_owned();
        let waiting = tokio::time::timeout(MAX_PERMIT_WAIT, self.compilations.acquire(tenant));
        let permit = waiting.await.map_err(|_| Error::Overloaded)?.ok_or(Error::Draining)?;
        let compiling = async {
            let job = move || {
                let _permit = permit;
                compile(&owned, limits)
            };
            tokio::task::spawn_blocking(job).await.ok()
        };
        let too_long = || {
            let seconds = COMPILE_TIMEOUT.as_secs();
            vec![Problem::new("$", format!("takes longer than {seconds} s to compile; use a smaller config"))]
        };
        let compiled = tokio::time::timeout(COMPILE_TIMEOUT, compiling).await.ok().flatten();
        let compiled = Arc::new(compiled.unwrap_or_else(|| Err(too_long())));
        if let Ok(config) = &*compiled {
            self.insert(key, text, config);
        }
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        prepared.retain(|_, result| result.strong_count() > 0);
        prepared.insert(key, Arc::downgrade(&compiled));
        Ok(PreparedConfig(Some(compiled)))
    }

    fn find(&self, key: &[u8; 32]) -> Option<Compiled> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner).get(key);
        cached.map(Ok).or_else(|| self.find_prepared(key).map(|result| (*result).clone()))
    }

    fn find_prepared(&self, key: &[u8; 32]) -> Option<Arc<Compiled>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).get(key)?.upgrade()
    }

    fn insert(&self, key: [u8; 32], text: &str, config: &Arc<Config>) {
        let size = config.estimated_bytes() + text.len() * TEXT_COPIES + ENTRY_OVERHEAD_BYTES;
        self.cached.lock().unwrap_or_else(PoisonError::into_inner).put(key, Arc::clone(config), size);
    }
}

fn compile(text: &str, limits: TargetLimits) -> Compiled {
    Ok(Arc::new(Config::parse_with_limits(Some(limits), text.as_bytes(), Strictness::Lenient)?))
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

    #[tokio::test]
    async fn prepares_large_configs_and_their_errors() {
        let configs = InlineConfigCache::new(1);
        let text = |value: &str| format!(r#"{{"provider":{value},"note":"{}"}}"#, "x".repeat(3000));
        let prepared = configs.prepare(None, &text("\"openai\""), TargetLimits::default()).await.unwrap();
        let first = compile_text(&configs, &text("\"openai\"")).unwrap();
        assert!(Arc::ptr_eq(&first, &compile_text(&configs, &text("\"openai\"")).unwrap()));
        drop(prepared);
        assert!(configs.prepared.lock().unwrap().values().all(|result| result.strong_count() == 0));
        let prepared = configs.prepare(None, &text("1"), TargetLimits::default()).await.unwrap();
        assert_eq!(compile_text(&configs, &text("1")).unwrap_err().len(), 1);
        drop(prepared);
        assert!(configs.prepare(None, "{", TargetLimits::default()).await.unwrap().0.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_waits_for_its_own_configs_only() {
        let configs = InlineConfigCache::new(1);
        let first = configs.compilations.acquire(Some("a")).await.unwrap();
        let text = format!(r#"{{"provider":"openai","note":"{}"}}"#, "x".repeat(3000));
        let prepare = |tenant: &'static str| configs.prepare(Some(tenant), &text, TargetLimits::default());
        let error = prepare("a").await.unwrap_err();
        assert_eq!((error.status(), error.code()), (503, "overloaded"));
        assert!(prepare("b").await.unwrap().0.is_some());
        let second = configs.compilations.acquire(Some("b")).await.unwrap();
        assert_eq!(prepare("c").await.unwrap_err().code(), "overloaded");
        drop((first, second));
        assert!(prepare("a").await.unwrap().0.is_some());
    }

    #[test]
    fn inherited_parameters_are_bounded_in_bytes() {
        let text = |bytes: usize| {
            json!({"default_params": {"text": "x".repeat(bytes)}, "strategy": {"mode": "fallback"},
                "targets": vec![json!({"provider": "openai"}); 20]})
            .to_string()
        };
        let configs = InlineConfigCache::new(1);
        assert!(compile_text(&configs, &text(100_000)).is_ok());
        let problems = compile_text(&configs, &text(1_000_000)).unwrap_err();
        assert!(problems.iter().any(|problem| problem.message.contains("16777216 bytes")), "{problems:?}");
    }

    /// Returns how many of 100 such configs stay in the cache.
    fn count_retained(config: impl Fn(usize) -> String) -> usize {
        let configs = InlineConfigCache::new(8 * 1024 * 1024);
        (0..100).for_each(|number| drop(compile_text(&configs, &config(number)).unwrap()));
        configs.cached.lock().unwrap().len()
    }

    #[test]
    fn config_counts_by_its_memory_not_its_text_length() {
        assert_eq!(count_retained(|number| json!({"provider": "openai", "note": number}).to_string()), 100);
        let matching = |number| {
            let query = json!({"params.m": {"$regex": r"^(\w{1,50}-){10}$"}, "params.n": number});
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
