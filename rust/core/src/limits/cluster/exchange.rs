//! What a worker exchanges with Redis beside requests: heartbeats, what it used, and the counters that Redis has lost.

use std::sync::{Arc, PoisonError, atomic::Ordering};

use super::{ClusterLeases, ClusterLimiter, MAX_WRITES};
use crate::{limits::node_counters::NodeCounters, state::shared::redis_counters::CounterWrite};

/// Time after which unused amounts are returned.
const IDLE_MS: u64 = 1000;
/// Interval of writes that only show that this worker is alive.
const REFRESH_MS: u64 = 10_000;
/// Time after Redis forgot the counters in which nothing is taken, until all workers have written theirs again.
const RESTORE_MS: u64 = 1500;
/// Interval at which this worker shows that it is alive, and learns of others.
const HEARTBEAT_MS: u64 = 500;

/// Turns to write that must be held while the writes run, so that those of one lease keep their order.
type WriteTurns = Vec<tokio::sync::OwnedMutexGuard<()>>;

impl ClusterLimiter {
    /// Returns true while the counters in Redis are being restored.
    pub(super) fn check_generation(&self, found: Option<String>, now_ms: u64) -> bool {
        let mut known = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != found {
            if known.is_some() {
                self.restored_ms.store(now_ms + RESTORE_MS, Ordering::Relaxed);
                self.mark_all_dirty();
            }
            if found.is_some() {
                *known = found;
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

    /// Writes what changed, returns unused amounts, and renews leases. To be called a few times in a second.
    pub async fn report(&self, ledger: &NodeCounters, now_ms: u64, is_last: bool) {
        if now_ms >= self.heartbeat_ms.load(Ordering::Relaxed) {
            self.heartbeat_ms.store(now_ms + HEARTBEAT_MS, Ordering::Relaxed);
            if let Some((generation, members)) = self.redis.beat_limits(self.member, now_ms).await {
                self.member_count.store(members, Ordering::Relaxed);
                self.healthy_ms.fetch_max(now_ms, Ordering::Relaxed);
                self.check_generation(Some(generation), now_ms);
            }
        }
        let hashes: Vec<u64> = self.lock().active.iter().copied().collect();
        for chunk in hashes.chunks(MAX_WRITES) {
            let (writes, turns) = self.collect_writes(chunk, is_last, now_ms);
            if !writes.is_empty() && !self.redis.write_counters(&writes).await {
                let mut leases = self.lock();
                for hash in chunk {
                    if let Some(lease) = leases.by_hash.get_mut(hash) {
                        lease.is_dirty = true;
                    }
                }
            }
            drop(turns);
        }
        let renewals = std::mem::take(&mut self.lock().renewals);
        for (rule, group) in renewals {
            self.acquire(&rule, &group, 1, ledger, now_ms).await;
        }
    }

    fn collect_writes(&self, hashes: &[u64], is_last: bool, now_ms: u64) -> (Vec<CounterWrite>, WriteTurns) {
        let (mut writes, mut turns) = (Vec::new(), WriteTurns::new());
        let mut leases = self.lock();
        let ClusterLeases { by_hash, active, .. } = &mut *leases;
        for hash in hashes {
            let Some(lease) = by_hash.get_mut(hash) else {
                active.remove(hash);
                continue;
            };
            // A request is asking for a lease at this moment, and writes the same fields.
            let Ok(turn) = Arc::clone(&lease.writing).try_lock_owned() else { continue };
            let has_ended = lease.window.part_at(now_ms).start_ms > lease.start_ms;
            if has_ended && lease.window.sliding_part_ms() > 0 && lease.free > 0 {
                (lease.free, lease.is_dirty) = (0, true);
            }
            if lease.free > 0 && !lease.is_share && (is_last || now_ms >= lease.used_ms + IDLE_MS) {
                lease.left = lease.left.saturating_add(std::mem::take(&mut lease.free));
                (lease.is_dirty, lease.granted) = (true, 0);
            }
            let is_old = lease.window.is_budget() && now_ms >= lease.confirmed_ms + REFRESH_MS;
            let must_refresh = is_old && lease.held.saturating_add(lease.free) > 0;
            if (lease.is_dirty || must_refresh) && !(has_ended && lease.window.sliding_part_ms() == 0) {
                let free = lease.free;
                writes.push(lease.prepare_write(self.member, free, now_ms));
                lease.confirmed_ms = lease.confirmed_ms.max(now_ms);
                turns.push(turn);
            } else if has_ended && lease.window.sliding_part_ms() == 0 {
                active.remove(hash);
                continue;
            }
            if lease.is_idle() {
                active.remove(hash);
            }
        }
        (writes, turns)
    }
}
