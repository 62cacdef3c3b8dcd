//! Why a request went where it went: kept beside its record, told in the headers of its answer.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::Value;

use crate::{accounting::record::json_writer::write_object, config::Node};

/// Whether an old answer served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CacheStatus {
    #[default]
    Disabled,
    Hit,
    Miss,
    Refresh,
}

impl CacheStatus {
    /// As headers have it.
    pub fn header_value(self) -> &'static str {
        match self {
            Self::Disabled => "DISABLED",
            Self::Hit => "HIT",
            Self::Miss => "MISS",
            Self::Refresh => "REFRESH",
        }
    }

    /// As records have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Refresh => "refresh",
        }
    }
}

/// One choice on the way, or one attempt.
#[derive(Debug, Serialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum RoutingStep {
    /// There was nothing to choose: headers or a config name the one provider.
    Named { at: &'static str, provider: &'static str, by: &'static str },
    /// A strategy chose a target.
    Chose {
        at: Arc<str>,
        strategy: &'static str,
        target: usize,
        /// Of a conditional strategy: which condition held.
        #[serde(skip_serializing_if = "Option::is_none")]
        condition: Option<usize>,
    },
    /// A target was left out.
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
    /// The second of two targets was tried too, because the first had not answered after so long.
    Hedged { at: Arc<str>, after_ms: u64 },
    /// An attempt was given up, because another had answered.
    Cancelled { at: Arc<str> },
    /// The second target would be tried too, if the first does not answer for so long.
    WouldHedge { at: Arc<str>, after: String },
    /// A target could not be tried.
    Failed { at: Arc<str>, error: &'static str },
    /// No further attempt was made, and why.
    Stopped { at: Arc<str>, because: &'static str },
    /// A stream was too long to be held or continued.
    Unheld { at: Arc<str> },
    /// A stream broke off after some of it had been passed on.
    Broke { at: Arc<str>, error: &'static str },
    /// A target could not go on from there, and why.
    Unable { at: Arc<str>, because: &'static str },
    /// A target went on after so many bytes of text.
    Continued { at: Arc<str>, said: usize },
    /// An answer that was kept served.
    Kept { at: Arc<str> },
    /// So many steps are not told here.
    LeftOut { steps: usize },
}

impl RoutingStep {
    /// As JSON. Each record has one of the first of these, or two: a general serialiser would be most of what they cost.
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
            // A Vec takes every write.
            rare => drop(serde_json::to_writer(out, rare)),
        }
    }
}

/// More steps than this are not kept: of those in the middle their number.
const MAX_STEPS: usize = 64;
const OMITTED_STEPS_INDEX: usize = MAX_STEPS / 2;

#[derive(Debug)]
pub struct RoutingDecision {
    /// Of the root.
    pub strategy: &'static str,
    /// The target that answered.
    pub selected_target: Arc<str>,
    /// 0: none was made, n: the nth one answered, -1: all were spent or could not be made.
    pub retry_count: i32,
    pub cache_status: CacheStatus,
    /// On the way that it went the config says how often it is tried: a caller who tries again only repeats that.
    pub has_retry_policy: bool,
    pub steps: Vec<RoutingStep>,
    /// What the target that answered was given and how often, for a caller who asks.
    pub target_report: Option<Value>,
}

impl RoutingDecision {
    /// Nothing is decided yet of what a config says.
    pub fn new(root: &Node) -> Self {
        Self {
            strategy: root.strategy.name(),
            selected_target: Arc::clone(&root.path),
            retry_count: 0,
            cache_status: CacheStatus::Disabled,
            has_retry_policy: false,
            steps: Vec::new(),
            target_report: None,
        }
    }

    /// The last so many steps.
    pub fn last_steps(&self, most: usize) -> &[RoutingStep] {
        &self.steps[self.steps.len().saturating_sub(most)..]
    }

    pub fn add_step(&mut self, step: RoutingStep) {
        if self.steps.len() == MAX_STEPS {
            let before = if let RoutingStep::LeftOut { steps } = self.steps[OMITTED_STEPS_INDEX] { steps } else { 1 };
            self.steps.remove(OMITTED_STEPS_INDEX + 1);
            self.steps[OMITTED_STEPS_INDEX] = RoutingStep::LeftOut { steps: before + 1 };
        }
        self.steps.push(step);
    }
}

/// How long something took, for a step.
pub fn elapsed_ms(since: Instant) -> u64 {
    let took: Duration = since.elapsed();
    took.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

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
            RoutingStep::Kept { at: at() },
        ] {
            let mut out = Vec::new();
            step.write_json(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), serde_json::to_string(&step).unwrap());
        }
    }

    #[test]
    fn keeps_first_and_last_steps_and_counts_the_rest() {
        let mut decision = RoutingDecision::new(&Config::default().root);
        for target in 0..200 {
            decision.add_step(RoutingStep::Chose { at: "config".into(), strategy: "single", target, condition: None });
        }
        let told: Vec<_> = decision
            .steps
            .iter()
            .map(|step| match step {
                RoutingStep::Chose { target, .. } => *target,
                RoutingStep::LeftOut { steps } => steps + 1000,
                _ => 0,
            })
            .collect();
        let expected: Vec<_> = (0..32).chain([1137]).chain(169..200).collect();
        assert_eq!(told, expected);
    }
}
