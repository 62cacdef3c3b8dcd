//! Header fields that report what is left of a caller's limits: `RateLimit` and `RateLimit-Policy` of the IETF's draft,
//! and the gateway's own. The provider's `x-ratelimit-*` fields stay as they are.

use std::fmt::Write;

use penstock_net::headers::Headers;

use crate::limits::{
    now_ms,
    request_holds::{LimitStatus, RequestHolds},
    rule::{LimitRule, Measure},
};

/// Adds the header fields of the limits that counted a request.
pub(crate) fn push_limit_headers(headers: &mut Headers, prefix: &[u8], holds: &RequestHolds) {
    if let Some(tokens) = holds.max_tokens {
        headers.push_joined(prefix, b"max-tokens", tokens.to_string().as_bytes());
    }
    let statuses = holds.statuses();
    if statuses.is_empty() {
        return;
    }
    let (mut policies, mut limits) = (String::new(), String::new());
    let now = now_ms();
    for LimitStatus { rule, remaining } in statuses {
        let separator = if policies.is_empty() { "" } else { ", " };
        let name = policy_name(rule);
        let reset_seconds = remaining.reset_ms.map(|reset| reset.saturating_sub(now).div_ceil(1000));
        // Writing to a `String` cannot fail.
        let _ = write!(policies, "{separator}\"{name}\";q={}", rule.limit);
        if rule.measure != Measure::Requests {
            let _ = write!(policies, ";qu=\"{}\"", unit_name(rule.measure));
        }
        if let Some(seconds) = rule.window.seconds() {
            let _ = write!(policies, ";w={seconds}");
        }
        if remaining.is_share {
            policies.push_str(";penstock-share");
        }
        let _ = write!(limits, "{separator}\"{name}\";r={}", remaining.left);
        if let Some(seconds) = reset_seconds {
            let _ = write!(limits, ";t={seconds}");
        }
    }
    headers.push(b"ratelimit-policy", policies.as_bytes());
    headers.push(b"ratelimit", limits.as_bytes());
    for measure in [Measure::Requests, Measure::Tokens] {
        let Some(status) = statuses.iter().find(|status| status.rule.measure == measure) else { continue };
        let mut push = |field: &str, value: u64| {
            let name = format!("ratelimit-{field}-{}", measure.name());
            headers.push_joined(prefix, name.as_bytes(), value.to_string().as_bytes());
        };
        push("limit", status.rule.limit);
        push("remaining", status.remaining.left);
        if let Some(reset) = status.remaining.reset_ms {
            push("reset", reset.saturating_sub(now).div_ceil(1000));
        }
    }
}

fn unit_name(measure: Measure) -> &'static str {
    if measure == Measure::Cost { "nanodollars" } else { measure.name() }
}

/// Returns the name of a limit as a structured field's string: slug, kind and measure.
fn policy_name(rule: &LimitRule) -> String {
    let kind = rule.owner.kind.title().replace(' ', "-").to_ascii_lowercase();
    let name = format!("{kind}-{}-{}", rule.owner.slug, rule.measure.name());
    // Other characters are not allowed in such a string.
    name.chars()
        .map(|letter| if matches!(letter, ' '..='~') && !matches!(letter, '"' | '\\') { letter } else { '_' })
        .collect()
}
