//! Time that nobody sets: not the machine's date, which may jump.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Counts from the start of a worker.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    /// Milliseconds.
    ahead: AtomicU64,
}

impl Default for Clock {
    fn default() -> Self {
        Self { started: Instant::now(), ahead: AtomicU64::new(0) }
    }
}

impl Clock {
    pub fn now(&self) -> Duration {
        self.started.elapsed() + Duration::from_millis(self.ahead.load(Ordering::Relaxed))
    }

    /// Lets it run ahead, as after a machine that slept; tests do.
    pub fn jump(&self, by: Duration) {
        self.ahead.fetch_add(by.as_millis() as u64, Ordering::Relaxed);
    }
}
