//! What would become of a request: the same choices as on its walk, and nothing is sent.

use bytes::Bytes;
use penstock_llm::{api_format::Dialect, operation::Operation};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::decision::CacheStatus;
use crate::routing::{
    cache_lookup::Question,
    executor::Walk,
    replay_body::{Carried, Prepared},
};
use crate::{
    accounting::record::Facts,
    config::Node,
    endpoints::realtime,
    error::{Error, Problem, Result},
    features::{circuit_breaker::Verdict, recovery::Mode},
    gateway::Gateway,
    ingress::{
        body::Body,
        headers::{Control, Head, Headers},
        route::Route,
    },
    resolve::{
        target::Target,
        target_resolver::{Call, Choice},
    },
    response::delivery::Served,
};

/// So many bytes of a body's fields, and of each of them, fit into a header of an answer.
const SHOWN: usize = 2048;
const SHOWN_OF_FIELD: usize = 256;

/// The path on which it is asked, after `/v1`.
const PATH: &str = "/explain";

/// A request as it would be sent. Its headers are those of the request that asks, but for what it says itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked<'a> {
    #[serde(default = "post")]
    method: String,
    path: String,
    #[serde(default)]
    headers: Map<String, Value>,
    /// As it is written: whether an old answer serves is a matter of bytes.
    #[serde(default, borrow)]
    body: Option<&'a RawValue>,
}

fn post() -> String {
    "POST".to_owned()
}

/// Whether this asks what would become of another request.
pub(crate) fn is_asked(call: &Call<'_>) -> bool {
    call.route.path == PATH && call.head.method == "POST" && call.head.path == "/v1/explain"
}

/// Answers with every target that would be tried, in their order, and what each of them would get.
pub(crate) async fn explain(gateway: &Gateway, choice: &Choice<'_>, body: Body) -> Result<Served> {
    let bytes = body.limited(gateway.body_limits)?.collect().await?;
    let asked: Asked<'_> = serde_json::from_slice(&bytes).map_err(|error| refused("$", &error.to_string()))?;
    let head = head(choice.call.head, &asked)?;
    let asks_for_socket = head.headers.text("upgrade").is_some_and(|kind| kind.eq_ignore_ascii_case("websocket"));
    let route = if asks_for_socket { Route::of_socket(&head.path) } else { Route::of(&head.method, &head.path) };
    let route = route.ok_or_else(|| refused("$.path", "must be a path below `/v1` that goes to a provider"))?;
    let control = Control::read(&head.headers, &gateway.settings.header_aliases);
    let call = Call { route, head: &head, control };
    let choice = Choice { call: &call, ..*choice };
    let plan = choice.plan()?;
    let mut facts = Facts::default();
    facts.begin(&call, &gateway.sink);
    facts.called_by(choice.caller, choice.snapshot);
    facts.metadata.check()?;
    let body = asked.body.map_or_else(Bytes::new, |body| bytes.slice_ref(body.get().as_bytes()));
    let is_json = !body.is_empty();
    let is_socket = asks_for_socket || route.operation == Operation::Realtime;
    let body = if is_socket {
        // What a WebSocket asks for stands before its first message.
        (facts.model, facts.stream) = (realtime::model(&head.query), true);
        Body::empty()
    } else {
        gateway.read(&call, Body::Whole(body), &mut facts).await?
    };
    let carried = Carried::new(&call, body, is_json && !is_socket, &facts).await?;
    let mut walk = Walk::new(gateway, &choice, &plan, &mut facts, carried);
    (walk.is_dry, walk.is_socket) = (true, is_socket);
    let mut targets = Vec::new();
    for node in walk.order(&plan.config.root)? {
        targets.push(described(&mut walk, node).await);
    }
    let steps = walk.facts.decision.as_ref().map(|decision| json!(decision.steps));
    let told = json!({"object": "explanation", "config": plan.slug, "strategy": plan.config.root.strategy.name(),
        "decisions": steps, "targets": targets});
    Ok(Served::ours(told.to_string().into(), Dialect::OpenAi, &gateway.grace))
}

fn refused(path: &str, message: &str) -> Error {
    Error::RequestInvalid(vec![Problem::new(path, message)])
}

fn head(own: &Head, asked: &Asked<'_>) -> Result<Head> {
    let mut headers = Headers::default();
    let is_said = |name: &[u8]| asked.headers.keys().any(|said| said.as_bytes().eq_ignore_ascii_case(name));
    for (name, value) in own.headers.iter().filter(|(name, _)| *name != b"content-length" && !is_said(name)) {
        headers.push(name, value);
    }
    for (name, value) in &asked.headers {
        let Some(value) = value.as_str() else {
            return Err(refused(&format!("$.headers.{name}"), "must be a string"));
        };
        headers.push(name.as_bytes(), value.as_bytes());
    }
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    Ok(Head {
        method: asked.method.to_ascii_uppercase(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers,
        ..Head::default()
    })
}

/// What one target would get and how often, or why it cannot be tried.
async fn described<'w>(walk: &mut Walk<'w>, node: &'w Node) -> Value {
    let refused = |error: &Error| json!({"target": node.path, "error": error.code(), "message": error.message()});
    let mut prepared = match walk.carried.prepare(walk.parameters(node)).await {
        Ok(prepared) => prepared,
        Err(error) => return refused(&error),
    };
    let target = match walk.aim(node, &mut prepared).await {
        Ok(target) => target,
        Err(error) => return refused(&error),
    };
    let question = Question::of(walk, node, &target, &prepared.body);
    let mut told = told(walk, node, (&target, &prepared), question.as_ref()).await;
    told["body"] = fields(&prepared.body).map_or(Value::Null, Value::Object);
    told
}

/// The same of a target that is about to be tried, short enough for a header.
pub(crate) async fn briefly(
    walk: &Walk<'_>,
    node: &Node,
    (target, prepared): (&Target<'_>, &Prepared),
    question: Option<&Question>,
) -> Value {
    let mut told = told(walk, node, (target, prepared), question).await;
    told["body"] = fields(&prepared.body).map_or(Value::Null, |fields| Value::Object(shortened(fields)));
    told
}

async fn told(
    walk: &Walk<'_>,
    node: &Node,
    (target, prepared): (&Target<'_>, &Prepared),
    question: Option<&Question>,
) -> Value {
    let status = match question {
        Some(question) => question.status(walk).await,
        None => CacheStatus::Disabled,
    };
    let timeout = walk.left().map_or(target.timeout, |left| left.min(target.timeout));
    json!({
        "target": node.path,
        "name": node.name,
        "provider": target.provider.slug(),
        "host": target.base.origin.authority(),
        "model": prepared.model,
        "stream": prepared.stream,
        "timeout_ms": timeout.as_millis() as u64,
        "retries": walk.retry(node).attempts(),
        "breaker": walk.verdict(node).map(Verdict::name),
        "cache": {"status": status.name(), "key": question.map(ToString::to_string)},
        "recovery": recovery(walk, node, target),
        "forward_headers": target.forward.names(),
        "strict_open_ai_compliance": target.strict,
        "passthrough": target.passthrough,
        "has_credential": target.credential.is_some() || target.authorization.is_some(),
    })
}

/// What would become of a stream that breaks off before this target.
fn recovery(walk: &Walk<'_>, node: &Node, target: &Target<'_>) -> Value {
    let (mode, refusal) = (node.features.recovery.mode(), walk.refusal_to_go_on(node, target));
    let mut told = json!({"mode": mode.name(), "continues": refusal.is_none()});
    if let (Mode::Continue, Some(because)) = (mode, refusal) {
        told["because"] = because.into();
    }
    told
}

/// The fields of a body of JSON.
fn fields(body: &Body) -> Option<Map<String, Value>> {
    match body {
        Body::Whole(bytes) => serde_json::from_slice(bytes).ok(),
        Body::Fed(..) => None,
    }
}

/// Of a long field its length, and no more than fits: clients take so much of a header at most.
fn shortened(fields: Map<String, Value>) -> Map<String, Value> {
    let mut room = SHOWN;
    let short = fields.into_iter().filter_map(|(key, value)| {
        let length = value.to_string().len();
        let value = if length > SHOWN_OF_FIELD { json!(format!("({length} bytes)")) } else { value };
        room = room.checked_sub(key.len() + length.min(SHOWN_OF_FIELD))?;
        Some((key, value))
    });
    short.collect()
}
