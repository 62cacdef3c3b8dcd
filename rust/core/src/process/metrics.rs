//! Counters of this worker, kept as plain atomics so that `/metrics` can read them at any time.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use serde_json::{Value, json};

/// Upper bounds of the response time histogram, in milliseconds.
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
    /// Responses by status class: index 2 counts 2xx. Index 0 counts statuses outside HTTP's classes.
    status_classes: [Counter; 6],
    duration_buckets: [Counter; BOUNDS_MS.len() + 1],
    duration_total_us: Counter,
    pub requests_aborted: Counter,
    pub responses_truncated: Counter,
    pub streams: Counter,
    /// Chunks in which streams were delivered.
    pub stream_chunks: Counter,
    pub bytes_out: Counter,
    pub tokens_in: Counter,
    pub tokens_out: Counter,
    /// Input and output tokens that the gateway counted itself.
    pub tokens_estimated: Counter,
    /// Cost of requests in whole nano-dollars.
    pub cost_nanodollars: Counter,
    /// Requests with known usage but no known price.
    pub requests_unpriced: Counter,
    /// Responses whose tokens were estimated from their length, because the counting queue was full.
    pub token_counts_estimated_by_length: Counter,
    /// Requests that were translated.
    pub translated: Counter,
    /// Translated requests with dropped parameters.
    pub partly_translated: Counter,
    /// Streams that were buffered until complete.
    pub streams_buffered: Counter,
    /// Streams that were resumed after a break.
    pub streams_resumed: Counter,
    /// Streams that were too long to be buffered or resumed.
    pub stream_recovery_overflows: Counter,
    /// Requests that were hedged: a second request was sent because the first one was slow.
    pub hedged: Counter,
    /// Requests forwarded to the control process.
    pub management_requests: Counter,
    /// Management requests rejected because their bodies exceeded the memory budget.
    pub management_rejected: Counter,
    /// Provider requests rejected because their bodies exceeded the memory budget.
    pub bodies_rejected: Counter,
    pub panics: Counter,
    /// Requests that the engine took over before they became an event loop task.
    pub fast_path_requests: Counter,
    /// Requests that the engine got through a task of the event loop.
    pub asgi_fallback_requests: Counter,
    /// Further attempts at a target.
    pub retries: Counter,
    /// Further attempts that the retry budget of the target did not allow.
    pub retries_denied: Counter,
    /// Requests of configs with a cache that were cache hits.
    pub cache_hits: Counter,
    /// Requests of configs with a cache that were cache misses.
    pub cache_misses: Counter,
    /// Requests of configs with a cache that forced a refresh.
    pub cache_refreshes: Counter,
    /// Circuit breakers that opened.
    pub breakers_opened: Counter,
    /// Targets that a request skipped because their circuit breaker was open.
    pub breaker_skips: Counter,
    /// Guardrail hooks that passed.
    pub guardrails_passed: Counter,
    /// Guardrail hooks that failed.
    pub guardrails_failed: Counter,
    /// Guardrail hooks that denied a request or response.
    pub guardrails_denied: Counter,
    /// Guardrail hooks that were skipped because they could not read their input.
    pub guardrails_skipped: Counter,
    started: Counter,
    finished: Counter,
}

impl Metrics {
    pub fn start_request(&self) {
        self.started.add(1);
    }

    pub fn finish_request(&self, status: u16, elapsed: Duration) {
        let class = usize::from(status / 100);
        self.status_classes[if class < self.status_classes.len() { class } else { 0 }].add(1);
        let bucket = BOUNDS_MS.partition_point(|bound| Duration::from_millis(*bound) < elapsed);
        self.duration_buckets[bucket].add(1);
        self.duration_total_us.add(elapsed.as_micros() as u64);
        self.finished.add(1);
    }

    pub fn in_flight(&self) -> u64 {
        self.started.get().saturating_sub(self.finished.get())
    }

    /// Returns all counters under the names that `/metrics` uses.
    pub fn to_json(&self) -> Value {
        let statuses: Value = self
            .status_classes
            .iter()
            .enumerate()
            .map(|(class, count)| (format!("{class}xx"), json!(count.get())))
            .collect();
        let durations: Vec<_> = self.duration_buckets.iter().map(Counter::get).collect();
        json!({
            "requests": statuses, "in_flight": self.in_flight(),
            "duration_bounds_ms": BOUNDS_MS, "durations": durations, "duration_us": self.duration_total_us.get(),
            "aborted": self.requests_aborted.get(), "cut": self.responses_truncated.get(), "streams": self.streams.get(), "stream_chunks": self.stream_chunks.get(),
            "bytes_out": self.bytes_out.get(), "tokens_in": self.tokens_in.get(), "tokens_out": self.tokens_out.get(),
            "tokens_estimated": self.tokens_estimated.get(), "cost": self.cost_nanodollars.get(), "unpriced": self.requests_unpriced.get(), "counts_guessed": self.token_counts_estimated_by_length.get(),
            "translated": self.translated.get(), "lost": self.partly_translated.get(),
            "streams_buffered": self.streams_buffered.get(), "continued": self.streams_resumed.get(), "buffer_exceeded": self.stream_recovery_overflows.get(), "hedged": self.hedged.get(),
            "management": self.management_requests.get(), "management_refused": self.management_rejected.get(),
            "bodies_refused": self.bodies_rejected.get(), "panics": self.panics.get(),
            "intercepted": self.fast_path_requests.get(), "plain": self.asgi_fallback_requests.get(),
            "retries": self.retries.get(), "retries_refused": self.retries_denied.get(),
            "cache_hits": self.cache_hits.get(), "cache_misses": self.cache_misses.get(),
            "cache_refreshes": self.cache_refreshes.get(),
            "breakers_opened": self.breakers_opened.get(), "breaker_skips": self.breaker_skips.get(),
            "guardrails_passed": self.guardrails_passed.get(), "guardrails_failed": self.guardrails_failed.get(),
            "guardrails_denied": self.guardrails_denied.get(), "guardrails_skipped": self.guardrails_skipped.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_request_in_status_class_and_duration_bucket() {
        let metrics = Metrics::default();
        metrics.start_request();
        assert_eq!(metrics.in_flight(), 1);
        metrics.finish_request(204, Duration::from_millis(3));
        let read = metrics.to_json();
        assert_eq!((read["requests"]["2xx"].as_u64(), read["in_flight"].as_u64()), (Some(1), Some(0)));
        assert_eq!(read["durations"][2], 1);
    }
}
