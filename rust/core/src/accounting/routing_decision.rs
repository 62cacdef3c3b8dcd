//! Routing decision of a request. Stored with its record and reported in response headers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::Value;

use crate::accounting::record::json_writer::write_object;

/// Result of the cache lookup for a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CacheStatus {
    #[default]
    Disabled,
    Hit,
    Miss,
    Refresh,
}

impl CacheStatus {
    /// Returns the value for response headers.
    pub fn header_value(self) -> &'static str {
        match self {
            Self::Disabled => "DISABLED",
            Self::Hit => "HIT",
            Self::Miss => "MISS",
            Self::Refresh => "REFRESH",
        }
    }

    /// Returns the name used in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Refresh => "refresh",
        }
    }
}

/// One routing choice or one attempt.
#[derive(Debug, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum RoutingStep {
    /// No choice was needed: headers or a config name a single provider.
    Named { at: &'static str, provider: &'static str, by: &'static str },
    /// A strategy chose a target.
    Chose {
        at: Arc<str>,
        strategy: &'static str,
        target: usize,
        /// Index of the condition that matched, for a conditional strategy.
        #[serde(skip_serializing_if = "Option::is_none")]
        condition: Option<usize>,
    },
    /// A target was skipped because of its circuit breaker.
    Skipped { at: Arc<str>, breaker: &'static str },
    /// A request was sent.
    Tried {
        at: Arc<str>,
        provider: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<u16>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'static str>,
        milliseconds: u64,
    },
    /// A hedged request was sent to the second target, because the first had not responded after `after_ms`.
    Hedged { at: Arc<str>, after_ms: u64 },
    /// An attempt was cancelled, because another target had responded.
    Cancelled { at: Arc<str> },
    /// Dry run: the second target would be tried too if the first does not respond within this delay.
    WouldHedge { at: Arc<str>, after: String },
    /// A target could not be tried.
    Failed { at: Arc<str>, error: &'static str },
    /// No further attempt was made, for this reason.
    Stopped { at: Arc<str>, reason: &'static str },
    /// A stream was too long to be buffered or continued.
    BufferExceeded { at: Arc<str> },
    /// A stream broke off after part of it had been sent to the client.
    BrokeOff { at: Arc<str>, error: &'static str },
    /// A target could not continue the stream, for this reason.
    CannotContinue { at: Arc<str>, reason: &'static str },
    /// A target continued the stream after this many bytes of text.
    Continued { at: Arc<str>, text_bytes: usize },
    /// A cached response was used.
    CacheHit { at: Arc<str> },
    /// Placeholder for this many omitted steps.
    Omitted { steps: usize },
}

impl RoutingStep {
    /// Writes the step as JSON. The frequent steps are written by hand: a generic serialiser would be most of the cost
    /// of a record.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            Self::Named { at, provider, by } => write_object(out, |step| {
                step.text("step", "named");
                step.text("at", at);
                step.text("provider", provider);
                step.text("by", by);
            }),
            Self::Chose { at, strategy, target, condition } => write_object(out, |step| {
                step.text("step", "chose");
                step.text("at", at);
                step.text("strategy", strategy);
                step.number("target", *target);
                if let Some(condition) = condition {
                    step.number("condition", *condition);
                }
            }),
            Self::Tried { at, provider, status, error, milliseconds } => write_object(out, |step| {
                step.text("step", "tried");
                step.text("at", at);
                step.text("provider", provider);
                if let Some(status) = status {
                    step.number("status", *status);
                }
                if let Some(error) = error {
                    step.text("error", error);
                }
                step.number("milliseconds", *milliseconds);
            }),
            // Cannot fail: writing to a `Vec` always succeeds.
            rare => drop(serde_json::to_writer(out, rare)),
        }
    }
}

/// Maximum number of stored steps. Further steps are dropped from the middle and only counted.
const MAX_STEPS: usize = 64;
const OMITTED_STEPS_INDEX: usize = MAX_STEPS / 2;

#[derive(Debug)]
pub struct RoutingDecision {
    /// Strategy of the root node.
    pub strategy: &'static str,
    /// Config path of the target that responded.
    pub selected_target: Arc<str>,
    /// 0: no retry; n: the response came from the nth retry; -1: all retries were used or could not be made.
    pub retry_count: i32,
    pub cache_status: CacheStatus,
    /// True if the config retries or falls back on this route. A client that retries on its own would only repeat that.
    pub has_retry_policy: bool,
    pub steps: Vec<RoutingStep>,
    /// Report on the target that responded (the request to it and the retries), for clients that request it.
    pub target_report: Option<Value>,
}

impl RoutingDecision {
    /// Creates a decision in which no target is chosen yet.
    pub fn new(strategy: &'static str, root_path: Arc<str>) -> Self {
        Self {
            strategy,
            selected_target: root_path,
            retry_count: 0,
            cache_status: CacheStatus::Disabled,
            has_retry_policy: false,
            steps: Vec::new(),
            target_report: None,
        }
    }

    /// Returns the last steps, at most `max_count`.
    pub fn last_steps(&self, max_count: usize) -> &[RoutingStep] {
        &self.steps[self.steps.len().saturating_sub(max_count)..]
    }

    pub fn add_step(&mut self, step: RoutingStep) {
        if self.steps.len() == MAX_STEPS {
            let before = if let RoutingStep::Omitted { steps } = self.steps[OMITTED_STEPS_INDEX] { steps } else { 1 };
            self.steps.remove(OMITTED_STEPS_INDEX + 1);
            self.steps[OMITTED_STEPS_INDEX] = RoutingStep::Omitted { steps: before + 1 };
        }
        self.steps.push(step);
    }
}

/// Returns the milliseconds since an instant, as steps report them.
pub fn elapsed_ms(since: Instant) -> u64 {
    let elapsed: Duration = since.elapsed();
    elapsed.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_written_json_equals_serde_output() {
        let at = || Arc::from("config.targets[0]");
        let tried = |status, error| RoutingStep::Tried { at: at(), provider: "mock", status, error, milliseconds: 7 };
        for step in [
            RoutingStep::Named { at: "config", provider: "mock", by: "header" },
            RoutingStep::Chose { at: at(), strategy: "loadbalance", target: 3, condition: None },
            RoutingStep::Chose { at: "a \"b\"".into(), strategy: "conditional", target: 0, condition: Some(2) },
            tried(Some(200), None),
            tried(None, Some("timeout")),
            RoutingStep::CacheHit { at: at() },
        ] {
            let mut out = Vec::new();
            step.write_json(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), serde_json::to_string(&step).unwrap());
        }
    }

    #[test]
    fn keeps_first_and_last_steps_and_counts_the_rest() {
        let mut decision = RoutingDecision::new("single", "config".into());
        for target in 0..200 {
            decision.add_step(RoutingStep::Chose { at: "config".into(), strategy: "single", target, condition: None });
        }
        let actual: Vec<_> = decision
            .steps
            .iter()
            .map(|step| match step {
                RoutingStep::Chose { target, .. } => *target,
                RoutingStep::Omitted { steps } => steps + 1000,
                _ => 0,
            })
            .collect();
        let expected: Vec<_> = (0..32).chain([1137]).chain(169..200).collect();
        assert_eq!(actual, expected);
    }
}
