//! What became known of a request on its way, for its record and for those who decide about it.

use std::{
    fmt::Write,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use penstock_llm::{
    api_format::{FormScanner, ImageCounter},
    operation::Operation,
    translation::{DroppedFields, DroppedParams, is_chat_operation},
    usage::{SessionEvent, Usage, always_searches},
};

use super::{
    Billing, RecordSink,
    metadata::{self, Metadata},
};
use crate::{
    accounting::{prices::Cost, token_counting::CountInput},
    auth::caller::Caller,
    ingress::headers::{ControlHeaders, RequestHead},
    resolve::{target::Target, target_resolver::Call},
    routing::decision::{CacheStatus, RoutingDecision},
    state::{shared::response_cache::PendingCacheEntry, snapshot::Snapshot},
};

/// So many steps of a decision fit into a header of an answer.
const MAX_EXPLAINED_STEPS: usize = 24;

/// How much of a request is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Detail {
    #[default]
    Full,
    /// What it took and came to, and nothing that was said.
    MetricsOnly,
}

/// So many events of a session are told.
const MAX_EVENTS: usize = 200;

/// By what a session is told afterwards.
#[derive(Debug, Default)]
pub struct SessionEvents {
    /// Each with how long after the request it came.
    pub entries: Vec<(Duration, SessionEvent)>,
    pub dropped_count: u64,
}

impl SessionEvents {
    pub fn add(&mut self, after: Duration, mark: SessionEvent) {
        if self.entries.len() < MAX_EVENTS {
            self.entries.push((after, mark));
        } else {
            self.dropped_count += 1;
        }
    }
}

/// What became known of a request on its way.
#[derive(Debug, Default)]
pub struct RequestLog {
    pub operation: Option<Operation>,
    pub is_proxy: bool,
    pub provider: &'static str,
    pub model: String,
    /// What the provider calls the model that it is asked for, where requests call it otherwise.
    pub provider_model: Option<String>,
    /// As the body names it.
    pub user: Option<String>,
    pub is_streaming: bool,
    /// Names model and stream too, once it has passed so far.
    pub form: Option<Arc<Mutex<FormScanner>>>,
    pub api_key_id: Option<String>,
    pub config_slug: Option<String>,
    pub trace_id: Option<String>,
    pub span_id: Option<String>,
    pub span_name: Option<String>,
    pub parent_span_id: Option<String>,
    pub metadata: Metadata,
    pub masked_headers: Vec<String>,
    pub detail: Detail,
    /// How long the recording lasts that it brings.
    pub audio_duration: Option<Duration>,
    pub status: u16,
    pub error_code: Option<&'static str>,
    /// What the provider could not be told of the request, as names.
    pub dropped_params: DroppedParams,
    /// What the caller could not be told of the answer; more may come while it is told.
    pub dropped_fields: Option<DroppedFields>,
    /// What a stream says of its usage was asked for in the caller's name, and is not passed on.
    pub hides_usage: bool,
    /// While it may have to be counted.
    pub count_input: Option<CountInput>,
    /// What it used, and what that costs.
    pub billing: Billing,
    /// Of a session.
    pub events: Option<Box<SessionEvents>>,
    pub bytes_out: u64,
    /// From arrival to the head of the provider's answer.
    pub time_to_first_byte: Option<Duration>,
    /// What said which provider is meant, where nothing was decided on the way.
    pub provider_source: Option<&'static str>,
    /// Where it was routed through a config that asks for more than one attempt at one target.
    pub decision: Option<Box<RoutingDecision>>,
    /// An answer that will be kept.
    pub pending_cache_entry: Option<Box<PendingCacheEntry>>,
    /// From the request's leaving to the head of the provider's answer.
    pub upstream_latency: Option<Duration>,
}

impl RequestLog {
    /// What the request's own words tell.
    pub fn read_request(&mut self, call: &Call<'_>, sink: &RecordSink) {
        let Call { route, control, head } = call;
        self.operation = Some(route.operation);
        self.is_proxy = route.operation == Operation::Proxy;
        self.masked_headers = control
            .sensitive_headers
            .map(|names| names.split(',').map(|name| name.trim().to_ascii_lowercase()).collect())
            .unwrap_or_default();
        self.detail = if control.is_content_logging_disabled() { Detail::MetricsOnly } else { Detail::Full };
        self.audio_duration = control
            .audio_file_duration
            .filter(|_| call.requested_operation().has_audio_input())
            .and_then(parse_duration_ms);
        self.set_trace(control, head);
        self.set_metadata(control, head, sink);
    }

    /// Who was admitted, and what is always said of their requests.
    pub fn set_caller(&mut self, caller: &Caller<'_>, snapshot: &Snapshot) {
        if let Some(key) = caller.key {
            self.api_key_id = Some(key.id.to_string());
            snapshot.default_metadata(key).into_iter().for_each(|said| self.metadata.override_with(said));
        }
        // A request may ask for less than its workspace, not for more.
        if snapshot.is_metrics_only(caller.workspace()) {
            self.detail = Detail::MetricsOnly;
        }
    }

    /// What the same request to another target knows as it begins.
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
            dropped_fields: self.dropped_fields.clone(),
            billing: self.billing.fork(),
            upstream_latency: self.upstream_latency,
            hides_usage: self.hides_usage,
            ..Self::default()
        }
    }

    /// Takes over what is true of the target that answered, and not of the request.
    pub fn adopt_target(&mut self, other: Self) {
        self.billing.adopt_target(other.billing);
        let Self {
            provider,
            model,
            provider_model: own_model,
            is_streaming: stream,
            dropped_params: lost,
            dropped_fields: unsaid,
            upstream_latency: upstream,
            hides_usage,
            ..
        } = other;
        (self.provider, self.model, self.provider_model) = (provider, model, own_model);
        (self.is_streaming, self.upstream_latency) = (stream, upstream);
        (self.dropped_params, self.dropped_fields, self.hides_usage) = (lost, unsaid, hides_usage);
    }

    /// Which model is asked at a target, by its own name, and where its price is looked up.
    pub fn set_target(&mut self, target: &Target<'_>, operation: Operation) {
        self.provider_model = target.provider.model_from_options(&target.options).map(ToOwned::to_owned);
        if self.provider_model.is_some() && self.billing.backing_model.is_none() {
            let meant = target.provider.effective_model(&target.options, &self.model);
            self.billing.backing_model = (meant != self.resolved_model()).then(|| meant.to_owned());
        }
        self.billing.tariff.provider_pricing.clone_from(&target.price_overrides);
        if operation.returns_background_response() {
            // It may be paid for later, when no model is named.
            self.billing.tariff.saved_models = target.saved_provider.and_then(|saved| saved.models.clone());
        }
    }

    /// What was found out at a target whose answer is not the one.
    pub fn clear_target(&mut self) {
        (self.provider_model, self.billing.backing_model, self.upstream_latency, self.dropped_fields) =
            (None, None, None, None);
        self.hides_usage = false;
        self.dropped_params = DroppedParams::default();
    }

    /// The model that answers, by its own name.
    pub fn resolved_model(&self) -> &str {
        self.provider_model.as_deref().unwrap_or(&self.model)
    }

    /// Where the request stands in a trace: the gateway's own fields win over those of the W3C.
    fn set_trace(&mut self, control: &ControlHeaders<'_>, head: &RequestHead) {
        let own = |text: Option<&str>| text.map(ToOwned::to_owned);
        self.trace_id = own(control.trace_id);
        self.span_id = own(control.span_id);
        self.span_name = own(control.span_name);
        self.parent_span_id = own(control.parent_span_id);
        if let Some(trace) = &control.trace {
            self.trace_id.get_or_insert_with(|| trace.trace_id.to_owned());
            self.span_id.get_or_insert_with(|| trace.span_id());
            self.span_name.get_or_insert_with(|| format!("{} {}", head.method, head.path));
            self.parent_span_id.get_or_insert_with(|| trace.parent_id.to_owned());
        }
    }

    fn set_metadata(&mut self, control: &ControlHeaders<'_>, head: &RequestHead, sink: &RecordSink) {
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

    /// A part of the answer, or all of it.
    pub fn append_to_cache_entry(&mut self, bytes: &[u8]) {
        if let Some(filling) = &mut self.pending_cache_entry {
            filling.append(bytes);
        }
    }

    /// Whether an answer that was kept served.
    pub fn is_from_cache(&self) -> bool {
        self.decision.as_ref().is_some_and(|decision| decision.cache_status == CacheStatus::Hit)
    }

    /// Names of what got lost between two dialects, either way.
    pub fn dropped_names(&self) -> Option<String> {
        self.dropped_fields.as_ref().and_then(|unsaid| unsaid.header_value(&self.dropped_params))
    }

    /// What a provider said in its own dialect that the caller was told in another, which may have fewer words for it. Where
    /// somebody else began, only the caller's dialect has the sum.
    pub(crate) fn provider_usage(&self) -> Option<Usage> {
        self.dropped_fields.as_ref().filter(|_| self.billing.interrupted_usage.is_none())?.usage()
    }

    /// How often the model looks something up of itself for this chat, whoever's dialect it was asked in: no answer says so.
    pub fn implicit_searches(&self) -> u64 {
        let is_chat = self.operation.is_some_and(|one| is_chat_operation(one) && one != Operation::CreateModelResponse);
        u64::from(is_chat && self.provider == "openai" && always_searches(self.resolved_model()))
    }

    /// Counts that, and what was looked up for what others began to answer.
    pub(crate) fn add_web_searches(&mut self) {
        let is_answered = (200..300).contains(&self.status);
        let (own, before) = (if is_answered { self.implicit_searches() } else { 0 }, self.billing.interrupted_searches);
        if let Some(usage) = &mut self.billing.usage {
            usage.tool_uses.web_searches = usage.tool_uses.web_searches.max(own).saturating_add(before);
        }
    }

    /// Why it went where it went, in a line that a header can hold.
    pub fn explain_decision(&self) -> String {
        let decision = self.decision.as_ref();
        let steps = decision.map(|decision| decision.last_steps(MAX_EXPLAINED_STEPS)).unwrap_or_default();
        let option = decision.map_or("config", |decision| &*decision.selected_target);
        let target = decision.and_then(|decision| decision.target_report.as_ref());
        escape_non_ascii(
            &serde_json::json!({"config": self.config_slug, "option": option, "decisions": steps, "target": target})
                .to_string(),
        )
    }

    /// Whether it failed after all that the config allows on its way was tried: a client that sends it again only repeats that.
    pub fn has_exhausted_attempts(&self) -> bool {
        let is_ours = self.decision.as_ref().is_some_and(|decision| decision.has_retry_policy);
        is_ours && self.status >= 400 && self.error_code != Some("draining")
    }

    /// How many images an answer has, where it is about them.
    pub fn count_images(&mut self, answer: &[u8]) {
        if self.operation.is_some_and(Operation::generates_images) {
            self.billing.image_count = ImageCounter::count_images(answer);
        }
    }

    /// What it cost. Of what failed nothing was drawn.
    pub(crate) fn cost(&self, at: u64) -> Option<Cost> {
        if self.is_from_cache() {
            // It was paid for when it was made.
            return Some(Cost { nanodollars: 0, price_version: None });
        }
        let is_good = (200..300).contains(&self.status);
        self.billing.cost((self.provider, self.resolved_model()), at, is_good)
    }

    /// What the form has said so far.
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

/// The same JSON, with all else than ASCII escaped.
fn escape_non_ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        if letter.is_ascii() {
            text.push(letter);
        } else {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                // A String takes every write.
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
    text
}

/// A length of time in whole or broken milliseconds.
fn parse_duration_ms(milliseconds: &str) -> Option<Duration> {
    let seconds = milliseconds.parse::<f64>().ok()? / 1000.0;
    Duration::try_from_secs_f64(seconds).ok()
}
