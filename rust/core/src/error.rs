//! Errors of the data plane: code, HTTP status, origin, and the error response in the client's API format.

mod prompt_error;
mod store_hint;

use penstock_llm::api_format::{self, ApiFormat, Failure};
use penstock_net::{ResponseHead, headers::Headers};

use crate::{
    exceeded_limit::ExceededLimit,
    ingress::{message::CompleteResponse, route::ALLOWED_METHODS},
};

pub use prompt_error::PromptError;
use store_hint::gateway_store_hint;

pub type Result<T> = std::result::Result<T, Error>;

/// Why a known key may not call the data plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyDenial {
    /// The key belongs to an organisation, not to a workspace.
    Workspace,
    Scope,
}

impl KeyDenial {
    pub fn reason(self) -> &'static str {
        match self {
            Self::Workspace => "it belongs to an organisation; use a key of a workspace",
            Self::Scope => "it lacks the scope completions.write",
        }
    }
}

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
    ProviderUnknown(String),
    ProviderUnresolved,
    NoMatchingTarget,
    NotFoundInWorkspace {
        kind: &'static str,
        slug: String,
    },
    ConfigInvalid(Vec<Problem>),
    ExplainRequestInvalid(Vec<Problem>),
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
    Overloaded,
    MemoryExhausted,
    Draining,
    Panicked,
}

/// Maximum number of bytes of an unreadable response that the error message quotes.
const MAX_RESPONSE_EXCERPT_BYTES: usize = 2048;

impl Error {
    /// Builds the error for a main model that may not be used. An empty name means that none could be read.
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
            Self::RateLimited(limit) | Self::KeyBudgetSpent(limit) | Self::BudgetSpent(limit) => Some(limit),
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
            Self::ProviderUnknown(_) => "invalid_provider",
            Self::ProviderUnresolved => "provider_unresolved",
            Self::NoMatchingTarget => "no_matching_target",
            Self::NotFoundInWorkspace { .. } => "not_found_in_workspace",
            Self::ConfigInvalid(_) => "invalid_config",
            Self::ExplainRequestInvalid(_) => "invalid_request",
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
            | Self::ProviderUnknown(_)
            | Self::ProviderUnresolved
            | Self::NoMatchingTarget
            | Self::NotFoundInWorkspace { .. }
            | Self::ConfigInvalid(_)
            | Self::ExplainRequestInvalid(_)
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
            Self::KeyBudgetSpent(_) | Self::BudgetSpent(_) => 412,
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

    /// Returns the message for the client: what was wrong and what is allowed. It never contains a credential.
    #[allow(clippy::too_many_lines, reason = "a row for each error")]
    pub fn message(&self) -> String {
        match self {
            Self::NotFound => "Not Found".into(),
            Self::NotImplemented { feature } => format!(
                "the management feature `{feature}` is not available in this version; \
                 hint: a provider's own path of this name is reached below /v1/proxy/"
            ),
            Self::MethodNotAllowed => "method not allowed; CONNECT, TRACE, TRACK and invalid method names are rejected".into(),
            Self::KeyMissing => "no valid gateway key: send it in x-gateway-api-key. Error Code: 03".into(),
            Self::KeyUnknown => "Invalid API Key. Error Code: 03".into(),
            Self::KeyExpired => "API key has expired. Error Code: 03".into(),
            Self::KeyForbidden { denial } => format!("this key may not call models: {}", denial.reason()),
            Self::TokenInvalid => "Invalid token. Error Code: 03".into(),
            Self::TokenExpired => "token has expired or is not valid yet. Error Code: 03".into(),
            Self::TokenVerificationUnavailable => "tokens of this issuer cannot be verified now: its signing keys have not been loaded yet".into(),
            Self::TokenSubjectRemoved => "the subject of this token was removed from the organisation. Error Code: 03".into(),
            Self::TokenForbidden { claim } => format!("the {claim} of this token is not allowed here"),
            Self::ProviderRequired => {
                "no provider: send x-gateway-provider or x-gateway-config (or a config that names a provider)".into()
            }
            Self::ProviderUnresolved => {
                "a passthrough target takes its provider from the request: send `@slug` in x-gateway-provider or `@slug/model` as model"
                    .into()
            }
            Self::NoMatchingTarget => "no condition of the config matches and it has no default target".into(),
            Self::ProviderUnknown(slug) => format!("invalid provider: unknown provider `{slug}`"),
            Self::NotFoundInWorkspace { kind, slug } => format!("{kind} `{slug}` does not exist in this workspace"),
            Self::ConfigInvalid(_) => "invalid config".into(),
            Self::ExplainRequestInvalid(_) => "invalid explain request".into(),
            Self::HeaderInvalid { name, message } => format!("invalid {name}: {message}"),
            Self::InlineOptionBlocked { field, .. } => format!("requests may not set {field}; an inline-config policy blocks it"),
            Self::CustomHostInvalid { message } => format!("invalid custom host: {message}"),
            Self::CredentialUnavailable { provider, message } => format!("no credential for {provider}: {message}"),
            Self::ProviderOptionInvalid { provider, message } => format!("{provider}: {message}"),
            Self::BodyInvalid { offset: at, message } => format!("invalid JSON body at byte {at}: {message}"),
            Self::HeadersTooLarge { limit } => {
                format!("the request's headers are larger than {limit} bytes (server.header_bytes)")
            }
            Self::BodyTooLarge { limit } => format!("request body is larger than {limit} bytes"),
            Self::BodyTimeout { setting: limit, value } => format!("request body arrived too slowly: limits.{limit} is {value}"),
            Self::TransferCodingUnsupported { coding } => {
                format!("transfer-encoding `{coding}` is not supported; send `chunked` or a content-length")
            }
            Self::InvalidFraming => "request body framing is not valid HTTP/1.1".into(),
            Self::IncompleteBody => "request body ended before it was complete".into(),
            Self::Untranslatable { provider, path, message } => {
                format!("this request cannot be translated for {provider}: {path}: {message}")
            }
            Self::TokensUncountable { path, message } => {
                format!("the tokens of this request cannot be counted: {path}: {message}")
            }
            Self::ConditionsTooExpensive { bytes, limit } => format!(
                "the regular expressions of this config would search {bytes} bytes of this request in total; at most {limit} are allowed: send shorter values, or use fewer patterns"
            ),
            Self::ConfigOverrideNotAllowed => "this key is bound to a config, which a request may not override".into(),
            Self::ModelNotAllowed { model, .. } if model.is_empty() => {
                "only some models are allowed here, and no model name could be read from the request".into()
            }
            Self::ModelNotAllowed { model, field } if field.is_empty() => {
                format!("the model `{model}` may not be used here")
            }
            Self::ModelNotAllowed { model, field } => {
                format!("the model `{model}` may not be used here; the request names it in `{field}`")
            }
            Self::ModelsUnlistable { field } => format!(
                "the models in `{field}` cannot be checked: the value is not valid JSON or names more than 1000 models; \
                 only some models are allowed here"
            ),
            Self::FormUnreadable { message } => {
                format!("cannot read which models this form names: {message}; only some models are allowed here")
            }
            Self::BatchUnreadable { message } => format!("cannot read which models this batch uses: {message}"),
            Self::NoBatchOutput { status } if status.is_empty() => "this batch has no output".into(),
            Self::NoBatchOutput { status } => format!("this batch has no output: it is {status}"),
            Self::UnsupportedOperation { operation, provider } => {
                let hint = gateway_store_hint(operation);
                format!("{operation} is not supported by {provider}{hint}")
            }
            Self::Timeout { milliseconds } => format!("request exceeded the timeout of {milliseconds} ms"),
            Self::ClientReadTimeout { milliseconds } => {
                format!("the response was not read for {milliseconds} ms (server.write_stall_ms)")
            }
            Self::IdleTimeout { milliseconds } => {
                format!("the provider's response broke off: no data for {milliseconds} ms")
            }
            Self::ConnectTimeout { host, step } => format!("timed out connecting to {host}: its {step} took too long"),
            Self::ConnectFailed { host, cause } => format!("no connection to {host}: {cause}"),
            Self::UpstreamResponseBroken { cause } => format!("the provider's response broke off: {cause}"),
            Self::ResponseInvalid { provider, excerpt, .. } => format!("{provider} returned an invalid response: {excerpt}"),
            Self::ControlUnavailable => "the management service is restarting".into(),
            Self::Prompt(error) => error.to_string(),
            Self::RateLimited(limit) => format!("rate limit of {limit}"),
            Self::KeyBudgetSpent(limit) => format!("usage limit of {limit}. Error Code: 04"),
            Self::BudgetSpent(limit) => format!("usage limit of {limit}"),
            Self::Overloaded => "too many requests in flight".into(),
            Self::MemoryExhausted => {
                "not enough memory for this request's body now; limits.buffered_body_bytes bounds the bodies that are buffered at once".into()
            }
            Self::Draining => "the gateway is shutting down; send the request again".into(),
            Self::Panicked => "Something went wrong".into(),
        }
    }

    fn error_type(&self) -> &'static str {
        match (self.status(), self.origin()) {
            (401, _) => "authentication_error",
            (403, _) => "permission_error",
            (408, _) => "timeout_error",
            (404, _) => "not_found_error",
            (413, _) => "request_too_large",
            (412, _) => "usage_limit_error",
            (429, _) => "rate_limit_error",
            (_, ErrorOrigin::Client) => "invalid_request_error",
            _ => "api_error",
        }
    }

    /// Builds the error response in the client's API format. `request_id` is `None` if the request has no record.
    pub fn to_response(&self, dialect: ApiFormat, request_id: Option<&str>) -> CompleteResponse {
        let mut headers = Headers::with_capacity(4);
        headers.push(b"content-type", b"application/json");
        match self.status() {
            405 => headers.push(b"allow", ALLOWED_METHODS.join(", ").as_bytes()),
            // Official SDKs repeat requests with a 5xx status, unless this header forbids it.
            501 => headers.push(b"x-should-retry", b"false"),
            503 => headers.push(b"retry-after", b"1"),
            _ => (),
        }
        if let Some(limit) = self.exceeded_limit() {
            limit.push_headers(&mut headers);
        }
        CompleteResponse {
            head: ResponseHead { status: self.status(), headers },
            body: self.encode_body(dialect, request_id).into(),
        }
    }

    fn encode_body(&self, dialect: ApiFormat, request_id: Option<&str>) -> Vec<u8> {
        let message = self.message();
        if dialect != ApiFormat::OpenAi {
            let failure =
                Failure { status: self.status(), error_type: None, message: &message, code: None, request_id };
            return api_format::error_body(dialect, &failure);
        }
        let param = self.exceeded_limit().map(|limit| &*limit.param);
        let error =
            serde_json::json!({"message": message, "type": self.error_type(), "param": param, "code": self.code()});
        let body = match self {
            Self::NotFound => serde_json::json!({"message": message, "ok": false}),
            Self::Timeout { .. } | Self::IdleTimeout { .. } => {
                serde_json::json!({"error": {"message": message, "type": self.error_type(), "param": null, "code": null}})
            }
            Self::ResponseInvalid { provider, .. } => {
                let error = serde_json::json!({"message": message, "type": null, "param": null, "code": null});
                serde_json::json!({"error": error, "provider": provider})
            }
            Self::ConfigInvalid(problems) | Self::ExplainRequestInvalid(problems) => {
                let errors: Vec<_> = problems
                    .iter()
                    .map(|p| format!("path: {}, message: {}", p.path.trim_start_matches("$."), p.message))
                    .collect();
                serde_json::json!({"status": "failure", "message": message, "errors": errors, "error": error})
            }
            Self::KeyForbidden { .. } | Self::TokenForbidden { .. } => {
                serde_json::json!({"success": false, "data": {"message": message, "errorCode": self.code()}})
            }
            // Clients of the management API read `data`, SDKs of model providers read `error`.
            Self::NotImplemented { .. } => serde_json::json!({
                "success": false, "data": {"message": message, "errorCode": self.code()}, "error": error
            }),
            Self::InlineOptionBlocked { field, .. } => serde_json::json!({"status": "failure", "message": message,
                "error": {"code": self.code(), "message": message, "field": field}}),
            _ => serde_json::json!({"status": "failure", "message": message, "error": error}),
        };
        body.to_string().into_bytes()
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
