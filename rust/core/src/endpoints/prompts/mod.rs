//! Requests that run, render or compare saved prompts. The prompt becomes a chat or text completion request, which is
//! handled like one that a client sent.

mod chosen_version;
mod prompt_comparison;

use std::sync::Arc;

use bytes::Bytes;
use penstock_net::{body::Body, headers::Headers, memory_budget::MemoryPermit};
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use crate::{
    auth::caller,
    endpoints::{
        builtin::reject_without_record,
        collected_body::collect_body,
        prompts::chosen_version::{ChosenVersion, PreparedRequest},
        provider_pipeline::ProviderPipeline,
    },
    error::{Error, PromptError, Result},
    gateway_state::GatewayState,
    ingress::{Request, control_headers::ControlHeaders, message::RequestHead},
    prompts::{
        prompt_request::{PromptAction, PromptPath, PromptRequest},
        saved::PromptReference,
    },
    response::{
        client_response::{ClientResponse, ClientResponseHead},
        delivery,
        offload::run_offloaded,
    },
    state::snapshot::Snapshot,
};

/// Handles a request whose path runs, renders or compares a prompt.
pub(super) async fn handle(pipeline: ProviderPipeline, request: Request, path: PromptPath) -> ClientResponse {
    match path.action {
        PromptAction::Complete => complete(&pipeline, request, path).await,
        PromptAction::Render => {
            let (ProviderPipeline { state, snapshot, .. }, Request { head, body }) = (&pipeline, request);
            // Rendering leaves no record, because it sends nothing to a provider.
            match render(state, snapshot, &head, path, body).await {
                Ok(response) => response,
                Err(error) => reject_without_record(&state.settings, &error, &head),
            }
        }
        PromptAction::Compare => prompt_comparison::handle(&pipeline, request, path).await,
    }
}

/// Runs a prompt at its provider.
async fn complete(pipeline: &ProviderPipeline, request: Request, path: PromptPath) -> ClientResponse {
    let (ProviderPipeline { state, snapshot, .. }, Request { mut head, body }) = (pipeline, request);
    let workspace = match find_workspace(state, snapshot, &head) {
        Ok(workspace) if !state.is_overloaded() => workspace,
        // The body of a request that will be rejected is not read.
        _ => return pipeline.send(head, body).await,
    };
    match prepare(state, snapshot, workspace, path, body).await {
        Ok((prepared, body_memory)) => {
            // Released here, because the pipeline charges the memory budget itself. No other task runs in between.
            drop(body_memory);
            prepared.rewrite_head(&mut head, &state.settings.header_aliases);
            pipeline.send(head, Body::Complete(prepared.body.into())).await
        }
        Err(error) => pipeline.reject(head, error).await,
    }
}

/// Explains a request. If it runs a prompt, it is replaced by the completion request that the prompt becomes.
pub(super) async fn explain(pipeline: ProviderPipeline, request: Request) -> ClientResponse {
    let (ProviderPipeline { state, snapshot, .. }, Request { mut head, body }) = (&pipeline, request);
    let workspace = match find_workspace(state, snapshot, &head) {
        Ok(workspace) if !state.is_overloaded() => workspace,
        _ => return pipeline.send(head, body).await,
    };
    match render_explained(state, snapshot, workspace, &mut head, body).await {
        Ok(body) => pipeline.send(head, body).await,
        Err(error) => pipeline.reject(head, error).await,
    }
}

/// Returns the body of an explain request, in which the rendered request stands in place of one that runs a prompt.
async fn render_explained(
    state: &GatewayState,
    snapshot: &Arc<Snapshot>,
    workspace: Option<Box<str>>,
    head: &mut RequestHead,
    body: Body,
) -> Result<Body> {
    let (bytes, body_memory) = collect_body(state, body).await?;
    let Some((mut explained, path)) = ExplainedPrompt::parse(&bytes) else { return Ok(Body::Complete(bytes)) };
    let body = explained.body.map_or_else(Bytes::new, |body| bytes.slice_ref(body.get().as_bytes()));
    let (prepared, _) = prepare(state, snapshot, workspace, path, Body::Complete(body)).await?;
    drop(body_memory);
    let mut rendered = RequestHead::default();
    prepared.rewrite_head(&mut rendered, &state.settings.header_aliases);
    let names_provider = |name: &str| name.ends_with("-provider") || name.ends_with("-virtual-key");
    let is_named = explained.headers.keys().any(|name| names_provider(&name.to_ascii_lowercase()))
        || head.headers.iter().any(|(name, _)| str::from_utf8(name).is_ok_and(names_provider));
    if let Some(provider) = rendered.headers.get_str("x-gateway-provider").filter(|_| !is_named) {
        explained.headers.insert("x-gateway-provider".into(), provider.into());
    }
    head.prompt = rendered.prompt;
    let headers = Value::Object(explained.headers);
    let (path, body) = (Value::from(rendered.path), prepared.body);
    Ok(Body::Complete(format!(r#"{{"path":{path},"headers":{headers},"body":{body}}}"#).into()))
}

/// Explain request for a request that runs a prompt.
#[derive(Deserialize)]
struct ExplainedPrompt<'a> {
    #[serde(default)]
    method: Option<String>,
    path: String,
    #[serde(default)]
    headers: Map<String, Value>,
    #[serde(default, borrow)]
    body: Option<&'a RawValue>,
}

impl<'a> ExplainedPrompt<'a> {
    /// Returns `None` if the explained request runs no prompt.
    fn parse(bytes: &'a [u8]) -> Option<(Self, PromptPath)> {
        let explained: Self = serde_json::from_slice(bytes).ok()?;
        let method = explained.method.as_deref().unwrap_or("POST").to_ascii_uppercase();
        let path = PromptPath::parse(&method, explained.path.split('?').next().unwrap_or_default())?;
        (path.action == PromptAction::Complete).then_some((explained, path))
    }
}

async fn render(
    state: &GatewayState,
    snapshot: &Arc<Snapshot>,
    head: &RequestHead,
    path: PromptPath,
    body: Body,
) -> Result<ClientResponse> {
    let control = ControlHeaders::parse(&head.headers, &state.settings.header_aliases);
    let workspace = caller::admit_render(snapshot, state.settings.require_key, &head.headers, &control)?;
    if state.is_overloaded() {
        return Err(Error::Overloaded);
    }
    let (prepared, _share) = prepare(state, snapshot, workspace, path, body).await?;
    Ok(render_response(state, head, &prepared))
}

/// Returns the workspace of the caller.
fn find_workspace(state: &GatewayState, snapshot: &Snapshot, head: &RequestHead) -> Result<Option<Box<str>>> {
    let control = ControlHeaders::parse(&head.headers, &state.settings.header_aliases);
    let token = caller::authenticate_token(snapshot, &head.headers, &control)?;
    let caller = caller::admit(token.as_ref(), snapshot, state.settings.require_key, &head.headers, &control)?;
    Ok(caller.workspace().map(Into::into))
}

/// Reads a request for a prompt and renders the prompt. Returns the memory permit of the body, too.
async fn prepare(
    state: &GatewayState,
    snapshot: &Arc<Snapshot>,
    workspace: Option<Box<str>>,
    path: PromptPath,
    body: Body,
) -> Result<(PreparedRequest, Option<MemoryPermit>)> {
    let (bytes, body_memory) = collect_body(state, body).await?;
    let request_bytes = bytes.len();
    let request = run_offloaded(request_bytes, move || PromptRequest::parse(&bytes)).await?.map_err(Error::Prompt)?;
    let name = path.reference.as_ref().or(request.reference.as_ref()).ok_or_else(|| {
        let message = "is missing; it must be the id or slug of a prompt".to_owned();
        Error::Prompt(PromptError::InvalidBody { path: "$.promptID".into(), message })
    })?;
    let chosen = ChosenVersion::find(state, snapshot, workspace, PromptReference::parse(name)).await?;
    Ok((chosen.prepare(request, request_bytes, path.action).await?, body_memory))
}

/// Returns the request that would be sent, the variables that had no value, and those that no template reads.
fn render_response(state: &GatewayState, head: &RequestHead, prepared: &PreparedRequest) -> ClientResponse {
    let PreparedRequest { body, missing, unknown, .. } = prepared;
    let names = |names: &[String]| Value::from(names).to_string();
    // Written as text, because the fields of the request may nest as deep as the parser reads.
    let json = format!(
        r#"{{"success":true,"data":{body},"missing_variables":{},"unknown_variables":{}}}"#,
        names(missing),
        names(unknown)
    );
    json_response(state, head, json)
}

/// Returns a response of the gateway itself.
pub(crate) fn json_response(state: &GatewayState, head: &RequestHead, json: String) -> ClientResponse {
    let mut fields = Headers::with_capacity(4);
    fields.push(b"content-type", b"application/json");
    let mut response_head = ClientResponseHead::new(200, fields);
    response_head.set_content_length(Some(json.len()));
    let response = ClientResponse { head: response_head, body: Bytes::from(json).into() };
    delivery::add_request_ids(response, head, &state.settings.header_aliases)
}
