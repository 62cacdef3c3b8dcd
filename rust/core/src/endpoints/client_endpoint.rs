//! Chooses the endpoint that a request names, and serves the request there. All branches for requests that do not simply
//! go to a provider are here.

use crate::{
    endpoints::{
        batches::{self, line_check, provider_or_store},
        builtin::reject_without_record,
        guardrail_trials, management_proxy, prompts,
        provider_pipeline::ProviderPipeline,
    },
    error::Error,
    gateway_state::GatewayState,
    ingress::{Request, message::RequestHead, route},
    prompts::prompt_request::PromptPath,
    resolve::models,
    response::client_response::ClientResponse,
    state::snapshot::Snapshot,
};

/// Endpoint of a request, as far as its head determines it.
pub(crate) enum ClientEndpoint {
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
    /// No endpoint: the path is one of the gateway in another spelling.
    Misspelled,
    /// A provider, or a path that the engine serves itself.
    Provider,
}

/// Path that explains another request.
const EXPLAIN_PATH: &str = "/v1/explain";

impl ClientEndpoint {
    /// Chooses the endpoint. Rewrites the path or query of requests that reach it under another name.
    pub fn choose(state: &GatewayState, snapshot: &Snapshot, head: &mut RequestHead) -> Self {
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
        if line_check::is_line_check(head) {
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

    /// Serves a request. `error` is an error of its head, with which the request is rejected.
    pub async fn serve(self, pipeline: ProviderPipeline, request: Request, error: Option<Error>) -> ClientResponse {
        let settings = &pipeline.state.settings;
        match (self, error) {
            (Self::Management | Self::BatchLine, Some(error)) => reject_without_record(settings, &error, &request.head),
            (Self::Reserved(feature), error) => {
                reject_without_record(settings, &error.unwrap_or(Error::NotImplemented { feature }), &request.head)
            }
            (Self::Misspelled, error) => {
                reject_without_record(settings, &error.unwrap_or(Error::NotFound), &request.head)
            }
            (Self::Management, None) => {
                let Request { head, body } = request;
                let response = management_proxy::forward_management_request(&pipeline.state, head, body).await;
                guardrail_trials::run_trial_plan(&pipeline.state, response).await
            }
            (Self::BatchLine, None) => line_check::handle(&pipeline.state, pipeline.snapshot, request).await,
            (Self::Batches, None) => provider_or_store::handle(pipeline, request).await,
            (Self::Prompt(path), None) => prompts::handle(pipeline, request, path).await,
            (Self::Explain, None) => prompts::explain(pipeline, request).await,
            (Self::Batches | Self::Prompt(_) | Self::Explain | Self::Provider, error) => {
                (pipeline.handle)(pipeline.state, pipeline.snapshot, request, error).await
            }
        }
    }
}
