//! Count of one limit and one group value, which all workers of a node share. Workers take amounts in advance (leases)
//! and return what they do not use.

use super::window::{LimitWindow, SLIDING_PARTS};

/// Maximum number of workers whose unsettled amounts are listed. Those of further workers are added up and never
/// expire.
const MAX_HOLDERS: usize = 256;
/// Time after the last report of a worker at which its unsettled amounts stop counting.
const HOLDER_EXPIRY_MS: u64 = 60_000;
/// A worker may take the remaining amount, divided by this number, in advance.
const LEASE_FRACTION: u64 = 100;

/// Amounts that a worker has taken but that are not settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holder {
    worker: u64,
    amount: u64,
    seen_ms: u64,
}

/// Amount that a request wants, and the minimum that it accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    pub amount: u64,
    pub minimum: u64,
}

impl Amount {
    /// Returns an amount of which the request accepts no smaller part.
    pub fn exactly(amount: u64) -> Self {
        Self { amount, minimum: amount }
    }

    /// Returns an amount of which the request accepts any part except zero.
    pub fn at_most(amount: u64) -> Self {
        Self { amount, minimum: 1 }
    }
}

/// Result of a request for an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Amount that the worker may use; 0 if less than the minimum is left.
    pub amount: u64,
    /// Remaining amount in the window after this grant.
    pub remaining: u64,
}

/// Usage of a budget in a period according to the ledger, and how often operators have reset it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordedUsage {
    pub recorded: u64,
    pub resets: u64,
    /// Sum of the corrections of costs after requests had ended. `recorded` includes it.
    pub corrected: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageCounter {
    /// Start of the newest window, or part of a sliding window, that was counted.
    start_ms: u64,
    /// Amount taken in this window.
    used: u64,
    /// Amounts taken in the last parts of a sliding window, by number of the part.
    parts: Vec<(u64, u64)>,
    /// Usage of this window in the ledger: the sum of all records. It exceeds `used` if a worker was killed.
    recorded: u64,
    /// How often operators have reset the usage.
    resets: u64,
    /// Corrections of costs that `used` includes.
    corrected: i64,
    holders: Vec<Holder>,
}

impl UsageCounter {
    /// Takes the requested amount, or a hundredth of the remaining amount if that is more. If less is left than
    /// requested, takes the rest. Takes nothing if the rest is less than the minimum.
    pub fn take(&mut self, window: LimitWindow, now_ms: u64, limit: u64, worker: u64, requested: Amount) -> Grant {
        self.advance(window, now_ms);
        let remaining = limit.saturating_sub(self.used(window));
        if requested.minimum > remaining {
            return Grant { amount: 0, remaining };
        }
        let amount = requested.amount.max(remaining / LEASE_FRACTION).min(remaining);
        self.add(window, amount);
        self.change_holder(window, worker, now_ms, |amount_reserved| amount_reserved.saturating_add(amount));
        Grant { amount, remaining: remaining - amount }
    }

    /// Returns the amount of a budget that other workers hold or have taken in advance.
    pub fn reserved_by_others(&self, worker: u64) -> u64 {
        let others = self.holders.iter().filter(|holder| holder.worker != worker);
        others.fold(0, |sum: u64, holder| sum.saturating_add(holder.amount))
    }

    /// Returns the remaining amount, without taking anything.
    pub fn remaining(&mut self, window: LimitWindow, now_ms: u64, limit: u64) -> u64 {
        self.advance(window, now_ms);
        limit.saturating_sub(self.used(window))
    }

    /// Reports the use of a worker's amounts. `returned` is the part that it does not need. `exceeded` is the usage of
    /// requests beyond their holds. `reserved` is the part that running requests still reserve. `start_ms` is the
    /// window in which it took the amounts.
    pub fn settle(&mut self, window: LimitWindow, now_ms: u64, start_ms: u64, worker: u64, report: WorkerReport) {
        self.advance(window, now_ms);
        let is_current = window.sliding_part_ms() > 0 || start_ms == self.start_ms;
        if is_current {
            self.subtract(window, start_ms, report.returned);
            if report.exceeded > 0 {
                self.add(window, report.exceeded);
            }
        }
        self.change_holder(window, worker, now_ms, |_| report.reserved);
    }

    /// Sets the usage of a budget's period according to the ledger. If `resets` is higher than before, an operator has
    /// reset the usage, and the count restarts from this amount. Corrected costs change the count by the difference.
    pub fn set_recorded(&mut self, window: LimitWindow, now_ms: u64, known: RecordedUsage) {
        self.advance(window, now_ms);
        if window.part_at(now_ms).start_ms != self.start_ms {
            return;
        }
        let total_reserved = self.holders.iter().fold(0, |sum: u64, holder| sum.saturating_add(holder.amount));
        self.used = if known.resets > self.resets {
            known.recorded.saturating_add(total_reserved)
        } else {
            let corrected = known.corrected.saturating_sub(self.corrected);
            self.used.saturating_add_signed(corrected).max(known.recorded)
        };
        (self.recorded, self.corrected) = (known.recorded, known.corrected);
        self.resets = self.resets.max(known.resets);
    }

    /// Returns the usage in the ledger of the period that starts at `start_ms`.
    pub fn recorded_in(&self, start_ms: u64) -> RecordedUsage {
        if self.start_ms == start_ms {
            RecordedUsage { recorded: self.recorded, resets: self.resets, corrected: self.corrected }
        } else {
            RecordedUsage::default()
        }
    }

    /// Returns the time at which the amounts that are counted now stop counting. `None`: never.
    pub fn reset_ms(&self, window: LimitWindow) -> Option<u64> {
        window.part_at(self.start_ms).reset_ms
    }

    /// Starts the current window. If the clock went back, the newest window continues, so that nothing counts twice.
    fn advance(&mut self, window: LimitWindow, now_ms: u64) {
        let part = window.part_at(now_ms);
        if part.start_ms > self.start_ms {
            self.start_ms = part.start_ms;
            if let Some(newest) = self.start_ms.checked_div(window.sliding_part_ms()) {
                let oldest = newest.saturating_sub(SLIDING_PARTS);
                self.parts.retain(|(number, _)| *number >= oldest);
            } else {
                (self.used, self.recorded, self.resets, self.corrected) = (0, 0, 0, 0);
                // The amounts that workers hold belong to the previous window.
                self.holders.clear();
            }
        }
        if window.is_budget() {
            self.expire_holders(now_ms);
        }
    }

    /// Releases the amounts of workers that no longer report. The ledger contains their usage.
    fn expire_holders(&mut self, now_ms: u64) {
        let mut expired = 0_u64;
        self.holders.retain(|holder| {
            let is_alive = holder.seen_ms.saturating_add(HOLDER_EXPIRY_MS) > now_ms;
            if !is_alive {
                expired = expired.saturating_add(holder.amount);
            }
            is_alive
        });
        if expired > 0 {
            let total_reserved = self.holders.iter().fold(0, |sum: u64, holder| sum.saturating_add(holder.amount));
            self.used = self.used.saturating_sub(expired).max(self.recorded.saturating_add(total_reserved));
        }
    }

    fn used(&self, window: LimitWindow) -> u64 {
        if window.sliding_part_ms() > 0 {
            self.parts.iter().fold(0, |sum: u64, (_, amount)| sum.saturating_add(*amount))
        } else {
            self.used
        }
    }

    fn add(&mut self, window: LimitWindow, amount: u64) {
        let length = window.sliding_part_ms();
        if length == 0 {
            self.used = self.used.saturating_add(amount);
            return;
        }
        let number = self.start_ms / length;
        match self.parts.last_mut().filter(|(last, _)| *last == number) {
            Some((_, sum)) => *sum = sum.saturating_add(amount),
            None => self.parts.push((number, amount)),
        }
    }

    fn subtract(&mut self, window: LimitWindow, start_ms: u64, amount: u64) {
        let length = window.sliding_part_ms();
        if length == 0 {
            self.used = self.used.saturating_sub(amount).max(self.recorded);
            return;
        }
        let number = start_ms / length;
        if let Some((_, sum)) = self.parts.iter_mut().find(|(part, _)| *part == number) {
            *sum = sum.saturating_sub(amount);
        }
    }

    /// Changes the amount that a worker holds of a budget. Rate limits do not store it, because their windows end soon.
    fn change_holder(&mut self, window: LimitWindow, worker: u64, now_ms: u64, change: impl FnOnce(u64) -> u64) {
        if !window.is_budget() {
            return;
        }
        let index = self.holders.iter().position(|holder| holder.worker == worker);
        let amount = change(index.map_or(0, |index| self.holders[index].amount));
        match (index, amount) {
            (Some(index), 0) => drop(self.holders.swap_remove(index)),
            (Some(index), amount) => self.holders[index] = Holder { worker, amount, seen_ms: now_ms },
            (None, amount) if amount > 0 && self.holders.len() < MAX_HOLDERS => {
                self.holders.push(Holder { worker, amount, seen_ms: now_ms });
            }
            (None, _) => (),
        }
    }
}

/// Use of a worker's amounts since its last report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerReport {
    pub returned: u64,
    pub exceeded: u64,
    pub reserved: u64,
}

impl UsageCounter {
    /// Encodes the counter as little-endian integers.
    pub fn encode(&self) -> Vec<u8> {
        let corrected = self.corrected.cast_unsigned();
        let mut words = vec![self.start_ms, self.used, self.recorded, self.resets, corrected, self.parts.len() as u64];
        words.extend(self.parts.iter().flat_map(|(number, amount)| [*number, *amount]));
        words.push(self.holders.len() as u64);
        words.extend(self.holders.iter().flat_map(|holder| [holder.worker, holder.amount, holder.seen_ms]));
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Decodes a counter. `None` if the bytes are not a valid counter.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            return None;
        }
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next();
        let (start_ms, used, recorded, resets) = (next()?, next()?, next()?, next()?);
        let corrected = next()?.cast_signed();
        let part_count = next().filter(|count| *count <= SLIDING_PARTS + 1)?;
        let parts = (0..part_count).map(|_| Some((next()?, next()?))).collect::<Option<_>>()?;
        let holder_count = next().filter(|count| *count <= MAX_HOLDERS as u64)?;
        let holders = (0..holder_count)
            .map(|_| Some(Holder { worker: next()?, amount: next()?, seen_ms: next()? }))
            .collect::<Option<_>>()?;
        next().is_none().then_some(Self { start_ms, used, parts, recorded, resets, corrected, holders })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::window::RateUnit;

    const MINUTE: LimitWindow = LimitWindow::Fixed(RateUnit::Minute);
    const PERIOD: LimitWindow = LimitWindow::Period { start_ms: 1, end_ms: None };

    fn recorded(recorded: u64, resets: u64, corrected: i64) -> RecordedUsage {
        RecordedUsage { recorded, resets, corrected }
    }

    #[test]
    fn corrected_costs_change_the_count_in_both_directions() {
        let mut counter = UsageCounter::default();
        counter.take(PERIOD, 5, 100, 1, Amount::exactly(60));
        counter.settle(PERIOD, 6, 1, 1, WorkerReport::default());
        // Half of it is recorded; a correction lowers it from 30 to 10.
        counter.set_recorded(PERIOD, 7, recorded(30, 0, 0));
        counter.set_recorded(PERIOD, 8, recorded(10, 0, -20));
        assert_eq!(counter.remaining(PERIOD, 9, 100), 60);
        // The same correction again changes nothing.
        counter.set_recorded(PERIOD, 10, recorded(40, 0, -20));
        assert_eq!(counter.remaining(PERIOD, 11, 100), 60);
        counter.set_recorded(PERIOD, 12, recorded(70, 0, 10));
        assert_eq!(counter.remaining(PERIOD, 13, 100), 30);
        let decoded = UsageCounter::decode(&counter.encode());
        assert_eq!(decoded, Some(counter));
    }

    #[test]
    fn grants_until_the_limit_and_again_in_the_next_window() {
        let mut counter = UsageCounter::default();
        let grants: Vec<_> = (0..4).map(|_| counter.take(MINUTE, 60_000, 3, 1, Amount::exactly(1)).amount).collect();
        assert_eq!(grants, [1, 1, 1, 0]);
        assert_eq!(counter.take(MINUTE, 120_000, 3, 1, Amount::exactly(1)), Grant { amount: 1, remaining: 2 });
        // The clock went back.
        assert_eq!(counter.take(MINUTE, 119_999, 3, 1, Amount::exactly(3)).amount, 0);
    }

    #[test]
    fn takes_a_hundredth_in_advance_and_accepts_returns() {
        let mut counter = UsageCounter::default();
        assert_eq!(counter.take(PERIOD, 5, 10_000, 1, Amount::exactly(7)), Grant { amount: 100, remaining: 9_900 });
        counter.settle(PERIOD, 6, 1, 1, WorkerReport { returned: 93, exceeded: 0, reserved: 0 });
        assert_eq!(counter.remaining(PERIOD, 7, 10_000), 9_993);
    }

    #[test]
    fn takes_what_is_left_if_the_request_accepts_less() {
        let mut counter = UsageCounter::default();
        assert_eq!(counter.take(PERIOD, 5, 100, 1, Amount::at_most(70)), Grant { amount: 70, remaining: 30 });
        assert_eq!(counter.take(PERIOD, 6, 100, 1, Amount::exactly(70)).amount, 0);
        assert_eq!(counter.take(PERIOD, 7, 100, 1, Amount::at_most(70)), Grant { amount: 30, remaining: 0 });
        assert_eq!(counter.take(PERIOD, 8, 100, 1, Amount::at_most(70)).amount, 0);
    }

    #[test]
    fn releases_reserved_amounts_of_a_killed_worker() {
        let mut counter = UsageCounter::default();
        assert_eq!(counter.take(PERIOD, 5, 100, 1, Amount::exactly(60)).remaining, 40);
        counter.set_recorded(PERIOD, 10, recorded(25, 0, 0));
        assert_eq!(counter.remaining(PERIOD, 11, 100), 40);
        assert_eq!(counter.remaining(PERIOD, 5 + HOLDER_EXPIRY_MS, 100), 75);
    }

    #[test]
    fn usage_that_is_recorded_late_still_counts() {
        let mut counter = UsageCounter::default();
        counter.take(PERIOD, 5, 100, 1, Amount::exactly(10));
        counter.settle(PERIOD, 6, 1, 1, WorkerReport { returned: 0, exceeded: 5, reserved: 0 });
        counter.set_recorded(PERIOD, 7, recorded(40, 0, 0));
        assert_eq!(counter.remaining(PERIOD, 8, 100), 60);
        // An operator resets the usage.
        counter.set_recorded(PERIOD, 9, recorded(0, 1, 0));
        assert_eq!(counter.remaining(PERIOD, 10, 100), 100);
        counter.take(PERIOD, 11, 100, 1, Amount::exactly(10));
        counter.set_recorded(PERIOD, 12, recorded(0, 1, 0));
        assert_eq!(counter.remaining(PERIOD, 13, 100), 90);
    }

    #[test]
    fn refuses_bytes_that_are_no_counter() {
        let mut counter = UsageCounter::default();
        counter.take(LimitWindow::Sliding(RateUnit::Second), 12_345, 9, 3, Amount::exactly(2));
        let bytes = counter.encode();
        assert_eq!(UsageCounter::decode(&bytes), Some(counter));
        for broken in [&bytes[..bytes.len() - 8], &bytes[..bytes.len() - 1], &[0; 24], &[255; 64]] {
            assert_eq!(UsageCounter::decode(broken), None);
        }
    }

    proptest! {
        #[test]
        fn no_sliding_window_holds_more_than_the_limit(steps in proptest::collection::vec((0_u64..120, 1_u64..4), 1..400)) {
            let window = LimitWindow::Sliding(RateUnit::Second);
            let (mut counter, mut now, limit) = (UsageCounter::default(), 10_000, 20);
            let mut admitted: Vec<(u64, u64)> = Vec::new();
            for (pause, amount) in steps {
                now += pause;
                let grant = counter.take(window, now, limit, 1, Amount::exactly(amount));
                prop_assert!(grant.amount == 0 || grant.amount == amount);
                if grant.amount > 0 {
                    admitted.push((now, amount));
                }
                let sum: u64 = admitted.iter().filter(|(at, _)| *at + 1000 > now).map(|(_, amount)| amount).sum();
                prop_assert!(sum <= limit, "{sum} in the second before {now}");
            }
        }
    }
}
