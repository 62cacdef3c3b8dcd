//! Attempts at one target: a cached response if there is one, else as many requests as the config allows.

use std::{
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use penstock_net::body::Body;

use super::explain;
use crate::response::delivery::ResumePoint;
use crate::{
    accounting::{
        record::{RequestLog, details::find_error_message},
        routing_decision::{CacheStatus, RoutingStep, elapsed_ms},
    },
    config::Node,
    endpoints::{
        limit_admission, realtime,
        target_endpoint::{self, serve_at_target},
    },
    error::{Error, ErrorOrigin, Result},
    features::{
        circuit_breaker::{BreakerPolicy, Verdict},
        parameters::Parameters,
        recovery::Mode,
        retry::{Backoff, Retry},
    },
    gateway_state::GatewayState,
    request::inference_profiles,
    resolve::{
        models::RequestedModel,
        target::{ResponseCoding, StreamUsage, Target},
    },
    response::{
        delivery::{StreamFraming, UpstreamResponse},
        mask_secrets,
    },
    routing::{
        cache_lookup::CacheLookup,
        discarded_usage::{self, DiscardedResponse},
        executor::RouteExecutor,
        hooks::{self, TargetHooks},
        replay_body::PreparedBody,
    },
    state::shared::circuit_breakers::BreakerPermit,
};

/// Parameters and retry policy of a node that sets nothing: no changes, no retries.
static DEFAULT_FEATURES: LazyLock<(Parameters, Retry)> = LazyLock::new(Default::default);

/// Decision after an attempt.
enum AttemptDecision {
    /// Use this result.
    Accept,
    /// Do not retry, although the policy would; with the reason.
    Stop(&'static str),
    /// Retry after this delay.
    RetryAfter(Duration),
}

/// State of the attempts at one target.
struct RetryState {
    retry_count: i32,
    backoff: Backoff,
    /// Hash of the provider account, which is the key of the retry budget. Zero if no retries are allowed.
    account_hash: u64,
    is_replayable: bool,
    /// True if this is the single probe of a half-open circuit breaker.
    is_probe: bool,
}

impl RetryState {
    fn new(state: &GatewayState, retry: &Retry, target: &Target<'_>, is_probe: bool) -> Self {
        let backoff = Backoff::new(Duration::from_millis(state.settings.retry_backoff_ms));
        let mut account_hash = 0;
        if retry.max_retries() > 0 {
            let (credential, options) = (target.credential.as_deref(), target.options.canonical_string());
            account_hash = state.shared.keyed_hash_in_config(false, (&target.base_url.origin, credential, options));
            state.shared.retry_budgets.count_request(account_hash, state.shared.now());
        }
        Self { retry_count: 0, backoff, account_hash, is_replayable: false, is_probe }
    }

    fn evaluate(
        &mut self,
        executor: &RouteExecutor<'_>,
        retry: &Retry,
        guard: Option<&BreakerGuard<'_>>,
        result: &Result<UpstreamResponse>,
    ) -> AttemptDecision {
        let (is_wanted, retry_after) = match result {
            Ok(response) => (
                retry.is_retryable_status(response.status()),
                retry.requested_wait(response.status(), response.headers()),
            ),
            // Errors that the gateway raises itself would only repeat.
            Err(error) => (
                error.is_network_error() || is_upstream_error(error) && retry.is_retryable_status(error.status()),
                None,
            ),
        };
        if !is_wanted || retry.max_retries() == 0 {
            return AttemptDecision::Accept;
        }
        if self.is_probe {
            return AttemptDecision::Stop("the half-open circuit breaker allows one attempt");
        }
        if i64::from(self.retry_count) >= i64::from(retry.max_retries()) {
            return AttemptDecision::Stop("all retries are used");
        }
        if !self.is_replayable {
            return AttemptDecision::Stop("the request body was streamed and cannot be sent again");
        }
        if guard.is_some_and(|guard| guard.is_open(executor.state)) {
            return AttemptDecision::Stop(BREAKER_OPENED);
        }
        let Some(wait) = self.backoff.next_wait(retry_after, fastrand::f64()) else {
            return AttemptDecision::Stop("the retry delay would be too long");
        };
        if executor.time_left().is_some_and(|remaining| remaining <= wait) {
            return AttemptDecision::Stop("the request timeout would pass first");
        }
        let shared = &executor.state.shared;
        let is_within = shared.retry_budgets.admit_retry(self.account_hash, shared.now());
        if !is_within {
            executor.state.record_sink.metrics.retries_denied.add(1);
            return AttemptDecision::Stop("the retry budget is exhausted");
        }
        AttemptDecision::RetryAfter(wait)
    }
}

const BREAKER_OPENED: &str = "the circuit breaker opened";

/// Circuit breaker of a target, with this request's permit to send.
struct BreakerGuard<'w> {
    policy: &'w BreakerPolicy,
    permit: BreakerPermit,
}

impl BreakerGuard<'_> {
    /// Records the result of an attempt in the circuit breaker.
    fn record_result(&mut self, state: &GatewayState, target: &Target<'_>, result: &Result<UpstreamResponse>) {
        let failed = match result {
            Ok(response) => self.policy.is_failure(Some(response.status())),
            // The error is not the target's fault, so it does not count.
            Err(error) if !is_target_fault(error, target) => return,
            Err(_) => self.policy.is_failure(None),
        };
        if self.permit.record_outcome(self.policy, state.shared.now(), failed) {
            state.record_sink.metrics.breakers_opened.add(1);
        }
    }

    fn is_open(&self, state: &GatewayState) -> bool {
        self.permit.has_breaker_opened(self.policy, state.shared.now())
    }
}

/// Returns true if the target caused the error. A timeout that the client set shorter than the config's is not the
/// target's fault.
fn is_target_fault(error: &Error, target: &Target<'_>) -> bool {
    let is_hurried = matches!(error, Error::Timeout { milliseconds } if u128::from(*milliseconds) < target.configured_timeout.as_millis());
    is_upstream_error(error) && !is_hurried
}

fn is_upstream_error(error: &Error) -> bool {
    error.origin() == ErrorOrigin::Upstream
}

impl<'w> RouteExecutor<'w> {
    /// Tries one leaf node of the config: cache lookup first, then requests with retries.
    pub async fn try_target(&mut self, node: &'w Node) -> Result<UpstreamResponse> {
        let breaker_permit = self.breaker_permit.take();
        self.update_decision(|decision| {
            decision.selected_target.clone_from(&node.path);
            // Resets the values of the previous target.
            (decision.retry_count, decision.cache_status) = (0, CacheStatus::Disabled);
            decision.has_retry_policy |= node.features.retry.is_configured();
        });
        let (mut target, prepared, denied) = match Box::pin(self.prepare_target(node)).await {
            Ok(ready) => ready,
            Err(error) => {
                let (at, code) = (node.path.clone(), error.code());
                self.record_step(|| RoutingStep::Failed { at, error: code });
                return Err(error);
            }
        };
        if let Some(denied) = denied {
            limit_admission::report_unused_limits(self.state, self.client_request, &target, self.log);
            self.replay_body.restore(prepared.body);
            return Ok(denied);
        }
        let cache_lookup = CacheLookup::for_target(self, node, &target, &prepared.body).await;
        if self.client_request.control.should_explain() {
            let breaker =
                breaker_permit.as_ref().filter(|breaker_permit| breaker_permit.is_probe()).map(|_| Verdict::HalfOpen);
            let breaker = breaker.or_else(|| self.breaker_verdict(node));
            let mut report =
                Box::pin(explain::summarise_target(self, node, &target, &prepared, cache_lookup.as_ref())).await;
            report["breaker"] = breaker.map(Verdict::name).into();
            self.update_decision(|decision| decision.target_report = Some(report));
        }
        let lookup_started_at = Instant::now();
        let cached = match &cache_lookup {
            Some(cache_lookup) => cache_lookup.find_cached(self, &target).await,
            None => None,
        };
        self.log.details.cache_time = cache_lookup.as_ref().map(|_| lookup_started_at.elapsed());
        if let Some(response) = cached {
            let at = node.path.clone();
            self.record_step(|| RoutingStep::CacheHit { at });
            self.log.clear_attempt();
            limit_admission::report_unused_limits(self.state, self.client_request, &target, self.log);
            let Some(hooks) = &self.hooks else { return Ok(response) };
            let mut response = Box::pin(hooks.decorate_cached(response)).await?;
            hooks.restore_values(&mut response);
            return Ok(response);
        }
        let mut response = self
            .send_with_retries(node, &mut target, prepared.into_body(self.client_request).await?, breaker_permit)
            .await?;
        response.resume_point = ResumePoint::from_response(self, node, &response);
        if let Some(cache_lookup) = cache_lookup {
            cache_lookup.prepare_store(self, &response);
        }
        if let Some(hooks) = &self.hooks {
            hooks.restore_values(&mut response);
        }
        Ok(response)
    }

    /// Prepares body and target of a node, and runs the hooks before the request. Also returns the response to the
    /// client if they deny the request.
    async fn prepare_target(&mut self, node: &'w Node) -> Result<(Target<'w>, PreparedBody, Option<UpstreamResponse>)> {
        self.hooks = None;
        self.log.begin_target();
        let mut prepared = self.replay_body.prepare(self.parameters_for(node)).await?;
        let checked = match self.resolve_target(node, &mut prepared).await {
            Ok(target) => self.check_request(node, &target, &mut prepared).await.map(|denied| (target, denied)),
            Err(error) => Err(error),
        };
        let checked = checked.map(|(mut target, denied)| {
            if let Some(hooks) = &self.hooks {
                target.check_headers.extend_from_slice(hooks.added_headers());
                if hooks.needs_plain_response() {
                    target.response_coding = ResponseCoding::Uncompressed;
                }
            }
            (target, denied)
        });
        match checked {
            Ok((target, denied)) => Ok((target, prepared, denied)),
            Err(error) => {
                self.replay_body.restore(prepared.body);
                Err(error)
            }
        }
    }

    /// Runs the hooks before the request. Returns the response to the client if they deny the request.
    async fn check_request(
        &mut self,
        node: &'w Node,
        target: &Target<'_>,
        prepared: &mut PreparedBody,
    ) -> Result<Option<UpstreamResponse>> {
        let is_exempt = self.is_dry_run || self.client_request.head.is_guardrail_question;
        if is_exempt || hooks::reads_checked_batch(self).await {
            return Ok(None);
        }
        let Some(mut hooks) = TargetHooks::for_target(self, node, target, prepared).await? else { return Ok(None) };
        self.log.details.set_hook_results(hooks.results().clone());
        let denied = hooks.check_request(self, node, prepared).await?;
        self.hooks = Some(hooks);
        Ok(denied)
    }

    /// Returns the parameters that the node sets in bodies, or an empty set if the client asked to forward its body
    /// unchanged.
    pub fn parameters_for(&self, node: &'w Node) -> &'w Parameters {
        if self.client_request.control.is_nitro_mode() { &DEFAULT_FEATURES.0 } else { &node.features.parameters }
    }

    /// Returns the retry policy of a node, or one without retries if the client asked to forward its request unchanged.
    pub fn retry_policy(&self, node: &'w Node) -> &'w Retry {
        if self.client_request.control.is_nitro_mode() { &DEFAULT_FEATURES.1 } else { &node.features.retry }
    }

    /// Resolves the target of a node and prepares the body for it.
    pub async fn resolve_target(&mut self, node: &'w Node, prepared: &mut PreparedBody) -> Result<Target<'w>> {
        if let Some(model) = self.non_json_model_override(node) {
            prepared.set_model(self.client_request, &model).await?;
        }
        if let Some(model) = self.parameters_for(node).shorten_model(&prepared.model).map(ToOwned::to_owned) {
            prepared.set_model(self.client_request, &model).await?;
        }
        let model = std::mem::take(&mut prepared.model);
        let (mut target, model_override) = self.resolver.resolve_target(self.plan, node, &model)?;
        let operation = self.client_request.route.operation;
        self.log.provider = target.provider.slug();
        target_endpoint::check_operation(operation, &target)?;
        match model_override {
            Some(model) => prepared.set_model(self.client_request, model).await?,
            None => prepared.model = model,
        }
        self.log.model.clone_from(&prepared.model);
        self.log.is_streaming = prepared.is_streaming;
        // The model in a WebSocket's query is replaced when the request is sent.
        let in_query = if self.is_websocket { &self.replay_body.model } else { &self.log.model };
        let requested = RequestedModel { model: &self.log.model, in_query };
        target.apply_model(self.client_request, requested, prepared.body.complete_bytes())?;
        if let (false, Some(lookup)) = (self.is_dry_run, target.provider.model_lookup(&target.options, &self.log.model))
        {
            Box::pin(inference_profiles::resolve_backing_model(self.state, operation, &mut target, lookup, self.log))
                .await;
        }
        target_endpoint::reject_untranslated_passthrough(self.client_request, &target, &self.log.model)?;
        if self.parameters_for(node).overrides_or_drops("stream_options") {
            target.stream_usage = StreamUsage::AsConfigured;
        }
        if node.features.reads_response(self.client_request.route, &self.client_request.head.method)
            || hooks::read_responses(self.resolver, node)
        {
            target.response_coding = ResponseCoding::Uncompressed;
        }
        Ok(target)
    }

    /// Returns the node's model override for requests that name their model in a form or in a WebSocket query instead
    /// of JSON.
    fn non_json_model_override(&self, node: &Node) -> Option<String> {
        let is_named = self.is_websocket || self.client_request.route.operation.has_model_in_form();
        if is_named && self.replay_body.as_json().is_none() { self.parameters_for(node).model_override() } else { None }
    }

    /// Sends the request and retries as the config allows. Stops if the target's circuit breaker opens in the meantime.
    pub async fn send_with_retries(
        &mut self,
        node: &'w Node,
        target: &mut Target<'w>,
        mut body: Body,
        breaker_permit: Option<BreakerPermit>,
    ) -> Result<UpstreamResponse> {
        let state = self.state;
        self.log.details.target_path = Some(Arc::clone(&node.path));
        let (timeout, retry) = (target.timeout, self.retry_policy(node));
        let policy = node.features.circuit_breaker.policy();
        let mut guard =
            policy.zip(breaker_permit).map(|(policy, breaker_permit)| BreakerGuard { policy, permit: breaker_permit });
        let is_probe = guard.as_ref().is_some_and(|guard| guard.permit.is_probe());
        let mut retry_state = RetryState::new(state, retry, target, is_probe);
        loop {
            target.timeout = self.time_left().map_or(timeout, |remaining| remaining.min(timeout));
            let next = body.try_clone();
            let sent_body = self.replay_body.check_out(body);
            let result = self.send_once(node, target, sent_body).await;
            if let Some(guard) = &mut guard {
                guard.record_result(state, target, &result);
            }
            retry_state.is_replayable = next.is_some() || self.replay_body.can_resend();
            let wait = match retry_state.evaluate(self, retry, guard.as_ref(), &result) {
                AttemptDecision::Accept => {
                    self.update_decision(|decision| decision.retry_count = retry_state.retry_count);
                    return result;
                }
                AttemptDecision::Stop(reason) => return self.stop_retrying(node, reason, result),
                AttemptDecision::RetryAfter(wait) => wait,
            };
            // Another target may win a race during the wait.
            self.end_unbilled_attempt(&result);
            tokio::time::sleep(wait).await;
            // Other requests may have opened the breaker during the wait. Then this result is final.
            if guard.as_ref().is_some_and(|guard| guard.is_open(state)) {
                return self.stop_retrying(node, BREAKER_OPENED, result);
            }
            // `evaluate` made sure that a body is available.
            body = next.or_else(|| self.replay_body.reclaim()).unwrap_or_else(Body::empty);
            let discarded = self.describe_discarded(&result);
            self.charge_discarded(discarded).await;
            if let Ok(response) = result {
                Box::pin(response.discard()).await;
            }
            state.record_sink.metrics.retries.add(1);
            retry_state.retry_count += 1;
        }
    }

    /// Records why there is no further retry and returns the last result.
    fn stop_retrying(
        &mut self,
        node: &Node,
        reason: &'static str,
        result: Result<UpstreamResponse>,
    ) -> Result<UpstreamResponse> {
        self.update_decision(|decision| decision.retry_count = -1);
        let at = node.path.clone();
        self.record_step(|| RoutingStep::Stopped { at, reason });
        result
    }

    /// Sends one request. A response that breaks off before its first bytes could be sent to the client counts as
    /// failed.
    async fn send_once(&mut self, node: &'w Node, target: &Target<'_>, body: Body) -> Result<UpstreamResponse> {
        let started_at = Instant::now();
        let earlier_attempts = self.log.details.attempts.len();
        let attempted = if self.is_websocket {
            Box::pin(realtime::upgrade_target(
                self.state,
                self.client_request,
                target,
                &self.replay_body.model,
                self.log,
            ))
            .await
        } else {
            serve_at_target(self.state, self.client_request, target, body, self.log).await
        };
        let mut result = match attempted {
            Ok(mut response) => match self.await_first_chunk(node, &mut response).await {
                Ok(()) => match &self.hooks {
                    Some(hooks) => {
                        let is_billed = response.is_success();
                        let checked = Box::pin(hooks.check_response(self, response)).await;
                        charge_timed_out(self.log, is_billed, &checked);
                        checked.inspect(|response| discarded_usage::record_replaced(self.log, response))
                    }
                    None => Ok(response),
                },
                Err(error) if error.has_upstream_text() => {
                    // Boxed, because an inline future would enlarge the future of every request.
                    Box::pin(mask_secrets::mask_failure(self.state, target, Err(error))).await
                }
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        if let (Some(hooks), Err(error)) = (&self.hooks, &mut result) {
            hooks.hide_unread_text(error);
        }
        if let Some(message) = self.find_shown_message(&result) {
            let message = mask_secrets::mask_recorded_message(self.state, target, &message);
            self.log.details.describe_new_attempt(earlier_attempts, message.into());
        }
        let (status, error) = match &result {
            Ok(response) => (Some(response.status()), None),
            Err(error) => (None, Some(error.code())),
        };
        let (at, provider) = (node.path.clone(), target.provider.slug());
        self.record_step(|| RoutingStep::Tried { at, provider, status, error, milliseconds: elapsed_ms(started_at) });
        result
    }

    /// Returns the message of the provider's error if the record may show it. Guardrails may have to redact the text,
    /// and without bodies no text of the provider is recorded.
    fn find_shown_message(&self, result: &Result<UpstreamResponse>) -> Option<String> {
        let Ok(response) = result else { return None };
        if self.hooks.is_some() || !self.log.bodies.may_show_texts() {
            return None;
        }
        response.error_body().and_then(find_error_message)
    }

    /// Waits for the first chunk of the response, or for all of it if streams are buffered.
    async fn await_first_chunk(&mut self, node: &'w Node, response: &mut UpstreamResponse) -> Result<()> {
        if node.features.recovery.mode() == Mode::Hold
            && let Some(framing) = response.chunk_format(self.client_request.requested_operation())
        {
            return Box::pin(self.buffer_stream(node, response, framing)).await;
        }
        // Waits for the first chunk without limit if other targets remain or heartbeats are off. Otherwise the stream
        // starts after one heartbeat interval.
        let max_wait = match self.state.settings.heartbeat_ms {
            0 => Duration::MAX,
            _ if self.has_alternatives => Duration::MAX,
            beat => Duration::from_millis(beat),
        };
        let operation = self.client_request.requested_operation();
        response.await_body_start(operation, max_wait).await?;
        let counts_failures = node.features.circuit_breaker.policy().is_some();
        let can_retry = self.has_alternatives || self.retry_policy(node).max_retries() > 0;
        if can_retry || counts_failures || response.may_be_empty_stream() {
            return Box::pin(response.reject_failed_beginning(operation, max_wait)).await;
        }
        Ok(())
    }

    /// Buffers the complete stream, if the memory budget allows it.
    async fn buffer_stream(
        &mut self,
        node: &Node,
        response: &mut UpstreamResponse,
        framing: StreamFraming,
    ) -> Result<()> {
        let operation = self.client_request.requested_operation();
        let is_billed = response.is_success();
        let share = self.state.shared.recovery_memory.new_permit();
        // The client gets no data meanwhile, so the first chunk may take as long as the deadline allows.
        let holding = async {
            response.await_body_start(operation, Duration::MAX).await?;
            response.buffer_stream(framing, operation, share).await
        };
        let buffered = self.within_client_deadline(holding).await;
        charge_timed_out(self.log, is_billed, &buffered);
        let is_held = buffered?;
        let metrics = &self.state.record_sink.metrics;
        if is_held {
            metrics.streams_buffered.add(1);
        } else {
            metrics.stream_recovery_overflows.add(1);
            let at = node.path.clone();
            self.record_step(|| RoutingStep::BufferExceeded { at });
        }
        Ok(())
    }

    /// Waits for a response, at most until the client's deadline.
    ///
    /// # Errors
    /// `Error::Timeout` if the deadline passes first.
    pub async fn within_client_deadline<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(remaining) = self.time_left() else { return work.await };
        let late = |_| Error::Timeout { milliseconds: remaining.as_millis() as u64 };
        tokio::time::timeout(remaining, work).await.map_err(late)?
    }

    /// Returns the time left until the client's deadline. `None` if it set none.
    pub fn time_left(&self) -> Option<Duration> {
        self.client_deadline.map(|until| until.saturating_duration_since(tokio::time::Instant::now()))
    }

    pub fn set_cache_status(&mut self, status: CacheStatus) {
        let metrics = &self.state.record_sink.metrics;
        match status {
            CacheStatus::Hit => metrics.cache_hits.add(1),
            CacheStatus::Miss => metrics.cache_misses.add(1),
            CacheStatus::Refresh => metrics.cache_refreshes.add(1),
            CacheStatus::Disabled => (),
        }
        self.update_decision(|decision| decision.cache_status = status);
    }
}

/// Counts what a response holds if the client did not wait for its end: the provider bills it all the same.
fn charge_timed_out<T>(log: &mut RequestLog, is_billed: bool, received: &Result<T>) {
    if is_billed && matches!(received, Err(Error::Timeout { .. })) {
        DiscardedResponse::cancelled().charge(log);
    }
}
