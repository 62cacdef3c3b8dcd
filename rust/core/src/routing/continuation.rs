//! Continuation of broken streams. Asks another target to continue from the part of the response that the client
//! already received.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use penstock_llm::{
    operation::Operation,
    stream::{
        splice::{PriorUsage, StreamSplicer},
        transcript::{ResumeRequest, StreamFormat, Transcript},
    },
    tokens,
    usage::Usage,
};
use penstock_net::{ResponseBody, body::Body, memory_budget::MemoryPermit};

use crate::{
    accounting::{
        record::{Record, RequestLog},
        routing_decision::RoutingStep,
    },
    auth::caller,
    config::Node,
    error::Error,
    features::recovery::Mode,
    gateway_state::GatewayState,
    ingress::{control_headers::ControlHeaders, message::RequestHead, route::Route},
    limits::now_ms,
    resolve::{target::Target, target_resolver::ClientRequest},
    response::{
        client_response::{ClientResponse, ClientResponseBody},
        delivery::{self, ResumePoint, UpstreamResponse},
        response_stream::ResumeStream,
    },
    routing::{executor::RouteExecutor, hooks, replay_body::ReplayBody},
    state::snapshot::Snapshot,
    strategies::Strategy,
};
use std::pin::Pin;

/// Maximum number of times that one response is continued by another target.
const MAX_CONTINUATIONS: u8 = 5;
/// Why a target with guardrails cannot continue a stream.
const MUST_CHECK: &str = "its guardrails must check the whole request and response";

impl ResumePoint {
    /// Creates the resume point of a stream that may be continued; `None` for any other response.
    pub(crate) fn from_response(
        executor: &RouteExecutor<'_>,
        node: &Node,
        response: &UpstreamResponse,
    ) -> Option<Box<Self>> {
        if node.features.recovery.mode() != Mode::Continue || !is_readable_stream(response) {
            return None;
        }
        // A continuation would send the client's unchecked request, and its text would pass without a check.
        if hooks::may_decide(executor.resolver, node) {
            return None;
        }
        let (body, model) = (executor.replay_body.as_json()?.clone(), executor.replay_body.model.clone());
        let form = StreamFormat::for_operation(executor.client_request.requested_operation(), response.api_format);
        Some(Box::new(Self { request_body: body, model, target_path: node.path.clone(), transcript_format: form }))
    }
}

fn is_readable_stream(response: &UpstreamResponse) -> bool {
    response.is_event_stream() && delivery::is_uncompressed(response.headers())
}

/// State needed to ask another target to continue a stream, after routing of the original request has ended.
pub struct Continuation {
    state: Arc<GatewayState>,
    snapshot: Arc<Snapshot>,
    request_head: Arc<RequestHead>,
    resume_point: Box<ResumePoint>,
    /// Text that the client received so far; `None` if no target can continue it.
    transcript: Option<Transcript>,
    memory_permit: MemoryPermit,
    spent_tokens: PriorUsage,
    resume_count: u8,
}

impl ResumeStream for Continuation {
    fn record_events(&mut self, events: &Bytes) -> bool {
        let Some(transcript) = &mut self.transcript else { return true };
        let before = transcript.buffered_bytes();
        transcript.record_events(events.clone());
        self.memory_permit.try_reserve(transcript.buffered_bytes() - before)
    }

    fn heartbeat_interval(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.state.settings.heartbeat_ms)).filter(|every| !every.is_zero())
    }

    fn resume<'r>(
        &'r mut self,
        error: &'static str,
        record: &'r mut Record,
    ) -> Pin<Box<dyn Future<Output = Option<ResponseBody>> + Send + 'r>> {
        Box::pin(self.resume_stream(error, record))
    }
}

impl Continuation {
    /// Attaches a continuation to a streamed response, so that it can resume if it breaks.
    pub fn attach(
        state: &Arc<GatewayState>,
        snapshot: Arc<Snapshot>,
        head: Arc<RequestHead>,
        resume_point: Option<Box<ResumePoint>>,
        mut response: ClientResponse,
    ) -> ClientResponse {
        if let (Some(resume_point), ClientResponseBody::Stream(stream)) = (resume_point, &mut response.body) {
            stream.set_continuation(Box::new(Self {
                state: Arc::clone(state),
                snapshot,
                request_head: head,
                transcript: resume_point.transcript_format.map(Transcript::new),
                resume_point,
                memory_permit: state.shared.recovery_memory.new_permit(),
                spent_tokens: PriorUsage::default(),
                resume_count: 0,
            }));
        }
        response
    }

    /// Returns the body with which another target continues the broken stream; `None` if no target can.
    async fn resume_stream(&mut self, error: &'static str, record: &mut Record) -> Option<ResponseBody> {
        let log = &mut record.log;
        if let Some(reason) = self.refusal_reason() {
            if let Some(decision) = &mut log.decision {
                decision.add_step(RoutingStep::BrokeOff { at: self.resume_point.target_path.clone(), error });
                decision.add_step(RoutingStep::Stopped { at: self.resume_point.target_path.clone(), reason });
            }
            return None;
        }
        // A response that one target begins and another completes must not be cached.
        log.pending_cache_entry = None;
        self.resume_count += 1;
        let searched = log.implicit_searches();
        if let Some(holds) = &mut log.limits {
            holds.interrupt_attempt(now_ms());
        }
        let Some(resumed) = self.request_continuation(error, log).await else {
            if let Some(holds) = &mut log.limits {
                holds.resume_interrupted(now_ms());
            }
            return None;
        };
        let ResumedStream { response, request_body, target_path: at, repeated_text: repeated } = resumed;
        self.count_spent_tokens(log.model.clone()).await;
        let PriorUsage { input, output } = self.spent_tokens;
        log.billing.interrupted_usage = Some(Usage { input, output, is_estimated: true, ..Usage::default() });
        log.billing.interrupted_searches += searched;
        let operation = Route::parse(&self.request_head.method, &self.request_head.path)?.effective_operation();
        log.count_input = Some(self.state.record_sink.token_counter.retain_body(operation, &request_body));
        self.state.record_sink.metrics.streams_resumed.add(1);
        self.resume_point.target_path = at;
        let mut seam = StreamSplicer::new(self.transcript.as_ref()?, self.spent_tokens, repeated);
        Some(response.incoming.body.map_chunks(move |chunk| seam.push(chunk)))
    }

    /// Returns the reason why no target may continue the stream; `None` if one may.
    fn refusal_reason(&self) -> Option<&'static str> {
        let Some(transcript) = &self.transcript else { return Some("responses on this path cannot be continued") };
        transcript
            .resume_obstacle()
            .or((self.resume_count == MAX_CONTINUATIONS).then_some("the response reached its limit of continuations"))
    }

    /// Tries the successor targets in order and returns the first stream that continues the response.
    async fn request_continuation(&self, broke: &'static str, log: &mut RequestLog) -> Option<ResumedStream> {
        let Self { state, snapshot, request_head: head, resume_point, transcript, .. } = self;
        let transcript = transcript.as_ref()?;
        let control = ControlHeaders::parse(&head.headers, &state.settings.header_aliases);
        let client_request = ClientRequest::new(Route::parse(&head.method, &head.path)?, head, control);
        // Authenticate again: a token may have expired since the request arrived.
        let mut refused = |error: Error| {
            if let Some(decision) = &mut log.decision {
                decision.add_step(RoutingStep::BrokeOff { at: resume_point.target_path.clone(), error: broke });
                decision.add_step(RoutingStep::Failed { at: resume_point.target_path.clone(), error: error.code() });
            }
        };
        let require = state.settings.require_key;
        let token =
            caller::authenticate_token(snapshot, &head.headers, &client_request.control).map_err(&mut refused).ok()?;
        let admitted = caller::admit(token.as_ref(), snapshot, require, &head.headers, &client_request.control);
        let caller = admitted.map_err(&mut refused).ok()?;
        let resolver = state.target_resolver(snapshot, &client_request, &caller);
        let _prepared = resolver.prepare_config().await.ok()?;
        let plan = resolver.build_plan().map_err(&mut refused).ok()?;
        let mut replay_body =
            ReplayBody::new(&client_request, Body::Complete(resume_point.request_body.clone()), true, log)
                .await
                .ok()?;
        (replay_body.model, replay_body.is_streaming) = (resume_point.model.clone(), true);
        let (baseline, decision) = (log.fork(), log.decision.take());
        let mut executor = RouteExecutor::new(state, &resolver, &plan, log, replay_body);
        // The client's time limit applies to each of its reads, and it is reading now. The gateway's own timeouts bound
        // the continued response.
        (executor.log.decision, executor.client_deadline) = (decision, None);
        let at = resume_point.target_path.clone();
        executor.record_step(|| RoutingStep::BrokeOff { at, error: broke });
        // List the successors as a dry run. Each of them acquires its breaker permit when it is tried.
        executor.is_dry_run = true;
        let successors = list_successors(&mut executor, &plan.config.root, &resume_point.target_path);
        executor.is_dry_run = false;
        for node in successors {
            if let Some(rest) = executor.resume_on_target(node, transcript).await {
                return Some(rest);
            }
        }
        log.adopt_target(baseline);
        None
    }

    /// Counts the tokens of the streams so far: those of the prompts and those of the generated text.
    async fn count_spent_tokens(&mut self, model: String) {
        let text = self.transcript.as_ref().map_or_else(String::new, |transcript| transcript.text().to_owned());
        let body = self.resume_point.request_body.clone();
        let counting = tokio::task::spawn_blocking(move || {
            let encoding = tokens::encoding_for_model(&model);
            (tokens::count_request_body(encoding, &body).unwrap_or_default(), tokens::count_text(encoding, &text))
        });
        let (input, output) = counting.await.unwrap_or_default();
        // The continuing target received all text generated before as part of its input.
        self.spent_tokens = PriorUsage {
            input: self.spent_tokens.input + self.spent_tokens.output + input as u64,
            output: output as u64,
        };
    }
}

/// Stream of a target that continues a broken response.
struct ResumedStream {
    response: UpstreamResponse,
    /// Request body that was sent for the continuation.
    request_body: Bytes,
    /// Config path of the target that continues.
    target_path: Arc<str>,
    /// Beginning of the response that the target may repeat and that must then be skipped.
    repeated_text: String,
}

/// Returns the targets to try after the target at this path broke off. First comes the broken target itself, if it
/// allows retries or has no successors; then the targets to which it would have fallen back.
fn list_successors<'w>(executor: &mut RouteExecutor<'w>, root: &'w Node, path: &str) -> Vec<&'w Node> {
    let mut after = Vec::new();
    let Some(broken) = find_node_and_fallbacks(executor, root, path, &mut after) else { return after };
    if after.is_empty() || executor.retry_policy(broken).max_retries() > 0 {
        after.insert(0, broken);
    }
    after
}

/// Finds the node at a path; on the way back, collects the fallback targets that follow it.
fn find_node_and_fallbacks<'w>(
    executor: &mut RouteExecutor<'w>,
    node: &'w Node,
    path: &str,
    after: &mut Vec<&'w Node>,
) -> Option<&'w Node> {
    if *node.path == *path {
        return Some(node);
    }
    let contains_path =
        |target: &Node| path.strip_prefix(&*target.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let index = node.targets.iter().position(contains_path)?;
    let node_and_fallbacks = find_node_and_fallbacks(executor, &node.targets[index], path, after)?;
    if matches!(node.strategy, Strategy::Fallback(_)) {
        for later in &node.targets[index + 1..] {
            after.extend(executor.attempt_order(later).unwrap_or_default());
        }
    }
    Some(node_and_fallbacks)
}

impl<'w> RouteExecutor<'w> {
    /// Asks one target to continue the response; `None` if it cannot.
    async fn resume_on_target(&mut self, node: &'w Node, transcript: &Transcript) -> Option<ResumedStream> {
        let at = node.path.clone();
        let aimed = match self.replay_body.prepare(self.parameters_for(node)).await {
            Ok(mut prepared) => self.resolve_target(node, &mut prepared).await.map(|target| (target, prepared)),
            Err(error) => Err(error),
        };
        let (mut target, prepared) = match aimed {
            Ok(aimed) => aimed,
            Err(error) => {
                self.record_step(|| RoutingStep::Failed { at, error: error.code() });
                return None;
            }
        };
        let Body::Complete(body) = &prepared.body else { return None };
        if hooks::may_decide(self.resolver, node) {
            self.record_step(|| RoutingStep::CannotContinue { at, reason: MUST_CHECK });
            return None;
        }
        let ResumeRequest { body: resume_body, prefill: beginning } =
            match self.build_resume_request(node, &target, transcript, body) {
                Ok(again) => again,
                Err(reason) => {
                    self.record_step(|| RoutingStep::CannotContinue { at, reason });
                    return None;
                }
            };
        if !self.try_enter(node) {
            self.record_skip(node);
            return None;
        }
        let breaker_permit = self.breaker_permit.take();
        let resume_body = Bytes::from(resume_body);
        target.prefill = Some(&target.provider.row().prefill).filter(|_| !beginning.is_empty());
        let repeated =
            if target.prefill.is_some_and(|support| support.may_repeat_prefill) { beginning } else { String::new() };
        let response = self
            .send_with_retries(node, &mut target, Body::Complete(resume_body.clone()), breaker_permit)
            .await
            .ok()?;
        if !is_readable_stream(&response) {
            let result = Ok(response);
            let discarded = self.describe_discarded(&result);
            self.charge_discarded(discarded).await;
            if let Ok(response) = result {
                response.discard().await;
            }
            self.record_step(|| RoutingStep::CannotContinue { at, reason: "it did not return a readable stream" });
            return None;
        }
        let length = transcript.text().len();
        self.record_step(|| RoutingStep::Continued { at: at.clone(), text_bytes: length });
        self.update_decision(|decision| decision.selected_target.clone_from(&node.path));
        Some(ResumedStream { response, request_body: resume_body, target_path: at, repeated_text: repeated })
    }

    /// Builds the request that makes a target continue the response. The error is the reason why the target cannot.
    fn build_resume_request(
        &self,
        node: &Node,
        target: &Target<'_>,
        transcript: &Transcript,
        body: &[u8],
    ) -> Result<ResumeRequest, &'static str> {
        match self.continuation_refusal(node, target) {
            Some(reason) if !transcript.is_blank() => Err(reason),
            _ => transcript.build_resume_request(body).ok_or("the request has no content that can be continued"),
        }
    }

    /// Returns the reason why a target cannot continue the beginning of a response; `None` if it can. Text completions
    /// always can, because the beginning is part of the prompt.
    pub fn continuation_refusal(&self, node: &Node, target: &Target<'_>) -> Option<&'static str> {
        if hooks::may_decide(self.resolver, node) {
            return Some(MUST_CHECK);
        }
        let (provider, model) = (target.provider, &self.log.model);
        let is_native_format = target.provider_format(self.client_request.route.operation, model).is_none();
        let model_refusal = match self.client_request.requested_operation() {
            Operation::Complete if is_native_format => None,
            operation => provider
                .row()
                .prefill
                .unsupported_reason(model, is_native_format && operation == Operation::CreateModelResponse),
        };
        node.features.recovery.prefill_refusal(model_refusal)
    }
}
