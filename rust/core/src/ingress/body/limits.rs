//! How large a request body may be and how long it may take, as the settings have it.

use std::time::Duration;

use crate::{error::Error, process::settings::Settings};

/// How large a body may be, and how slow its caller. Only time spent waiting for the caller counts.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub bytes: usize,
    /// Longest wait for the next piece.
    pub idle: Duration,
    /// Longest wait in all.
    pub total: Duration,
    /// So much waiting is forgiven; each second on top must have brought `rate` bytes.
    pub grace: Duration,
    pub rate: u32,
}

impl Limits {
    pub fn of(settings: &Settings) -> Self {
        Self {
            bytes: settings.max_body_bytes,
            idle: Duration::from_millis(settings.body_idle_ms),
            total: Duration::from_millis(settings.body_total_ms),
            grace: Duration::from_millis(settings.body_grace_ms),
            rate: settings.body_rate,
        }
    }

    pub(crate) fn too_large(&self) -> Error {
        Error::BodyTooLarge { limit: self.bytes }
    }

    /// How much longer the next piece may take after so much waiting for the first `taken` bytes, and what limits it.
    pub(crate) fn patience(&self, taken: usize, waited: Duration) -> (Duration, &'static str) {
        let earned = Duration::from_millis(taken as u64 * 1000 / u64::from(self.rate.max(1)));
        let total = self.total.saturating_sub(waited);
        let slowest = (self.grace + earned).saturating_sub(waited);
        let limits = [(total, "body_total_ms"), (slowest, "body_rate")];
        limits
            .into_iter()
            .fold((self.idle, "body_idle_ms"), |least, limit| if limit.0 < least.0 { limit } else { least })
    }

    pub(crate) fn timeout(&self, limit: &'static str) -> Error {
        let value = match limit {
            "body_rate" => u64::from(self.rate),
            "body_total_ms" => self.total.as_millis() as u64,
            _ => self.idle.as_millis() as u64,
        };
        Error::BodyTimeout { limit, value }
    }
}
