//! Time that nobody sets: not the machine's date, which may jump.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Counts from the start of a worker.
#[derive(Debug)]
pub struct MonotonicClock {
    started_at: Instant,
    /// Milliseconds.
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

    /// Lets it run ahead, as after a machine that slept; tests do.
    pub fn advance(&self, by: Duration) {
        self.offset_ms.fetch_add(by.as_millis() as u64, Ordering::Relaxed);
    }
}
