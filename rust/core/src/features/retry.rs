//! How often and when a request is sent to its target again. A target's own setting takes the place of the one around it.

use std::time::Duration;

use serde_json::Value;

use crate::{config::Reading, ingress::headers::Headers};

/// Statuses after which a request is sent again where the config lists none.
const STATUSES: [u16; 6] = [429, 500, 502, 503, 504, 529];
const MOST_ATTEMPTS: u64 = 5;
/// Nobody waits longer than this between attempts, in all.
const LONGEST: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Policy {
    attempts: u32,
    /// Empty: the usual ones.
    statuses: Vec<u16>,
    /// Wait as long as a 429 says.
    heeds: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retry(Option<Box<Policy>>);

impl Retry {
    /// From a config: an object with `attempts`.
    pub fn parse(value: &Value, reading: &mut Reading) -> Self {
        let mut attempts = None;
        let mut policy = Policy { attempts: 0, statuses: Vec::new(), heeds: false };
        reading.keys(value, |reading, key, value| {
            match key {
                "attempts" => attempts = reading.whole(value, &(0..=MOST_ATTEMPTS)).or(Some(0)),
                "on_status_codes" => policy.statuses = reading.statuses(value),
                // Both spellings are in use.
                "use_retry_after_header" | "use_retry_after_headers" => {
                    policy.heeds = reading.boolean(value).unwrap_or_default();
                }
                _ => return false,
            }
            true
        });
        match attempts {
            Some(attempts) => policy.attempts = attempts as u32,
            None if value.is_object() => reading.refuse("needs `attempts`, a whole number from 0 to 5"),
            None => (),
        }
        Self(Some(Box::new(policy)))
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

    /// Whether a config says anything of it, were it that there is to be none.
    pub fn is_said(&self) -> bool {
        self.0.is_some()
    }

    /// Attempts besides the first.
    pub fn attempts(&self) -> u32 {
        self.0.as_ref().map_or(0, |policy| policy.attempts)
    }

    /// Whether this is a status after which a request is sent again.
    pub fn is_on(&self, status: u16) -> bool {
        self.0.as_ref().is_some_and(|policy| match &policy.statuses[..] {
            [] => STATUSES.contains(&status),
            listed => listed.contains(&status),
        })
    }

    /// How long the answer to a request asks to wait, where that is heeded.
    pub fn asked(&self, status: u16, headers: &Headers) -> Option<Duration> {
        let heeds = self.0.as_ref().is_some_and(|policy| policy.heeds);
        if heeds && status == 429 { retry_after(headers) } else { None }
    }
}

/// What a provider says of when to come again; the more exact field first.
fn retry_after(headers: &Headers) -> Option<Duration> {
    let number = |name: &str| headers.text(name)?.trim().parse::<f64>().ok().filter(|number| *number >= 0.0);
    let milliseconds = || number("retry-after-ms").or_else(|| number("x-ms-retry-after-ms")).map(|ms| ms / 1000.0);
    let seconds = milliseconds().or_else(|| number("retry-after"))?;
    // What no duration holds is longer than anybody waits.
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// The waits between the attempts of one request.
#[derive(Debug)]
pub struct Waits {
    base: Duration,
    made: u32,
    total: Duration,
}

impl Waits {
    /// `base`: the longest first wait.
    pub fn new(base: Duration) -> Self {
        Self { base, made: 0, total: Duration::ZERO }
    }

    /// How long to wait now: as long as was asked, else up to twice as long as the last time, where in that span chance decides.
    /// `None` where it would be too long.
    pub fn next(&mut self, asked: Option<Duration>, chance: f64) -> Option<Duration> {
        let wait =
            asked.unwrap_or_else(|| self.base.saturating_mul(1 << self.made.min(16)).min(LONGEST).mul_f64(chance));
        self.made += 1;
        self.total = self.total.saturating_add(wait);
        let is_asked_too_long = asked.is_some_and(|asked| asked >= LONGEST);
        (!is_asked_too_long && self.total <= LONGEST).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Unknown;

    fn retry(value: &Value) -> Retry {
        let mut reading = Reading::new(Unknown::Refused);
        let retry = Retry::parse(value, &mut reading);
        reading.end().unwrap();
        retry
    }

    fn headers(fields: &[(&str, &str)]) -> Headers {
        fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect()
    }

    #[test]
    fn the_usual_statuses_are_retried_unless_others_are_listed() {
        let usual = retry(&json!({"attempts": 2}));
        assert!(STATUSES.into_iter().all(|status| usual.is_on(status)));
        assert!(![200, 400, 401, 408, 501].into_iter().any(|status| usual.is_on(status)));
        let listed = retry(&json!({"attempts": 2, "on_status_codes": [418]}));
        assert!(listed.is_on(418) && !listed.is_on(429));
        assert_eq!(Retry::default().attempts(), 0);
    }

    #[test]
    fn more_than_five_attempts_or_none_at_all_are_refused() {
        for value in [json!({"attempts": 6}), json!({}), json!({"attempts": "2"}), json!(3)] {
            let mut reading = Reading::new(Unknown::Refused);
            Retry::parse(&value, &mut reading);
            assert_eq!(reading.end().unwrap_err().len(), 1, "{value}");
        }
    }

    #[test]
    fn a_nearer_setting_takes_the_place_of_the_whole_other() {
        let parent = retry(&json!({"attempts": 5, "on_status_codes": [418]}));
        let mut child = retry(&json!({"attempts": 1}));
        child.inherit(&parent);
        assert!(child.attempts() == 1 && child.is_on(429));
        let mut silent = Retry::default();
        silent.inherit(&parent);
        assert_eq!(silent, parent);
    }

    #[test]
    fn a_provider_is_heeded_where_that_is_wanted_and_the_exact_field_comes_first() {
        let (heeding, deaf) =
            (retry(&json!({"attempts": 1, "use_retry_after_headers": true})), retry(&json!({"attempts": 1})));
        let all = headers(&[("retry-after", "3"), ("x-ms-retry-after-ms", "20"), ("retry-after-ms", "10")]);
        assert_eq!(heeding.asked(429, &all), Some(Duration::from_millis(10)));
        assert_eq!(
            heeding.asked(429, &headers(&[("retry-after", "3"), ("x-ms-retry-after-ms", "20")])),
            Some(Duration::from_millis(20))
        );
        assert_eq!(heeding.asked(429, &headers(&[("retry-after", "3")])), Some(Duration::from_secs(3)));
        assert_eq!(heeding.asked(429, &headers(&[("retry-after", "1e300")])), Some(Duration::MAX));
        assert_eq!((heeding.asked(503, &all), deaf.asked(429, &all)), (None, None));
        for odd in ["-1", "soon", "NaN", ""] {
            assert_eq!(heeding.asked(429, &headers(&[("retry-after", odd)])), None, "{odd}");
        }
    }

    #[test]
    fn waits_double_and_chance_decides_within_them() {
        let base = Duration::from_secs(1);
        let mut waits = Waits::new(base);
        let longest: Vec<_> = (0..5).map(|_| waits.next(None, 1.0).unwrap().as_secs()).collect();
        assert_eq!(longest, [1, 2, 4, 8, 16]);
        let mut waits = Waits::new(base);
        assert_eq!(waits.next(None, 0.25), Some(Duration::from_millis(250)));
        assert_eq!(waits.next(None, 0.0), Some(Duration::ZERO));
    }

    #[test]
    fn nobody_waits_for_more_than_a_minute() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(Waits::new(Duration::ZERO).next(seconds(60), 1.0), None);
        let mut waits = Waits::new(Duration::ZERO);
        assert_eq!(waits.next(seconds(40), 1.0), seconds(40));
        assert_eq!(waits.next(seconds(21), 1.0), None);
    }
}
