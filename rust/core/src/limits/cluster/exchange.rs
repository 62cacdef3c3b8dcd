//! Exchange of a worker with Redis outside requests: heartbeats, used amounts, and counters that Redis has lost.

use std::sync::{Arc, PoisonError, atomic::Ordering};

use tokio::sync::OwnedMutexGuard;

use super::{ClusterLeases, ClusterLimiter, LeaseClaim, MAX_WRITES};
use crate::{limits::node_counters::NodeCounters, state::shared::redis_counters::CounterWrite};

/// Time after the last use of a lease at which its unused amounts are returned.
const IDLE_MS: u64 = 1000;
/// Interval of writes that only show that this worker is alive.
const REFRESH_MS: u64 = 10_000;
/// Time after Redis has lost the counters in which no worker takes amounts. In this time, all workers write their
/// counters again.
const RESTORE_MS: u64 = 1500;
/// Interval at which the reserve of an unused lease is adapted to the remaining amount.
const RESERVE_REFRESH_MS: u64 = 2000;
/// Maximum number of counters for which a worker has a reserve.
const MAX_RESERVES: usize = 256;
/// Maximum number of reserves that are adapted in one round.
const MAX_REFRESHES: usize = 64;

/// Locks (`ClusterLease::writing`) that are held while the writes run, so that writes of one lease keep their order.
type WriteLocks = Vec<OwnedMutexGuard<()>>;
/// Counter whose reserve is adapted: its hash, the lock of its writes, its claim, and the fields to write.
type ReserveRefresh = (u64, OwnedMutexGuard<()>, LeaseClaim, CounterWrite);

/// Conditions of one round of writes.
struct WritePlan {
    /// True if the worker ends. Then it returns all unused amounts.
    is_last: bool,
    /// Number of workers of all nodes.
    workers: u64,
    /// Number of counters that have a reserve so far.
    reserves: usize,
    now_ms: u64,
}

impl WritePlan {
    fn has_room(&self) -> bool {
        !self.is_last && self.reserves < MAX_RESERVES
    }
}

impl ClusterLimiter {
    /// Compares the generation of the counters in Redis with the known one. If Redis has lost the counters, marks all
    /// leases to be written again. Returns true while the counters are being restored.
    pub(super) fn check_generation(&self, current: Option<String>, now_ms: u64) -> bool {
        let mut known = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != current {
            if known.is_some() {
                self.restored_ms.store(now_ms + RESTORE_MS, Ordering::Relaxed);
                self.lock_other_workers().mark_counters_lost(now_ms);
                self.mark_all_dirty();
            }
            if current.is_some() {
                *known = current;
            }
        }
        now_ms < self.restored_ms.load(Ordering::Relaxed)
    }

    fn mark_all_dirty(&self) {
        let mut leases = self.lock();
        let ClusterLeases { by_hash, active, .. } = &mut *leases;
        for (hash, lease) in by_hash.iter_mut() {
            lease.is_dirty = true;
            active.insert(*hash);
        }
    }

    /// Writes changed leases to Redis, returns unused amounts, and renews leases. It must run a few times in a second.
    pub async fn report(&self, ledger: &NodeCounters, now_ms: u64, is_last: bool) {
        if now_ms < self.reported_ms.swap(now_ms, Ordering::Relaxed) {
            self.lock().by_hash.values_mut().for_each(|lease| lease.clamp_times(now_ms));
        }
        let is_announced = self.announce(ledger, now_ms).await;
        let hashes: Vec<u64> = self.lock().active.iter().copied().collect();
        let mut plan = WritePlan { is_last, workers: self.known_members(), reserves: 0, now_ms };
        for chunk in hashes.chunks(MAX_WRITES) {
            let (written, writes, locks) = self.collect_writes(chunk, &mut plan);
            if !writes.is_empty() {
                let is_taken = self.redis.write_counters(&writes).await;
                let mut leases = self.lock();
                let ClusterLeases { by_hash, active, .. } = &mut *leases;
                for hash in &written {
                    let Some(lease) = by_hash.get_mut(hash) else { continue };
                    if is_taken {
                        lease.confirmed_ms = lease.confirmed_ms.max(now_ms);
                    } else {
                        // The lease must be written before this worker announces itself again.
                        lease.is_dirty = true;
                        active.insert(*hash);
                    }
                }
            }
            drop(locks);
        }
        if !is_announced {
            self.announce(ledger, now_ms).await;
        }
        if is_last {
            self.announce_end(now_ms).await;
            return;
        }
        self.refresh_reserves(ledger, now_ms).await;
        let renewals = std::mem::take(&mut self.lock().renewals);
        for (rule, group) in renewals {
            self.acquire(&rule, &group, 1, ledger, now_ms).await;
        }
    }

    /// Returns the counters that must be written: their hashes, fields, and locks.
    fn collect_writes(&self, hashes: &[u64], plan: &mut WritePlan) -> (Vec<u64>, Vec<CounterWrite>, WriteLocks) {
        let (mut written, mut writes, mut locks) = (Vec::new(), Vec::new(), WriteLocks::new());
        let (is_last, now_ms) = (plan.is_last, plan.now_ms);
        let is_reachable = !self.is_lost.load(Ordering::Relaxed);
        let mut leases = self.lock();
        let ClusterLeases { by_hash, active, .. } = &mut *leases;
        for hash in hashes {
            let Some(lease) = by_hash.get_mut(hash) else {
                active.remove(hash);
                continue;
            };
            // If the lock is taken, a request is renewing the lease at this moment, and writes the same fields.
            let Ok(lock) = Arc::clone(&lease.writing).try_lock_owned() else { continue };
            let has_ended = lease.window.part_at(now_ms).start_ms > lease.start_ms;
            let is_returned = is_last || is_reachable;
            if has_ended && lease.window.sliding_part_ms() > 0 && lease.free > 0 && is_returned {
                (lease.free, lease.is_dirty) = (0, true);
            }
            if is_last || is_returned && now_ms >= lease.used_ms + IDLE_MS {
                let reserve = if plan.has_room() { lease.idle_reserve(plan.workers, now_ms) } else { 0 };
                let retained = reserve.min(lease.free);
                plan.reserves += usize::from(retained > 0);
                if lease.free > retained {
                    lease.remaining = lease.remaining.saturating_add(lease.free - retained);
                    (lease.free, lease.is_dirty, lease.granted) = (retained, true, 0);
                }
            }
            let is_old = lease.window.is_budget() && now_ms >= lease.confirmed_ms + REFRESH_MS;
            let must_refresh = is_old && lease.reserved.saturating_add(lease.free) > 0;
            if (lease.is_dirty || must_refresh) && !(has_ended && lease.window.sliding_part_ms() == 0) {
                let free = lease.free;
                writes.push(lease.prepare_write(self.member, free, now_ms));
                written.push(*hash);
                locks.push(lock);
            } else if has_ended && lease.window.sliding_part_ms() == 0 {
                active.remove(hash);
                continue;
            }
            if lease.is_idle() {
                active.remove(hash);
            }
        }
        (written, writes, locks)
    }

    /// Reads from Redis the remaining amount of unused counters with a reserve, so that their reserves shrink with
    /// it.
    async fn refresh_reserves(&self, ledger: &NodeCounters, now_ms: u64) {
        if self.is_lost.load(Ordering::Relaxed) {
            return;
        }
        for (hash, lock, claim, write) in self.collect_refreshes(ledger, now_ms) {
            let is_taken = self.send_claim(claim, &write, now_ms).await;
            drop(lock);
            if !is_taken {
                let mut leases = self.lock();
                if let Some(lease) = leases.by_hash.get_mut(&hash) {
                    lease.is_dirty = true;
                    leases.active.insert(hash);
                }
                return;
            }
        }
    }

    fn collect_refreshes(&self, ledger: &NodeCounters, now_ms: u64) -> Vec<ReserveRefresh> {
        let mut refreshes = Vec::new();
        let mut leases = self.lock();
        let ClusterLeases { by_hash, active, .. } = &mut *leases;
        for hash in active.iter() {
            let Some(lease) = by_hash.get_mut(hash) else { continue };
            let is_current = lease.window.part_at(now_ms).start_ms <= lease.start_ms;
            let is_due = now_ms >= lease.used_ms + IDLE_MS && now_ms >= lease.reserve_written_ms + RESERVE_REFRESH_MS;
            if lease.free == 0 || !is_current || !is_due {
                continue;
            }
            let Ok(lock) = Arc::clone(&lease.writing).try_lock_owned() else { continue };
            if lease.window.is_budget()
                && let Ok(known) = ledger.read_recorded(&lease.counter_id, &lease.group, lease.window)
                && known.resets == lease.resets
            {
                (lease.recorded, lease.corrected) = (known.recorded, known.corrected);
            }
            lease.reserve_written_ms = now_ms;
            let (claim, write) = self.claim(*hash, lease, lease.free, now_ms);
            refreshes.push((*hash, lock, claim, write));
            if refreshes.len() >= MAX_REFRESHES {
                break;
            }
        }
        refreshes
    }
}
