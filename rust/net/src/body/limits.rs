//! Size and time limits of request bodies.

use std::time::Duration;

use crate::error::Error;

/// Size and time limits of a body. Only time spent waiting for the client counts.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    pub max_bytes: usize,
    /// Maximum wait for the next chunk.
    pub idle_timeout: Duration,
    /// Maximum total wait for all chunks.
    pub total_timeout: Duration,
    /// Waiting time that is always allowed. Each further second requires `min_bytes_per_second` bytes.
    pub grace_period: Duration,
    pub min_bytes_per_second: u32,
}

impl BodyLimits {
    pub(crate) fn too_large_error(&self) -> Error {
        Error::BodyTooLarge { limit: self.max_bytes }
    }

    /// Returns the maximum wait for the next chunk, and the name of the setting that limits it. `received` is the
    /// number of bytes read so far, and `waited` the total wait for them.
    pub(crate) fn remaining_wait(&self, received: usize, waited: Duration) -> (Duration, &'static str) {
        let earned = Duration::from_millis(received as u64 * 1000 / u64::from(self.min_bytes_per_second.max(1)));
        let total = self.total_timeout.saturating_sub(waited);
        let slowest = (self.grace_period + earned).saturating_sub(waited);
        let limits = [(total, "body_total_ms"), (slowest, "body_rate")];
        limits
            .into_iter()
            .fold((self.idle_timeout, "body_idle_ms"), |least, limit| if limit.0 < least.0 { limit } else { least })
    }

    pub(crate) fn timeout_error(&self, limit: &'static str) -> Error {
        let value = match limit {
            "body_rate" => u64::from(self.min_bytes_per_second),
            "body_total_ms" => self.total_timeout.as_millis() as u64,
            _ => self.idle_timeout.as_millis() as u64,
        };
        Error::BodyTimeout { setting: limit, value }
    }
}
