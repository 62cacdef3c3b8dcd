//! Guardrails of a request: the hooks of its target and the defaults of its caller, run before it is sent and after the
//! response.

mod caching;
mod denial;
mod effective;
mod external;
mod model_call;
mod reading;
mod request_check;
mod restorations;
mod restore;
mod rewriting;
mod runner;
mod stored_names;
mod stream_end;
mod stream_window;
mod subject;
mod trial;
mod unreadable;

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use penstock_llm::{
    json::edit::set_fields,
    texts::{
        TextPart, frames::StreamEncoding, has_token_numbers, repeated_keys::has_repeated_keys, request_texts,
        response_texts, stream::StreamTexts,
    },
};
use penstock_net::{ResponseBody, body::Body, memory_budget::BudgetedBytes};
use serde_json::Value;

pub(crate) use denial::DENIED_STATUS;
pub(crate) use effective::{describe_guardrails, has_defaults, may_decide, read_responses};
pub(crate) use request_check::{find_redacting_hooks, reads_checked_batch};
pub use trial::Trial;

use self::{
    effective::StageHooks,
    model_call::ModelAccess,
    reading::{Reading, has_known_texts},
    request_check::read_request,
    restorations::Restorations,
    restore::build_rewriter,
    rewriting::{may_rewrite, needs_rewritten_body},
    runner::{HookRun, HookRunner, run_after_others, run_hooks},
    stored_names::hooks_for_stored_output,
    stream_end::StreamHooks,
    subject::HookSubject,
    unreadable::{
        COMPRESSED, PENDING, TOKEN_NUMBERS, TOO_BUSY, TOO_LARGE, UNREADABLE_REQUEST, UNREADABLE_RESPONSE,
        UNREADABLE_STREAM,
    },
};
use crate::{
    accounting::record::{RecordSink, RequestLog},
    config::Node,
    error::{Error, Result},
    gateway_state::GatewayState,
    guardrails::{
        checks::Stage,
        hook::{Hook, StreamMode},
        results::{HookResult, SharedHookResults},
    },
    resolve::{route_plan::RoutePlan, target::Target, target_resolver::TargetResolver},
    response::{
        delivery::{self, StreamFraming, UpstreamResponse},
        offload::{run_offloaded, with_content_type},
    },
    routing::{
        executor::{RouteExecutor, route_request},
        replay_body::PreparedBody,
    },
    state::shared::fair_permits::FairPermits,
};

/// Status of a response whose hooks failed but do not deny it.
pub(crate) const FAILED_STATUS: u16 = 246;
/// Permits for the bodies that asynchronous hooks hold after their requests have ended: 1024, of which one workspace
/// can have 768.
static BACKGROUND: LazyLock<FairPermits> = LazyLock::new(|| FairPermits::new(1024, 768));
/// Bytes of a body for one such permit.
const BACKGROUND_BYTES_PER_PERMIT: u32 = 64 * 1024;

type WriteBody = Box<dyn FnOnce() -> Option<String> + Send>;

/// Hooks of one target of a request.
pub(crate) struct TargetHooks {
    before: Vec<Arc<Hook>>,
    after: Vec<Arc<Hook>>,
    /// Number of hooks at the beginning of `after` that come from a config in the request itself.
    after_of_client: usize,
    results: SharedHookResults,
    runner: HookRunner,
    /// Values that were replaced in the request, and that the response returns to the client.
    restorations: Restorations,
    /// The request as the hooks before it read it, with their changes.
    subject: Arc<HookSubject>,
    /// True if responses must strictly match the schemas of `OpenAI`. Then streams contain no results of hooks.
    is_strict: bool,
    /// Slug of the shared prompt, if the request uses a saved provider of the workspace that owns the prompt. The
    /// caller's own workspace may not have that provider.
    sharing_prompt: Option<Box<str>>,
}

/// Routes the question of a check to a model. This is a separate function with a boxed future, because that future
/// contains the future of hooks.
pub(crate) fn route_question<'r>(
    state: &'r GatewayState,
    resolver: &'r TargetResolver<'r>,
    plan: &'r RoutePlan<'r>,
    body: Body,
    log: &'r mut RequestLog,
) -> BoxFuture<'r, Result<UpstreamResponse>> {
    Box::pin(route_request(state, resolver, plan, body, log))
}

/// Returns the runner with which the checks of these hooks can call other hosts.
fn build_runner(executor: &RouteExecutor<'_>, before: &[Arc<Hook>], after: &[Arc<Hook>]) -> HookRunner {
    let (state, caller) = (executor.state, executor.resolver.caller);
    HookRunner {
        upstream: Arc::clone(&state.upstream),
        hosts: Arc::clone(&state.shared.check_hosts),
        workspace: caller.workspace().map(Arc::from),
        models: state.upgrade_weak_reference().map(|state| {
            let requested = executor.client_request.control.trace_id.map(ToOwned::to_owned);
            let trace_id = requested.or_else(|| executor.log.trace_id.clone());
            let question_count = executor.log.details.guardrail_questions();
            let redacts = |hook: &Arc<Hook>| !hook.is_async && hook.may_redact();
            let bodies = &executor.log.bodies;
            let hides_texts =
                !bodies.is_recording() || bodies.may_be_redacted() || before.iter().chain(after).any(redacts);
            ModelAccess::new(state, caller, trace_id, question_count, hides_texts, route_question)
        }),
    }
}

/// Returns the header fields that only checks may set. They are empty until a check sets them, because their hooks may
/// be skipped.
fn reserve_headers(before: &[Arc<Hook>]) -> Vec<(String, String)> {
    let checks = before.iter().filter(|hook| !hook.is_async).flat_map(|hook| &hook.checks);
    let names: BTreeSet<_> = checks.flat_map(|item| item.check.check.effects().reserved_headers).collect();
    names.into_iter().map(|name| (name.clone(), String::new())).collect()
}

impl TargetHooks {
    /// Hides the text of a response in an error, if hooks that deny or change something should have read that text.
    pub fn hide_unread_text(&self, error: &mut Error) {
        unreadable::hide_unread_text(&self.after, error);
    }

    /// Returns the hooks of a request to one target; `None` if there are none.
    ///
    /// # Errors
    /// If a guardrail does not exist or cannot run.
    pub async fn for_target(
        executor: &RouteExecutor<'_>,
        node: &Node,
        target: &Target<'_>,
        prepared: &PreparedBody,
    ) -> Result<Option<Box<Self>>> {
        let resolver = executor.resolver;
        let has_saved_config = executor.plan.config_slug.is_some();
        let Some(hooks) = effective::hooks_of(resolver, node, has_saved_config)? else { return Ok(None) };
        let StageHooks { before, mut after, after_of_client } = hooks;
        let results = SharedHookResults::default();
        results.lock().hides_request = resolver.hides_prompt();
        let sharing_prompt = resolver.find_sharing_prompt(target.saved_provider, &prepared.model)?;
        let operation = executor.client_request.requested_operation();
        let bytes = match &prepared.body {
            Body::Complete(bytes) if executor.replay_body.as_json().is_some() => bytes.clone(),
            _ => Bytes::new(),
        };
        let parse = move || {
            let request: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let texts = if request.is_object() { request_texts(&request) } else { Vec::new() };
            (request, texts)
        };
        let length = prepared.body.complete_bytes().len();
        let (request, texts) = run_offloaded(length, parse).await?;
        let reading = read_request(executor, &request, &texts, &prepared.body).await;
        if reading == Reading::StoredOutput {
            after.extend(hooks_for_stored_output(&before));
        }
        let subject = HookSubject {
            stage: Stage::Input,
            operation,
            reading,
            provider: target.provider.slug(),
            model: prepared.model.clone(),
            is_streaming: prepared.is_streaming || operation.is_always_streaming(),
            metadata: executor.log.metadata.pairs().to_vec(),
            headers: executor.client_request.head.headers.clone(),
            added_headers: reserve_headers(&before),
            // Other requests have no texts that hooks read.
            unreadable: match reading.has_request_texts() {
                true if !request.is_object() => Some(UNREADABLE_REQUEST),
                true if has_token_numbers(&request) => Some(TOKEN_NUMBERS),
                _ => None,
            },
            request: Arc::new(request),
            response: Value::Null,
            texts,
            body_bytes: length,
        };
        let runner = build_runner(executor, &before, &after);
        let (restorations, subject) = (Restorations::default(), Arc::new(subject));
        let sharing_prompt = sharing_prompt.map(|prompt| prompt.slug.clone());
        Ok(Some(Box::new(Self {
            before,
            after,
            after_of_client,
            results,
            runner,
            restorations,
            subject,
            is_strict: target.is_strict,
            sharing_prompt,
        })))
    }

    pub fn results(&self) -> &SharedHookResults {
        &self.results
    }

    /// Returns true if the response must not be compressed, because values are restored in it or it may contain
    /// placeholder names.
    pub fn needs_plain_response(&self) -> bool {
        !self.restorations.is_empty() || self.subject.reading == Reading::StoredOutput && !self.after.is_empty()
    }

    /// Returns the header fields that checks set for the provider.
    pub fn added_headers(&self) -> &[(String, String)] {
        &self.subject.added_headers
    }

    /// Restores the values that placeholders replaced in the request, only for the client. Caches and logs contain the
    /// placeholders.
    pub fn restore_values(&self, response: &mut UpstreamResponse) {
        let framing = response.chunk_format(self.subject.operation);
        response.client_rewriter = build_rewriter(&self.restorations, framing);
    }

    /// Runs hooks and adds their results. Asynchronous hooks run in the background, and add their results at their end.
    async fn run(&self, gateway: &GatewayState, hooks: &[Arc<Hook>], subject: Arc<HookSubject>) -> HookRun {
        let stage = subject.stage;
        let (of_client, others) = hooks.split_at(self.count_waiting_hooks(stage));
        let split = |hooks: &[Arc<Hook>]| hooks.iter().cloned().partition::<Vec<_>, _>(|hook| hook.is_async);
        let ((waiting, of_client), (background, others)) = (split(of_client), split(others));
        self.run_in_background(gateway, background, &subject);
        let mut run = if of_client.is_empty() {
            run_hooks(&self.runner, &others, subject).await
        } else {
            run_after_others(&self.runner, &of_client, &others, subject).await
        };
        if find_denial(&run.results).is_none() {
            self.run_in_background(gateway, waiting, &run.subject);
        }
        count(&gateway.record_sink, &run.results);
        self.results.lock().add(stage, std::mem::take(&mut run.results));
        run
    }

    /// Returns the number of hooks that must wait for the others: those of the client, if another one may deny or
    /// change the response.
    fn count_waiting_hooks(&self, stage: Stage) -> usize {
        let has_deciding = || self.after[self.after_of_client..].iter().any(|hook| needs_rewritten_body(hook));
        if stage == Stage::Output && has_deciding() { self.after_of_client } else { 0 }
    }

    /// Starts asynchronous hooks in the background.
    fn run_in_background(&self, gateway: &GatewayState, hooks: Vec<Arc<Hook>>, subject: &Arc<HookSubject>) {
        if hooks.is_empty() {
            return;
        }
        let (stage, results) = (subject.stage, self.results.clone());
        let cost = 1 + subject.body_bytes as u32 / BACKGROUND_BYTES_PER_PERMIT;
        let Some(permit) = BACKGROUND.try_acquire_many(self.runner.workspace.as_deref(), cost) else {
            let skipped: Vec<_> = hooks.iter().map(|hook| runner::unreadable_result(hook, TOO_BUSY)).collect();
            count(&gateway.record_sink, &skipped);
            results.lock().add(stage, skipped);
            return;
        };
        let (runner, subject, sink) = (self.runner.clone(), Arc::clone(subject), Arc::clone(&gateway.record_sink));
        let group = results.begin_group();
        tokio::spawn(async move {
            let _permit = permit;
            // Counts as running until the results are added.
            let _group = group;
            let run = run_hooks(&runner, &hooks, subject).await;
            count(&sink, &run.results);
            results.lock().add(stage, run.results);
        });
    }

    /// Returns the response that the client gets if the request or the response is denied.
    fn deny(
        &self,
        state: &GatewayState,
        denied_by: &HookResult,
        api_format: penstock_llm::api_format::ApiFormat,
    ) -> UpstreamResponse {
        let (results, reason) = (self.results.lock().to_client_json(), denied_by.denial_reason());
        if denied_by.is_soft {
            return denial::soft_denial(state, &self.subject, &results, &reason, api_format);
        }
        denial::denial(state, &results, &reason, api_format)
    }

    /// Returns true if events with results may be in a stream.
    pub fn shows_results_in_streams(&self) -> bool {
        !self.is_strict && self.before.iter().chain(&self.after).any(|hook| !hook.is_async)
    }

    /// Runs the hooks after a successful response, and adds all results to it.
    pub async fn check_response(
        &self,
        executor: &RouteExecutor<'_>,
        mut response: UpstreamResponse,
    ) -> Result<UpstreamResponse> {
        let operation = self.subject.operation;
        let reading = self.subject.reading;
        if reading.unreadable_reason().is_none() {
            // Removes the results of a previous attempt, because each attempt has its own.
            self.results.lock().after.clear();
        }
        let framing = response.chunk_format(operation);
        let runs = response.is_success() && !self.after.is_empty() && reading.includes(Stage::Output);
        match framing {
            Some(framing) => self.check_stream(executor, response, framing, runs).await,
            None if runs || self.results.lock().has_visible() => {
                let collecting = self.collect(executor, &mut response);
                let Some(bytes) = executor.within_client_deadline(collecting).await? else {
                    return Ok(self.conclude_unreadable(executor, response, TOO_LARGE, runs));
                };
                if !delivery::is_uncompressed(response.headers()) {
                    response.incoming.body.put_back(bytes);
                    return Ok(self.conclude_unreadable(executor, response, COMPRESSED, runs));
                }
                if !runs {
                    self.append_results(&mut response, bytes, None).await?;
                    return Ok(response);
                }
                self.check_whole(executor, response, bytes).await
            }
            None => Ok(response),
        }
    }

    async fn check_whole(
        &self,
        executor: &RouteExecutor<'_>,
        mut response: UpstreamResponse,
        bytes: Bytes,
    ) -> Result<UpstreamResponse> {
        let copy = bytes.clone();
        let parse = move || {
            let body: Value = serde_json::from_slice(&copy).unwrap_or_default();
            let texts = if body.is_object() { response_texts(&body) } else { Vec::new() };
            let has_repeated_keys = body.is_object() && has_repeated_keys(&copy, &body);
            (body, texts, has_repeated_keys)
        };
        let (body, texts, has_repeated_keys) = run_offloaded(bytes.len(), parse).await?;
        if !has_known_texts(&texts) && is_pending(&body) {
            return self.conclude_pending(executor, response, bytes).await;
        }
        let unreadable = (!body.is_object() && response.status() != 204).then_some(UNREADABLE_RESPONSE);
        let run =
            self.run(executor.state, &self.after, self.response_subject(body, texts, bytes.len(), unreadable)).await;
        let denied_by = find_denial(&self.results.lock().after).cloned();
        if let Some(denied_by) = denied_by {
            let denial = self.deny(executor.state, &denied_by, response.api_format);
            return Ok(denial.with_usage_of_replaced(&bytes, self.subject.operation, None));
        }
        // A client may read a repeated key differently from these hooks, so it gets the JSON that they read.
        let changed = (run.is_changed || has_repeated_keys).then(|| write_response(run.subject));
        self.append_results(&mut response, bytes, changed).await?;
        Ok(response)
    }

    async fn check_stream(
        &self,
        executor: &RouteExecutor<'_>,
        mut response: UpstreamResponse,
        framing: StreamFraming,
        runs: bool,
    ) -> Result<UpstreamResponse> {
        if !delivery::is_uncompressed(response.headers()) {
            return Ok(self.conclude_unreadable(executor, response, COMPRESSED, runs));
        }
        let encoding = match framing {
            StreamFraming::SseEvents => StreamEncoding::SseEvents,
            StreamFraming::AwsFrames => StreamEncoding::AwsFrames,
            StreamFraming::JsonArrayItems => StreamEncoding::JsonArrayItems,
        };
        let sink = &executor.state.record_sink;
        let of_mode =
            |mode: StreamMode| self.after.iter().filter(move |hook| runs && hook.stream_mode() == mode).cloned();
        let waiting = self.count_waiting_hooks(Stage::Output);
        let of_client = self.after[..waiting].iter().filter(|hook| hook.stream_mode() == StreamMode::Window);
        let has_waiting = of_client.count() > 0;
        let mut stream_hooks = StreamHooks { window: of_mode(StreamMode::Window).collect(), end: Vec::new() };
        self.results.lock().redacts_stream = stream_hooks.window.iter().any(|hook| hook.may_redact());
        // The items of an array are only complete at its end.
        let must_hold = of_mode(StreamMode::Hold).next().is_some()
            || !stream_hooks.window.is_empty() && encoding == StreamEncoding::JsonArrayItems
            // The other hooks must check the text that one of them writes.
            || stream_hooks.window.len() > 1
                && (has_waiting || stream_hooks.window.iter().any(|hook| may_rewrite(hook)));
        if !must_hold {
            stream_hooks.end = of_mode(StreamMode::End).collect();
            if self.results.lock().has_failed() {
                response.incoming.head.status = FAILED_STATUS;
            }
            stream_end::attach(self, &mut response, encoding, stream_hooks, sink);
            return Ok(response);
        }
        let operation = self.subject.operation;
        let share = executor.state.shared.recovery_memory.new_permit();
        let holding = response.buffer_stream(framing, operation, share);
        if !executor.within_client_deadline(holding).await? {
            return Ok(self.conclude_unreadable(executor, response, TOO_LARGE, runs));
        }
        let bytes = response.incoming.body.buffered_bytes().cloned().unwrap_or_default();
        let copy = bytes.clone();
        let texts = run_offloaded(bytes.len(), move || StreamTexts::read(encoding, &copy).ok()).await?;
        let parts = texts.as_ref().map(|texts| texts.parts().to_vec()).unwrap_or_default();
        let unreadable = texts.is_none().then_some(UNREADABLE_STREAM);
        let run = self
            .run(executor.state, &self.after, self.response_subject(Value::Null, parts, bytes.len(), unreadable))
            .await;
        let denied_by = find_denial(&self.results.lock().after).cloned();
        if let Some(denied_by) = denied_by {
            let denial = self.deny(executor.state, &denied_by, response.api_format);
            return Ok(denial.with_usage_of_replaced(&bytes, operation, Some(framing)));
        }
        if let Some(texts) = texts.filter(|texts| run.is_changed || texts.has_repeated_keys()) {
            let new: Vec<String> = run.subject.texts.iter().map(|part| part.text.clone()).collect();
            let changed = run_offloaded(bytes.len(), move || texts.with_texts(&new)).await?;
            response.incoming.body = ResponseBody::from_bytes(changed.into());
        }
        if self.results.lock().has_failed() {
            response.incoming.head.status = FAILED_STATUS;
        }
        stream_end::attach(self, &mut response, encoding, StreamHooks::default(), sink);
        Ok(response)
    }

    /// Returns the subject that the hooks after the response check.
    fn response_subject(
        &self,
        response: Value,
        texts: Vec<TextPart>,
        body_bytes: usize,
        unreadable: Option<&'static str>,
    ) -> Arc<HookSubject> {
        let HookSubject { operation, reading, provider, model, is_streaming, metadata, headers, request, .. } =
            &*self.subject;
        Arc::new(HookSubject {
            stage: Stage::Output,
            operation: *operation,
            reading: *reading,
            provider,
            model: model.clone(),
            is_streaming: *is_streaming,
            metadata: metadata.clone(),
            headers: headers.clone(),
            added_headers: Vec::new(),
            request: Arc::clone(request),
            response,
            texts,
            body_bytes,
            unreadable,
        })
    }

    /// Ends the checks of a response that cannot be read: denying hooks deny it, all others are skipped.
    fn conclude_unreadable(
        &self,
        executor: &RouteExecutor<'_>,
        mut response: UpstreamResponse,
        reason: &'static str,
        runs: bool,
    ) -> UpstreamResponse {
        if runs {
            let results: Vec<_> = self.after.iter().map(|hook| runner::unreadable_result(hook, reason)).collect();
            count(&executor.state.record_sink, &results);
            let denied_by = find_denial(&results).cloned();
            self.results.lock().after = results;
            if let Some(denied_by) = denied_by {
                return self.deny(executor.state, &denied_by, response.api_format).with_unknown_usage();
            }
        }
        if response.is_success() && self.results.lock().has_failed() {
            response.incoming.head.status = FAILED_STATUS;
        }
        response
    }

    /// Ends the checks of a background response that is not complete. It is checked when the client fetches it.
    async fn conclude_pending(
        &self,
        executor: &RouteExecutor<'_>,
        mut response: UpstreamResponse,
        bytes: Bytes,
    ) -> Result<UpstreamResponse> {
        let skip = |hook: &Arc<Hook>| runner::skipped_result(hook, PENDING, false);
        let results: Vec<_> = self.after.iter().map(skip).collect();
        count(&executor.state.record_sink, &results);
        self.results.lock().after = results;
        self.append_results(&mut response, bytes, None).await?;
        Ok(response)
    }

    /// Collects a whole response; `None` if it is too large. Then its body still contains all bytes.
    async fn collect(&self, executor: &RouteExecutor<'_>, response: &mut UpstreamResponse) -> Result<Option<Bytes>> {
        let mut share = executor.state.shared.recovery_memory.new_permit();
        let body = &mut response.incoming.body;
        if let Some(bytes) = body.buffered_bytes() {
            return Ok(Some(bytes.clone()));
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = body.next_chunk().await.transpose()? {
            bytes.extend_from_slice(&chunk);
            if !share.try_reserve(chunk.len()) {
                body.put_back(bytes.into());
                return Ok(None);
            }
        }
        Ok(Some(Bytes::from_owner(BudgetedBytes { bytes, permit: share })))
    }

    /// Adds the results to a JSON body and sets the status. `changed` writes the body if hooks changed it.
    async fn append_results(
        &self,
        response: &mut UpstreamResponse,
        bytes: Bytes,
        changed: Option<WriteBody>,
    ) -> Result<()> {
        let (results, has_failed) = {
            let results = self.results.lock();
            let json = results.has_visible().then(|| serde_json::to_vec(&results.client_view()).unwrap_or_default());
            (json, results.has_failed())
        };
        if has_failed && response.is_success() {
            response.incoming.head.status = FAILED_STATUS;
        }
        if changed.is_none() && results.is_none() {
            response.incoming.body = ResponseBody::from_bytes(bytes);
            return Ok(());
        }
        let length = bytes.len();
        let body = run_offloaded(length, move || {
            let body = changed.and_then(|write| write()).map_or(bytes, Bytes::from);
            let Some(results) = results else { return body };
            let field = ("hook_results".to_owned(), results.into_boxed_slice());
            set_fields(&body, &[], &[field]).map_or(body, Bytes::from)
        })
        .await?;
        let head = &mut response.incoming.head;
        let kind = head.headers.get_str("content-type").unwrap_or("application/json").to_owned();
        head.headers = with_content_type(std::mem::take(&mut head.headers), kind.as_bytes());
        response.incoming.body = ResponseBody::from_bytes(body);
        Ok(())
    }
}

/// Returns a function that writes the response of a subject; `None` if it is no JSON object.
fn write_response(subject: Arc<HookSubject>) -> WriteBody {
    Box::new(move || subject.response.is_object().then(|| subject.response.to_string()))
}

/// Returns true if a background response is not complete.
fn is_pending(response: &Value) -> bool {
    matches!(response["status"].as_str(), Some("queued" | "in_progress"))
}

fn count(sink: &RecordSink, results: &[HookResult]) {
    let metrics = &sink.metrics;
    for result in results {
        match result.skipped {
            Some(_) => metrics.guardrails_skipped.add(1),
            None if result.denies => metrics.guardrails_denied.add(1),
            None if result.verdict => metrics.guardrails_passed.add(1),
            None => metrics.guardrails_failed.add(1),
        }
    }
}

/// Returns the first hook that denies. A denial with status 446 comes before one with status 200.
fn find_denial(results: &[HookResult]) -> Option<&HookResult> {
    let denials = || results.iter().filter(|result| result.denies);
    denials().find(|result| !result.is_soft).or_else(|| denials().next())
}
