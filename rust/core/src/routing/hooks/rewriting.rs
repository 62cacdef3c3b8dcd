//! Properties of hooks: whether they may deny or change a body, and whether they may write any text into it.

use crate::guardrails::{hook::Hook, results::HookResult};

/// Checks that put any text into a body.
const REWRITING_CHECKS: [&str; 3] = ["default.addPrefix", "default.regexReplace", "default.webhook"];

/// Returns true if the provider must get the body as the hook read it, because the hook may deny or change the body.
pub fn needs_rewritten_body(hook: &Hook) -> bool {
    !hook.is_async && (hook.denies || hook.may_change())
}

/// Returns true if a check that may write any text has changed the body.
pub fn has_rewritten(results: &[HookResult]) -> bool {
    let mut checks = results.iter().flat_map(|result| &result.checks);
    checks.any(|check| check.is_transformed && REWRITING_CHECKS.contains(&check.id.as_str()))
}

/// Returns true if a hook may write any text.
pub fn may_rewrite(hook: &Hook) -> bool {
    hook.checks.iter().any(|check| REWRITING_CHECKS.contains(&check.check.id.as_str()))
}
