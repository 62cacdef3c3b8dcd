//! Exchange of a worker with the node's counters: leases, reports of used amounts, and its share of a limit while the
//! counters are unavailable.

use std::io::ErrorKind;

use super::{
    Limiter,
    lease::{Lease, Leases},
};
use crate::limits::{
    counter::{Amount, WorkerReport},
    now_ms as current_ms,
    rule::LimitRule,
    window::WindowPart,
};

/// Time after which a worker removes an unused counter from its memory. The node's counter stays.
const FORGET_AFTER_MS: u64 = 10 * 60 * 1000;
/// Number of counters that are reported before other tasks of the worker run. Each takes tens of microseconds.
const REPORTED_AT_ONCE: usize = 50;

impl Limiter {
    /// Returns unused amounts and reports used ones. It must run a few times in a second, and reads only counters that
    /// changed since the last time.
    pub fn report_all(&self, now_ms: u64) {
        let active: Vec<u64> = self.lock().active.iter().copied().collect();
        self.report_some(&active, now_ms);
    }

    fn report_some(&self, hashes: &[u64], now_ms: u64) {
        let mut leases = self.lock();
        let Leases { by_hash, active, .. } = &mut *leases;
        for hash in hashes {
            let lease = by_hash.get_mut(hash);
            let has_report = lease.is_some_and(|lease| {
                if lease.is_changed || lease.has_report() && (now_ms >= lease.end_ms || lease.must_report()) {
                    self.report(lease, now_ms);
                }
                lease.has_report()
            });
            if !has_report {
                active.remove(hash);
            }
        }
    }

    async fn report_in_turns(&self) {
        let active: Vec<u64> = self.lock().active.iter().copied().collect();
        for hashes in active.chunks(REPORTED_AT_ONCE) {
            self.report_some(hashes, current_ms());
            tokio::task::yield_now().await;
        }
    }

    /// Forgets counters that were not used for a while.
    pub fn forget_unused(&self, now_ms: u64) {
        if let Some(cluster) = &self.cluster {
            return cluster.forget_unused(now_ms);
        }
        let mut leases = self.lock();
        let Leases { by_hash, group_counts, .. } = &mut *leases;
        by_hash.retain(|_, lease| {
            let is_kept = lease.reserved > 0 || lease.has_report() || now_ms < lease.used_ms + FORGET_AFTER_MS;
            if !is_kept {
                group_counts.remove(&lease.counter_id, &lease.group, lease.tenant);
            }
            is_kept
        });
    }

    /// Reports to Redis if it is configured, else to the node's counters as `report_all` does. With `is_last`, returns
    /// all unused amounts.
    pub async fn report_shared(&self, is_last: bool) {
        match &self.cluster {
            Some(cluster) => cluster.report(&self.counters, current_ms(), is_last).await,
            None if is_last => self.return_all(current_ms()),
            None => self.report_in_turns().await,
        }
    }

    /// Returns all unused amounts, because this worker ends.
    pub fn return_all(&self, now_ms: u64) {
        for lease in self.lock().by_hash.values_mut() {
            self.report(lease, now_ms);
        }
    }

    /// Removes the node's counters of past windows.
    pub fn remove_past(&self, now_ms: u64) {
        if self.counters.remove_past(now_ms).is_err() {
            self.metrics.counter_failures.add(1);
        }
    }

    /// Takes a new lease from the node's counter. If that is unavailable, takes from this worker's share of the limit.
    /// With `can_wait`, returns true and changes nothing if another worker has locked the counter.
    pub(super) fn renew(
        &self,
        lease: &mut Lease,
        rule: &LimitRule,
        part: &WindowPart,
        requested: Amount,
        can_wait: bool,
        now_ms: u64,
    ) -> bool {
        let (worker, window) = (self.worker, rule.window);
        let (start_ms, late, report) = (lease.start_ms, std::mem::take(&mut lease.late), lease.report());
        self.metrics.counter_updates.add(1);
        let granted = self.counters.update(lease.tenant, &lease.counter_id, &lease.group, window, |counter| {
            for (start_ms, report) in &late {
                counter.settle(window, now_ms, *start_ms, worker, *report);
            }
            counter.settle(window, now_ms, start_ms, worker, report);
            let grant = counter.take(window, now_ms, rule.limit, worker, requested);
            (grant, counter.reserved_by_others(worker))
        });
        if can_wait && granted.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            lease.take_back(report, late);
            return true;
        }
        lease.is_share = granted.is_err();
        if let Ok((grant, reserved_by_others)) = &granted {
            (lease.last_remaining, lease.reserved_by_others) = (grant.remaining, *reserved_by_others);
        }
        let granted = granted.map(|(grant, _)| grant).or_else(|_| {
            self.metrics.counter_failures.add(1);
            // Each worker may use its share of the amount that remained when it last read the counter.
            let share = lease.last_remaining / self.worker_count;
            // A request may need more than the whole share. It must not be rejected for as long as the counter is
            // unavailable.
            let requested = if rule.is_budget() { requested } else { Amount::at_most(requested.amount) };
            let grant = self.shares.update(lease.tenant, &lease.counter_id, &lease.group, window, |counter| {
                counter.take(window, now_ms, share, worker, requested)
            });
            lease.take_back(report, late);
            lease.unreported = lease.unreported.saturating_add(grant.as_ref().map_or(0, |grant| grant.amount));
            grant
        });
        if let Ok(grant) = granted {
            lease.free = lease.free.saturating_add(grant.amount);
            (lease.remaining, lease.end_ms) = (grant.remaining, part.lease_end_ms);
        }
        false
    }

    /// Reports the use of a lease to the node's counter. What does not reach it is reported the next time.
    pub(super) fn report(&self, lease: &mut Lease, now_ms: u64) {
        let (start_ms, late, report) = (lease.start_ms, std::mem::take(&mut lease.late), lease.report());
        self.metrics.counter_updates.add(1);
        let reported = self.counters.update(lease.tenant, &lease.counter_id, &lease.group, lease.window, |counter| {
            for (start_ms, report) in &late {
                counter.settle(lease.window, now_ms, *start_ms, self.worker, *report);
            }
            counter.settle(lease.window, now_ms, start_ms, self.worker, report);
        });
        if let Err(error) = reported {
            self.metrics.counter_failures.add(u64::from(error.kind() != ErrorKind::WouldBlock));
            lease.take_back(report, late);
        }
    }

    /// Reports what was used of past parts of a sliding window. The lease of the current part stays as it is.
    pub(super) fn report_late(&self, lease: &mut Lease, now_ms: u64) {
        let late = std::mem::take(&mut lease.late);
        self.metrics.counter_updates.add(1);
        let reported = self.counters.update(lease.tenant, &lease.counter_id, &lease.group, lease.window, |counter| {
            for (start_ms, report) in &late {
                counter.settle(lease.window, now_ms, *start_ms, self.worker, *report);
            }
        });
        if let Err(error) = reported {
            self.metrics.counter_failures.add(u64::from(error.kind() != ErrorKind::WouldBlock));
            lease.late = late;
        }
    }
}

/// Starts the next part of time. In a sliding window, the amounts of the previous part are reported later.
pub(super) fn start_part(lease: &mut Lease, part: &WindowPart, limit: u64) {
    if lease.window.sliding_part_ms() > 0 {
        let start_ms = lease.start_ms;
        let report = lease.report();
        if report.returned > 0 || report.exceeded > 0 {
            lease.add_late_report(start_ms, WorkerReport { reserved: 0, ..report });
        }
    }
    (lease.start_ms, lease.end_ms) = (part.start_ms, 0);
    (lease.free, lease.reserved, lease.exceeded, lease.unreported) = (0, 0, 0, 0);
    (lease.remaining, lease.last_remaining, lease.reserved_by_others) = (limit, limit, 0);
}
