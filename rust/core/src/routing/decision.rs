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
    pub fn header(self) -> &'static str {
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
pub enum Step {
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

impl Step {
    /// As JSON. Each record has one of the first of these, or two: a general serialiser would be most of what they cost.
    pub fn write(&self, out: &mut Vec<u8>) {
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
const MOST_STEPS: usize = 64;
const MIDDLE: usize = MOST_STEPS / 2;

#[derive(Debug)]
pub struct Decision {
    /// Of the root.
    pub strategy: &'static str,
    /// The target that answered.
    pub option: Arc<str>,
    /// 0: none was made, n: the nth one answered, -1: all were spent or could not be made.
    pub retries: i32,
    pub cache: CacheStatus,
    /// On the way that it went the config says how often it is tried: a caller who tries again only repeats that.
    pub is_persistent: bool,
    pub steps: Vec<Step>,
    /// What the target that answered was given and how often, for a caller who asks.
    pub target: Option<Value>,
}

impl Decision {
    /// Nothing is decided yet of what a config says.
    pub fn new(root: &Node) -> Self {
        Self {
            strategy: root.strategy.name(),
            option: Arc::clone(&root.path),
            retries: 0,
            cache: CacheStatus::Disabled,
            is_persistent: false,
            steps: Vec::new(),
            target: None,
        }
    }

    /// The last so many steps.
    pub fn latest(&self, most: usize) -> &[Step] {
        &self.steps[self.steps.len().saturating_sub(most)..]
    }

    pub fn add(&mut self, step: Step) {
        if self.steps.len() == MOST_STEPS {
            let before = if let Step::LeftOut { steps } = self.steps[MIDDLE] { steps } else { 1 };
            self.steps.remove(MIDDLE + 1);
            self.steps[MIDDLE] = Step::LeftOut { steps: before + 1 };
        }
        self.steps.push(step);
    }
}

/// How long something took, for a step.
pub fn milliseconds(since: Instant) -> u64 {
    let took: Duration = since.elapsed();
    took.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn what_is_written_by_hand_is_what_a_serialiser_writes() {
        let at = || Arc::from("config.targets[0]");
        let tried = |status, error| Step::Tried { at: at(), provider: "mock", status, error, milliseconds: 7 };
        for step in [
            Step::Named { at: "config", provider: "mock", by: "header" },
            Step::Chose { at: at(), strategy: "loadbalance", target: 3, condition: None },
            Step::Chose { at: "a \"b\"".into(), strategy: "conditional", target: 0, condition: Some(2) },
            tried(Some(200), None),
            tried(None, Some("timeout")),
            Step::Kept { at: at() },
        ] {
            let mut out = Vec::new();
            step.write(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), serde_json::to_string(&step).unwrap());
        }
    }

    #[test]
    fn the_first_steps_and_the_last_are_kept_and_the_number_of_the_others() {
        let mut decision = Decision::new(&Config::default().root);
        for target in 0..200 {
            decision.add(Step::Chose { at: "config".into(), strategy: "single", target, condition: None });
        }
        let told: Vec<_> = decision
            .steps
            .iter()
            .map(|step| match step {
                Step::Chose { target, .. } => *target,
                Step::LeftOut { steps } => steps + 1000,
                _ => 0,
            })
            .collect();
        let expected: Vec<_> = (0..32).chain([1137]).chain(169..200).collect();
        assert_eq!(told, expected);
    }
}
