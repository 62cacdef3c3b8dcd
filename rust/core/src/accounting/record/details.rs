//! Fields of a record that do not influence the request: who sent it, the attempts at providers, and where time went.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use penstock_net::headers::Headers;

use crate::{
    accounting::record::json_writer::{ObjectWriter, write_object},
    guardrails::results::SharedHookResults,
    ingress::message::RequestHead,
};

/// Maximum number of attempts that a record lists. Further ones are only counted in the routing decision.
const MAX_ATTEMPTS: usize = 64;
/// Maximum length of the recorded message of a provider's error.
const MAX_PROVIDER_MESSAGE_BYTES: usize = 512;
/// Response headers of the provider that are recorded. None of them can contain a credential.
const SHOWN_RESPONSE_HEADERS: [&str; 12] = [
    "apim-request-id",
    "cf-ray",
    "content-encoding",
    "content-type",
    "openai-model",
    "openai-processing-ms",
    "openai-version",
    "request-id",
    "retry-after",
    "server",
    "x-amzn-requestid",
    "x-request-id",
];
const SHOWN_RESPONSE_HEADER_PREFIXES: [&str; 2] = ["x-ratelimit-", "anthropic-ratelimit-"];
/// Headers with which SDKs describe themselves. Each row has the field of the record, the control header without its
/// prefix, and the header of the providers' SDKs.
const SDK_HEADERS: [(&str, &str, &str); 3] = [
    ("runtime", "runtime", "x-stainless-runtime"),
    ("runtime_version", "runtime-version", "x-stainless-runtime-version"),
    ("sdk_version", "package-version", "x-stainless-package-version"),
];
/// Maximum recorded length of the value of an SDK header.
const MAX_SDK_TEXT_BYTES: usize = 128;

/// Fields of a record that identify the caller.
#[derive(Debug, Clone, Default)]
pub struct RecordIdentity {
    pub organisation_id: Option<Arc<str>>,
    pub workspace_id: Option<Arc<str>>,
    pub workspace_slug: Option<Arc<str>>,
    pub api_key_name: Option<Box<str>>,
    /// User who owns the API key, or to whom the token was issued.
    pub user_id: Option<Arc<str>>,
}

/// Names under which records show a saved provider.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ProviderIdentity {
    pub slug: Box<str>,
    /// Id of the saved provider; `None` for a provider of the settings file.
    pub id: Option<Box<str>>,
    pub integration_id: Option<Box<str>>,
}

/// Names under which records show a saved config.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ConfigIdentity {
    pub slug: Box<str>,
    /// Id of the saved config; `None` for a config of the settings file.
    pub id: Option<Box<str>>,
    pub version_id: Option<Box<str>>,
}

/// Time spent on the translation of one response. Clones share one total, because a stream is translated while it is
/// delivered.
#[derive(Debug, Clone, Default)]
pub struct TranslationClock(Arc<AtomicU64>);

impl TranslationClock {
    /// Adds the time since `start`.
    pub fn add_since(&self, start: Instant) {
        self.0.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// One request to a provider.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub provider: &'static str,
    pub saved_provider: Option<Arc<ProviderIdentity>>,
    /// The provider's name of the model; empty if the request names none.
    pub model: Box<str>,
    /// Config path of the target; `None` if the config has only one target.
    pub target_path: Option<Arc<str>>,
    pub host: Arc<str>,
    pub status: Option<u16>,
    /// Time from the arrival of the client's request until this one was sent.
    pub start: Duration,
    pub duration: Duration,
    pub failure: Option<AttemptFailure>,
    /// Message of the provider's error; `None` if there is none, or if it may not be recorded.
    pub provider_message: Option<Box<str>>,
}

/// Why a request to a provider got no usable response.
#[derive(Debug, Clone)]
pub struct AttemptFailure {
    pub error_code: &'static str,
    /// Message of the network error; `None` if the message could contain text of the provider.
    pub reason: Option<Box<str>>,
}

/// Fields of one record that do not influence how the request is handled.
#[derive(Debug, Default)]
pub struct RecordDetails {
    pub identity: RecordIdentity,
    /// Saved config that applies.
    pub config: Option<Arc<ConfigIdentity>>,
    /// Saved provider of the target.
    pub saved_provider: Option<Arc<ProviderIdentity>>,
    /// Config path of the target to which requests are sent; `None` if the config has only one target.
    pub target_path: Option<Arc<str>>,
    pub attempts: Vec<Attempt>,
    pub response_headers: Option<Headers>,
    opened_at: Option<Instant>,
    /// Time from the arrival of the request until its body was read.
    parsing_time: Option<Duration>,
    /// Time from the end of parsing until the first request to a provider.
    pre_processing_time: Option<Duration>,
    pub cache_time: Option<Duration>,
    /// Time to authenticate the caller.
    pub authentication_time: Option<Duration>,
    /// Time to count the request in the limits that apply to its caller.
    pub limit_check_time: Option<Duration>,
    /// Set if the response is translated.
    pub translation_clock: Option<TranslationClock>,
    /// Results of guardrails, of the last target that has any.
    hook_results: Option<SharedHookResults>,
    /// True if `hook_results` are those of the current target.
    has_current_hooks: bool,
    /// Number of guardrail results when the end of the record is written. The end contains at least these results.
    recorded_hooks: usize,
    /// Counter of the requests that guardrails send to models. Created when a guardrail may send one.
    guardrail_questions: OnceLock<Arc<AtomicUsize>>,
}

impl RecordDetails {
    /// Returns the details of a request that has just arrived.
    pub fn open() -> Self {
        Self { opened_at: Some(Instant::now()), ..Self::default() }
    }

    /// Returns the initial details of a concurrent attempt.
    #[must_use]
    pub fn fork(&self) -> Self {
        let guardrail_questions = self.guardrail_questions.clone();
        let (saved_provider, opened_at) = (self.saved_provider.clone(), self.opened_at);
        let (hook_results, has_current_hooks) = (self.hook_results.clone(), self.has_current_hooks);
        Self { saved_provider, opened_at, hook_results, has_current_hooks, guardrail_questions, ..Self::default() }
    }

    /// Returns the counter of the requests that guardrails send to models. All targets of the request share it.
    pub fn guardrail_questions(&self) -> Arc<AtomicUsize> {
        Arc::clone(self.guardrail_questions.get_or_init(Arc::default))
    }

    /// Marks the next target as one without guardrails.
    pub fn begin_target(&mut self) {
        self.has_current_hooks = false;
    }

    /// Sets the results of the current target's guardrails.
    pub fn set_hook_results(&mut self, results: SharedHookResults) {
        (self.hook_results, self.has_current_hooks) = (Some(results), true);
    }

    /// Returns the results of guardrails, of the last target that has any.
    pub fn hook_results(&self) -> Option<&SharedHookResults> {
        self.hook_results.as_ref()
    }

    /// Returns the results of guardrails if they are those of the current target.
    pub fn current_hook_results(&self) -> Option<&SharedHookResults> {
        self.hook_results.as_ref().filter(|_| self.has_current_hooks)
    }

    /// Stores the current number of guardrail results, just before the end of the record is written.
    pub fn mark_hooks_recorded(&mut self) {
        self.recorded_hooks = self.hook_count();
    }

    /// Returns true if asynchronous hooks ended after the end of the record was written. Compares the numbers of
    /// results, because a hook may end between any two steps of the record.
    pub fn has_late_hooks(&self) -> bool {
        self.hook_count() > self.recorded_hooks
    }

    fn hook_count(&self) -> usize {
        self.hook_results.as_ref().map_or(0, |results| results.lock().len())
    }

    /// Takes from `other` the fields that describe the attempt that responded.
    pub fn adopt_attempt(&mut self, other: Self) {
        (self.saved_provider, self.translation_clock) = (other.saved_provider, other.translation_clock);
        (self.hook_results, self.has_current_hooks) = (other.hook_results, other.has_current_hooks);
        self.attempts.extend(other.attempts);
        self.attempts.truncate(MAX_ATTEMPTS);
    }

    /// Clears the fields that describe a target whose response is not used.
    pub fn clear_attempt(&mut self) {
        (self.saved_provider, self.translation_clock) = (None, None);
    }

    /// Returns the slug of the saved config.
    pub fn config_slug(&self) -> Option<&str> {
        self.config.as_ref().map(|config| &*config.slug)
    }

    /// Records that the request's body was read.
    pub fn mark_parsed(&mut self) {
        self.parsing_time = self.opened_at.map(|opened_at| opened_at.elapsed());
    }

    /// Records that a request is about to be sent to a provider.
    pub fn mark_sending(&mut self) {
        if let (Some(opened_at), None) = (self.opened_at, self.pre_processing_time) {
            self.pre_processing_time = Some(opened_at.elapsed().saturating_sub(self.parsing_time.unwrap_or_default()));
        }
    }

    /// Returns the time since the request arrived.
    pub fn elapsed(&self) -> Duration {
        self.opened_at.map_or(Duration::ZERO, |opened_at| opened_at.elapsed())
    }

    pub fn add_attempt(&mut self, attempt: Attempt) {
        if self.attempts.len() < MAX_ATTEMPTS {
            self.attempts.push(attempt);
        }
    }

    /// Records that the response to the last attempt broke off, or cannot be used.
    pub fn fail_last_attempt(&mut self, failure: AttemptFailure) {
        if let Some(attempt) = self.attempts.last_mut()
            && attempt.failure.is_none()
        {
            attempt.failure = Some(failure);
        }
    }

    /// Records the message of the provider's error. The response to the client has only that of the last attempt.
    /// Ignores the message if no attempt was added to the first `earlier_count`, because it belongs to none of them.
    pub fn describe_new_attempt(&mut self, earlier_count: usize, message: Box<str>) {
        let new_attempts = self.attempts.get_mut(earlier_count..).unwrap_or_default();
        if let Some(attempt) = new_attempts.last_mut() {
            attempt.provider_message = Some(message);
        }
    }

    /// Records the headers of the provider's response that may be shown.
    pub fn set_response_headers(&mut self, headers: &Headers) {
        let is_shown = |name: &[u8]| {
            SHOWN_RESPONSE_HEADERS.iter().any(|header| name.eq_ignore_ascii_case(header.as_bytes()))
                || SHOWN_RESPONSE_HEADER_PREFIXES.iter().any(|prefix| {
                    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
                })
        };
        self.response_headers = Some(headers.iter().filter(|(name, _)| is_shown(name)).collect());
    }

    /// Writes who sent the request, and which saved provider and config it uses.
    pub fn write_identity(&self, line: &mut ObjectWriter<'_>) {
        let RecordIdentity { organisation_id, workspace_id, workspace_slug, api_key_name, user_id } = &self.identity;
        line.optional_text("organisation_id", organisation_id.as_deref());
        line.optional_text("workspace_id", workspace_id.as_deref());
        line.optional_text("workspace_slug", workspace_slug.as_deref());
        line.optional_text("api_key_name", api_key_name.as_deref());
        line.optional_text("user_id", user_id.as_deref());
        if let Some(ProviderIdentity { slug, id, integration_id }) = self.saved_provider.as_deref() {
            line.text("virtual_key", slug);
            line.optional_text("provider_id", id.as_deref());
            line.optional_text("integration_id", integration_id.as_deref());
        }
        if let Some(ConfigIdentity { slug, id, version_id }) = self.config.as_deref() {
            line.text("config", slug);
            line.optional_text("config_id", id.as_deref());
            line.optional_text("config_version_id", version_id.as_deref());
        }
    }

    /// Writes where the time of the request went, in milliseconds. `until_response` is the time to the first byte of
    /// the response, or to the end of the request without one.
    pub fn write_timings(&self, line: &mut ObjectWriter<'_>, until_response: Duration) {
        let upstream: Duration = self.attempts.iter().map(|attempt| attempt.duration).sum();
        line.milliseconds("gateway_processing_time", until_response.saturating_sub(upstream));
        for (key, duration) in [
            ("request_parsing_time", self.parsing_time),
            ("pre_processing_time", self.pre_processing_time),
            ("response_parsing_time", self.translation_clock.as_ref().map(TranslationClock::total)),
            ("cache_processing_time", self.cache_time),
            ("authentication_time", self.authentication_time),
            ("limit_check_time", self.limit_check_time),
        ] {
            if let Some(duration) = duration {
                line.milliseconds(key, duration);
            }
        }
    }

    /// Writes the requests to providers.
    pub fn write_attempts(&self, line: &mut ObjectWriter<'_>) {
        if self.attempts.is_empty() {
            return;
        }
        line.list("attempts", &self.attempts, |out, attempt| {
            write_object(out, |fields| {
                fields.text("provider", attempt.provider);
                fields.optional_text("virtual_key", attempt.saved_provider.as_ref().map(|saved| &*saved.slug));
                fields.optional_text("model", Some(&*attempt.model).filter(|model| !model.is_empty()));
                fields.text("target", attempt.target_path.as_deref().unwrap_or("config"));
                fields.text("host", &attempt.host);
                if let Some(status) = attempt.status {
                    fields.number("status", status);
                }
                fields.milliseconds("start", attempt.start);
                fields.milliseconds("duration", attempt.duration);
                if let Some(failure) = &attempt.failure {
                    fields.text("error", failure.error_code);
                    fields.optional_text("reason", failure.reason.as_deref());
                } else {
                    fields.optional_text("reason", attempt.provider_message.as_deref());
                }
            });
        });
    }

    /// Writes the headers of the provider's response that may be shown.
    pub fn write_response_headers(&self, line: &mut ObjectWriter<'_>) {
        let Some(headers) = self.response_headers.as_ref().filter(|headers| !headers.is_empty()) else { return };
        line.object("response_headers", |fields| headers.iter().for_each(|(name, value)| fields.bytes(name, value)));
    }
}

/// Returns the message in a JSON error of any API format, cut to `MAX_PROVIDER_MESSAGE_BYTES`. Control characters
/// become spaces, because JSON needs six bytes for each of them.
pub fn find_error_message(body: &[u8]) -> Option<String> {
    let json: serde_json::Value = serde_json::from_slice(body).ok()?;
    let json = json.get(0).unwrap_or(&json);
    let fields = |json: &serde_json::Value| {
        let text = ["message", "Message", "error", "detail"].iter().find_map(|name| json.get(name)?.as_str());
        text.map(ToOwned::to_owned)
    };
    let message = json.get("error").and_then(fields).or_else(|| fields(json)).filter(|message| !message.is_empty())?;
    let excerpt = &message[..message.floor_char_boundary(MAX_PROVIDER_MESSAGE_BYTES)];
    Some(excerpt.replace(char::is_control, " "))
}

/// Writes which SDK the client uses.
pub fn write_sdk(line: &mut ObjectWriter<'_>, head: &RequestHead, control_prefixes: &[String]) {
    let find = |control: &str, general: &str| {
        head.headers.iter().find_map(|(name, value)| {
            let is_control = || {
                let rest = name.len().checked_sub(control.len()).map(|at| name.split_at(at));
                rest.is_some_and(|(prefix, rest)| {
                    rest == control.as_bytes()
                        && control_prefixes.iter().any(|name_prefix| name_prefix.as_bytes() == prefix)
                })
            };
            (name == general.as_bytes() || is_control()).then_some(value)
        })
    };
    for (key, control, general) in SDK_HEADERS {
        if let Some(text) = find(control, general).and_then(|value| str::from_utf8(value).ok()) {
            line.text(key, &text[..text.floor_char_boundary(MAX_SDK_TEXT_BYTES)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(status: u16) -> Attempt {
        Attempt {
            provider: "mock",
            saved_provider: None,
            model: "m".into(),
            target_path: None,
            host: "localhost".into(),
            status: Some(status),
            start: Duration::ZERO,
            duration: Duration::ZERO,
            failure: None,
            provider_message: None,
        }
    }

    #[test]
    fn messages_have_no_control_characters() {
        let body = serde_json::json!({"error": {"message": "\u{1}a\r\n\u{7f}b"}}).to_string();
        assert_eq!(find_error_message(body.as_bytes()).as_deref(), Some(" a   b"));
        let body = serde_json::json!({"message": "\u{1}".repeat(9999)}).to_string();
        assert_eq!(find_error_message(body.as_bytes()), Some(" ".repeat(MAX_PROVIDER_MESSAGE_BYTES)));
    }

    #[test]
    fn message_belongs_to_an_attempt_that_was_just_added() {
        let mut details = RecordDetails::default();
        details.describe_new_attempt(0, "nothing was sent".into());
        details.add_attempt(attempt(503));
        details.describe_new_attempt(0, "overloaded".into());
        details.describe_new_attempt(1, "nothing was sent".into());
        for count in 1..MAX_ATTEMPTS {
            assert_eq!(details.attempts.len(), count);
            details.add_attempt(attempt(500));
        }
        // The list now has `MAX_ATTEMPTS` attempts, so this one is not stored.
        details.add_attempt(attempt(429));
        details.describe_new_attempt(MAX_ATTEMPTS, "not in the list".into());
        let messages: Vec<_> =
            details.attempts.iter().filter_map(|attempt| attempt.provider_message.as_deref()).collect();
        assert_eq!(messages, ["overloaded"]);
        assert_eq!(details.attempts[0].provider_message.as_deref(), Some("overloaded"));
    }
}
