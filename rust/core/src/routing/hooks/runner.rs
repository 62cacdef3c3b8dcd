//! Runs hooks: all hooks at the same time, and the checks of a hook too, unless it runs them in sequence.

use std::{
    sync::{Arc, LazyLock},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::future::join_all;
use penstock_llm::timestamp::format_rfc3339_millis;
use penstock_net::Upstream;
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use super::{
    external::{GatewayHosts, call_host},
    model_call::ModelAccess,
    reading::Reading,
    restorations::Restorations,
    subject::{HookSubject, apply_change},
};
use crate::{
    guardrails::{
        checks::{Change, CheckError, CheckOutcome, CompiledCheck, ExternalCall, Stage},
        hook::{Hook, HookCheck, HookKind},
        host_access::CheckJob,
        results::{CheckResult, HookResult},
    },
    process::background_threads::BackgroundThreads,
    state::shared::{check_hosts::CheckHosts, fair_permits::FairPermits},
};

/// Maximum bytes of a body whose checks run on a thread that also serves other requests.
const MAX_INLINE_BODY_BYTES: usize = 32 * 1024;
/// Number of checks of larger bodies that run at the same time.
const MAX_LARGE_CHECKS: usize = 2;
/// Permits for checks of larger bodies, of which one workspace can have 1.
static LARGE_CHECKS: LazyLock<FairPermits> = LazyLock::new(|| FairPermits::new(MAX_LARGE_CHECKS, 1));
/// Threads on which they run.
static CHECK_THREADS: LazyLock<BackgroundThreads> =
    LazyLock::new(|| BackgroundThreads::start("penstock-checks", MAX_LARGE_CHECKS));
const SHUTTING_DOWN: &str = "the gateway is shutting down";
/// Check that also runs on requests whose bodies are not read.
const REQUEST_TYPE_CHECK: &str = "default.allowedRequestTypes";
const DENIED_BEFORE: &str = "another guardrail has denied this before";
const NOT_READ: &str = "requests of this type are not read";

/// Runner of hooks, with the clients by which checks call other hosts.
#[derive(Clone)]
pub struct HookRunner {
    pub upstream: Arc<Upstream>,
    pub hosts: Arc<CheckHosts>,
    /// Workspace of the caller, whose number of concurrent costly checks is limited.
    pub workspace: Option<Arc<str>>,
    /// Access of checks to models. `None`: checks cannot call models.
    pub models: Option<Arc<ModelAccess>>,
}

impl HookRunner {
    /// Returns the access of one hook to other hosts. Its failures do not count for other hooks or workspaces.
    fn hosts_of(&self, hook: &Hook) -> GatewayHosts {
        GatewayHosts {
            upstream: Arc::clone(&self.upstream),
            hosts: Arc::clone(&self.hosts),
            workspace: self.workspace.clone(),
            hook: hook.fingerprint,
            is_saved: hook.is_saved,
            models: self.models.clone(),
        }
    }
}

/// Results of hooks on one subject, in their order.
pub struct HookRun {
    pub results: Vec<HookResult>,
    /// The subject with all changes.
    pub subject: Arc<HookSubject>,
    pub is_changed: bool,
    /// True if a hook may have written new text after other hooks have already read the text.
    has_new_texts: bool,
    pub restorations: Restorations,
}

/// Runs hooks on a subject, all at the same time. If one changes texts, the hooks after it run again on the changed
/// texts, and both results count. Otherwise the hook of a client could write a text that a default guardrail denies.
pub async fn run_hooks(runner: &HookRunner, hooks: &[Arc<Hook>], subject: Arc<HookSubject>) -> HookRun {
    let runs = join_all(hooks.iter().map(|hook| run_hook(runner, hook, &subject))).await;
    let results = Vec::with_capacity(runs.len());
    let mut run =
        HookRun { results, subject, is_changed: false, has_new_texts: false, restorations: Restorations::default() };
    for (hook, (mut result, mut outcomes)) in hooks.iter().zip(runs) {
        if run.has_new_texts && !hook.is_async && result.skipped.is_none() {
            let (again, changes) = run_hook(runner, hook, &run.subject).await;
            result = join_results(result, again);
            outcomes = changes;
        }
        // Changes of an asynchronous hook are ignored, because the request or response may already have been sent.
        if !hook.is_async {
            for (index, outcome) in outcomes {
                run.restorations.extend(outcome.restorations);
                let Some(change) = outcome.change else { continue };
                run.has_new_texts |= is_of_texts(&change);
                let error = match apply_change(&mut run.subject, change).await {
                    Ok((_, true)) => {
                        (run.is_changed, result.is_transformed) = (true, true);
                        continue;
                    }
                    Ok((_, false)) => CheckError::new("a stream has no body that could be replaced"),
                    Err(_) => CheckError::not_replaced(SHUTTING_DOWN),
                };
                if let Some(check) = result.checks.get_mut(index) {
                    (check.error, check.verdict) = (Some(error), false);
                }
            }
        }
        conclude(hook, &mut result);
        run.results.push(result);
    }
    run
}

/// Runs the hooks of a client last, on the texts that the other hooks have allowed. The hooks of a client may call
/// hosts of the client, and their verdicts describe the text. So they must not read what the others deny or redact.
pub async fn run_after_others(
    runner: &HookRunner,
    of_client: &[Arc<Hook>],
    others: &[Arc<Hook>],
    subject: Arc<HookSubject>,
) -> HookRun {
    let mut first = run_hooks(runner, others, subject).await;
    if first.results.iter().any(|result| result.denies) {
        let skipped = of_client.iter().map(|hook| skipped_result(hook, DENIED_BEFORE, false));
        first.results = skipped.chain(first.results).collect();
        return first;
    }
    let mut run = run_hooks(runner, of_client, Arc::clone(&first.subject)).await;
    first.restorations.merge(run.restorations);
    run.restorations = first.restorations;
    if run.has_new_texts {
        let again = run_hooks(runner, others, Arc::clone(&run.subject)).await;
        (run.subject, run.is_changed) = (again.subject, true);
        run.restorations.merge(again.restorations);
        for ((hook, before), now) in others.iter().zip(first.results).zip(again.results) {
            let is_transformed = before.is_transformed || now.is_transformed;
            let mut result = HookResult { is_transformed, ..join_results(before, now) };
            conclude(hook, &mut result);
            run.results.push(result);
        }
    } else {
        run.results.extend(first.results);
    }
    run.is_changed |= first.is_changed;
    run
}

/// Returns true if a change may write new text into a part that earlier hooks have already checked.
fn is_of_texts(change: &Change) -> bool {
    matches!(change, Change::Texts(_) | Change::Body(_))
}

/// Joins the results of a hook that ran on the original texts, and on changed ones. A check that failed once has
/// failed.
fn join_results(first: HookResult, mut again: HookResult) -> HookResult {
    for (before, now) in first.checks.into_iter().zip(&mut again.checks) {
        if !before.passes() && now.passes() {
            *now = CheckResult { is_transformed: now.is_transformed, ..before };
        }
    }
    again.milliseconds += first.milliseconds;
    again
}

/// Sets the verdict of a hook from its checks.
pub fn conclude(hook: &Hook, result: &mut HookResult) {
    if result.skipped.is_some() {
        return;
    }
    result.verdict = result.checks.iter().all(CheckResult::passes);
    let must_deny = result.checks.iter().any(|check| check.error.as_ref().is_some_and(|error| error.must_deny));
    let denies = must_deny || hook.denies && !result.verdict;
    result.would_deny = hook.is_dry_run.then_some(denies);
    result.denies = denies && !hook.is_async;
    result.is_soft = result.denies
        && hook
            .checks
            .iter()
            .any(|check| check.is_soft && result.checks.iter().any(|one| one.id == check.check.id && !one.passes()));
    let is_success = |check: &CheckResult| check.verdict || check.error.as_ref().is_some_and(|error| !error.is_failure);
    let is_success = result.checks.iter().all(is_success);
    result.feedback = if is_success { hook.on_success.clone() } else { hook.on_fail.clone() };
}

/// Returns why a hook does not run on a subject, and whether it denies the subject because of that.
fn skip_reason(hook: &Hook, subject: &HookSubject) -> Option<(&'static str, bool)> {
    let is_type_check = |check: &HookCheck| check.check.id == REQUEST_TYPE_CHECK;
    let has_type_check = hook.checks.iter().any(is_type_check);
    let only_checks_type = has_type_check && hook.checks.iter().all(is_type_check);
    if hook.kind == HookKind::Mutator && (hook.is_async && !hook.is_dry_run || subject.reading == Reading::Embedding) {
        return Some(("", false));
    }
    if let Some(reason) = subject.reading.unreadable_reason().filter(|_| !only_checks_type) {
        return Some((reason, subject.reading.is_denied_by(hook)));
    }
    if !subject.reading.includes(subject.stage) {
        return (!has_type_check).then_some((NOT_READ, false));
    }
    subject.unreadable.map(|reason| (reason, must_read(hook)))
}

/// Returns true if a hook denies what it cannot read: if it denies, or if it redacts. A client could choose a body that
/// only the provider can read. A response that is too large would pass with all that must be redacted.
pub fn must_read(hook: &Hook) -> bool {
    hook.denies || hook.may_redact()
}

/// Returns the result of a hook that cannot read the texts that it should check.
pub fn unreadable_result(hook: &Hook, reason: &'static str) -> HookResult {
    skipped_result(hook, reason, must_read(hook))
}

/// Returns the result of a hook that did not run. An asynchronous hook does not deny.
pub fn skipped_result(hook: &Hook, reason: &'static str, denies: bool) -> HookResult {
    HookResult {
        skipped: Some(reason),
        denies: denies && !hook.is_async,
        would_deny: hook.is_dry_run.then_some(denies),
        ..new_result(hook)
    }
}

pub fn new_result(hook: &Hook) -> HookResult {
    HookResult {
        id: hook.id.clone(),
        kind: hook.kind.name(),
        skipped: None,
        verdict: true,
        is_async: hook.is_async,
        denies: false,
        is_soft: false,
        is_transformed: false,
        would_deny: None,
        checks: Vec::new(),
        feedback: None,
        milliseconds: 0,
        created_at: now(),
    }
}

/// Returns the result of a check that changed nothing.
pub fn new_check_result(check: &CompiledCheck, verdict: bool, data: Value) -> CheckResult {
    CheckResult {
        id: check.id.clone(),
        verdict,
        data: shorten(data),
        error: None,
        is_transformed: false,
        fails_on_error: check.fails_on_error,
        milliseconds: 0,
        created_at: now(),
    }
}

type IndexedOutcome = (usize, CheckOutcome);

async fn run_hook(
    runner: &HookRunner,
    hook: &Arc<Hook>,
    subject: &Arc<HookSubject>,
) -> (HookResult, Vec<IndexedOutcome>) {
    let started_at = Instant::now();
    if let Some((reason, denies)) = skip_reason(hook, subject) {
        return (skipped_result(hook, reason, denies), Vec::new());
    }
    let mut result = new_result(hook);
    let is_read = subject.reading.includes(subject.stage);
    let runs_check = |check: &HookCheck| is_read || check.check.id == REQUEST_TYPE_CHECK;
    let indexes: Vec<usize> = (0..hook.checks.len()).filter(|index| runs_check(&hook.checks[*index])).collect();
    let outcomes = if hook.is_sequential || hook.kind == HookKind::Mutator {
        let mut current = Arc::clone(subject);
        let mut outcomes = Vec::new();
        for index in indexes {
            let mut timed = run_check(runner, hook, index, &current).await;
            apply_outcome(&mut current, &mut timed.1).await;
            outcomes.push(timed);
        }
        outcomes
    } else {
        let mut outcomes = join_all(indexes.into_iter().map(|index| run_check(runner, hook, index, subject))).await;
        keep_all_changes(runner, hook, subject, &mut outcomes).await;
        outcomes
    };
    let mut changes = Vec::new();
    for (index, mut outcome, milliseconds) in outcomes {
        let check = &hook.checks[index].check;
        result.checks.push(CheckResult {
            error: outcome.error.clone(),
            is_transformed: outcome.change.is_some(),
            milliseconds,
            ..new_check_result(check, outcome.verdict, std::mem::take(&mut outcome.data))
        });
        changes.push((result.checks.len() - 1, outcome));
    }
    result.milliseconds = started_at.elapsed().as_millis() as u64;
    (result, changes)
}

/// Combines the changes of all checks of a hook that change texts. Each check after the first runs again on the texts
/// that the others changed. Otherwise the last change would undo the previous ones.
async fn keep_all_changes(
    runner: &HookRunner,
    hook: &Arc<Hook>,
    subject: &Arc<HookSubject>,
    outcomes: &mut [(usize, CheckOutcome, u64)],
) {
    let changes = |timed: &(usize, CheckOutcome, u64)| timed.1.change.as_ref().is_some_and(is_of_texts);
    if outcomes.iter().filter(|timed| changes(timed)).count() < 2 {
        return;
    }
    let mut current = Arc::clone(subject);
    for (position, timed) in outcomes.iter_mut().filter(|timed| changes(timed)).enumerate() {
        if position > 0 {
            let verdict = timed.1.verdict;
            *timed = run_check(runner, hook, timed.0, &current).await;
            timed.1.verdict &= verdict;
        }
        apply_outcome(&mut current, &mut timed.1).await;
    }
}

/// Applies the change of a check to the texts that the next checks read. The outcome keeps the change.
async fn apply_outcome(subject: &mut Arc<HookSubject>, outcome: &mut CheckOutcome) {
    let Some(change) = outcome.change.take() else { return };
    match apply_change(subject, change).await {
        Ok((change, _)) => outcome.change = Some(change),
        Err(_) => *outcome = CheckOutcome::failed(CheckError::not_replaced(SHUTTING_DOWN)),
    }
}

/// Maximum number of characters of one text in the data of a result.
const MAX_DATA_TEXT_CHARS: usize = 500;
/// Maximum bytes of data that a result shows, as JSON.
const MAX_DATA_BYTES: usize = 16 * 1024;
/// Maximum depth of data that a result shows. `serde_json` parses 128 levels, also those of the results around the data.
const MAX_DATA_DEPTH: usize = 100;

/// Returns the data of a result without long texts. A match or a JSON object may be as long and as deep as the body.
fn shorten(mut data: Value) -> Box<RawValue> {
    let explain = |explanation: &str| to_raw_value(&json!({"explanation": explanation})).unwrap_or_default();
    if depth_of(&data) > MAX_DATA_DEPTH {
        return explain("the data are nested too deep to be shown");
    }
    shorten_texts(&mut data);
    let json = to_raw_value(&data).unwrap_or_default();
    if json.get().len() <= MAX_DATA_BYTES { json } else { explain("the data are too long to be shown") }
}

/// Returns the number of nested arrays and objects.
fn depth_of(data: &Value) -> usize {
    match data {
        Value::Array(items) => 1 + items.iter().map(depth_of).max().unwrap_or_default(),
        Value::Object(fields) => 1 + fields.values().map(depth_of).max().unwrap_or_default(),
        _ => 0,
    }
}

fn shorten_texts(data: &mut Value) {
    match data {
        Value::String(text) => {
            if let Some((end, _)) = text.char_indices().nth(MAX_DATA_TEXT_CHARS) {
                text.truncate(end);
                text.push_str("...");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(shorten_texts),
        Value::Object(fields) => fields.values_mut().for_each(shorten_texts),
        _ => (),
    }
}

fn now() -> String {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    String::from_utf8_lossy(&format_rfc3339_millis(since_1970)).into_owned()
}

async fn run_check(
    runner: &HookRunner,
    hook: &Arc<Hook>,
    index: usize,
    subject: &Arc<HookSubject>,
) -> (usize, CheckOutcome, u64) {
    let started_at = Instant::now();
    let check = &hook.checks[index].check;
    let outcome = if check.stages.includes(subject.stage) {
        match begin_check(runner, hook, index, subject).await {
            Ok(CheckStep::Call(call)) => Box::pin(call_host(&runner.hosts_of(hook), &call)).await,
            Ok(CheckStep::Job(job)) => job(Arc::new(runner.hosts_of(hook))).await,
            Ok(CheckStep::Done(outcome)) => Ok(outcome),
            Err(error) => Err(error),
        }
    } else {
        let position = if subject.stage == Stage::Input { "requests" } else { "responses" };
        Err(CheckError::new(format!("the check cannot run on {position}")))
    };
    (index, outcome.unwrap_or_else(CheckOutcome::failed), started_at.elapsed().as_millis() as u64)
}

/// First step of a check: it has decided, or must call other hosts.
enum CheckStep {
    Done(CheckOutcome),
    Call(ExternalCall),
    Job(CheckJob),
}

/// Runs a check, or prepares its call to another host. Costly checks and those of large bodies run on another thread, a
/// few at the same time.
async fn begin_check(
    runner: &HookRunner,
    hook: &Arc<Hook>,
    index: usize,
    subject: &Arc<HookSubject>,
) -> Result<CheckStep, CheckError> {
    let is_costly = || hook.checks[index].check.check.is_costly(&subject.input());
    let is_cheap = subject.body_bytes <= MAX_INLINE_BODY_BYTES && !is_costly();
    let (hook, subject) = (Arc::clone(hook), Arc::clone(subject));
    let job = move || {
        let check = &hook.checks[index].check.check;
        if let Some(job) = check.job(&subject.input()) {
            return Ok(CheckStep::Job(job));
        }
        match check.external_call(&subject.input()) {
            Some(call) => call.map(CheckStep::Call),
            None => check.run(&subject.input()).map(CheckStep::Done),
        }
    };
    if is_cheap {
        return job();
    }
    let closing = || CheckError::new(SHUTTING_DOWN);
    // A check waits for a permit as long as needed and is never skipped. The client may stop waiting.
    let permit = LARGE_CHECKS.acquire(runner.workspace.as_deref()).await.ok_or_else(closing)?;
    let running = CHECK_THREADS.run(move || {
        let _permit = permit;
        job()
    });
    running.await.ok_or_else(closing)?
}
