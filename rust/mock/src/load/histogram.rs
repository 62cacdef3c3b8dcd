//! Log-linear histogram: 128 steps per power of two, so a quantile is accurate to 0.8 %. The maximum is exact.

use serde_json::{Map, Value, json};

const STEP_BITS: u32 = 7;
const STEPS_PER_OCTAVE: u64 = 1 << STEP_BITS;

#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Histogram {
    pub fn add(&mut self, value: u64) {
        let at = bucket_index(value);
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
        self.total += 1;
        self.max = self.max.max(value);
    }

    pub fn merge(&mut self, other: &Self) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// Returns the value that the given share of all values does not exceed; `None` without values.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        #[expect(clippy::cast_sign_loss, reason = "both factors are positive")]
        let target_count = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut cumulative_count = 0;
        for (at, count) in self.counts.iter().enumerate() {
            cumulative_count += count;
            if cumulative_count >= target_count {
                return Some(bucket_upper_bound(at).min(self.max));
            }
        }
        None
    }

    /// Writes `<prefix>p50_us` and so on, from values in nanoseconds.
    pub fn write_json(&self, prefix: &str, out: &mut Map<String, Value>) {
        let micros = |ns: Option<u64>| ns.map_or(Value::Null, |ns| json!((ns / 100) as f64 / 10.0));
        for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
            out.insert(format!("{prefix}{name}_us"), micros(self.quantile(share)));
        }
        out.insert(format!("{prefix}max_us"), micros((self.total > 0).then_some(self.max)));
    }
}

fn bucket_index(value: u64) -> usize {
    let shift = (value | STEPS_PER_OCTAVE).ilog2() - STEP_BITS;
    ((u64::from(shift) << STEP_BITS) + (value >> shift)) as usize
}

fn bucket_upper_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * STEPS_PER_OCTAVE {
        return bucket;
    }
    let shift = (bucket >> STEP_BITS) - 1;
    (((bucket & (STEPS_PER_OCTAVE - 1)) + STEPS_PER_OCTAVE + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_contain_their_values() {
        let mut last = None;
        for value in (0..5000).chain((13..63).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 77])) {
            let at = bucket_index(value);
            assert!(value <= bucket_upper_bound(at) && (at == 0 || value > bucket_upper_bound(at - 1)), "{value}");
            assert!(last.is_none_or(|last| at >= last));
            last = Some(at);
        }
    }

    #[test]
    fn quantiles_are_close_and_maximum_is_exact() {
        let mut histogram = Histogram::default();
        (1..=100_000_u64).for_each(|value| histogram.add(value * 10));
        for (share, exact) in [(0.5, 500_000.0), (0.9, 900_000.0), (0.99, 990_000.0)] {
            let value = histogram.quantile(share).unwrap() as f64;
            assert!((value / exact - 1.0).abs() < 0.008, "{value} {exact}");
        }
        assert_eq!(histogram.quantile(1.0), Some(1_000_000));
        let mut sum = Histogram::default();
        sum.merge(&histogram);
        sum.add(7);
        assert_eq!((sum.total, sum.quantile(0.000_001)), (100_001, Some(7)));
    }

    #[test]
    fn empty_histogram_has_no_quantile() {
        assert_eq!(Histogram::default().quantile(0.5), None);
    }
}
