//! What this worker counts: plain atomics, read by whoever asks.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use serde_json::{Value, json};

/// Upper bounds of the histogram of response times, in milliseconds.
const BOUNDS_MS: [u64; 14] = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000];

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub struct Metrics {
    /// By hundreds of the status: index 2 is 2xx. What has no status of HTTP's classes is at 0.
    statuses: [Counter; 6],
    durations: [Counter; BOUNDS_MS.len() + 1],
    duration_us: Counter,
    pub aborted: Counter,
    pub cut: Counter,
    pub streams: Counter,
    /// Portions in which streams were passed on.
    pub pieces: Counter,
    pub bytes_out: Counter,
    pub tokens_in: Counter,
    pub tokens_out: Counter,
    /// Of the tokens either way those that were counted here.
    pub tokens_estimated: Counter,
    /// Whole nano-dollars that requests cost, and requests of which it is known what they used but not what that costs.
    pub cost: Counter,
    pub unpriced: Counter,
    /// Answers whose tokens were guessed from their length, because too many waited to be counted.
    pub counts_guessed: Counter,
    /// Requests that were said in another way than they came, and those of which something could not be said.
    pub translated: Counter,
    pub lost: Counter,
    /// Streams that were held until they were whole, that were continued, and that were too long for either.
    pub held: Counter,
    pub continued: Counter,
    pub unheld: Counter,
    /// Requests of which a second attempt was sent because the first was slow.
    pub hedged: Counter,
    /// Requests that were forwarded to the control process.
    pub management: Counter,
    /// Those of them whose bodies found no room.
    pub management_refused: Counter,
    /// Requests to providers whose bodies found no room.
    pub bodies_refused: Counter,
    pub panics: Counter,
    /// Requests that were taken before they became a task of the event loop, and those that were not.
    pub intercepted: Counter,
    pub plain: Counter,
    /// Further attempts at a target, and those that its budget did not allow.
    pub retries: Counter,
    pub retries_refused: Counter,
    /// Requests of configs with a cache, by whether an old answer served.
    pub cache_hits: Counter,
    pub cache_misses: Counter,
    pub cache_refreshes: Counter,
    /// Targets that were closed off, and those that a request passed over because they were.
    pub breakers_opened: Counter,
    pub breaker_skips: Counter,
    started: Counter,
    finished: Counter,
}

impl Metrics {
    pub fn start(&self) {
        self.started.add(1);
    }

    pub fn finish(&self, status: u16, took: Duration) {
        let class = usize::from(status / 100);
        self.statuses[if class < self.statuses.len() { class } else { 0 }].add(1);
        let bucket = BOUNDS_MS.partition_point(|bound| Duration::from_millis(*bound) < took);
        self.durations[bucket].add(1);
        self.duration_us.add(took.as_micros() as u64);
        self.finished.add(1);
    }

    pub fn in_flight(&self) -> u64 {
        self.started.get().saturating_sub(self.finished.get())
    }

    /// All counters, by the names that `/metrics` uses.
    pub fn read(&self) -> Value {
        let statuses: Value =
            self.statuses.iter().enumerate().map(|(class, count)| (format!("{class}xx"), json!(count.get()))).collect();
        let durations: Vec<_> = self.durations.iter().map(Counter::get).collect();
        json!({
            "requests": statuses, "in_flight": self.in_flight(),
            "duration_bounds_ms": BOUNDS_MS, "durations": durations, "duration_us": self.duration_us.get(),
            "aborted": self.aborted.get(), "cut": self.cut.get(), "streams": self.streams.get(), "pieces": self.pieces.get(),
            "bytes_out": self.bytes_out.get(), "tokens_in": self.tokens_in.get(), "tokens_out": self.tokens_out.get(),
            "tokens_estimated": self.tokens_estimated.get(), "cost": self.cost.get(), "unpriced": self.unpriced.get(), "counts_guessed": self.counts_guessed.get(),
            "translated": self.translated.get(), "lost": self.lost.get(),
            "held": self.held.get(), "continued": self.continued.get(), "unheld": self.unheld.get(), "hedged": self.hedged.get(),
            "management": self.management.get(), "management_refused": self.management_refused.get(),
            "bodies_refused": self.bodies_refused.get(), "panics": self.panics.get(),
            "intercepted": self.intercepted.get(), "plain": self.plain.get(),
            "retries": self.retries.get(), "retries_refused": self.retries_refused.get(),
            "cache_hits": self.cache_hits.get(), "cache_misses": self.cache_misses.get(),
            "cache_refreshes": self.cache_refreshes.get(),
            "breakers_opened": self.breakers_opened.get(), "breaker_skips": self.breaker_skips.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_a_request_once_in_its_class_and_its_bucket() {
        let metrics = Metrics::default();
        metrics.start();
        assert_eq!(metrics.in_flight(), 1);
        metrics.finish(204, Duration::from_millis(3));
        let read = metrics.read();
        assert_eq!((read["requests"]["2xx"].as_u64(), read["in_flight"].as_u64()), (Some(1), Some(0)));
        assert_eq!(read["durations"][2], 1);
    }
}
