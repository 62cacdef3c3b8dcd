//! Admits requests of this worker. It takes amounts from the node's counters in advance, so that most requests change
//! only its own memory.

mod lease;
mod renewal;
#[cfg(test)]
mod tests;

use std::{
    hash::{BuildHasher, RandomState},
    io::ErrorKind,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use self::{lease::Leases, renewal::start_part};
use super::{
    OTHER_GROUPS,
    cluster::ClusterLimiter,
    counter::{Amount, WorkerReport},
    hold::{Hold, Remaining, RuleRef, TakeError, TakeTurn},
    limit_metrics::{HELD_SHOWN_MS, LimitMetrics, MAX_HELD_SHOWN},
    node_counters::NodeCounters,
    now_ms as current_ms,
    rule::{Enforcement, LimitRule},
    seen_tokens::SeenTokens,
};
use crate::state::shared::redis::RedisClient;

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
    pub seen_tokens: SeenTokens,
}

impl Limiter {
    pub fn new(counters: NodeCounters, worker: u64, worker_count: u64) -> Self {
        Self {
            leases: Mutex::default(),
            hasher: RandomState::new(),
            counters: counters.with_brief_waits(),
            shares: NodeCounters::new(None),
            worker,
            worker_count: worker_count.max(1),
            cluster: None,
            metrics: LimitMetrics::default(),
            seen_tokens: SeenTokens::default(),
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

    /// Requests more of a limit from Redis, after `take_once` without `is_last` failed. Settings limit the wait. Returns
    /// false if the amount is not left.
    pub async fn acquire(&self, rule: &RuleRef, group: &str, amount: u64) -> bool {
        let Some(cluster) = &self.cluster else { return false };
        cluster.acquire(rule, group, amount.max(1), &self.counters, current_ms()).await
    }

    /// Takes an amount of a limit. A soft budget gives its rest to the last request, whose real usage may be more. Rate
    /// limits do not: the rests of many workers would admit many such requests in one window.
    ///
    /// # Errors
    /// If less than the request accepts is left. Then nothing was taken.
    pub fn take(&self, rule: RuleRef, group: &str, amount: u64, now_ms: u64) -> Result<(Hold, Remaining), Remaining> {
        self.take_once(rule, group, amount, TakeTurn::LAST, now_ms).map_err(TakeError::remaining)
    }

    /// Takes an amount as `take` does. After a failure, the caller can try again: without `is_last` after `acquire`, and
    /// if the counter is locked after a short time.
    ///
    /// # Errors
    /// Same errors as `take`.
    pub fn take_once(
        &self,
        rule: RuleRef,
        group: &str,
        amount: u64,
        turn: TakeTurn,
        now_ms: u64,
    ) -> Result<(Hold, Remaining), TakeError> {
        // Even a request without cost needs one unit, so that it is rejected if nothing is left.
        let amount = amount.max(1);
        let is_exact = rule.enforcement == Enforcement::Hard || !rule.is_budget();
        let requested = if is_exact { Amount::exactly(amount) } else { Amount::at_most(amount) };
        if let Some(cluster) = &self.cluster {
            let requested = if turn.is_last { requested } else { Amount::exactly(amount) };
            return cluster.take(rule, group, requested, &self.counters, now_ms).map_err(TakeError::Exceeded);
        }
        let mut leases = self.lock();
        let group = self.bounded_group(&mut leases, &rule, group);
        let hash = self.hash(&rule.counter_id, group);
        leases.active.insert(hash);
        let lease = leases.lease(hash, &rule, group);
        let part = rule.window.part_at(now_ms);
        lease.used_ms = now_ms;
        if lease.start_ms < part.start_ms {
            start_part(lease, &part, rule.limit);
        }
        if std::mem::replace(&mut lease.limit, rule.limit) > rule.limit {
            // The limit was lowered: the amount that was taken in advance may exceed it, and is returned.
            (lease.end_ms, lease.known_left) = (0, lease.known_left.min(rule.limit));
        }
        if lease.free < amount || now_ms >= lease.end_ms {
            let is_locked = self.renew(lease, &rule, &part, requested, turn.can_wait, now_ms);
            if is_locked {
                let left = lease.left.saturating_add(lease.free);
                let (held, reset_ms) = (lease.held_by_all(), part.reset_ms);
                return Err(TakeError::Locked(Remaining { left, held, reset_ms, is_share: lease.is_share }));
            }
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
            return Err(TakeError::Exceeded(remaining));
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
        if hold.amount > 0 || used > 0 {
            lease.recent.push(used);
        }
        let (returned, exceeded) = (hold.amount.saturating_sub(used), used.saturating_sub(hold.amount));
        if lease.start_ms == hold.start_ms {
            lease.held = lease.held.saturating_sub(hold.amount);
            lease.is_changed = hold.rule.is_budget();
            lease.exceeded = lease.exceeded.saturating_add(exceeded);
            // Usage beyond a hold first reduces the free amount of the lease. Only the rest stays in `exceeded`.
            let from_lease = lease.exceeded.min(lease.free);
            lease.exceeded -= from_lease;
            lease.free = lease.free - from_lease + returned;
        } else if hold.rule.window.sliding_part_ms() > 0 && (returned > 0 || exceeded > 0) {
            lease.add_late_report(hold.start_ms, WorkerReport { returned, exceeded, held: 0 });
            self.report_late(lease, now_ms);
        }
    }

    /// Returns true if requests may wait for a worker that has locked a counter of the node.
    pub fn waits_for_locks(&self) -> bool {
        self.cluster.is_none() && !self.counters.is_stalled()
    }

    /// Reports that a request has waited for a locked counter as long as it may.
    pub fn mark_stalled(&self) {
        self.counters.mark_stalled();
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

    /// Returns the amount that is left of a limit as far as this worker knows. Reads the node's counter only if this
    /// worker has no lease.
    pub fn known_remaining(&self, rule: &LimitRule, group: &str, now_ms: u64) -> Remaining {
        let part = rule.window.part_at(now_ms);
        let known = self.lock().by_hash.get(&self.hash(&rule.counter_id, group)).and_then(|lease| {
            (lease.start_ms == part.start_ms).then(|| Remaining {
                left: lease.left.saturating_add(lease.free),
                held: lease.held_by_all(),
                reset_ms: part.reset_ms,
                is_share: lease.is_share,
            })
        });
        known.unwrap_or_else(|| self.remaining(rule, group, now_ms))
    }

    /// Returns the amount that is left of a limit, without taking anything.
    pub fn remaining(&self, rule: &LimitRule, group: &str, now_ms: u64) -> Remaining {
        if let Some(cluster) = &self.cluster {
            return cluster.remaining(rule, group, &self.counters, now_ms);
        }
        let leases = self.lock();
        // A group without a counter of its own gets none by being read.
        let group = self.find_counted_group(&leases, rule, group);
        let part = rule.window.part_at(now_ms);
        let lease =
            leases.by_hash.get(&self.hash(&rule.counter_id, group)).filter(|lease| lease.start_ms == part.start_ms);
        let own = lease.map_or(0, |lease| lease.free);
        let counted = self
            .counters
            .read(&rule.counter_id, group)
            .map(|mut counter| (counter.left(rule.window, now_ms, rule.limit), counter.held_by_others(self.worker)));
        let known = || {
            let left = lease.map_or(rule.limit / self.worker_count, |lease| lease.left);
            (left, lease.map_or(0, |lease| lease.held_by_others))
        };
        // A counter that another worker changes at the moment can be reached.
        let is_share = counted.as_ref().is_err_and(|error| error.kind() != ErrorKind::WouldBlock);
        let (left, held_by_others) = counted.unwrap_or_else(|_| known());
        Remaining {
            is_share,
            left: left.saturating_add(own),
            held: lease.map_or(0, |lease| lease.held).saturating_add(held_by_others),
            reset_ms: part.reset_ms,
        }
    }

    /// Returns the group value under which a group is counted: its own, or `OTHER_GROUPS`. Does not count it.
    pub fn counted_group<'g>(&self, rule: &LimitRule, group: &'g str) -> &'g str {
        match &self.cluster {
            Some(cluster) => cluster.counted_group(rule, group, &self.counters),
            None => self.find_counted_group(&self.lock(), rule, group),
        }
    }

    /// Returns the group value, or `OTHER_GROUPS` if the limit or its organisation has too many group values. A value
    /// that was counted before keeps its counter. Otherwise, a used-up budget would count anew.
    fn bounded_group<'g>(&self, leases: &mut Leases, rule: &LimitRule, group: &'g str) -> &'g str {
        if !self.is_new_group(leases, rule, group) {
            return group;
        }
        if self.shares_counter(leases, rule, group) {
            self.metrics.shared_groups.add(1);
            return OTHER_GROUPS;
        }
        leases.group_counts.add(rule);
        group
    }

    /// Returns the group value under which a group is counted, without counting it.
    fn find_counted_group<'g>(&self, leases: &Leases, rule: &LimitRule, group: &'g str) -> &'g str {
        let is_shared = self.is_new_group(leases, rule, group) && self.shares_counter(leases, rule, group);
        if is_shared { OTHER_GROUPS } else { group }
    }

    fn is_new_group(&self, leases: &Leases, rule: &LimitRule, group: &str) -> bool {
        rule.is_grouped() && !leases.by_hash.contains_key(&self.hash(&rule.counter_id, group))
    }

    /// Returns true if a new group gets no counter of its own.
    fn shares_counter(&self, leases: &Leases, rule: &LimitRule, group: &str) -> bool {
        (leases.group_counts.is_full(rule) || self.counters.is_full(rule.tenant))
            && !self.counters.has_counter(&rule.counter_id, group)
    }

    fn hash(&self, counter_id: &str, group: &str) -> u64 {
        self.hasher.hash_one((counter_id, group))
    }

    fn lock(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
