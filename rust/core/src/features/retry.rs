//! Retry policy: how often and when a request is sent to the same target again. A target's own setting replaces the
//! inherited one.

use std::time::Duration;

use penstock_net::headers::Headers;
use serde_json::Value;

use crate::parse::document_reader::ConfigReader;

/// Statuses that are retried if the config lists none.
const DEFAULT_RETRY_STATUSES: [u16; 6] = [429, 500, 502, 503, 504, 529];
const MAX_RETRIES: u64 = 5;
/// Maximum total wait between the attempts of one request.
const MAX_TOTAL_WAIT: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, PartialEq, Eq)]
struct RetryPolicy {
    max_retries: u32,
    /// Statuses that are retried. If empty, `DEFAULT_RETRY_STATUSES` apply.
    retry_statuses: Vec<u16>,
    /// True if the wait that a 429 response requests is used.
    use_retry_after: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retry(Option<Box<RetryPolicy>>);

impl Retry {
    /// Parses an object with `attempts` from a config.
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Self {
        let mut attempts = None;
        let mut policy = RetryPolicy { max_retries: 0, retry_statuses: Vec::new(), use_retry_after: false };
        reading.read_keys(value, |reading, key, value| {
            match key {
                "attempts" => attempts = reading.read_integer(value, &(0..=MAX_RETRIES)).or(Some(0)),
                "on_status_codes" => policy.retry_statuses = reading.read_statuses(value),
                // Clients use both spellings.
                "use_retry_after_header" | "use_retry_after_headers" => {
                    policy.use_retry_after = reading.read_boolean(value).unwrap_or_default();
                }
                _ => return false,
            }
            true
        });
        match attempts {
            Some(attempts) => policy.max_retries = attempts as u32,
            None if value.is_object() => reading.report_problem("needs `attempts`, a whole number from 0 to 5"),
            None => (),
        }
        Self(Some(Box::new(policy)))
    }

    pub fn inherit(&mut self, parent: &Self) {
        if self.0.is_none() {
            self.0.clone_from(&parent.0);
        }
    }

    /// Returns the heap memory in bytes, without the value itself.
    pub fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |policy| size_of::<RetryPolicy>() + size_of_val(&policy.retry_statuses[..]))
    }

    /// Returns true if the config sets a retry policy, even one with zero retries.
    pub fn is_configured(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the number of attempts after the first.
    pub fn max_retries(&self) -> u32 {
        self.0.as_ref().map_or(0, |policy| policy.max_retries)
    }

    /// Returns true if the request is retried after this status.
    pub fn is_retryable_status(&self, status: u16) -> bool {
        self.0.as_ref().is_some_and(|policy| match &policy.retry_statuses[..] {
            [] => DEFAULT_RETRY_STATUSES.contains(&status),
            listed => listed.contains(&status),
        })
    }

    /// Returns the wait that a 429 response requests; `None` if it requests none or the policy ignores it.
    pub fn requested_wait(&self, status: u16, headers: &Headers) -> Option<Duration> {
        let uses_retry_after = self.0.as_ref().is_some_and(|policy| policy.use_retry_after);
        if uses_retry_after && status == 429 { parse_retry_after(headers) } else { None }
    }
}

/// Parses the retry-after headers of a provider; millisecond headers take precedence over seconds.
fn parse_retry_after(headers: &Headers) -> Option<Duration> {
    let number = |name: &str| headers.get_str(name)?.trim().parse::<f64>().ok().filter(|number| *number >= 0.0);
    let milliseconds = || number("retry-after-ms").or_else(|| number("x-ms-retry-after-ms")).map(|ms| ms / 1000.0);
    let seconds = milliseconds().or_else(|| number("retry-after"))?;
    // A value too large for `Duration` exceeds every limit.
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// Exponential backoff with jitter between the attempts of one request.
#[derive(Debug)]
pub struct Backoff {
    base_wait: Duration,
    wait_count: u32,
    total_wait: Duration,
}

impl Backoff {
    /// Creates a backoff whose first wait is at most `base_wait`.
    pub fn new(base_wait: Duration) -> Self {
        Self { base_wait, wait_count: 0, total_wait: Duration::ZERO }
    }

    /// Returns the next wait: the requested one, else a fraction `chance` (0 to 1) of an upper bound that doubles each
    /// time. Returns `None` if a wait or their total would exceed `MAX_TOTAL_WAIT`.
    pub fn next_wait(&mut self, requested: Option<Duration>, chance: f64) -> Option<Duration> {
        let wait = requested.unwrap_or_else(|| {
            self.base_wait.saturating_mul(1 << self.wait_count.min(16)).min(MAX_TOTAL_WAIT).mul_f64(chance)
        });
        self.wait_count += 1;
        self.total_wait = self.total_wait.saturating_add(wait);
        let exceeds_total_wait = requested.is_some_and(|requested| requested >= MAX_TOTAL_WAIT);
        (!exceeds_total_wait && self.total_wait <= MAX_TOTAL_WAIT).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parse::document_reader::Strictness;

    fn parse_retry(value: &Value) -> Retry {
        let mut reading = ConfigReader::new(Strictness::Strict);
        let retry = Retry::parse(value, &mut reading);
        reading.finish().unwrap();
        retry
    }

    fn build_headers(fields: &[(&str, &str)]) -> Headers {
        fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect()
    }

    #[test]
    fn retries_default_statuses_unless_others_are_listed() {
        let usual = parse_retry(&json!({"attempts": 2}));
        assert!(DEFAULT_RETRY_STATUSES.into_iter().all(|status| usual.is_retryable_status(status)));
        assert!(![200, 400, 401, 408, 501].into_iter().any(|status| usual.is_retryable_status(status)));
        let listed = parse_retry(&json!({"attempts": 2, "on_status_codes": [418]}));
        assert!(listed.is_retryable_status(418) && !listed.is_retryable_status(429));
        assert_eq!(Retry::default().max_retries(), 0);
    }

    #[test]
    fn rejects_missing_or_too_many_attempts() {
        for value in [json!({"attempts": 6}), json!({}), json!({"attempts": "2"}), json!(3)] {
            let mut reading = ConfigReader::new(Strictness::Strict);
            Retry::parse(&value, &mut reading);
            assert_eq!(reading.finish().unwrap_err().len(), 1, "{value}");
        }
    }

    #[test]
    fn nearer_policy_replaces_the_inherited_one() {
        let parent = parse_retry(&json!({"attempts": 5, "on_status_codes": [418]}));
        let mut child = parse_retry(&json!({"attempts": 1}));
        child.inherit(&parent);
        assert!(child.max_retries() == 1 && child.is_retryable_status(429));
        let mut silent = Retry::default();
        silent.inherit(&parent);
        assert_eq!(silent, parent);
    }

    #[test]
    fn uses_retry_after_if_enabled_and_prefers_milliseconds() {
        let (heeding, deaf) = (
            parse_retry(&json!({"attempts": 1, "use_retry_after_headers": true})),
            parse_retry(&json!({"attempts": 1})),
        );
        let all = build_headers(&[("retry-after", "3"), ("x-ms-retry-after-ms", "20"), ("retry-after-ms", "10")]);
        assert_eq!(heeding.requested_wait(429, &all), Some(Duration::from_millis(10)));
        assert_eq!(
            heeding.requested_wait(429, &build_headers(&[("retry-after", "3"), ("x-ms-retry-after-ms", "20")])),
            Some(Duration::from_millis(20))
        );
        assert_eq!(heeding.requested_wait(429, &build_headers(&[("retry-after", "3")])), Some(Duration::from_secs(3)));
        assert_eq!(heeding.requested_wait(429, &build_headers(&[("retry-after", "1e300")])), Some(Duration::MAX));
        assert_eq!((heeding.requested_wait(503, &all), deaf.requested_wait(429, &all)), (None, None));
        for invalid in ["-1", "soon", "NaN", ""] {
            assert_eq!(heeding.requested_wait(429, &build_headers(&[("retry-after", invalid)])), None, "{invalid}");
        }
    }

    #[test]
    fn waits_double_with_jitter() {
        let base = Duration::from_secs(1);
        let mut waits = Backoff::new(base);
        let longest: Vec<_> = (0..5).map(|_| waits.next_wait(None, 1.0).unwrap().as_secs()).collect();
        assert_eq!(longest, [1, 2, 4, 8, 16]);
        let mut waits = Backoff::new(base);
        assert_eq!(waits.next_wait(None, 0.25), Some(Duration::from_millis(250)));
        assert_eq!(waits.next_wait(None, 0.0), Some(Duration::ZERO));
    }

    #[test]
    fn total_wait_is_at_most_one_minute() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(Backoff::new(Duration::ZERO).next_wait(seconds(60), 1.0), None);
        let mut waits = Backoff::new(Duration::ZERO);
        assert_eq!(waits.next_wait(seconds(40), 1.0), seconds(40));
        assert_eq!(waits.next_wait(seconds(21), 1.0), None);
    }
}
