//! Amounts of past requests, from which the amount of the next one is estimated.

use super::rule::LimitRule;

const RECENT_AMOUNT_COUNT: usize = 16;
/// Minimum number of amounts from which the largest one is ignored as an outlier.
const MIN_FOR_OUTLIERS: usize = 4;

#[derive(Debug, Default)]
pub struct RecentAmounts {
    amounts: [u64; RECENT_AMOUNT_COUNT],
    count: usize,
}

impl RecentAmounts {
    pub fn push(&mut self, amount: u64) {
        if amount > 0 {
            self.amounts[self.count % RECENT_AMOUNT_COUNT] = amount;
            self.count += 1;
        }
    }

    /// Estimates the maximum that the next request uses; `None` without earlier requests. A rate limit rejects requests
    /// that need more than is left. So neither a single outlier nor a few requests of its size may block a whole
    /// window.
    pub fn estimate(&self, rule: &LimitRule) -> Option<u64> {
        if rule.is_budget() {
            return self.largest();
        }
        self.usual_maximum().map(|amount| amount.min((rule.limit / 2).max(1)))
    }

    /// Returns the second largest amount, or the largest of fewer than `MIN_FOR_OUTLIERS`.
    fn usual_maximum(&self) -> Option<u64> {
        let mut sorted = self.amounts;
        let sorted = &mut sorted[..self.count.min(RECENT_AMOUNT_COUNT)];
        sorted.sort_unstable();
        sorted.iter().rev().nth(usize::from(sorted.len() >= MIN_FOR_OUTLIERS)).copied()
    }

    fn largest(&self) -> Option<u64> {
        self.amounts[..self.count.min(RECENT_AMOUNT_COUNT)].iter().max().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recent(amounts: &[u64]) -> RecentAmounts {
        let mut recent = RecentAmounts::default();
        for amount in amounts {
            recent.push(*amount);
        }
        recent
    }

    #[test]
    fn an_outlier_does_not_change_the_usual_maximum() {
        assert_eq!(recent(&[]).usual_maximum(), None);
        assert_eq!(recent(&[7]).usual_maximum(), Some(7));
        assert_eq!(recent(&[7, 90_000, 8]).usual_maximum(), Some(90_000));
        assert_eq!(recent(&[7, 90_000, 8, 5]).usual_maximum(), Some(8));
        assert_eq!(recent(&[9; 40]).usual_maximum(), Some(9));
        assert_eq!(recent(&[7, 90_000, 8, 5]).largest(), Some(90_000));
    }
}
