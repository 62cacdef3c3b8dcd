//! A second attempt at the next target where the first is slow to answer: whichever answers well first, the other is left.

use std::{fmt, ops::RangeInclusive, time::Duration};

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{decision::Step, fallback::Fallback};
use crate::routing::executor::{Going, Walk};
use crate::{
    accounting::record::Facts,
    config::{Node, Reading},
    error::Result,
    response::delivery::Served,
};

/// The share of requests that may be sent twice where the config does not say.
const RATIO: f64 = 0.1;
const LEAST_PERCENTILE: f64 = 50.0;

/// From a config: when the second attempt is made, and of what share of the requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Hedge {
    after: Option<Duration>,
    percentile: Option<f64>,
    ratio: f64,
}

impl Hedge {
    pub fn parse(value: &Value, reading: &mut Reading) -> Option<Self> {
        let mut hedge = Self { after: None, percentile: None, ratio: RATIO };
        let mut is_said = !value.is_object();
        reading.keys(value, |reading, key, value| {
            match key {
                "after_ms" => {
                    is_said = true;
                    hedge.after = reading.whole(value, &(1..=u64::MAX)).map(Duration::from_millis);
                }
                "percentile" => {
                    is_said = true;
                    hedge.percentile = between(value, LEAST_PERCENTILE..=99.9, reading);
                }
                "max_ratio" => hedge.ratio = between(value, 0.0..=1.0, reading).unwrap_or(RATIO),
                _ => return false,
            }
            true
        });
        if !is_said {
            reading.refuse("needs `after_ms` or `percentile`");
        }
        Some(hedge).filter(|_| value.is_object())
    }
}

fn between(value: &Value, range: RangeInclusive<f64>, reading: &mut Reading) -> Option<f64> {
    let found = value.as_f64().filter(|number| range.contains(number));
    if found.is_none() {
        reading.expected(&format!("a number from {} to {}", range.start(), range.end()), value);
    }
    found
}

impl fmt::Display for Hedge {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.percentile, self.after) {
            (Some(percentile), Some(after)) => write!(formatter, "p{percentile}, at first {} ms", after.as_millis()),
            (Some(percentile), None) => write!(formatter, "p{percentile}"),
            (None, after) => write!(formatter, "{} ms", after.unwrap_or_default().as_millis()),
        }
    }
}

impl<'w> Walk<'w> {
    /// The first of two targets, and the second too where the first is slow. Says how many of them were tried.
    pub fn race<'g>(
        &'g mut self,
        (first, second): (&'w Node, &'w Node),
        fallback: &'w Fallback,
        hedge: &'w Hedge,
    ) -> Going<'g, (Result<Served>, usize)> {
        Box::pin(async move {
            let (mark, began) = (self.mark(first), Instant::now());
            self.has_others = true;
            let paces = &self.gateway.shared.paces;
            paces.request(mark, hedge.ratio);
            let known = hedge.percentile.and_then(|percent| paces.percentile(mark, percent));
            let (Some(wait), Some(carried)) = (known.or(hedge.after), self.carried.again()) else {
                let result = self.go_from(first).await;
                if !fallback.has_failed(&result) && !self.facts.is_from_cache() {
                    paces.answered(mark, began.elapsed());
                }
                return (result, 1);
            };
            // What the second attempt finds out, until it is known whether anybody wants to know.
            let mut facts = self.facts.twin();
            let mut twin = self.twin(&mut facts, carried);
            let raced = {
                let mut one: Going<'_> = Box::pin(self.go_from(first));
                let early = tokio::select! {
                    biased;
                    result = &mut one => Some(result),
                    () = sleep(wait) => None,
                };
                match early {
                    Some(result) => Raced::First(result),
                    // It may have been closed off meanwhile.
                    None if !twin.is_open(second) || !paces.admit(mark) || !twin.may_go(second) => {
                        Raced::First(one.await)
                    }
                    None => between_both(one, Box::pin(twin.go_from(second)), fallback).await,
                }
            };
            drop(twin);
            if raced.tells_of_first(fallback) && !self.facts.is_from_cache() {
                paces.answered(mark, began.elapsed());
            }
            self.settle_race(raced, (first, second), wait, facts)
        })
    }

    /// Says what became of both, and goes on as if the one whose answer counts had been alone.
    fn settle_race(
        &mut self,
        raced: Raced,
        (first, second): (&Node, &Node),
        wait: Duration,
        facts: Facts,
    ) -> (Result<Served>, usize) {
        let (result, is_seconds, left) = match raced {
            Raced::First(result) => return (result, 1),
            Raced::Both { result, is_seconds, is_other_left } => (result, is_seconds, is_other_left),
        };
        self.gateway.sink.metrics.hedged.add(1);
        let (at, after_ms) = (second.path.clone(), wait.as_millis() as u64);
        self.note(|| Step::Hedged { at, after_ms });
        self.adopt(facts, is_seconds);
        if left {
            let loser = if is_seconds { first } else { second };
            let at = loser.path.clone();
            self.note(|| Step::Cancelled { at });
        }
        (result, 2)
    }

    /// Takes over the steps of the second attempt, and where its answer counts all that it found out.
    fn adopt(&mut self, mut facts: Facts, counts: bool) {
        let Some(other) = facts.decision.take() else { return };
        self.decide(|own| {
            if counts {
                own.option.clone_from(&other.option);
                (own.retries, own.cache) = (other.retries, other.cache);
                own.target.clone_from(&other.target);
            }
            other.steps.into_iter().for_each(|step| own.add(step));
        });
        if counts {
            self.facts.filling = facts.filling.take();
            self.facts.adopt(facts);
        }
    }
}

/// What became of two attempts.
enum Raced {
    /// There was one alone.
    First(Result<Served>),
    Both {
        result: Result<Served>,
        is_seconds: bool,
        is_other_left: bool,
    },
}

impl Raced {
    /// Whether it says how long the first takes to answer: it did well, or would have taken longer still.
    fn tells_of_first(&self, fallback: &Fallback) -> bool {
        match self {
            Self::First(result) => !fallback.has_failed(result),
            Self::Both { result, is_seconds, is_other_left } => {
                !fallback.has_failed(result) && (*is_other_left || !is_seconds)
            }
        }
    }
}

/// The first good answer of two; where there is none, the second's.
async fn between_both(mut one: Going<'_>, mut two: Going<'_>, fallback: &Fallback) -> Raced {
    let (result, is_seconds) = tokio::select! {
        biased;
        result = &mut one => (result, false),
        result = &mut two => (result, true),
    };
    if !fallback.has_failed(&result) {
        // The other is dropped, and so is its connection.
        return Raced::Both { result, is_seconds, is_other_left: true };
    }
    if let Ok(served) = result {
        served.discard().await;
    }
    let other = if is_seconds { one.await } else { two.await };
    Raced::Both { result: other, is_seconds: !is_seconds, is_other_left: false }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Unknown;

    fn read(value: &Value) -> std::result::Result<Option<Hedge>, usize> {
        let mut reading = Reading::new(Unknown::Refused);
        let hedge = Hedge::parse(value, &mut reading);
        reading.end().map(|_| hedge).map_err(|problems| problems.len())
    }

    #[test]
    fn a_time_or_a_percentile_says_when() {
        let said = |value: Value| read(&value).unwrap().unwrap().to_string();
        assert_eq!(said(json!({"after_ms": 300})), "300 ms");
        assert_eq!(said(json!({"percentile": 95, "max_ratio": 0.02})), "p95");
        assert_eq!(said(json!({"percentile": 99.5, "after_ms": 300})), "p99.5, at first 300 ms");
    }

    #[test]
    fn anything_else_is_refused() {
        for value in [
            json!(5),
            json!({}),
            json!({"after_ms": 0}),
            json!({"percentile": 20}),
            json!({"max_ratio": 0.1}),
            json!({"after_ms": 1, "max_ratio": 2}),
            json!({"after_ms": 1, "x": 2}),
        ] {
            assert_eq!(read(&value), Err(1), "{value}");
        }
    }
}
