//! Errors of the data plane: code, HTTP status, origin, and the error response in the client's API format.

pub mod exceeded_limit;
mod http_client;
mod key_denial;
mod message;
mod prompt_error;
mod response;
mod store_hint;

use self::exceeded_limit::ExceededLimit;

pub use key_denial::KeyDenial;
pub use prompt_error::PromptError;

pub type Result<T> = std::result::Result<T, Error>;

/// The party that caused an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorOrigin {
    Client,
    Gateway,
    Upstream,
}

/// One validation error: the JSON path in the document and what is wrong there.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    pub path: String,
    pub message: String,
}

impl Problem {
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

#[derive(Debug, Clone)]
pub enum Error {
    NotFound,
    NotImplemented {
        feature: &'static str,
    },
    MethodNotAllowed,
    KeyMissing,
    KeyUnknown,
    KeyExpired,
    KeyForbidden {
        denial: KeyDenial,
    },
    TokenInvalid,
    TokenExpired,
    TokenVerificationUnavailable,
    TokenSubjectRemoved,
    TokenForbidden {
        claim: &'static str,
    },
    ProviderRequired,
    ProviderUnknown {
        slug: String,
        similar: Option<&'static str>,
    },
    ProviderUnresolved,
    NoMatchingTarget,
    NotFoundInWorkspace {
        kind: &'static str,
        slug: String,
    },
    ConfigInvalid(Vec<Problem>),
    ExplainRequestInvalid(Vec<Problem>),
    /// A guardrail could not be tried.
    TrialFailed {
        message: String,
    },
    HeaderInvalid {
        name: &'static str,
        message: String,
    },
    InlineOptionBlocked {
        code: &'static str,
        field: &'static str,
    },
    CustomHostInvalid {
        message: String,
    },
    ProviderOptionInvalid {
        provider: &'static str,
        message: String,
    },
    CredentialUnavailable {
        provider: &'static str,
        message: String,
    },
    BodyInvalid {
        offset: usize,
        message: &'static str,
    },
    HeadersTooLarge {
        limit: usize,
    },
    BodyTooLarge {
        limit: usize,
    },
    BodyTimeout {
        setting: &'static str,
        value: u64,
    },
    InvalidFraming,
    /// A `transfer-encoding` other than `chunked`.
    TransferCodingUnsupported {
        coding: String,
    },
    IncompleteBody,
    ConfigOverrideNotAllowed,
    /// Matching the regular expressions of a config with this request would take too long.
    ConditionsTooExpensive {
        bytes: usize,
        limit: usize,
    },
    /// `field` is where the request names the model; empty for its main model.
    ModelNotAllowed {
        model: String,
        field: String,
    },
    BatchUnreadable {
        message: String,
    },
    /// A value whose models cannot be listed, at a provider with restricted models.
    ModelsUnlistable {
        field: String,
    },
    /// A form whose fields cannot be read reliably, at a provider with restricted models.
    FormUnreadable {
        message: String,
    },
    NoBatchOutput {
        status: String,
    },
    UnsupportedOperation {
        operation: &'static str,
        provider: &'static str,
    },
    Untranslatable {
        provider: &'static str,
        path: String,
        message: String,
    },
    TokensUncountable {
        path: String,
        message: String,
    },
    Timeout {
        milliseconds: u64,
    },
    IdleTimeout {
        milliseconds: u64,
    },
    ClientReadTimeout {
        milliseconds: u64,
    },
    ConnectTimeout {
        host: String,
        step: &'static str,
    },
    ConnectFailed {
        host: String,
        cause: String,
    },
    UpstreamResponseBroken {
        cause: String,
    },
    ResponseInvalid {
        provider: &'static str,
        status: u16,
        excerpt: String,
    },
    ControlUnavailable,
    Prompt(PromptError),
    /// A rate limit leaves less than the request needs.
    RateLimited(Box<ExceededLimit>),
    /// A budget of the API key or token leaves less than the request needs.
    KeyBudgetSpent(Box<ExceededLimit>),
    /// Another budget leaves less than the request needs.
    BudgetSpent(Box<ExceededLimit>),
    /// A hard budget applies to a request whose highest usage is not known.
    UsageNotBounded(Box<ExceededLimit>),
    Overloaded,
    MemoryExhausted,
    Draining,
    Panicked,
}

/// Maximum number of bytes of an unreadable response that the error message quotes.
const MAX_RESPONSE_EXCERPT_BYTES: usize = 2048;

impl Error {
    /// Builds the error for a main model that may not be used. An empty name means that the request names no readable
    /// model.
    pub fn model_not_allowed(model: impl Into<String>) -> Self {
        Self::ModelNotAllowed { model: model.into(), field: String::new() }
    }

    /// Builds the error for a complete response that is not in this provider's format.
    pub fn invalid_response(provider: &'static str, status: u16, response: &[u8]) -> Self {
        let excerpt = String::from_utf8_lossy(&response[..response.len().min(MAX_RESPONSE_EXCERPT_BYTES)]).into_owned();
        Self::ResponseInvalid { provider, status, excerpt }
    }

    /// Returns true if the error repeats text of a provider's response.
    pub fn has_upstream_text(&self) -> bool {
        matches!(self, Self::ResponseInvalid { .. } | Self::UpstreamResponseBroken { .. })
    }

    /// Returns the limit that rejected the request.
    pub fn exceeded_limit(&self) -> Option<&ExceededLimit> {
        match self {
            Self::RateLimited(limit)
            | Self::KeyBudgetSpent(limit)
            | Self::BudgetSpent(limit)
            | Self::UsageNotBounded(limit) => Some(limit),
            _ => None,
        }
    }

    /// Edits the text of a provider's response that the error repeats.
    pub fn edit_upstream_text(&mut self, edit: impl FnOnce(&mut String)) {
        if let Self::ResponseInvalid { excerpt: text, .. } | Self::UpstreamResponseBroken { cause: text } = self {
            edit(text);
        }
    }

    /// Returns the error code that clients and metrics use.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::NotImplemented { .. } => "not_implemented",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::KeyMissing
            | Self::KeyUnknown
            | Self::KeyExpired
            | Self::TokenInvalid
            | Self::TokenExpired
            | Self::TokenSubjectRemoved => "03",
            Self::KeyForbidden { .. } | Self::TokenForbidden { .. } => "AB03",
            Self::TokenVerificationUnavailable => "token_verification_unavailable",
            Self::ProviderRequired => "provider_required",
            Self::ProviderUnknown { .. } => "invalid_provider",
            Self::ProviderUnresolved => "provider_unresolved",
            Self::NoMatchingTarget => "no_matching_target",
            Self::NotFoundInWorkspace { .. } => "not_found_in_workspace",
            Self::ConfigInvalid(_) => "invalid_config",
            Self::ExplainRequestInvalid(_) => "invalid_request",
            Self::TrialFailed { .. } => "AB01",
            Self::HeaderInvalid { .. } => "invalid_header",
            Self::InlineOptionBlocked { code, .. } => code,
            Self::CustomHostInvalid { .. } => "invalid_custom_host",
            Self::ProviderOptionInvalid { .. } => "invalid_provider_option",
            Self::CredentialUnavailable { .. } => "credential_unavailable",
            Self::BodyInvalid { .. } | Self::ModelsUnlistable { .. } => "invalid_json",
            Self::HeadersTooLarge { .. } => "headers_too_large",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::BodyTimeout { .. } => "body_timeout",
            Self::InvalidFraming => "invalid_framing",
            Self::TransferCodingUnsupported { .. } => "unsupported_transfer_encoding",
            Self::IncompleteBody => "incomplete_body",
            Self::ConfigOverrideNotAllowed => "config_override_not_allowed",
            Self::ConditionsTooExpensive { .. } => "conditions_too_expensive",
            Self::ModelNotAllowed { .. } => "model_not_allowed",
            Self::BatchUnreadable { .. } => "invalid_batch",
            Self::FormUnreadable { .. } => "invalid_form",
            Self::NoBatchOutput { .. } => "no_output",
            Self::UnsupportedOperation { .. } => "unsupported_operation",
            Self::Untranslatable { .. } => "untranslatable_request",
            Self::TokensUncountable { .. } => "token_count_failed",
            Self::Timeout { .. } => "timeout",
            Self::IdleTimeout { .. } => "idle_timeout",
            Self::ClientReadTimeout { .. } => "client_read_timeout",
            Self::ConnectTimeout { .. } => "upstream_connect_timeout",
            Self::ConnectFailed { .. } => "upstream_connect_failed",
            Self::UpstreamResponseBroken { .. } => "upstream_disconnected",
            Self::ResponseInvalid { .. } => "invalid_response",
            Self::ControlUnavailable => "management_unavailable",
            Self::Prompt(error) => error.code(),
            Self::RateLimited(_) => "rate_limited",
            Self::KeyBudgetSpent(_) => "04",
            Self::BudgetSpent(_) => "usage_limit_exceeded",
            Self::UsageNotBounded(_) => "usage_not_bounded",
            Self::Overloaded => "overloaded",
            Self::MemoryExhausted => "memory_exhausted",
            Self::Draining => "draining",
            Self::Panicked => "internal",
        }
    }

    pub fn status(&self) -> u16 {
        match self {
            Self::NotFound | Self::NoBatchOutput { .. } => 404,
            Self::KeyMissing
            | Self::KeyUnknown
            | Self::KeyExpired
            | Self::TokenInvalid
            | Self::TokenExpired
            | Self::TokenSubjectRemoved => 401,
            Self::ProviderRequired
            | Self::ProviderUnknown { .. }
            | Self::ProviderUnresolved
            | Self::NoMatchingTarget
            | Self::NotFoundInWorkspace { .. }
            | Self::ConfigInvalid(_)
            | Self::ExplainRequestInvalid(_)
            | Self::TrialFailed { .. }
            | Self::HeaderInvalid { .. }
            | Self::InlineOptionBlocked { .. }
            | Self::CustomHostInvalid { .. }
            | Self::ProviderOptionInvalid { .. }
            | Self::BodyInvalid { .. }
            | Self::Untranslatable { .. }
            | Self::TokensUncountable { .. }
            | Self::ConfigOverrideNotAllowed
            | Self::ConditionsTooExpensive { .. }
            | Self::BatchUnreadable { .. }
            | Self::FormUnreadable { .. }
            | Self::ModelsUnlistable { .. }
            | Self::InvalidFraming
            | Self::IncompleteBody => 400,
            Self::ResponseInvalid { status, .. } => *status,
            Self::Prompt(error) => error.status(),
            Self::KeyBudgetSpent(_) | Self::BudgetSpent(_) | Self::UsageNotBounded(_) => 412,
            Self::RateLimited(_) => 429,
            Self::ModelNotAllowed { .. } | Self::KeyForbidden { .. } | Self::TokenForbidden { .. } => 403,
            Self::MethodNotAllowed => 405,
            Self::BodyTooLarge { .. } => 413,
            Self::HeadersTooLarge { .. } => 431,
            Self::Timeout { .. }
            | Self::IdleTimeout { .. }
            | Self::ClientReadTimeout { .. }
            | Self::BodyTimeout { .. } => 408,
            Self::UpstreamResponseBroken { .. } | Self::ConnectFailed { .. } | Self::CredentialUnavailable { .. } => {
                502
            }
            Self::ConnectTimeout { .. }
            | Self::TokenVerificationUnavailable
            | Self::ControlUnavailable
            | Self::Overloaded
            | Self::MemoryExhausted
            | Self::Draining => 503,
            Self::UnsupportedOperation { .. } | Self::Panicked => 500,
            Self::TransferCodingUnsupported { .. } | Self::NotImplemented { .. } => 501,
        }
    }

    pub fn origin(&self) -> ErrorOrigin {
        match self {
            Self::Timeout { .. }
            | Self::IdleTimeout { .. }
            | Self::ConnectTimeout { .. }
            | Self::ConnectFailed { .. }
            | Self::CredentialUnavailable { .. }
            | Self::ResponseInvalid { .. }
            | Self::UpstreamResponseBroken { .. } => ErrorOrigin::Upstream,
            Self::TokenVerificationUnavailable
            | Self::ControlUnavailable
            | Self::Overloaded
            | Self::MemoryExhausted
            | Self::Draining
            | Self::Panicked => ErrorOrigin::Gateway,
            _ => ErrorOrigin::Client,
        }
    }

    /// Returns true if a response did not come in time. The provider may bill it nevertheless.
    pub fn is_response_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::IdleTimeout { .. })
    }

    /// Returns true if the network delivered no response, or one that cannot be parsed.
    pub fn is_network_error(&self) -> bool {
        matches!(
            self,
            Self::ConnectTimeout { .. }
                | Self::ConnectFailed { .. }
                | Self::UpstreamResponseBroken { .. }
                | Self::ResponseInvalid { .. }
        )
    }

    /// Returns true if the target was not tried, for example because the config names a provider that does not exist.
    pub fn is_untried(&self) -> bool {
        self.origin() == ErrorOrigin::Client && self.exceeded_limit().is_none() && !self.stops_fallback()
    }

    /// Returns true if every other target would fail in the same way, so that fallback stops.
    pub fn stops_fallback(&self) -> bool {
        self.exceeded_limit().is_some_and(|limit| !limit.is_target)
            || matches!(
                self,
                Self::BodyInvalid { .. }
                    | Self::BodyTooLarge { .. }
                    | Self::BodyTimeout { .. }
                    | Self::InvalidFraming
                    | Self::IncompleteBody
                    | Self::Overloaded
                    | Self::MemoryExhausted
                    | Self::Draining
                    | Self::Panicked
            )
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.message())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests;
