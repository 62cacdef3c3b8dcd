//! Count of one limit and one group value that the workers of all nodes share in Redis: a hash with one field for each
//! worker and part of time. Each worker writes only its own fields, with absolute values. A lost or repeated write
//! therefore does no harm, and workers restore what Redis loses.

use std::collections::HashMap;

use super::window::{LimitWindow, SLIDING_PARTS};

/// Time after the last report of a worker at which the amounts that it holds of a budget stop counting.
pub const MEMBER_EXPIRY_MS: u64 = 60_000;
/// Time for which a counter is stored after its window has ended.
const EXTRA_TTL_MS: u64 = 60_000;
/// Maximum time for which a counter is stored after the last write.
const MAX_TTL_MS: u64 = 400 * 24 * 3600 * 1000;

/// Usage of one worker in one part of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemberUsage {
    /// Amount that ended requests have used.
    pub settled: u64,
    /// Amount that requests hold, or that was taken in advance.
    pub outstanding: u64,
    pub seen_ms: u64,
}

impl MemberUsage {
    pub fn encode(self) -> String {
        format!("{},{},{}", self.settled, self.outstanding, self.seen_ms)
    }

    fn decode(text: &str) -> Option<Self> {
        let mut numbers = text.split(',').map(|part| part.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Self { settled: next()?, outstanding: next()?, seen_ms: next()? })
    }
}

/// Returns the name of a worker's field for the part of time that starts at `slot`.
pub fn field_name(member: u64, slot: u64) -> String {
    format!("{member:x}:{slot}")
}

fn parse_field(name: &str) -> Option<(u64, u64)> {
    let (member, slot) = name.split_once(':')?;
    Some((u64::from_str_radix(member, 16).ok()?, slot.parse().ok()?))
}

/// Returns how long a counter is stored after its last write.
pub fn ttl_ms(window: LimitWindow, now_ms: u64) -> u64 {
    let length = window.part_at(now_ms).reset_ms.map_or(MAX_TTL_MS, |reset| reset.saturating_sub(now_ms));
    length.saturating_add(EXTRA_TTL_MS).min(MAX_TTL_MS)
}

/// Usage of other workers, as far as it counts now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OthersUsage {
    pub settled: u64,
    pub outstanding: u64,
    /// Used and reserved amount of each worker.
    pub by_member: HashMap<u64, u64>,
    /// Fields of past parts of time, which can be removed.
    pub removed_fields: Vec<String>,
}

impl OthersUsage {
    /// Adds up the fields of a counter, without those of `member`.
    pub fn add_up(fields: &[(String, String)], member: u64, window: LimitWindow, now_ms: u64) -> Self {
        let length = window.sliding_part_ms();
        let oldest = now_ms.checked_div(length).map_or(0, |number| number.saturating_sub(SLIDING_PARTS) * length);
        let mut others = Self::default();
        for (name, value) in fields {
            let (Some((from, slot)), Some(usage)) = (parse_field(name), MemberUsage::decode(value)) else { continue };
            if slot < oldest {
                others.removed_fields.push(name.clone());
            } else if from != member {
                others.settled = others.settled.saturating_add(usage.settled);
                // Amounts that a killed worker reserved of a budget stop counting. A window of a rate limit ends soon
                // anyway.
                if !window.is_budget() || usage.seen_ms.saturating_add(MEMBER_EXPIRY_MS) > now_ms {
                    others.outstanding = others.outstanding.saturating_add(usage.outstanding);
                }
                let sum = others.by_member.entry(from).or_default();
                *sum = sum.saturating_add(usage.settled).saturating_add(usage.outstanding);
            }
        }
        others
    }

    /// Returns how much a worker may hold. `own` is the amount that it settled itself, `recorded` the usage in the
    /// ledger. `corrected` is the sum of corrections of costs, which the amounts of workers do not include.
    pub fn allowed(&self, limit: u64, own: u64, recorded: u64, corrected: i64) -> u64 {
        let settled = self.settled.saturating_add(own).saturating_add_signed(corrected).max(recorded);
        limit.saturating_sub(settled).saturating_sub(self.outstanding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::window::RateUnit;

    const BUDGET: LimitWindow = LimitWindow::Period { start_ms: 1, end_ms: None };
    const NOW: u64 = 1_795_612_440_000;

    fn field(member: u64, slot: u64, settled: u64, outstanding: u64, seen_ms: u64) -> (String, String) {
        (field_name(member, slot), MemberUsage { settled, outstanding, seen_ms }.encode())
    }

    #[test]
    fn adds_up_other_workers_and_ignores_what_is_no_field() {
        let fields = [
            field(1, 1, 10, 5, NOW),
            field(2, 1, 20, 7, NOW),
            field(3, 1, 40, 9, NOW - MEMBER_EXPIRY_MS),
            ("x".into(), "1,2,3".into()),
            ("4:1".into(), "1,2".into()),
        ];
        let others = OthersUsage::add_up(&fields, 1, BUDGET, NOW);
        assert_eq!((others.settled, others.outstanding), (60, 7));
        assert_eq!(others.allowed(100, 10, 0, 0), 23);
        // The ledger knows more, for example after prices were corrected.
        assert_eq!(others.allowed(100, 10, 80, 0), 13);
        assert_eq!(others.allowed(100, 10, 200, 0), 0);
        // Costs were lowered: the ledger knows of 80 that were 100.
        assert_eq!(others.allowed(100, 10, 50, -20), 43);
    }

    #[test]
    fn counts_the_parts_of_a_sliding_window() {
        let window = LimitWindow::Sliding(RateUnit::Second);
        let slot = NOW - NOW % 50;
        let fields = [
            field(2, slot, 1, 1, 0),
            field(2, slot - 1000, 2, 0, 0),
            field(2, slot - 1050, 4, 0, 0),
            field(1, slot - 1050, 8, 0, 0),
        ];
        let others = OthersUsage::add_up(&fields, 1, window, NOW);
        assert_eq!((others.settled, others.outstanding), (3, 1));
        assert_eq!(others.removed_fields, [field_name(2, slot - 1050), field_name(1, slot - 1050)]);
    }

    #[test]
    fn counters_are_stored_longer_than_their_window() {
        assert_eq!(ttl_ms(LimitWindow::Fixed(RateUnit::Minute), NOW), 120_000);
        assert_eq!(ttl_ms(BUDGET, NOW), MAX_TTL_MS);
    }
}
