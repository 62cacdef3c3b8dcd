//! Overview of the limits that apply to a request, as `POST /v1/explain` shows it. Reserves nothing.

use std::sync::Arc;

use penstock_net::body::Body;
use serde_json::{Value, json};

use super::{
    AttemptKind, attempt_prices, attempt_rules, format_dollars, limit_subject, output_parameter, read_bounds,
    target_subject, usage_bounds::UNBOUNDED,
};
use crate::{
    accounting::record::RequestLog,
    gateway_state::GatewayState,
    limits::{
        now_ms,
        rule::{Enforcement, LimitRule, Measure},
        window::LimitWindow,
    },
    resolve::{target::Target, target_resolver::ClientRequest},
};

/// Maximum number of limits in one overview.
const MAX_SHOWN: usize = 300;

/// Describes the limits of an attempt at a target and those of its caller. Each has the remaining amount and the
/// amount that the request needs.
pub(crate) async fn describe_limits(
    state: &GatewayState,
    client_request: &ClientRequest<'_>,
    target: &Target<'_>,
    kind: AttemptKind,
    body: &Body,
    log: &RequestLog,
) -> Value {
    let rule_sets = attempt_rules(target);
    let mut bounds = read_bounds(client_request, kind, body, &rule_sets).await;
    let prices = attempt_prices(target, log);
    let subject = limit_subject(client_request, &target.caller, log, Some(target_subject(target, log)));
    if bounds.output_tokens.is_none() && output_parameter(client_request, target).is_some() {
        let cap = super::affordable_tokens(&state.limiter, &rule_sets, &subject, &bounds, &prices);
        bounds.limit_each_response(cap);
    }
    let rules = rule_sets.into_iter().flatten().flat_map(|rules: &Arc<[LimitRule]>| rules.iter());
    let statuses = rules.filter_map(|rule| {
        let group = rule.group_of(&subject)?;
        let needed = bounds.amount(rule, &state.limiter, &group, &prices);
        Some(describe_limit(state, rule, &group, needed))
    });
    statuses.take(MAX_SHOWN).collect()
}

fn describe_limit(state: &GatewayState, rule: &LimitRule, group: &str, needed: u64) -> Value {
    let remaining = state.limiter.remaining(rule, group, now_ms());
    // A soft budget admits one more request if anything is left, whatever that request needs.
    let minimum = if rule.enforcement == Enforcement::Hard { needed.max(1) } else { 1 };
    let (window, is_sliding) = match rule.window {
        LimitWindow::Fixed(unit) => (unit.name(), false),
        LimitWindow::Sliding(unit) => (unit.name(), true),
        LimitWindow::Period { .. } | LimitWindow::Recurring(_) => ("period", false),
    };
    json!({
        "limit_id": rule.id,
        "kind": rule.owner.kind.word(),
        "owner_name": rule.owner.slug,
        "value_key": group,
        "type": rule.measure.name(),
        "limit": shown_amount(rule.measure, rule.limit),
        "remaining": shown_amount(rule.measure, remaining.amount.min(rule.limit)),
        "needs": if needed == UNBOUNDED { Value::Null } else { shown_amount(rule.measure, needed) },
        "window": window,
        "sliding": is_sliding,
        "resets_in_ms": remaining.reset_ms.map(|reset| reset.saturating_sub(now_ms())),
        "applies_to": if rule.applies_to_targets() { "target" } else { "caller" },
        "enforcement": if rule.enforcement == Enforcement::Hard { "hard" } else { "soft" },
        "dry_run": rule.is_dry_run,
        "share": remaining.is_share,
        "admits": remaining.amount >= minimum,
    })
}

/// Returns an amount for the overview: requests, tokens, or US dollars as a decimal number.
fn shown_amount(measure: Measure, amount: u64) -> Value {
    match measure {
        Measure::Cost => serde_json::from_str(&format_dollars(amount)).unwrap_or(Value::Null),
        Measure::Requests | Measure::Tokens => amount.into(),
    }
}
