//! Workers of all nodes that share limits through Redis. Each one announces several times in a second that it reaches
//! Redis. Until a worker has done so in a window, its share of the limit is reserved: only this worker uses it, also
//! without Redis.

use std::collections::HashMap;

use crate::{
    limits::{node_counters::KnownMembers, shared_counter::OthersUsage, window::LimitWindow},
    state::shared::redis_counters::HashFields,
};

/// Time after which a worker that no longer announces itself is forgotten, unless the store reports that its node is
/// alive. By then, the node uses no shares (see `UNSEEN_MS`).
const FORGET_AFTER_MS: u64 = 3 * 60 * 1000;
/// Like `FORGET_AFTER_MS`, but for nodes that share no store. Only its announcements show then that a worker is alive.
const FORGET_WITHOUT_STORE_MS: u64 = 10 * 60 * 1000;
/// Maximum age of the store's data about other nodes. With older data, no worker is forgotten.
const MAX_STORE_AGE_MS: u64 = 30_000;
/// Time after which a worker that no longer announces itself may use its share of windows that have already begun.
pub const SILENT_MS: u64 = 1000;

/// Announcement of a worker to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    pub time_ms: u64,
    /// Number by which the worker divides a limit to get its share; 0: it has ended, and uses none.
    pub divisor: u64,
    /// Id of the process in the fields of counters.
    pub member: u64,
}

impl Announcement {
    pub fn encode(self) -> String {
        format!("{},{},{:x}", self.time_ms, self.divisor, self.member)
    }

    fn decode(text: &str) -> Option<Self> {
        let mut parts = text.split(',');
        let time_ms = parts.next()?.parse().ok()?;
        let divisor = parts.next()?.parse().ok()?;
        Some(Self { time_ms, divisor, member: u64::from_str_radix(parts.next()?, 16).ok()? })
    }
}

/// Last announcement of each other worker, by its name.
pub type Announcements = HashMap<Box<str>, Announcement>;

/// Returns the announcements of other workers.
pub fn parse_announcements(fields: &HashFields, own_name: &str) -> Announcements {
    let others = fields.iter().filter(|(name, _)| name != own_name);
    others.filter_map(|(name, value)| Some((name.as_str().into(), Announcement::decode(value)?))).collect()
}

/// Amount of a limit that workers divide into shares, in a window or in a part of a sliding window.
#[derive(Debug, Clone, Copy)]
pub struct SharedPart {
    pub window: LimitWindow,
    /// Start of the window, or of the part of a sliding window.
    pub start_ms: u64,
    /// Amount that the workers divide.
    pub amount: u64,
}

/// Other workers, as far as this worker knows them.
#[derive(Debug, Default)]
pub struct OtherWorkers {
    known: Announcements,
    /// Workers that have not announced themselves since Redis lost the counters. Their usage is not known.
    missing: Announcements,
    /// When Redis lost the counters last.
    lost_ms: u64,
    /// Number of workers of all nodes according to the store; 0: not known.
    alive_count: u64,
}

impl OtherWorkers {
    /// Remembers that Redis has lost the counters, and with them all announcements.
    pub fn mark_counters_lost(&mut self, now_ms: u64) {
        self.missing.extend(self.known.drain());
        self.lost_ms = now_ms;
    }

    /// Replaces the known announcements by those in Redis. Returns the names of workers that can be removed from Redis:
    /// those that have been silent for long, unless the store counts them among its members.
    pub fn update(&mut self, mut announcements: Announcements, members: KnownMembers, now_ms: u64) -> Vec<String> {
        let forget_after_ms = match members.seen_ms {
            0 => FORGET_WITHOUT_STORE_MS,
            seen_ms if now_ms < seen_ms + MAX_STORE_AGE_MS => FORGET_AFTER_MS,
            _ => u64::MAX,
        };
        let is_old = |announcement: &Announcement| announcement.time_ms.saturating_add(forget_after_ms) < now_ms;
        let mut expired = Vec::new();
        let excess = (announcements.len() as u64 + 1).saturating_sub(members.count);
        self.alive_count = if members.seen_ms > 0 { members.count } else { 0 };
        announcements.retain(|name, announcement| {
            let is_kept = !is_old(announcement) || expired.len() as u64 >= excess;
            if !is_kept {
                expired.push(name.to_string());
            }
            is_kept
        });
        self.missing.retain(|name, announcement| !announcements.contains_key(name) && !is_old(announcement));
        self.known = announcements;
        expired
    }

    /// Returns how many other workers there are.
    pub fn count(&self) -> u64 {
        self.known.values().chain(self.missing.values()).filter(|announcement| announcement.divisor > 0).count() as u64
    }

    /// Returns the number of workers in the store that have never announced themselves.
    fn unseen_count(&self, announcements: &Announcements) -> u64 {
        let missing = self.missing.keys().filter(|name| !announcements.contains_key(*name)).count();
        self.alive_count.saturating_sub((announcements.len() + missing) as u64 + 1)
    }

    /// Returns true if Redis may lack the usage of another worker in a part of time that starts at `start_ms`.
    pub fn is_incomplete(&self, announcements: &Announcements, start_ms: u64) -> bool {
        start_ms <= self.lost_ms && self.missing.keys().any(|name| !announcements.contains_key(name))
    }

    /// Returns how much of a limit is reserved for workers that may have no connection to Redis. Does not include the
    /// amounts that `others` already counts for them.
    pub fn disconnected_share(
        &self,
        announcements: &Announcements,
        part: SharedPart,
        others: &OthersUsage,
        now_ms: u64,
    ) -> u64 {
        let missing = self
            .missing
            .iter()
            .filter(|(name, _)| !announcements.contains_key(*name))
            .map(|(_, announcement)| announcement);
        let may_use_share = |announcement: &&Announcement| match part.window {
            LimitWindow::Fixed(_) => announcement.time_ms < part.start_ms,
            _ => announcement.time_ms + SILENT_MS < now_ms,
        };
        let has_share = |announcement: &&Announcement| announcement.divisor > 0 && may_use_share(announcement);
        let unseen = self.unseen_count(announcements) * (part.amount / self.alive_count.max(1));
        let shares = announcements.values().chain(missing).filter(has_share).map(|announcement| {
            let share = part.amount / announcement.divisor.max(1);
            let used = others.by_member.get(&announcement.member).copied().unwrap_or(0);
            // The share of a budget is the amount that a worker may still use, so its previous usage does not reduce
            // it.
            if part.window.is_budget() { share } else { share.saturating_sub(used) }
        });
        shares.fold(unseen, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::window::RateUnit;

    const NOW: u64 = 1_795_612_440_000;
    const PERIOD: LimitWindow = LimitWindow::Period { start_ms: 1, end_ms: None };

    fn announcements(rows: &[(&str, u64, u64, u64)]) -> Announcements {
        let rows = rows.iter().map(|(name, time_ms, divisor, member)| {
            ((*name).to_owned(), Announcement { time_ms: *time_ms, divisor: *divisor, member: *member }.encode())
        });
        parse_announcements(&rows.collect(), "own")
    }

    fn members(count: u64) -> KnownMembers {
        KnownMembers { count, seen_ms: NOW, from_ms: 0 }
    }

    fn part(window: LimitWindow) -> SharedPart {
        SharedPart { window, start_ms: NOW, amount: 90 }
    }

    #[test]
    fn reserves_the_share_of_a_fixed_window_until_its_worker_announces_itself() {
        let workers = OtherWorkers::default();
        let window = part(LimitWindow::Fixed(RateUnit::Minute));
        let others = OthersUsage { by_member: HashMap::from([(3, 20)]), ..OthersUsage::default() };
        let disconnected_share =
            |rows: &[_]| workers.disconnected_share(&announcements(rows), window, &others, NOW + 30_000);
        assert_eq!(disconnected_share(&[("own", 0, 3, 1), ("b", NOW, 3, 2)]), 0);
        // Sent before the window started, also if Redis received it later.
        assert_eq!(disconnected_share(&[("b", NOW - 1, 3, 2)]), 30);
        // Another worker knew of fewer workers, and used a part already.
        assert_eq!(disconnected_share(&[("b", NOW - 1, 3, 2), ("c", NOW - 9, 2, 3)]), 30 + 25);
    }

    #[test]
    fn reserves_shares_of_silent_workers_in_other_windows() {
        let workers = OtherWorkers::default();
        let others = OthersUsage { by_member: HashMap::from([(2, 20)]), ..OthersUsage::default() };
        for (window, expected) in [(LimitWindow::Sliding(RateUnit::Second), 10), (PERIOD, 30)] {
            let disconnected_share =
                |time| workers.disconnected_share(&announcements(&[("b", time, 3, 2)]), part(window), &others, NOW);
            assert_eq!((disconnected_share(NOW - SILENT_MS), disconnected_share(NOW - SILENT_MS - 1)), (0, expected));
        }
    }

    #[test]
    fn knows_whose_usage_is_missing_after_redis_lost_the_counters() {
        let mut workers = OtherWorkers::default();
        let all = announcements(&[("b", NOW, 3, 2), ("c", NOW, 3, 3)]);
        assert_eq!(workers.update(all, members(0), NOW), Vec::<String>::new());
        workers.mark_counters_lost(NOW + 5);
        let announcement = announcements(&[("b", NOW + 6, 3, 2)]);
        workers.update(announcement.clone(), members(0), NOW + 6);
        assert!(workers.is_incomplete(&announcement, NOW + 5) && !workers.is_incomplete(&announcement, NOW + 6));
        let window = SharedPart { start_ms: NOW + 6, ..part(LimitWindow::Fixed(RateUnit::Minute)) };
        assert_eq!(workers.disconnected_share(&announcement, window, &OthersUsage::default(), NOW + 7), 30);
        assert_eq!(workers.count(), 2);
        let both = announcements(&[("b", NOW + 8, 3, 2), ("c", NOW + 8, 3, 3)]);
        assert!(!workers.is_incomplete(&both, NOW + 5));
        workers.update(both.clone(), members(0), NOW + 8);
        assert!(!workers.is_incomplete(&announcement, NOW + 5));
    }

    #[test]
    fn forgets_workers_that_neither_redis_nor_the_store_knows_as_alive() {
        let update = |silent_ms: u64, members: KnownMembers| {
            let announcements = announcements(&[("b", NOW - silent_ms - 1, 3, 2), ("c", NOW, 3, 3)]);
            OtherWorkers::default().update(announcements, members, NOW)
        };
        assert_eq!(update(FORGET_AFTER_MS, members(3)), Vec::<String>::new());
        assert_eq!(update(FORGET_AFTER_MS - 1, members(2)), Vec::<String>::new());
        assert_eq!(update(FORGET_AFTER_MS, members(2)), ["b"]);
        // The data of the store are too old to be certain.
        let old = KnownMembers { seen_ms: NOW - MAX_STORE_AGE_MS, ..members(2) };
        assert_eq!(update(FORGET_WITHOUT_STORE_MS, old), Vec::<String>::new());
        let unshared = KnownMembers { seen_ms: 0, ..members(1) };
        assert_eq!(update(FORGET_AFTER_MS, unshared), Vec::<String>::new());
        assert_eq!(update(FORGET_WITHOUT_STORE_MS, unshared), ["b"]);
    }

    #[test]
    fn reserves_shares_of_workers_that_only_the_store_knows() {
        let mut workers = OtherWorkers::default();
        let ended = [("b", NOW, 3, 2), ("c", NOW - FORGET_AFTER_MS, 0, 3)];
        let disconnected_share = |workers: &OtherWorkers| {
            let window = part(LimitWindow::Fixed(RateUnit::Minute));
            workers.disconnected_share(&announcements(&ended), window, &OthersUsage::default(), NOW)
        };
        workers.update(announcements(&ended), members(3), NOW);
        // A worker that has ended is known, and has no share.
        assert_eq!((disconnected_share(&workers), workers.count()), (0, 1));
        workers.update(announcements(&ended), members(5), NOW);
        assert_eq!(disconnected_share(&workers), 2 * 18);
    }

    #[test]
    fn ignores_what_is_no_announcement() {
        for text in ["", "1", "1,2", "x,2,3", "1,2,z"] {
            assert_eq!(Announcement::decode(text), None, "{text}");
        }
    }
}
