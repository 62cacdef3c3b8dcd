//! Request record. Opened when a request arrives and closed exactly once, whatever the outcome.

pub mod batch_records;
pub(crate) mod charges;
pub(crate) mod deferred_billing;
pub mod details;
pub(crate) mod json_writer;
pub mod masking;
pub mod metadata;
pub mod outbox;
pub(crate) mod recorded_bodies;
pub(crate) mod request_log;
pub(crate) mod serialize;
pub(crate) mod spooling;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use penstock_llm::{api_format::ApiFormat, stream::session::SessionEvent, usage::Usage};
use tokio::{runtime::Handle, time::timeout};
use uuid::{Builder, Uuid};

pub use crate::accounting::record::charges::{Billing, SessionUsage};
pub use crate::accounting::record::deferred_billing::DeferredBilling;
pub use crate::accounting::record::request_log::{Detail, RequestLog, SessionEvents};

use outbox::Outbox;

use crate::{
    accounting::{
        compressed_response::CompressedResponse,
        prices::Cost,
        spool::{Source, Spool, SpoolEntry},
        token_counting::{CountableResponse, TokenCounter},
    },
    guardrails::results::SharedHookResults,
    ingress::message::{RecordFigures, RequestHead},
    limits::{now_ms, request_holds::RequestUsage},
    process::{metrics::Metrics, secret::is_secret_name, settings::Settings},
};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    /// The gateway rejected the request with an error of its own.
    Refused,
    /// The gateway responded with an error of its own, because the provider sent no usable response.
    Failed,
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
            Self::Failed => "failed",
            Self::Aborted => "aborted",
            Self::Truncated => "cut",
            Self::Panicked => "panicked",
        }
    }
}

/// States if an amendment follows the end of a record, because not all of its fields are known yet.
#[derive(Clone, Copy)]
enum AmendmentStatus {
    None,
    Follows,
}

/// Maximum bytes of the records of requests without a valid key that wait in memory.
const REFUSED_OUTBOX_BYTES: usize = 512 * 1024;

/// Destination of records, shared by all requests of a worker.
pub struct RecordSink {
    pub outbox: Outbox,
    /// Records of requests without a valid key. Small, so that they cannot displace others.
    pub refused_outbox: Outbox,
    /// Spool that takes the place of the outboxes, if the settings name a folder for it.
    pub spool: Option<Arc<Spool>>,
    pub metrics: Metrics,
    pub token_counter: TokenCounter,
    pub worker: u32,
    pub should_record: bool,
    pub records_peers: bool,
    /// Lower-case names of headers that are masked in addition to the built-in ones.
    pub sensitive_headers: Vec<String>,
    /// Prefixes of control headers.
    pub control_prefixes: Vec<String>,
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
            refused_outbox: Outbox::new(REFUSED_OUTBOX_BYTES),
            spool: Spool::from_settings(settings).map(Arc::new),
            metrics: Metrics::default(),
            token_counter: TokenCounter::default(),
            worker: settings.worker,
            should_record: settings.records && (settings.control_socket.is_some() || settings.spool_path.is_some()),
            records_peers: settings.record_peers,
            sensitive_headers,
            control_prefixes: ["x-gateway-"]
                .into_iter()
                .map(Into::into)
                .chain(settings.header_aliases.clone())
                .collect(),
            metadata_headers,
        }
    }
}

impl RecordSink {
    /// Returns the spool if records must be on the disk before the client has the complete response.
    pub fn durable_spool(&self) -> Option<&Arc<Spool>> {
        self.spool.as_ref().filter(|spool| spool.is_durable())
    }
}

pub struct Record {
    pub id: Uuid,
    pub log: Box<RequestLog>,
    pub(crate) head: Arc<RequestHead>,
    pub(crate) sink: Arc<RecordSink>,
    pub(crate) created_at: Duration,
    started_at: Instant,
    /// Outcome and duration of the request, once it has ended. Its record may still be open.
    end: Option<(Outcome, Duration)>,
    /// True if the end of the record is in the spool already, so that only an amendment may follow.
    is_end_written: bool,
    is_closed: bool,
}

/// Maximum time that a record waits for asynchronous guardrails.
const MAX_HOOK_WAIT: Duration = Duration::from_secs(30);
/// Status recorded if the client disconnects before a response, as in nginx.
const STATUS_CLIENT_CLOSED_REQUEST: u16 = 499;

impl Record {
    pub fn open(head: Arc<RequestHead>, sink: Arc<RecordSink>) -> Self {
        sink.metrics.start_request();
        let created_at = unix_time();
        let id = new_id(created_at);
        let spool = sink.spool.as_ref().map(|spool| Arc::new(SpoolEntry::new(Arc::clone(spool), id, created_at)));
        Self {
            id,
            log: Box::new(RequestLog::open(spool)),
            head,
            sink,
            created_at,
            started_at: Instant::now(),
            end: None,
            is_end_written: false,
            is_closed: false,
        }
    }

    /// Opens the record of a request that was executed outside the gateway. Its duration is unknown and recorded as
    /// zero.
    pub fn for_external_request(id: Uuid, created_at: Duration, head: Arc<RequestHead>, sink: Arc<RecordSink>) -> Self {
        let end = Some((Outcome::Complete, Duration::ZERO));
        let log = Box::new(RequestLog { admitted_workspace: Some(0), ..RequestLog::default() });
        Self {
            id,
            log,
            head,
            sink,
            created_at,
            started_at: Instant::now(),
            end,
            is_end_written: false,
            is_closed: false,
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// Returns the spool if the client must not get the end of its response before the record is on the disk.
    pub fn durable_spool(&self) -> Option<&Arc<Spool>> {
        self.sink.durable_spool()
    }

    /// Records a stream chunk that was sent to the client.
    pub fn record_chunk(&mut self, chunk: &[u8]) {
        self.log.bytes_out += chunk.len() as u64;
        self.log.append_to_cache_entry(chunk);
        self.record_delivered_chunk(chunk);
        self.sink.metrics.stream_chunks.add(1);
    }

    /// Records a WebSocket message that was sent to the client.
    pub fn record_message(&mut self, bytes: u64) {
        self.log.bytes_out += bytes;
        self.sink.metrics.stream_chunks.add(1);
    }

    /// Adds a session event to the record, if there is one.
    pub fn add_event(&mut self, event: Option<SessionEvent>) {
        let Some(event) = event else { return };
        let after = self.started_at.elapsed();
        self.log.events.get_or_insert_default().add(after, event);
    }

    /// Finishes a request whose response did not come to its end, because the client or a timeout ended it. The provider
    /// bills the request if it was sent, so its input is counted.
    pub fn finish_unanswered(self, outcome: Outcome) {
        if self.log.is_sent && self.log.count_input.is_some() {
            self.finish_counted(None, Some(CountableResponse::ByteLength(0)), outcome, true);
        } else {
            self.close(outcome);
        }
    }

    /// Moves the record out of this one, which then writes nothing.
    fn take(&mut self) -> Self {
        self.is_closed = true;
        Self {
            log: std::mem::take(&mut self.log),
            head: Arc::clone(&self.head),
            sink: Arc::clone(&self.sink),
            is_closed: false,
            ..*self
        }
    }

    /// Finishes a request that got a response. If the usage is unknown, the record closes after the tokens are counted.
    pub fn finish(self, usage: Option<Usage>, countable_response: Option<CountableResponse>, outcome: Outcome) {
        let is_countable = (200..300).contains(&self.log.status);
        self.finish_counted(usage, countable_response, outcome, is_countable);
    }

    /// Finishes a request as `finish` does. With `is_countable`, counts the tokens if the usage is unknown.
    fn finish_counted(
        mut self,
        usage: Option<Usage>,
        countable_response: Option<CountableResponse>,
        outcome: Outcome,
        is_countable: bool,
    ) {
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
        let cache_entry = self.log.pending_cache_entry.take();
        // A stream that failed a guardrail at its end has status 200, but no other client may get it. Nor may another
        // client get a response that a guardrail could not check.
        let is_checked = self.log.details.current_hook_results().is_none_or(|results| {
            let results = results.lock();
            !results.has_failed() && results.was_fully_checked()
        });
        if let (Some(cache_entry), Outcome::Complete, None, true) =
            (cache_entry, outcome, self.log.error_code, is_checked)
        {
            cache_entry.store();
        }
        if let (None, Some(CountableResponse::Complete(response))) = (&usage, &countable_response)
            && self.log.defer_charge_if_in_progress(response)
        {
            return self.close(outcome);
        }
        match (usage, self.log.count_input.take(), countable_response) {
            (None, count_input, Some(countable_response))
                if is_countable
                    && (count_input.is_some() || matches!(countable_response, CountableResponse::Compressed(_))) =>
            {
                self.write_end_early(outcome);
                let sink = Arc::clone(&self.sink);
                // Waits for guardrails here, because the counting thread must not wait.
                match (self.waiting_hooks(), Handle::try_current()) {
                    (Some(hooks), Ok(runtime)) => drop(runtime.spawn(async move {
                        wait_for_hooks(hooks).await;
                        sink.token_counter.submit(self, count_input, countable_response);
                    })),
                    _ => sink.token_counter.submit(self, count_input, countable_response),
                }
            }
            _ => self.close(outcome),
        }
    }

    pub fn metrics(&self) -> &Metrics {
        &self.sink.metrics
    }

    /// Returns a buffer for a compressed response, which is decompressed later to read its usage.
    pub fn compressed_buffer(&self, api_format: ApiFormat, is_events: bool) -> CompressedResponse {
        self.sink.token_counter.buffer_compressed(api_format, is_events)
    }

    /// Closes the record. Always the last step of a request.
    pub fn close(mut self, outcome: Outcome) {
        let hooks = self.waiting_hooks();
        if (self.log.must_claim_charge() || hooks.is_some())
            && let Ok(runtime) = Handle::try_current()
        {
            self.write_end_early(outcome);
            // Runs in the background, so that the client does not wait for it.
            runtime.spawn(async move {
                if self.log.must_claim_charge() {
                    self.log.claim_charge().await;
                }
                if let Some(hooks) = hooks {
                    wait_for_hooks(hooks).await;
                }
                self.emit(outcome);
            });
            return;
        }
        self.emit(outcome);
    }

    /// Returns the results of guardrails if asynchronous ones still run.
    fn waiting_hooks(&self) -> Option<SharedHookResults> {
        self.log.details.hook_results().filter(|results| results.is_waiting()).cloned()
    }

    /// Marks the request as no longer in flight, updates the metrics and returns the duration.
    fn mark_ended(&mut self, outcome: Outcome) -> Duration {
        if let Some((_, took)) = self.end {
            return took;
        }
        self.log.apply_form_fields();
        self.log.bodies.record_client_request();
        let took = self.started_at.elapsed();
        self.end = Some((outcome, took));
        let metrics = &self.sink.metrics;
        metrics.finish_request(self.log.status, took);
        match outcome {
            Outcome::Aborted => metrics.requests_aborted.add(1),
            Outcome::Truncated => metrics.responses_truncated.add(1),
            Outcome::Panicked => metrics.panics.add(1),
            Outcome::Complete | Outcome::Refused | Outcome::Failed => (),
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
        if let Some(observer) = &self.head.observer {
            let tokens = self.log.billing.usage.as_ref().map(|usage| (usage.total_input(), usage.total_output()));
            let nanodollars = cost.as_ref().map(|cost| cost.nanodollars);
            observer.report(RecordFigures { id: self.id, took, nanodollars, tokens });
        }
        if self.sink.should_record {
            self.write(cost.as_ref(), outcome, took, AmendmentStatus::None);
        }
        let usage = self.limit_usage(cost.as_ref());
        if let Some(holds) = &mut self.log.limits {
            holds.settle(usage, now_ms());
        }
    }

    /// Returns the usage of the request until now, for its limits.
    pub(crate) fn usage_so_far(&self) -> RequestUsage {
        self.limit_usage(self.log.cost(self.created_at.as_secs()).as_ref())
    }

    fn limit_usage(&self, cost: Option<&Cost>) -> RequestUsage {
        let tokens = self.log.billing.usage.as_ref().map_or(0, Usage::total);
        RequestUsage { requests: 1, tokens, nanodollars: cost.map_or(0, |cost| cost.nanodollars) }
    }

    /// Writes the end of the record to the spool before its usage is known. The client is about to receive the last
    /// part of the response, so this cannot wait. An amendment follows.
    fn write_end_early(&mut self, outcome: Outcome) {
        let took = self.mark_ended(outcome);
        if self.log.spool.is_none() || !self.sink.should_record || self.is_end_written {
            return;
        }
        self.log.details.mark_hooks_recorded();
        // The usage is left out, because it may still be replaced, or charged to another record.
        let usage = self.log.billing.usage.take();
        self.write(None, outcome, took, AmendmentStatus::Follows);
        self.log.billing.usage = usage;
        self.is_end_written = true;
    }

    /// Writes the record, or its amendment, to the spool; without a spool to the outbox.
    fn write(&self, cost: Option<&Cost>, outcome: Outcome, took: Duration, amendment: AmendmentStatus) {
        let log = &self.log;
        let source = log.admitted_workspace.map_or(Source::Refused, Source::Admitted);
        match (&log.spool, log.admitted_workspace) {
            (Some(entry), _) if self.is_end_written => {
                if log.billing.usage.is_some() || cost.is_some() || log.details.has_late_hooks() {
                    let shows_data = entry.keeps_bodies();
                    entry.amend(source, |out| serialize::write_amendment(out, self, cost, shows_data));
                }
            }
            (Some(entry), Some(_)) => {
                let is_off = log.detail == Detail::MetricsOnly;
                let write = |out: &mut _, bodies| {
                    serialize::write_record(out, self, cost, outcome, took, Some(bodies));
                };
                match amendment {
                    AmendmentStatus::None => entry.end(source, is_off, write),
                    AmendmentStatus::Follows => entry.end_early(source, is_off, write),
                }
            }
            (Some(entry), None) => {
                entry.end(source, true, |out, _| serialize::write_refused_record(out, self, outcome, took));
            }
            (None, Some(workspace)) => {
                let write = |lines: &mut _| serialize::write_record(lines, self, cost, outcome, took, None);
                self.sink.outbox.push_line(workspace, write);
            }
            (None, None) => {
                let write = |lines: &mut _| serialize::write_refused_record(lines, self, outcome, took);
                self.sink.refused_outbox.push_line(0, write);
            }
        }
    }
}

/// Waits for asynchronous guardrails, at most `MAX_HOOK_WAIT`. The record lacks results that come later.
async fn wait_for_hooks(hooks: SharedHookResults) {
    drop(timeout(MAX_HOOK_WAIT, hooks.wait_until_complete()).await);
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
        if outcome == Outcome::Aborted && self.log.is_sent && self.log.count_input.is_some() {
            return self.take().finish_unanswered(outcome);
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
    use std::{fs, path::Path};

    use serde_json::Value;

    use super::*;
    use crate::{
        accounting::spool::frame::{FrameReader, read_segment_header},
        guardrails::{checks::Stage, results::HookResult},
    };

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
        let pending = sink.refused_outbox.take_pending().unwrap();
        pending
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    #[test]
    fn masks_possible_secrets_and_listed_headers() {
        let sink = test_sink();
        let mut record = Record::open(test_head(), Arc::clone(&sink));
        record.log.admitted_workspace = Some(0);
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

    /// Returns the last frame of the only segment below a folder.
    fn read_last_frame(folder: &Path) -> Value {
        let entries = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files = entries(folder).flat_map(|writer| entries(&writer).collect::<Vec<_>>());
        let data = fs::read(files.find(|path| path.extension().is_some_and(|kind| kind == "seg")).unwrap()).unwrap();
        let (_, start) = read_segment_header(&data).unwrap();
        serde_json::from_slice(FrameReader::new(&data, start).last().unwrap().payload).unwrap()
    }

    fn late_result() -> HookResult {
        HookResult {
            id: "late".into(),
            kind: "guardrail",
            skipped: None,
            verdict: true,
            is_async: true,
            denies: false,
            is_soft: false,
            is_transformed: false,
            would_deny: None,
            checks: Vec::new(),
            feedback: None,
            milliseconds: 0,
            created_at: String::new(),
        }
    }

    #[tokio::test]
    async fn hook_that_ends_right_after_the_record_is_in_the_amendment() {
        let folder = std::env::temp_dir().join(format!("penstock-late-hook-{:016x}", fastrand::u64(..)));
        let path = Some(folder.to_str().unwrap().to_owned());
        let sink = Arc::new(RecordSink::new(&Settings { spool_path: path, ..Settings::default() }));
        let mut record = Record::open(test_head(), sink);
        record.log.admitted_workspace = Some(0);
        record.log.details.identity.organisation_id = Some("org".into());
        record.log.trace_id = Some("trace".into());
        let results = SharedHookResults::default();
        record.log.details.set_hook_results(results.clone());
        let group = results.begin_group();
        record.write_end_early(Outcome::Complete);
        results.lock().add(Stage::Input, vec![late_result()]);
        // No hook runs any more when the record is closed.
        drop(group);
        record.close(Outcome::Complete);
        let amended = read_last_frame(&folder);
        assert_eq!(amended["hook_results"]["before_request_hooks"][0]["id"], "late");
        for name in ["organisation_id", "trace_id", "created_at"] {
            assert!(amended[name].is_string(), "{name} in {amended}");
        }
        fs::remove_dir_all(folder).unwrap();
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
