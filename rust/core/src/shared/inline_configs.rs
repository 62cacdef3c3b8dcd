//! Configs that requests bring along, compiled once for as long as they keep coming.

use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::generations::Generations;
use crate::{
    config::{Config, Unknown},
    error::Problem,
};

/// A compiled config takes about so much more than its text.
const GROWTH: usize = 16;
/// So much a config takes at least.
const ROOM: usize = 2048;

/// By the digest of their text: what they hold of credentials is not kept in clear beside them.
#[derive(Debug)]
pub struct InlineConfigs(Mutex<Generations<[u8; 32], Arc<Config>>>);

impl InlineConfigs {
    /// For about so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Mutex::new(Generations::new(bytes)))
    }

    /// The config that this text means. What is wrong with one is told each time.
    pub fn compiled(&self, text: &str) -> Result<Arc<Config>, Vec<Problem>> {
        let key = Sha256::digest(text).into();
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&key) {
            return Ok(known);
        }
        // Not under the lock: others need not wait for a large one.
        let config = Arc::new(Config::parse(text.as_bytes(), Unknown::Ignored)?);
        lock().put(key, Arc::clone(&config), text.len() * GROWTH + ROOM);
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_is_compiled_once() {
        let configs = InlineConfigs::new(1024 * 1024);
        let first = configs.compiled(r#"{"provider":"openai"}"#).unwrap();
        assert!(Arc::ptr_eq(&first, &configs.compiled(r#"{"provider":"openai"}"#).unwrap()));
        assert!(!Arc::ptr_eq(&first, &configs.compiled(r#"{"provider": "openai"}"#).unwrap()));
        assert_eq!(configs.compiled("{").unwrap_err().len(), 1);
    }
}
