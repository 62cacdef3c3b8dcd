//! Latency histograms per target, and the budget of hedged requests per target.

use std::time::Duration;

use super::target_states::TargetStates;

/// Number of histogram buckets. Bucket bounds double every four buckets, from one millisecond to about a minute.
const BUCKET_COUNT: usize = 64;
/// Number of responses after which the older half of the histogram is discarded.
const ROTATION_SAMPLES: u32 = 512;
/// Minimum number of samples for a percentile.
const MIN_SAMPLES: u32 = 20;
/// Maximum number of hedge tokens that a target can accumulate for a slow period.
const MAX_HEDGE_TOKENS: f64 = 10.0;

/// Latencies of one target: the samples since the last rotation and those of the previous period.
#[derive(Debug, Clone)]
pub struct LatencyHistogram {
    current: [u32; BUCKET_COUNT],
    previous: [u32; BUCKET_COUNT],
    sample_count: u32,
    /// Number of hedged requests that may be sent now. Fractions accumulate.
    hedge_tokens: f64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { current: [0; BUCKET_COUNT], previous: [0; BUCKET_COUNT], sample_count: 0, hedge_tokens: 1.0 }
    }
}

fn bucket_index(elapsed: Duration) -> usize {
    let milliseconds = elapsed.as_secs_f64() * 1000.0;
    // Below one millisecond the logarithm is negative and the cast saturates at 0.
    #[allow(clippy::cast_sign_loss, reason = "negative values saturate at zero")]
    let span = (milliseconds.log2() * 4.0).ceil() as usize;
    span.min(BUCKET_COUNT - 1)
}

/// Returns the upper bound of a bucket.
fn bucket_upper_bound(span: usize) -> Duration {
    Duration::from_secs_f64((span as f64 / 4.0).exp2() / 1000.0)
}

impl LatencyHistogram {
    fn record(&mut self, elapsed: Duration) {
        if self.sample_count == ROTATION_SAMPLES {
            self.previous = std::mem::replace(&mut self.current, [0; BUCKET_COUNT]);
            self.sample_count = 0;
        }
        self.current[bucket_index(elapsed)] += 1;
        self.sample_count += 1;
    }

    /// Returns the latency that this percentage of the responses did not exceed; `None` with fewer than `MIN_SAMPLES`
    /// samples.
    fn percentile(&self, percent: f64) -> Option<Duration> {
        let each = || self.current.iter().zip(&self.previous).map(|(now, before)| now + before);
        let total: u32 = each().sum();
        let target_count = f64::from(total) * percent / 100.0;
        let mut cumulative_count = 0;
        let reaches = |count| {
            cumulative_count += count;
            f64::from(cumulative_count) >= target_count
        };
        each().map(reaches).position(|reaches| reaches).filter(|_| total >= MIN_SAMPLES).map(bucket_upper_bound)
    }

    /// Takes one hedge token. Returns false if none is left.
    fn try_spend_hedge_token(&mut self) -> bool {
        let is_within = self.hedge_tokens >= 1.0;
        self.hedge_tokens -= f64::from(u8::from(is_within));
        is_within
    }
}

#[derive(Debug, Default)]
pub struct LatencyTracker(TargetStates<LatencyHistogram>);

impl LatencyTracker {
    /// Adds `share` of a hedge token to the budget of a target. Called for each request to the target.
    pub fn add_hedge_tokens(&self, target: u64, share: f64) {
        self.with_histogram(target, |pace| pace.hedge_tokens = (pace.hedge_tokens + share).min(MAX_HEDGE_TOKENS));
    }

    pub fn record_latency(&self, target: u64, elapsed: Duration) {
        self.with_histogram(target, |pace| pace.record(elapsed));
    }

    pub fn percentile(&self, target: u64, percent: f64) -> Option<Duration> {
        self.0.with_existing(target, |pace| pace.percentile(percent)).flatten()
    }

    pub fn try_spend_hedge_token(&self, target: u64) -> bool {
        self.with_histogram(target, LatencyHistogram::try_spend_hedge_token)
    }

    fn with_histogram<R>(&self, target: u64, action: impl FnOnce(&mut LatencyHistogram) -> R) -> R {
        self.0.with_entry(target, |pace| pace.sample_count == 0, action)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn percentile_is_within_20_percent_once_there_are_enough_samples() {
        let mut pace = LatencyHistogram::default();
        for count in 1..=19 {
            pace.record(milliseconds(count));
        }
        assert_eq!(pace.percentile(50.0), None);
        for count in 20..=200 {
            pace.record(milliseconds(count));
        }
        for (percent, exact) in [(50.0, 100.0), (95.0, 190.0), (99.0, 198.0)] {
            let percentile_ms = pace.percentile(percent).unwrap().as_secs_f64() * 1000.0;
            assert!(percentile_ms >= exact && percentile_ms <= exact * 1.2, "{percent}: {percentile_ms}");
        }
    }

    #[test]
    fn forgets_old_latencies() {
        let mut pace = LatencyHistogram::default();
        (0..ROTATION_SAMPLES).for_each(|_| pace.record(milliseconds(1000)));
        (0..ROTATION_SAMPLES * 2).for_each(|_| pace.record(milliseconds(10)));
        assert!(pace.percentile(99.0).unwrap() < milliseconds(13));
        assert!(pace.sample_count <= ROTATION_SAMPLES);
    }

    #[test]
    fn every_duration_has_a_bucket() {
        assert_eq!((bucket_index(Duration::ZERO), bucket_index(Duration::MAX)), (0, BUCKET_COUNT - 1));
    }

    #[test]
    fn hedged_requests_stay_within_their_share() {
        let latencies = LatencyTracker::default();
        let hedged = (0..1000).filter(|_| {
            latencies.add_hedge_tokens(1, 0.05);
            latencies.try_spend_hedge_token(1)
        });
        assert!((50..=52).contains(&hedged.count()));
        (0..10_000).for_each(|_| latencies.add_hedge_tokens(1, 1.0));
        assert_eq!((0..100).filter(|_| latencies.try_spend_hedge_token(1)).count(), 10);
    }
}
