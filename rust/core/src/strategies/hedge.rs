//! Hedging policy of a config: when the next target is tried too, and for which share of the requests.

use std::{fmt, ops::RangeInclusive, time::Duration};

use serde_json::Value;

use crate::parse::document_reader::ConfigReader;

/// Maximum share of requests that may be hedged, if the config sets none.
const DEFAULT_MAX_RATIO: f64 = 0.1;
const MIN_PERCENTILE: f64 = 50.0;

/// Hedging policy of a config: the delay before the second attempt, and the maximum share of requests that get one.
#[derive(Debug, Clone, PartialEq)]
pub struct Hedge {
    pub(crate) delay: Option<Duration>,
    pub(crate) percentile: Option<f64>,
    pub(crate) max_ratio: f64,
}

impl Hedge {
    pub fn parse(value: &Value, reading: &mut ConfigReader) -> Option<Self> {
        let mut hedge = Self { delay: None, percentile: None, max_ratio: DEFAULT_MAX_RATIO };
        let mut is_set = !value.is_object();
        reading.read_keys(value, |reading, key, value| {
            match key {
                "after_ms" => {
                    is_set = true;
                    hedge.delay = reading.read_integer(value, &(1..=u64::MAX)).map(Duration::from_millis);
                }
                "percentile" => {
                    is_set = true;
                    hedge.percentile = parse_number_in_range(value, MIN_PERCENTILE..=99.9, reading);
                }
                "max_ratio" => {
                    hedge.max_ratio = parse_number_in_range(value, 0.0..=1.0, reading).unwrap_or(DEFAULT_MAX_RATIO);
                }
                _ => return false,
            }
            true
        });
        if !is_set {
            reading.report_problem("needs `after_ms` or `percentile`");
        }
        Some(hedge).filter(|_| value.is_object())
    }
}

fn parse_number_in_range(value: &Value, range: RangeInclusive<f64>, reading: &mut ConfigReader) -> Option<f64> {
    let parsed = value.as_f64().filter(|number| range.contains(number));
    if parsed.is_none() {
        reading.report_expected(&format!("a number from {} to {}", range.start(), range.end()), value);
    }
    parsed
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parse::document_reader::Strictness;

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
