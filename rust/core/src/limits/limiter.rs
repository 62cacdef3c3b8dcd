//! Admits requests of this worker. It takes amounts from the node's counters in advance, so that most requests change
//! only its own memory.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    MAX_GROUPS, OTHER_GROUPS,
    cluster::ClusterLimiter,
    counter::{Amount, WorkerReport},
    limit_metrics::{HELD_SHOWN_MS, LimitMetrics, MAX_HELD_SHOWN},
    node_counters::NodeCounters,
    now_ms as current_ms,
    recent::RecentAmounts,
    rule::{Enforcement, LimitRule},
    window::{LimitWindow, WindowPart},
};
use crate::state::shared::redis::RedisClient;

/// Time after which a worker removes an unused counter from its memory. The node's counter stays.
const FORGET_AFTER_MS: u64 = 10 * 60 * 1000;

/// Reference to one of the limits of an object.
#[derive(Debug, Clone)]
pub struct RuleRef {
    pub rules: Arc<[LimitRule]>,
    pub index: usize,
}

impl std::ops::Deref for RuleRef {
    type Target = LimitRule;

    fn deref(&self) -> &LimitRule {
        &self.rules[self.index]
    }
}

/// Amount of a limit that a request has taken. It must be settled, or stays taken until the window ends.
#[derive(Debug)]
pub struct Hold {
    pub rule: RuleRef,
    pub group: Box<str>,
    pub amount: u64,
    /// Start of the window in which it was taken.
    pub start_ms: u64,
}

/// What a limit leaves for further requests, as far as this worker knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    pub left: u64,
    /// Amount that requests of all workers hold, and that other workers have taken in advance. They may use less.
    pub held: u64,
    /// When the count starts again. `None`: never.
    pub reset_ms: Option<u64>,
    /// True if the node's counters cannot be reached, so that this worker admits only its share.
    pub is_share: bool,
}

/// State of one limit and group value in this worker.
#[derive(Debug)]
struct Lease {
    counter_id: Box<str>,
    group: Box<str>,
    window: LimitWindow,
    /// Limit of the last request.
    limit: u64,
    start_ms: u64,
    end_ms: u64,
    /// Amount that this worker has taken from the node's counter and not used yet.
    free: u64,
    /// Amount that requests of this worker hold.
    held: u64,
    /// Amount that other workers held when this worker last read the node's counter.
    held_by_others: u64,
    /// Amount that requests used beyond their holds, not reported yet.
    exceeded: u64,
    /// Amount that was taken without the node's counter, or not reported because the counter was unavailable.
    unreported: u64,
    /// Amount that was left in the node's counter, without `free`.
    left: u64,
    /// Amount that was left in the node's counter when this worker last read it.
    known_left: u64,
    is_share: bool,
    /// True if what this worker holds has changed since its last report.
    is_changed: bool,
    used_ms: u64,
    recent: RecentAmounts,
}

impl Lease {
    fn new(rule: &LimitRule, group: &str) -> Self {
        Self {
            counter_id: rule.counter_id.clone(),
            group: group.into(),
            window: rule.window,
            limit: rule.limit,
            start_ms: 0,
            end_ms: 0,
            free: 0,
            held: 0,
            held_by_others: 0,
            exceeded: 0,
            unreported: 0,
            left: rule.limit,
            known_left: rule.limit,
            is_share: false,
            is_changed: false,
            used_ms: 0,
            recent: RecentAmounts::default(),
        }
    }

    fn report(&mut self) -> WorkerReport {
        let exceeded = self.exceeded.saturating_add(self.unreported);
        let report = WorkerReport { returned: self.free, exceeded, held: self.held };
        (self.free, self.exceeded, self.unreported, self.is_changed) = (0, 0, 0, false);
        report
    }

    /// Returns the amount that requests of all workers hold.
    fn held_by_all(&self) -> u64 {
        self.held.saturating_add(self.held_by_others)
    }

    fn has_report(&self) -> bool {
        self.free > 0 || self.must_report()
    }

    /// Returns true if the node's counter lacks amounts that requests used.
    fn must_report(&self) -> bool {
        self.exceeded > 0 || self.unreported > 0
    }
}

pub struct Limiter {
    leases: Mutex<Leases>,
    hasher: RandomState,
    counters: NodeCounters,
    /// Counters of this worker alone, used while the node's counters cannot be reached.
    shares: NodeCounters,
    worker: u64,
    /// Number of workers that share a limit while the node's counters cannot be reached.
    worker_count: u64,
    /// Counters of all nodes, if Redis is configured. They replace those of this node.
    cluster: Option<ClusterLimiter>,
    pub metrics: LimitMetrics,
}

#[derive(Default)]
struct Leases {
    by_hash: HashMap<u64, Lease>,
    /// Leases that may have to be reported.
    active: HashSet<u64>,
    group_counts: HashMap<Box<str>, usize>,
}

impl Limiter {
    pub fn new(counters: NodeCounters, worker: u64, worker_count: u64) -> Self {
        Self {
            leases: Mutex::default(),
            hasher: RandomState::new(),
            counters,
            shares: NodeCounters::new(None),
            worker,
            worker_count: worker_count.max(1),
            cluster: None,
            metrics: LimitMetrics::default(),
        }
    }

    /// Shares the limits with all nodes through Redis. `number` distinguishes the workers of this node.
    #[must_use]
    pub fn with_redis(self, redis: Option<&Arc<RedisClient>>, number: u32) -> Self {
        let cluster = redis.map(|redis| {
            let name = format!("{:x}-{number}", self.counters.node_id());
            ClusterLimiter::new(Arc::clone(redis), name, self.worker_count, &self.counters)
        });
        Self { cluster, ..self }
    }

    /// Returns the counters of all nodes, if Redis is configured.
    pub fn cluster(&self) -> Option<&ClusterLimiter> {
        self.cluster.as_ref()
    }

    /// Requests more of a limit from Redis, after `take_once` without `is_last` failed. Settings limit the wait.
    pub async fn acquire(&self, rule: &RuleRef, group: &str, amount: u64) {
        if let Some(cluster) = &self.cluster {
            cluster.acquire(rule, group, amount.max(1), &self.counters, current_ms()).await;
        }
    }

    /// Takes an amount of a limit. A soft budget gives what is left to the last request, whose real usage may be more.
    /// Rate limits do not: the leftovers of many workers would admit many such requests in one window.
    ///
    /// # Errors
    /// If less than the request accepts is left. Then nothing was taken.
    pub fn take(&self, rule: RuleRef, group: &str, amount: u64, now_ms: u64) -> Result<(Hold, Remaining), Remaining> {
        self.take_once(rule, group, amount, true, now_ms)
    }

    /// Takes an amount as `take` does. Without `is_last`, the caller can call `acquire` and try again after a failure.
    ///
    /// # Errors
    /// As `take`.
    pub fn take_once(
        &self,
        rule: RuleRef,
        group: &str,
        amount: u64,
        is_last: bool,
        now_ms: u64,
    ) -> Result<(Hold, Remaining), Remaining> {
        // A request that costs nothing is rejected too once nothing is left.
        let amount = amount.max(1);
        let is_exact = rule.enforcement == Enforcement::Hard || !rule.is_budget();
        let requested = if is_exact { Amount::exactly(amount) } else { Amount::at_most(amount) };
        if let Some(cluster) = &self.cluster {
            let requested = if is_last { requested } else { Amount::exactly(amount) };
            return cluster.take(rule, group, requested, now_ms);
        }
        let mut leases = self.lock();
        let group = self.bounded_group(&mut leases, &rule, group);
        let hash = self.hash(&rule.counter_id, group);
        leases.active.insert(hash);
        let lease = leases.lease(hash, &rule, group);
        let part = rule.window.part_at(now_ms);
        lease.used_ms = now_ms;
        if lease.start_ms < part.start_ms {
            self.start_part(lease, &part, rule.limit, now_ms);
        }
        if std::mem::replace(&mut lease.limit, rule.limit) > rule.limit {
            // The limit was lowered: the amount that was taken in advance may exceed it, and is returned.
            (lease.end_ms, lease.known_left) = (0, lease.known_left.min(rule.limit));
        }
        if lease.free < amount || now_ms >= lease.end_ms {
            self.renew(lease, &rule, &part, requested, now_ms);
        }
        let is_whole_share = lease.is_share && !lease.window.is_budget() && lease.held == 0 && lease.free > 0;
        let is_left = lease.free >= requested.minimum || is_whole_share;
        let amount = amount.min(lease.free);
        if is_left {
            lease.free -= amount;
            lease.held = lease.held.saturating_add(amount);
        }
        let left = lease.left.saturating_add(lease.free);
        let remaining =
            Remaining { left, held: lease.held_by_all(), reset_ms: part.reset_ms, is_share: lease.is_share };
        if !is_left {
            return Err(remaining);
        }
        Ok((Hold { rule, group: group.into(), amount, start_ms: lease.start_ms }, remaining))
    }

    /// Replaces a hold by the amount that the request used.
    pub fn settle(&self, hold: &Hold, used: u64, now_ms: u64) {
        if let Some(cluster) = &self.cluster {
            return cluster.settle(hold, used);
        }
        let mut leases = self.lock();
        let hash = self.hash(&hold.rule.counter_id, &hold.group);
        leases.active.insert(hash);
        let lease = leases.lease(hash, &hold.rule, &hold.group);
        lease.recent.push(used);
        let (returned, exceeded) = (hold.amount.saturating_sub(used), used.saturating_sub(hold.amount));
        if lease.start_ms == hold.start_ms {
            lease.held = lease.held.saturating_sub(hold.amount);
            lease.is_changed = hold.rule.is_budget();
            lease.exceeded = lease.exceeded.saturating_add(exceeded);
            // Usage beyond a hold is first paid from what the lease still has free. Only the rest stays in `exceeded`.
            let from_lease = lease.exceeded.min(lease.free);
            lease.exceeded -= from_lease;
            lease.free = lease.free - from_lease + returned;
        } else if hold.rule.window.sliding_part_ms() > 0 && (returned > 0 || exceeded > 0) {
            let report = WorkerReport { returned, exceeded, held: 0 };
            self.report(lease, hold.start_ms, report, now_ms);
        }
    }

    /// Estimates the maximum that the next request uses, from the amounts of the last requests.
    pub fn estimate(&self, rule: &LimitRule, group: &str) -> Option<u64> {
        if let Some(cluster) = &self.cluster {
            return cluster.estimate(rule, group);
        }
        let leases = self.lock();
        let lease = leases.by_hash.get(&self.hash(&rule.counter_id, group))?;
        lease.recent.estimate(rule)
    }

    /// Returns the amounts that requests hold of recently used budgets: id of the limit, group value, and amount.
    pub fn list_held(&self, now_ms: u64) -> Vec<(Box<str>, Box<str>, u64)> {
        if let Some(cluster) = &self.cluster {
            return cluster.list_held(now_ms);
        }
        let leases = self.lock();
        let used = leases.by_hash.values().filter(|lease| lease.window.is_budget() && lease.held_by_all() > 0);
        let recent = used.filter(|lease| lease.held > 0 || now_ms < lease.used_ms + HELD_SHOWN_MS);
        let rows = recent.map(|lease| (lease.counter_id.clone(), lease.group.clone(), lease.held_by_all()));
        rows.take(MAX_HELD_SHOWN).collect()
    }

    /// Returns what is left of a limit, without taking anything.
    pub fn remaining(&self, rule: &LimitRule, group: &str, now_ms: u64) -> Remaining {
        if let Some(cluster) = &self.cluster {
            let recorded =
                self.counters.read_recorded(&rule.counter_id, group, rule.window).map_or(0, |known| known.recorded);
            return cluster.remaining(rule, group, recorded, now_ms);
        }
        let leases = self.lock();
        let part = rule.window.part_at(now_ms);
        let lease =
            leases.by_hash.get(&self.hash(&rule.counter_id, group)).filter(|lease| lease.start_ms == part.start_ms);
        let own = lease.map_or(0, |lease| lease.free);
        let counted = self.counters.update(&rule.counter_id, group, rule.window, |counter| {
            (counter.left(rule.window, now_ms, rule.limit), counter.held_by_others(self.worker))
        });
        let known = || {
            let left = lease.map_or(rule.limit / self.worker_count, |lease| lease.left);
            (left, lease.map_or(0, |lease| lease.held_by_others))
        };
        let is_share = counted.is_err();
        let (left, held_by_others) = counted.unwrap_or_else(|_| known());
        Remaining {
            is_share,
            left: left.saturating_add(own),
            held: lease.map_or(0, |lease| lease.held).saturating_add(held_by_others),
            reset_ms: part.reset_ms,
        }
    }

    /// Returns unused amounts and reports used ones. It must run a few times in a second, and reads only counters that
    /// changed since the last time.
    pub fn report_all(&self, now_ms: u64) {
        let mut leases = self.lock();
        let Leases { by_hash, active, .. } = &mut *leases;
        active.retain(|hash| {
            let Some(lease) = by_hash.get_mut(hash) else { return false };
            if lease.is_changed || lease.has_report() && (now_ms >= lease.end_ms || lease.must_report()) {
                let (start_ms, report) = (lease.start_ms, lease.report());
                self.report(lease, start_ms, report, now_ms);
            }
            lease.has_report()
        });
    }

    /// Forgets counters that were not used for a while.
    pub fn forget_unused(&self, now_ms: u64) {
        if let Some(cluster) = &self.cluster {
            return cluster.forget_unused(now_ms);
        }
        let mut leases = self.lock();
        let Leases { by_hash, group_counts, .. } = &mut *leases;
        by_hash.retain(|_, lease| {
            let is_kept = lease.held > 0 || lease.has_report() || now_ms < lease.used_ms + FORGET_AFTER_MS;
            if !is_kept && let Some(count) = group_counts.get_mut(&lease.counter_id) {
                *count = count.saturating_sub(1);
            }
            is_kept
        });
        group_counts.retain(|_, count| *count > 0);
    }

    /// Does what `report_all` does, in Redis if that is configured. With `is_last`, returns everything that is not
    /// used.
    pub async fn report_shared(&self, is_last: bool) {
        match &self.cluster {
            Some(cluster) => cluster.report(&self.counters, current_ms(), is_last).await,
            None if is_last => self.return_all(current_ms()),
            None => self.report_all(current_ms()),
        }
    }

    /// Returns all unused amounts, because this worker ends.
    pub fn return_all(&self, now_ms: u64) {
        for lease in self.lock().by_hash.values_mut() {
            let (start_ms, report) = (lease.start_ms, lease.report());
            self.report(lease, start_ms, report, now_ms);
        }
    }

    /// Removes the node's counters of past windows.
    pub fn remove_past(&self, now_ms: u64) {
        if self.counters.remove_past(now_ms).is_err() {
            self.metrics.counter_failures.add(1);
        }
    }

    /// Starts the next part of time. In a sliding window, first reports the amounts of the previous part.
    fn start_part(&self, lease: &mut Lease, part: &WindowPart, limit: u64, now_ms: u64) {
        if lease.has_report() && lease.window.sliding_part_ms() > 0 {
            let (start_ms, report) = (lease.start_ms, lease.report());
            self.report(lease, start_ms, report, now_ms);
        }
        (lease.start_ms, lease.end_ms) = (part.start_ms, 0);
        (lease.free, lease.held, lease.exceeded, lease.unreported) = (0, 0, 0, 0);
        (lease.left, lease.known_left, lease.held_by_others) = (limit, limit, 0);
    }

    /// Takes a new lease from the node's counter. If that is unavailable, takes from this worker's share of the limit.
    fn renew(&self, lease: &mut Lease, rule: &LimitRule, part: &WindowPart, requested: Amount, now_ms: u64) {
        let (worker, window) = (self.worker, rule.window);
        let (start_ms, report) = (lease.start_ms, lease.report());
        self.metrics.counter_updates.add(1);
        let granted = self.counters.update(&lease.counter_id, &lease.group, window, |counter| {
            counter.settle(window, now_ms, start_ms, worker, report);
            let grant = counter.take(window, now_ms, rule.limit, worker, requested);
            (grant, counter.held_by_others(worker))
        });
        lease.is_share = granted.is_err();
        if let Ok((grant, held_by_others)) = &granted {
            (lease.known_left, lease.held_by_others) = (grant.left, *held_by_others);
        }
        let granted = granted.map(|(grant, _)| grant).or_else(|_| {
            self.metrics.counter_failures.add(1);
            // Each worker may use its part of what was left.
            let share = lease.known_left / self.worker_count;
            // A request may need more than the whole share, which must not reject it for as long as the counter is away.
            let requested = if rule.is_budget() { requested } else { Amount::at_most(requested.amount) };
            let grant = self.shares.update(&lease.counter_id, &lease.group, window, |counter| {
                counter.take(window, now_ms, share, worker, requested)
            });
            lease.unreported = report.exceeded.saturating_add(grant.as_ref().map_or(0, |grant| grant.amount));
            lease.free = report.returned;
            grant
        });
        if let Ok(grant) = granted {
            lease.free = lease.free.saturating_add(grant.amount);
            (lease.left, lease.end_ms) = (grant.left, part.lease_end_ms);
        }
    }

    fn report(&self, lease: &mut Lease, start_ms: u64, report: WorkerReport, now_ms: u64) {
        self.metrics.counter_updates.add(1);
        let reported = self.counters.update(&lease.counter_id, &lease.group, lease.window, |counter| {
            counter.settle(lease.window, now_ms, start_ms, self.worker, report);
        });
        if reported.is_err() {
            self.metrics.counter_failures.add(1);
            if start_ms == lease.start_ms {
                lease.unreported = lease.unreported.saturating_add(report.exceeded);
                lease.free = lease.free.saturating_add(report.returned);
            }
        }
    }

    /// Returns the group value, or `OTHER_GROUPS` if the limit has too many group values.
    fn bounded_group<'g>(&self, leases: &mut Leases, rule: &LimitRule, group: &'g str) -> &'g str {
        if leases.by_hash.contains_key(&self.hash(&rule.counter_id, group)) {
            return group;
        }
        let count = leases.group_counts.entry(rule.counter_id.clone()).or_default();
        if *count >= MAX_GROUPS || self.counters.is_full() {
            self.metrics.shared_groups.add(1);
            return OTHER_GROUPS;
        }
        *count += 1;
        group
    }

    fn hash(&self, counter_id: &str, group: &str) -> u64 {
        self.hasher.hash_one((counter_id, group))
    }

    fn lock(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leases {
    fn lease(&mut self, hash: u64, rule: &LimitRule, group: &str) -> &mut Lease {
        self.by_hash.entry(hash).or_insert_with(|| Lease::new(rule, group))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::limits::rule::WorkspaceLimits;

    const NOW: u64 = 1_795_612_440_000;

    fn rule(fields: &Value) -> RuleRef {
        let mut row = json!({"id": "l", "owner": {"kind": "policy", "id": "p", "slug": "p"}, "type": "requests",
            "limit": 10});
        row.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let mut problems = Vec::new();
        let limits = WorkspaceLimits::compile(serde_json::from_value(json!([row])).unwrap(), "$", &mut problems);
        assert_eq!(problems, []);
        RuleRef { rules: limits.all.unwrap(), index: 0 }
    }

    fn limiter() -> Limiter {
        Limiter::new(NodeCounters::new(None), 1, 1)
    }

    #[test]
    fn admits_exactly_the_limit_in_each_window() {
        let (limiter, rule) = (limiter(), rule(&json!({"window": {"unit": "second"}})));
        let admitted = |now| (0..20).filter(|_| limiter.take(rule.clone(), "", 1, now).is_ok()).count();
        assert_eq!((admitted(NOW), admitted(NOW + 999), admitted(NOW + 1000)), (10, 0, 10));
        let remaining = limiter.take(rule.clone(), "", 1, NOW + 1500).unwrap_err();
        assert_eq!(remaining, Remaining { left: 0, held: 10, reset_ms: Some(NOW + 2000), is_share: false });
    }

    #[test]
    fn groups_do_not_share_a_limit() {
        let (limiter, rule) = (limiter(), rule(&json!({"window": {"unit": "minute"}, "limit": 1})));
        assert!(limiter.take(rule.clone(), "a", 1, NOW).is_ok() && limiter.take(rule.clone(), "b", 1, NOW).is_ok());
        assert!(limiter.take(rule.clone(), "a", 1, NOW).is_err());
    }

    #[test]
    fn what_a_request_does_not_use_is_left_for_others() {
        let (limiter, rule) = (limiter(), rule(&json!({"period": {"start": 1}, "type": "tokens", "limit": 100})));
        let (hold, _) = limiter.take(rule.clone(), "", 90, NOW).unwrap();
        // The next request gets what is left, and a third one nothing.
        let (rest, _) = limiter.take(rule.clone(), "", 20, NOW).unwrap();
        assert_eq!(rest.amount, 10);
        assert!(limiter.take(rule.clone(), "", 1, NOW).is_err());
        limiter.settle(&rest, 0, NOW + 4);
        limiter.settle(&hold, 30, NOW + 5);
        let (second, remaining) = limiter.take(rule.clone(), "", 70, NOW + 10).unwrap();
        assert_eq!(remaining.left, 0);
        limiter.settle(&second, 75, NOW + 20);
        limiter.report_all(NOW + 30);
        assert_eq!(limiter.remaining(&rule, "", NOW + 40).left, 0);
        assert_eq!(limiter.estimate(&rule, ""), Some(75));
    }

    #[test]
    fn requests_that_cost_nothing_are_rejected_too_when_nothing_is_left() {
        let (limiter, rule) = (limiter(), rule(&json!({"period": {"start": 1}, "type": "cost", "limit": 5})));
        let (hold, _) = limiter.take(rule.clone(), "", 0, NOW).unwrap();
        limiter.settle(&hold, 0, NOW);
        let (all, _) = limiter.take(rule.clone(), "", 5, NOW).unwrap();
        assert_eq!(all.amount, 5);
        assert!(limiter.take(rule, "", 0, NOW).is_err());
    }

    #[test]
    fn a_changed_window_counts_anew() {
        let limiter = limiter();
        let with = |unit| rule(&json!({"window": {"unit": unit}, "limit": 1}));
        assert!(limiter.take(with("minute"), "", 1, NOW).is_ok() && limiter.take(with("minute"), "", 1, NOW).is_err());
        assert!(limiter.take(with("day"), "", 1, NOW).is_ok() && limiter.take(with("day"), "", 1, NOW).is_err());
    }

    #[test]
    fn workers_share_what_others_return() {
        let counters = || NodeCounters::new(Some(&std::env::temp_dir().join("penstock-limiter-test")));
        let id = format!("{:x}", fastrand::u128(..));
        let rule =
            rule(&json!({"id": id, "period": {"start": 1}, "type": "tokens", "limit": 10_000, "enforcement": "hard"}));
        let (first, other) = (Limiter::new(counters(), 1, 2), Limiter::new(counters(), 2, 2));
        let (hold, _) = first.take(rule.clone(), "", 10, NOW).unwrap();
        // The first worker has taken a hundredth in advance.
        let remaining = other.take(rule.clone(), "", 9_901, NOW).unwrap_err();
        assert_eq!((remaining.left, remaining.held), (9_900, 100));
        first.settle(&hold, 10, NOW);
        first.report_all(NOW + 1500);
        assert!(other.take(rule.clone(), "", 9_990, NOW + 1600).is_ok());
        assert!(other.take(rule.clone(), "", 1, NOW + 1600).is_err());
    }

    #[test]
    fn a_worker_that_cannot_reach_the_counters_admits_its_share() {
        let limiter = Limiter::new(NodeCounters::new(Some("/proc/penstock".as_ref())), 1, 2);
        let rule = rule(&json!({"window": {"unit": "minute"}}));
        let admitted = (0..20).filter(|_| limiter.take(rule.clone(), "", 1, NOW).is_ok()).count();
        assert_eq!(admitted, 5);
        assert!(limiter.take(rule, "", 1, NOW).unwrap_err().is_share);
        assert!(limiter.metrics.counter_failures.get() > 0);
    }

    #[test]
    fn amounts_that_were_taken_without_the_counters_count_once_they_are_reached() {
        let folder = std::env::temp_dir().join(format!("penstock-limiter-{:x}", fastrand::u128(..)));
        // A file in the place of the folder makes it unreachable.
        std::fs::write(&folder, "").unwrap();
        let limiter = Limiter::new(NodeCounters::new(Some(&folder)), 1, 2);
        let rule = rule(&json!({"window": {"unit": "minute"}}));
        let admit = |count: usize| (0..count).filter(|_| limiter.take(rule.clone(), "", 1, NOW).is_ok()).count();
        assert_eq!(admit(3), 3);
        let (hold, _) = limiter.take(rule.clone(), "", 1, NOW).unwrap();
        limiter.settle(&hold, 2, NOW);
        limiter.report_all(NOW);
        std::fs::remove_file(&folder).unwrap();
        assert_eq!(limiter.remaining(&rule, "", NOW).left, 10);
        limiter.report_all(NOW);
        assert_eq!(limiter.remaining(&rule, "", NOW).left, 5);
        assert_eq!(admit(20), 5);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
