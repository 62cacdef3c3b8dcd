//! A target that fails too often is left alone for a while, then tried with one request.

use std::time::Duration;

use serde_json::Value;

use crate::config::Reading;

/// Beyond this a status is the provider's failure where the config lists none.
const FAILURE: u16 = 500;
const LEAST_COOLDOWN: u64 = 30_000;
/// A share of fewer requests than this says nothing, unless the config says it does.
const MINIMUM: u64 = 10;

#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    threshold: u64,
    percentage: Option<f64>,
    minimum: u64,
    cooldown: Duration,
    statuses: Vec<u16>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct CircuitBreaker(Option<Box<Policy>>);

impl CircuitBreaker {
    /// From a config: an object with `failure_threshold` and `cooldown_interval`.
    pub fn parse(value: &Value, reading: &mut Reading) -> Self {
        let (mut threshold, mut cooldown) = (None, None);
        let (mut percentage, mut minimum, mut statuses) = (None, MINIMUM, Vec::new());
        reading.keys(value, |reading, key, value| {
            match key {
                "failure_threshold" => threshold = reading.whole(value, &(1..=u64::MAX)).or(Some(1)),
                "failure_threshold_percentage" => percentage = percent(value, reading),
                "minimum_requests" => minimum = reading.whole(value, &(0..=u64::MAX)).unwrap_or(MINIMUM),
                "cooldown_interval" => {
                    cooldown = reading.whole(value, &(LEAST_COOLDOWN..=u64::MAX)).or(Some(LEAST_COOLDOWN));
                }
                "failure_status_codes" => statuses = reading.statuses(value),
                _ => return false,
            }
            true
        });
        if value.is_object() && threshold.is_none() {
            reading.refuse("needs `failure_threshold`, a whole number, at least 1");
        }
        if value.is_object() && cooldown.is_none() {
            reading.refuse("needs `cooldown_interval`, milliseconds, at least 30000");
        }
        let cooldown = Duration::from_millis(cooldown.unwrap_or(LEAST_COOLDOWN));
        let threshold = threshold.unwrap_or(1);
        Self(Some(Box::new(Policy { threshold, percentage, minimum, cooldown, statuses })))
    }

    pub fn inherit(&mut self, parent: &Self) {
        if self.0.is_none() {
            self.0.clone_from(&parent.0);
        }
    }

    /// Bytes beside its own.
    pub fn held(&self) -> usize {
        self.0.as_ref().map_or(0, |policy| size_of::<Policy>() + size_of_val(&policy.statuses[..]))
    }

    pub fn policy(&self) -> Option<&Policy> {
        self.0.as_deref()
    }
}

fn percent(value: &Value, reading: &mut Reading) -> Option<f64> {
    let found = value.as_f64().filter(|number| *number > 0.0 && *number <= 100.0);
    if found.is_none() {
        reading.expected("a number above 0, at most 100", value);
    }
    found
}

impl Policy {
    /// How long nobody goes to a target that failed too often.
    pub fn cooldown(&self) -> Duration {
        self.cooldown
    }

    /// Whether a status counts against its target; no status at all does.
    pub fn is_failure(&self, status: Option<u16>) -> bool {
        status.is_none_or(|status| match &self.statuses[..] {
            [] => status > FAILURE,
            listed => listed.contains(&status),
        })
    }
}

/// What a breaker says to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Closed,
    /// Nobody goes this way now.
    Open,
    /// One request may try.
    HalfOpen,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    requests: u64,
    failures: u64,
}

/// The state of one target. Times count from any fixed moment, on a clock that nobody sets.
#[derive(Debug, Default)]
pub struct Breaker {
    /// Of this cooldown interval and of the one before: what is older is forgotten.
    now: Count,
    before: Count,
    began: Duration,
    opened: Option<Duration>,
    /// Since when one request tries.
    probing: Option<Duration>,
}

impl Breaker {
    pub fn verdict(&self, policy: &Policy, now: Duration) -> Verdict {
        let Some(opened) = self.opened else { return Verdict::Closed };
        let is_due = now.saturating_sub(opened) >= policy.cooldown;
        // A probe that never ended does not keep the target away for ever.
        let is_free = self.probing.is_none_or(|since| now.saturating_sub(since) >= policy.cooldown);
        if is_due && is_free { Verdict::HalfOpen } else { Verdict::Open }
    }

    /// A request goes this way: where the breaker is half open it is the one that tries.
    pub fn begin(&mut self, policy: &Policy, now: Duration) -> bool {
        let is_probe = self.verdict(policy, now) == Verdict::HalfOpen;
        if is_probe {
            self.probing = Some(now);
        }
        is_probe
    }

    /// How it ended; says whether the breaker opened with it.
    pub fn end(&mut self, policy: &Policy, now: Duration, is_probe: bool, failed: bool) -> bool {
        if is_probe {
            self.probing = None;
            self.opened = failed.then_some(now);
            (self.now, self.before, self.began) = (Count::default(), Count::default(), now);
            return failed;
        }
        if self.opened.is_some() {
            return false;
        }
        self.turn(policy.cooldown, now);
        self.now.requests += 1;
        self.now.failures += u64::from(failed);
        if failed && self.is_too_much(policy) {
            self.opened = Some(now);
        }
        self.opened.is_some()
    }

    /// The one that tried left without an end.
    pub fn forget(&mut self) {
        self.probing = None;
    }

    /// What others saw of the same target.
    pub fn add(&mut self, cooldown: Duration, now: Duration, requests: u64, failures: u64) {
        self.turn(cooldown, now);
        self.now.requests = self.now.requests.saturating_add(requests);
        self.now.failures = self.now.failures.saturating_add(failures);
    }

    /// Others closed it off, at this time.
    pub fn open(&mut self, at: Duration) {
        (self.opened, self.probing) = (Some(at), None);
    }

    /// Another one's request tried and succeeded.
    pub fn close(&mut self, now: Duration) {
        *self = Self { began: now, ..Self::default() };
    }

    /// Since when nobody goes this way.
    pub fn opened(&self) -> Option<Duration> {
        self.opened
    }

    fn turn(&mut self, cooldown: Duration, now: Duration) {
        let age = now.saturating_sub(self.began);
        if age >= cooldown {
            self.before = if age < cooldown.saturating_mul(2) { self.now } else { Count::default() };
            self.now = Count::default();
            self.began = now;
        }
    }

    fn is_too_much(&self, policy: &Policy) -> bool {
        let failures = self.now.failures + self.before.failures;
        let requests = self.now.requests + self.before.requests;
        let is_share = policy.percentage.is_some_and(|percentage| {
            requests >= policy.minimum.max(1) && failures as f64 * 100.0 > percentage * requests as f64
        });
        failures > policy.threshold || is_share
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Unknown;

    fn policy(more: &Value) -> Policy {
        let mut value = json!({"failure_threshold": 2, "cooldown_interval": 30_000});
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut reading = Reading::new(Unknown::Refused);
        let CircuitBreaker(policy) = CircuitBreaker::parse(&value, &mut reading);
        reading.end().unwrap();
        *policy.unwrap()
    }

    /// Opens with the first failure.
    fn touchy() -> Value {
        json!({"failure_threshold_percentage": 1, "minimum_requests": 1})
    }

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn fail(breaker: &mut Breaker, policy: &Policy, now: Duration) -> bool {
        let is_probe = breaker.begin(policy, now);
        breaker.end(policy, now, is_probe, true)
    }

    #[test]
    fn opens_after_more_failures_than_that_and_closes_when_one_request_succeeds() {
        let (policy, mut breaker) = (policy(&json!({})), Breaker::default());
        assert!(!fail(&mut breaker, &policy, at(0)) && !fail(&mut breaker, &policy, at(1)));
        assert!(fail(&mut breaker, &policy, at(2)));
        assert_eq!(breaker.verdict(&policy, at(31)), Verdict::Open);
        assert_eq!(breaker.verdict(&policy, at(32)), Verdict::HalfOpen);
        assert!(breaker.begin(&policy, at(32)));
        // One tries, the others still go elsewhere.
        assert_eq!(breaker.verdict(&policy, at(32)), Verdict::Open);
        assert!(!breaker.begin(&policy, at(33)));
        breaker.end(&policy, at(33), true, false);
        assert_eq!(breaker.verdict(&policy, at(33)), Verdict::Closed);
        assert!(!fail(&mut breaker, &policy, at(34)));
    }

    #[test]
    fn a_request_that_tries_and_fails_opens_it_for_as_long_again() {
        let (policy, mut breaker) = (policy(&touchy()), Breaker::default());
        fail(&mut breaker, &policy, at(0));
        assert!(breaker.begin(&policy, at(30)));
        breaker.end(&policy, at(40), true, true);
        assert_eq!(breaker.verdict(&policy, at(69)), Verdict::Open);
        assert_eq!(breaker.verdict(&policy, at(70)), Verdict::HalfOpen);
    }

    #[test]
    fn one_that_tried_and_left_makes_room_for_the_next() {
        let (policy, mut breaker) = (policy(&touchy()), Breaker::default());
        fail(&mut breaker, &policy, at(0));
        assert!(breaker.begin(&policy, at(30)));
        breaker.forget();
        assert_eq!(breaker.verdict(&policy, at(30)), Verdict::HalfOpen);
    }

    #[test]
    fn a_share_of_failures_counts_once_there_are_enough_requests() {
        let policy =
            policy(&json!({"failure_threshold": 1000, "failure_threshold_percentage": 50, "minimum_requests": 4}));
        let mut breaker = Breaker::default();
        assert!(!fail(&mut breaker, &policy, at(0)) && !fail(&mut breaker, &policy, at(0)));
        breaker.end(&policy, at(0), false, false);
        assert!(fail(&mut breaker, &policy, at(0)));
    }

    #[test]
    fn failures_of_long_ago_are_forgotten() {
        let (policy, mut breaker) = (policy(&json!({})), Breaker::default());
        for minutes in 0..20 {
            assert!(!fail(&mut breaker, &policy, at(minutes * 61)));
        }
    }

    #[test]
    fn what_counts_as_a_failure_can_be_listed() {
        let usual = policy(&json!({}));
        assert!(usual.is_failure(None) && usual.is_failure(Some(501)) && usual.is_failure(Some(503)));
        assert!(!usual.is_failure(Some(500)) && !usual.is_failure(Some(429)));
        let listed = policy(&json!({"failure_status_codes": [401]}));
        assert!(listed.is_failure(None) && listed.is_failure(Some(401)) && !listed.is_failure(Some(503)));
    }

    #[test]
    fn every_problem_is_told_at_once() {
        let mut reading = Reading::new(Unknown::Refused);
        CircuitBreaker::parse(&json!({"cooldown_interval": 1000, "minimum_requests": -1, "x": 1}), &mut reading);
        assert_eq!(reading.end().unwrap_err().len(), 4);
    }
}
