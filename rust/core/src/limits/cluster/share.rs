//! Announcements of this worker, and the shares of limits that it uses while Redis is away.

use std::sync::atomic::Ordering;

use super::{
    ClusterLimiter, LeaseClaim,
    lease::ClusterLease,
    workers::{Announcement, SILENT_MS, parse_announcements},
};
use crate::{
    limits::{
        counter::{Amount, WorkerReport},
        node_counters::{KnownMembers, NodeCounters},
        now_ms,
        rule::parse_counter_window,
        window::{LimitWindow, SLIDING_PARTS},
    },
    state::shared::redis::QueryError,
};

/// Interval at which a worker without Redis takes a part of the remaining amount of a budget. After it, the ledger
/// contains the usage of all nodes before.
const BUDGET_SHARE_INTERVAL_MS: u64 = 10_000;
/// A worker takes its share of a budget divided by this number at once, because the ledger may lack recent usage.
const BUDGET_SHARE_PARTS: u64 = 2;

/// Divisor of the part of its unused share that a worker takes from a fixed window at one time. A killed worker loses
/// the part that it has taken.
const SHARE_PARTS: u64 = 8;
/// Time after its last contact with the store in which a node uses shares. Other nodes leave them unused for longer.
const UNSEEN_MS: u64 = 2 * 60 * 1000;

/// Announcements of this worker that Redis may have received.
#[derive(Debug, Default)]
pub(super) struct SentAnnouncement {
    /// Time of the newest announcement that Redis may have received.
    pub time_ms: u64,
    /// Largest divisor of the announcements that Redis may have received last.
    pub divisor: u64,
}

impl ClusterLimiter {
    /// Announces to the other workers that this one reaches Redis, so that they may use its share of the current
    /// windows. Returns false if this worker must first write its usage without Redis.
    pub(super) async fn announce(&self, ledger: &NodeCounters, now_ms: u64) -> bool {
        let mut sent = self.announcement.lock().await;
        if self.has_unwritten_shares(now_ms) {
            return false;
        }
        self.announced_ms.fetch_max(now_ms, Ordering::Relaxed);
        let members = ledger.known_members();
        let divisor = self.known_members().max(members.count);
        if self.redis.is_available() {
            // If this announcement fails, the previous one stays in Redis, so the larger divisor is saved.
            self.contact.save(now_ms, divisor.max(sent.divisor));
        }
        let announcement = Announcement { time_ms: now_ms, divisor, member: self.member };
        let new_generation = format!("{:x}-{now_ms}", self.member);
        match self.redis.announce_worker(&self.name, &announcement.encode(), &new_generation).await {
            Ok((generation, workers)) => {
                (sent.time_ms, sent.divisor) = (sent.time_ms.max(now_ms), divisor);
                self.contact.save(now_ms, divisor);
                self.is_lost.store(false, Ordering::Relaxed);
                self.check_generation(Some(generation), now_ms);
                let announcements = parse_announcements(&workers, &self.name);
                let expired = self.lock_other_workers().update(announcements, members, now_ms);
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

    /// Announces to the other workers that this one has ended, and uses no shares.
    pub(super) async fn announce_end(&self, now_ms: u64) {
        let announcement = Announcement { time_ms: now_ms, divisor: 0, member: self.member };
        let new_generation = format!("{:x}-{now_ms}", self.member);
        drop(self.redis.announce_worker(&self.name, &announcement.encode(), &new_generation).await);
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

    /// Adds the share of this worker to a lease, if the other workers leave it unused. In a fixed window, they do so
    /// until this worker announces itself in it; in other windows, when this worker has been silent for a while.
    pub(super) async fn add_share(&self, claim: LeaseClaim, ledger: &NodeCounters, now_ms: u64) {
        // Waits for an announcement that is being sent, because it would release the share.
        let sent = self.announcement.lock().await;
        let members = ledger.known_members();
        let divisor = self.known_members().max(members.count).max(sent.divisor).max(1);
        let mut leases = self.lock();
        let super::ClusterLeases { by_hash, active, .. } = &mut *leases;
        let Some(lease) = by_hash.get_mut(&claim.hash).filter(|lease| lease.start_ms == claim.part.start_ms) else {
            return;
        };
        // The window contains this part and previous ones, in which other workers may have used everything.
        let length = lease.window.sliding_part_ms() * (SLIDING_PARTS + 1);
        let is_reserved = match lease.window {
            _ if !is_share_known(members, now_ms) => false,
            LimitWindow::Fixed(_) => sent.time_ms < lease.start_ms && members.from_ms <= lease.start_ms,
            LimitWindow::Sliding(_) => {
                let is_silent = sent.time_ms == 0 || lease.start_ms > sent.time_ms + SILENT_MS + length;
                is_silent
                    && lease.start_ms >= members.from_ms.saturating_add(if members.from_ms > 0 { length } else { 0 })
            }
            _ => now_ms >= members.from_ms,
        };
        // A process of this worker that was killed may have taken an amount that the ledger does not know yet.
        let before_ms = if self.contact.is_restart { self.started_ms } else { 0 };
        let share = match lease.window {
            LimitWindow::Fixed(_) | LimitWindow::Sliding(_) if is_reserved => {
                let part = SharePart { limit: lease.limit / divisor, needed: claim.needed };
                self.take_share(lease, part, ledger, now_ms)
            }
            LimitWindow::Fixed(_) | LimitWindow::Sliding(_) => 0,
            // The current usage of other workers is not known. So only the amount in the lease of a hard budget is
            // certain.
            _ if lease.is_hard => return,
            _ if !is_reserved || now_ms < lease.share_ms.max(before_ms) + BUDGET_SHARE_INTERVAL_MS => 0,
            _ => {
                lease.share_ms = now_ms;
                let unused = lease.reserved.saturating_add(lease.free);
                (lease.limit.saturating_sub(lease.recorded) / (divisor * BUDGET_SHARE_PARTS)).saturating_sub(unused)
            }
        };
        lease.free = lease.free.saturating_add(share);
        (lease.is_share, lease.is_dirty, lease.remaining) = (true, true, 0);
        active.insert(claim.hash);
    }

    /// Adds the shares that the previous process of this worker took. Redis must receive them before this worker
    /// announces itself.
    pub(super) fn with_restored_shares(self, ledger: &NodeCounters) -> Self {
        let now_ms = now_ms();
        let count_taken = |(counter_id, group): &(Box<str>, Box<str>)| {
            let window = parse_counter_window(counter_id)?;
            let remaining = ledger.update(0, &self.share_id(counter_id), group, window, |counter| {
                counter.remaining(window, now_ms, u64::MAX)
            });
            Some((window, u64::MAX - remaining.ok()?)).filter(|(_, used)| *used > 0)
        };
        let shares = self.contact.load_shares(|counter| count_taken(counter).is_some());
        let mut leases = self.lock();
        for counter in shares {
            let Some((window, used)) = count_taken(&counter) else { continue };
            let hash = self.hash(&counter.0, &counter.1);
            let (counter_id, group) = counter;
            leases.active.insert(hash);
            leases.by_hash.insert(hash, ClusterLease::restored(counter_id, group, window, used, now_ms));
        }
        drop(leases);
        self
    }

    /// Returns the id of the counter in the node's files that counts this worker's shares of a limit.
    fn share_id(&self, counter_id: &str) -> String {
        format!("share:{}:{counter_id}", self.name)
    }

    /// Takes a part of the share of a rate limit. A file counts the amounts that processes of this worker have taken.
    /// So a process that replaces a killed one does not take them again.
    fn take_share(&self, lease: &ClusterLease, part: SharePart, ledger: &NodeCounters, now_ms: u64) -> u64 {
        let used = lease.total_settled().saturating_add(lease.reserved).saturating_add(lease.free);
        let unused = part.limit.saturating_sub(used);
        // Nothing is taken in advance from a sliding window: it would count unused amounts for longer than the file
        // does.
        let advance = if lease.window.sliding_part_ms() > 0 { 0 } else { unused / SHARE_PARTS };
        let requested = part.needed.max(advance).min(unused);
        if requested == 0 {
            return 0;
        }
        self.contact.add_share(&lease.counter_id, &lease.group);
        let (id, window) = (self.share_id(&lease.counter_id), lease.window);
        let granted = ledger.update(lease.tenant, &id, &lease.group, window, |counter| {
            let granted = counter.take(window, now_ms, part.limit, 0, Amount::at_most(requested)).amount;
            let returned = granted.saturating_sub(requested);
            counter.settle(
                window,
                now_ms,
                window.part_at(now_ms).start_ms,
                0,
                WorkerReport { returned, ..WorkerReport::default() },
            );
            granted.min(requested)
        });
        granted.unwrap_or(requested)
    }
}

/// Part of a limit that belongs to this worker.
#[derive(Debug, Clone, Copy)]
struct SharePart {
    limit: u64,
    /// Minimum that a request needs.
    needed: u64,
}

/// Returns true if the other nodes still leave the shares of this one unused. They do so if this node has recently
/// reported to the store that it is alive, or if the nodes share no store.
fn is_share_known(members: KnownMembers, now_ms: u64) -> bool {
    members.seen_ms == 0 || now_ms < members.seen_ms.saturating_add(UNSEEN_MS)
}
