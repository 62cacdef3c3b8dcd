//! Errors of requests that run or render a saved prompt.

use std::fmt;

use super::Problem;
use crate::ingress::message::PromptProvider;

/// Maximum length of the name of a field in an error message.
const MAX_SHOWN_BYTES: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptError {
    /// The workspace has no active prompt with this id or slug.
    UnknownPrompt {
        name: String,
    },
    /// Several other workspaces share a prompt with this slug.
    AmbiguousPrompt {
        name: String,
    },
    /// The caller may not choose this field of a prompt that another workspace shares.
    FieldOfOwner {
        prompt: Box<str>,
        field: Box<str>,
    },
    /// The response would show the text of a prompt to a caller that may not render prompts.
    TextHidden {
        what: &'static str,
    },
    /// The prompt has no such version or label.
    UnknownVersion {
        prompt: Box<str>,
        version: String,
        labels: String,
    },
    /// No version of the prompt is published.
    Unpublished {
        prompt: Box<str>,
    },
    InvalidBody {
        path: String,
        message: String,
    },
    /// The prompt cannot be rendered with these variables.
    NotRenderable {
        prompt: Box<str>,
        message: String,
    },
}

impl PromptError {
    /// Returns the error of a body with these problems. The first one has its path in the error itself.
    pub fn invalid_body(problems: &[Problem]) -> Self {
        let path = problems.first().map(|problem| problem.path.clone()).unwrap_or_default();
        let lines = problems.iter().enumerate().map(|(index, problem)| match index {
            0 => problem.message.clone(),
            _ => format!("{} {}", problem.path, problem.message),
        });
        Self::InvalidBody { path, message: lines.collect::<Vec<_>>().join("; also ") }
    }

    /// Returns the error of a field that callers of a shared prompt may not set.
    pub fn field_of_owner(prompt: &str, field: &str) -> Self {
        Self::FieldOfOwner { prompt: prompt.into(), field: field[..field.floor_char_boundary(MAX_SHOWN_BYTES)].into() }
    }

    /// Returns the error code that clients and metrics use.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownPrompt { .. } => "prompt_not_found",
            Self::UnknownVersion { .. } | Self::Unpublished { .. } => "prompt_version_not_found",
            Self::AmbiguousPrompt { .. } => "prompt_ambiguous",
            Self::FieldOfOwner { .. } => "prompt_field_not_allowed",
            Self::TextHidden { .. } => "prompt_text_not_allowed",
            Self::InvalidBody { .. } => "invalid_prompt_request",
            Self::NotRenderable { .. } => "prompt_not_rendered",
        }
    }

    pub fn status(&self) -> u16 {
        match self {
            Self::UnknownPrompt { .. } | Self::UnknownVersion { .. } | Self::Unpublished { .. } => 404,
            Self::AmbiguousPrompt { .. } | Self::InvalidBody { .. } | Self::NotRenderable { .. } => 400,
            Self::FieldOfOwner { .. } | Self::TextHidden { .. } => 403,
        }
    }
}

impl fmt::Display for PromptError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownPrompt { name } => write!(formatter, "prompt `{name}` does not exist in this workspace"),
            Self::AmbiguousPrompt { name } => {
                write!(formatter, "several workspaces share a prompt `{name}` with this one; use its id instead")
            }
            Self::FieldOfOwner { prompt, field } => write!(
                formatter,
                "requests, configs and guardrails may not set `{field}` of the shared prompt `{prompt}`, because it uses \
                 the provider of another workspace; allowed are {}, and no more tokens than the prompt allows; hint: a \
                 model such as `@my-provider/model` uses your own, or fork the prompt",
                PromptProvider::FIELDS_OF_CALLER.join(", ")
            ),
            Self::TextHidden { what } => write!(
                formatter,
                "{what} of a request may not be combined with a prompt, because it would show the text of the prompt; \
                 hint: use a saved one, or a key with the scope prompts.render"
            ),
            Self::UnknownVersion { prompt, version, labels } => write!(
                formatter,
                "prompt `{prompt}` has no version `{version}`; allowed are a number, `latest`{labels}"
            ),
            Self::Unpublished { prompt } => {
                write!(formatter, "prompt `{prompt}` has no published version; hint: add `@latest` to its name")
            }
            Self::InvalidBody { path, message } => {
                write!(formatter, "invalid body of a prompt request: {path} {message}")
            }
            Self::NotRenderable { prompt, message } => {
                write!(formatter, "prompt `{prompt}` cannot be rendered: {message}")
            }
        }
    }
}
