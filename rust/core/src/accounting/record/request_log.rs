//! Fields of the request log. Collected while a request is processed, for its record and for later decisions about it.

use std::{
    fmt::Write,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use penstock_llm::{
    api_format::{ImageCounter, unfinished_response_id},
    catalog,
    http_form::form::FormScanner,
    operation::Operation,
    stream::session::SessionEvent,
    translation::{DroppedParams, ResponseReport},
    usage::{Usage, always_searches},
};

use super::{
    Billing, RecordSink,
    details::RecordDetails,
    metadata::{self, Metadata},
    recorded_bodies::RecordedBodies,
};
use crate::{
    accounting::{
        prices::Cost,
        record::deferred_billing::DeferredBilling,
        routing_decision::{CacheStatus, RoutingDecision},
        spool::SpoolEntry,
        token_counting::CountInput,
    },
    ingress::{control_headers::ControlHeaders, message::RequestHead},
    limits::{now_ms, request_holds::RequestHolds},
    state::shared::{pending_charges::PendingCharge, response_cache::PendingCacheEntry},
};

/// Maximum number of decision steps in the explanation header of a response.
const MAX_EXPLAINED_STEPS: usize = 24;

/// How much of a request is recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Detail {
    #[default]
    Full,
    /// Only figures such as status, duration, usage and cost. No headers.
    MetricsOnly,
}

/// Maximum number of events recorded per session.
const MAX_EVENTS: usize = 200;

/// Events of a WebSocket session for its record.
#[derive(Debug, Default)]
pub struct SessionEvents {
    /// Recorded events, each with the time since the request arrived.
    pub entries: Vec<(Duration, SessionEvent)>,
    pub dropped_count: u64,
}

impl SessionEvents {
    pub fn add(&mut self, after: Duration, event: SessionEvent) {
        if self.entries.len() < MAX_EVENTS {
            self.entries.push((after, event));
        } else {
            self.dropped_count += 1;
        }
    }
}

/// Fields of the request log, filled while the request is processed.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each flag is independent")]
pub struct RequestLog {
    pub operation: Option<Operation>,
    pub is_proxy: bool,
    pub provider: &'static str,
    pub model: String,
    /// The provider's own name of the model, if it differs from the name in the request.
    pub provider_model: Option<String>,
    /// Value of `user` in the request body.
    pub user: Option<String>,
    pub is_streaming: bool,
    /// Parser of a form body while it is uploaded. Yields `model` and `stream` once they have arrived.
    pub form: Option<Arc<Mutex<FormScanner>>>,
    /// Hash of the caller's workspace; 0 if the caller has none. `None` until the caller is authenticated or needs no
    /// key. The hash is the owner of the record in `Outbox`, whose memory workspaces share.
    pub admitted_workspace: Option<u64>,
    pub api_key_id: Option<String>,
    pub trace_id: Option<String>,
    pub span_id: Option<String>,
    pub span_name: Option<String>,
    pub parent_span_id: Option<String>,
    pub metadata: Metadata,
    pub masked_headers: Vec<String>,
    pub detail: Detail,
    /// Length of the audio recording in the request, as declared by the client.
    pub audio_duration: Option<Duration>,
    pub status: u16,
    pub error_code: Option<&'static str>,
    /// Request parameters that could not be translated to the provider's API.
    pub dropped_params: DroppedParams,
    /// Response fields that could not be translated to the client's API. More may be added while a stream is delivered.
    pub response_report: Option<ResponseReport>,
    /// True if the gateway requested the usage of a stream, and the client did not. The usage is removed from the
    /// stream.
    pub hides_usage: bool,
    /// True if a request was sent to the current target and has not failed. The provider bills it even if nobody waits
    /// for the end of its response.
    pub is_sent: bool,
    /// True if the last response of the current attempt was a failure, whose stored secrets are masked already.
    pub has_masked_failure: bool,
    /// Request body for token counting. Stored only while its tokens may have to be counted.
    pub count_input: Option<Arc<CountInput>>,
    /// Usage, and the values on which its cost depends.
    pub billing: Billing,
    /// Events of a WebSocket session.
    pub events: Option<Box<SessionEvents>>,
    pub bytes_out: u64,
    /// Time from the arrival of the request to the head of the provider's response.
    pub time_to_first_byte: Option<Duration>,
    /// Part of the request that named the provider, for example a header. Set only if no routing decision was needed.
    pub provider_source: Option<&'static str>,
    /// Routing decision. Set only if the config allows more than a single attempt at a single target.
    pub decision: Option<Box<RoutingDecision>>,
    /// Response that is being collected for the cache.
    pub pending_cache_entry: Option<Box<PendingCacheEntry>>,
    /// Time from sending the upstream request to the head of its response.
    pub upstream_latency: Option<Duration>,
    /// Entry in the spool; `None` without a spool, and for concurrent attempts.
    pub spool: Option<Arc<SpoolEntry>>,
    /// Bodies for the spool. They are collected until the response is delivered.
    pub bodies: RecordedBodies,
    /// Amounts of limits that the request has reserved. `None` if no limit can apply to it.
    pub limits: Option<Box<RequestHolds>>,
    /// Fields that do not influence how the request is handled.
    pub details: RecordDetails,
}

impl RequestLog {
    /// Returns the log of a request that has just arrived.
    pub(crate) fn open(spool: Option<Arc<SpoolEntry>>) -> Self {
        Self { spool, details: RecordDetails::open(), ..Self::default() }
    }

    /// Returns the initial log of the same request for another target, for example a hedged attempt.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            provider: self.provider,
            model: self.model.clone(),
            provider_model: self.provider_model.clone(),
            user: self.user.clone(),
            is_streaming: self.is_streaming,
            metadata: self.metadata.clone(),
            dropped_params: self.dropped_params.clone(),
            response_report: self.response_report.clone(),
            count_input: self.count_input.clone(),
            billing: self.billing.fork(),
            upstream_latency: self.upstream_latency,
            hides_usage: self.hides_usage,
            bodies: self.bodies.fork(),
            limits: self.limits.as_ref().map(|holds| Box::new(holds.fork())),
            details: self.details.fork(),
            ..Self::default()
        }
    }

    /// Takes over the fields of `other` that describe the target that responded. Fields of the request stay unchanged.
    pub fn adopt_target(&mut self, other: Self) {
        self.billing.adopt_target(other.billing);
        let Self {
            provider,
            model,
            provider_model: own_model,
            is_streaming: stream,
            dropped_params: dropped,
            response_report,
            upstream_latency: upstream,
            hides_usage,
            bodies,
            details,
            limits,
            is_sent,
            ..
        } = other;
        self.is_sent = is_sent;
        match (&mut self.limits, limits) {
            (Some(own), Some(limits)) => own.adopt_target(*limits, now_ms()),
            (own @ None, limits) => *own = limits,
            (Some(_), None) => (),
        }
        self.details.adopt_target(details);
        self.bodies.adopt_target(bodies);
        (self.provider, self.model, self.provider_model) = (provider, model, own_model);
        (self.is_streaming, self.upstream_latency) = (stream, upstream);
        (self.dropped_params, self.response_report, self.hides_usage) = (dropped, response_report, hides_usage);
    }

    /// Marks the next target as one whose request no guardrail has checked.
    pub fn begin_target(&mut self) {
        self.bodies.begin_target();
        self.details.begin_target();
    }

    /// Clears the fields that were recorded for a target whose response is not used.
    pub fn clear_target(&mut self) {
        (self.provider_model, self.billing.backing_model, self.upstream_latency, self.response_report) =
            (None, None, None, None);
        (self.hides_usage, self.is_sent) = (false, false);
        self.bodies.clear_target();
        self.details.clear_target();
        self.dropped_params = DroppedParams::default();
    }

    /// Returns the provider's name of the model, or the requested name if they are the same.
    pub fn resolved_model(&self) -> &str {
        self.provider_model.as_deref().unwrap_or(&self.model)
    }

    /// Sets the trace fields. The gateway's own headers take precedence over W3C `traceparent`.
    pub(crate) fn set_trace(&mut self, control: &ControlHeaders<'_>, head: &RequestHead) {
        let copy = |text: Option<&str>| text.map(ToOwned::to_owned);
        self.trace_id = copy(control.trace_id);
        self.span_id = copy(control.span_id);
        self.span_name = copy(control.span_name);
        self.parent_span_id = copy(control.parent_span_id);
        if let Some(trace) = &control.trace {
            self.trace_id.get_or_insert_with(|| trace.trace_id.to_owned());
            self.span_id.get_or_insert_with(|| trace.span_id());
            self.span_name.get_or_insert_with(|| format!("{} {}", head.method, head.path));
            self.parent_span_id.get_or_insert_with(|| trace.parent_id.to_owned());
        }
    }

    pub(crate) fn set_metadata(&mut self, control: &ControlHeaders<'_>, head: &RequestHead, sink: &RecordSink) {
        if let Some(json) = control.metadata {
            self.metadata = Metadata::parse(json);
        }
        let listed = sink.metadata_headers.iter().filter(|name| !self.masked_headers.contains(name));
        self.metadata.add_headers(&head.headers, listed);
        if let Some(session) = control.session_id {
            self.metadata.add_if_absent(metadata::SESSION_KEY, session);
        }
        if control.has_baggage {
            self.metadata.add_baggage(&head.headers);
        }
    }

    /// Appends response bytes to the pending cache entry, if there is one.
    pub fn append_to_cache_entry(&mut self, bytes: &[u8]) {
        if let Some(cache_entry) = &mut self.pending_cache_entry {
            cache_entry.append(bytes);
        }
    }

    /// Returns true if the response was a cache hit.
    pub fn is_from_cache(&self) -> bool {
        self.decision.as_ref().is_some_and(|decision| decision.cache_status == CacheStatus::Hit)
    }

    /// Returns the names of request parameters and response fields that were dropped in translation.
    pub fn dropped_names(&self) -> Option<String> {
        self.response_report.as_ref().and_then(|fields| fields.header_value(&self.dropped_params))
    }

    /// Returns the usage from the provider's response, which may have more detail than the translated response. `None`
    /// if another target started the stream: then only the translated response has the total.
    pub(crate) fn provider_usage(&self) -> Option<Usage> {
        self.response_report.as_ref().filter(|_| self.billing.interrupted_usage.is_none())?.usage()
    }

    /// Returns the number of web searches that the model always makes for a chat, whatever the client's format.
    /// Responses do not report them.
    pub fn implicit_searches(&self) -> u64 {
        let is_chat =
            self.operation.is_some_and(|operation| operation.is_chat() && operation != Operation::CreateModelResponse);
        let hides_searches =
            || catalog::find_provider(self.provider).is_some_and(|provider| provider.row().hides_searches);
        u64::from(is_chat && always_searches(self.resolved_model()) && hides_searches())
    }

    /// Adds implicit web searches, and those of interrupted streams, to the usage.
    pub(crate) fn add_web_searches(&mut self) {
        let is_answered = (200..300).contains(&self.status);
        let (searches, before) =
            (if is_answered { self.implicit_searches() } else { 0 }, self.billing.interrupted_searches);
        if let Some(usage) = &mut self.billing.usage {
            usage.tool_uses.web_searches = usage.tool_uses.web_searches.max(searches).saturating_add(before);
        }
    }

    /// Returns a one-line JSON explanation of the routing decision that fits in a header.
    pub fn explain_decision(&self) -> String {
        let decision = self.decision.as_ref();
        let steps = decision.map(|decision| decision.last_steps(MAX_EXPLAINED_STEPS)).unwrap_or_default();
        let option = decision.map_or("config", |decision| &*decision.selected_target);
        let target = decision.and_then(|decision| decision.target_report.as_ref());
        escape_non_ascii(
            &serde_json::json!({"config": self.details.config_slug(), "option": option, "decisions": steps, "target": target})
                .to_string(),
        )
    }

    /// Returns true if the request failed after every attempt that the config allows. A retry by the client would only
    /// repeat them.
    pub fn has_exhausted_attempts(&self) -> bool {
        let retries_itself = self.decision.as_ref().is_some_and(|decision| decision.has_retry_policy);
        retries_itself && self.status >= 400 && self.error_code != Some("draining")
    }

    /// Counts the images of a response, if the operation creates images.
    pub fn count_images(&mut self, response: &[u8]) {
        if self.operation.is_some_and(Operation::generates_images) {
            self.billing.image_count = ImageCounter::count_images(response);
        }
    }

    /// Returns the cost of the request. A failed request is not charged for images.
    pub(crate) fn cost(&self, at: u64) -> Option<Cost> {
        if self.is_from_cache() {
            // A cache hit costs nothing: the original request was charged.
            return Some(Cost { nanodollars: 0, price_version: None });
        }
        let is_good = (200..300).contains(&self.status);
        self.billing.cost(self.provider, self.resolved_model(), at, is_good)
    }

    /// Copies the fields that the form parser has read so far.
    pub fn apply_form_fields(&mut self) {
        let Some(form) = &self.form else { return };
        let form = form.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_streaming = form.is_streaming();
        if self.operation == Some(Operation::ImageEdit) {
            self.billing.image_params = Some(Box::new(form.image_params().clone()));
        }
        if let Some(model) = form.model().filter(|_| self.model.is_empty()) {
            model.clone_into(&mut self.model);
        }
    }
}

/// Escapes all non-ASCII characters of a JSON text.
fn escape_non_ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        if letter.is_ascii() {
            text.push(letter);
        } else {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                // Writing to a `String` cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
    text
}

/// Parses a duration in milliseconds, which may have a fraction.
pub(crate) fn parse_duration_ms(milliseconds: &str) -> Option<Duration> {
    let seconds = milliseconds.parse::<f64>().ok()? / 1000.0;
    Duration::try_from_secs_f64(seconds).ok()
}

impl RequestLog {
    /// Defers the charge if the response body reports that the response is still in progress. Returns true if it was
    /// deferred.
    pub fn defer_charge_if_in_progress(&self, response: &[u8]) -> bool {
        matches!(self.billing.deferred_billing, Some(DeferredBilling::MayStart(_)))
            && unfinished_response_id(response).is_some_and(|id| self.defer_charge(&id))
    }

    /// Defers the charge of the response with this id, which continues after its stream has ended. Returns true if it
    /// was deferred.
    pub fn defer_charge(&self, id: &str) -> bool {
        let Some(DeferredBilling::MayStart(charges)) = &self.billing.deferred_billing else { return false };
        charges.add(self.provider, id, &self.model, self.provider_model.as_deref());
        true
    }

    /// Returns true if another worker may charge the same response at this moment.
    pub(crate) fn must_claim_charge(&self) -> bool {
        let Some(DeferredBilling::Existing(Some(charge))) = &self.billing.deferred_billing else { return false };
        self.billing.usage.is_some() && charge.is_shared()
    }

    /// Claims the charge. Drops it if another worker claimed it first.
    pub(crate) async fn claim_charge(&mut self) {
        if let Some(DeferredBilling::Existing(charge)) = &mut self.billing.deferred_billing
            && let Some(owed) = charge.as_mut()
            && !owed.claim_first_payment().await
        {
            *charge = None;
        }
    }

    /// Charges the usage to this request at the price of the model of the original request. Clears the usage if it was
    /// already charged.
    pub(crate) fn apply_deferred_charge(&mut self) {
        let Some(DeferredBilling::Existing(charge)) = self.billing.deferred_billing.take() else { return };
        let Some((model, provider_model)) =
            charge.filter(|_| self.billing.usage.is_some()).and_then(PendingCharge::take_models)
        else {
            self.billing.usage = None;
            return;
        };
        self.billing.tariff = self.billing.tariff.for_other_model(&model);
        (self.model, self.provider_model) = (model, provider_model);
    }
}
