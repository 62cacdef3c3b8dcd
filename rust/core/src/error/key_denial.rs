//! Reason why a valid key is denied.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyDenial {
    /// The key belongs to an organisation, not to a workspace.
    Workspace,
    /// The key may neither call models nor render prompts.
    Scope,
    /// The key may render prompts, but not call models.
    Completions,
    /// The key may call models, but not render prompts.
    Render,
}

impl fmt::Display for KeyDenial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Workspace => "call models: it belongs to an organisation; use a key of a workspace",
            Self::Scope | Self::Completions => "call models: it lacks the scope completions.write",
            Self::Render => "render prompts: it lacks the scope prompts.render",
        })
    }
}
