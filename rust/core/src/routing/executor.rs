//! Route executor. Tries the targets of a config until one of them responds.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
};

use penstock_net::body::Body;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    accounting::{
        record::{RequestLog, recorded_bodies::RedactingHooks},
        routing_decision::{RoutingDecision, RoutingStep},
    },
    config::Node,
    endpoints::limit_admission,
    error::{Error, Result},
    features::{circuit_breaker::Verdict, timeout},
    gateway_state::GatewayState,
    request::body_fields::read_body_fields,
    resolve::{
        route_plan::{ConfigSource, RoutePlan},
        target_resolver::{ClientRequest, TargetResolver},
    },
    response::delivery::UpstreamResponse,
    routing::{
        fallback_level::{FallbackLevel, TriedFailure},
        hooks::{self, TargetHooks},
        replay_body::{MAX_INLINE_EDIT_BYTES, ReplayBody},
        upstream_response::triggers_fallback,
    },
    state::shared::{circuit_breakers::BreakerPermit, sticky_sessions::SessionAssignment},
    strategies::{
        Strategy,
        condition_input::{ConditionInput, PatternResults},
        fallback::FallbackPolicy,
        hedge::Hedge,
        loadbalance::{LoadBalancer, StickySession},
    },
};

/// Returns true if `route_request` must route the request. That is so if the config allows more than one attempt, the body
/// names the provider, or hooks check the request. It is also so if the client wants to know how it was routed.
pub(crate) fn needs_executor(resolver: &TargetResolver<'_>, plan: &RoutePlan<'_>) -> bool {
    let control = &resolver.client_request.control;
    let is_special = control.should_explain() || control.is_nitro_mode();
    !plan.config.is_plain || !plan.has_provider() || is_special || hooks::has_defaults(resolver)
}

/// Routes a request that needs the executor.
pub(crate) async fn route_request(
    state: &GatewayState,
    resolver: &TargetResolver<'_>,
    plan: &RoutePlan<'_>,
    body: Body,
    log: &mut RequestLog,
) -> Result<UpstreamResponse> {
    // Computed before the body is read, because the client waits during that time too.
    let until = resolver.client_request.control.client_timeout.and_then(timeout::client_deadline);
    let is_json = is_json_request(resolver.client_request);
    // JSON bodies are always buffered: conditions may read them, and an attempt may change or resend them.
    let body = if is_json { Body::Complete(body.with_limits(state.body_limits)?.collect().await?) } else { body };
    let body = read_body_fields(state.body_limits, resolver.client_request, body, log).await.map_err(|error| {
        match (&plan.config, error) {
            // An unreadable body cannot name a provider, so the missing provider is the error to report.
            (ConfigSource::None, Error::BodyInvalid { .. }) if !plan.has_provider() => Error::ProviderRequired,
            (_, error) => error,
        }
    })?;
    log.metadata.validate()?;
    limit_admission::admit_request(state, resolver.client_request, resolver.caller, log).await?;
    let redacting_hooks = if resolver.client_request.head.is_guardrail_question {
        RedactingHooks::new()
    } else {
        hooks::find_redacting_hooks(resolver, &plan.config)
    };
    let sink = &state.record_sink;
    let body = log.begin_record_with_redaction(resolver.client_request.head, sink, body, redacting_hooks).await;
    let operation = resolver.client_request.requested_operation();
    if let (true, Body::Complete(bytes)) = (operation.has_countable_text(), &body) {
        log.count_input = Some(state.record_sink.token_counter.retain_body(operation, bytes));
    }
    let replay_body = ReplayBody::new(resolver.client_request, body, is_json, log).await?;
    RouteExecutor { client_deadline: until, ..RouteExecutor::new(state, resolver, plan, log, replay_body) }.run().await
}

/// Routes a request whose model may carry a prefix that selects the provider.
pub(crate) async fn resolve_model_prefix(
    state: &GatewayState,
    resolver: &TargetResolver<'_>,
    plan: &RoutePlan<'_>,
    body: Body,
    log: &mut RequestLog,
) -> Result<UpstreamResponse> {
    let replay_body =
        ReplayBody::new(resolver.client_request, body, is_json_request(resolver.client_request), log).await?;
    RouteExecutor::new(state, resolver, plan, log, replay_body).run().await
}

fn is_json_request(client_request: &ClientRequest<'_>) -> bool {
    client_request.requested_operation().has_json_body() || client_request.head.headers.is_json()
}

/// Routes a WebSocket request whose config allows more than one attempt at one target.
pub(crate) async fn open_websocket(
    state: &GatewayState,
    resolver: &TargetResolver<'_>,
    plan: &RoutePlan<'_>,
    log: &mut RequestLog,
) -> Result<UpstreamResponse> {
    let replay_body = ReplayBody::new(resolver.client_request, Body::empty(), false, log).await?;
    RouteExecutor { is_websocket: true, ..RouteExecutor::new(state, resolver, plan, log, replay_body) }.run().await
}

/// Sticky session, and the index of its assigned target if an assignment is stored.
#[derive(Clone, Copy)]
struct StickyAssignment {
    session: StickySession,
    target_index: Option<usize>,
}

/// First attempt to make below a node.
enum FirstAttempt<'w> {
    Single(&'w Node),
    /// First target and the index of the second, which is tried too if the first does not respond in time.
    Hedged((&'w Node, usize), &'w FallbackPolicy, &'w Hedge),
}

/// Execution state of one request: the current attempt, and the limits on further attempts at the targets of its
/// config.
pub(crate) struct RouteExecutor<'w> {
    pub state: &'w GatewayState,
    pub resolver: &'w TargetResolver<'w>,
    pub plan: &'w RoutePlan<'w>,
    pub client_request: &'w ClientRequest<'w>,
    pub log: &'w mut RequestLog,
    pub replay_body: ReplayBody,
    /// Values of body fields that conditions read; `None` if the body is large and they are not picked yet.
    pub condition_params: Option<Vec<Option<Value>>>,
    /// Results of patterns that were matched in advance, because matching them takes long.
    pub pattern_results: Option<Arc<PatternResults>>,
    /// Time at which the client stops waiting.
    pub client_deadline: Option<Instant>,
    /// True if the client asks for a WebSocket.
    pub is_websocket: bool,
    /// True if another target may still respond instead of the current one.
    pub has_alternatives: bool,
    /// True for a dry run: nothing is sent and no shared state changes.
    pub is_dry_run: bool,
    /// Permit of the circuit breaker to send to the next target.
    pub breaker_permit: Option<BreakerPermit>,
    config_key: OnceLock<u64>,
    /// Guardrails of the current target. `None` if it has none.
    pub hooks: Option<Box<TargetHooks>>,
}

pub(crate) type RouteFuture<'g, T = Result<UpstreamResponse>> = Pin<Box<dyn Future<Output = T> + Send + 'g>>;

impl<'w> RouteExecutor<'w> {
    pub fn new(
        state: &'w GatewayState,
        resolver: &'w TargetResolver<'w>,
        plan: &'w RoutePlan<'w>,
        log: &'w mut RequestLog,
        replay_body: ReplayBody,
    ) -> Self {
        let names = &plan.config.condition_params;
        let is_small = replay_body.as_json().is_none_or(|bytes| bytes.len() <= MAX_INLINE_EDIT_BYTES);
        let condition_params = (names.is_empty() || is_small).then(|| replay_body.json_fields(names));
        let client_request = resolver.client_request;
        let client_deadline = client_request.control.client_timeout.and_then(timeout::client_deadline);
        log.decision =
            Some(Box::new(RoutingDecision::new(plan.config.root.strategy.name(), Arc::clone(&plan.config.root.path))));
        let (breaker_permit, config_key) = (None, OnceLock::new());
        let (is_websocket, has_alternatives, is_dry_run) = (false, false, false);
        Self {
            state,
            resolver,
            plan,
            client_request,
            log,
            replay_body,
            condition_params,
            pattern_results: None,
            client_deadline,
            is_websocket,
            has_alternatives,
            is_dry_run,
            breaker_permit,
            config_key,
            hooks: None,
        }
    }

    /// Creates a concurrent executor of the same request, for a hedged attempt.
    pub fn fork<'t>(&self, log: &'t mut RequestLog, replay_body: ReplayBody) -> RouteExecutor<'t>
    where
        'w: 't,
    {
        RouteExecutor {
            client_deadline: self.client_deadline,
            is_websocket: self.is_websocket,
            has_alternatives: true,
            is_dry_run: self.is_dry_run,
            config_key: self.config_key.clone(),
            pattern_results: self.pattern_results.clone(),
            condition_params: self.condition_params.clone(),
            ..RouteExecutor::new(self.state, self.resolver, self.plan, log, replay_body)
        }
    }

    /// Tries targets from the root of the config until one responds.
    pub async fn run(&mut self) -> Result<UpstreamResponse> {
        let plan = self.plan;
        if plan.config.root.targets.is_empty() {
            self.acquire_permit(&plan.config.root, true);
        }
        self.run_from(&plan.config.root).await
    }

    /// Tries targets from a node until one responds. If the node is a leaf, its breaker permit is already acquired.
    pub async fn run_from(&mut self, start: &'w Node) -> Result<UpstreamResponse> {
        self.prepare_conditions().await?;
        let mut node = start;
        let mut levels: Vec<FallbackLevel<'w>> = Vec::new();
        let mut last_failure: Option<Box<TriedFailure>> = None;
        let races = self.has_alternatives;
        loop {
            let result = match self.descend_to_first_attempt(node, &mut levels).await {
                Ok(FirstAttempt::Single(target)) => {
                    self.has_alternatives = races || levels.iter().any(FallbackLevel::has_next);
                    self.try_target(target).await
                }
                Ok(FirstAttempt::Hedged((first, second), fallback, hedge)) => {
                    let Some(level) = levels.last_mut() else { return Err(Error::NoMatchingTarget) };
                    let second_target = &level.node.targets[second];
                    let (result, tried) = self.race_targets(first, second_target, fallback, hedge).await;
                    if tried == 2 {
                        level.next_index = second + 1;
                    }
                    result
                }
                Err(error) => Err(error),
            };
            let next = self.next_after(&mut levels, &result);
            let result = match result {
                // A target that cannot be tried does not hide the failure of one that was tried.
                Err(error) if error.is_untried() && last_failure.is_some() => None,
                result => Some(result),
            };
            let Some(next) = next else {
                return match (result, last_failure) {
                    (Some(result), _) => result,
                    (None, Some(failure)) => failure.restore(self),
                    (None, None) => Err(Error::NoMatchingTarget),
                };
            };
            if let Some(result) = result {
                let discarded = self.describe_discarded(&result);
                self.charge_discarded(discarded).await;
                // Boxed, because an inline future would enlarge the future of every request.
                last_failure = Box::pin(TriedFailure::replace(last_failure, self, result)).await;
            }
            node = next;
        }
    }

    /// Descends to the first target to try. Groups that choose one target are passed through; fallback groups are
    /// pushed to `levels`, so that execution can return to them.
    async fn descend_to_first_attempt(
        &mut self,
        mut node: &'w Node,
        levels: &mut Vec<FallbackLevel<'w>>,
    ) -> Result<FirstAttempt<'w>> {
        while !node.targets.is_empty() {
            let Strategy::Fallback(fallback) = &node.strategy else {
                let assignment = match self.sticky_session(node) {
                    // Boxed, because few requests wait here and an inline future would enlarge the future of every
                    // request.
                    Some((balance, session)) => Some(Box::pin(self.assign_session(node, balance, session)).await),
                    None => None,
                };
                node = self.choose_target(node, assignment)?;
                continue;
            };
            let mut level = FallbackLevel::new(node, fallback);
            let first = self.next_target(&mut level);
            let second = fallback.hedge.as_ref().and_then(|hedge| Some((hedge, self.peek_next_index(&level)?)));
            levels.push(level);
            self.update_decision(|decision| decision.has_retry_policy = true);
            node = first.ok_or(Error::NoMatchingTarget)?;
            if let Some((hedge, second)) = second {
                return Ok(FirstAttempt::Hedged((node, second), fallback, hedge));
            }
        }
        Ok(FirstAttempt::Single(node))
    }

    /// Returns the target to try after this result. It comes from the innermost group that counts the result as a
    /// failure and has another target.
    fn next_after(
        &mut self,
        levels: &mut Vec<FallbackLevel<'w>>,
        result: &Result<UpstreamResponse>,
    ) -> Option<&'w Node> {
        while let Some(level) = levels.last_mut() {
            if triggers_fallback(level.policy, result) && level.has_next() {
                let reason = self.stop_reason();
                if let (None, Some(next)) = (reason, self.next_target(level)) {
                    return Some(next);
                }
                if let Some(reason) = reason {
                    let at = Arc::clone(&level.node.path);
                    self.record_step(|| RoutingStep::Stopped { at, reason });
                }
            }
            levels.pop();
        }
        None
    }

    /// Returns the next available target of a fallback group. If no target of the group is available, ignores the
    /// circuit breakers.
    fn next_target(&mut self, level: &mut FallbackLevel<'w>) -> Option<&'w Node> {
        let targets = &level.node.targets;
        if !level.ignores_breakers {
            let available_index = (level.next_index..targets.len()).find(|index| self.try_enter(&targets[*index]));
            level.ignores_breakers = available_index.is_none() && !level.has_tried_any;
            if !level.ignores_breakers {
                let available_index = available_index.unwrap_or(targets.len());
                targets[level.next_index..available_index].iter().for_each(|target| self.record_skip(target));
                level.next_index = available_index;
            }
        }
        let next = targets.get(level.next_index)?;
        if level.ignores_breakers && next.targets.is_empty() {
            self.acquire_permit(next, true);
        }
        // Logs count a request as a fallback by this step. A dry run lists every target anyway.
        if level.next_index > 0 && !self.is_dry_run {
            let (at, target) = (Arc::clone(&level.node.path), level.next_index);
            let strategy = level.node.strategy.name();
            self.record_step(|| RoutingStep::Chose { at, strategy, target, condition: None });
        }
        level.next_index += 1;
        level.has_tried_any = true;
        Some(next)
    }

    /// Returns the index of the target that would be next.
    fn peek_next_index(&self, level: &FallbackLevel<'w>) -> Option<usize> {
        let targets = &level.node.targets;
        (level.next_index..targets.len()).find(|index| level.ignores_breakers || self.is_available(&targets[*index]))
    }

    /// Returns true if a target, or one below it, accepts this request. For a leaf, also acquires its breaker permit.
    pub fn try_enter(&mut self, node: &Node) -> bool {
        if node.targets.is_empty() { self.acquire_permit(node, false) } else { self.is_available(node) }
    }

    /// Acquires a permit from the breaker of a target, if it has one. With `always`, an open breaker grants one too.
    fn acquire_permit(&mut self, node: &Node, always: bool) -> bool {
        self.breaker_permit = None;
        let Some(policy) = node.features.circuit_breaker.policy() else { return true };
        if self.is_dry_run {
            return always || self.is_available(node);
        }
        let shared = &self.state.shared;
        self.breaker_permit = shared.breakers.admit(self.target_key(node), policy, shared.now(), always);
        self.breaker_permit.is_some()
    }

    pub fn record_skip(&mut self, node: &Node) {
        if !self.is_dry_run {
            self.state.record_sink.metrics.breaker_skips.add(1);
        }
        let at = node.path.clone();
        self.record_step(|| RoutingStep::Skipped { at, breaker: Verdict::Open.name() });
    }

    /// Returns the target of a group to which the request continues.
    fn choose_target(&mut self, node: &'w Node, assignment: Option<StickyAssignment>) -> Result<&'w Node> {
        let (index, condition) = match &node.strategy {
            Strategy::Single | Strategy::Fallback(_) => (0, None),
            Strategy::LoadBalance(balance) => (self.pick_balanced(node, balance, assignment), None),
            Strategy::Conditional(conditional) => match conditional.choose_target(&self.condition_input()) {
                Some(selection) => selection,
                None => return Err(self.record_no_target(node)),
            },
        };
        let (at, strategy) = (node.path.clone(), node.strategy.name());
        self.record_step(|| RoutingStep::Chose { at, strategy, target: index, condition });
        let target = &node.targets[index];
        if target.targets.is_empty() && !matches!(node.strategy, Strategy::LoadBalance(_)) {
            // There is no alternative, so an open breaker is ignored.
            self.acquire_permit(target, true);
        }
        Ok(target)
    }

    /// Records that no condition matched and that there is no default target; returns the error.
    fn record_no_target(&mut self, node: &Node) -> Error {
        let (at, error) = (Arc::clone(&node.path), Error::NoMatchingTarget);
        self.record_step(|| RoutingStep::Failed { at, error: error.code() });
        error
    }

    /// Returns the sticky session of this request in a load-balancing group, if it has one.
    fn sticky_session(&self, node: &'w Node) -> Option<(&'w LoadBalancer, StickySession)> {
        let Strategy::LoadBalance(balance) = &node.strategy else { return None };
        Some((balance, balance.sticky_session(&self.condition_input())?))
    }

    /// Assigns a session to a target. Workers that share a Redis use the assignment that the first of them stored.
    async fn assign_session(&self, node: &Node, balance: &LoadBalancer, session: StickySession) -> StickyAssignment {
        let shared = &self.state.shared;
        if shared.redis.is_none() {
            return StickyAssignment { session, target_index: None };
        }
        let key = self.session_key(node, &session);
        let preferred = SessionAssignment { key, target: balance.default_target_hash(&session), ttl: session.ttl };
        let is_there = |target: u64| balance.find_target_index(target).is_some();
        let target = shared.sticky_sessions.assign_target(preferred, shared.now(), is_there).await;
        StickyAssignment { session, target_index: target.and_then(|target| balance.find_target_index(target)) }
    }

    /// Returns the assignment that this worker knows, without creating one. Used by dry runs.
    fn local_assignment(&self, node: &Node, balance: &LoadBalancer, session: StickySession) -> StickyAssignment {
        let shared = &self.state.shared;
        let target = shared.sticky_sessions.cached_target(self.session_key(node, &session), shared.now());
        StickyAssignment { session, target_index: target.and_then(|target| balance.find_target_index(target)) }
    }

    /// Returns the key of a session in a group of this config.
    fn session_key(&self, node: &Node, session: &StickySession) -> u64 {
        self.state.shared.keyed_hash((self.config_key(), &node.path, session.hash))
    }

    /// Picks an available target by weight or by session, and acquires its permit. If none is available, picks among
    /// all.
    fn pick_balanced(&mut self, node: &Node, balance: &LoadBalancer, assignment: Option<StickyAssignment>) -> usize {
        let mut available = self.available_targets(node);
        loop {
            let is_available = |index: usize| available.as_ref().is_some_and(|available| available[index]);
            let is_available: Option<&dyn Fn(usize) -> bool> =
                if available.is_some() { Some(&is_available) } else { None };
            let index = match assignment {
                None => balance.pick_random(fastrand::f64(), is_available),
                Some(StickyAssignment { target_index: Some(index), .. })
                    if is_available.is_none_or(|is_available| is_available(index)) =>
                {
                    index
                }
                Some(StickyAssignment { session, .. }) => balance.pick_by_hash(session.hash, is_available),
            };
            let target = &node.targets[index];
            // An unavailable target is picked only if no available one has a weight.
            let is_last = available.as_ref().is_none_or(|available| !available[index]);
            if !target.targets.is_empty() || self.acquire_permit(target, is_last) {
                return index;
            }
            // Another request has just taken the probe permit of this target.
            if let Some(available) = &mut available {
                available[index] = false;
            }
        }
    }

    /// Returns all targets that would be tried if each of them failed, in order.
    pub fn attempt_order(&mut self, node: &'w Node) -> Result<Vec<&'w Node>> {
        if node.targets.is_empty() {
            return Ok(vec![node]);
        }
        let Strategy::Fallback(fallback) = &node.strategy else {
            let assignment =
                self.sticky_session(node).map(|(balance, session)| self.local_assignment(node, balance, session));
            let selected = self.choose_target(node, assignment)?;
            return self.attempt_order(selected);
        };
        let (mut all, mut refused) = (Vec::new(), None);
        let mut level = FallbackLevel::new(node, fallback);
        while let Some(target) = self.next_target(&mut level) {
            if let (true, Some(hedge), Some(second)) = (all.is_empty(), &fallback.hedge, self.peek_next_index(&level)) {
                let (at, after) = (Arc::clone(&node.targets[second].path), hedge.to_string());
                self.record_step(|| RoutingStep::WouldHedge { at, after });
            }
            match self.attempt_order(target) {
                Ok(below) => all.extend(below),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if all.is_empty() => Err(error),
            _ => Ok(all),
        }
    }

    /// Returns the reason why no further target may be tried; `None` if one may.
    pub fn stop_reason(&self) -> Option<&'static str> {
        if !self.replay_body.can_resend() {
            return Some("the request body was streamed and cannot be sent again");
        }
        self.client_deadline.filter(|until| *until <= Instant::now()).map(|_| "the request timeout has passed")
    }

    /// Returns the request data that conditions and sticky fields can read.
    pub fn condition_input(&self) -> ConditionInput<'_> {
        ConditionInput {
            metadata: &self.log.metadata,
            params: self.condition_params.as_deref().unwrap_or_default(),
            path: &self.client_request.head.path,
            pattern_results: self.pattern_results.as_deref(),
        }
    }

    /// Returns which targets of a node are available. `None` if all are, or if none is, because breakers are then
    /// ignored.
    fn available_targets(&mut self, node: &Node) -> Option<Vec<bool>> {
        if !node.subtree.has_breaker {
            return None;
        }
        let available: Vec<_> = node.targets.iter().map(|target| self.is_available(target)).collect();
        if !available.contains(&true) || !available.contains(&false) {
            return None;
        }
        for (target, _) in node.targets.iter().zip(&available).filter(|(_, is_available)| !**is_available) {
            self.record_skip(target);
        }
        Some(available)
    }

    pub fn is_available(&self, node: &Node) -> bool {
        if !node.targets.is_empty() {
            return node.targets.iter().any(|target| self.is_available(target));
        }
        self.breaker_verdict(node) != Some(Verdict::Open)
    }

    /// Returns the verdict of a target's circuit breaker, if it has one.
    pub fn breaker_verdict(&self, node: &Node) -> Option<Verdict> {
        let policy = node.features.circuit_breaker.policy()?;
        let (shared, key) = (&self.state.shared, self.target_key(node));
        let breakers = &shared.breakers;
        let now = shared.now();
        Some(if self.is_dry_run {
            breakers.peek_verdict(key, policy, now)
        } else {
            breakers.verdict_and_claim(key, policy, now)
        })
    }

    /// Returns the key of a target of this config in shared state.
    pub fn target_key(&self, node: &Node) -> u64 {
        // A target without a fixed provider has separate state for each provider that requests name.
        let provider = if node.provider.is_none() { self.requested_provider() } else { None };
        self.state
            .shared
            .keyed_hash_in_config(self.plan.config_slug.is_some(), (self.config_key(), &node.path, provider))
    }

    /// Returns the provider that the request itself names, in a header or as model prefix.
    fn requested_provider(&self) -> Option<&str> {
        let of_model = || self.replay_body.model.strip_prefix('@')?.split('/').next();
        self.client_request.control.provider.or(self.client_request.control.virtual_key).or_else(of_model)
    }

    /// Returns the key of the config: of a saved config in this workspace, or of an inline config of this caller.
    fn config_key(&self) -> u64 {
        *self.config_key.get_or_init(|| {
            let caller = self.resolver.caller;
            let text = self.plan.config_slug.or(self.client_request.control.config);
            let key = caller.key.map(|key| &*key.id).filter(|_| self.plan.config_slug.is_none());
            self.state.shared.keyed_hash((text, caller.workspace(), key))
        })
    }

    pub fn record_step(&mut self, step: impl FnOnce() -> RoutingStep) {
        if let Some(decision) = &mut self.log.decision {
            decision.add_step(step());
        }
    }

    pub fn update_decision(&mut self, change: impl FnOnce(&mut RoutingDecision)) {
        if let Some(decision) = &mut self.log.decision {
            change(decision);
        }
    }
}
