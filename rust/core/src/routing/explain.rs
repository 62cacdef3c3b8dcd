//! Dry run of a request (`POST /v1/explain`). Makes the same routing choices as a real request and sends nothing.

use bytes::Bytes;
use penstock_llm::{api_format::ApiFormat, operation::Operation};
use penstock_net::{body::Body, headers::Headers};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use crate::{
    accounting::{record::RequestLog, routing_decision::CacheStatus},
    config::Node,
    endpoints::{
        limit_admission::{AttemptKind, describe_limits},
        realtime,
    },
    error::{Error, Problem, Result},
    features::{circuit_breaker::Verdict, recovery::Mode},
    gateway_state::GatewayState,
    ingress::{control_headers::ControlHeaders, message::RequestHead, route::Route},
    process::secret,
    request::body_fields::read_body_fields,
    resolve::{
        target::Target,
        target_resolver::{ClientRequest, TargetResolver},
    },
    response::delivery::UpstreamResponse,
    routing::{
        cache_lookup::CacheLookup,
        executor::RouteExecutor,
        hooks,
        replay_body::{PreparedBody, ReplayBody},
    },
};

/// Maximum bytes of all body fields in a response header.
const MAX_SUMMARY_BYTES: usize = 2048;
/// Maximum bytes of one body field in a response header.
const MAX_SUMMARY_FIELD_BYTES: usize = 256;

/// Path of this endpoint below `/v1`.
const EXPLAIN_PATH: &str = "/explain";

/// Request to explain, as it would be sent. Inherits the headers of the explain request, except those that it sets
/// itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainRequest<'a> {
    #[serde(default = "post")]
    method: String,
    path: String,
    #[serde(default)]
    headers: Map<String, Value>,
    /// Raw JSON text, because the cache key depends on the exact bytes.
    #[serde(default, borrow)]
    body: Option<&'a RawValue>,
}

fn post() -> String {
    "POST".to_owned()
}

/// Returns true if the request asks how another one would be routed.
pub(crate) fn is_dry_run(client_request: &ClientRequest<'_>) -> bool {
    client_request.route.path == EXPLAIN_PATH
        && client_request.head.method == "POST"
        && client_request.head.path == "/v1/explain"
}

/// Returns all targets that would be tried, in order, and what would be sent to each of them.
pub(crate) async fn describe_route(
    state: &GatewayState,
    resolver: &TargetResolver<'_>,
    body: Body,
) -> Result<UpstreamResponse> {
    let bytes = body.with_limits(state.body_limits)?.collect().await?;
    let request: ExplainRequest<'_> =
        serde_json::from_slice(&bytes).map_err(|error| invalid_request("$", &error.to_string()))?;
    let head = build_head(resolver.client_request.head, &request)?;
    let is_websocket = head.headers.get_str("upgrade").is_some_and(|kind| kind.eq_ignore_ascii_case("websocket"));
    let route = if is_websocket { Route::parse_websocket(&head.path) } else { Route::parse(&head.method, &head.path) };
    let route =
        route.ok_or_else(|| invalid_request("$.path", "must be a path below `/v1` that is routed to a provider"))?;
    let route = if is_websocket { route } else { route.for_client(&head.headers) };
    let control = ControlHeaders::parse(&head.headers, &state.settings.header_aliases);
    let client_request = ClientRequest::new(route, &head, control);
    let resolver = TargetResolver { client_request: &client_request, ..*resolver };
    let _prepared = resolver.prepare_config().await?;
    let plan = resolver.build_plan()?;
    let mut log = RequestLog::default();
    log.read_request(&client_request, &state.record_sink);
    log.set_caller(resolver.caller, resolver.snapshot);
    log.metadata.validate()?;
    let body = request.body.map_or_else(Bytes::new, |body| bytes.slice_ref(body.get().as_bytes()));
    let is_json = !body.is_empty();
    let is_socket = is_websocket || route.operation == Operation::Realtime;
    let body = if is_socket {
        // A WebSocket names its model in the query string, before its first message.
        (log.model, log.is_streaming) = (realtime::model_from_query(&head.query), true);
        Body::empty()
    } else {
        read_body_fields(state.body_limits, &client_request, Body::Complete(body), &mut log).await?
    };
    let replay_body = ReplayBody::new(&client_request, body, is_json && !is_socket, &log).await?;
    let mut executor = RouteExecutor::new(state, &resolver, &plan, &mut log, replay_body);
    (executor.is_dry_run, executor.is_websocket) = (true, is_socket);
    executor.prepare_conditions().await?;
    let mut targets = Vec::new();
    for node in executor.attempt_order(&plan.config.root)? {
        targets.push(describe_target(&mut executor, node).await);
    }
    let steps = executor.log.decision.as_ref().map(|decision| json!(decision.steps));
    let explanation = json!({"object": "explanation", "config": plan.config_slug, "strategy": plan.config.root.strategy.name(),
        "decisions": steps, "targets": targets});
    Ok(UpstreamResponse::from_gateway(explanation.to_string().into(), ApiFormat::OpenAi, &state.coarse_timer))
}

fn invalid_request(path: &str, message: &str) -> Error {
    Error::ExplainRequestInvalid(vec![Problem::new(path, message)])
}

fn build_head(head: &RequestHead, request: &ExplainRequest<'_>) -> Result<RequestHead> {
    let mut headers = Headers::default();
    let is_set =
        |name: &[u8]| request.headers.keys().any(|header_name| header_name.as_bytes().eq_ignore_ascii_case(name));
    for (name, value) in head.headers.iter().filter(|(name, _)| *name != b"content-length" && !is_set(name)) {
        headers.push(name, value);
    }
    for (name, value) in &request.headers {
        let Some(value) = value.as_str() else {
            return Err(invalid_request(&format!("$.headers.{name}"), "must be a string"));
        };
        headers.push(name.as_bytes(), value.as_bytes());
    }
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    Ok(RequestHead {
        method: request.method.to_ascii_uppercase(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers,
        prompt: head.prompt.clone(),
        ..RequestHead::default()
    })
}

/// Describes what would be sent to one target and how often, or why the target cannot be tried.
async fn describe_target<'w>(executor: &mut RouteExecutor<'w>, node: &'w Node) -> Value {
    let refused = |error: &Error| json!({"target": node.path, "error": error.code(), "message": error.message()});
    let mut prepared = match executor.replay_body.prepare(executor.parameters_for(node)).await {
        Ok(prepared) => prepared,
        Err(error) => return refused(&error),
    };
    let target = match executor.resolve_target(node, &mut prepared).await {
        Ok(target) => target,
        Err(error) => return refused(&error),
    };
    let cache_lookup = CacheLookup::for_target(executor, node, &target, &prepared.body).await;
    let guardrails = match hooks::describe_guardrails(executor.resolver, node) {
        Ok(guardrails) => guardrails,
        Err(error) => return refused(&error),
    };
    let mut report = build_target_report(executor, node, &target, &prepared, cache_lookup.as_ref()).await;
    let kind = if executor.is_websocket { AttemptKind::WebSocket } else { AttemptKind::Http };
    report["limits"] =
        describe_limits(executor.state, executor.client_request, &target, kind, &prepared.body, executor.log).await;
    report["guardrails"] = guardrails;
    report["changes_parameters"] = (!executor.parameters_for(node).is_none()).into();
    report["body"] = parse_body_fields(&prepared.body).map_or(Value::Null, Value::Object);
    report
}

/// Describes a target that is about to be tried, short enough for a response header.
pub(crate) async fn summarise_target(
    executor: &RouteExecutor<'_>,
    node: &Node,
    target: &Target<'_>,
    prepared: &PreparedBody,
    cache_lookup: Option<&CacheLookup>,
) -> Value {
    let mut report = build_target_report(executor, node, target, prepared, cache_lookup).await;
    report["body"] =
        parse_body_fields(&prepared.body).map_or(Value::Null, |fields| Value::Object(shorten_fields(fields)));
    report
}

async fn build_target_report(
    executor: &RouteExecutor<'_>,
    node: &Node,
    target: &Target<'_>,
    prepared: &PreparedBody,
    cache_lookup: Option<&CacheLookup>,
) -> Value {
    let status = match cache_lookup {
        Some(cache_lookup) => cache_lookup.cache_status(executor).await,
        None => CacheStatus::Disabled,
    };
    let timeout = executor.time_left().map_or(target.timeout, |remaining| remaining.min(target.timeout));
    json!({
        "target": node.path,
        "name": node.name,
        "provider": target.provider.slug(),
        "host": target.base_url.origin.authority(),
        "model": prepared.model,
        "stream": prepared.is_streaming,
        "timeout_ms": timeout.as_millis() as u64,
        "retries": executor.retry_policy(node).max_retries(),
        "breaker": executor.breaker_verdict(node).map(Verdict::name),
        "cache": {"status": status.name(), "key": cache_lookup.map(ToString::to_string)},
        "recovery": describe_recovery(executor, node, target),
        "forward_headers": target.forward_headers.names(),
        "strict_open_ai_compliance": target.is_strict,
        "passthrough": target.is_passthrough,
        "has_credential": target.credential.is_some() || target.authorization.is_some(),
    })
}

/// Describes how a stream of this target would be recovered if it breaks off.
fn describe_recovery(executor: &RouteExecutor<'_>, node: &Node, target: &Target<'_>) -> Value {
    let (mode, refusal) = (node.features.recovery.mode(), executor.continuation_refusal(node, target));
    let mut report = json!({"mode": mode.name(), "continues": refusal.is_none()});
    if let (Mode::Continue, Some(reason)) = (mode, refusal) {
        report["reason"] = reason.into();
    }
    report
}

/// Parses the top-level fields of a JSON body, and masks secrets.
fn parse_body_fields(body: &Body) -> Option<Map<String, Value>> {
    match body {
        Body::Complete(bytes) => {
            let mut fields = serde_json::from_slice(bytes).ok()?;
            // The config may set secrets that the caller may use but not read.
            secret::mask_json(&mut fields);
            match fields {
                Value::Object(fields) => Some(fields),
                _ => None,
            }
        }
        Body::Streamed(..) => None,
    }
}

/// Replaces long fields by their length and drops fields beyond the total limit, because clients limit the size of a
/// header.
fn shorten_fields(fields: Map<String, Value>) -> Map<String, Value> {
    let mut remaining = MAX_SUMMARY_BYTES;
    let short = fields.into_iter().filter_map(|(key, value)| {
        let length = value.to_string().len();
        let value = if length > MAX_SUMMARY_FIELD_BYTES { json!(format!("({length} bytes)")) } else { value };
        remaining = remaining.checked_sub(key.len() + length.min(MAX_SUMMARY_FIELD_BYTES))?;
        Some((key, value))
    });
    short.collect()
}
