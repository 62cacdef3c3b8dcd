//! Circuit breaker per target. Opens after too many failures, then lets one probe request through after the cooldown.

use std::time::Duration;

use serde_json::Value;

use crate::parse::document_reader::ConfigReader;

/// Statuses above this count as provider failures if the config lists none.
const FAILURE_STATUS_THRESHOLD: u16 = 500;
const MIN_COOLDOWN_MS: u64 = 30_000;
/// Default minimum number of requests before the failure percentage is evaluated.
const DEFAULT_MINIMUM_REQUESTS: u64 = 10;

#[derive(Debug, Clone, PartialEq)]
pub struct BreakerPolicy {
    failure_threshold: u64,
    failure_percentage: Option<f64>,
    minimum_requests: u64,
    cooldown: Duration,
    failure_statuses: Vec<u16>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct CircuitBreaker(Option<Box<BreakerPolicy>>);

impl CircuitBreaker {
    /// Parses an object with `failure_threshold` and `cooldown_interval` from a config.
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Self {
        let (mut threshold, mut cooldown) = (None, None);
        let (mut percentage, mut minimum, mut statuses) = (None, DEFAULT_MINIMUM_REQUESTS, Vec::new());
        reading.read_keys(value, |reading, key, value| {
            match key {
                "failure_threshold" => threshold = reading.read_integer(value, &(1..=u64::MAX)).or(Some(1)),
                "failure_threshold_percentage" => percentage = parse_percentage(value, reading),
                "minimum_requests" => {
                    minimum = reading.read_integer(value, &(0..=u64::MAX)).unwrap_or(DEFAULT_MINIMUM_REQUESTS);
                }
                "cooldown_interval" => {
                    cooldown = reading.read_integer(value, &(MIN_COOLDOWN_MS..=u64::MAX)).or(Some(MIN_COOLDOWN_MS));
                }
                "failure_status_codes" => statuses = reading.read_statuses(value),
                _ => return false,
            }
            true
        });
        if value.is_object() && threshold.is_none() {
            reading.report_problem("needs `failure_threshold`, a whole number, at least 1");
        }
        if value.is_object() && cooldown.is_none() {
            reading.report_problem("needs `cooldown_interval`, milliseconds, at least 30000");
        }
        let cooldown = Duration::from_millis(cooldown.unwrap_or(MIN_COOLDOWN_MS));
        let threshold = threshold.unwrap_or(1);
        Self(Some(Box::new(BreakerPolicy {
            failure_threshold: threshold,
            failure_percentage: percentage,
            minimum_requests: minimum,
            cooldown,
            failure_statuses: statuses,
        })))
    }

    pub fn inherit(&mut self, parent: &Self) {
        if self.0.is_none() {
            self.0.clone_from(&parent.0);
        }
    }

    /// Returns the heap memory in bytes, without the value itself.
    pub fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |policy| size_of::<BreakerPolicy>() + size_of_val(&policy.failure_statuses[..]))
    }

    pub fn policy(&self) -> Option<&BreakerPolicy> {
        self.0.as_deref()
    }
}

fn parse_percentage(value: &Value, reading: &mut ConfigReader) -> Option<f64> {
    let parsed = value.as_f64().filter(|number| *number > 0.0 && *number <= 100.0);
    if parsed.is_none() {
        reading.report_expected("a number above 0, at most 100", value);
    }
    parsed
}

impl BreakerPolicy {
    /// Returns how long the breaker stays open before a probe is allowed.
    pub fn cooldown(&self) -> Duration {
        self.cooldown
    }

    /// Returns true if a status counts as a failure of its target. `None` (no response) always does.
    pub fn is_failure(&self, status: Option<u16>) -> bool {
        status.is_none_or(|status| match &self.failure_statuses[..] {
            [] => status > FAILURE_STATUS_THRESHOLD,
            listed => listed.contains(&status),
        })
    }
}

/// Decision of the breaker for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Requests are sent as usual.
    Closed,
    /// No request is sent to the target.
    Open,
    /// One request may probe the target.
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
struct OutcomeCounts {
    requests: u64,
    failures: u64,
}

/// Breaker state of one target. Times are offsets from a fixed instant of a monotonic clock.
#[derive(Debug, Default)]
pub struct Breaker {
    /// Counts of the current interval, which is as long as the cooldown.
    current: OutcomeCounts,
    /// Counts of the interval before. They are evaluated together with `current`; older counts are dropped.
    previous: OutcomeCounts,
    window_start: Duration,
    opened_at: Option<Duration>,
    /// Start of the probe request that is in flight.
    probe_started_at: Option<Duration>,
}

impl Breaker {
    pub fn verdict(&self, policy: &BreakerPolicy, now: Duration) -> Verdict {
        let Some(opened) = self.opened_at else { return Verdict::Closed };
        let is_due = now.saturating_sub(opened) >= policy.cooldown;
        // A probe that never ended must not keep the breaker open forever.
        let is_free = self.probe_started_at.is_none_or(|since| now.saturating_sub(since) >= policy.cooldown);
        if is_due && is_free { Verdict::HalfOpen } else { Verdict::Open }
    }

    /// Records the start of a request. Returns true if the breaker is half-open and this request is its probe.
    pub fn start_request(&mut self, policy: &BreakerPolicy, now: Duration) -> bool {
        let is_probe = self.verdict(policy, now) == Verdict::HalfOpen;
        if is_probe {
            self.probe_started_at = Some(now);
        }
        is_probe
    }

    /// Records the result of a request. Returns true if this result opened the breaker.
    pub fn record_result(&mut self, policy: &BreakerPolicy, now: Duration, is_probe: bool, failed: bool) -> bool {
        if is_probe {
            self.probe_started_at = None;
            self.opened_at = failed.then_some(now);
            (self.current, self.previous, self.window_start) =
                (OutcomeCounts::default(), OutcomeCounts::default(), now);
            return failed;
        }
        if self.opened_at.is_some() {
            return false;
        }
        self.rotate_window(policy.cooldown, now);
        self.current.requests += 1;
        self.current.failures += u64::from(failed);
        if failed && self.exceeds_threshold(policy) {
            self.opened_at = Some(now);
        }
        self.opened_at.is_some()
    }

    /// Discards a probe that ended without a result, so that another request may probe.
    pub fn discard_probe(&mut self) {
        self.probe_started_at = None;
    }

    /// Adds the counts that other nodes reported for the same target.
    pub fn add_remote_counts(&mut self, cooldown: Duration, now: Duration, requests: u64, failures: u64) {
        self.rotate_window(cooldown, now);
        self.current.requests = self.current.requests.saturating_add(requests);
        self.current.failures = self.current.failures.saturating_add(failures);
    }

    /// Opens the breaker because another node opened it at this time.
    pub fn open(&mut self, at: Duration) {
        (self.opened_at, self.probe_started_at) = (Some(at), None);
    }

    /// Closes the breaker because another node's probe succeeded.
    pub fn close(&mut self, now: Duration) {
        *self = Self { window_start: now, ..Self::default() };
    }

    /// Returns when the breaker opened; `None` if it is closed.
    pub fn opened_at(&self) -> Option<Duration> {
        self.opened_at
    }

    fn rotate_window(&mut self, cooldown: Duration, now: Duration) {
        let age = now.saturating_sub(self.window_start);
        if age >= cooldown {
            self.previous = if age < cooldown.saturating_mul(2) { self.current } else { OutcomeCounts::default() };
            self.current = OutcomeCounts::default();
            self.window_start = now;
        }
    }

    fn exceeds_threshold(&self, policy: &BreakerPolicy) -> bool {
        let failures = self.current.failures + self.previous.failures;
        let requests = self.current.requests + self.previous.requests;
        let is_share = policy.failure_percentage.is_some_and(|percentage| {
            requests >= policy.minimum_requests.max(1) && failures as f64 * 100.0 > percentage * requests as f64
        });
        failures > policy.failure_threshold || is_share
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parse::document_reader::Strictness;

    fn parse_policy(more: &Value) -> BreakerPolicy {
        let mut value = json!({"failure_threshold": 2, "cooldown_interval": 30_000});
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut reading = ConfigReader::new(Strictness::Strict);
        let CircuitBreaker(policy) = CircuitBreaker::parse(&value, &mut reading);
        reading.finish().unwrap();
        *policy.unwrap()
    }

    /// Config fields with which the first failure opens the breaker.
    fn open_on_first_failure() -> Value {
        json!({"failure_threshold_percentage": 1, "minimum_requests": 1})
    }

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn fail_request(breaker: &mut Breaker, policy: &BreakerPolicy, now: Duration) -> bool {
        let is_probe = breaker.start_request(policy, now);
        breaker.record_result(policy, now, is_probe, true)
    }

    #[test]
    fn opens_above_failure_threshold_and_closes_after_successful_probe() {
        let (policy, mut breaker) = (parse_policy(&json!({})), Breaker::default());
        assert!(!fail_request(&mut breaker, &policy, seconds(0)) && !fail_request(&mut breaker, &policy, seconds(1)));
        assert!(fail_request(&mut breaker, &policy, seconds(2)));
        assert_eq!(breaker.verdict(&policy, seconds(31)), Verdict::Open);
        assert_eq!(breaker.verdict(&policy, seconds(32)), Verdict::HalfOpen);
        assert!(breaker.start_request(&policy, seconds(32)));
        // Only one request probes; the others still use other targets.
        assert_eq!(breaker.verdict(&policy, seconds(32)), Verdict::Open);
        assert!(!breaker.start_request(&policy, seconds(33)));
        breaker.record_result(&policy, seconds(33), true, false);
        assert_eq!(breaker.verdict(&policy, seconds(33)), Verdict::Closed);
        assert!(!fail_request(&mut breaker, &policy, seconds(34)));
    }

    #[test]
    fn failed_probe_opens_for_another_cooldown() {
        let (policy, mut breaker) = (parse_policy(&open_on_first_failure()), Breaker::default());
        fail_request(&mut breaker, &policy, seconds(0));
        assert!(breaker.start_request(&policy, seconds(30)));
        breaker.record_result(&policy, seconds(40), true, true);
        assert_eq!(breaker.verdict(&policy, seconds(69)), Verdict::Open);
        assert_eq!(breaker.verdict(&policy, seconds(70)), Verdict::HalfOpen);
    }

    #[test]
    fn discarded_probe_allows_another() {
        let (policy, mut breaker) = (parse_policy(&open_on_first_failure()), Breaker::default());
        fail_request(&mut breaker, &policy, seconds(0));
        assert!(breaker.start_request(&policy, seconds(30)));
        breaker.discard_probe();
        assert_eq!(breaker.verdict(&policy, seconds(30)), Verdict::HalfOpen);
    }

    #[test]
    fn failure_percentage_applies_after_minimum_requests() {
        let policy = parse_policy(
            &json!({"failure_threshold": 1000, "failure_threshold_percentage": 50, "minimum_requests": 4}),
        );
        let mut breaker = Breaker::default();
        assert!(!fail_request(&mut breaker, &policy, seconds(0)) && !fail_request(&mut breaker, &policy, seconds(0)));
        breaker.record_result(&policy, seconds(0), false, false);
        assert!(fail_request(&mut breaker, &policy, seconds(0)));
    }

    #[test]
    fn old_failures_expire() {
        let (policy, mut breaker) = (parse_policy(&json!({})), Breaker::default());
        for minutes in 0..20 {
            assert!(!fail_request(&mut breaker, &policy, seconds(minutes * 61)));
        }
    }

    #[test]
    fn failure_statuses_are_configurable() {
        let usual = parse_policy(&json!({}));
        assert!(usual.is_failure(None) && usual.is_failure(Some(501)) && usual.is_failure(Some(503)));
        assert!(!usual.is_failure(Some(500)) && !usual.is_failure(Some(429)));
        let listed = parse_policy(&json!({"failure_status_codes": [401]}));
        assert!(listed.is_failure(None) && listed.is_failure(Some(401)) && !listed.is_failure(Some(503)));
    }

    #[test]
    fn reports_all_problems_at_once() {
        let mut reading = ConfigReader::new(Strictness::Strict);
        CircuitBreaker::parse(&json!({"cooldown_interval": 1000, "minimum_requests": -1, "x": 1}), &mut reading);
        assert_eq!(reading.finish().unwrap_err().len(), 4);
    }
}
