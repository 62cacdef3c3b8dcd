//! Guardrails that apply to a request at one target, each with its origin.

use std::sync::Arc;

use serde_json::{Value, json};

use super::rewriting::needs_rewritten_body;
use crate::{
    auth::gateway_key::DefaultGuardrails,
    config::Node,
    error::{Error, Result},
    guardrails::{
        checks::Stage,
        hook::{Hook, HookReference},
    },
    resolve::target_resolver::TargetResolver,
};

/// Where a guardrail comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Config,
    /// Defaults of the API key.
    Key,
    /// Defaults of the workspace.
    Workspace,
    /// Defaults of the workspace that belong to the organisation.
    Organisation,
}

impl Origin {
    fn name(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Key => "key",
            Self::Workspace => "workspace",
            Self::Organisation => "organisation",
        }
    }
}

/// Returns true if the caller's defaults add guardrails to its requests.
pub(crate) fn has_defaults(resolver: &TargetResolver<'_>) -> bool {
    default_lists(resolver).into_iter().any(|list| list.is_some())
}

/// Returns the default guardrails of the key and of the workspace.
fn default_lists<'s>(resolver: &TargetResolver<'s>) -> [Option<&'s DefaultGuardrails>; 2] {
    let caller = resolver.caller;
    [caller.key.and_then(|key| key.guardrails()), resolver.snapshot.default_guardrails(caller.workspace())]
}

/// Returns true if hooks of a node or the defaults of the caller read responses. Then these must not be compressed.
pub(crate) fn read_responses(resolver: &TargetResolver<'_>, node: &Node) -> bool {
    let defaults = default_lists(resolver);
    node.features.guardrails.has_after() || defaults.into_iter().flatten().any(|defaults| !defaults.output.is_empty())
}

/// Returns the hooks of a node at one stage, followed by those of the caller's defaults.
///
/// # Errors
/// If a guardrail does not exist or cannot run: the request must not be sent without it.
pub(super) fn find_hooks(resolver: &TargetResolver<'_>, node: &Node, stage: Stage) -> Result<Vec<(Arc<Hook>, Origin)>> {
    let workspace = resolver.caller.workspace();
    let find = |name: &str| {
        let guardrail = resolver.snapshot.find_guardrail(workspace, name);
        let hook = guardrail.and_then(|saved| Some((Arc::clone(saved.hook()?), saved.workspace.is_none())));
        hook.ok_or_else(|| Error::NotFoundInWorkspace { kind: "guardrail", slug: name.to_owned() })
    };
    let mut hooks = Vec::new();
    let features = &node.features.guardrails;
    let mut add_own = |reference: &HookReference| -> Result<()> {
        hooks.push(match reference {
            HookReference::Inline(hook) => (Arc::clone(hook), Origin::Config),
            HookReference::Saved(name) => (find(name)?.0, Origin::Config),
        });
        Ok(())
    };
    match stage {
        Stage::Input => features.before().try_for_each(&mut add_own)?,
        Stage::Output => features.after().try_for_each(&mut add_own)?,
    }
    for (list, is_key) in default_lists(resolver).into_iter().zip([true, false]) {
        let names = list.map(|list| if stage == Stage::Input { &list.input } else { &list.output });
        for name in names.into_iter().flatten() {
            let (hook, is_organisations) = find(name)?;
            let origin = match (is_key, is_organisations) {
                (true, _) => Origin::Key,
                (false, true) => Origin::Organisation,
                (false, false) => Origin::Workspace,
            };
            // A default guardrail that the config also names runs once, after all hooks of the config. If it ran before
            // them, it would not check the texts that they write.
            hooks.retain(|(other, _)| !Arc::ptr_eq(other, &hook));
            hooks.push((hook, origin));
        }
    }
    Ok(hooks)
}

/// Returns true if guardrails may deny or change a request to a node or its response, or if one cannot be found.
pub(crate) fn may_decide(resolver: &TargetResolver<'_>, node: &Node) -> bool {
    [Stage::Input, Stage::Output].into_iter().any(|stage| {
        find_hooks(resolver, node, stage).map_or(true, |hooks| hooks.iter().any(|(hook, _)| needs_rewritten_body(hook)))
    })
}

/// Hooks of a request to one target.
pub(super) struct StageHooks {
    pub before: Vec<Arc<Hook>>,
    pub after: Vec<Arc<Hook>>,
    /// The first `after_of_client` hooks of `after` come from a config in the request itself.
    pub after_of_client: usize,
}

/// Returns the hooks before a request to a node and after its response; `None` if there are none.
///
/// # Errors
/// If a guardrail does not exist or cannot run.
pub(super) fn hooks_of(
    resolver: &TargetResolver<'_>,
    node: &Node,
    has_saved_config: bool,
) -> Result<Option<StageHooks>> {
    if node.features.guardrails.is_empty() && !has_defaults(resolver) {
        return Ok(None);
    }
    let after = find_hooks(resolver, node, Stage::Output)?;
    let of_config = after.iter().take_while(|(_, origin)| *origin == Origin::Config).count();
    let hooks_only = |hooks: Vec<(Arc<Hook>, Origin)>| hooks.into_iter().map(|(hook, _)| hook).collect();
    Ok(Some(StageHooks {
        before: hooks_only(find_hooks(resolver, node, Stage::Input)?),
        after: hooks_only(after),
        after_of_client: if has_saved_config { 0 } else { of_config },
    }))
}

/// Describes the guardrails of a node for `explain`: what they may do, and where they come from.
///
/// # Errors
/// If a guardrail does not exist or cannot run.
pub(crate) fn describe_guardrails(resolver: &TargetResolver<'_>, node: &Node) -> Result<Value> {
    let mut described = Vec::new();
    for (stage, name) in [(Stage::Input, "input"), (Stage::Output, "output")] {
        for (hook, origin) in find_hooks(resolver, node, stage)? {
            let checks: Vec<_> = hook.checks.iter().map(|check| check.check.id.as_str()).collect();
            described.push(json!({"id": hook.id, "stage": name, "type": hook.kind.name(), "origin": origin.name(),
                "version": hook.version, "deny": hook.denies, "async": hook.is_async, "changes": hook.may_change(),
                "dry_run": hook.is_dry_run, "restores": hook.restores(), "stream": hook.stream_mode().name(), "checks": checks}));
        }
    }
    Ok(described.into())
}
