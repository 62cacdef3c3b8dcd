//! Request pipeline of the gateway: admit, resolve, choose the endpoint, run it, deliver. Read this file first, then
//! `provider_request`. No module of a lower layer imports this one.

mod batch_guardrails;
mod batch_requests;
mod collected_body;
mod guardrail_trials;
mod prompt_comparison;
mod prompt_requests;
mod provider_request;
mod websocket_request;

pub use websocket_request::{UpgradeOutcome, handle_upgrade};

use std::sync::Arc;

use penstock_net::uri::find_path_error;

use crate::{
    endpoints::{
        batches,
        builtin::{find_head_error, reject_without_record},
        management_proxy,
    },
    error::Error,
    gateway_state::GatewayState,
    ingress::{Request, message::RequestHead, route},
    prompts::prompt_request::PromptPath,
    resolve::models,
    response::client_response::{ClientResponse, ClientResponseBody},
    state::snapshot::Snapshot,
};

/// Destination of a request, as far as its head determines it.
enum Destination {
    /// The control process: management API, model catalogue, the gateway's own files and batches.
    Management,
    /// Batches: the body decides whether the gateway or a provider runs them.
    Batches,
    /// A saved prompt, which is run or rendered.
    Prompt(PromptPath),
    /// The explanation of another request.
    Explain,
    /// The guardrails of a line of a batch, for the control process.
    BatchLine,
    /// A feature of the management API that this version does not have.
    Reserved(&'static str),
    /// No destination: the path is one of the gateway in another spelling.
    Misspelled,
    /// A provider, or a path that the engine serves itself.
    Provider,
}

/// Path that explains another request.
const EXPLAIN_PATH: &str = "/v1/explain";

impl Destination {
    /// Chooses the destination. Rewrites the path or query of requests that reach it under another name.
    fn choose(state: &GatewayState, snapshot: &Snapshot, head: &mut RequestHead) -> Self {
        let aliases = &state.settings.header_aliases;
        if let Some(path) = PromptPath::parse(&head.method, &head.path) {
            return Self::Prompt(path);
        }
        let is_models_path = head.path.starts_with(models::MODELS_PATH);
        if is_models_path && let Some(query) = models::catalogue_query(snapshot, head, aliases) {
            head.query = query;
            return Self::Management;
        }
        if snapshot.is_management_path(&head.path)
            || is_models_path && models::is_catalogue_request(snapshot, head, aliases)
        {
            return Self::Management;
        }
        if batches::is_store_path(&head.path) {
            if batches::is_for_gateway_store(snapshot, head, aliases) {
                return Self::Management;
            }
            if batches::needs_batch_handler(snapshot, head) {
                return Self::Batches;
            }
        }
        if head.method == "POST" && head.path == EXPLAIN_PATH {
            return Self::Explain;
        }
        if batch_guardrails::is_line_check(head) {
            return Self::BatchLine;
        }
        if let Some(feature) = route::reserved_feature(&head.path) {
            return Self::Reserved(feature);
        }
        if route::is_misspelled(&head.method, &head.path, |path| snapshot.is_management_path(path)) {
            return Self::Misspelled;
        }
        if let Some(path) = route::rewrite_cancel_path(&head.method, &head.path) {
            head.path = path;
        }
        Self::Provider
    }
}

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

/// Sends a request to its destination. Futures of a provider request are boxed, so that their memory is freed when a
/// stream begins: streams last long, and the future is large.
async fn dispatch(state: &Arc<GatewayState>, request: Request) -> ClientResponse {
    let Request { mut head, body } = request;
    let snapshot = state.load_snapshot();
    if let Some(message) = find_path_error(&head.path) {
        // The path is ambiguous, so it must not select a destination. The request is rejected and recorded as a
        // provider request.
        let error = Error::HeaderInvalid { name: "path", message: message.into() };
        return Box::pin(provider_request::handle(state, snapshot, Request { head, body }, Some(error))).await;
    }
    let error = find_head_error(&state.settings, &head);
    match (Destination::choose(state, &snapshot, &mut head), error) {
        (Destination::Management, Some(error)) => reject_without_record(&state.settings, &error, &head),
        (Destination::Reserved(feature), error) => {
            reject_without_record(&state.settings, &error.unwrap_or(Error::NotImplemented { feature }), &head)
        }
        (Destination::Misspelled, error) => {
            reject_without_record(&state.settings, &error.unwrap_or(Error::NotFound), &head)
        }
        (Destination::BatchLine, Some(error)) => reject_without_record(&state.settings, &error, &head),
        (Destination::BatchLine, None) => {
            Box::pin(batch_guardrails::handle(state, snapshot, Request { head, body })).await
        }
        (Destination::Management, None) => {
            let response = management_proxy::forward_management_request(state, head, body).await;
            guardrail_trials::run_trial_plan(state, response).await
        }
        (Destination::Batches, None) => Box::pin(batch_requests::handle(state, snapshot, Request { head, body })).await,
        (Destination::Prompt(path), None) => {
            Box::pin(prompt_requests::handle(state, snapshot, Request { head, body }, path)).await
        }
        (Destination::Explain, None) => {
            Box::pin(prompt_requests::explain(state, snapshot, Request { head, body })).await
        }
        (Destination::Batches | Destination::Prompt(_) | Destination::Explain | Destination::Provider, error) => {
            Box::pin(provider_request::handle(state, snapshot, Request { head, body }, error)).await
        }
    }
}
