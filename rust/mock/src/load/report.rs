//! Counts of what went wrong, by class, and the frame of every report.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::reply::Failure;

#[derive(Clone, Debug, Default)]
pub struct Errors {
    connect: u64,
    status: u64,
    short: u64,
    timeout: u64,
    statuses: BTreeMap<u16, u64>,
}

impl Errors {
    pub fn add(&mut self, failure: Failure) {
        match failure {
            Failure::Connect => self.connect += 1,
            Failure::Short => self.short += 1,
            Failure::Timeout => self.timeout += 1,
            Failure::Status(status) => {
                self.status += 1;
                *self.statuses.entry(status).or_default() += 1;
            }
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.connect += other.connect;
        self.status += other.status;
        self.short += other.short;
        self.timeout += other.timeout;
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
    }

    pub fn total(&self) -> u64 {
        self.connect + self.status + self.short + self.timeout
    }

    /// How many answers ended too early or not at all.
    pub fn unfinished(&self) -> u64 {
        self.short + self.timeout
    }

    pub fn describe(&self, out: &mut Map<String, Value>) {
        out.insert("errors".into(), json!(self.total()));
        let classes =
            json!({"connect": self.connect, "status": self.status, "short": self.short, "timeout": self.timeout});
        out.insert("errors_by_class".into(), classes);
        let statuses: Map<String, Value> =
            self.statuses.iter().map(|(status, count)| (status.to_string(), json!(count))).collect();
        out.insert("statuses".into(), Value::Object(statuses));
    }
}

/// Seconds with three decimals.
pub fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1000.0
}

pub fn per_second(count: u64, time: Duration) -> f64 {
    (count as f64 / time.as_secs_f64().max(0.001) * 10.0).round() / 10.0
}
