//! The record of a request: opened when it arrives, closed exactly once, whatever becomes of it.

pub mod batch_records;
pub(crate) mod charges;
pub(crate) mod deferred_billing;
pub(crate) mod json_writer;
pub mod masking;
pub mod metadata;
pub mod outbox;
pub(crate) mod request_log;
pub(crate) mod serialize;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use penstock_llm::{
    api_format::Dialect,
    usage::{Mark, Usage},
};
use tokio::runtime::Handle;
use uuid::{Builder, Uuid};

pub use crate::accounting::record::charges::{Payment, Shares};
pub use crate::accounting::record::deferred_billing::Later;
pub use crate::accounting::record::request_log::{Detail, Events, Facts};

use masking::may_be_secret;
use outbox::Outbox;

use crate::{
    accounting::token_counting::{Answered, Counting},
    ingress::headers::Head,
    process::{metrics::Metrics, settings::Settings},
    response::compressed::Packed,
};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    /// The gateway answered with an error of its own.
    Refused,
    /// The caller left before the end.
    Aborted,
    /// The provider's answer broke off after it had begun.
    Cut,
    /// A fault of ours.
    Panicked,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Refused => "refused",
            Self::Aborted => "aborted",
            Self::Cut => "cut",
            Self::Panicked => "panicked",
        }
    }
}

/// Where records go, shared by all requests of a worker.
pub struct Sink {
    pub outbox: Outbox,
    pub metrics: Metrics,
    pub counting: Counting,
    pub worker: u32,
    pub records: bool,
    /// Lower-case names of header fields that are masked besides the obvious ones.
    pub sensitive: Vec<String>,
    /// Lower-case names of header fields whose values become metadata.
    pub noted: Vec<String>,
}

impl Sink {
    pub fn new(settings: &Settings) -> Self {
        let lowered = |names: &[String]| names.iter().map(|name| name.to_ascii_lowercase()).collect::<Vec<_>>();
        let sensitive = lowered(&settings.sensitive_headers);
        let mut noted = lowered(&settings.headers_to_metadata);
        noted.retain(|name| !may_be_secret(name) && !sensitive.contains(name));
        Self {
            outbox: Outbox::new(settings.outbox_bytes),
            metrics: Metrics::default(),
            counting: Counting::default(),
            worker: settings.worker,
            records: settings.records && settings.control_socket.is_some(),
            sensitive,
            noted,
        }
    }
}

pub struct Record {
    pub id: Uuid,
    pub facts: Box<Facts>,
    pub(crate) head: Arc<Head>,
    pub(crate) sink: Arc<Sink>,
    pub(crate) created: Duration,
    started: Instant,
    /// How and when it ended, where it closes later.
    ended: Option<(Outcome, Duration)>,
    closed: bool,
}

/// The status that stands for a caller who left, as nginx has it.
const CLIENT_CLOSED: u16 = 499;

impl Record {
    pub fn open(head: Arc<Head>, sink: Arc<Sink>) -> Self {
        sink.metrics.start();
        let created = now();
        let id = new_id(created);
        Self { id, facts: Box::default(), head, sink, created, started: Instant::now(), ended: None, closed: false }
    }

    /// The record of what was asked and answered elsewhere: how long that took nobody knows.
    pub fn of_elsewhere(id: Uuid, created: Duration, head: Arc<Head>, sink: Arc<Sink>) -> Self {
        let ended = Some((Outcome::Complete, Duration::ZERO));
        Self { id, facts: Box::default(), head, sink, created, started: Instant::now(), ended, closed: false }
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// A portion of a stream went to the caller.
    pub fn passed_on(&mut self, piece: &[u8]) {
        self.facts.bytes_out += piece.len() as u64;
        self.facts.fill(piece);
        self.sink.metrics.pieces.add(1);
    }

    /// A message of a session went to the caller.
    pub fn relayed(&mut self, bytes: u64) {
        self.facts.bytes_out += bytes;
        self.sink.metrics.pieces.add(1);
    }

    /// Something is to be told of a session.
    pub fn mark(&mut self, mark: Option<Mark>) {
        let Some(mark) = mark else { return };
        let after = self.started.elapsed();
        self.facts.events.get_or_insert_default().add(after, mark);
    }

    /// The end of a request with an answer. Where it is not known what it cost, it closes when that is.
    pub fn settle(mut self, usage: Option<Usage>, answered: Option<Answered>, outcome: Outcome) {
        if self.facts.is_from_cache() {
            // It was paid for when it was made.
            return self.close(outcome);
        }
        let usage = self.facts.told_by_provider().or(usage);
        // What the provider of the rest says is told in the sum already.
        self.facts.paid.usage =
            usage.map(|usage| Usage { estimated: usage.estimated || self.facts.paid.spent.is_some(), ..usage });
        let filling = self.facts.filling.take();
        if let (Some(filling), Outcome::Complete, None) = (filling, outcome, self.facts.error) {
            filling.keep();
        }
        if let (None, Some(Answered::Whole(answer))) = (&usage, &answered)
            && self.facts.owes(answer)
        {
            return self.close(outcome);
        }
        match (usage, self.facts.asked.take(), answered) {
            (None, asked, Some(answered))
                if (200..300).contains(&self.facts.status)
                    && (asked.is_some() || matches!(answered, Answered::Packed(_))) =>
            {
                self.end(outcome);
                let sink = Arc::clone(&self.sink);
                sink.counting.submit(self, asked, answered);
            }
            _ => self.close(outcome),
        }
    }

    pub fn metrics(&self) -> &Metrics {
        &self.sink.metrics
    }

    /// For an answer that comes compressed.
    pub fn packed(&self, dialect: Dialect, is_events: bool) -> Packed {
        self.sink.counting.packed(dialect, is_events)
    }

    /// The last thing that happens to a request.
    pub fn close(mut self, outcome: Outcome) {
        if self.facts.is_disputed()
            && let Ok(runtime) = Handle::try_current()
        {
            self.end(outcome);
            // Its caller has the answer meanwhile.
            runtime.spawn(async move {
                self.facts.settle_dispute().await;
                self.emit(outcome);
            });
            return;
        }
        self.emit(outcome);
    }

    /// From now on it is not in flight.
    fn end(&mut self, outcome: Outcome) -> Duration {
        if let Some((_, took)) = self.ended {
            return took;
        }
        self.facts.read_form();
        let took = self.started.elapsed();
        self.ended = Some((outcome, took));
        let metrics = &self.sink.metrics;
        metrics.finish(self.facts.status, took);
        match outcome {
            Outcome::Aborted => metrics.aborted.add(1),
            Outcome::Cut => metrics.cut.add(1),
            Outcome::Panicked => metrics.panics.add(1),
            Outcome::Complete | Outcome::Refused => (),
        }
        metrics.bytes_out.add(self.facts.bytes_out);
        if self.facts.not_translated().is_some() {
            metrics.lost.add(1);
        }
        took
    }

    fn emit(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let took = self.end(outcome);
        self.facts.paid.close();
        self.facts.settle_debt();
        self.facts.count_searches();
        let metrics = &self.sink.metrics;
        let cost = self.facts.cost(self.created.as_secs());
        match &cost {
            Some(cost) => metrics.cost.add(cost.nanodollars),
            None => metrics.unpriced.add(self.facts.paid.usage.is_some().into()),
        }
        if let Some(usage) = &self.facts.paid.usage {
            metrics.tokens_in.add(usage.total_in());
            metrics.tokens_out.add(usage.total_out());
            if usage.estimated {
                metrics.tokens_estimated.add(usage.total());
            }
        }
        if self.sink.records {
            self.sink.outbox.put(|lines| serialize::write(lines, self, cost.as_ref(), outcome, took));
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        if let Some((outcome, _)) = self.ended {
            return self.emit(outcome);
        }
        let outcome = if std::thread::panicking() { Outcome::Panicked } else { Outcome::Aborted };
        if self.facts.status == 0 {
            self.facts.status = if outcome == Outcome::Panicked { 500 } else { CLIENT_CLOSED };
        }
        self.emit(outcome);
    }
}

/// The time since 1970.
pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A version 7 UUID: its first half tells the time, so that ids sort as requests came.
pub fn new_id(created: Duration) -> Uuid {
    let mut random = [0; 10];
    random[..8].copy_from_slice(&fastrand::u64(..).to_ne_bytes());
    random[8..].copy_from_slice(&fastrand::u16(..).to_ne_bytes());
    Builder::from_unix_timestamp_millis(created.as_millis() as u64, &random).into_uuid()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn sink() -> Arc<Sink> {
        Arc::new(Sink::new(&Settings {
            control_socket: Some("/nonexistent".into()),
            sensitive_headers: vec!["X-Team".into()],
            headers_to_metadata: vec!["Authorization".into(), "x-team".into(), "X-User".into()],
            ..Settings::default()
        }))
    }

    fn head() -> Arc<Head> {
        let fields = [
            ("authorization", "Bearer sk-1"),
            ("x-team", "red"),
            ("x-user", "ann"),
            ("x-gateway-config", r#"{"api_key":"sk-2"}"#),
            ("accept", "*/*"),
        ];
        Arc::new(Head {
            method: "POST".into(),
            path: "/v1/x".into(),
            query: "key=sk-3&page=2".into(),
            headers: fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect(),
            ..Head::default()
        })
    }

    fn lines(sink: &Sink) -> Vec<Value> {
        let taken = sink.outbox.take().unwrap();
        taken
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    #[test]
    fn masks_what_may_be_a_secret_and_what_is_listed() {
        let sink = sink();
        let mut record = Record::open(head(), Arc::clone(&sink));
        record.facts.masked = vec!["x-user".into()];
        record.close(Outcome::Complete);
        let text = String::from_utf8(sink.outbox.take().unwrap()).unwrap();
        for secret in ["sk-1", "sk-2", "sk-3", "red", "ann"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
        assert!(text.contains(r#""accept":"*/*""#) && text.contains("page=2"));
    }

    #[test]
    fn a_request_that_is_dropped_has_exactly_one_record() {
        let sink = sink();
        drop(Record::open(head(), Arc::clone(&sink)));
        let lines = lines(&sink);
        assert_eq!(lines.len(), 1);
        assert_eq!(
            (lines[0]["outcome"].as_str(), lines[0]["response_status_code"].as_u64()),
            (Some("aborted"), Some(499))
        );
    }

    #[test]
    fn ids_tell_the_time() {
        let (early, late) = (new_id(Duration::from_secs(1)), new_id(Duration::from_secs(2)));
        assert!(early < late);
        assert_eq!(early.get_version_num(), 7);
    }

    #[test]
    fn no_field_that_may_be_a_secret_becomes_metadata() {
        assert_eq!(sink().noted, ["x-user"]);
    }
}
