//! Header fields that report the rest of a caller's limits: `RateLimit` and `RateLimit-Policy` of the IETF's draft, and
//! the gateway's own. The provider's `x-ratelimit-*` fields stay as they are.

use penstock_net::headers::Headers;

use crate::limits::{
    now_ms,
    request_holds::{LimitStatus, RequestHolds},
    rule::Measure,
};

/// Names of the gateway's own fields without their prefix: limit, remaining amount, and seconds until the reset.
const OWN_FIELDS: [(Measure, [&[u8]; 3]); 2] = [
    (Measure::Requests, [b"ratelimit-limit-requests", b"ratelimit-remaining-requests", b"ratelimit-reset-requests"]),
    (Measure::Tokens, [b"ratelimit-limit-tokens", b"ratelimit-remaining-tokens", b"ratelimit-reset-tokens"]),
];
/// Bytes that the items of one limit usually take in both fields of the draft.
const USUAL_ITEM_BYTES: usize = 96;

/// Adds the header fields of the limits that counted a request.
pub(crate) fn push_limit_headers(headers: &mut Headers, prefix: &[u8], holds: &RequestHolds) {
    if let Some(tokens) = holds.max_tokens {
        headers.push_joined(prefix, b"max-tokens", itoa::Buffer::new().format(tokens).as_bytes());
    }
    let statuses = holds.statuses();
    if statuses.is_empty() {
        return;
    }
    let new_list = || String::with_capacity(statuses.len() * USUAL_ITEM_BYTES);
    let (mut policies, mut limits) = (new_list(), new_list());
    let now = now_ms();
    let until = |reset_ms: u64| reset_ms.saturating_sub(now).div_ceil(1000);
    for LimitStatus { rule, remaining } in statuses {
        if !policies.is_empty() {
            policies.push_str(", ");
            limits.push_str(", ");
        }
        policies.push_str(&rule.header_items.policy);
        if remaining.is_share {
            policies.push_str(";penstock-share");
        }
        limits.push_str(&rule.header_items.quoted_name);
        push_parameter(&mut limits, ";r=", remaining.amount);
        if let Some(reset) = remaining.reset_ms {
            push_parameter(&mut limits, ";t=", until(reset));
        }
    }
    headers.push(b"ratelimit-policy", policies.as_bytes());
    headers.push(b"ratelimit", limits.as_bytes());
    for (measure, names) in OWN_FIELDS {
        let Some(status) = statuses.iter().find(|status| status.rule.measure == measure) else { continue };
        let values = [Some(status.rule.limit), Some(status.remaining.amount), status.remaining.reset_ms.map(until)];
        for (name, value) in names.into_iter().zip(values) {
            if let Some(value) = value {
                headers.push_joined(prefix, name, itoa::Buffer::new().format(value).as_bytes());
            }
        }
    }
}

fn push_parameter(list: &mut String, name: &str, value: u64) {
    list.push_str(name);
    list.push_str(itoa::Buffer::new().format(value));
}
