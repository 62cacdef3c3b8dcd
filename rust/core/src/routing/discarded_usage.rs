//! Usage of responses that no client gets, because a retry, another target or a guardrail replaces them. Providers bill
//! them, so they count for the limits of the request.

use std::time::{SystemTime, UNIX_EPOCH};

use penstock_llm::{operation::Operation, usage::Usage};

use crate::{
    accounting::record::RequestLog,
    error::{Error, Result},
    limits::{now_ms, request_holds::DiscardedUsage},
    request::usage_estimator::UsageEstimator,
    response::delivery::UpstreamResponse,
    routing::{executor::RouteExecutor, hooks::DENIED_STATUS},
};

/// Summary of a response that no client gets: what is needed to charge its usage.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiscardedResponse {
    /// True if the provider bills the response.
    is_billed: bool,
    /// True if the response did not come in time. The provider bills the request if it was sent.
    has_timed_out: bool,
    usage: Option<Usage>,
}

impl DiscardedResponse {
    pub fn new(result: &Result<UpstreamResponse>, operation: Operation) -> Self {
        let response = result.as_ref().ok().filter(|response| is_billed(response));
        Self {
            is_billed: response.is_some(),
            has_timed_out: result.as_ref().is_err_and(Error::is_response_timeout),
            usage: response.and_then(|response| response.buffered_usage(operation)),
        }
    }

    /// Counts the input of a request whose response did not come in time. More is not known of its usage.
    pub async fn with_counted_input(self, log: &RequestLog) -> Self {
        let estimator = UsageEstimator::from_log(log).filter(|_| self.has_timed_out && log.is_sent);
        let Some(estimator) = estimator.filter(|_| log.limits.is_some()) else { return self };
        // Boxed, because an inline future would enlarge the future of every request.
        let Ok(input) = Box::pin(estimator.run(|estimate| estimate.input_tokens as u64)).await else { return self };
        Self { is_billed: true, usage: Some(Usage { input, is_estimated: true, ..Usage::default() }), ..self }
    }

    /// Returns the response of a cancelled attempt, whose usage nobody knows.
    pub fn cancelled() -> Self {
        Self { is_billed: true, has_timed_out: false, usage: None }
    }

    /// Ends the attempt of this log, and counts the usage of its response.
    pub fn charge(self, log: &mut RequestLog) {
        let Some(holds) = &mut log.limits else { return };
        log.is_sent = false;
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
        DiscardedResponse::cancelled().charge(log);
    }
}

impl RouteExecutor<'_> {
    /// Summarises a response that no client gets: only what is needed to charge its usage.
    pub(super) fn describe_discarded(&self, result: &Result<UpstreamResponse>) -> DiscardedResponse {
        DiscardedResponse::new(result, self.client_request.requested_operation())
    }

    /// Ends the current attempt, and counts what its response used.
    pub(super) async fn charge_discarded(&mut self, discarded: DiscardedResponse) {
        discarded.with_counted_input(self.log).await.charge(self.log);
    }

    /// Ends the current attempt if the provider bills nothing for it.
    pub fn end_unbilled_attempt(&mut self, result: &Result<UpstreamResponse>) {
        let may_be_billed = match result {
            Ok(response) => is_billed(response),
            Err(error) => error.is_response_timeout() && self.log.is_sent,
        };
        if !may_be_billed && let Some(holds) = &mut self.log.limits {
            holds.end_attempt(now_ms());
        }
    }
}
