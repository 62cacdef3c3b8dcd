//! A chosen version of a prompt, and its rendering into a completion request.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use serde_json::{Map, Value};

use crate::{
    endpoints::management_proxy,
    error::{Error, PromptError, Result},
    gateway_state::GatewayState,
    ingress::{
        control_headers::ControlHeaders,
        message::{PromptIdentity, PromptProvider, RequestHead},
    },
    prompts::{
        prompt::{CompiledPrompt, PromptFault},
        prompt_request::{PromptAction, PromptRequest},
        saved::{PromptReference, SavedPrompt, SavedVersion},
        template::RenderLimits,
    },
    response::offload::MAX_INLINE_BYTES,
    state::{shared::fair_permits::FairPermits, snapshot::Snapshot},
};

/// Maximum size of a request whose variables are recorded with their values, if bodies are recorded.
const MAX_RECORDED_BYTES: usize = 16 * 1024;
/// Maximum number of variables of a larger request that are recorded by name.
const MAX_RECORDED_NAMES: usize = 100;
/// Maximum length of a variable's name in a record.
const MAX_RECORDED_NAME_BYTES: usize = 100;
/// Permits to render prompts on blocking threads: 2 at the same time, of which one workspace can have 1.
static RENDERINGS: LazyLock<FairPermits> = LazyLock::new(|| FairPermits::new(2, 1));
/// Maximum time that a request waits for a permit.
const MAX_PERMIT_WAIT: Duration = Duration::from_secs(5);

/// A rendered prompt.
pub(super) struct PreparedRequest {
    pub(super) body: String,
    is_chat: bool,
    identity: PromptIdentity,
    /// Saved provider of a prompt without a model.
    provider_slug: Option<String>,
    pub(super) missing: Vec<String>,
    /// Variables that no template reads; empty unless the response shows them.
    pub(super) unknown: Vec<String>,
}

/// A version of a prompt that a caller chose.
#[derive(Clone)]
pub(super) struct ChosenVersion {
    snapshot: Arc<Snapshot>,
    pub(super) prompt: Arc<SavedPrompt>,
    pub(super) version: Arc<SavedVersion>,
    /// Workspace of the caller.
    workspace: Box<str>,
    label: Option<Box<str>>,
}

impl ChosenVersion {
    pub(super) async fn find(
        state: &GatewayState,
        snapshot: &Arc<Snapshot>,
        workspace: Option<Box<str>>,
        reference: PromptReference<'_>,
    ) -> Result<Self> {
        let PromptReference { name, version: selector } = reference;
        let unknown = || Error::Prompt(PromptError::UnknownPrompt { name: name.to_owned() });
        let workspace = workspace.ok_or_else(unknown)?;
        let prompt = Arc::clone(snapshot.find_prompt(&workspace, name).map_err(Error::Prompt)?);
        let number = prompt.version_number(selector).map_err(Error::Prompt)?;
        let version = match prompt.find_version(number) {
            Some(version) => Arc::clone(version),
            None => fetch_version(state, &prompt, number).await?,
        };
        let label = selector.label().map(Into::into);
        Ok(Self { snapshot: Arc::clone(snapshot), prompt, version, workspace, label })
    }

    /// Renders the version. `request_bytes` is the size of the request's body.
    pub(super) async fn prepare(
        self,
        request: PromptRequest,
        request_bytes: usize,
        action: PromptAction,
    ) -> Result<PreparedRequest> {
        Arc::new(PromptCall { chosen: self, request, request_bytes, action }).run().await
    }
}

/// Fetches a version that is not in the snapshot from the control process. Versions never change, so the worker caches
/// it.
async fn fetch_version(state: &GatewayState, prompt: &SavedPrompt, number: u32) -> Result<Arc<SavedVersion>> {
    if let Some(version) = state.shared.prompt_versions.find(&prompt.id, number) {
        return Ok(version);
    }
    match management_proxy::fetch_prompt_version(state, &prompt.id, number).await? {
        Some(json) => {
            let version = serde_json::from_slice(&json).map_err(|_| Error::ControlUnavailable)?;
            Ok(state.shared.prompt_versions.insert(&prompt.id, number, version, json.len()))
        }
        None => Err(Error::Prompt(prompt.unknown_version(&number.to_string()))),
    }
}

/// A request for one version of a prompt.
struct PromptCall {
    chosen: ChosenVersion,
    request: PromptRequest,
    request_bytes: usize,
    action: PromptAction,
}

impl PromptCall {
    /// Renders the prompt. If that takes long, it runs on a blocking thread, so that other requests are not delayed.
    async fn run(self: Arc<Self>) -> Result<PreparedRequest> {
        self.check_overrides()?;
        if self.request_bytes.max(self.chosen.version.content_bytes()) <= MAX_INLINE_BYTES {
            match self.render(RenderLimits::INLINE) {
                Err(PromptFault::Render(error)) if error.is_limit() => (),
                result => return result.map_err(|fault| self.to_error(fault)),
            }
        }
        let waiting = tokio::time::timeout(MAX_PERMIT_WAIT, RENDERINGS.acquire(Some(&*self.chosen.workspace)));
        let permit = waiting.await.map_err(|_| Error::Overloaded)?.ok_or(Error::Draining)?;
        let rendering = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            self.render(RenderLimits::FULL).map_err(|fault| self.to_error(fault))
        });
        // An error here means shutdown: rendering does not panic, and nothing else cancels it.
        rendering.await.map_err(|_| Error::Draining)?
    }

    /// Rejects fields with which a caller could use the provider of another workspace for more than its shared prompt.
    fn check_overrides(&self) -> Result<()> {
        if self.is_own() || self.request.chooses_provider() {
            return Ok(());
        }
        let unknown = self.request.overridden_fields().find(|field| !PromptProvider::may_caller_set(field));
        let field = unknown.or_else(|| {
            let compiled = self.chosen.version.compiled().ok()?;
            PromptProvider::TOKEN_FIELDS.into_iter().find(|field| self.request.raises(compiled, field))
        });
        field.map_or(Ok(()), |field| Err(Error::Prompt(PromptError::field_of_owner(&self.chosen.prompt.slug, field))))
    }

    /// Returns true if the prompt belongs to the workspace of the caller.
    fn is_own(&self) -> bool {
        *self.chosen.prompt.workspace == *self.chosen.workspace
    }

    fn render(&self, limits: RenderLimits) -> std::result::Result<PreparedRequest, PromptFault> {
        let (Self { request, .. }, ChosenVersion { snapshot, prompt, version, .. }) = (self, &self.chosen);
        let compiled = version.compiled().map_err(|message| PromptFault::Invalid(message.to_owned()))?;
        let find_partial = |name: &str| snapshot.find_partial(&prompt.workspace, name)?.source();
        let (rendered, missing) = compiled.render(&request.variables, limits, find_partial)?;
        let unknown = match self.action {
            PromptAction::Complete => Vec::new(),
            PromptAction::Render | PromptAction::Compare => {
                compiled.unknown_variables(&request.variables, limits, find_partial)?
            }
        };
        let (body, model) = request.compose_body(compiled, &rendered, self.action != PromptAction::Render);
        Ok(PreparedRequest {
            is_chat: rendered.is_chat(),
            provider_slug: compiled.virtual_key.clone().filter(|_| model.is_none()),
            identity: self.identity(compiled, model),
            body,
            missing,
            unknown,
        })
    }

    fn to_error(&self, fault: PromptFault) -> Error {
        let message = match fault {
            PromptFault::Invalid(message) => message,
            PromptFault::Render(error) => error.to_string(),
            PromptFault::NotJson(message) => format!("the raw template makes no valid JSON: {message}"),
        };
        Error::Prompt(PromptError::NotRenderable { prompt: Box::from(&*self.chosen.prompt.slug), message })
    }

    /// Returns the fields by which the record identifies the prompt. `model` is the model that the request sets.
    fn identity(&self, compiled: &CompiledPrompt, model: Option<String>) -> PromptIdentity {
        let (Self { request, .. }, ChosenVersion { prompt, version, label, .. }) = (self, &self.chosen);
        let slug = compiled.virtual_key.as_ref().filter(|_| !self.is_own() && !request.chooses_provider());
        let provider = slug.map(|slug| PromptProvider {
            workspace: Box::from(&*prompt.workspace),
            slug: slug.trim_start_matches('@').into(),
            model: model.map(Into::into),
        });
        PromptIdentity {
            id: Box::from(&*prompt.id),
            slug: Box::from(&*prompt.slug),
            version_id: version.id.clone(),
            version: version.number,
            label: label.clone(),
            variables: self.recorded_variables(),
            is_comparison: self.action == PromptAction::Compare,
            provider,
        }
    }

    /// Returns the variables for the record; of a large request only their names.
    fn recorded_variables(&self) -> Value {
        let variables = &self.request.variables;
        if self.request_bytes <= MAX_RECORDED_BYTES {
            return variables.clone();
        }
        let names = variables.as_object().into_iter().flat_map(Map::keys).take(MAX_RECORDED_NAMES);
        let short = |name: &String| name[..name.floor_char_boundary(MAX_RECORDED_NAME_BYTES)].to_owned();
        Value::Object(names.map(|name| (short(name), Value::Null)).collect())
    }
}

impl PreparedRequest {
    /// Turns the head of the request into that of a completion request.
    pub(super) fn rewrite_head(&self, head: &mut RequestHead, aliases: &[String]) {
        head.path = if self.is_chat { "/v1/chat/completions" } else { "/v1/completions" }.into();
        head.headers.retain(|name| !matches!(name, b"content-type" | b"content-length" | b"transfer-encoding"));
        head.headers.push(b"content-type", b"application/json");
        if let Some(slug) = &self.provider_slug {
            let control = ControlHeaders::parse(&head.headers, aliases);
            if control.provider.is_none() && control.virtual_key.is_none() {
                let value = format!("@{}", slug.trim_start_matches('@'));
                head.headers.push(b"x-gateway-provider", value.as_bytes());
            }
        }
        head.prompt = Some(Box::new(self.identity.clone()));
    }
}
