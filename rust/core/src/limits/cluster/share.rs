//! Announcements of this worker, and the shares of limits that it uses while Redis is away.

use std::sync::atomic::Ordering;

use super::{
    ClusterLimiter, LeaseClaim,
    workers::{Announcement, SILENT_MS, parse_announcements},
};
use crate::{
    limits::{
        node_counters::NodeCounters,
        window::{LimitWindow, SLIDING_PARTS},
    },
    state::shared::redis::QueryError,
};

/// Interval at which a worker without Redis takes a part of what a budget has left. What all nodes used before is in the
/// ledger by then.
const BUDGET_SHARE_INTERVAL_MS: u64 = 10_000;
/// Part of its share of a budget that a worker takes at once, because the ledger may lack what was taken before.
const BUDGET_SHARE_PARTS: u64 = 2;

/// What Redis may know of this worker.
#[derive(Debug, Default)]
pub(super) struct SentAnnouncement {
    /// Time of the newest announcement that Redis may have taken.
    pub time_ms: u64,
    /// Largest divisor of those that may be the newest.
    pub divisor: u64,
}

impl ClusterLimiter {
    /// Shows the other workers that this one reaches Redis, so that they may use its share of the current windows. Returns
    /// false if what it used without Redis must be written first.
    pub(super) async fn announce(&self, ledger: &NodeCounters, now_ms: u64) -> bool {
        let mut sent = self.announcement.lock().await;
        if self.has_unwritten_shares(now_ms) {
            return false;
        }
        self.announced_ms.fetch_max(now_ms, Ordering::Relaxed);
        let alive_count = ledger.member_count();
        let divisor = self.known_members().max(alive_count);
        let announcement = Announcement { time_ms: now_ms, divisor, member: self.member };
        let new_generation = format!("{:x}-{now_ms}", self.member);
        match self.redis.announce_worker(&self.name, &announcement.encode(), &new_generation).await {
            Ok((generation, workers)) => {
                (sent.time_ms, sent.divisor) = (sent.time_ms.max(now_ms), divisor);
                self.is_lost.store(false, Ordering::Relaxed);
                self.check_generation(Some(generation), now_ms);
                let announcements = parse_announcements(&workers, &self.name);
                let expired = self.others().update(announcements, alive_count, now_ms);
                self.redis.remove_workers(&expired).await;
            }
            Err(error) => {
                self.is_lost.store(true, Ordering::Relaxed);
                if error == QueryError::Unknown {
                    (sent.time_ms, sent.divisor) = (sent.time_ms.max(now_ms), sent.divisor.max(divisor));
                }
            }
        }
        true
    }

    /// Returns true if this worker used shares, and Redis does not know yet how much.
    fn has_unwritten_shares(&self, now_ms: u64) -> bool {
        let leases = self.lock();
        leases.active.iter().filter_map(|hash| leases.by_hash.get(hash)).any(|lease| {
            let is_over =
                matches!(lease.window, LimitWindow::Fixed(_)) && lease.window.part_at(now_ms).start_ms > lease.start_ms;
            lease.is_share && lease.is_dirty && !is_over
        })
    }

    /// Adds the share of this worker. Other workers leave it unused: that of a fixed window in which this worker did not
    /// announce itself, and others when this worker is silent for a while.
    pub(super) async fn add_share(&self, claim: LeaseClaim, ledger: &NodeCounters, now_ms: u64) {
        // An announcement on its way would release the share.
        let sent = self.announcement.lock().await;
        let divisor = self.known_members().max(ledger.member_count()).max(sent.divisor).max(1);
        let mut leases = self.lock();
        let super::ClusterLeases { by_hash, active, .. } = &mut *leases;
        let Some(lease) = by_hash.get_mut(&claim.hash).filter(|lease| lease.start_ms == claim.part.start_ms) else {
            return;
        };
        let used = lease.own_settled().saturating_add(lease.held).saturating_add(lease.free);
        let share = match lease.window {
            LimitWindow::Fixed(_) if sent.time_ms < lease.start_ms => (lease.limit / divisor).saturating_sub(used),
            LimitWindow::Sliding(_) => {
                // The window holds this part and those before it, in which others may have used everything.
                let length = lease.window.sliding_part_ms() * (SLIDING_PARTS + 1);
                let is_reserved = sent.time_ms == 0 || lease.start_ms > sent.time_ms + SILENT_MS + length;
                if is_reserved { (lease.limit / divisor).saturating_sub(used) } else { 0 }
            }
            LimitWindow::Fixed(_) => 0,
            // What others used since is not known, so only the lease is certain.
            _ if lease.is_hard => return,
            _ if now_ms < lease.share_ms + BUDGET_SHARE_INTERVAL_MS => 0,
            _ => {
                lease.share_ms = now_ms;
                let unused = lease.held.saturating_add(lease.free);
                (lease.limit.saturating_sub(lease.recorded) / (divisor * BUDGET_SHARE_PARTS)).saturating_sub(unused)
            }
        };
        lease.free = lease.free.saturating_add(share);
        (lease.is_share, lease.is_dirty, lease.left) = (true, true, 0);
        active.insert(claim.hash);
    }
}
