//! Limits that all nodes share through Redis. A worker takes amounts in advance (a lease), so that most requests change
//! only its memory. While Redis is unavailable, it uses its leases, and its share of windows that begin in that time.
//! The other workers leave that share unused (see `workers`).

mod contact;
mod exchange;
mod lease;
mod share;
mod workers;

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    io::ErrorKind,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::time::sleep;

use self::{
    contact::RedisContact,
    lease::ClusterLease,
    share::SentAnnouncement,
    workers::{OtherWorkers, SILENT_MS, SharedPart, parse_announcements},
};
use super::{
    OTHER_GROUPS,
    counter::{Amount, RecordedUsage},
    group_counts::GroupCounts,
    hold::{Hold, Remaining, RuleRef},
    limit_metrics::{MAX_RESERVED_SHOWN, RESERVED_SHOWN_MS},
    node_counters::{MAX_LOCK_WAIT, NodeCounters},
    now_ms as current_ms,
    rule::LimitRule,
    shared_counter::OthersUsage,
    window::SLIDING_PARTS,
};
use crate::{
    process::metrics::Counter as Metric,
    state::shared::{redis::RedisClient, redis_counters::CounterWrite},
};

/// A worker takes the remaining amount per worker, divided by this number, in advance. It can use that if Redis fails.
const RESERVE_FRACTION: u64 = 4;
/// Pause after Redis granted the whole remaining amount, or nothing, in which no request tries to renew the lease.
const RETRY_MS: u64 = 50;
/// Time after which a worker removes an unused counter from its memory.
const FORGET_AFTER_MS: u64 = 10 * 60 * 1000;
/// Pause before the usage in the ledger is read again that the control process has locked.
const LOCK_PAUSE: Duration = Duration::from_millis(1);
/// Maximum number of counters in one pipeline of writes.
const MAX_WRITES: usize = 500;

/// Leases of this worker on the counters that all nodes share.
pub struct ClusterLimiter {
    redis: Arc<RedisClient>,
    /// Id of this process in the fields of counters.
    member: u64,
    /// Name of this worker among all workers, which a new process of the same worker takes over.
    name: String,
    worker_count: u64,
    hasher: RandomState,
    leases: Mutex<ClusterLeases>,
    other_workers: Mutex<OtherWorkers>,
    /// Locked while this worker announces itself.
    announcement: tokio::sync::Mutex<SentAnnouncement>,
    /// Contact of this worker with Redis, including that of its previous process.
    contact: RedisContact,
    started_ms: u64,
    /// When this worker announced itself last, or tried to.
    announced_ms: AtomicU64,
    /// Name of the set of counters in Redis. It changes when Redis has lost them.
    generation: Mutex<Option<String>>,
    /// Time until which lost counters are restored.
    restored_ms: AtomicU64,
    /// When this worker reported last.
    reported_ms: AtomicU64,
    /// True if Redis did not take the last write.
    is_lost: AtomicBool,
    /// Requests that waited for Redis.
    pub trips: Metric,
    /// Requests that waited for Redis without a reply.
    pub failed_trips: Metric,
    /// Requests whose group value shares the counter `OTHER_GROUPS`.
    pub shared_groups: Metric,
}

/// Amount that a worker claims from Redis for a lease.
#[derive(Debug, Clone, Copy)]
struct LeaseClaim {
    hash: u64,
    part: SharedPart,
    /// Amount that the worker has used or reserved in total if Redis grants the whole claim.
    target: u64,
    /// Part of the claim without which the waiting request is rejected.
    needed: u64,
}

/// Usage of a limit by other workers, according to Redis.
struct OtherWorkersUsage {
    others: OthersUsage,
    /// Reserved for workers that may have no connection to Redis.
    disconnected_share: u64,
    /// False while Redis lacks counters that it has lost.
    is_complete: bool,
}

#[derive(Default)]
struct ClusterLeases {
    by_hash: HashMap<u64, ClusterLease>,
    group_counts: GroupCounts,
    /// Hashes of the leases that hold an amount or have something to write.
    active: HashSet<u64>,
    /// Rules whose lease is nearly used up.
    renewals: Vec<(RuleRef, Box<str>)>,
}

impl ClusterLimiter {
    /// Creates the leases of a worker. `ledger` contains the data that previous processes of this worker have saved.
    pub fn new(redis: Arc<RedisClient>, name: String, worker_count: u64, ledger: &NodeCounters) -> Self {
        let contact = RedisContact::open(ledger, &name);
        let sent = SentAnnouncement { time_ms: contact.time_ms, divisor: contact.divisor };
        Self {
            redis,
            member: fastrand::u64(..),
            name,
            worker_count: worker_count.max(1),
            hasher: RandomState::new(),
            leases: Mutex::default(),
            other_workers: Mutex::default(),
            announcement: tokio::sync::Mutex::new(sent),
            contact,
            started_ms: current_ms(),
            announced_ms: AtomicU64::new(0),
            generation: Mutex::default(),
            restored_ms: AtomicU64::new(0),
            reported_ms: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
            trips: Metric::default(),
            failed_trips: Metric::default(),
            shared_groups: Metric::default(),
        }
        .with_restored_shares(ledger)
    }

    /// Takes an amount from this worker's lease.
    ///
    /// # Errors
    /// If the lease has less than the minimum. Then nothing was taken, and `acquire` may get more.
    pub fn take(
        &self,
        rule: RuleRef,
        group: &str,
        requested: Amount,
        ledger: &NodeCounters,
        now_ms: u64,
    ) -> Result<(Hold, Remaining), Remaining> {
        let mut leases = self.lock();
        let group = self.bounded_group(&mut leases, &rule, group, ledger);
        let hash = self.hash(&rule.counter_id, group);
        let ClusterLeases { by_hash, active, renewals, .. } = &mut *leases;
        let lease = by_hash.entry(hash).or_insert_with(|| ClusterLease::new(&rule, group));
        lease.advance(&rule, |lease| self.keeps_free(lease), now_ms);
        lease.used_ms = now_ms;
        let usable = lease.usable(now_ms);
        // Without Redis, a request may need more than the whole share of this worker in a window.
        let is_whole_share =
            lease.is_share && !rule.is_budget() && lease.settled == 0 && lease.reserved == 0 && usable > 0;
        let is_enough = usable >= requested.minimum || is_whole_share;
        let amount = requested.amount.min(usable);
        if is_enough {
            lease.free -= amount;
            lease.reserved = lease.reserved.saturating_add(amount);
            active.insert(hash);
            if lease.free < lease.granted / 4 && lease.remaining > 0 && renewals.len() < MAX_WRITES {
                lease.granted = 0;
                renewals.push((rule.clone(), group.into()));
            }
        }
        let reset_ms = rule.window.part_at(now_ms).reset_ms;
        let available = lease.remaining.saturating_add(lease.free);
        let remaining =
            Remaining { amount: available, reserved: lease.reserved_by_all(), reset_ms, is_share: lease.is_share };
        if !is_enough {
            return Err(remaining);
        }
        Ok((Hold { rule, group: group.into(), amount, start_ms: lease.start_ms }, remaining))
    }

    /// Replaces a hold by the amount that the request used.
    pub fn settle(&self, hold: &Hold, used: u64) {
        let mut leases = self.lock();
        let hash = self.hash(&hold.rule.counter_id, &hold.group);
        let ClusterLeases { by_hash, active, .. } = &mut *leases;
        let Some(lease) = by_hash.get_mut(&hash) else { return };
        if hold.amount > 0 || used > 0 {
            lease.recent.push(used);
        }
        if lease.start_ms == hold.start_ms {
            lease.reserved = lease.reserved.saturating_sub(hold.amount);
            lease.settled = lease.settled.saturating_add(used);
            let exceeded = used.saturating_sub(hold.amount);
            lease.is_dirty |= hold.rule.is_budget() || exceeded > lease.free;
            // Usage beyond the hold first reduces the free amount of the lease.
            lease.free = lease.free.saturating_sub(exceeded).saturating_add(hold.amount.saturating_sub(used));
        } else if let Some((_, amount)) = lease.past.iter_mut().find(|(slot, _)| *slot == hold.start_ms) {
            *amount = amount.saturating_sub(hold.amount).saturating_add(used);
            lease.is_dirty |= used != hold.amount;
        }
        active.insert(hash);
    }

    pub fn estimate(&self, rule: &LimitRule, group: &str) -> Option<u64> {
        self.lock().by_hash.get(&self.hash(&rule.counter_id, group))?.recent.estimate(rule)
    }

    /// Returns the reserved amounts of budgets, in the format of `Limiter::list_reserved`.
    pub fn list_reserved(&self, now_ms: u64) -> Vec<(Box<str>, Box<str>, u64)> {
        let leases = self.lock();
        let used = leases.by_hash.values().filter(|lease| lease.window.is_budget() && lease.reserved_by_all() > 0);
        let recent = used.filter(|lease| lease.reserved > 0 || now_ms < lease.used_ms + RESERVED_SHOWN_MS);
        let rows = recent.map(|lease| (lease.counter_id.clone(), lease.group.clone(), lease.reserved_by_all()));
        rows.take(MAX_RESERVED_SHOWN).collect()
    }

    /// Returns the remaining amount of a limit, as far as this worker knows. Reads the ledger only if this worker has
    /// no lease.
    pub fn remaining(&self, rule: &LimitRule, group: &str, ledger: &NodeCounters, now_ms: u64) -> Remaining {
        let part = rule.window.part_at(now_ms);
        let group = self.counted_group(rule, group, ledger);
        let known = self.lock().by_hash.get(&self.hash(&rule.counter_id, group)).and_then(|lease| {
            (lease.start_ms == part.start_ms && lease.confirmed_ms > 0).then(|| Remaining {
                amount: lease.remaining.saturating_add(lease.free),
                reserved: lease.reserved_by_all(),
                reset_ms: part.reset_ms,
                is_share: lease.is_share,
            })
        });
        known.unwrap_or_else(|| {
            let recorded = ledger.read_recorded(&rule.counter_id, group, rule.window).map_or(0, |known| known.recorded);
            let amount = rule.limit.saturating_sub(recorded);
            Remaining { amount, reserved: 0, reset_ms: part.reset_ms, is_share: false }
        })
    }

    /// Takes a new lease from Redis. While Redis is unavailable, adds this worker's share of a window that began in
    /// that time. Returns false if the lease has less than `amount`, and nothing more is left. If it returns true,
    /// concurrent requests may still take the amount first.
    pub async fn acquire(&self, rule: &RuleRef, group: &str, amount: u64, ledger: &NodeCounters, now_ms: u64) -> bool {
        let hash = {
            let mut leases = self.lock();
            let group = self.bounded_group(&mut leases, rule, group, ledger);
            let hash = self.hash(&rule.counter_id, group);
            leases.by_hash.entry(hash).or_insert_with(|| ClusterLease::new(rule, group));
            hash
        };
        let Some(writing) = self.lock().by_hash.get(&hash).map(|lease| Arc::clone(&lease.writing)) else {
            return false;
        };
        let _write_guard = writing.lock().await;
        let known = if rule.is_budget() { read_recorded(ledger, rule, group).await } else { None };
        let Some((claim, write)) = self.begin_acquire(hash, rule, amount, known, now_ms) else {
            return self.has_left(hash, amount, now_ms);
        };
        self.trips.add(1);
        if !self.send_claim(claim, &write, now_ms).await {
            self.failed_trips.add(1);
            self.add_share(claim, ledger, now_ms).await;
        }
        self.has_left(hash, amount, now_ms)
    }

    /// Returns true if a lease has this amount, or may get it because concurrent requests took what the lease had.
    fn has_left(&self, hash: u64, amount: u64, now_ms: u64) -> bool {
        let leases = self.lock();
        let lease = leases.by_hash.get(&hash);
        let may_grow = |lease: &ClusterLease| !lease.is_share && now_ms >= lease.retry_ms && lease.remaining >= amount;
        lease.is_some_and(|lease| lease.usable(now_ms) >= amount || may_grow(lease))
    }

    /// Sends the claim of a lease, and adds the granted amount. Returns false if Redis did not reply.
    async fn send_claim(&self, claim: LeaseClaim, write: &CounterWrite, now_ms: u64) -> bool {
        if self.redis.is_available() {
            self.contact.save(now_ms, 0);
        }
        let Some((generation, workers, fields)) = self.redis.exchange_counter(write).await else {
            self.is_lost.store(true, Ordering::Relaxed);
            return false;
        };
        self.is_lost.store(false, Ordering::Relaxed);
        let is_restoring = self.check_generation(generation, now_ms);
        let others = OthersUsage::add_up(&fields, self.member, claim.part.window, now_ms);
        let announcements = parse_announcements(&workers, &self.name);
        let (disconnected_share, is_incomplete) = {
            let workers = self.lock_other_workers();
            let disconnected_share = workers.disconnected_share(&announcements, claim.part, &others, now_ms);
            (disconnected_share, workers.is_incomplete(&announcements, claim.part.start_ms))
        };
        let counted = OtherWorkersUsage { others, disconnected_share, is_complete: !is_restoring && !is_incomplete };
        if let Some(correction) = self.end_acquire(claim, counted, now_ms) {
            self.redis.write_counters(&[correction]).await;
        }
        true
    }

    /// Prepares a larger lease: returns the amount to claim and the counter fields to write. `None` if another request has
    /// renewed the lease, or may not retry yet.
    fn begin_acquire(
        &self,
        hash: u64,
        rule: &RuleRef,
        amount: u64,
        known: Option<RecordedUsage>,
        now_ms: u64,
    ) -> Option<(LeaseClaim, CounterWrite)> {
        let mut leases = self.lock();
        let lease = leases.by_hash.get_mut(&hash)?;
        lease.advance(rule, |lease| self.keeps_free(lease), now_ms);
        if let Some(RecordedUsage { recorded, resets, corrected }) = known {
            (lease.recorded, lease.corrected) = (recorded, corrected);
            if resets != lease.resets {
                (lease.resets, lease.settled, lease.free, lease.remaining) = (resets, 0, 0, rule.limit);
                lease.retry_ms = 0;
            }
        }
        // Another request may have renewed the lease meanwhile.
        if lease.usable(now_ms) >= amount && lease.granted > 0 || now_ms < lease.retry_ms {
            return None;
        }
        let members = self.known_members();
        let reserve = lease.remaining.saturating_add(lease.free) / (RESERVE_FRACTION * members);
        let free = amount.max(reserve).max(lease.free);
        let needed = amount.saturating_sub(lease.free);
        let (claim, write) = self.claim(hash, lease, free, now_ms);
        Some((LeaseClaim { needed, ..claim }, write))
    }

    /// Returns the claim of a lease with `free` amounts, and the fields to write.
    fn claim(&self, hash: u64, lease: &mut ClusterLease, free: u64, now_ms: u64) -> (LeaseClaim, CounterWrite) {
        let target = lease.settled.saturating_add(lease.reserved).saturating_add(free);
        let write = lease.prepare_write(self.member, free, now_ms);
        // Redis may not receive this write, so a share must be written again.
        lease.is_dirty = lease.is_share;
        (LeaseClaim { hash, part: lease.shared_part(), target, needed: 0 }, write)
    }

    /// Adds the granted amount to the lease. Returns the fields to write if that is less than claimed.
    fn end_acquire(
        &self,
        LeaseClaim { hash, part, target, .. }: LeaseClaim,
        OtherWorkersUsage { others, disconnected_share, is_complete }: OtherWorkersUsage,
        now_ms: u64,
    ) -> Option<CounterWrite> {
        let mut leases = self.lock();
        let ClusterLeases { by_hash, active, .. } = &mut *leases;
        let lease = by_hash.get_mut(&hash)?;
        active.insert(hash);
        if lease.start_ms != part.start_ms {
            lease.is_dirty = true;
            return None;
        }
        let allowed = others.allowed(lease.limit, lease.total_settled(), lease.recorded, lease.corrected);
        let allowed = allowed.saturating_sub(disconnected_share);
        (lease.removed_fields, lease.reserved_by_others) = (others.removed_fields, others.outstanding);
        // Amounts that requests used meanwhile are settled and no longer outstanding, so the lease cannot grow beyond
        // the claim.
        let claimed = target.saturating_sub(lease.settled);
        let granted = if is_complete { claimed.min(allowed) } else { lease.reserved.saturating_add(lease.free) };
        lease.free = granted.saturating_sub(lease.reserved);
        (lease.granted, lease.confirmed_ms, lease.is_share) = (lease.free, now_ms, false);
        lease.remaining = allowed.saturating_sub(lease.reserved).saturating_sub(lease.free);
        if lease.remaining == 0 || !is_complete {
            lease.retry_ms = now_ms + RETRY_MS;
        }
        let free = lease.free;
        (granted < claimed).then(|| lease.prepare_write(self.member, free, now_ms))
    }

    /// Forgets counters that were not used for a while.
    pub fn forget_unused(&self, now_ms: u64) {
        let mut leases = self.lock();
        let ClusterLeases { by_hash, group_counts, active, .. } = &mut *leases;
        by_hash.retain(|hash, lease| {
            let ends_ms = lease.window.part_at(lease.start_ms).reset_ms.unwrap_or(u64::MAX);
            // Removes a lease only after its window, because the worker writes its fields until then.
            let is_over = now_ms >= ends_ms || lease.window.is_budget() && lease.settled == 0;
            let is_kept = !is_over || !lease.is_idle() || now_ms < lease.used_ms + FORGET_AFTER_MS;
            if !is_kept {
                active.remove(hash);
                group_counts.remove(&lease.counter_id, &lease.group, lease.tenant);
            }
            is_kept
        });
    }

    /// Returns the number of workers of all nodes, as far as Redis reports it.
    pub fn known_members(&self) -> u64 {
        (self.lock_other_workers().count() + 1).max(self.worker_count)
    }

    /// Returns true if the unused amount of a sliding window stays in the lease. That is so while Redis is away and
    /// still counts it. Later, the share of this worker is reserved instead.
    fn keeps_free(&self, lease: &ClusterLease) -> bool {
        let length = lease.window.sliding_part_ms() * SLIDING_PARTS;
        let reserved_until_ms = self.announced_ms.load(Ordering::Relaxed) + SILENT_MS;
        self.is_lost.load(Ordering::Relaxed) && lease.start_ms + length >= reserved_until_ms
    }

    fn lock_other_workers(&self) -> MutexGuard<'_, OtherWorkers> {
        self.other_workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the group value under which a group is counted: its own, or `OTHER_GROUPS`. Does not count it.
    pub fn counted_group<'g>(&self, rule: &LimitRule, group: &'g str, ledger: &NodeCounters) -> &'g str {
        let leases = self.lock();
        let is_shared = self.is_new_group(&leases, rule, group) && shares_counter(&leases, rule, group, ledger);
        if is_shared { OTHER_GROUPS } else { group }
    }

    fn is_new_group(&self, leases: &ClusterLeases, rule: &LimitRule, group: &str) -> bool {
        rule.is_grouped() && !leases.by_hash.contains_key(&self.hash(&rule.counter_id, group))
    }

    fn bounded_group<'g>(
        &self,
        leases: &mut ClusterLeases,
        rule: &LimitRule,
        group: &'g str,
        ledger: &NodeCounters,
    ) -> &'g str {
        if !self.is_new_group(leases, rule, group) {
            return group;
        }
        if shares_counter(leases, rule, group, ledger) {
            self.shared_groups.add(1);
            return OTHER_GROUPS;
        }
        leases.group_counts.add(rule);
        group
    }

    fn hash(&self, counter_id: &str, group: &str) -> u64 {
        self.hasher.hash_one((counter_id, group))
    }

    fn lock(&self) -> MutexGuard<'_, ClusterLeases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if a new group gets no counter of its own. The ledger knows which groups used a budget before.
fn shares_counter(leases: &ClusterLeases, rule: &LimitRule, group: &str, ledger: &NodeCounters) -> bool {
    leases.group_counts.is_full(rule) && !ledger.has_counter(&rule.counter_id, group)
}

/// Returns the usage of a budget in the ledger. Waits without blocking the event loop while the control process has
/// locked it.
async fn read_recorded(ledger: &NodeCounters, rule: &RuleRef, group: &str) -> Option<RecordedUsage> {
    let began = Instant::now();
    loop {
        match ledger.read_recorded(&rule.counter_id, group, rule.window) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && began.elapsed() < MAX_LOCK_WAIT => {
                sleep(LOCK_PAUSE).await;
            }
            read => return read.ok(),
        }
    }
}
