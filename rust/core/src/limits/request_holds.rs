//! Amounts of limits that one request reserves: one request of its limits once, tokens and costs for each attempt.

use std::sync::Arc;

use super::{
    hold::{Hold, Remaining, RuleRef, TakeError, TakeTurn},
    limiter::Limiter,
    rule::{LimitRule, LimitSubject, Measure, WorkspaceLimits},
};

/// Maximum number of limits that headers report, the strictest first, and of rejections that a record contains.
const MAX_REPORTED: usize = 5;

/// Actual or maximum usage of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestUsage {
    pub requests: u64,
    pub tokens: u64,
    pub nanodollars: u64,
}

impl RequestUsage {
    fn amount_for_measure(self, measure: Measure) -> u64 {
        match measure {
            Measure::Requests => self.requests,
            Measure::Tokens => self.tokens,
            Measure::Cost => self.nanodollars,
        }
    }
}

/// Limit that leaves less than a request needs.
#[derive(Debug, Clone)]
pub struct Rejection {
    pub rule: RuleRef,
    pub group: Box<str>,
    pub remaining: Remaining,
    /// Amount that the request needs.
    pub needed: u64,
    /// True if another worker has locked the counter, so that the request can try again.
    pub is_locked: bool,
}

/// Limit that rejected a request or an attempt, as records show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitRejection {
    pub limit_id: Box<str>,
    pub group: Box<str>,
    /// True if the limit is a dry run, which only counts.
    pub is_dry_run: bool,
}

impl LimitRejection {
    fn new(rule: &LimitRule, group: &str) -> Self {
        Self { limit_id: rule.id.clone(), group: group.into(), is_dry_run: rule.is_dry_run }
    }
}

/// A limit that counted this request, with the remaining amount of it.
#[derive(Debug, Clone)]
pub struct LimitStatus {
    pub rule: RuleRef,
    pub remaining: Remaining,
}

/// Budget that a record is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetUse<'r> {
    pub limit_id: &'r str,
    pub group: &'r str,
    pub period_start_ms: u64,
    pub measure: Measure,
    /// True if only the number of requests counts, because another target responded.
    pub is_failed_attempt: bool,
    /// Tokens or nano-dollars of responses that were not used, but that the provider bills.
    pub discarded_amount: Option<u64>,
}

impl<'r> BudgetUse<'r> {
    fn new(hold: &'r Hold, is_failed_attempt: bool, discarded_amount: Option<u64>) -> Self {
        Self {
            limit_id: &hold.rule.id,
            group: &hold.group,
            period_start_ms: hold.start_ms,
            measure: hold.rule.measure,
            is_failed_attempt,
            discarded_amount,
        }
    }
}

/// Usage of a response that is not used. `None` stands for an unknown amount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiscardedUsage {
    pub tokens: Option<u64>,
    pub nanodollars: Option<u64>,
}

/// Amounts of all limits that one request holds until it ends.
pub struct RequestHolds {
    limiter: Arc<Limiter>,
    request: Vec<Hold>,
    attempt: Vec<Hold>,
    /// Holds of earlier attempts on budgets that count requests.
    failed_attempts: Vec<Hold>,
    /// Settled holds on budgets of tokens and cost, with the amounts of responses that were not used.
    discarded: Vec<Hold>,
    /// Holds on tokens and cost of streams that broke off and that another target continues.
    interrupted: Vec<Hold>,
    /// Length of `interrupted` before the last stream broke off.
    interrupted_before: usize,
    /// True if the current attempt only reads or stores data, so that its response costs nothing.
    uses_nothing: bool,
    statuses: Vec<LimitStatus>,
    /// Ids of dry-run limits that would have rejected the request.
    would_reject: Vec<Box<str>>,
    /// Limits that rejected the request or an attempt, or would have.
    rejections: Vec<LimitRejection>,
    /// Maximum tokens of the response that a hard budget allows.
    pub max_tokens: Option<u64>,
    /// Limit of the caller that rejected the request.
    rejected_by: Option<Box<str>>,
    /// Ids of budgets of the current attempt that were deleted since it began.
    deleted_budgets: Vec<Box<str>>,
}

impl std::fmt::Debug for RequestHolds {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("RequestHolds")
            .field("request", &self.request)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// When a limit is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitStage {
    /// Once, before a target is chosen: numbers of requests of a caller.
    Request,
    /// Before each attempt: limits on targets, tokens and cost.
    Attempt,
}

/// Amounts that a request takes from its limits at one stage.
pub struct HoldRequest<'r> {
    pub stage: LimitStage,
    pub subject: &'r LimitSubject<'r>,
    /// Returns the amount that a limit reserves.
    pub amount: &'r (dyn Fn(&LimitRule, &Limiter, &str) -> u64 + Sync),
    /// True if the request only reads, deletes or stores data at a provider. Such requests are admitted even if no
    /// tokens or money are left: results that were paid for stay readable.
    pub uses_nothing: bool,
    /// Limits of which the caller can request no more from Redis.
    pub exhausted: &'r ExhaustedLimits,
}

/// Limits of which nothing more can be requested from Redis, so that a refusal is final.
#[derive(Debug, Default)]
pub struct ExhaustedLimits {
    is_all: bool,
    counters: Vec<(Box<str>, Box<str>)>,
    /// True if the caller can wait for other workers that have locked a counter.
    pub waits_for_locks: bool,
}

impl ExhaustedLimits {
    /// Contains all limits, for example because there is no Redis.
    pub fn all() -> Self {
        Self { is_all: true, ..Self::default() }
    }

    pub fn add(&mut self, rejection: &Rejection) {
        self.counters.push((rejection.rule.counter_id.clone(), rejection.group.clone()));
    }

    fn contains(&self, rule: &LimitRule, group: &str) -> bool {
        self.is_all || self.counters.iter().any(|(id, value)| *id == rule.counter_id && **value == *group)
    }
}

/// Why nothing was taken.
#[derive(Debug)]
pub enum Refusal {
    /// Leases that are used up. They may get more from Redis, or from a counter that another worker has locked.
    UsedUpLeases(Vec<Rejection>),
    Exceeded(Box<Rejection>),
}

impl LimitStage {
    pub fn for_rule(rule: &LimitRule) -> Self {
        if rule.measure == Measure::Requests && !rule.applies_to_targets() { Self::Request } else { Self::Attempt }
    }
}

impl RequestHolds {
    pub fn new(limiter: Arc<Limiter>) -> Self {
        Self {
            limiter,
            request: Vec::new(),
            attempt: Vec::new(),
            failed_attempts: Vec::new(),
            discarded: Vec::new(),
            interrupted: Vec::new(),
            interrupted_before: 0,
            uses_nothing: false,
            statuses: Vec::new(),
            would_reject: Vec::new(),
            rejections: Vec::new(),
            max_tokens: None,
            rejected_by: None,
            deleted_budgets: Vec::new(),
        }
    }

    /// Returns new, empty holds for a concurrent attempt of the same request.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::new(Arc::clone(&self.limiter))
    }

    /// Takes over the holds of a concurrent attempt whose target responded.
    pub fn adopt_attempt(&mut self, mut other: Self, now_ms: u64) {
        self.end_attempt(now_ms);
        self.attempt.append(&mut other.attempt);
        self.uses_nothing = other.uses_nothing;
        self.adopt_ended_attempts(&mut other, now_ms);
        other.would_reject.retain(|id| !self.would_reject.contains(id));
        self.would_reject.append(&mut other.would_reject);
        for rejection in std::mem::take(&mut other.rejections) {
            self.record_rejection(rejection);
        }
        self.max_tokens = other.max_tokens;
        self.rejected_by = self.rejected_by.take().or_else(|| other.rejected_by.take());
        for status in std::mem::take(&mut other.statuses) {
            self.report(status);
        }
    }

    /// Takes over what ended attempts of a concurrent attempt count for. Ends its current attempt.
    pub fn adopt_ended_attempts(&mut self, other: &mut Self, now_ms: u64) {
        other.end_attempt(now_ms);
        self.failed_attempts.append(&mut other.failed_attempts);
        for hold in std::mem::take(&mut other.discarded) {
            self.add_discarded(hold);
        }
    }

    /// Takes the amounts of a request from the limits of all these rule sets.
    ///
    /// # Errors
    /// If limits leave less than the request needs. Then the amounts that were taken for this stage are returned.
    pub fn take_all<'r>(
        &mut self,
        rule_sets: impl IntoIterator<Item = &'r Arc<[LimitRule]>>,
        request: &HoldRequest<'_>,
        now_ms: u64,
    ) -> Result<(), Refusal> {
        let mut used_up = Vec::new();
        self.uses_nothing = request.uses_nothing;
        for rules in rule_sets {
            for (index, rule) in rules.iter().enumerate() {
                if LimitStage::for_rule(rule) == request.stage
                    && let Some(group) = rule.group_of(request.subject)
                    && let Err(rejection) =
                        self.take(RuleRef { rules: Arc::clone(rules), index }, &group, request, now_ms)
                {
                    if !rejection.is_locked && request.exhausted.contains(rule, &group) {
                        self.release(request.stage, now_ms);
                        return Err(Refusal::Exceeded(rejection));
                    }
                    used_up.push(*rejection);
                }
            }
        }
        if used_up.is_empty() {
            return Ok(());
        }
        self.release(request.stage, now_ms);
        Err(Refusal::UsedUpLeases(used_up))
    }

    fn take(
        &mut self,
        rule: RuleRef,
        group: &str,
        request: &HoldRequest<'_>,
        now_ms: u64,
    ) -> Result<(), Box<Rejection>> {
        if request.uses_nothing && rule.measure != Measure::Requests {
            // Results of a provider's batch may have usage, which is charged to this hold.
            let start_ms = rule.window.part_at(now_ms).start_ms;
            let remaining = self.limiter.remaining(&rule, group, now_ms);
            let group = self.limiter.counted_group(&rule, group).into();
            self.attempt.push(Hold { rule: rule.clone(), group, amount: 0, start_ms });
            self.report(LimitStatus { rule, remaining });
            return Ok(());
        }
        let needed = (request.amount)(&rule, &self.limiter, group);
        let is_last = request.exhausted.contains(&rule, group);
        let turn = TakeTurn { is_last, can_wait: request.exhausted.waits_for_locks };
        let remaining = match self.limiter.take_once(rule.clone(), group, needed, turn, now_ms) {
            Ok((hold, remaining)) => {
                self.holds_of(request.stage).push(hold);
                self.report(LimitStatus { rule, remaining });
                return Ok(());
            }
            Err(TakeError::Locked(remaining)) => {
                return Err(Box::new(Rejection { rule, group: group.into(), remaining, needed, is_locked: true }));
            }
            Err(TakeError::Exceeded(remaining)) => remaining,
        };
        if is_last {
            let rejection = LimitRejection::new(&rule, group);
            if rule.is_dry_run {
                // The same request may try again, because another limit gets more from Redis.
                if !self.would_reject.contains(&rule.id) {
                    self.limiter.metrics.would_reject.add(1);
                    self.would_reject.push(rule.id.clone());
                    self.record_rejection(rejection);
                }
                if rule.is_budget() {
                    // The request is sent, so its usage counts.
                    let start_ms = rule.window.part_at(now_ms).start_ms;
                    let group = self.limiter.counted_group(&rule, group).into();
                    self.holds_of(request.stage).push(Hold { rule, group, amount: 0, start_ms });
                }
                return Ok(());
            }
            self.record_rejection(rejection);
            self.limiter.metrics.rejected.add(1);
            self.report(LimitStatus { rule: rule.clone(), remaining });
            if !rule.applies_to_targets() {
                self.rejected_by = Some(rule.id.clone());
            }
        }
        Err(Box::new(Rejection { rule, group: group.into(), remaining, needed, is_locked: false }))
    }

    fn holds_of(&mut self, stage: LimitStage) -> &mut Vec<Hold> {
        if stage == LimitStage::Request { &mut self.request } else { &mut self.attempt }
    }

    /// Reads the budgets of the current attempt again, because a session may last longer than their settings. A deleted
    /// budget is no longer extended.
    pub fn update_budgets(&mut self, limits: Option<&WorkspaceLimits>) {
        self.deleted_budgets.clear();
        for hold in self.attempt.iter_mut().filter(|hold| hold.rule.is_budget()) {
            match hold.rule.find_current(limits) {
                Some(rule) if rule.is_budget() && rule.measure == hold.rule.measure => hold.rule = rule,
                _ => self.deleted_budgets.push(hold.rule.id.clone()),
            }
        }
    }

    /// Reserves what the current attempt has used so far, if that is more than it holds of a budget. A soft budget grants
    /// what is left once, even if that is less than requested; then it is exhausted.
    ///
    /// # Errors
    /// If nothing is left of a budget. The used amount still counts at the end.
    pub fn extend_attempt(
        &mut self,
        usage: RequestUsage,
        exhausted: &ExhaustedLimits,
        now_ms: u64,
    ) -> Result<(), Refusal> {
        let limiter = Arc::clone(&self.limiter);
        let deleted = &self.deleted_budgets;
        let is_extended = |rule: &LimitRule| rule.is_budget() && !rule.is_dry_run && !deleted.contains(&rule.id);
        for hold in self.attempt.iter_mut().filter(|hold| is_extended(&hold.rule)) {
            let needed = usage.amount_for_measure(hold.rule.measure).saturating_sub(hold.amount);
            if needed == 0 {
                continue;
            }
            let is_last = exhausted.contains(&hold.rule, &hold.group);
            let turn = TakeTurn { is_last, can_wait: exhausted.waits_for_locks };
            match limiter.take_once(hold.rule.clone(), &hold.group, needed, turn, now_ms) {
                // The attempt belongs to the period in which it began.
                Ok((more, _)) if more.start_ms != hold.start_ms => limiter.settle(&more, 0, now_ms),
                Ok((more, _)) => hold.amount = hold.amount.saturating_add(more.amount),
                Err(error) => {
                    let (rule, group) = (hold.rule.clone(), hold.group.clone());
                    let is_locked = matches!(error, TakeError::Locked(_));
                    let rejection = Rejection { rule, group, remaining: error.remaining(), needed, is_locked };
                    if !is_last || is_locked {
                        return Err(Refusal::UsedUpLeases(vec![rejection]));
                    }
                    limiter.metrics.rejected.add(1);
                    self.record_rejection(LimitRejection::new(&rejection.rule, &rejection.group));
                    return Err(Refusal::Exceeded(Box::new(rejection)));
                }
            }
        }
        Ok(())
    }

    /// Returns true if the current attempt holds an amount.
    pub fn has_attempt(&self) -> bool {
        !self.attempt.is_empty()
    }

    /// Ends the current attempt, whose response is not used. It counts as a request without tokens or cost.
    pub fn end_attempt(&mut self, now_ms: u64) {
        let usage = RequestUsage { requests: 1, ..RequestUsage::default() };
        for hold in self.attempt.drain(..) {
            self.limiter.settle(&hold, usage.amount_for_measure(hold.rule.measure), now_ms);
            if hold.rule.is_budget() && hold.rule.measure == Measure::Requests {
                self.failed_attempts.push(hold);
            }
        }
    }

    /// Ends the current attempt, whose response is not used although the provider bills it. An unknown amount counts as
    /// what the attempt holds.
    pub fn discard_attempt(&mut self, usage: DiscardedUsage, now_ms: u64) {
        for mut hold in std::mem::take(&mut self.attempt) {
            let known = match hold.rule.measure {
                Measure::Requests => Some(1),
                _ if self.uses_nothing => Some(0),
                Measure::Tokens => usage.tokens,
                Measure::Cost => usage.nanodollars,
            };
            let used = known.unwrap_or(hold.amount);
            self.limiter.settle(&hold, used, now_ms);
            match hold.rule.measure {
                _ if !hold.rule.is_budget() => (),
                Measure::Requests => self.failed_attempts.push(hold),
                Measure::Tokens | Measure::Cost => {
                    hold.amount = used;
                    self.add_discarded(hold);
                }
            }
        }
    }

    fn add_discarded(&mut self, hold: Hold) {
        let is_same = |other: &&mut Hold| is_same_counter(other, &hold) && other.start_ms == hold.start_ms;
        match self.discarded.iter_mut().find(is_same) {
            Some(known) => known.amount = known.amount.saturating_add(hold.amount),
            None if hold.amount > 0 => self.discarded.push(hold),
            None => (),
        }
    }

    /// Keeps the tokens and cost that the current attempt holds: its response broke off, and another target continues
    /// it.
    pub fn interrupt_attempt(&mut self, now_ms: u64) {
        self.interrupted_before = self.interrupted.len();
        let (requests, usage): (Vec<_>, Vec<_>) =
            self.attempt.drain(..).partition(|hold| hold.rule.measure == Measure::Requests);
        self.interrupted.extend(usage);
        self.attempt = requests;
        self.end_attempt(now_ms);
    }

    /// Restores the attempt whose response broke off as the current attempt, because no target continues it.
    pub fn resume_interrupted(&mut self, now_ms: u64) {
        self.end_attempt(now_ms);
        self.attempt = self.interrupted.split_off(self.interrupted_before.min(self.interrupted.len()));
        // A limit that rejected the continuation did not reject the response that the client got.
        self.rejected_by = None;
    }

    /// Replaces all holds by the amounts that the request used.
    pub fn settle(&mut self, usage: RequestUsage, now_ms: u64) {
        let usage = if self.rejected_by.is_some() { RequestUsage::default() } else { usage };
        for hold in self.request.drain(..).chain(self.attempt.drain(..)) {
            let mut remaining = usage.amount_for_measure(hold.rule.measure);
            // Streams that broke off used a part of the amount.
            for part in self.interrupted.extract_if(.., |part| is_same_counter(part, &hold)) {
                let used = remaining.min(part.amount);
                self.limiter.settle(&part, used, now_ms);
                remaining -= used;
            }
            self.limiter.settle(&hold, remaining, now_ms);
        }
        for part in self.interrupted.drain(..) {
            self.limiter.settle(&part, 0, now_ms);
        }
    }

    /// Returns the limits that counted this request, sorted by their remaining part, smallest first.
    pub fn statuses(&self) -> &[LimitStatus] {
        &self.statuses
    }

    pub fn rejected_by(&self) -> Option<&str> {
        self.rejected_by.as_deref()
    }

    pub fn would_reject(&self) -> &[Box<str>] {
        &self.would_reject
    }

    /// Returns the limits that rejected the request or an attempt, or would have.
    pub fn rejections(&self) -> &[LimitRejection] {
        &self.rejections
    }

    fn record_rejection(&mut self, rejection: LimitRejection) {
        if self.rejections.len() < MAX_REPORTED && !self.rejections.contains(&rejection) {
            self.rejections.push(rejection);
        }
    }

    /// Returns the budgets that the record is charged to. Responses that were not used count even if a later attempt was
    /// rejected.
    pub fn budget_uses(&self) -> impl Iterator<Item = BudgetUse<'_>> {
        let all = [(&self.request, false), (&self.attempt, false), (&self.failed_attempts, true)];
        let is_counted = self.rejected_by.is_none();
        all.into_iter()
            .filter(move |_| is_counted)
            .flat_map(|(holds, is_failed_attempt)| holds.iter().map(move |hold| (hold, is_failed_attempt)))
            .filter(|(hold, _)| hold.rule.is_budget())
            .map(|(hold, is_failed_attempt)| BudgetUse::new(hold, is_failed_attempt, None))
            .chain(self.discarded.iter().map(|hold| BudgetUse::new(hold, true, Some(hold.amount))))
    }

    fn release(&mut self, stage: LimitStage, now_ms: u64) {
        for hold in std::mem::take(self.holds_of(stage)) {
            self.limiter.settle(&hold, 0, now_ms);
        }
    }

    /// Adds a limit to those that headers show.
    pub fn report(&mut self, status: LimitStatus) {
        let remaining_permille =
            |status: &LimitStatus| status.remaining.amount.saturating_mul(1000) / status.rule.limit.max(1);
        let is_same = |other: &LimitStatus| {
            Arc::ptr_eq(&other.rule.rules, &status.rule.rules) && other.rule.index == status.rule.index
        };
        self.statuses.retain(|other| !is_same(other));
        let index = self.statuses.partition_point(|other| remaining_permille(other) <= remaining_permille(&status));
        self.statuses.insert(index, status);
        self.statuses.truncate(MAX_REPORTED);
    }
}

fn is_same_counter(hold: &Hold, other: &Hold) -> bool {
    hold.rule.counter_id == other.rule.counter_id && hold.group == other.group
}

impl Drop for RequestHolds {
    fn drop(&mut self) {
        // The usage of a cancelled attempt is not known and counts as none.
        if !self.request.is_empty() || !self.attempt.is_empty() || !self.interrupted.is_empty() {
            self.settle(RequestUsage { requests: 1, ..RequestUsage::default() }, super::now_ms());
        }
    }
}
