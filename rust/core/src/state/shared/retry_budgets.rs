//! How many retries a target may get: a share of its requests, and a floor below which all are made.

use std::time::Duration;

use super::Ledger;

/// What retries a worker may add.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    /// Of the requests of a target, in percent.
    pub percent: u32,
    /// Each second, whatever the requests.
    pub floor: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    requests: f64,
    retries: f64,
}

/// What happened to one target in this second and in the one before.
#[derive(Debug, Clone, Copy, Default)]
pub struct Budget {
    second: u64,
    now: Count,
    before: Count,
}

impl Budget {
    fn turn(&mut self, now: Duration) {
        let second = now.as_secs();
        if second != self.second {
            self.before = if second == self.second + 1 { self.now } else { Count::default() };
            self.now = Count::default();
            self.second = second;
        }
    }

    /// A request came that may be retried.
    fn request(&mut self, now: Duration) {
        self.turn(now);
        self.now.requests += 1.0;
    }

    /// Whether one retry more is within the allowance of the last second; if so it is counted.
    fn admit(&mut self, now: Duration, allowance: Allowance) -> bool {
        self.turn(now);
        let share = 1.0 - f64::from(now.subsec_nanos()) / 1e9;
        let requests = self.now.requests + self.before.requests * share;
        let retries = self.now.retries + self.before.retries * share;
        let most = f64::from(allowance.floor) + requests * f64::from(allowance.percent) / 100.0;
        let is_within = retries + 1.0 <= most;
        self.now.retries += f64::from(u8::from(is_within));
        is_within
    }

    fn is_idle(&self, now: Duration) -> bool {
        now.as_secs() > self.second + 1
    }
}

/// The budgets of all targets of this worker, by what stands for an account at a provider.
pub struct Budgets {
    ledger: Ledger<Budget>,
    allowance: Allowance,
}

impl Budgets {
    pub fn new(allowance: Allowance) -> Self {
        Self { ledger: Ledger::default(), allowance }
    }

    pub fn request(&self, target: u64, now: Duration) {
        self.ledger.with(target, |budget| budget.is_idle(now), |budget| budget.request(now));
    }

    pub fn admit(&self, target: u64, now: Duration) -> bool {
        self.ledger.with(target, |budget| budget.is_idle(now), |budget| budget.admit(now, self.allowance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWANCE: Allowance = Allowance { percent: 20, floor: 10 };

    #[test]
    fn below_the_floor_every_retry_is_made() {
        let mut budget = Budget::default();
        for second in 0..20 {
            for attempt in 0..10 {
                assert!(budget.admit(Duration::from_millis(second * 2000 + attempt), ALLOWANCE));
            }
        }
    }

    #[test]
    fn when_all_fails_there_is_a_share_of_retries_and_the_floor_in_every_second() {
        let mut budget = Budget::default();
        let mut retries = [0; 10];
        for millisecond in 0..10_000 {
            let now = Duration::from_millis(millisecond);
            if millisecond % 10 < 3 {
                budget.request(now);
            }
            // Each request wants three.
            retries[now.as_secs() as usize] += i32::from(budget.admit(now, ALLOWANCE));
        }
        for (second, retries) in retries.into_iter().enumerate().skip(1) {
            assert!((60..=72).contains(&retries), "{second}: {retries}");
        }
    }

    #[test]
    fn targets_do_not_share() {
        let budgets = Budgets::new(Allowance { percent: 0, floor: 1 });
        assert!(
            budgets.admit(1, Duration::ZERO) && !budgets.admit(1, Duration::ZERO) && budgets.admit(2, Duration::ZERO)
        );
    }
}
