//! Checks the limits of a request: numbers of requests once, everything else before each attempt at a target.

use std::{sync::Arc, time::Instant};

use penstock_llm::{
    json::edit,
    operation::{BodyKind, Operation},
    usage::Usage,
};
use penstock_net::body::Body;
use serde::Deserialize;

use crate::{
    accounting::{prices::RequestPricing, record::RequestLog},
    auth::caller::Caller,
    error::{Error, Result},
    exceeded_limit::ExceededLimit,
    gateway_state::GatewayState,
    limits::{
        limiter::Limiter,
        now_ms,
        request_holds::{LimitStage, Rejection, RequestHolds},
        rule::{Enforcement, LimitRule, LimitSubject, Measure, ObjectNames, OwnerKind, TargetSubject},
        window::LimitWindow,
    },
    request::body_fields::MAX_INLINE_PEEK_BYTES,
    resolve::{target::Target, target_resolver::Call},
    state::snapshot::Workspace,
};

/// Tokens of a response, if neither the request nor earlier ones tell how many there will be.
const USUAL_OUTPUT_TOKENS: u64 = 1024;
/// Most tokens of a response that no limit of the request bounds.
const MAX_OUTPUT_TOKENS: u64 = 128_000;
/// Part of what a hard budget leaves that one request may hold, and how many tokens it may hold anyway.
const HELD_FRACTION: u64 = 8;
const MIN_HELD_TOKENS: u64 = 4096;
/// Bytes of text for one token, on average.
const BYTES_PER_TOKEN: u64 = 4;
/// Wait in seconds from which clients get the advice not to repeat a request: their SDKs would not wait so long.
const MAX_RETRY_WAIT_SECONDS: u64 = 60;
/// Limits for which one request asks Redis.
const MAX_ACQUIRES: usize = 16;
const NANODOLLARS_PER_DOLLAR: u64 = 1_000_000_000;

/// Counts a request in the limits on the number of its caller's requests.
///
/// # Errors
/// If one of them is exceeded.
pub(crate) async fn admit_request(
    state: &GatewayState,
    call: &Call<'_>,
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
    let mut holds = Box::new(RequestHolds::new(Arc::clone(&state.limiter)));
    let mut turn = AcquireTurn::new(&state.limiter);
    let taken = loop {
        let subject = limit_subject(call, caller, log, None);
        let taken = take_all(&mut holds, LimitStage::Request, &subject, rule_sets, &|_, _, _| 1, turn.is_last);
        match taken {
            Err(rejection) if !turn.is_last => turn.acquire(&state.limiter, &rejection).await,
            taken => break taken,
        }
    };
    log.limits = Some(holds);
    log.details.limit_check_time = Some(started_at.elapsed());
    taken.map_err(|rejection| rejection_error(&rejection, now_ms()))
}

/// Trips to Redis for one request, which are bounded: the second time that the same limit leaves too little is the last.
struct AcquireTurn {
    is_last: bool,
    count: usize,
    asked: Option<(Box<str>, Box<str>)>,
}

impl AcquireTurn {
    fn new(limiter: &Limiter) -> Self {
        Self { is_last: limiter.cluster().is_none(), count: 0, asked: None }
    }

    async fn acquire(&mut self, limiter: &Limiter, rejection: &Rejection) {
        let asked = (rejection.rule.counter_id.clone(), rejection.group.clone());
        self.count += 1;
        if self.asked.as_ref() == Some(&asked) || self.count > MAX_ACQUIRES {
            self.is_last = true;
            return;
        }
        self.asked = Some(asked);
        limiter.acquire(&rejection.rule, &rejection.group, rejection.needed).await;
    }
}

/// Returns true if limits may apply to an attempt at a target.
pub(crate) fn is_limited(target: &Target<'_>, log: &RequestLog) -> bool {
    log.limits.is_some() || target_rules(target).iter().any(Option::is_some)
}

/// Takes what an attempt at a target may use, and ends the attempt before. Returns the body to send: if a hard budget
/// applies and the request does not bound its response, the body gets such a bound.
///
/// # Errors
/// If a limit of the target or of the caller leaves less.
pub(crate) async fn admit_attempt(
    state: &GatewayState,
    call: &Call<'_>,
    target: &Target<'_>,
    body: Body,
    log: &mut RequestLog,
) -> Result<Body> {
    let saved = target.saved_provider;
    let [provider_rules, integration_rules] = target_rules(target);
    let mut holds = log.limits.take().unwrap_or_else(|| Box::new(RequestHolds::new(Arc::clone(&state.limiter))));
    holds.end_attempt(now_ms());
    let [workspace_rules, key_rules] = caller_rules(&target.caller);
    let rule_sets = [workspace_rules, key_rules, provider_rules, integration_rules];
    let counts_usage =
        rule_sets.iter().flatten().any(|rules| rules.iter().any(|rule| rule.measure != Measure::Requests));
    let mut bounds = if counts_usage { UsageBounds::from_request(call, &body).await } else { UsageBounds::default() };
    let pricing = RequestPricing { provider_pricing: target.price_overrides.clone(), ..log.billing.tariff.clone() };
    let price = |input: u64, output: u64| {
        let usage = Usage { input, output, ..Usage::default() };
        let at = log_time();
        let model = target.provider.effective_model(&target.options, &log.model);
        pricing.cost(target.provider.slug(), model, at, &usage).map_or(0, |cost| cost.nanodollars)
    };
    let subject = TargetSubject {
        provider: target.provider.slug(),
        saved: saved.map(|saved| ObjectNames {
            slug: &saved.identity.slug,
            id: saved.identity.id.as_deref().unwrap_or_default(),
        }),
        model: &log.model,
    };
    let parameter = output_parameter(call, target).filter(|_| {
        counts_usage && bounds.output_tokens.is_none() && bounds.input_bytes <= MAX_INLINE_PEEK_BYTES as u64
    });
    let set_tokens = bounds.output_tokens;
    let mut turn = AcquireTurn::new(&state.limiter);
    let (taken, cap) = loop {
        let subject = limit_subject(call, &target.caller, log, Some(subject));
        let cap =
            parameter.and_then(|_| affordable_tokens(&state.limiter, &rule_sets, &subject, bounds.input_bytes, &price));
        bounds.output_tokens = set_tokens.or(cap);
        let amount = |rule: &LimitRule, limiter: &Limiter, group: &str| bounds.amount(rule, limiter, group, &price);
        match take_all(&mut holds, LimitStage::Attempt, &subject, rule_sets, &amount, turn.is_last) {
            Err(rejection) if !turn.is_last => turn.acquire(&state.limiter, &rejection).await,
            taken => break (taken, cap),
        }
    };
    holds.max_tokens = cap;
    log.limits = Some(holds);
    taken.map_err(|rejection| rejection_error(&rejection, now_ms()))?;
    Ok(match (parameter, cap, &body) {
        (Some(parameter), Some(cap), Body::Complete(bytes)) => {
            let field = edit::json_field(parameter, &cap.into());
            edit::set_fields(bytes, &[], &[field]).map_or(body, |edited| Body::Complete(edited.into()))
        }
        _ => body,
    })
}

/// Returns the parameter that bounds the response, in the client's API format. `None` for formats in which it is nested,
/// or whose requests always have it.
fn output_parameter(call: &Call<'_>, target: &Target<'_>) -> Option<&'static str> {
    match call.requested_operation() {
        Operation::CreateModelResponse => Some("max_output_tokens"),
        Operation::ChatComplete => Some(target.provider.row().chat_output_limit),
        Operation::Complete => Some("max_tokens"),
        _ => None,
    }
}

/// Returns how many tokens of a response the hard budgets of a request allow. `None` if there are none, or nothing is
/// left.
fn affordable_tokens<const COUNT: usize>(
    limiter: &Limiter,
    rule_sets: &[Option<&Arc<[LimitRule]>>; COUNT],
    subject: &LimitSubject<'_>,
    input_bytes: u64,
    price: &dyn Fn(u64, u64) -> u64,
) -> Option<u64> {
    let rules = rule_sets.iter().flatten().flat_map(|rules| rules.iter());
    let hard = rules.filter(|rule| rule.enforcement == Enforcement::Hard && rule.measure != Measure::Requests);
    let affordable = hard.filter_map(|rule| {
        let group = rule.group_of(subject)?;
        let left = limiter.remaining(rule, &group, now_ms()).left;
        Some(match rule.measure {
            Measure::Cost => {
                let million = price(0, 1_000_000);
                let rest = u128::from(left.saturating_sub(price(input_bytes, 0))) * 1_000_000;
                let tokens = rest.checked_div(million.into());
                tokens.map_or(MAX_OUTPUT_TOKENS, |tokens| u64::try_from(tokens).unwrap_or(u64::MAX))
            }
            Measure::Tokens | Measure::Requests => left.saturating_sub(input_bytes),
        })
    });
    let affordable = affordable.min()?;
    // One request does not hold everything that is left, unless that is little.
    let share = (affordable / HELD_FRACTION).clamp(MIN_HELD_TOKENS, MAX_OUTPUT_TOKENS);
    Some(affordable.min(share)).filter(|tokens| *tokens > 0)
}

fn log_time() -> u64 {
    now_ms() / 1000
}

/// Returns the limits of the caller's workspace, policies included, and of its key.
fn caller_rules<'c>(caller: &Caller<'c>) -> [Option<&'c Arc<[LimitRule]>>; 2] {
    let limits = caller.find_limits();
    let key_rules = caller.key.and_then(|key| key.limits.as_ref().or_else(|| limits?.api_keys.get(&key.id)));
    [limits.and_then(|limits| limits.all.as_ref()), key_rules]
}

/// Returns the limits of the target's saved provider, and of the workspace's share of its integration.
fn target_rules<'c>(target: &Target<'c>) -> [Option<&'c Arc<[LimitRule]>>; 2] {
    let (Some(limits), Some(saved)) = (target.caller.find_limits(), target.saved_provider) else { return [None; 2] };
    let identity = &saved.identity;
    let provider_rules = identity.id.as_ref().and_then(|id| limits.providers.get(id));
    [provider_rules, identity.integration_id.as_ref().and_then(|id| limits.integrations.get(id))]
}

fn take_all<const COUNT: usize>(
    holds: &mut RequestHolds,
    stage: LimitStage,
    subject: &LimitSubject<'_>,
    rule_sets: [Option<&Arc<[LimitRule]>>; COUNT],
    amount: &dyn Fn(&LimitRule, &Limiter, &str) -> u64,
    is_last: bool,
) -> std::result::Result<(), Box<Rejection>> {
    rule_sets.into_iter().flatten().try_for_each(|rules| holds.take(stage, rules, subject, amount, is_last, now_ms()))
}

/// Returns what limits may refer to in a request.
fn limit_subject<'r>(
    call: &Call<'r>,
    caller: &Caller<'r>,
    log: &'r RequestLog,
    target: Option<TargetSubject<'r>>,
) -> LimitSubject<'r> {
    let config = log.details.config.as_deref();
    LimitSubject {
        api_key: caller.key.map(|key| ObjectNames { slug: &key.name, id: &key.id }),
        workspace: caller.find_workspace().map(|found: &Workspace| ObjectNames { slug: &found.slug, id: &found.id }),
        metadata: &log.metadata,
        config: config.map(|config| ObjectNames { slug: &config.slug, id: config.id.as_deref().unwrap_or_default() }),
        prompt: call.head.prompt.as_ref().map(|prompt| ObjectNames { slug: &prompt.slug, id: &prompt.id }),
        endpoint_type: call.requested_operation().id(),
        target,
    }
}

/// Returns the error that tells the client which limit was exceeded.
fn rejection_error(rejection: &Rejection, now_ms: u64) -> Error {
    let Rejection { rule, remaining, .. } = rejection;
    let wait_ms = remaining.reset_ms.map(|reset| reset.saturating_sub(now_ms).max(1));
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
        Some(seconds) => format!("it starts again in {seconds} s"),
        None => "it does not start again by itself; an administrator can raise or reset it".to_owned(),
    };
    let (kind, slug) = (rule.owner.kind, &rule.owner.slug);
    let limit = Box::new(ExceededLimit {
        description: format!("{} `{slug}` reached: {amount}{window}; {hint}", kind.title()),
        param: slug.clone(),
        is_target: rule.applies_to_targets(),
        wait_ms,
        forbids_retry: rule.is_budget() || wait_seconds.is_none_or(|seconds| seconds > MAX_RETRY_WAIT_SECONDS),
    });
    match kind {
        _ if !rule.is_budget() => Error::RateLimited(limit),
        OwnerKind::ApiKey | OwnerKind::Token => Error::KeyBudgetSpent(limit),
        _ => Error::BudgetSpent(limit),
    }
}

fn format_dollars(nanodollars: u64) -> String {
    let text = format!("{}.{:09}", nanodollars / NANODOLLARS_PER_DOLLAR, nanodollars % NANODOLLARS_PER_DOLLAR);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Bounds of what a request may use, as far as its body tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct UsageBounds {
    input_bytes: u64,
    /// Most tokens of all responses. `None` if the request sets no limit.
    output_tokens: Option<u64>,
}

/// Parameters that bound the length of a response, in the API formats of clients.
#[derive(Deserialize, Default)]
#[serde(rename_all = "snake_case")]
struct OutputLimits {
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default)]
    max_completion_tokens: Option<u64>,
    #[serde(default)]
    max_output_tokens: Option<u64>,
    #[serde(default)]
    n: Option<u64>,
    #[serde(default, rename = "generationConfig")]
    generation_config: Option<GenerationConfig>,
    #[serde(default, rename = "inferenceConfig")]
    inference_config: Option<InferenceConfig>,
}

impl OutputLimits {
    /// Returns the most tokens of all responses; `None` without a limit. A body that is no JSON object is rejected
    /// elsewhere.
    fn parse(body: &[u8]) -> Option<u64> {
        let limits: Self = serde_json::from_slice(body).unwrap_or_default();
        let google = limits.generation_config.unwrap_or_default();
        let each = limits
            .max_completion_tokens
            .or(limits.max_tokens)
            .or(limits.max_output_tokens)
            .or(google.max_output_tokens)
            .or(limits.inference_config.unwrap_or_default().max_tokens);
        let count = limits.n.or(google.candidate_count).unwrap_or(1);
        each.map(|each| each.saturating_mul(count))
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct GenerationConfig {
    #[serde(default)]
    max_output_tokens: Option<u64>,
    #[serde(default)]
    candidate_count: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct InferenceConfig {
    #[serde(default)]
    max_tokens: Option<u64>,
}

impl UsageBounds {
    /// Reads the bounds of a request. Large bodies are parsed on a blocking thread, so that other requests do not wait.
    async fn from_request(call: &Call<'_>, body: &Body) -> Self {
        let operation = call.requested_operation();
        let Body::Complete(bytes) = body else { return Self::default() };
        let input_bytes = bytes.len() as u64;
        if operation.is_embedding() {
            return Self { input_bytes, output_tokens: Some(0) };
        }
        if !operation.has_countable_text() {
            // Operations without a body, such as lists, use nothing.
            let is_free = matches!(operation.body_kind(), Some(BodyKind::Nothing)) && operation != Operation::Realtime;
            return Self { input_bytes: 0, output_tokens: is_free.then_some(0) };
        }
        let output_tokens = if bytes.len() <= MAX_INLINE_PEEK_BYTES {
            OutputLimits::parse(bytes)
        } else {
            let bytes = bytes.clone();
            tokio::task::spawn_blocking(move || OutputLimits::parse(&bytes)).await.unwrap_or(None)
        };
        Self { input_bytes, output_tokens }
    }

    /// Returns what a limit reserves for an attempt.
    fn amount(self, rule: &LimitRule, limiter: &Limiter, group: &str, price: &dyn Fn(u64, u64) -> u64) -> u64 {
        let (input, output) = match rule.enforcement {
            // A token is at least one byte of text.
            Enforcement::Hard => (self.input_bytes, self.output_tokens.unwrap_or(MAX_OUTPUT_TOKENS)),
            Enforcement::Soft => {
                let usual = self.output_tokens.map_or(USUAL_OUTPUT_TOKENS, |most| most.min(USUAL_OUTPUT_TOKENS));
                (self.input_bytes / BYTES_PER_TOKEN, usual)
            }
        };
        let reserved = match rule.measure {
            Measure::Requests => return 1,
            Measure::Tokens => input.saturating_add(output),
            Measure::Cost => price(input, output),
        };
        match rule.enforcement {
            Enforcement::Hard => reserved,
            // What earlier requests used tells more than the bounds of this one.
            Enforcement::Soft => limiter.estimate(rule, group).map_or(reserved, |recent| recent.min(rule.limit)),
        }
    }
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
