//! Which texts of a request or response a check examines.

use penstock_llm::texts::{TextKind, TextPart, TextRole};
use serde::Deserialize;

use super::check::Stage;

/// Texts that a check examines. The default is the last message of a request, and all choices of a response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextScope {
    #[default]
    LastMessage,
    /// The last message of the user. Only some partners have a parameter for it.
    LastUserMessage,
    User,
    System,
    ToolResults,
    ToolArguments,
    All,
}

/// Names of the scopes, for the schema of parameters.
pub const SCOPE_NAMES: [&str; 6] = ["last_message", "user", "system", "tool_results", "tool_arguments", "all"];

impl TextScope {
    /// Returns true if texts of this kind in a response are in this scope.
    pub fn includes_output(self, kind: TextKind) -> bool {
        match self {
            Self::LastMessage | Self::All => true,
            Self::LastUserMessage | Self::User | Self::System => false,
            Self::ToolResults => kind == TextKind::ToolResult,
            Self::ToolArguments => kind == TextKind::ToolArguments,
        }
    }

    /// Returns the indexes of the texts in this scope. `measures`: only texts, refusals and results of tools, so that a
    /// check that measures texts ignores reasoning and the arguments of tools.
    pub fn select(self, stage: Stage, texts: &[TextPart], measures: bool) -> Vec<usize> {
        let last = texts.iter().map(|part| part.group).max().unwrap_or_default();
        let of_user = texts.iter().filter(|part| part.role == TextRole::User);
        let last_of_user = of_user.map(|part| part.group).max().unwrap_or_default();
        let is_set = |part: &TextPart| matches!(part.kind, TextKind::Text | TextKind::Refusal | TextKind::ToolResult);
        let is_in_scope = |part: &TextPart| match self {
            Self::LastMessage if stage == Stage::Output => !measures || is_set(part),
            Self::LastMessage => part.group == last && (!measures || is_set(part)),
            Self::LastUserMessage => {
                part.role == TextRole::User && part.group == last_of_user && (!measures || is_set(part))
            }
            Self::User => {
                part.role == TextRole::User
                    && (part.kind == TextKind::Text || part.kind == TextKind::Other && !measures)
            }
            Self::System => part.role == TextRole::System && (!measures || is_set(part)),
            Self::ToolResults => part.kind == TextKind::ToolResult,
            Self::ToolArguments => part.kind == TextKind::ToolArguments,
            Self::All => !measures || is_set(part),
        };
        texts.iter().enumerate().filter(|(_, part)| is_in_scope(part)).map(|(index, _)| index).collect()
    }
}
