//! Lease of one limit and group value in one worker: the part of the counter of all nodes that this worker uses.

use std::sync::Arc;

use super::workers::SharedPart;
use crate::{
    limits::{
        group_counts::TenantId,
        recent::RecentAmounts,
        rule::{Enforcement, LimitRule},
        shared_counter::{MemberUsage, field_name, ttl_ms},
        window::{LimitWindow, SLIDING_PARTS},
    },
    state::shared::redis_counters::CounterWrite,
};

/// Time after the last write to Redis in which the lease of a budget may be used. Other workers count it for longer.
const CONFIRMED_MS: u64 = 30_000;
/// Time after the last request in which an unused lease has a reserve.
const RESERVE_KEPT_MS: u64 = 10 * 60 * 1000;
/// Minimum length of a window whose leases may have a reserve.
const MIN_RESERVE_WINDOW_SECONDS: u64 = 60;
/// An unused lease keeps the remaining amount per worker, divided by this number, as a reserve in case Redis fails.
const IDLE_RESERVE_FRACTION: u64 = 8;

/// State of one limit and group value in this worker.
#[derive(Debug)]
pub(super) struct ClusterLease {
    pub counter_id: Box<str>,
    pub group: Box<str>,
    /// Organisation of the limit; 0 if the lease was restored from a file.
    pub tenant: TenantId,
    pub window: LimitWindow,
    pub limit: u64,
    pub is_hard: bool,
    pub start_ms: u64,
    /// Amount that completed requests have used.
    pub settled: u64,
    /// Amount that running requests hold.
    pub reserved: u64,
    /// Amount that other workers had reserved or taken in advance, by the last reply of Redis.
    pub reserved_by_others: u64,
    /// Amount that was taken in advance and that no request holds.
    pub free: u64,
    /// Amounts in past parts of a sliding window, each with the start of its part.
    pub past: Vec<(u64, u64)>,
    /// Remaining amount in Redis after the last reply, without `free`.
    pub remaining: u64,
    /// Value of `free` when Redis granted the lease last; 0 if it granted none in this window.
    pub granted: u64,
    /// Time of the last write that Redis confirmed; 0 if it confirmed none in this window.
    pub confirmed_ms: u64,
    /// Time before which no request tries to renew the lease.
    pub retry_ms: u64,
    pub used_ms: u64,
    pub is_dirty: bool,
    /// True if the lease contains a share that Redis does not know yet.
    pub is_share: bool,
    /// Time at which a share of a budget was added last.
    pub share_ms: u64,
    /// Time at which the reserve was written last.
    pub reserve_written_ms: u64,
    /// Number of times that operators have reset the usage.
    pub resets: u64,
    /// Usage of the budget in the ledger.
    pub recorded: u64,
    pub corrected: i64,
    /// Fields in Redis that the next write removes.
    pub removed_fields: Vec<String>,
    pub recent: RecentAmounts,
    /// Locked while the fields of this worker are written, so that writes keep their order.
    pub writing: Arc<tokio::sync::Mutex<()>>,
}

impl ClusterLease {
    pub fn new(rule: &LimitRule, group: &str) -> Self {
        Self {
            limit: rule.limit,
            remaining: rule.limit,
            tenant: rule.tenant,
            is_hard: rule.enforcement == Enforcement::Hard,
            ..Self::for_counter(rule.counter_id.clone(), group.into(), rule.window)
        }
    }

    /// Returns the lease of a worker whose previous process used an amount that Redis does not know.
    pub fn restored(counter_id: Box<str>, group: Box<str>, window: LimitWindow, used: u64, now_ms: u64) -> Self {
        Self {
            start_ms: window.part_at(now_ms).start_ms,
            settled: used,
            used_ms: now_ms,
            is_dirty: true,
            is_share: true,
            ..Self::for_counter(counter_id, group, window)
        }
    }

    fn for_counter(counter_id: Box<str>, group: Box<str>, window: LimitWindow) -> Self {
        Self {
            counter_id,
            group,
            tenant: 0,
            window,
            limit: 0,
            is_hard: false,
            start_ms: 0,
            settled: 0,
            reserved: 0,
            reserved_by_others: 0,
            free: 0,
            past: Vec::new(),
            remaining: 0,
            granted: 0,
            confirmed_ms: 0,
            retry_ms: 0,
            used_ms: 0,
            is_dirty: false,
            is_share: false,
            share_ms: 0,
            reserve_written_ms: 0,
            resets: 0,
            recorded: 0,
            corrected: 0,
            removed_fields: Vec::new(),
            recent: RecentAmounts::default(),
            writing: Arc::default(),
        }
    }

    /// Starts the part of time that contains `now_ms`. If the clock went back, the newest part continues. While Redis
    /// is away, unused amounts of a sliding window cannot be returned; they stay in the lease if `keeps_free` is true.
    pub fn advance(&mut self, rule: &LimitRule, keeps_free: impl FnOnce(&Self) -> bool, now_ms: u64) {
        if rule.limit < self.limit {
            // The limit was lowered: the amount that was taken in advance may exceed it, and is returned.
            (self.free, self.granted, self.retry_ms, self.remaining) = (0, 0, 0, self.remaining.min(rule.limit));
            self.is_dirty = true;
        }
        (self.window, self.limit, self.is_hard) = (rule.window, rule.limit, rule.enforcement == Enforcement::Hard);
        let start_ms = rule.window.part_at(now_ms).start_ms;
        if start_ms <= self.start_ms {
            return;
        }
        let length = rule.window.sliding_part_ms();
        let carried_over = if length > 0 && self.free > 0 && keeps_free(self) { self.free } else { 0 };
        if let Some(number) = start_ms.checked_div(length) {
            self.past.push((self.start_ms, self.settled.saturating_add(self.reserved)));
            let oldest = number.saturating_sub(SLIDING_PARTS) * length;
            self.past.retain(|(slot, amount)| *slot >= oldest && *amount > 0);
            // The next write returns the unused amount.
            self.is_dirty |= self.free > 0;
        } else {
            (self.remaining, self.confirmed_ms, self.is_dirty) = (rule.limit, 0, false);
        }
        (self.start_ms, self.settled, self.reserved, self.free, self.granted) =
            (start_ms, 0, 0, carried_over, carried_over);
        (self.is_share, self.retry_ms, self.share_ms, self.reserve_written_ms) = (false, 0, 0, 0);
        self.reserved_by_others = 0;
    }

    /// Moves times into the past that are in the future, because the clock went back.
    pub fn clamp_times(&mut self, now_ms: u64) {
        self.retry_ms = 0;
        for time in [&mut self.used_ms, &mut self.share_ms, &mut self.reserve_written_ms, &mut self.confirmed_ms] {
            *time = (*time).min(now_ms);
        }
    }

    /// Returns the amount that requests of all workers hold, as far as this worker knows.
    pub fn reserved_by_all(&self) -> u64 {
        self.reserved.saturating_add(self.reserved_by_others)
    }

    pub fn usable(&self, now_ms: u64) -> u64 {
        let is_confirmed = self.is_share || !self.window.is_budget() || now_ms < self.confirmed_ms + CONFIRMED_MS;
        if is_confirmed { self.free } else { 0 }
    }

    pub fn total_settled(&self) -> u64 {
        self.past.iter().fold(self.settled, |sum, (_, amount)| sum.saturating_add(*amount))
    }

    /// Returns the fields to write, with `free` as the amount that is taken in advance.
    pub fn prepare_write(&mut self, member: u64, free: u64, now_ms: u64) -> CounterWrite {
        let outstanding = self.reserved.saturating_add(free);
        let current = MemberUsage { settled: self.settled, outstanding, seen_ms: now_ms };
        let past = |amount: u64| MemberUsage { settled: amount, outstanding: 0, seen_ms: now_ms }.encode();
        let mut fields: Vec<_> =
            self.past.iter().map(|(slot, amount)| (field_name(member, *slot), past(*amount))).collect();
        fields.push((field_name(member, self.start_ms), current.encode()));
        // A sliding window also needs its previous parts, so all parts are in one hash.
        let start_ms = if self.window.sliding_part_ms() > 0 { 0 } else { self.start_ms };
        let name = format!("{}:{start_ms}:{}:{}", self.counter_id, self.resets, self.group);
        self.is_dirty = false;
        CounterWrite {
            name,
            fields,
            removed_fields: std::mem::take(&mut self.removed_fields),
            ttl_ms: ttl_ms(self.window, now_ms),
        }
    }

    /// Returns the reserve that the lease keeps while no request uses it.
    pub fn idle_reserve(&self, workers: u64, now_ms: u64) -> u64 {
        let is_short = self.window.seconds().is_some_and(|seconds| seconds < MIN_RESERVE_WINDOW_SECONDS);
        if is_short || self.window.sliding_part_ms() > 0 || now_ms >= self.used_ms + RESERVE_KEPT_MS {
            return 0;
        }
        self.remaining.saturating_add(self.free) / (IDLE_RESERVE_FRACTION * workers)
    }

    /// Returns the window, and the amount that workers divide to get their shares.
    pub fn shared_part(&self) -> SharedPart {
        let amount = match self.window.is_budget() {
            // No worker uses a share of a hard budget.
            true if self.is_hard => 0,
            true => self.limit.saturating_sub(self.recorded),
            false => self.limit,
        };
        SharedPart { window: self.window, start_ms: self.start_ms, amount }
    }

    pub fn is_idle(&self) -> bool {
        !self.is_dirty && self.free == 0 && self.reserved == 0
    }
}
