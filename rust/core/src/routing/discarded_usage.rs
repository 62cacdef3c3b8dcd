//! Usage of responses that no client gets, because a retry, another target or a guardrail replaces them. Providers bill
//! them, so they count for the limits of the request.

use std::time::{SystemTime, UNIX_EPOCH};

use penstock_llm::{operation::Operation, usage::Usage};

use crate::{
    accounting::record::RequestLog,
    error::Result,
    limits::{now_ms, request_holds::DiscardedUsage},
    response::delivery::UpstreamResponse,
    routing::{executor::RouteExecutor, hooks::DENIED_STATUS},
};

/// Response that is not used, as far as its usage needs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiscardedResponse {
    /// True if the provider bills the response.
    is_billed: bool,
    usage: Option<Usage>,
}

impl DiscardedResponse {
    pub fn new(result: &Result<UpstreamResponse>, operation: Operation) -> Self {
        let response = result.as_ref().ok().filter(|response| is_billed(response));
        Self { is_billed: response.is_some(), usage: response.and_then(|response| response.buffered_usage(operation)) }
    }

    /// Returns the response of a cancelled attempt, whose usage nobody knows.
    pub fn cancelled() -> Self {
        Self { is_billed: true, usage: None }
    }

    /// Ends the attempt of this log, and counts the usage of its response.
    pub fn charge(self, log: &mut RequestLog) {
        let Some(holds) = &mut log.limits else { return };
        if !self.is_billed {
            return holds.end_attempt(now_ms());
        }
        if !holds.has_attempt() {
            return;
        }
        let usage = log.provider_usage().or(self.usage).map(|mut usage| {
            let searches = &mut usage.tool_uses.web_searches;
            *searches = (*searches).max(log.implicit_searches());
            usage
        });
        let before = std::mem::replace(&mut log.billing.usage, usage);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let cost = log.billing.cost(log.provider, log.resolved_model(), now.as_secs(), true);
        log.billing.usage = before;
        let discarded = DiscardedUsage {
            tokens: usage.map(|usage| usage.total()),
            // A model without a price costs nothing.
            nanodollars: cost.map(|cost| cost.nanodollars).or(usage.map(|_| 0)),
        };
        if let Some(holds) = &mut log.limits {
            holds.discard_attempt(discarded, now_ms());
        }
    }
}

/// Returns true if the provider sent a complete response, also if a guardrail replaced it.
fn is_billed(response: &UpstreamResponse) -> bool {
    response.is_success() || response.status() == DENIED_STATUS
}

/// Stores the usage of a response that a guardrail replaced, so that the record has it. If nobody knows that usage, the
/// attempt ends here and counts as what it holds.
pub(super) fn record_replaced(log: &mut RequestLog, response: &UpstreamResponse) {
    if let Some(usage) = &response.replaced_usage
        && log.provider_usage().is_none()
    {
        log.response_report.get_or_insert_default().set_usage(**usage);
    }
    if response.is_replacement && log.provider_usage().is_none() {
        DiscardedResponse { is_billed: true, usage: None }.charge(log);
    }
}

impl RouteExecutor<'_> {
    /// Ends the current attempt, and counts what its response used.
    pub fn charge_discarded(&mut self, result: &Result<UpstreamResponse>) {
        if self.log.limits.is_some() {
            DiscardedResponse::new(result, self.client_request.requested_operation()).charge(self.log);
        }
    }

    /// Ends the current attempt if the provider bills nothing for it.
    pub fn end_unbilled_attempt(&mut self, result: &Result<UpstreamResponse>) {
        if !result.as_ref().is_ok_and(is_billed)
            && let Some(holds) = &mut self.log.limits
        {
            holds.end_attempt(now_ms());
        }
    }
}
