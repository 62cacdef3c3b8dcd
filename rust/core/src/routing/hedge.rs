//! Hedged requests. Tries the next target too if the first is slow; the first good response wins and the other attempt
//! is cancelled.

use std::{fmt, ops::RangeInclusive, time::Duration};

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{decision::RoutingStep, fallback::FallbackPolicy};
use crate::{
    accounting::record::RequestLog,
    config::{ConfigReader, Node},
    error::Result,
    response::delivery::UpstreamResponse,
    routing::executor::{RouteExecutor, RouteFuture},
};

/// Maximum share of requests that may be hedged, if the config sets none.
const DEFAULT_MAX_RATIO: f64 = 0.1;
const MIN_PERCENTILE: f64 = 50.0;

/// Hedging policy of a config: the delay before the second attempt, and the maximum share of requests that get one.
#[derive(Debug, Clone, PartialEq)]
pub struct Hedge {
    delay: Option<Duration>,
    percentile: Option<f64>,
    max_ratio: f64,
}

impl Hedge {
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Option<Self> {
        let mut hedge = Self { delay: None, percentile: None, max_ratio: DEFAULT_MAX_RATIO };
        let mut is_said = !value.is_object();
        reading.read_keys(value, |reading, key, value| {
            match key {
                "after_ms" => {
                    is_said = true;
                    hedge.delay = reading.read_integer(value, &(1..=u64::MAX)).map(Duration::from_millis);
                }
                "percentile" => {
                    is_said = true;
                    hedge.percentile = parse_number_in_range(value, MIN_PERCENTILE..=99.9, reading);
                }
                "max_ratio" => {
                    hedge.max_ratio = parse_number_in_range(value, 0.0..=1.0, reading).unwrap_or(DEFAULT_MAX_RATIO)
                }
                _ => return false,
            }
            true
        });
        if !is_said {
            reading.report_problem("needs `after_ms` or `percentile`");
        }
        Some(hedge).filter(|_| value.is_object())
    }
}

fn parse_number_in_range(value: &Value, range: RangeInclusive<f64>, reading: &mut ConfigReader) -> Option<f64> {
    let found = value.as_f64().filter(|number| range.contains(number));
    if found.is_none() {
        reading.report_expected(&format!("a number from {} to {}", range.start(), range.end()), value);
    }
    found
}

impl fmt::Display for Hedge {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.percentile, self.delay) {
            (Some(percentile), Some(after)) => write!(formatter, "p{percentile}, at first {} ms", after.as_millis()),
            (Some(percentile), None) => write!(formatter, "p{percentile}"),
            (None, after) => write!(formatter, "{} ms", after.unwrap_or_default().as_millis()),
        }
    }
}

impl<'w> RouteExecutor<'w> {
    /// Tries the first of two targets, and also the second if the first is slow. Returns the result and the number of
    /// targets tried.
    pub fn race_targets<'g>(
        &'g mut self,
        (first, second): (&'w Node, &'w Node),
        fallback: &'w FallbackPolicy,
        hedge: &'w Hedge,
    ) -> RouteFuture<'g, (Result<UpstreamResponse>, usize)> {
        Box::pin(async move {
            let (mark, started_at) = (self.target_key(first), Instant::now());
            self.has_alternatives = true;
            let paces = &self.state.shared.latency_histograms;
            paces.add_hedge_tokens(mark, hedge.max_ratio);
            let observed = hedge.percentile.and_then(|percent| paces.percentile(mark, percent));
            let (Some(wait), Some(carried)) = (observed.or(hedge.delay), self.replay_body.try_clone()) else {
                let result = self.run_from(first).await;
                if !fallback.is_failure(&result) && !self.log.is_from_cache() {
                    paces.record_latency(mark, started_at.elapsed());
                }
                return (result, 1);
            };
            // Separate request log for the second attempt, until it is known whether its response is used.
            let mut hedged_log = self.log.fork();
            let mut twin = self.fork(&mut hedged_log, carried);
            let raced = {
                let mut one: RouteFuture<'_> = Box::pin(self.run_from(first));
                let early = tokio::select! {
                    biased;
                    result = &mut one => Some(result),
                    () = sleep(wait) => None,
                };
                match early {
                    Some(result) => RaceOutcome::FirstOnly(result),
                    // The breaker of the second target may have opened in the meantime.
                    None if !twin.is_available(second)
                        || !paces.try_spend_hedge_token(mark)
                        || !twin.try_enter(second) =>
                    {
                        RaceOutcome::FirstOnly(one.await)
                    }
                    None => await_first_success(one, Box::pin(twin.run_from(second)), fallback).await,
                }
            };
            drop(twin);
            if raced.measures_first_latency(fallback) && !self.log.is_from_cache() {
                paces.record_latency(mark, started_at.elapsed());
            }
            self.record_race_outcome(raced, (first, second), wait, hedged_log)
        })
    }

    /// Records the outcome of both attempts, and continues as if the winning attempt had run alone.
    fn record_race_outcome(
        &mut self,
        raced: RaceOutcome,
        (first, second): (&Node, &Node),
        wait: Duration,
        log: RequestLog,
    ) -> (Result<UpstreamResponse>, usize) {
        let (result, is_seconds, left) = match raced {
            RaceOutcome::FirstOnly(result) => return (result, 1),
            RaceOutcome::Both { result, is_from_second: is_seconds, is_other_cancelled: is_other_left } => {
                (result, is_seconds, is_other_left)
            }
        };
        self.state.record_sink.metrics.hedged.add(1);
        let (at, after_ms) = (second.path.clone(), wait.as_millis() as u64);
        self.record_step(|| RoutingStep::Hedged { at, after_ms });
        self.merge_hedged_log(log, is_seconds);
        if left {
            let loser = if is_seconds { first } else { second };
            let at = loser.path.clone();
            self.record_step(|| RoutingStep::Cancelled { at });
        }
        (result, 2)
    }

    /// Adds the steps of the second attempt to the decision. If its response is used, adopts the rest of its request
    /// log too.
    fn merge_hedged_log(&mut self, mut hedged_log: RequestLog, counts: bool) {
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
        is_other_cancelled: bool,
    },
}

impl RaceOutcome {
    /// Returns true if the elapsed time is a valid latency sample of the first target: it succeeded, or was still
    /// slower than the second.
    fn measures_first_latency(&self, fallback: &FallbackPolicy) -> bool {
        match self {
            Self::FirstOnly(result) => !fallback.is_failure(result),
            Self::Both { result, is_from_second: is_seconds, is_other_cancelled: is_other_left } => {
                !fallback.is_failure(result) && (*is_other_left || !is_seconds)
            }
        }
    }
}

/// Awaits the first successful result of two attempts; if the earlier one fails, returns the later one.
async fn await_first_success(
    mut one: RouteFuture<'_>,
    mut two: RouteFuture<'_>,
    fallback: &FallbackPolicy,
) -> RaceOutcome {
    let (result, is_seconds) = tokio::select! {
        biased;
        result = &mut one => (result, false),
        result = &mut two => (result, true),
    };
    if !fallback.is_failure(&result) {
        // Dropping the other attempt also closes its connection.
        return RaceOutcome::Both { result, is_from_second: is_seconds, is_other_cancelled: true };
    }
    if let Ok(response) = result {
        response.discard().await;
    }
    let other = if is_seconds { one.await } else { two.await };
    RaceOutcome::Both { result: other, is_from_second: !is_seconds, is_other_cancelled: false }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Strictness;

    fn parse_hedge(value: &Value) -> std::result::Result<Option<Hedge>, usize> {
        let mut reading = ConfigReader::new(Strictness::Strict);
        let hedge = Hedge::parse(value, &mut reading);
        reading.finish().map(|_| hedge).map_err(|problems| problems.len())
    }

    #[test]
    fn parses_delay_and_percentile() {
        let formatted = |value: Value| parse_hedge(&value).unwrap().unwrap().to_string();
        assert_eq!(formatted(json!({"after_ms": 300})), "300 ms");
        assert_eq!(formatted(json!({"percentile": 95, "max_ratio": 0.02})), "p95");
        assert_eq!(formatted(json!({"percentile": 99.5, "after_ms": 300})), "p99.5, at first 300 ms");
    }

    #[test]
    fn rejects_invalid_policies() {
        for value in [
            json!(5),
            json!({}),
            json!({"after_ms": 0}),
            json!({"percentile": 20}),
            json!({"max_ratio": 0.1}),
            json!({"after_ms": 1, "max_ratio": 2}),
            json!({"after_ms": 1, "x": 2}),
        ] {
            assert_eq!(parse_hedge(&value), Err(1), "{value}");
        }
    }
}
