//! Monotonic clock of a worker. Unlike the system date, it cannot be set or jump back.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Measures time from the start of the worker.
#[derive(Debug)]
pub struct MonotonicClock {
    started_at: Instant,
    /// Milliseconds that `advance` has added to the time since `started_at`.
    offset_ms: AtomicU64,
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self { started_at: Instant::now(), offset_ms: AtomicU64::new(0) }
    }
}

impl MonotonicClock {
    pub fn now(&self) -> Duration {
        self.started_at.elapsed() + Duration::from_millis(self.offset_ms.load(Ordering::Relaxed))
    }

    /// Moves the clock forward, as after a suspended machine. Used by tests.
    pub fn advance(&self, by: Duration) {
        self.offset_ms.fetch_add(by.as_millis() as u64, Ordering::Relaxed);
    }
}
