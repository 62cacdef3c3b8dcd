//! Limits that all nodes share through Redis. A worker takes amounts in advance, so that most requests change only its
//! memory. While Redis is away, it uses what it took before, and its share of windows that begin meanwhile.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    counter::RecordedUsage,
    limiter::{Hold, Remaining, RuleRef},
    node_counters::NodeCounters,
    recent::RecentAmounts,
    rule::{Enforcement, LimitRule},
    shared_counter::{MemberUsage, OthersUsage, field_name, ttl_ms},
    window::{LimitWindow, SLIDING_PARTS},
};
use crate::{
    process::metrics::Counter as Metric,
    state::shared::{redis::RedisClient, redis_counters::CounterWrite},
};

/// Part of what is left for each worker that a worker takes in advance. It keeps that if Redis fails.
const RESERVE_FRACTION: u64 = 4;
/// Time after which unused amounts are returned.
const IDLE_MS: u64 = 1000;
/// Time after the last write in which amounts of a budget may be used. Other workers count them for longer.
const CONFIRMED_MS: u64 = 30_000;
/// Interval of writes that only show that this worker is alive.
const REFRESH_MS: u64 = 10_000;
/// Pause after Redis had nothing left, in which no request asks again.
const RETRY_MS: u64 = 50;
/// Time after Redis forgot the counters in which nothing is taken, until all workers have written theirs again.
const RESTORE_MS: u64 = 1500;
/// Interval at which this worker shows that it is alive, and learns of others.
const HEARTBEAT_MS: u64 = 500;
/// Time after which an unused counter is forgotten here.
const FORGET_AFTER_MS: u64 = 10 * 60 * 1000;
/// Counters that are written in one pipeline.
const MAX_WRITES: usize = 500;
const MAX_GROUPS: usize = 100_000;
const OTHER_GROUPS: &str = "(others)";

/// State of one limit and group value in this worker.
#[derive(Debug)]
struct ClusterLease {
    counter_id: Box<str>,
    group: Box<str>,
    window: LimitWindow,
    limit: u64,
    is_hard: bool,
    start_ms: u64,
    settled: u64,
    held: u64,
    free: u64,
    /// Amounts of past parts of a sliding window, by their start.
    past: Vec<(u64, u64)>,
    /// What was left in Redis, without `free`.
    left: u64,
    /// Size of the last lease, and when it was written last; 0: not in this window.
    granted: u64,
    confirmed_ms: u64,
    retry_ms: u64,
    used_ms: u64,
    is_dirty: bool,
    is_share: bool,
    /// How often operators have set the usage back, and what the ledger knows.
    resets: u64,
    recorded: u64,
    stale: Vec<String>,
    recent: RecentAmounts,
    /// Locked while the fields of this worker are written, so that writes keep their order.
    writing: Arc<tokio::sync::Mutex<()>>,
}

impl ClusterLease {
    fn new(rule: &LimitRule, group: &str) -> Self {
        Self {
            counter_id: rule.counter_id.clone(),
            group: group.into(),
            window: rule.window,
            limit: rule.limit,
            is_hard: rule.enforcement == Enforcement::Hard,
            start_ms: 0,
            settled: 0,
            held: 0,
            free: 0,
            past: Vec::new(),
            left: rule.limit,
            granted: 0,
            confirmed_ms: 0,
            retry_ms: 0,
            used_ms: 0,
            is_dirty: false,
            is_share: false,
            resets: 0,
            recorded: 0,
            stale: Vec::new(),
            recent: RecentAmounts::default(),
            writing: Arc::default(),
        }
    }

    /// Starts the part of time that contains `now_ms`. A clock that went back continues the newest one.
    fn advance(&mut self, rule: &LimitRule, now_ms: u64) {
        (self.window, self.limit, self.is_hard) = (rule.window, rule.limit, rule.enforcement == Enforcement::Hard);
        let start_ms = rule.window.part_at(now_ms).start_ms;
        if start_ms <= self.start_ms {
            return;
        }
        let length = rule.window.sliding_part_ms();
        if let Some(number) = start_ms.checked_div(length) {
            self.past.push((self.start_ms, self.settled.saturating_add(self.held)));
            let oldest = number.saturating_sub(SLIDING_PARTS) * length;
            self.past.retain(|(slot, amount)| *slot >= oldest && *amount > 0);
            // What was not used is returned by the next write.
            self.is_dirty |= self.free > 0;
        } else {
            (self.left, self.confirmed_ms, self.is_dirty) = (rule.limit, 0, false);
        }
        (self.start_ms, self.settled, self.held, self.free, self.granted) = (start_ms, 0, 0, 0, 0);
        (self.is_share, self.retry_ms) = (false, 0);
    }

    fn usable(&self, now_ms: u64) -> u64 {
        let is_confirmed = self.is_share || !self.window.is_budget() || now_ms < self.confirmed_ms + CONFIRMED_MS;
        if is_confirmed { self.free } else { 0 }
    }

    fn own_settled(&self) -> u64 {
        self.past.iter().fold(self.settled, |sum, (_, amount)| sum.saturating_add(*amount))
    }

    /// Returns the fields to write, with `free` amounts taken in advance.
    fn prepare_write(&mut self, member: u64, free: u64, now_ms: u64) -> CounterWrite {
        let outstanding = self.held.saturating_add(free);
        let current = MemberUsage { settled: self.settled, outstanding, seen_ms: now_ms };
        let past = |amount: u64| MemberUsage { settled: amount, outstanding: 0, seen_ms: now_ms }.encode();
        let mut fields: Vec<_> =
            self.past.iter().map(|(slot, amount)| (field_name(member, *slot), past(*amount))).collect();
        fields.push((field_name(member, self.start_ms), current.encode()));
        // Sliding windows need the parts before, so all of them are in one hash.
        let start_ms = if self.window.sliding_part_ms() > 0 { 0 } else { self.start_ms };
        let name = format!("{}:{start_ms}:{}:{}", self.counter_id, self.resets, self.group);
        self.is_dirty = false;
        CounterWrite { name, fields, stale: std::mem::take(&mut self.stale), ttl_ms: ttl_ms(self.window, now_ms) }
    }

    fn is_idle(&self) -> bool {
        !self.is_dirty && self.free == 0 && self.held == 0
    }
}

/// Leases of this worker in the counters of all nodes.
pub struct ClusterLimiter {
    redis: Arc<RedisClient>,
    member: u64,
    worker_count: u64,
    hasher: RandomState,
    leases: Mutex<ClusterLeases>,
    /// Workers of all nodes, as far as known.
    member_count: AtomicU64,
    /// Name of the counters in Redis. Another one appears when Redis has lost them.
    generation: Mutex<Option<String>>,
    restored_ms: AtomicU64,
    healthy_ms: AtomicU64,
    heartbeat_ms: AtomicU64,
    /// Requests that waited for Redis, and those for which it did not reply.
    pub trips: Metric,
    pub failed_trips: Metric,
    pub shared_groups: Metric,
}

#[derive(Default)]
struct ClusterLeases {
    by_hash: HashMap<u64, ClusterLease>,
    group_counts: HashMap<Box<str>, usize>,
    /// Leases that hold or must write something.
    active: HashSet<u64>,
    /// Rules whose lease is nearly used up.
    renewals: Vec<(RuleRef, Box<str>)>,
}

impl ClusterLimiter {
    pub fn new(redis: Arc<RedisClient>, worker_count: u64) -> Self {
        Self {
            redis,
            member: fastrand::u64(..),
            worker_count: worker_count.max(1),
            hasher: RandomState::new(),
            leases: Mutex::default(),
            member_count: AtomicU64::new(0),
            generation: Mutex::default(),
            restored_ms: AtomicU64::new(0),
            healthy_ms: AtomicU64::new(0),
            heartbeat_ms: AtomicU64::new(0),
            trips: Metric::default(),
            failed_trips: Metric::default(),
            shared_groups: Metric::default(),
        }
    }

    /// Takes an amount from this worker's lease. With `is_last`, accepts `minimum` instead.
    ///
    /// # Errors
    /// If less is there. Then nothing was taken, and `acquire` may get more.
    pub fn take(
        &self,
        rule: RuleRef,
        group: &str,
        amount: u64,
        minimum: u64,
        is_last: bool,
        now_ms: u64,
    ) -> Result<(Hold, Remaining), Remaining> {
        let mut leases = self.lock();
        let group = self.bounded_group(&mut leases, &rule, group);
        let hash = self.hash(&rule.counter_id, group);
        let ClusterLeases { by_hash, active, renewals, .. } = &mut *leases;
        let lease = by_hash.entry(hash).or_insert_with(|| ClusterLease::new(&rule, group));
        lease.advance(&rule, now_ms);
        lease.used_ms = now_ms;
        let usable = lease.usable(now_ms);
        let is_enough = usable >= if is_last { minimum } else { amount };
        let amount = amount.min(usable);
        if is_enough {
            lease.free -= amount;
            lease.held = lease.held.saturating_add(amount);
            active.insert(hash);
            if lease.free < lease.granted / 4 && lease.left > 0 && renewals.len() < MAX_WRITES {
                lease.granted = 0;
                renewals.push((rule.clone(), group.into()));
            }
        }
        let reset_ms = rule.window.part_at(now_ms).reset_ms;
        let left = lease.left.saturating_add(lease.free);
        let remaining = Remaining { left, reset_ms, is_share: lease.is_share };
        if !is_enough {
            return Err(remaining);
        }
        Ok((Hold { rule, group: group.into(), amount, start_ms: lease.start_ms }, remaining))
    }

    /// Replaces a hold by what the request used.
    pub fn settle(&self, hold: &Hold, used: u64) {
        let mut leases = self.lock();
        let hash = self.hash(&hold.rule.counter_id, &hold.group);
        let ClusterLeases { by_hash, active, .. } = &mut *leases;
        let Some(lease) = by_hash.get_mut(&hash) else { return };
        lease.recent.push(used);
        if lease.start_ms == hold.start_ms {
            lease.held = lease.held.saturating_sub(hold.amount);
            lease.settled = lease.settled.saturating_add(used);
            let exceeded = used.saturating_sub(hold.amount);
            lease.is_dirty |= hold.rule.is_budget() || exceeded > lease.free;
            // What exceeds a hold comes out of the lease first.
            lease.free = lease.free.saturating_sub(exceeded).saturating_add(hold.amount.saturating_sub(used));
        } else if let Some((_, amount)) = lease.past.iter_mut().find(|(slot, _)| *slot == hold.start_ms) {
            *amount = amount.saturating_sub(hold.amount).saturating_add(used);
            lease.is_dirty |= used != hold.amount;
        }
        active.insert(hash);
    }

    pub fn estimate(&self, rule: &LimitRule, group: &str) -> Option<u64> {
        self.lock().by_hash.get(&self.hash(&rule.counter_id, group))?.recent.largest()
    }

    /// Returns what is left as far as this worker knows.
    pub fn remaining(&self, rule: &LimitRule, group: &str, recorded: u64, now_ms: u64) -> Remaining {
        let part = rule.window.part_at(now_ms);
        let leases = self.lock();
        let lease = leases.by_hash.get(&self.hash(&rule.counter_id, group));
        let known = lease.filter(|lease| lease.start_ms == part.start_ms && lease.confirmed_ms > 0);
        let left = known.map_or(rule.limit.saturating_sub(recorded), |lease| lease.left.saturating_add(lease.free));
        Remaining { left, reset_ms: part.reset_ms, is_share: known.is_some_and(|lease| lease.is_share) }
    }

    /// Takes a new lease from Redis. Without it, adds this worker's share of a window that began meanwhile.
    pub async fn acquire(&self, rule: &RuleRef, group: &str, amount: u64, ledger: &NodeCounters, now_ms: u64) {
        let hash = {
            let mut leases = self.lock();
            let group = self.bounded_group(&mut leases, rule, group);
            let hash = self.hash(&rule.counter_id, group);
            leases.by_hash.entry(hash).or_insert_with(|| ClusterLease::new(rule, group));
            hash
        };
        let Some(writing) = self.lock().by_hash.get(&hash).map(|lease| Arc::clone(&lease.writing)) else { return };
        let _turn = writing.lock().await;
        let known = rule.is_budget().then(|| read_recorded(ledger, rule, group)).flatten();
        let Some((write, target, start_ms)) = self.begin_acquire(hash, rule, amount, known, now_ms) else { return };
        self.trips.add(1);
        let Some((generation, fields)) = self.redis.exchange_counter(&write).await else {
            self.failed_trips.add(1);
            self.add_share(hash, start_ms);
            return;
        };
        self.healthy_ms.fetch_max(now_ms, Ordering::Relaxed);
        let is_restoring = self.check_generation(generation, now_ms);
        let others = OthersUsage::add_up(&fields, self.member, rule.window, now_ms);
        if let Some(correction) = self.end_acquire(hash, start_ms, target, others, is_restoring, now_ms) {
            self.redis.write_counters(&[correction]).await;
        }
    }

    /// Returns the fields that claim a lease, what the worker has used and holds if it gets that, and the part of time.
    fn begin_acquire(
        &self,
        hash: u64,
        rule: &RuleRef,
        amount: u64,
        known: Option<RecordedUsage>,
        now_ms: u64,
    ) -> Option<(CounterWrite, u64, u64)> {
        let mut leases = self.lock();
        let lease = leases.by_hash.get_mut(&hash)?;
        lease.advance(rule, now_ms);
        if let Some(RecordedUsage { recorded, resets }) = known {
            lease.recorded = recorded;
            if resets != lease.resets {
                (lease.resets, lease.settled, lease.free, lease.left) = (resets, 0, 0, rule.limit);
                lease.retry_ms = 0;
            }
        }
        // Another request may have renewed the lease meanwhile.
        if lease.usable(now_ms) >= amount && lease.granted > 0 || now_ms < lease.retry_ms {
            return None;
        }
        let members = self.member_count.load(Ordering::Relaxed).max(self.worker_count);
        let reserve = lease.left.saturating_add(lease.free) / (RESERVE_FRACTION * members);
        let free = amount.max(reserve).max(lease.free);
        let target = lease.settled.saturating_add(lease.held).saturating_add(free);
        Some((lease.prepare_write(self.member, free, now_ms), target, lease.start_ms))
    }

    /// Adds what was granted. Returns the fields to write if that is less than claimed.
    fn end_acquire(
        &self,
        hash: u64,
        start_ms: u64,
        target: u64,
        others: OthersUsage,
        is_restoring: bool,
        now_ms: u64,
    ) -> Option<CounterWrite> {
        let mut leases = self.lock();
        let ClusterLeases { by_hash, active, .. } = &mut *leases;
        let lease = by_hash.get_mut(&hash)?;
        active.insert(hash);
        if lease.start_ms != start_ms {
            lease.is_dirty = true;
            return None;
        }
        let allowed = others.allowed(lease.limit, lease.own_settled(), lease.recorded);
        lease.stale = others.stale;
        // What requests used meanwhile is settled and no longer outstanding, so the lease cannot grow beyond the claim.
        let claimed = target.saturating_sub(lease.settled);
        let granted = if is_restoring { lease.held.saturating_add(lease.free) } else { claimed.min(allowed) };
        lease.free = granted.saturating_sub(lease.held);
        (lease.granted, lease.confirmed_ms, lease.is_share) = (lease.free, now_ms, false);
        lease.left = allowed.saturating_sub(lease.held).saturating_sub(lease.free);
        if lease.left == 0 {
            lease.retry_ms = now_ms + RETRY_MS;
        }
        let free = lease.free;
        (granted < claimed).then(|| lease.prepare_write(self.member, free, now_ms))
    }

    /// Adds the share of this worker, once for each window: of a window that began after Redis was lost, or of a soft budget
    /// that the worker did not use before.
    fn add_share(&self, hash: u64, start_ms: u64) {
        let mut leases = self.lock();
        let ClusterLeases { by_hash, active, .. } = &mut *leases;
        let Some(lease) = by_hash.get_mut(&hash).filter(|lease| lease.start_ms == start_ms && !lease.is_share) else {
            return;
        };
        let members = self.member_count.load(Ordering::Relaxed).max(self.worker_count);
        let healthy_ms = self.healthy_ms.load(Ordering::Relaxed);
        let share = if lease.window.sliding_part_ms() > 0 {
            // The window holds this part and those before it, in which other workers may have used everything.
            let length = lease.window.sliding_part_ms() * (SLIDING_PARTS + 1);
            let is_own = healthy_ms == 0 || start_ms > healthy_ms + length;
            (if is_own { lease.limit / members } else { 0 })
                .saturating_sub(lease.own_settled())
                .saturating_sub(lease.held)
        } else if lease.confirmed_ms > 0 || lease.is_hard {
            // What others took since is not known, so that only the lease is certain.
            0
        } else if lease.window.is_budget() {
            lease.limit.saturating_sub(lease.recorded) / members
        } else if healthy_ms < start_ms || healthy_ms == 0 {
            lease.limit / members
        } else {
            0
        };
        lease.is_share = true;
        lease.left = 0;
        lease.free = lease.free.saturating_add(share);
        lease.is_dirty = true;
        active.insert(hash);
    }

    /// Returns true while the counters in Redis are being restored.
    fn check_generation(&self, found: Option<String>, now_ms: u64) -> bool {
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

    #[allow(clippy::type_complexity, reason = "the guards only have to live as long as the writes")]
    fn collect_writes(
        &self,
        hashes: &[u64],
        is_last: bool,
        now_ms: u64,
    ) -> (Vec<CounterWrite>, Vec<tokio::sync::OwnedMutexGuard<()>>) {
        let (mut writes, mut turns) = (Vec::new(), Vec::new());
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

    /// Forgets counters that were not used for a while.
    pub fn forget_unused(&self, now_ms: u64) {
        let mut leases = self.lock();
        let ClusterLeases { by_hash, group_counts, active, .. } = &mut *leases;
        by_hash.retain(|hash, lease| {
            let ends_ms = lease.window.part_at(lease.start_ms).reset_ms.unwrap_or(u64::MAX);
            // The fields of this window must be known until it ends.
            let is_over = now_ms >= ends_ms || lease.window.is_budget() && lease.settled == 0;
            let is_kept = !is_over || !lease.is_idle() || now_ms < lease.used_ms + FORGET_AFTER_MS;
            if !is_kept {
                active.remove(hash);
                if let Some(count) = group_counts.get_mut(&lease.counter_id) {
                    *count = count.saturating_sub(1);
                }
            }
            is_kept
        });
        group_counts.retain(|_, count| *count > 0);
    }

    fn bounded_group<'g>(&self, leases: &mut ClusterLeases, rule: &LimitRule, group: &'g str) -> &'g str {
        if leases.by_hash.contains_key(&self.hash(&rule.counter_id, group)) {
            return group;
        }
        let count = leases.group_counts.entry(rule.counter_id.clone()).or_default();
        if *count >= MAX_GROUPS {
            self.shared_groups.add(1);
            return OTHER_GROUPS;
        }
        *count += 1;
        group
    }

    fn hash(&self, counter_id: &str, group: &str) -> u64 {
        self.hasher.hash_one((counter_id, group))
    }

    fn lock(&self) -> MutexGuard<'_, ClusterLeases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns what the ledger knows of a budget.
fn read_recorded(ledger: &NodeCounters, rule: &RuleRef, group: &str) -> Option<RecordedUsage> {
    ledger.read_recorded(&rule.counter_id, group, rule.window).ok()
}
