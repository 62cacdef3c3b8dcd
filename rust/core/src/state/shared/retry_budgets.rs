//! Retry budgets per target: a percentage of its requests, and a minimum per second that is always allowed.

use std::time::Duration;

use super::target_states::TargetStates;

/// Retries that a worker may send to one target.
#[derive(Debug, Clone, Copy)]
pub struct RetryAllowance {
    /// Percentage of the target's requests.
    pub percent_of_requests: u32,
    /// Retries per second that are allowed in addition, even without requests.
    pub min_per_second: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct RetryCounts {
    requests: f64,
    retries: f64,
}

/// Requests and retries of one target in the current second and in the one before.
#[derive(Debug, Clone, Copy, Default)]
pub struct RetryBudget {
    current_second: u64,
    current: RetryCounts,
    previous: RetryCounts,
}

impl RetryBudget {
    fn advance_window(&mut self, now: Duration) {
        let second = now.as_secs();
        if second != self.current_second {
            self.previous = if second == self.current_second + 1 { self.current } else { RetryCounts::default() };
            self.current = RetryCounts::default();
            self.current_second = second;
        }
    }

    /// Counts a request that may be retried.
    fn count_request(&mut self, now: Duration) {
        self.advance_window(now);
        self.current.requests += 1.0;
    }

    /// Returns true, and counts the retry, if one more fits the allowance of the last second.
    fn admit_retry(&mut self, now: Duration, allowance: RetryAllowance) -> bool {
        self.advance_window(now);
        let share = 1.0 - f64::from(now.subsec_nanos()) / 1e9;
        let requests = self.current.requests + self.previous.requests * share;
        let retries = self.current.retries + self.previous.retries * share;
        let max_retries =
            f64::from(allowance.min_per_second) + requests * f64::from(allowance.percent_of_requests) / 100.0;
        let is_within = retries + 1.0 <= max_retries;
        self.current.retries += f64::from(u8::from(is_within));
        is_within
    }

    fn is_idle(&self, now: Duration) -> bool {
        now.as_secs() > self.current_second + 1
    }
}

/// Retry budgets of all targets of this worker, keyed by the hash of an account at a provider.
pub struct RetryBudgets {
    states: TargetStates<RetryBudget>,
    allowance: RetryAllowance,
}

impl RetryBudgets {
    pub fn new(allowance: RetryAllowance) -> Self {
        Self { states: TargetStates::default(), allowance }
    }

    pub fn count_request(&self, target: u64, now: Duration) {
        self.states.with_entry(target, |budget| budget.is_idle(now), |budget| budget.count_request(now));
    }

    pub fn admit_retry(&self, target: u64, now: Duration) -> bool {
        self.states.with_entry(target, |budget| budget.is_idle(now), |budget| budget.admit_retry(now, self.allowance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWANCE: RetryAllowance = RetryAllowance { percent_of_requests: 20, min_per_second: 10 };

    #[test]
    fn allows_every_retry_below_the_minimum() {
        let mut budget = RetryBudget::default();
        for second in 0..20 {
            for attempt in 0..10 {
                assert!(budget.admit_retry(Duration::from_millis(second * 2000 + attempt), ALLOWANCE));
            }
        }
    }

    #[test]
    fn limits_retries_to_percentage_plus_minimum_when_everything_fails() {
        let mut budget = RetryBudget::default();
        let mut retries = [0; 10];
        for millisecond in 0..10_000 {
            let now = Duration::from_millis(millisecond);
            if millisecond % 10 < 3 {
                budget.count_request(now);
            }
            // About three retries are attempted per request.
            retries[now.as_secs() as usize] += i32::from(budget.admit_retry(now, ALLOWANCE));
        }
        for (second, retries) in retries.into_iter().enumerate().skip(1) {
            assert!((60..=72).contains(&retries), "{second}: {retries}");
        }
    }

    #[test]
    fn targets_have_separate_budgets() {
        let budgets = RetryBudgets::new(RetryAllowance { percent_of_requests: 0, min_per_second: 1 });
        assert!(
            budgets.admit_retry(1, Duration::ZERO)
                && !budgets.admit_retry(1, Duration::ZERO)
                && budgets.admit_retry(2, Duration::ZERO)
        );
    }
}
