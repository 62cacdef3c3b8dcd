//! Request record. Opened when a request arrives and closed exactly once, whatever the outcome.

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
    api_format::ApiFormat,
    usage::{SessionEvent, Usage},
};
use tokio::runtime::Handle;
use uuid::{Builder, Uuid};

pub use crate::accounting::record::charges::{Billing, SessionUsage};
pub use crate::accounting::record::deferred_billing::DeferredBilling;
pub use crate::accounting::record::request_log::{Detail, RequestLog, SessionEvents};

use masking::is_secret_name;
use outbox::Outbox;

use crate::{
    accounting::{
        compressed_response::CompressedResponse,
        token_counting::{CountableResponse, TokenCounter},
    },
    ingress::headers::RequestHead,
    process::{metrics::Metrics, settings::Settings},
};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    /// The gateway responded with an error of its own.
    Refused,
    /// The client disconnected before the end.
    Aborted,
    /// The provider's response broke off after it had started.
    Truncated,
    /// The gateway panicked.
    Panicked,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Refused => "refused",
            Self::Aborted => "aborted",
            Self::Truncated => "cut",
            Self::Panicked => "panicked",
        }
    }
}

/// Destination of records, shared by all requests of a worker.
pub struct RecordSink {
    pub outbox: Outbox,
    pub metrics: Metrics,
    pub token_counter: TokenCounter,
    pub worker: u32,
    pub should_record: bool,
    /// Lower-case names of headers that are masked in addition to the built-in ones.
    pub sensitive_headers: Vec<String>,
    /// Lower-case names of headers whose values become metadata.
    pub metadata_headers: Vec<String>,
}

impl RecordSink {
    pub fn new(settings: &Settings) -> Self {
        let lowered = |names: &[String]| names.iter().map(|name| name.to_ascii_lowercase()).collect::<Vec<_>>();
        let sensitive_headers = lowered(&settings.sensitive_headers);
        let mut metadata_headers = lowered(&settings.headers_to_metadata);
        metadata_headers.retain(|name| !is_secret_name(name) && !sensitive_headers.contains(name));
        Self {
            outbox: Outbox::new(settings.outbox_bytes),
            metrics: Metrics::default(),
            token_counter: TokenCounter::default(),
            worker: settings.worker,
            should_record: settings.records && settings.control_socket.is_some(),
            sensitive_headers,
            metadata_headers,
        }
    }
}

pub struct Record {
    pub id: Uuid,
    pub log: Box<RequestLog>,
    pub(crate) head: Arc<RequestHead>,
    pub(crate) sink: Arc<RecordSink>,
    pub(crate) created_at: Duration,
    started_at: Instant,
    /// Outcome and duration of a request that has ended while its record is still open.
    end: Option<(Outcome, Duration)>,
    is_closed: bool,
}

/// Status recorded if the client disconnects before a response, as in nginx.
const STATUS_CLIENT_CLOSED_REQUEST: u16 = 499;

impl Record {
    pub fn open(head: Arc<RequestHead>, sink: Arc<RecordSink>) -> Self {
        sink.metrics.start_request();
        let created_at = unix_time();
        let id = new_id(created_at);
        Self {
            id,
            log: Box::default(),
            head,
            sink,
            created_at,
            started_at: Instant::now(),
            end: None,
            is_closed: false,
        }
    }

    /// Opens the record of a request that was executed outside the gateway. Its duration is unknown and recorded as
    /// zero.
    pub fn for_external_request(id: Uuid, created_at: Duration, head: Arc<RequestHead>, sink: Arc<RecordSink>) -> Self {
        let end = Some((Outcome::Complete, Duration::ZERO));
        Self { id, log: Box::default(), head, sink, created_at, started_at: Instant::now(), end, is_closed: false }
    }

    pub fn elapsed(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// Records a stream chunk that was sent to the client.
    pub fn record_chunk(&mut self, chunk: &[u8]) {
        self.log.bytes_out += chunk.len() as u64;
        self.log.append_to_cache_entry(chunk);
        self.sink.metrics.stream_chunks.add(1);
    }

    /// Records a WebSocket message that was sent to the client.
    pub fn record_message(&mut self, bytes: u64) {
        self.log.bytes_out += bytes;
        self.sink.metrics.stream_chunks.add(1);
    }

    /// Adds a session event to the record, if there is one.
    pub fn add_event(&mut self, mark: Option<SessionEvent>) {
        let Some(mark) = mark else { return };
        let after = self.started_at.elapsed();
        self.log.events.get_or_insert_default().add(after, mark);
    }

    /// Finishes a request that got a response. If the usage is unknown, the record closes after the tokens are counted.
    pub fn finish(mut self, usage: Option<Usage>, countable_response: Option<CountableResponse>, outcome: Outcome) {
        if self.log.is_from_cache() {
            // A cache hit costs nothing: the original request was charged.
            return self.close(outcome);
        }
        let usage = self.log.provider_usage().or(usage);
        // The provider that continued the stream already includes the interrupted part in its total.
        self.log.billing.usage = usage.map(|usage| Usage {
            is_estimated: usage.is_estimated || self.log.billing.interrupted_usage.is_some(),
            ..usage
        });
        let filling = self.log.pending_cache_entry.take();
        if let (Some(filling), Outcome::Complete, None) = (filling, outcome, self.log.error_code) {
            filling.store();
        }
        if let (None, Some(CountableResponse::Complete(response))) = (&usage, &countable_response)
            && self.log.defer_charge_if_in_progress(response)
        {
            return self.close(outcome);
        }
        match (usage, self.log.count_input.take(), countable_response) {
            (None, count_input, Some(countable_response))
                if (200..300).contains(&self.log.status)
                    && (count_input.is_some() || matches!(countable_response, CountableResponse::Compressed(_))) =>
            {
                self.mark_ended(outcome);
                let sink = Arc::clone(&self.sink);
                sink.token_counter.submit(self, count_input, countable_response);
            }
            _ => self.close(outcome),
        }
    }

    pub fn metrics(&self) -> &Metrics {
        &self.sink.metrics
    }

    /// Returns a buffer for a compressed response, which is decompressed later to read its usage.
    pub fn compressed_buffer(&self, dialect: ApiFormat, is_events: bool) -> CompressedResponse {
        self.sink.token_counter.buffer_compressed(dialect, is_events)
    }

    /// Closes the record. Always the last step of a request.
    pub fn close(mut self, outcome: Outcome) {
        if self.log.needs_charge_claim()
            && let Ok(runtime) = Handle::try_current()
        {
            self.mark_ended(outcome);
            // The client already has its response, so the claim is made in the background.
            runtime.spawn(async move {
                self.log.claim_charge().await;
                self.emit(outcome);
            });
            return;
        }
        self.emit(outcome);
    }

    /// Marks the request as no longer in flight, updates the metrics and returns the duration.
    fn mark_ended(&mut self, outcome: Outcome) -> Duration {
        if let Some((_, took)) = self.end {
            return took;
        }
        self.log.apply_form_fields();
        let took = self.started_at.elapsed();
        self.end = Some((outcome, took));
        let metrics = &self.sink.metrics;
        metrics.finish_request(self.log.status, took);
        match outcome {
            Outcome::Aborted => metrics.requests_aborted.add(1),
            Outcome::Truncated => metrics.responses_truncated.add(1),
            Outcome::Panicked => metrics.panics.add(1),
            Outcome::Complete | Outcome::Refused => (),
        }
        metrics.bytes_out.add(self.log.bytes_out);
        if self.log.dropped_names().is_some() {
            metrics.partly_translated.add(1);
        }
        took
    }

    fn emit(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        let took = self.mark_ended(outcome);
        self.log.billing.finalize();
        self.log.apply_deferred_charge();
        self.log.add_web_searches();
        let metrics = &self.sink.metrics;
        let cost = self.log.cost(self.created_at.as_secs());
        match &cost {
            Some(cost) => metrics.cost_nanodollars.add(cost.nanodollars),
            None => metrics.requests_unpriced.add(self.log.billing.usage.is_some().into()),
        }
        if let Some(usage) = &self.log.billing.usage {
            metrics.tokens_in.add(usage.total_input());
            metrics.tokens_out.add(usage.total_output());
            if usage.is_estimated {
                metrics.tokens_estimated.add(usage.total());
            }
        }
        if self.sink.should_record {
            self.sink.outbox.push_line(|lines| serialize::write_record(lines, self, cost.as_ref(), outcome, took));
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        if let Some((outcome, _)) = self.end {
            return self.emit(outcome);
        }
        let outcome = if std::thread::panicking() { Outcome::Panicked } else { Outcome::Aborted };
        if self.log.status == 0 {
            self.log.status = if outcome == Outcome::Panicked { 500 } else { STATUS_CLIENT_CLOSED_REQUEST };
        }
        self.emit(outcome);
    }
}

/// Returns the time since the Unix epoch.
pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns a version 7 UUID. It starts with the timestamp, so ids sort by arrival time.
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

    fn test_sink() -> Arc<RecordSink> {
        Arc::new(RecordSink::new(&Settings {
            control_socket: Some("/nonexistent".into()),
            sensitive_headers: vec!["X-Team".into()],
            headers_to_metadata: vec!["Authorization".into(), "x-team".into(), "X-User".into()],
            ..Settings::default()
        }))
    }

    fn test_head() -> Arc<RequestHead> {
        let fields = [
            ("authorization", "Bearer sk-1"),
            ("x-team", "red"),
            ("x-user", "ann"),
            ("x-gateway-config", r#"{"api_key":"sk-2"}"#),
            ("accept", "*/*"),
        ];
        Arc::new(RequestHead {
            method: "POST".into(),
            path: "/v1/x".into(),
            query: "key=sk-3&page=2".into(),
            headers: fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect(),
            ..RequestHead::default()
        })
    }

    fn read_lines(sink: &RecordSink) -> Vec<Value> {
        let taken = sink.outbox.take_pending().unwrap();
        taken
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    #[test]
    fn masks_possible_secrets_and_listed_headers() {
        let sink = test_sink();
        let mut record = Record::open(test_head(), Arc::clone(&sink));
        record.log.masked_headers = vec!["x-user".into()];
        record.close(Outcome::Complete);
        let text = String::from_utf8(sink.outbox.take_pending().unwrap()).unwrap();
        for secret in ["sk-1", "sk-2", "sk-3", "red", "ann"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
        assert!(text.contains(r#""accept":"*/*""#) && text.contains("page=2"));
    }

    #[test]
    fn dropped_request_writes_exactly_one_record() {
        let sink = test_sink();
        drop(Record::open(test_head(), Arc::clone(&sink)));
        let lines = read_lines(&sink);
        assert_eq!(lines.len(), 1);
        assert_eq!(
            (lines[0]["outcome"].as_str(), lines[0]["response_status_code"].as_u64()),
            (Some("aborted"), Some(499))
        );
    }

    #[test]
    fn ids_sort_by_time() {
        let (early, late) = (new_id(Duration::from_secs(1)), new_id(Duration::from_secs(2)));
        assert!(early < late);
        assert_eq!(early.get_version_num(), 7);
    }

    #[test]
    fn headers_that_may_hold_secrets_never_become_metadata() {
        assert_eq!(test_sink().metadata_headers, ["x-user"]);
    }
}
