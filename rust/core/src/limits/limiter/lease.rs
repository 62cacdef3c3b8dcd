//! Lease of one limit and group value in one worker: the part of the node's counter that this worker may use.

use std::collections::{HashMap, HashSet};

use crate::limits::{
    counter::WorkerReport,
    group_counts::{GroupCounts, TenantId},
    recent::RecentAmounts,
    rule::LimitRule,
    window::{LimitWindow, SLIDING_PARTS},
};

/// State of one limit and group value in this worker.
#[derive(Debug)]
pub(super) struct Lease {
    pub counter_id: Box<str>,
    pub group: Box<str>,
    pub tenant: TenantId,
    pub window: LimitWindow,
    /// Value of the limit at the last request.
    pub limit: u64,
    pub start_ms: u64,
    pub end_ms: u64,
    /// Amount that this worker has taken from the node's counter and not used yet.
    pub free: u64,
    /// Amount that requests of this worker hold.
    pub reserved: u64,
    /// Amount that other workers had reserved when this worker last read the node's counter.
    pub reserved_by_others: u64,
    /// Amount that requests used beyond their holds, not reported yet.
    pub exceeded: u64,
    /// Amount that was taken or used while the node's counter was unavailable, and that is not reported yet.
    pub unreported: u64,
    /// Reports of past parts of a sliding window, each with the start of its part.
    pub late: Vec<(u64, WorkerReport)>,
    /// Amount that is remaining in the node's counter as far as this worker knows, without `free`.
    pub remaining: u64,
    /// Amount that was remaining in the node's counter when this worker last read it.
    pub last_remaining: u64,
    pub is_share: bool,
    /// True if the amount that this worker holds has changed since its last report.
    pub is_changed: bool,
    pub used_ms: u64,
    pub recent: RecentAmounts,
}

impl Lease {
    pub fn new(rule: &LimitRule, group: &str) -> Self {
        Self {
            counter_id: rule.counter_id.clone(),
            group: group.into(),
            tenant: rule.tenant,
            window: rule.window,
            limit: rule.limit,
            start_ms: 0,
            end_ms: 0,
            free: 0,
            reserved: 0,
            reserved_by_others: 0,
            exceeded: 0,
            unreported: 0,
            late: Vec::new(),
            remaining: rule.limit,
            last_remaining: rule.limit,
            is_share: false,
            is_changed: false,
            used_ms: 0,
            recent: RecentAmounts::default(),
        }
    }

    pub fn report(&mut self) -> WorkerReport {
        let exceeded = self.exceeded.saturating_add(self.unreported);
        let report = WorkerReport { returned: self.free, exceeded, reserved: self.reserved };
        (self.free, self.exceeded, self.unreported, self.is_changed) = (0, 0, 0, false);
        report
    }

    /// Stores a report of a past part of a sliding window until the next report. The oldest one is dropped if there are
    /// too many: it counts no longer.
    pub fn add_late_report(&mut self, start_ms: u64, report: WorkerReport) {
        if let Some((_, known)) = self.late.iter_mut().find(|(start, _)| *start == start_ms) {
            known.returned = known.returned.saturating_add(report.returned);
            known.exceeded = known.exceeded.saturating_add(report.exceeded);
            return;
        }
        if self.late.len() > SLIDING_PARTS as usize {
            self.late.remove(0);
        }
        self.late.push((start_ms, report));
    }

    /// Takes back a report that did not reach the node's counter.
    pub fn take_back(&mut self, report: WorkerReport, late: Vec<(u64, WorkerReport)>) {
        self.free = self.free.saturating_add(report.returned);
        self.unreported = self.unreported.saturating_add(report.exceeded);
        (self.is_changed, self.late) = (true, late);
    }

    /// Returns the amount that requests of all workers hold.
    pub fn reserved_by_all(&self) -> u64 {
        self.reserved.saturating_add(self.reserved_by_others)
    }

    pub fn has_report(&self) -> bool {
        self.free > 0 || self.must_report()
    }

    /// Returns true if the node's counter lacks amounts that requests used.
    pub fn must_report(&self) -> bool {
        self.exceeded > 0 || self.unreported > 0 || !self.late.is_empty()
    }
}

#[derive(Default)]
pub(super) struct Leases {
    pub by_hash: HashMap<u64, Lease>,
    /// Leases that may have to be reported.
    pub active: HashSet<u64>,
    pub group_counts: GroupCounts,
}

impl Leases {
    pub fn lease(&mut self, hash: u64, rule: &LimitRule, group: &str) -> &mut Lease {
        self.by_hash.entry(hash).or_insert_with(|| Lease::new(rule, group))
    }
}
