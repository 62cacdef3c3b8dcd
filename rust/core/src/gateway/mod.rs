//! Request pipeline of the gateway: admit, resolve, choose the endpoint, run it, deliver. Read this first. No module
//! of a lower layer imports this one.

mod websocket_request;

pub use websocket_request::{UpgradeOutcome, handle_upgrade};

use std::{pin::pin, sync::Arc, time::Instant};

use futures_util::future::BoxFuture;
use penstock_net::{body::Body, uri::find_path_error};

use crate::{
    accounting::record::{Record, RequestLog},
    auth::{caller, upload_token::UploadGrant},
    endpoints::{
        builtin::{builtin_response, find_head_error, reject_without_record},
        client_endpoint::ClientEndpoint,
        limit_admission,
        provider_pipeline::ProviderPipeline,
        target_endpoint::{check_operation, serve_at_target},
    },
    error::{Error, Result},
    features::timeout,
    gateway_state::GatewayState,
    ingress::{
        Request,
        control_headers::ControlHeaders,
        route::{self, Route},
    },
    request::{body_fields::read_body_fields, inference_profiles},
    resolve::{models::RequestedModel, target_resolver::ClientRequest},
    response::{
        client_response::{ClientResponse, ClientResponseBody},
        delivery::{self, UpstreamResponse},
    },
    routing::{self, Continuation},
    state::snapshot::Snapshot,
};

/// Handles one client request and returns its response.
pub async fn handle(state: &Arc<GatewayState>, request: Request) -> ClientResponse {
    let mut response = dispatch(state, request).await;
    if let (ClientResponseBody::Complete(_), Some(spool)) = (&response.body, state.record_sink.durable_spool()) {
        Box::pin(spool.wait_until_durable()).await;
    }
    if state.is_draining() {
        // Makes the client open a new connection for its next request, to a worker that is not draining.
        response.head.headers.push(b"connection", b"close");
    }
    response
}

/// Sends a request to its endpoint. The futures are boxed, so that their memory is freed when a stream begins: streams
/// last long, and the futures are large.
async fn dispatch(state: &Arc<GatewayState>, request: Request) -> ClientResponse {
    let Request { mut head, body } = request;
    let snapshot = state.load_snapshot();
    if let Some(message) = find_path_error(&head.path) {
        // The path is ambiguous, so it must not select an endpoint. The request is rejected and recorded as a provider
        // request.
        let error = Error::HeaderInvalid { name: "path", message: message.into() };
        return Box::pin(handle_provider_request(state, snapshot, Request { head, body }, Some(error))).await;
    }
    let error = find_head_error(&state.settings, &head);
    let endpoint = ClientEndpoint::choose(state, &snapshot, &mut head);
    let request = Request { head, body };
    if matches!(endpoint, ClientEndpoint::Provider) {
        return Box::pin(handle_provider_request(state, snapshot, request, error)).await;
    }
    let pipeline = ProviderPipeline { state: Arc::clone(state), snapshot, handle: handle_boxed };
    Box::pin(endpoint.serve(pipeline, request, error)).await
}

/// Handles a request that an endpoint sends to a provider.
fn handle_boxed(
    state: Arc<GatewayState>,
    snapshot: Arc<Snapshot>,
    request: Request,
    error: Option<Error>,
) -> BoxFuture<'static, ClientResponse> {
    Box::pin(async move { handle_provider_request(&state, snapshot, request, error).await })
}

/// Handles a request that goes to a provider. `error` is a fault of its head that was already found: the request is
/// rejected with it, but leaves a record.
async fn handle_provider_request(
    state: &Arc<GatewayState>,
    snapshot: Arc<Snapshot>,
    request: Request,
    error: Option<Error>,
) -> ClientResponse {
    state.store_weak_reference();
    let Request { mut head, body } = request;
    // Taken from the head first, so that nothing records or forwards the token.
    let upload = UploadGrant::take(&snapshot, &mut head, &state.settings.header_aliases);
    // The record outlives this function if the response is a stream.
    let head = Arc::new(head);
    let Some(route) = Route::parse(&head.method, &head.path) else {
        return match error {
            Some(error) => reject_without_record(&state.settings, &error, &head),
            None => builtin_response(state, &head),
        };
    };
    let control = ControlHeaders::parse(&head.headers, &state.settings.header_aliases);
    let client_request = ClientRequest::new(route.for_request(&head), &head, control);
    let mut record = Record::open(Arc::clone(&head), Arc::clone(&state.record_sink));
    record.log.read_request(&client_request, &state.record_sink);
    record.log.billing.tariff.prices = Arc::clone(&snapshot.prices);
    let is_rejected_method = || !route::is_forwarded_method(&client_request.head.method);
    if let Some(error) = error.or_else(|| is_rejected_method().then_some(Error::MethodNotAllowed)) {
        return delivery::respond_with_error(&error, &client_request, record);
    }
    let result = {
        // Pinned here because `select` would copy a future that it takes by value once more.
        let serving = pin!(admit_and_serve(state, &snapshot, &client_request, upload, body, &mut record.log));
        tokio::select! {
            biased;
            result = serving => result,
            () = state.wait_for_stream_shutdown() => Err(Error::Draining),
        }
    };
    match result {
        Ok(mut upstream_response) => {
            let resume_point = upstream_response.resume_point.take();
            let response = delivery::deliver_response(state, upstream_response, &client_request, record).await;
            Continuation::attach(state, snapshot, Arc::clone(&head), resume_point, response)
        }
        Err(error) => delivery::respond_with_error(&error, &client_request, record),
    }
}

/// Admits the caller, resolves the target and serves the request there. Rare steps are boxed, because an inline future
/// would enlarge the future of every request.
async fn admit_and_serve(
    state: &GatewayState,
    snapshot: &Snapshot,
    client_request: &ClientRequest<'_>,
    upload: Option<UploadGrant<'_>>,
    body: Body,
    log: &mut RequestLog,
) -> Result<UpstreamResponse> {
    if state.is_overloaded() {
        return Err(Error::Overloaded);
    }
    let started_at = Instant::now();
    let token = caller::authenticate_token(snapshot, &client_request.head.headers, &client_request.control)?;
    let require_key = state.settings.require_key;
    let caller = match upload.and_then(|grant| grant.key) {
        Some(key) => caller::admit_upload(key, snapshot),
        None => {
            caller::admit(token.as_ref(), snapshot, require_key, &client_request.head.headers, &client_request.control)?
        }
    };
    log.set_caller(&caller, snapshot);
    log.details.authentication_time = Some(started_at.elapsed());
    // Counts the body towards the memory budget only after admission, so that rejected clients cannot use it up.
    let body = body.with_memory_budget(&state.shared.body_memory)?;
    let resolver = state.target_resolver(snapshot, client_request, &caller);
    if routing::is_dry_run(client_request) {
        return Box::pin(routing::describe_route(state, &resolver, body)).await;
    }
    let _prepared = resolver.prepare_config().await?;
    let plan = resolver.build_plan()?;
    log.details.config = plan.config.identity();
    if routing::needs_executor(&resolver, &plan) {
        return Box::pin(routing::route_request(state, &resolver, &plan, body, log)).await;
    }
    let (mut target, _) = resolver.resolve_target(&plan, &plan.config.root, "")?;
    let client_deadline = client_request.control.client_timeout.and_then(timeout::client_deadline);
    log.metadata.validate()?;
    log.provider = target.provider.slug();
    log.provider_source = Some(if plan.config.root.provider.is_some() { "config" } else { "headers" });
    check_operation(client_request.route.operation, &target)?;
    let body = read_body_fields(state.body_limits, client_request, body, log).await?;
    limit_admission::admit_request(state, client_request, &caller, log).await?;
    log.set_saved_provider(&target);
    let body = log.begin_record(client_request.head, &state.record_sink, body).await;
    if let (true, Body::Complete(bytes)) = (client_request.requested_operation().has_countable_text(), &body) {
        log.count_input =
            Some(state.record_sink.token_counter.retain_body(client_request.requested_operation(), bytes));
    }
    if log.model.starts_with('@') {
        // The model may carry a provider prefix (`@slug/model`).
        return Box::pin(routing::resolve_model_prefix(state, &resolver, &plan, body, log)).await;
    }
    let requested = RequestedModel { model: &log.model, in_query: &log.model };
    target.apply_model(client_request, requested, body.complete_bytes())?;
    target.cap_timeout(client_deadline);
    if let Some(lookup) = target.provider.model_lookup(&target.options, &log.model) {
        Box::pin(inference_profiles::resolve_backing_model(
            state,
            client_request.route.operation,
            &mut target,
            lookup,
            log,
        ))
        .await;
    }
    serve_at_target(state, client_request, &target, body, log).await
}
