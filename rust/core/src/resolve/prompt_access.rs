//! Restrictions of requests for saved prompts. A request may use the provider of a shared prompt only for this prompt.
//! It may not read the text of a prompt that its key may not render.

use super::{
    route_plan::{ConfigSource, NamedProvider, RoutePlan},
    target_resolver::TargetResolver,
};
use crate::{
    config::Node,
    error::{Error, PromptError, Result},
    features::parameters::Parameters,
    guardrails::hook::HookReference,
    ingress::message::{PromptIdentity, PromptProvider},
    state::snapshot::SavedProvider,
};

impl<'c> TargetResolver<'c> {
    /// Returns the provider of another workspace that the prompt of this request uses.
    pub(super) fn shared_provider(&self) -> Option<&'c PromptProvider> {
        self.client_request.head.prompt.as_ref()?.provider.as_ref()
    }

    /// Returns the provider of a shared prompt, which its request may use although it belongs to another workspace.
    /// `None` if `slug` or `model` differs from the prompt's. Then a config refers to the caller's own workspace.
    pub(super) fn find_shared_provider(&self, slug: &str, model: Option<&str>) -> Result<Option<NamedProvider<'c>>> {
        let Some(shared) = self.shared_provider().filter(|shared| *shared.slug == *slug) else { return Ok(None) };
        if shared.model.as_deref() != model {
            return Ok(None);
        }
        self.find_provider_in(Some(&shared.workspace), slug).map(Some)
    }

    /// Returns the provider that the header of a request names. For a prompt without a model, it may be the provider of
    /// the prompt.
    pub(super) fn find_requested_provider(&self, name: &str) -> Result<NamedProvider<'c>> {
        let provider = name.strip_prefix('@').map(|slug| self.find_shared_provider(slug, None)).transpose()?.flatten();
        provider.map_or_else(|| self.find_provider(name), Ok)
    }

    /// Returns the prompt if this request uses the provider of another workspace through that prompt; `None` otherwise.
    ///
    /// # Errors
    /// If the request has another model than the prompt.
    pub(crate) fn find_sharing_prompt(
        &self,
        saved: Option<&SavedProvider>,
        model: &str,
    ) -> Result<Option<&'c PromptIdentity>> {
        let (Some(prompt), Some(shared), Some(saved)) =
            (self.client_request.head.prompt.as_deref(), self.shared_provider(), saved)
        else {
            return Ok(None);
        };
        let provider = self.snapshot.find_provider(Some(&shared.workspace), &shared.slug);
        if !provider.is_some_and(|provider| std::ptr::eq(provider, saved))
            || self.caller.workspace() == Some(&*shared.workspace)
        {
            return Ok(None);
        }
        match &shared.model {
            None if !model.is_empty() => Err(field_of_owner(prompt, "model")),
            _ => Ok(Some(prompt)),
        }
    }

    /// Rejects parts of the request that would receive or reveal the text of a prompt, if the key may not render
    /// prompts: a host, or a provider with a credential or an address of the request. Also guardrails and conditions,
    /// because their results could reveal the text bit by bit.
    pub(super) fn reject_prompt_readers(&self, config: &ConfigSource<'_>) -> Result<()> {
        if !self.hides_prompt() {
            return Ok(());
        }
        let exposed = match config {
            _ if self.client_request.control.custom_host.is_some() => Some("a custom host"),
            ConfigSource::Inline(inline) if reads_texts(&inline.condition_params) => {
                Some("a condition on texts in the config")
            }
            ConfigSource::Inline(inline) => find_reader(&inline.root),
            ConfigSource::Saved(_) | ConfigSource::None => None,
        };
        exposed.map_or(Ok(()), |what| Err(Error::Prompt(PromptError::TextHidden { what })))
    }

    /// Rejects a provider that is not stored, if the key may not render prompts. Otherwise the request would decide its
    /// address or its credential, and so who gets the text. Saved providers, and those that a saved config names, are
    /// stored.
    pub(super) fn reject_unsaved_provider(
        &self,
        saved: Option<&SavedProvider>,
        plan: &RoutePlan<'_>,
        node: &Node,
    ) -> Result<()> {
        let is_stored = saved.is_some() || plan.config_slug.is_some() && node.provider.is_some();
        if is_stored || !self.hides_prompt() {
            return Ok(());
        }
        Err(Error::Prompt(PromptError::TextHidden { what: "a provider that is not saved" }))
    }

    /// Returns true if the request runs a prompt whose text the caller may not see.
    pub(crate) fn hides_prompt(&self) -> bool {
        self.client_request.head.prompt.is_some() && self.caller.key.is_some_and(|key| !key.may_render)
    }
}

/// Returns true if conditions read fields of the request that may contain texts of the prompt.
fn reads_texts(condition_params: &[String]) -> bool {
    condition_params.iter().any(|field| field != "model" && !PromptProvider::may_caller_set(field))
}

/// Returns the first part of an inline config that would receive or reveal texts.
fn find_reader(node: &Node) -> Option<&'static str> {
    let guardrails = &node.features.guardrails;
    let mut hooks = guardrails.before().chain(guardrails.after());
    if hooks.any(|hook| matches!(hook, HookReference::Inline(_))) {
        return Some("a guardrail in the config");
    }
    if !node.features.custom_host.is_none() {
        return Some("a custom host");
    }
    if node.api_key.is_some() {
        return Some("a credential in the config");
    }
    if !node.options.is_empty() || !node.deployments.is_empty() {
        return Some("an option of a provider in the config");
    }
    node.targets.iter().find_map(find_reader)
}

/// Rejects a config that changes the request that a shared prompt sends to the provider of its owner.
pub(super) fn reject_changes_by_config(prompt: &PromptIdentity, parameters: &Parameters) -> Result<()> {
    let is_allowed = PromptProvider::may_caller_set;
    let is_limit = |field: &str| PromptProvider::TOKEN_FIELDS.contains(&field);
    let default = parameters.defaulted_fields().find(|field| !is_allowed(field));
    let forced = parameters.forced_fields().find(|field| !is_allowed(field) || is_limit(field));
    default.or(forced).map_or(Ok(()), |field| Err(field_of_owner(prompt, field)))
}

fn field_of_owner(prompt: &PromptIdentity, field: &str) -> Error {
    Error::Prompt(PromptError::field_of_owner(&prompt.slug, field))
}
