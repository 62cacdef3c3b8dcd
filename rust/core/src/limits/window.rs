//! Time windows of limits, in milliseconds since the Unix epoch.

use serde::Deserialize;
use time::{OffsetDateTime, Time};

const DAY_MS: u64 = 24 * 3600 * 1000;
/// Monday 1970-01-05 00:00 UTC, at which ISO weeks start.
const FIRST_MONDAY_MS: u64 = 4 * DAY_MS;
/// Number of parts of a sliding window. Every part that overlaps the last window length counts in full. So the usage in
/// any window of that length stays within the limit, and at most a twentieth less is admitted.
pub const SLIDING_PARTS: u64 = 20;
/// Maximum time for which a worker may use a lease.
const MAX_LEASE_MS: u64 = 1000;

/// Length of a window of a rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RateUnit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
}

impl RateUnit {
    pub const ALL: [Self; 5] = [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week];

    pub fn milliseconds(self) -> u64 {
        match self {
            Self::Second => 1000,
            Self::Minute => 60 * 1000,
            Self::Hour => 3600 * 1000,
            Self::Day => DAY_MS,
            Self::Week => 7 * DAY_MS,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
        }
    }
}

/// Length of the recurring periods of a budget that has no stored start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recurrence {
    /// ISO weeks, from Monday 00:00 UTC.
    Week,
    /// Calendar months in UTC.
    Month,
    /// Days, counted from 1970-01-01.
    Days(u16),
}

impl Recurrence {
    /// Returns the start and the end of the period that contains a moment.
    fn period_at(self, now_ms: u64) -> (u64, u64) {
        let aligned = |length: u64, offset: u64| {
            let start = now_ms - now_ms.saturating_sub(offset) % length;
            (start, start + length)
        };
        match self {
            Self::Week => aligned(7 * DAY_MS, FIRST_MONDAY_MS),
            Self::Days(count) => aligned(u64::from(count.max(1)) * DAY_MS, 0),
            Self::Month => month_at(now_ms).unwrap_or_else(|| aligned(31 * DAY_MS, 0)),
        }
    }
}

/// Returns the start and the end of a calendar month; `None` for a moment beyond the years of the calendar.
fn month_at(now_ms: u64) -> Option<(u64, u64)> {
    let now = OffsetDateTime::from_unix_timestamp(i64::try_from(now_ms / 1000).ok()?).ok()?;
    let first = now.replace_time(Time::MIDNIGHT).replace_day(1).ok()?;
    let length = u64::from(first.month().length(first.year())) * DAY_MS;
    let start = u64::try_from(first.unix_timestamp()).ok()? * 1000;
    Some((start, start + length))
}

/// Time windows in which a limit counts usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitWindow {
    /// Windows that follow each other, aligned to UTC.
    Fixed(RateUnit),
    /// The last window length before each request.
    Sliding(RateUnit),
    /// Period of a budget. Without an end, the count never starts again.
    Period { start_ms: u64, end_ms: Option<u64> },
    /// Periods of a budget that follow each other.
    Recurring(Recurrence),
}

/// Part of time in which a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowPart {
    /// Start of the window, or of the part of a sliding window.
    pub start_ms: u64,
    /// Time at which the amounts that are counted now stop counting. `None`: never.
    pub reset_ms: Option<u64>,
    /// Time until which amounts that are taken now may be used.
    pub lease_end_ms: u64,
}

impl LimitWindow {
    /// Returns the part of time that contains a moment.
    pub fn part_at(self, now_ms: u64) -> WindowPart {
        match self {
            Self::Fixed(unit) => {
                let length = unit.milliseconds();
                let offset = if unit == RateUnit::Week { FIRST_MONDAY_MS } else { 0 };
                let start_ms = now_ms - (now_ms.saturating_sub(offset)) % length;
                let end = start_ms + length;
                WindowPart { start_ms, reset_ms: Some(end), lease_end_ms: end.min(now_ms + MAX_LEASE_MS) }
            }
            Self::Sliding(unit) => {
                let part = self.sliding_part_ms();
                let start_ms = now_ms - now_ms % part;
                let end = start_ms + part;
                let reset_ms = Some(end + unit.milliseconds());
                // An amount counts in the part in which it was taken, so it must be used there.
                WindowPart { start_ms, reset_ms, lease_end_ms: end.min(now_ms + MAX_LEASE_MS) }
            }
            // The next period begins at once, even if it is not published yet. It counts as equally long.
            Self::Period { start_ms, end_ms: Some(end) } if now_ms >= end => {
                let next_end = end + end.saturating_sub(start_ms).max(DAY_MS);
                Self::Period { start_ms: end, end_ms: Some(next_end.max(now_ms + 1)) }.part_at(now_ms)
            }
            Self::Period { start_ms, end_ms } => {
                let lease_end_ms = (now_ms + MAX_LEASE_MS).min(end_ms.unwrap_or(u64::MAX));
                WindowPart { start_ms, reset_ms: end_ms, lease_end_ms }
            }
            Self::Recurring(recurrence) => {
                let (start_ms, end_ms) = recurrence.period_at(now_ms);
                WindowPart { start_ms, reset_ms: Some(end_ms), lease_end_ms: end_ms.min(now_ms + MAX_LEASE_MS) }
            }
        }
    }

    /// Returns true for a budget, which limits the usage in a period, and false for a rate limit.
    pub fn is_budget(self) -> bool {
        matches!(self, Self::Period { .. } | Self::Recurring(_))
    }

    /// Returns the length of a part of a sliding window; 0 for other windows.
    pub fn sliding_part_ms(self) -> u64 {
        match self {
            Self::Sliding(unit) => unit.milliseconds() / SLIDING_PARTS,
            _ => 0,
        }
    }

    /// Returns the length of the window in seconds, rounded up. `None` for a budget that never starts again.
    pub fn seconds(self) -> Option<u64> {
        match self {
            Self::Fixed(unit) | Self::Sliding(unit) => Some(unit.milliseconds() / 1000),
            Self::Period { start_ms, end_ms } => Some(end_ms?.saturating_sub(start_ms).div_ceil(1000)),
            Self::Recurring(Recurrence::Week) => Some(7 * DAY_MS / 1000),
            Self::Recurring(Recurrence::Days(count)) => Some(u64::from(count) * DAY_MS / 1000),
            // Months differ in length.
            Self::Recurring(Recurrence::Month) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Wednesday 2026-11-25 13:14:15.678 UTC.
    const NOW: u64 = 1_795_612_455_678;

    #[test]
    fn fixed_windows_are_aligned_to_utc() {
        let start = |unit| LimitWindow::Fixed(unit).part_at(NOW).start_ms;
        assert_eq!(start(RateUnit::Second), 1_795_612_455_000);
        assert_eq!(start(RateUnit::Minute), 1_795_612_440_000);
        assert_eq!(start(RateUnit::Hour), 1_795_611_600_000);
        assert_eq!(start(RateUnit::Day), 1_795_564_800_000);
        // Monday 2026-11-23 00:00 UTC.
        assert_eq!(start(RateUnit::Week), 1_795_392_000_000);
        let minute = LimitWindow::Fixed(RateUnit::Minute).part_at(NOW);
        assert_eq!((minute.reset_ms, minute.lease_end_ms), (Some(1_795_612_500_000), NOW + 1000));
        assert_eq!(LimitWindow::Fixed(RateUnit::Second).part_at(NOW).lease_end_ms, 1_795_612_456_000);
    }

    #[test]
    fn amounts_of_a_sliding_window_are_used_in_their_part() {
        let part = LimitWindow::Sliding(RateUnit::Second).part_at(NOW);
        assert_eq!((part.start_ms, part.lease_end_ms), (1_795_612_455_650, 1_795_612_455_700));
        assert_eq!(part.reset_ms, Some(1_795_612_456_700));
    }

    #[test]
    fn periods_without_a_stored_start_follow_the_calendar() {
        let period = |recurrence, now| {
            let part = LimitWindow::Recurring(recurrence).part_at(now);
            (part.start_ms, part.reset_ms.unwrap())
        };
        // Monday 2026-11-23, and the month of November.
        assert_eq!(period(Recurrence::Week, NOW), (1_795_392_000_000, 1_795_996_800_000));
        assert_eq!(period(Recurrence::Month, NOW), (1_793_491_200_000, 1_796_083_200_000));
        assert_eq!(period(Recurrence::Month, 1_796_083_200_000).0, 1_796_083_200_000);
        let (start, end) = period(Recurrence::Days(10), NOW);
        assert!(end - start == 10 * DAY_MS && start.is_multiple_of(10 * DAY_MS) && start <= NOW && NOW < end);
    }

    #[test]
    fn a_period_may_have_no_end() {
        let part = LimitWindow::Period { start_ms: 5, end_ms: None }.part_at(NOW);
        assert_eq!((part.start_ms, part.reset_ms), (5, None));
        assert_eq!(LimitWindow::Period { start_ms: 5, end_ms: Some(NOW + 3) }.part_at(NOW).lease_end_ms, NOW + 3);
        // A new period begins when the old one ends, also before it is published.
        let next = LimitWindow::Period { start_ms: NOW - 9 * DAY_MS, end_ms: Some(NOW - 1) }.part_at(NOW);
        assert_eq!((next.start_ms, next.reset_ms), (NOW - 1, Some(NOW - 2 + 9 * DAY_MS)));
        let much_later = LimitWindow::Period { start_ms: 1, end_ms: Some(DAY_MS) }.part_at(NOW);
        assert_eq!((much_later.start_ms, much_later.reset_ms), (DAY_MS, Some(NOW + 1)));
    }
}
