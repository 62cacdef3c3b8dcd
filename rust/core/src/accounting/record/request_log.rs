//! What became known of a request on its way, for its record and for those who decide about it.

use std::{
    fmt::Write,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use penstock_llm::{
    api_format::{Drawn, Form},
    operation::Operation,
    translation::{Lost, Unsaid, is_talk},
    usage::{Mark, Usage, always_searches},
};

use super::{
    Payment, Sink,
    metadata::{self, Metadata},
};
use crate::{
    accounting::{prices::Cost, token_counting::Asked},
    auth::caller::Caller,
    ingress::headers::{Control, Head},
    resolve::{target::Target, target_resolver::Call},
    routing::decision::{CacheStatus, Decision},
    state::{shared::response_cache::Filling, snapshot::Snapshot},
};

/// So many steps of a decision fit into a header of an answer.
const EXPLAINED: usize = 24;

/// How much of a request is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Detail {
    #[default]
    Usual,
    /// What it took and came to, and nothing that was said.
    Figures,
}

/// So many events of a session are told.
const MOST_EVENTS: usize = 200;

/// By what a session is told afterwards.
#[derive(Debug, Default)]
pub struct Events {
    /// Each with how long after the request it came.
    pub told: Vec<(Duration, Mark)>,
    pub left_out: u64,
}

impl Events {
    pub fn add(&mut self, after: Duration, mark: Mark) {
        if self.told.len() < MOST_EVENTS {
            self.told.push((after, mark));
        } else {
            self.left_out += 1;
        }
    }
}

/// What became known of a request on its way.
#[derive(Debug, Default)]
pub struct Facts {
    pub operation: Option<Operation>,
    pub is_proxy: bool,
    pub provider: &'static str,
    pub model: String,
    /// What the provider calls the model that it is asked for, where requests call it otherwise.
    pub own_model: Option<String>,
    /// As the body names it.
    pub user: Option<String>,
    pub stream: bool,
    /// Names model and stream too, once it has passed so far.
    pub form: Option<Arc<Mutex<Form>>>,
    pub api_key_id: Option<String>,
    pub config: Option<String>,
    pub trace_id: Option<String>,
    pub span_id: Option<String>,
    pub span_name: Option<String>,
    pub parent_span_id: Option<String>,
    pub metadata: Metadata,
    pub masked: Vec<String>,
    pub detail: Detail,
    /// How long the recording lasts that it brings.
    pub recorded: Option<Duration>,
    pub status: u16,
    pub error: Option<&'static str>,
    /// What the provider could not be told of the request, as names.
    pub lost: Lost,
    /// What the caller could not be told of the answer; more may come while it is told.
    pub unsaid: Option<Unsaid>,
    /// What a stream says of its usage was asked for in the caller's name, and is not passed on.
    pub hides_usage: bool,
    /// While it may have to be counted.
    pub asked: Option<Asked>,
    /// What it used, and what that costs.
    pub paid: Payment,
    /// Of a session.
    pub events: Option<Box<Events>>,
    pub bytes_out: u64,
    /// From arrival to the head of the provider's answer.
    pub first_byte: Option<Duration>,
    /// What said which provider is meant, where nothing was decided on the way.
    pub named_by: Option<&'static str>,
    /// Where it was routed through a config that asks for more than one attempt at one target.
    pub decision: Option<Box<Decision>>,
    /// An answer that will be kept.
    pub filling: Option<Box<Filling>>,
    /// From the request's leaving to the head of the provider's answer.
    pub upstream: Option<Duration>,
}

impl Facts {
    /// What the request's own words tell.
    pub fn begin(&mut self, call: &Call<'_>, sink: &Sink) {
        let Call { route, control, head } = call;
        self.operation = Some(route.operation);
        self.is_proxy = route.operation == Operation::Proxy;
        self.masked = control
            .sensitive_headers
            .map(|names| names.split(',').map(|name| name.trim().to_ascii_lowercase()).collect())
            .unwrap_or_default();
        self.detail = if control.is_discreet() { Detail::Figures } else { Detail::Usual };
        self.recorded = control.audio_file_duration.filter(|_| call.asked_for().takes_recording()).and_then(lasting);
        self.follow(control, head);
        self.note(control, head, sink);
    }

    /// Who was admitted, and what is always said of their requests.
    pub fn called_by(&mut self, caller: &Caller<'_>, snapshot: &Snapshot) {
        if let Some(key) = caller.key {
            self.api_key_id = Some(key.id.to_string());
            snapshot.metadata(key).into_iter().for_each(|said| self.metadata.impose(said));
        }
        // A request may ask for less than its workspace, not for more.
        if snapshot.is_discreet(caller.workspace()) {
            self.detail = Detail::Figures;
        }
    }

    /// What the same request to another target knows as it begins.
    #[must_use]
    pub fn twin(&self) -> Self {
        Self {
            provider: self.provider,
            model: self.model.clone(),
            own_model: self.own_model.clone(),
            user: self.user.clone(),
            stream: self.stream,
            metadata: self.metadata.clone(),
            lost: self.lost.clone(),
            unsaid: self.unsaid.clone(),
            paid: self.paid.twin(),
            upstream: self.upstream,
            hides_usage: self.hides_usage,
            ..Self::default()
        }
    }

    /// Takes over what is true of the target that answered, and not of the request.
    pub fn adopt(&mut self, other: Self) {
        self.paid.adopt(other.paid);
        let Self { provider, model, own_model, stream, lost, unsaid, upstream, hides_usage, .. } = other;
        (self.provider, self.model, self.own_model) = (provider, model, own_model);
        (self.stream, self.upstream) = (stream, upstream);
        (self.lost, self.unsaid, self.hides_usage) = (lost, unsaid, hides_usage);
    }

    /// Which model is asked at a target, by its own name, and where its price is looked up.
    pub fn asked_of(&mut self, target: &Target<'_>, operation: Operation) {
        self.own_model = target.provider.model(&target.options).map(ToOwned::to_owned);
        if self.own_model.is_some() && self.paid.behind.is_none() {
            let meant = target.provider.meant(&target.options, &self.model);
            self.paid.behind = (meant != self.model_told()).then(|| meant.to_owned());
        }
        self.paid.tariff.own.clone_from(&target.priced);
        if operation.is_of_responses() {
            // It may be paid for later, when no model is named.
            self.paid.tariff.others = target.saved.and_then(|saved| saved.models.clone());
        }
    }

    /// What was found out at a target whose answer is not the one.
    pub fn forget_target(&mut self) {
        (self.own_model, self.paid.behind, self.upstream, self.unsaid) = (None, None, None, None);
        self.hides_usage = false;
        self.lost = Lost::default();
    }

    /// The model that answers, by its own name.
    pub fn model_told(&self) -> &str {
        self.own_model.as_deref().unwrap_or(&self.model)
    }

    /// Where the request stands in a trace: the gateway's own fields win over those of the W3C.
    fn follow(&mut self, control: &Control<'_>, head: &Head) {
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

    fn note(&mut self, control: &Control<'_>, head: &Head, sink: &Sink) {
        if let Some(json) = control.metadata {
            self.metadata = Metadata::read(json);
        }
        let listed = sink.noted.iter().filter(|name| !self.masked.contains(name));
        self.metadata.add_fields(&head.headers, listed);
        if let Some(session) = control.session {
            self.metadata.add(metadata::SESSION, session);
        }
        if control.has_baggage {
            self.metadata.add_baggage(&head.headers);
        }
    }

    /// A part of the answer, or all of it.
    pub fn fill(&mut self, bytes: &[u8]) {
        if let Some(filling) = &mut self.filling {
            filling.add(bytes);
        }
    }

    /// Whether an answer that was kept served.
    pub fn is_from_cache(&self) -> bool {
        self.decision.as_ref().is_some_and(|decision| decision.cache == CacheStatus::Hit)
    }

    /// Names of what got lost between two dialects, either way.
    pub fn not_translated(&self) -> Option<String> {
        self.unsaid.as_ref().and_then(|unsaid| unsaid.text(&self.lost))
    }

    /// What a provider said in its own dialect that the caller was told in another, which may have fewer words for it. Where
    /// somebody else began, only the caller's dialect has the sum.
    pub(crate) fn told_by_provider(&self) -> Option<Usage> {
        self.unsaid.as_ref().filter(|_| self.paid.spent.is_none())?.usage()
    }

    /// How often the model looks something up of itself for this chat, whoever's dialect it was asked in: no answer says so.
    pub fn own_searches(&self) -> u64 {
        let is_chat = self.operation.is_some_and(|one| is_talk(one) && one != Operation::CreateModelResponse);
        u64::from(is_chat && self.provider == "openai" && always_searches(self.model_told()))
    }

    /// Counts that, and what was looked up for what others began to answer.
    pub(crate) fn count_searches(&mut self) {
        let is_answered = (200..300).contains(&self.status);
        let (own, before) = (if is_answered { self.own_searches() } else { 0 }, self.paid.searched);
        if let Some(usage) = &mut self.paid.usage {
            usage.tools.web_searches = usage.tools.web_searches.max(own).saturating_add(before);
        }
    }

    /// Why it went where it went, in a line that a header can hold.
    pub fn explanation(&self) -> String {
        let decision = self.decision.as_ref();
        let steps = decision.map(|decision| decision.latest(EXPLAINED)).unwrap_or_default();
        let option = decision.map_or("config", |decision| &*decision.option);
        let target = decision.and_then(|decision| decision.target.as_ref());
        in_ascii(
            &serde_json::json!({"config": self.config, "option": option, "decisions": steps, "target": target})
                .to_string(),
        )
    }

    /// Whether it failed after all that the config allows on its way was tried: a client that sends it again only repeats that.
    pub fn is_spent(&self) -> bool {
        let is_ours = self.decision.as_ref().is_some_and(|decision| decision.is_persistent);
        is_ours && self.status >= 400 && self.error != Some("draining")
    }

    /// How many images an answer has, where it is about them.
    pub fn count_drawn(&mut self, answer: &[u8]) {
        if self.operation.is_some_and(Operation::draws) {
            self.paid.drawn = Drawn::of(answer);
        }
    }

    /// What it cost. Of what failed nothing was drawn.
    pub(crate) fn cost(&self, at: u64) -> Option<Cost> {
        if self.is_from_cache() {
            // It was paid for when it was made.
            return Some(Cost { nanodollars: 0, price_version: None });
        }
        let is_good = (200..300).contains(&self.status);
        self.paid.cost((self.provider, self.model_told()), at, is_good)
    }

    /// What the form has said so far.
    pub fn read_form(&mut self) {
        let Some(form) = &self.form else { return };
        let form = form.lock().unwrap_or_else(PoisonError::into_inner);
        self.stream = form.streams();
        if self.operation == Some(Operation::ImageEdit) {
            self.paid.drawing = Some(Box::new(form.drawing().clone()));
        }
        if let Some(model) = form.model().filter(|_| self.model.is_empty()) {
            model.clone_into(&mut self.model);
        }
    }
}

/// The same JSON, with all else than ASCII escaped.
fn in_ascii(json: &str) -> String {
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
fn lasting(milliseconds: &str) -> Option<Duration> {
    let seconds = milliseconds.parse::<f64>().ok()? / 1000.0;
    Duration::try_from_secs_f64(seconds).ok()
}
