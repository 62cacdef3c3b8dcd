//! Results of hooks, as clients and logs see them.

use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};
use tokio::sync::Notify;

use super::check::{CheckError, Stage};

/// Checks that only add something to a body when they change it.
const ADDING_CHECKS: [&str; 5] =
    ["default.addPrefix", "default.inlineImages", "default.jwt", "exa.online", "tavily.online"];
/// Checks whose data contain no part of the texts, except for the excerpt.
const TEXTLESS_CHECKS: [&str; 4] = ["default.regexReplace", "gateway.pii", "gateway.profanity", "gateway.secrets"];

/// Returns true if the check removes parts of the texts when it changes them.
pub fn redacts(check_id: &str) -> bool {
    !ADDING_CHECKS.contains(&check_id)
}

/// How much of the data of checks the results show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownData {
    All,
    /// Nothing that may hold a part of a text.
    WithoutTexts,
    Nothing,
}

/// Result of one check.
#[derive(Debug, Clone)]
pub struct CheckResult {
    pub id: String,
    pub verdict: bool,
    /// JSON, because it is only written: to the client and to the log, by another thread than the one that checks.
    pub data: Box<RawValue>,
    pub error: Option<CheckError>,
    pub is_transformed: bool,
    pub fails_on_error: bool,
    pub milliseconds: u64,
    pub created_at: String,
}

impl CheckResult {
    /// Returns true if the check does not make its hook fail. An error makes the hook fail if `fails_on_error` is true,
    /// or if `CheckError::is_failure` is.
    pub fn passes(&self) -> bool {
        self.verdict || self.error.as_ref().is_some_and(|error| !error.is_failure && !self.fails_on_error)
    }

    /// Returns the data that a reader may see.
    fn shown_data(&self, extent: ShownData) -> Option<Cow<'_, RawValue>> {
        match extent {
            ShownData::All => Some(Cow::Borrowed(&*self.data)),
            ShownData::WithoutTexts if TEXTLESS_CHECKS.contains(&self.id.as_str()) => {
                let mut data: Value = serde_json::from_str(self.data.get()).unwrap_or_default();
                if let Some(fields) = data.as_object_mut() {
                    fields.shift_remove("textExcerpt");
                }
                Some(Cow::Owned(to_raw_value(&data).unwrap_or_default()))
            }
            ShownData::WithoutTexts | ShownData::Nothing => None,
        }
    }

    fn view(&self, extent: ShownData) -> CheckView<'_> {
        CheckView {
            data: self.shown_data(extent),
            verdict: self.verdict,
            id: &self.id,
            execution_time: self.milliseconds,
            transformed: self.is_transformed,
            created_at: &self.created_at,
            log: None,
            fail_on_error: self.fails_on_error,
            error: self.error.as_ref().map(|error| ErrorView { name: error.name, message: &error.message }),
        }
    }
}

/// Result of a check as JSON.
#[derive(Serialize)]
struct CheckView<'r> {
    data: Option<Cow<'r, RawValue>>,
    verdict: bool,
    id: &'r str,
    execution_time: u64,
    transformed: bool,
    created_at: &'r str,
    log: Option<()>,
    fail_on_error: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorView<'r>>,
}

#[derive(Serialize)]
struct ErrorView<'r> {
    name: &'r str,
    message: &'r str,
}

/// Feedback that a hook adds to the trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Feedback {
    pub value: f64,
    pub weight: f64,
    pub metadata: Map<String, Value>,
}

/// Result of one hook.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each flag is independent")]
pub struct HookResult {
    pub id: String,
    pub kind: &'static str,
    /// Why the hook did not run. `None` if it did.
    pub skipped: Option<&'static str>,
    pub verdict: bool,
    pub is_async: bool,
    /// True if the hook denies the request or response that it checked.
    pub denies: bool,
    /// True if the denial is delivered with status 200.
    pub is_soft: bool,
    pub is_transformed: bool,
    /// For a hook that only reports: true if it would have denied the request or response. `None` for other hooks.
    pub would_deny: Option<bool>,
    pub checks: Vec<CheckResult>,
    pub feedback: Option<Feedback>,
    pub milliseconds: u64,
    pub created_at: String,
}

impl HookResult {
    /// Returns true if the hook ran and did not pass.
    pub fn is_failed(&self) -> bool {
        self.skipped.is_none() && !self.verdict
    }

    /// Returns true if a check removed parts of the texts.
    fn has_redacted(&self) -> bool {
        !self.is_async && self.checks.iter().any(|check| check.is_transformed && redacts(&check.id))
    }

    /// Returns the result as JSON. Without data, it contains no part of the texts.
    pub fn to_json(&self, extent: ShownData) -> Value {
        serde_json::to_value(self.view(extent)).unwrap_or_default()
    }

    fn view(&self, extent: ShownData) -> HookView<'_> {
        let dry_run = DryRunView { dry_run: self.would_deny.map(|_| true), would_deny: self.would_deny };
        if let Some(reason) = self.skipped {
            return HookView::Skipped(SkippedHookView {
                id: &self.id,
                kind: self.kind,
                skipped: true,
                reason: Some(reason).filter(|reason| !reason.is_empty()),
                deny: self.denies.then_some(true),
                dry_run,
            });
        }
        HookView::Run(RunHookView {
            verdict: self.verdict,
            id: &self.id,
            transformed: self.is_transformed,
            checks: self.checks.iter().map(|check| check.view(extent)).collect(),
            feedback: self.feedback.as_ref().map(|feedback| FeedbackView {
                value: feedback.value,
                weight: feedback.weight,
                metadata: FeedbackMetadata { own: &feedback.metadata, checks: &self.checks },
            }),
            execution_time: self.milliseconds,
            is_async: self.is_async,
            kind: self.kind,
            created_at: &self.created_at,
            deny: self.denies,
            dry_run,
        })
    }

    /// Returns why the hook denies, for people: the names of its failed checks, or why it could not read the request or
    /// response.
    pub fn denial_reason(&self) -> String {
        if let Some(reason) = self.skipped {
            return format!("the guardrail `{}` denies this: {reason}", self.id);
        }
        let failed: Vec<_> =
            self.checks.iter().filter(|check| !check.passes()).map(|check| check.id.as_str()).collect();
        let noun = if failed.len() == 1 { "check" } else { "checks" };
        format!("the guardrail `{}` denies this: the {noun} `{}` failed", self.id, failed.join("`, `"))
    }
}

/// Feedback of a hook as JSON.
#[derive(Serialize)]
struct FeedbackView<'r> {
    value: f64,
    weight: f64,
    metadata: FeedbackMetadata<'r>,
}

/// Metadata of a feedback: those of the hook, and the ids of its checks by their outcome.
struct FeedbackMetadata<'r> {
    own: &'r Map<String, Value>,
    checks: &'r [CheckResult],
}

impl Serialize for FeedbackMetadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        type IsListed = fn(&CheckResult) -> bool;
        const LISTS: [(&str, IsListed); 3] = [
            ("successfulChecks", |check| check.verdict && check.error.is_none()),
            ("failedChecks", |check| !check.verdict && check.error.is_none()),
            ("erroredChecks", |check| check.error.is_some()),
        ];
        let mut fields = serializer.serialize_map(None)?;
        for (name, value) in self.own.iter().filter(|(name, _)| LISTS.iter().all(|(list, _)| name != list)) {
            fields.serialize_entry(name, value)?;
        }
        for (name, is_listed) in LISTS {
            let ids: Vec<_> =
                self.checks.iter().filter(|check| is_listed(check)).map(|check| check.id.as_str()).collect();
            fields.serialize_entry(name, &ids.join(", "))?;
        }
        fields.end()
    }
}

/// Result of a hook as JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum HookView<'r> {
    Run(RunHookView<'r>),
    Skipped(SkippedHookView<'r>),
}

#[derive(Serialize)]
#[allow(clippy::struct_excessive_bools, reason = "each flag is independent")]
struct RunHookView<'r> {
    verdict: bool,
    id: &'r str,
    transformed: bool,
    checks: Vec<CheckView<'r>>,
    feedback: Option<FeedbackView<'r>>,
    execution_time: u64,
    #[serde(rename = "async")]
    is_async: bool,
    #[serde(rename = "type")]
    kind: &'static str,
    created_at: &'r str,
    deny: bool,
    #[serde(flatten)]
    dry_run: DryRunView,
}

#[derive(Serialize)]
struct SkippedHookView<'r> {
    id: &'r str,
    #[serde(rename = "type")]
    kind: &'static str,
    skipped: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deny: Option<bool>,
    #[serde(flatten)]
    dry_run: DryRunView,
}

/// Fields that only a hook with `dry_run` has.
#[derive(Serialize)]
struct DryRunView {
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_run: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    would_deny: Option<bool>,
}

/// Results of all hooks as JSON, with the data that their reader may see. It is serialised without a copy of the data,
/// because each request with guardrails does so for its client and for its log.
#[derive(Serialize)]
pub struct HookResultsView<'r> {
    before_request_hooks: Vec<HookView<'r>>,
    after_request_hooks: Vec<HookView<'r>>,
}

/// Shared results of all hooks of a request. Hooks still add results while the response is delivered, and later.
#[derive(Debug, Clone, Default)]
pub struct SharedHookResults(Arc<SharedResults>);

#[derive(Debug, Default)]
struct SharedResults {
    results: Mutex<HookResults>,
    /// Number of groups of asynchronous hooks that still run.
    running: AtomicUsize,
    has_ended: Notify,
}

impl SharedHookResults {
    pub fn lock(&self) -> MutexGuard<'_, HookResults> {
        self.0.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a group of asynchronous hooks as running until the returned value is dropped.
    pub fn begin_group(&self) -> RunningGroup {
        self.0.running.fetch_add(1, Ordering::AcqRel);
        RunningGroup(self.clone())
    }

    /// Returns true if asynchronous hooks still run.
    pub fn is_waiting(&self) -> bool {
        self.0.running.load(Ordering::Acquire) > 0
    }

    /// Waits until no asynchronous hook runs.
    pub async fn wait_until_complete(&self) {
        loop {
            let ended = self.0.has_ended.notified();
            if !self.is_waiting() {
                return;
            }
            ended.await;
        }
    }
}

/// A group of asynchronous hooks that runs.
pub struct RunningGroup(SharedHookResults);

impl Drop for RunningGroup {
    fn drop(&mut self) {
        self.0.0.running.fetch_sub(1, Ordering::AcqRel);
        self.0.0.has_ended.notify_waiters();
    }
}

/// Results of all hooks of a request.
#[derive(Debug, Clone, Default)]
pub struct HookResults {
    pub before: Vec<HookResult>,
    pub after: Vec<HookResult>,
    /// True if the hook results omit the texts of the request: they come from a saved prompt whose content the client has
    /// no permission to read, or a guardrail of another target redacts them.
    pub hides_request: bool,
    /// True if the response is a stream from which guardrails may remove texts while it is delivered.
    pub redacts_stream: bool,
}

impl HookResults {
    pub fn len(&self) -> usize {
        self.before.len() + self.after.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn results_at(&self, stage: Stage) -> &[HookResult] {
        if stage == Stage::Input { &self.before } else { &self.after }
    }

    /// Adds the results of hooks that have run.
    pub fn add(&mut self, stage: Stage, results: Vec<HookResult>) {
        if stage == Stage::Input { self.before.extend(results) } else { self.after.extend(results) }
    }

    /// Returns true if guardrails removed texts at a stage, or may do so. The log shows none of these texts.
    pub fn has_redacted(&self, stage: Stage) -> bool {
        stage == Stage::Output && self.redacts_stream || self.results_at(stage).iter().any(HookResult::has_redacted)
    }

    /// Returns how much of the data of a stage may be shown.
    fn shown_data(&self, stage: Stage, shows_data: bool) -> ShownData {
        match (shows_data, self.has_redacted(stage)) {
            (false, _) => ShownData::Nothing,
            (true, true) => ShownData::WithoutTexts,
            (true, false) => ShownData::All,
        }
    }

    /// Returns the results for the log.
    pub fn log_view(&self, shows_data: bool) -> HookResultsView<'_> {
        let list = |stage| {
            let extent = self.shown_data(stage, shows_data);
            self.results_at(stage).iter().map(|result| result.view(extent)).collect()
        };
        HookResultsView { before_request_hooks: list(Stage::Input), after_request_hooks: list(Stage::Output) }
    }

    /// Returns the results that a client sees: those of asynchronous hooks are only in the log. If the response was
    /// denied or changed, the data of its checks may hold text that the client must not see.
    pub fn client_view(&self) -> HookResultsView<'_> {
        let hides_data = self.after.iter().any(|result| result.denies || result.is_transformed);
        let list = |stage, shows_data: bool| {
            let extent = self.shown_data(stage, shows_data);
            let results = self.results_at(stage).iter().filter(|result| !result.is_async);
            results.map(|result| result.view(extent)).collect()
        };
        HookResultsView {
            before_request_hooks: list(Stage::Input, !self.hides_request),
            after_request_hooks: list(Stage::Output, !hides_data),
        }
    }

    /// Returns the results that a client sees.
    pub fn to_client_json(&self) -> Value {
        serde_json::to_value(self.client_view()).unwrap_or_default()
    }

    /// Returns true if clients see any result.
    pub fn has_visible(&self) -> bool {
        self.before.iter().chain(&self.after).any(|result| !result.is_async)
    }

    /// Returns true if each synchronous hook has read the response, and none of its checks had an error. Checks of the
    /// request do not matter, because they run for each request.
    pub fn was_fully_checked(&self) -> bool {
        let is_complete = |result: &HookResult| {
            result.skipped.is_none_or(str::is_empty) && result.checks.iter().all(|check| check.error.is_none())
        };
        self.after.iter().all(|result| result.is_async || is_complete(result))
    }

    /// Returns true if a synchronous hook failed.
    pub fn has_failed(&self) -> bool {
        self.before.iter().chain(&self.after).any(|result| !result.is_async && (result.is_failed() || result.denies))
    }
}
