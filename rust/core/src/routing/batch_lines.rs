//! Guardrails of a batch that a provider runs. The provider reads the lines from a file. So they are checked one by one
//! before the file is uploaded, and their responses after it was downloaded.

use bytes::Bytes;
use penstock_llm::api_format::ApiFormat;
use penstock_net::body::Body;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    accounting::record::RequestLog,
    error::{Error, Result},
    gateway_state::GatewayState,
    request::body_fields::read_body_fields,
    resolve::target_resolver::TargetResolver,
    response::delivery::UpstreamResponse,
    routing::{
        executor::RouteExecutor,
        hooks::{FAILED_STATUS, TargetHooks},
        replay_body::ReplayBody,
    },
};

/// Line of a batch to check.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LineToCheck {
    /// Path to which the line belongs, such as `/v1/chat/completions`.
    pub path: String,
    pub request: Box<RawValue>,
    /// Response of the provider. Without it, the request is checked.
    #[serde(default)]
    pub response: Option<Box<RawValue>>,
}

/// Runs the guardrails of the target on a line. Returns JSON with `status`, `is_denied`, `body` and `hook_results`.
/// `body` is what replaces the request or the response; `null` if the request stays as it is.
///
/// # Errors
/// If the config has several targets: their guardrails may differ, and the provider chooses none of them.
pub(crate) async fn check_batch_line(
    state: &GatewayState,
    resolver: &TargetResolver<'_>,
    line: LineToCheck,
) -> Result<String> {
    let client_request = resolver.client_request;
    let _prepared = resolver.prepare_config().await?;
    let plan = resolver.build_plan()?;
    let node = &plan.config.root;
    if !node.targets.is_empty() {
        return Err(Error::NoMatchingTarget);
    }
    let mut log = RequestLog::default();
    log.read_request(client_request, &state.record_sink);
    log.set_caller(resolver.caller, resolver.snapshot);
    log.metadata.validate()?;
    let body = Body::Complete(to_bytes(line.request));
    let body = read_body_fields(state.body_limits, client_request, body, &mut log).await?;
    let replay_body = ReplayBody::new(client_request, body, true, &log).await?;
    let mut executor = RouteExecutor::new(state, resolver, &plan, &mut log, replay_body);
    let mut prepared = executor.replay_body.prepare(executor.parameters_for(node)).await?;
    let target = executor.resolve_target(node, &mut prepared).await?;
    let hooks = TargetHooks::for_target(&executor, node, &target, &prepared).await?;
    let Some(mut hooks) = hooks else {
        return Ok(describe_outcome(200, false, line.response.as_deref().map(RawValue::get), None));
    };
    let results = hooks.results().clone();
    if let Some(response) = line.response {
        let response = UpstreamResponse::from_gateway(to_bytes(response), ApiFormat::OpenAi, &state.coarse_timer);
        let checked = hooks.check_response(&executor, response).await?;
        let is_denied = results.lock().after.iter().any(|result| result.denies);
        return Ok(describe_response(&checked, is_denied));
    }
    let original = prepared.body.try_clone();
    if let Some(denial) = hooks.check_request(&mut executor, node, &mut prepared).await? {
        return Ok(describe_response(&denial, true));
    }
    let results = results.lock();
    let hook_results = results.has_visible().then(|| serde_json::to_string(&results.client_view()).unwrap_or_default());
    let status = if results.has_failed() { FAILED_STATUS } else { 200 };
    let body = prepared.body.complete_bytes();
    let is_changed = original.is_none_or(|original| original.complete_bytes() != body);
    let changed = str::from_utf8(body).ok().filter(|_| is_changed);
    Ok(describe_outcome(status, false, changed, hook_results.as_deref()))
}

fn to_bytes(json: Box<RawValue>) -> Bytes {
    let text: Box<str> = json.into();
    String::from(text).into()
}

/// Describes a complete response. Its results are in its body.
fn describe_response(response: &UpstreamResponse, is_denied: bool) -> String {
    let body = response.incoming.body.buffered_bytes().and_then(|bytes| str::from_utf8(bytes).ok());
    describe_outcome(response.status(), is_denied, body, None)
}

/// Writes the outcome. `body` and `hook_results` are JSON.
fn describe_outcome(status: u16, is_denied: bool, body: Option<&str>, hook_results: Option<&str>) -> String {
    let (body, hook_results) = (body.unwrap_or("null"), hook_results.unwrap_or("null"));
    format!(r#"{{"status":{status},"is_denied":{is_denied},"body":{body},"hook_results":{hook_results}}}"#)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn outcome_is_json_with_or_without_a_body() {
        let parse = |text: String| serde_json::from_str::<Value>(&text).unwrap();
        let empty = json!({"status": 200, "is_denied": false, "body": null, "hook_results": null});
        assert_eq!(parse(describe_outcome(200, false, None, None)), empty);
        let full = json!({"status": 446, "is_denied": true, "body": {"a": 1}, "hook_results": []});
        assert_eq!(parse(describe_outcome(446, true, Some(r#"{"a":1}"#), Some("[]"))), full);
    }

    #[test]
    fn line_has_a_request_and_perhaps_a_response() {
        let parse = |text: &str| serde_json::from_str::<LineToCheck>(text);
        let line = parse(r#"{"path":"/v1/embeddings","request":{"input":"x"}}"#).unwrap();
        assert_eq!((line.path.as_str(), line.request.get()), ("/v1/embeddings", r#"{"input":"x"}"#));
        assert!(line.response.is_none());
        assert!(parse(r#"{"path":"/v1/embeddings","request":{},"response":{},"other":1}"#).is_err());
    }
}
