//! Error counts by class, and the common fields of all reports.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::reply::Failure;

#[derive(Clone, Debug, Default)]
pub struct ErrorCounts {
    connect_failures: u64,
    status_failures: u64,
    truncated: u64,
    timeouts: u64,
    counts_by_status: BTreeMap<u16, u64>,
}

impl ErrorCounts {
    pub fn add(&mut self, failure: Failure) {
        match failure {
            Failure::Connect => self.connect_failures += 1,
            Failure::Truncated => self.truncated += 1,
            Failure::Timeout => self.timeouts += 1,
            Failure::Status(status) => {
                self.status_failures += 1;
                *self.counts_by_status.entry(status).or_default() += 1;
            }
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.connect_failures += other.connect_failures;
        self.status_failures += other.status_failures;
        self.truncated += other.truncated;
        self.timeouts += other.timeouts;
        for (status, count) in &other.counts_by_status {
            *self.counts_by_status.entry(*status).or_default() += count;
        }
    }

    pub fn total(&self) -> u64 {
        self.connect_failures + self.status_failures + self.truncated + self.timeouts
    }

    /// Returns the number of responses that ended too early or not at all.
    pub fn unfinished_count(&self) -> u64 {
        self.truncated + self.timeouts
    }

    pub fn write_json(&self, out: &mut Map<String, Value>) {
        out.insert("errors".into(), json!(self.total()));
        let classes = json!({"connect": self.connect_failures, "status": self.status_failures, "short": self.truncated, "timeout": self.timeouts});
        out.insert("errors_by_class".into(), classes);
        let statuses: Map<String, Value> =
            self.counts_by_status.iter().map(|(status, count)| (status.to_string(), json!(count))).collect();
        out.insert("statuses".into(), Value::Object(statuses));
    }
}

/// Returns seconds with three decimals.
pub fn rounded_seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1000.0
}

pub fn per_second(count: u64, time: Duration) -> f64 {
    (count as f64 / time.as_secs_f64().max(0.001) * 10.0).round() / 10.0
}
