//! Guardrails and cached responses: the part of the cache key that hooks make, and the results in a cached response.

use serde_json::Value;

use super::{TargetHooks, WriteBody};
use crate::{
    error::Result,
    response::{delivery::UpstreamResponse, offload::run_offloaded},
};

impl TargetHooks {
    /// Returns the bytes that distinguish these hooks in the key of a cached response. The number of hooks separates
    /// the stages: a hook that has read only the request must not stand for one that reads the response.
    pub fn cache_key(&self) -> Vec<u8> {
        let mut key = Vec::new();
        for hooks in [&self.before, &self.after] {
            key.extend((hooks.len() as u64).to_le_bytes());
            for hook in hooks {
                key.push(hook.kind as u8);
                key.extend(hook.fingerprint.to_le_bytes());
            }
        }
        key
    }

    /// Adds the results of this request to a cached response, in place of the results in it. Hooks after the response
    /// do not run again.
    pub async fn decorate_cached(&self, mut response: UpstreamResponse) -> Result<UpstreamResponse> {
        let Some(bytes) = response.incoming.body.buffered_bytes().cloned() else { return Ok(response) };
        let without_results = {
            let bytes = bytes.clone();
            move || {
                let mut body: Value = serde_json::from_slice(&bytes).ok()?;
                body.as_object_mut()?.shift_remove("hook_results")?;
                Some(body.to_string())
            }
        };
        let changed = run_offloaded(bytes.len(), without_results).await?;
        let write = changed.map(|body| Box::new(move || Some(body)) as WriteBody);
        self.append_results(&mut response, bytes, write).await?;
        Ok(response)
    }
}
