//! Checks the limits of a request: numbers of requests of a caller once, all other amounts before each attempt at a
//! target.

mod body_bounds;
mod body_parts;
mod overview;
mod usage_bounds;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use penstock_llm::{json::edit, operation::Operation};
use penstock_net::body::Body;
use tokio::time::sleep;

pub(crate) use self::overview::describe_limits;
use self::usage_bounds::{AttemptPrices, MAX_OUTPUT_TOKENS, UNBOUNDED, UsageBounds};

use crate::{
    accounting::{
        prices::{HighestUsage, RequestPricing},
        record::RequestLog,
    },
    auth::caller::Caller,
    error::{Error, Result, exceeded_limit::ExceededLimit},
    gateway_state::GatewayState,
    limits::{
        hold::RuleRef,
        limiter::Limiter,
        node_counters::MAX_LOCK_WAIT,
        now_ms,
        request_holds::{
            ExhaustedLimits, HoldRequest, LimitStage, LimitStatus, Refusal, Rejection, RequestHolds, RequestUsage,
        },
        rule::{Enforcement, LimitRule, LimitSubject, Measure, ObjectNames, OwnerKind, TargetSubject},
        window::LimitWindow,
    },
    request::body_fields::MAX_INLINE_PEEK_BYTES,
    resolve::{target::Target, target_resolver::ClientRequest},
    state::snapshot::Workspace,
};

/// One request reserves at most the amount that a hard budget leaves, divided by this number.
const RESERVED_FRACTION: u64 = 8;
/// Number of tokens that one request may reserve, even if they exceed the part that `RESERVED_FRACTION` allows.
const MIN_RESERVED_TOKENS: u64 = 4096;
/// Maximum wait after which SDKs may repeat a rejected request. For a longer wait, the response forbids a retry.
const MAX_RETRY_WAIT_SECONDS: u64 = 60;
/// Wait in milliseconds that a rejection reports if requests in progress may return a part of the budget that they have
/// reserved.
const RESERVED_WAIT_MS: u64 = 2000;
/// Maximum number of rounds in which one request waits for Redis. More than two are only needed if concurrent requests
/// take what a round got.
const MAX_ROUNDS: usize = 16;
/// Pause before a request tries again to use a counter that another worker has locked.
const LOCK_PAUSE: Duration = Duration::from_millis(1);
const NANODOLLARS_PER_DOLLAR: u64 = 1_000_000_000;

/// Counts a request in those limits of its caller that count requests.
///
/// # Errors
/// If one of them is exceeded.
pub(crate) async fn admit_request(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    caller: &Caller<'_>,
    log: &mut RequestLog,
) -> Result<()> {
    if log.limits.is_some() {
        return Ok(());
    }
    let rule_sets = caller_rules(caller);
    if rule_sets.iter().all(Option::is_none) {
        return Ok(());
    }
    let started_at = Instant::now();
    if let Some((rules, workspace)) = caller.key.and_then(|key| key.limits.as_ref()).zip(caller.find_workspace()) {
        state.limiter.seen_tokens.add(rules, &workspace.organisation_id, &workspace.id);
    }
    let mut holds = new_holds(state);
    if client_request.head.is_guardrail_question {
        // A guardrail sent this request, not the caller, so only its tokens and its cost count.
        log.limits = Some(holds);
        return Ok(());
    }
    let mut turn = AcquireTurn::new(&state.limiter);
    let admission = loop {
        let subject = limit_subject(client_request, caller, log, None);
        let request = HoldRequest {
            stage: LimitStage::Request,
            subject: &subject,
            amount: &|_, _, _| 1,
            uses_nothing: false,
            exhausted: &turn.exhausted,
        };
        match holds.take_all(rule_sets.into_iter().flatten(), &request, now_ms()) {
            Err(Refusal::UsedUpLeases(used_up)) => turn.acquire(&state.limiter, &used_up).await,
            Err(Refusal::Exceeded(rejection)) => break Err(rejection),
            Ok(()) => break Ok(()),
        }
    };
    log.limits = Some(holds);
    log.details.limit_check_time = Some(started_at.elapsed());
    admission.map_err(|rejection| rejection_error(&rejection, None, now_ms()))
}

fn new_holds(state: &GatewayState) -> Box<RequestHolds> {
    Box::new(RequestHolds::new(Arc::clone(&state.limiter)))
}

/// Bounds the rounds in which one request waits for Redis, or for another worker that has locked a counter of the node. A
/// limit gets no further round once Redis has less left of it than the request needs. If concurrent requests took what
/// it got, it gets another one.
struct AcquireTurn {
    exhausted: ExhaustedLimits,
    rounds: usize,
    /// When the request began to wait for a locked counter.
    locked_since: Option<Instant>,
}

impl AcquireTurn {
    fn new(limiter: &Limiter) -> Self {
        let mut exhausted =
            if limiter.cluster().is_none() { ExhaustedLimits::all() } else { ExhaustedLimits::default() };
        exhausted.waits_for_locks = limiter.waits_for_locks();
        Self { exhausted, rounds: 0, locked_since: None }
    }

    /// Requests more of all these limits at once. If a counter is locked, waits a little instead.
    async fn acquire(&mut self, limiter: &Limiter, used_up: &[Rejection]) {
        if used_up.iter().any(|rejection| rejection.is_locked) {
            return Box::pin(self.wait_for_lock(limiter)).await;
        }
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            self.exhausted = ExhaustedLimits::all();
            return;
        }
        let acquire = async |rejection: &Rejection| {
            rejection.needed != UNBOUNDED && limiter.acquire(&rejection.rule, &rejection.group, rejection.needed).await
        };
        let acquired = Box::pin(join_all(used_up.iter().map(acquire))).await;
        for (rejection, _) in used_up.iter().zip(acquired).filter(|(_, is_acquired)| !is_acquired) {
            self.exhausted.add(rejection);
        }
    }
}

impl AcquireTurn {
    /// Lets other tasks run until the counter may be free. After `MAX_LOCK_WAIT`, the worker uses its share instead.
    async fn wait_for_lock(&mut self, limiter: &Limiter) {
        let since = *self.locked_since.get_or_insert_with(Instant::now);
        if since.elapsed() < MAX_LOCK_WAIT {
            return sleep(LOCK_PAUSE).await;
        }
        limiter.mark_stalled();
        self.exhausted.waits_for_locks = false;
    }
}

/// Reports what is left of the caller's limits on tokens and cost. For a response that needs no attempt at a target, such
/// as a cached one.
pub(crate) fn report_unused_limits(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    log: &mut RequestLog,
) {
    let Some(mut holds) = log.limits.take() else { return };
    let subject = limit_subject(client_request, &target.caller, log, Some(target_subject(target, log)));
    let rule_sets = caller_rules(&target.caller);
    let rules = rule_sets
        .iter()
        .flatten()
        .flat_map(|rules| (0..rules.len()).map(move |index| RuleRef { rules: Arc::clone(rules), index }));
    for rule in rules.filter(|rule| rule.measure != Measure::Requests) {
        if let Some(group) = rule.group_of(&subject) {
            let remaining = state.limiter.known_remaining(&rule, &group, now_ms());
            holds.report(LimitStatus { rule, remaining });
        }
    }
    log.limits = Some(holds);
}

/// Returns true if limits may apply to an attempt at a target.
pub(crate) fn is_limited(target: &Target<'_>, log: &RequestLog) -> bool {
    log.limits.is_some() || target_rules(target).iter().any(Option::is_some)
}

/// Ends the previous attempt, and reserves in all limits what an attempt at a target may use. Returns the body to send.
/// If a hard budget applies and the request does not bound its response in the client's API format, the body gets
/// such a bound.
///
/// # Errors
/// If a limit of the target or of the caller leaves less than the attempt needs.
pub(crate) async fn admit_attempt(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    kind: AttemptKind,
    body: Body,
    log: &mut RequestLog,
) -> Result<Body> {
    log.limits.get_or_insert_with(|| new_holds(state)).end_attempt(now_ms());
    let rule_sets = attempt_rules(target);
    let mut bounds = read_bounds(client_request, kind, &body, &rule_sets).await;
    let parameter = output_parameter(client_request, target).filter(|_| {
        counts_usage(&rule_sets) && bounds.output_tokens.is_none() && bounds.input_bytes <= MAX_INLINE_PEEK_BYTES as u64
    });
    let set_tokens = bounds.output_tokens;
    let mut turn = AcquireTurn::new(&state.limiter);
    let (admission, cap) = loop {
        let mut holds = log.limits.take().unwrap_or_else(|| new_holds(state));
        let (outcome, cap) = {
            let prices = attempt_prices(target, log);
            let subject = limit_subject(client_request, &target.caller, log, Some(target_subject(target, log)));
            let cap = parameter.and_then(|_| affordable_tokens(&state.limiter, &rule_sets, &subject, &bounds, &prices));
            if set_tokens.is_none() {
                bounds.limit_each_response(cap);
            }
            let amount =
                |rule: &LimitRule, limiter: &Limiter, group: &str| bounds.amount(rule, limiter, group, &prices);
            let request = HoldRequest {
                stage: LimitStage::Attempt,
                subject: &subject,
                amount: &amount,
                uses_nothing: bounds.uses_nothing,
                exhausted: &turn.exhausted,
            };
            (holds.take_all(rule_sets.into_iter().flatten(), &request, now_ms()), cap)
        };
        holds.max_tokens = cap;
        // If another target wins a race while this attempt waits, the log still has the holds.
        log.limits = Some(holds);
        match outcome {
            Err(Refusal::UsedUpLeases(used_up)) => turn.acquire(&state.limiter, &used_up).await,
            Err(Refusal::Exceeded(rejection)) => break (Err(rejection), cap),
            Ok(()) => break (Ok(()), cap),
        }
    };
    admission.map_err(|rejection| rejection_error(&rejection, bounds.unbounded.as_deref(), now_ms()))?;
    Ok(match (parameter, cap, &body) {
        (Some(parameter), Some(cap), Body::Complete(bytes)) => {
            let field = edit::json_field(parameter, &cap.into());
            edit::set_fields(bytes, &[], &[field]).map_or(body, |edited| Body::Complete(edited.into()))
        }
        _ => body,
    })
}

/// Reserves the amount that a session has used so far.
///
/// # Errors
/// If nothing is left of a budget, so that the session must end.
pub(crate) async fn extend_attempt(state: &GatewayState, log: &mut RequestLog, usage: RequestUsage) -> Result<()> {
    let Some(holds) = log.limits.as_mut() else { return Ok(()) };
    let mut turn = AcquireTurn::new(&state.limiter);
    loop {
        match holds.extend_attempt(usage, &turn.exhausted, now_ms()) {
            Err(Refusal::UsedUpLeases(used_up)) => turn.acquire(&state.limiter, &used_up).await,
            Err(Refusal::Exceeded(rejection)) => return Err(rejection_error(&rejection, None, now_ms())),
            Ok(()) => return Ok(()),
        }
    }
}

/// How an attempt sends its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptKind {
    Http,
    WebSocket,
}

/// Returns the limits of the caller and of a target.
fn attempt_rules<'c>(target: &Target<'c>) -> [Option<&'c Arc<[LimitRule]>>; 4] {
    let [workspace_rules, key_rules] = caller_rules(&target.caller);
    let [provider_rules, integration_rules] = target_rules(target);
    [workspace_rules, key_rules, provider_rules, integration_rules]
}

/// Returns true if one of the limits counts tokens or cost.
fn counts_usage<const COUNT: usize>(rule_sets: &[Option<&Arc<[LimitRule]>>; COUNT]) -> bool {
    rule_sets.iter().flatten().any(|rules| rules.iter().any(|rule| rule.measure != Measure::Requests))
}

async fn read_bounds<const COUNT: usize>(
    client_request: &ClientRequest<'_>,
    kind: AttemptKind,
    body: &Body,
    rule_sets: &[Option<&Arc<[LimitRule]>>; COUNT],
) -> UsageBounds {
    if !counts_usage(rule_sets) {
        return UsageBounds::default();
    }
    UsageBounds::from_request(client_request, body, kind == AttemptKind::WebSocket).await
}

fn attempt_prices<'a>(target: &'a Target<'_>, log: &'a RequestLog) -> AttemptPrices<'a> {
    AttemptPrices {
        pricing: RequestPricing { provider_pricing: target.price_overrides.clone(), ..log.billing.tariff.clone() },
        provider: target.provider.slug(),
        model: target.provider.effective_model(&target.options, &log.model),
        at: now_ms() / 1000,
    }
}

fn target_subject<'a>(target: &Target<'a>, log: &'a RequestLog) -> TargetSubject<'a> {
    TargetSubject {
        provider: target.provider.slug(),
        saved: target.saved_provider.map(|saved| ObjectNames {
            slug: &saved.identity.slug,
            id: saved.identity.id.as_deref().unwrap_or_default(),
        }),
        model: &log.model,
    }
}

/// Returns the parameter that bounds the response, in the client's API format. `None` for formats in which it is
/// nested, or whose requests always have it.
fn output_parameter(client_request: &ClientRequest<'_>, target: &Target<'_>) -> Option<&'static str> {
    match client_request.requested_operation() {
        Operation::CreateModelResponse => Some("max_output_tokens"),
        Operation::ChatComplete => Some(target.provider.row().chat_output_limit),
        Operation::Complete => Some("max_tokens"),
        _ => None,
    }
}

/// Returns how many tokens the hard budgets of a request allow for each response. `None` if no hard budget applies, or
/// if nothing is left.
fn affordable_tokens<const COUNT: usize>(
    limiter: &Limiter,
    rule_sets: &[Option<&Arc<[LimitRule]>>; COUNT],
    subject: &LimitSubject<'_>,
    bounds: &UsageBounds,
    prices: &AttemptPrices<'_>,
) -> Option<u64> {
    let most = &bounds.highest();
    let rules = rule_sets.iter().flatten().flat_map(|rules| rules.iter());
    let hard = rules.filter(|rule| rule.enforcement == Enforcement::Hard && rule.measure != Measure::Requests);
    let affordable = hard.filter_map(|rule| {
        let group = rule.group_of(subject)?;
        let remaining = limiter.remaining(rule, &group, now_ms()).amount;
        Some(match rule.measure {
            Measure::Cost => affordable_at(prices, most, remaining),
            Measure::Tokens | Measure::Requests => remaining.saturating_sub(most.input_tokens),
        })
    });
    let affordable = affordable.min()?;
    // If much is left, one request reserves only a part of it, so that others can run too.
    let share = (affordable / RESERVED_FRACTION).clamp(MIN_RESERVED_TOKENS, MAX_OUTPUT_TOKENS);
    Some(affordable.min(share) / bounds.choices()).filter(|tokens| *tokens > 0)
}

/// Returns the number of response tokens that `remaining` nano-dollars pay for, after the other costs of the request.
fn affordable_at(prices: &AttemptPrices<'_>, most: &HighestUsage<'_>, remaining: u64) -> u64 {
    let fixed = prices.highest(&HighestUsage { output_tokens: 0, ..*most });
    let million = prices.highest(&HighestUsage { output_tokens: 1_000_000, ..*most }).saturating_sub(fixed);
    let rest = u128::from(remaining.saturating_sub(fixed)) * 1_000_000;
    let tokens = rest.checked_div(million.into());
    tokens.map_or(MAX_OUTPUT_TOKENS, |tokens| u64::try_from(tokens).unwrap_or(u64::MAX))
}

/// Returns the limits of the caller's workspace, policies included, and of its key.
fn caller_rules<'c>(caller: &Caller<'c>) -> [Option<&'c Arc<[LimitRule]>>; 2] {
    let limits = caller.find_limits();
    let key_rules = caller.key.and_then(|key| key.limits.as_ref().or_else(|| limits?.api_keys.get(&key.id)));
    [limits.and_then(|limits| limits.all.as_ref()), key_rules]
}

/// Returns the limits of the target's saved provider, and of the workspace's share of its integration. If a shared
/// prompt lets the caller use a provider of another workspace, the limits of that workspace apply.
fn target_rules<'c>(target: &Target<'c>) -> [Option<&'c Arc<[LimitRule]>>; 2] {
    let limits = match target.lender_workspace {
        Some(workspace) => target.caller.find_limits_of(workspace),
        None => target.caller.find_limits(),
    };
    let (Some(limits), Some(saved)) = (limits, target.saved_provider) else { return [None; 2] };
    let identity = &saved.identity;
    let provider_rules = identity.id.as_ref().and_then(|id| limits.providers.get(id));
    [provider_rules, identity.integration_id.as_ref().and_then(|id| limits.integrations.get(id))]
}

/// Returns the properties of a request by which limits select requests.
fn limit_subject<'r>(
    client_request: &ClientRequest<'r>,
    caller: &Caller<'r>,
    log: &'r RequestLog,
    target: Option<TargetSubject<'r>>,
) -> LimitSubject<'r> {
    let config = log.details.config.as_deref();
    LimitSubject {
        api_key: caller.key.map(|key| ObjectNames { slug: &key.name, id: &key.id }),
        workspace: caller
            .find_workspace()
            .map(|workspace: &Workspace| ObjectNames { slug: &workspace.slug, id: &workspace.id }),
        metadata: &log.metadata,
        config: config.map(|config| ObjectNames { slug: &config.slug, id: config.id.as_deref().unwrap_or_default() }),
        prompt: client_request.head.prompt.as_ref().map(|prompt| ObjectNames { slug: &prompt.slug, id: &prompt.id }),
        endpoint_type: client_request.requested_operation().id(),
        target,
    }
}

/// Returns the error for the exceeded limit. `unbounded` describes the part of the request whose usage has no bound.
fn rejection_error(rejection: &Rejection, unbounded: Option<&str>, now_ms: u64) -> Error {
    let Rejection { rule, remaining, .. } = rejection;
    if let (Some(what), UNBOUNDED) = (unbounded, rejection.needed) {
        return unbounded_error(rule, what);
    }
    // Requests in progress have reserved a part of the budget. It may have enough left once they end.
    let is_reserved = rule.is_budget()
        && remaining.reserved > 0
        && remaining.amount.saturating_add(remaining.reserved) >= rejection.needed.max(1);
    let wait_ms = match remaining.reset_ms {
        _ if is_reserved => Some(RESERVED_WAIT_MS),
        reset => reset.map(|reset| reset.saturating_sub(now_ms).max(1)),
    };
    let wait_seconds = wait_ms.map(|wait| wait.div_ceil(1000));
    let window = match rule.window {
        LimitWindow::Fixed(unit) | LimitWindow::Sliding(unit) => format!(" per {}", unit.name()),
        LimitWindow::Period { .. } | LimitWindow::Recurring(_) => String::new(),
    };
    let amount = match rule.measure {
        Measure::Cost => format!("${}", format_dollars(rule.limit)),
        Measure::Requests | Measure::Tokens => format!("{} {}", rule.limit, rule.measure.name()),
    };
    let hint = match wait_seconds {
        _ if is_reserved => {
            "requests in progress hold the rest of it, and may return a part; send the request again".to_owned()
        }
        Some(seconds) => format!("it starts again in {seconds} s"),
        None => "it does not start again by itself; an administrator can raise or reset it".to_owned(),
    };
    let (kind, slug) = (rule.owner.kind, &rule.owner.slug);
    let limit = Box::new(ExceededLimit {
        description: format!("{} `{slug}` reached: {amount}{window}; {hint}", kind.title()),
        param: slug.clone(),
        is_target: rule.applies_to_targets(),
        wait_ms,
        forbids_retry: (rule.is_budget() && !is_reserved)
            || wait_seconds.is_none_or(|seconds| seconds > MAX_RETRY_WAIT_SECONDS),
    });
    match kind {
        _ if !rule.is_budget() => Error::RateLimited(limit),
        OwnerKind::ApiKey | OwnerKind::Token => Error::KeyBudgetSpent(limit),
        _ => Error::BudgetSpent(limit),
    }
}

/// Returns the error for a request whose highest usage is not known, to which a hard budget applies.
fn unbounded_error(rule: &LimitRule, what: &str) -> Error {
    let (kind, slug) = (rule.owner.kind, &rule.owner.slug);
    Error::UsageNotBounded(Box::new(ExceededLimit {
        description: format!(
            "the hard budget of {} `{slug}` rejects requests whose highest {} is not known before; {what} has no bound: leave it out, or set `enforcement` to `soft`",
            kind.title(),
            rule.measure.name(),
        ),
        param: slug.clone(),
        is_target: rule.applies_to_targets(),
        wait_ms: None,
        forbids_retry: true,
    }))
}

fn format_dollars(nanodollars: u64) -> String {
    let text = format!("{}.{:09}", nanodollars / NANODOLLARS_PER_DOLLAR, nanodollars % NANODOLLARS_PER_DOLLAR);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_have_no_superfluous_digits() {
        let texts = [0, 5_000_000_000, 1_500_000_000, 1].map(format_dollars);
        assert_eq!(texts, ["0", "5", "1.5", "0.000000001"]);
    }
}
