//! Hedged requests. Tries the next target too if the first is slow; the first good response wins and the other attempt
//! is cancelled.

use std::time::Duration;

use penstock_llm::operation::Operation;
use tokio::time::{Instant, sleep};

use crate::{
    accounting::{record::RequestLog, routing_decision::RoutingStep},
    config::Node,
    error::Result,
    limits::now_ms,
    response::delivery::UpstreamResponse,
    routing::{
        discarded_usage::DiscardedResponse,
        executor::{RouteExecutor, RouteFuture},
        upstream_response::triggers_fallback,
    },
    strategies::{fallback::FallbackPolicy, hedge::Hedge},
};

impl<'w> RouteExecutor<'w> {
    /// Tries the first of two targets, and also the second if the first is slow. Returns the result and the number of
    /// targets tried.
    pub fn race_targets<'g>(
        &'g mut self,
        first: &'w Node,
        second: &'w Node,
        fallback: &'w FallbackPolicy,
        hedge: &'w Hedge,
    ) -> RouteFuture<'g, (Result<UpstreamResponse>, usize)> {
        Box::pin(async move {
            let (mark, started_at) = (self.target_key(first), Instant::now());
            self.has_alternatives = true;
            let latencies = &self.state.shared.latency_histograms;
            latencies.add_hedge_tokens(mark, hedge.max_ratio);
            let observed = hedge.percentile.and_then(|percent| latencies.percentile(mark, percent));
            let (Some(wait), Some(replay_body)) = (observed.or(hedge.delay), self.replay_body.try_clone()) else {
                let result = self.run_from(first).await;
                if !triggers_fallback(fallback, &result) && !self.log.is_from_cache() {
                    latencies.record_latency(mark, started_at.elapsed());
                }
                return (result, 1);
            };
            // Separate request log for the second attempt, until it is known whether its response is used.
            let mut hedged_log = self.log.fork();
            let mut twin = self.fork(&mut hedged_log, replay_body);
            let operation = self.client_request.requested_operation();
            let raced = {
                let mut earlier: RouteFuture<'_> = Box::pin(self.run_from(first));
                let early = tokio::select! {
                    biased;
                    result = &mut earlier => Some(result),
                    () = sleep(wait) => None,
                };
                match early {
                    Some(result) => RaceOutcome::FirstOnly(result),
                    // The breaker of the second target may have opened in the meantime.
                    None if !twin.is_available(second)
                        || !latencies.try_spend_hedge_token(mark)
                        || !twin.try_enter(second) =>
                    {
                        RaceOutcome::FirstOnly(earlier.await)
                    }
                    None => await_first_success(earlier, Box::pin(twin.run_from(second)), fallback, operation).await,
                }
            };
            drop(twin);
            let raced = raced.with_counted_input(self.log, &hedged_log).await;
            if raced.measures_first_latency(fallback) && !self.log.is_from_cache() {
                latencies.record_latency(mark, started_at.elapsed());
            }
            self.record_race_outcome(raced, first, second, wait, hedged_log)
        })
    }

    /// Records the outcome of both attempts, and continues as if the winning attempt had run alone.
    fn record_race_outcome(
        &mut self,
        raced: RaceOutcome,
        first: &Node,
        second: &Node,
        wait: Duration,
        log: RequestLog,
    ) -> (Result<UpstreamResponse>, usize) {
        let (result, is_seconds, other) = match raced {
            RaceOutcome::FirstOnly(result) => return (result, 1),
            RaceOutcome::Both { result, is_from_second: is_seconds, other } => (result, is_seconds, other),
        };
        self.state.record_sink.metrics.hedged.add(1);
        let (at, after_ms) = (second.path.clone(), wait.as_millis() as u64);
        self.record_step(|| RoutingStep::Hedged { at, after_ms });
        self.merge_hedged_log(log, is_seconds, other);
        if other.is_none() {
            let loser = if is_seconds { first } else { second };
            let at = loser.path.clone();
            self.record_step(|| RoutingStep::Cancelled { at });
        }
        (result, 2)
    }

    /// Adds the steps of the second attempt to the decision. If its response is used, adopts the rest of its request
    /// log too. `discarded` is the response of the other attempt, `None` if that was cancelled.
    fn merge_hedged_log(&mut self, mut hedged_log: RequestLog, counts: bool, discarded: Option<DiscardedResponse>) {
        let discarded = discarded.unwrap_or_else(DiscardedResponse::cancelled);
        discarded.charge(if counts { self.log } else { &mut hedged_log });
        if !counts && let Some(mut holds) = hedged_log.limits.take() {
            let own = self.log.limits.get_or_insert_with(|| Box::new(holds.fork()));
            own.adopt_ended_attempts(&mut holds, now_ms());
        }
        let Some(other) = hedged_log.decision.take() else { return };
        self.update_decision(|decision| {
            if counts {
                decision.selected_target.clone_from(&other.selected_target);
                (decision.retry_count, decision.cache_status) = (other.retry_count, other.cache_status);
                decision.target_report.clone_from(&other.target_report);
            }
            other.steps.into_iter().for_each(|step| decision.add_step(step));
        });
        if counts {
            self.log.pending_cache_entry = hedged_log.pending_cache_entry.take();
            self.log.adopt_target(hedged_log);
        }
    }
}

/// Outcome of a hedged request.
enum RaceOutcome {
    /// Only the first target was tried.
    FirstOnly(Result<UpstreamResponse>),
    Both {
        result: Result<UpstreamResponse>,
        is_from_second: bool,
        /// Response of the other attempt; `None` if that was cancelled.
        other: Option<DiscardedResponse>,
    },
}

impl RaceOutcome {
    /// Counts the input of the other attempt if its response did not come in time. `log` and `hedged_log` are those of
    /// the first and the second attempt.
    async fn with_counted_input(self, log: &RequestLog, hedged_log: &RequestLog) -> Self {
        let Self::Both { result, is_from_second, other: Some(other) } = self else { return self };
        let other = other.with_counted_input(if is_from_second { log } else { hedged_log }).await;
        Self::Both { result, is_from_second, other: Some(other) }
    }

    /// Returns true if the elapsed time is a valid latency sample of the first target: it succeeded, or was still
    /// slower than the second.
    fn measures_first_latency(&self, fallback: &FallbackPolicy) -> bool {
        match self {
            Self::FirstOnly(result) => !triggers_fallback(fallback, result),
            Self::Both { result, is_from_second: is_seconds, other } => {
                !triggers_fallback(fallback, result) && (other.is_none() || !is_seconds)
            }
        }
    }
}

/// Awaits the first successful result of two attempts; if the earlier one fails, returns the later one.
async fn await_first_success(
    mut earlier: RouteFuture<'_>,
    mut later: RouteFuture<'_>,
    fallback: &FallbackPolicy,
    operation: Operation,
) -> RaceOutcome {
    let (result, is_seconds) = tokio::select! {
        biased;
        result = &mut earlier => (result, false),
        result = &mut later => (result, true),
    };
    if !triggers_fallback(fallback, &result) {
        // Dropping the other attempt also closes its connection.
        return RaceOutcome::Both { result, is_from_second: is_seconds, other: None };
    }
    let discarded = DiscardedResponse::new(&result, operation);
    if let Ok(response) = result {
        response.discard().await;
    }
    let other = if is_seconds { earlier.await } else { later.await };
    RaceOutcome::Both { result: other, is_from_second: !is_seconds, other: Some(discarded) }
}
