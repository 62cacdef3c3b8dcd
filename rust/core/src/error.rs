//! Every error of the data plane: what it is called, its status, whose fault it is, and how it is told to the caller.

use penstock_llm::{
    api_format::{self, Dialect, Failure},
    operation::Operation,
};

use crate::{
    ingress::{
        headers::{Answered, Headers, Whole},
        route::METHODS,
    },
    state::snapshot::Lack,
};

pub type Result<T> = std::result::Result<T, Error>;

/// Who caused an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Caller,
    Gateway,
    Upstream,
}

/// One problem in a document: where it is and what is wrong.
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
    MethodUnknown,
    KeyMissing,
    KeyUnknown,
    KeyExpired,
    KeyForbidden { lack: Lack },
    TokenInvalid,
    TokenExpired,
    TokenUnchecked,
    TokenDeparted,
    TokenForbidden { what: &'static str },
    ProviderNeeded,
    ProviderUnknown(String),
    ProviderUnresolved,
    NoTarget,
    SavedUnknown { kind: &'static str, slug: String },
    ConfigInvalid(Vec<Problem>),
    RequestInvalid(Vec<Problem>),
    HeaderInvalid { name: &'static str, message: String },
    InlineBlocked { code: &'static str, field: &'static str },
    HostRefused { message: String },
    OptionInvalid { provider: &'static str, message: String },
    CredentialUnavailable { provider: &'static str, message: String },
    BodyInvalid { at: usize, message: &'static str },
    HeadTooLarge { limit: usize },
    BodyTooLarge { limit: usize },
    BodyTimeout { limit: &'static str, value: u64 },
    BadFraming,
    BrokenBody,
    ConfigBound,
    ModelRefused { model: String },
    LinesUnreadable { message: String },
    NoOutput { status: String },
    Unsupported { operation: &'static str, provider: &'static str },
    Untranslatable { provider: &'static str, path: String, message: String },
    Uncountable { path: String, message: String },
    Timeout { milliseconds: u64 },
    Silence { milliseconds: u64 },
    Unread { milliseconds: u64 },
    ConnectTimeout { host: String, step: &'static str },
    ConnectFailed { host: String, cause: String },
    UpstreamBroke { cause: String },
    AnswerInvalid { provider: &'static str, status: u16, said: String },
    ControlDown,
    Overloaded,
    NoRoom,
    Draining,
    Panicked,
}

/// Most of an answer that cannot be read is told with the error.
const MOST_SAID: usize = 2048;

impl Error {
    /// An answer that is read, and is none of this provider's.
    pub fn invalid_answer(provider: &'static str, status: u16, answer: &[u8]) -> Self {
        let said = String::from_utf8_lossy(&answer[..answer.len().min(MOST_SAID)]).into_owned();
        Self::AnswerInvalid { provider, status, said }
    }

    /// The identifier that clients and metrics use.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::MethodUnknown => "method_not_allowed",
            Self::KeyMissing
            | Self::KeyUnknown
            | Self::KeyExpired
            | Self::TokenInvalid
            | Self::TokenExpired
            | Self::TokenDeparted => "03",
            Self::KeyForbidden { .. } | Self::TokenForbidden { .. } => "AB03",
            Self::TokenUnchecked => "token_unchecked",
            Self::ProviderNeeded => "provider_needed",
            Self::ProviderUnknown(_) => "invalid_provider",
            Self::ProviderUnresolved => "provider_unresolved",
            Self::NoTarget => "no_target",
            Self::SavedUnknown { .. } => "not_found_in_workspace",
            Self::ConfigInvalid(_) => "invalid_config",
            Self::RequestInvalid(_) => "invalid_request",
            Self::HeaderInvalid { .. } => "invalid_header",
            Self::InlineBlocked { code, .. } => code,
            Self::HostRefused { .. } => "invalid_custom_host",
            Self::OptionInvalid { .. } => "invalid_provider_option",
            Self::CredentialUnavailable { .. } => "credential_unavailable",
            Self::BodyInvalid { .. } => "invalid_json",
            Self::HeadTooLarge { .. } => "headers_too_large",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::BodyTimeout { .. } => "body_timeout",
            Self::BadFraming => "bad_framing",
            Self::BrokenBody => "broken_body",
            Self::ConfigBound => "config_override_not_allowed",
            Self::ModelRefused { .. } => "model_not_allowed",
            Self::LinesUnreadable { .. } => "unreadable_batch",
            Self::NoOutput { .. } => "no_output",
            Self::Unsupported { .. } => "unsupported_operation",
            Self::Untranslatable { .. } => "untranslatable_request",
            Self::Uncountable { .. } => "uncountable_request",
            Self::Timeout { .. } => "timeout",
            Self::Silence { .. } => "idle_timeout",
            Self::Unread { .. } => "not_read",
            Self::ConnectTimeout { .. } => "upstream_connect_timeout",
            Self::ConnectFailed { .. } => "upstream_connect_failed",
            Self::UpstreamBroke { .. } => "upstream_broke",
            Self::AnswerInvalid { .. } => "invalid_response",
            Self::ControlDown => "control_down",
            Self::Overloaded => "overloaded",
            Self::NoRoom => "no_room",
            Self::Draining => "draining",
            Self::Panicked => "internal",
        }
    }

    pub fn status(&self) -> u16 {
        match self {
            Self::NotFound | Self::NoOutput { .. } => 404,
            Self::KeyMissing
            | Self::KeyUnknown
            | Self::KeyExpired
            | Self::TokenInvalid
            | Self::TokenExpired
            | Self::TokenDeparted => 401,
            Self::ProviderNeeded
            | Self::ProviderUnknown(_)
            | Self::ProviderUnresolved
            | Self::NoTarget
            | Self::SavedUnknown { .. }
            | Self::ConfigInvalid(_)
            | Self::RequestInvalid(_)
            | Self::HeaderInvalid { .. }
            | Self::InlineBlocked { .. }
            | Self::HostRefused { .. }
            | Self::OptionInvalid { .. }
            | Self::BodyInvalid { .. }
            | Self::Untranslatable { .. }
            | Self::Uncountable { .. }
            | Self::ConfigBound
            | Self::LinesUnreadable { .. }
            | Self::BadFraming
            | Self::BrokenBody => 400,
            Self::AnswerInvalid { status, .. } => *status,
            Self::ModelRefused { .. } | Self::KeyForbidden { .. } | Self::TokenForbidden { .. } => 403,
            Self::MethodUnknown => 405,
            Self::BodyTooLarge { .. } => 413,
            Self::HeadTooLarge { .. } => 431,
            Self::Timeout { .. } | Self::Silence { .. } | Self::Unread { .. } | Self::BodyTimeout { .. } => 408,
            Self::UpstreamBroke { .. } | Self::ConnectFailed { .. } | Self::CredentialUnavailable { .. } => 502,
            Self::ConnectTimeout { .. }
            | Self::TokenUnchecked
            | Self::ControlDown
            | Self::Overloaded
            | Self::NoRoom
            | Self::Draining => 503,
            Self::Unsupported { .. } | Self::Panicked => 500,
        }
    }

    pub fn origin(&self) -> Origin {
        match self {
            Self::Timeout { .. }
            | Self::Silence { .. }
            | Self::ConnectTimeout { .. }
            | Self::ConnectFailed { .. }
            | Self::CredentialUnavailable { .. }
            | Self::AnswerInvalid { .. }
            | Self::UpstreamBroke { .. } => Origin::Upstream,
            Self::TokenUnchecked
            | Self::ControlDown
            | Self::Overloaded
            | Self::NoRoom
            | Self::Draining
            | Self::Panicked => Origin::Gateway,
            _ => Origin::Caller,
        }
    }

    /// Whether it says that no answer came over the network, or none that is one.
    pub fn is_of_network(&self) -> bool {
        matches!(
            self,
            Self::ConnectTimeout { .. }
                | Self::ConnectFailed { .. }
                | Self::UpstreamBroke { .. }
                | Self::AnswerInvalid { .. }
        )
    }

    /// Whether it would be the same whatever target is tried.
    pub fn ends_walk(&self) -> bool {
        matches!(
            self,
            Self::BodyInvalid { .. }
                | Self::BodyTooLarge { .. }
                | Self::BodyTimeout { .. }
                | Self::BadFraming
                | Self::BrokenBody
                | Self::Overloaded
                | Self::NoRoom
                | Self::Draining
                | Self::Panicked
        )
    }

    /// What is told to the caller: what was wrong and what is allowed. Never holds a credential.
    #[allow(clippy::too_many_lines, reason = "a row for each error")]
    pub fn message(&self) -> String {
        match self {
            Self::NotFound => "Not Found".into(),
            Self::MethodUnknown => "method not allowed; CONNECT, TRACE and TRACK are not, nor is what is no token".into(),
            Self::KeyMissing => "no valid gateway key: send it in x-gateway-api-key. Error Code: 03".into(),
            Self::KeyUnknown => "Invalid API Key. Error Code: 03".into(),
            Self::KeyExpired => "API key has expired. Error Code: 03".into(),
            Self::KeyForbidden { lack } => format!("this key may not call models: {}", lack.why()),
            Self::TokenInvalid => "Invalid token. Error Code: 03".into(),
            Self::TokenExpired => "token has expired or is not good yet. Error Code: 03".into(),
            Self::TokenUnchecked => "tokens of this issuer cannot be checked now: its keys could not be read yet".into(),
            Self::TokenDeparted => "whom this token names was taken out of the organisation. Error Code: 03".into(),
            Self::TokenForbidden { what } => format!("the {what} of this token is not allowed here"),
            Self::ProviderNeeded => {
                "no provider: send x-gateway-provider or x-gateway-config (or a config that names a provider)".into()
            }
            Self::ProviderUnresolved => {
                "a passthrough target takes its provider from the request: send `@slug` in x-gateway-provider or `@slug/model` as model"
                    .into()
            }
            Self::NoTarget => "no condition of the config holds and it has no default".into(),
            Self::ProviderUnknown(slug) => format!("invalid provider: `{slug}` is not known"),
            Self::SavedUnknown { kind, slug } => format!("{kind} `{slug}` does not exist"),
            Self::ConfigInvalid(_) => "invalid config".into(),
            Self::RequestInvalid(_) => "invalid request to be explained".into(),
            Self::HeaderInvalid { name, message } => format!("invalid {name}: {message}"),
            Self::InlineBlocked { field, .. } => format!("{field} may not be chosen by a request here"),
            Self::HostRefused { message } => format!("invalid custom host: {message}"),
            Self::CredentialUnavailable { provider, message } => format!("no credential for {provider}: {message}"),
            Self::OptionInvalid { provider, message } => format!("{provider}: {message}"),
            Self::BodyInvalid { at, message } => format!("invalid JSON body at byte {at}: {message}"),
            Self::HeadTooLarge { limit } => {
                format!("the request's headers are larger than {limit} bytes (server.header_bytes)")
            }
            Self::BodyTooLarge { limit } => format!("request body is larger than {limit} bytes"),
            Self::BodyTimeout { limit, value } => format!("request body came too slowly: limits.{limit} is {value}"),
            Self::BadFraming => "request body is not framed as HTTP/1.1 asks".into(),
            Self::BrokenBody => "request body ended before it was complete".into(),
            Self::Untranslatable { provider, path, message } => {
                format!("this request cannot be said to {provider}: {path}: {message}")
            }
            Self::Uncountable { path, message } => {
                format!("the tokens of this request cannot be counted: {path}: {message}")
            }
            Self::ConfigBound => "this key has a config of its own, which a request may not override".into(),
            Self::ModelRefused { model } if model.is_empty() => {
                "only some models may be used here, and the request names none where it can be read".into()
            }
            Self::ModelRefused { model } => format!("the model `{model}` may not be used here"),
            Self::LinesUnreadable { message } => format!("which models this batch names cannot be read: {message}"),
            Self::NoOutput { status } if status.is_empty() => "this batch has no output".into(),
            Self::NoOutput { status } => format!("this batch has no output: it is {status}"),
            Self::Unsupported { operation, provider } => {
                let hint = other_way(operation);
                format!("{operation} is not supported by {provider}{hint}")
            }
            Self::Timeout { milliseconds } => format!("request exceeded the timeout of {milliseconds} ms"),
            Self::Unread { milliseconds } => {
                format!("the answer was not read for {milliseconds} ms (server.write_stall_ms)")
            }
            Self::Silence { milliseconds } => {
                format!("the provider's answer broke off: nothing came for {milliseconds} ms")
            }
            Self::ConnectTimeout { host, step } => format!("no connection to {host} in time: its {step} took too long"),
            Self::ConnectFailed { host, cause } => format!("no connection to {host}: {cause}"),
            Self::UpstreamBroke { cause } => format!("the provider's answer broke off: {cause}"),
            Self::AnswerInvalid { provider, said, .. } => format!("{provider} returned an invalid response: {said}"),
            Self::ControlDown => "the management service is restarting".into(),
            Self::Overloaded => "too many requests in flight".into(),
            Self::NoRoom => {
                "no room for this request's body now: limits.gathered_bytes bounds those that are held at once".into()
            }
            Self::Draining => "the gateway is shutting down; send the request again".into(),
            Self::Panicked => "Something went wrong".into(),
        }
    }

    fn kind(&self) -> &'static str {
        match (self.status(), self.origin()) {
            (401, _) => "authentication_error",
            (403, _) => "permission_error",
            (408, _) => "timeout_error",
            (404, _) => "not_found_error",
            (413, _) => "request_too_large",
            (_, Origin::Caller) => "invalid_request_error",
            _ => "api_error",
        }
    }

    /// The answer that tells a caller of this dialect. Without a record there is no `request_id`.
    pub fn answer(&self, dialect: Dialect, request_id: Option<&str>) -> Whole {
        let mut headers = Headers::with_capacity(4);
        headers.push(b"content-type", b"application/json");
        match self.status() {
            405 => headers.push(b"allow", METHODS.join(", ").as_bytes()),
            503 => headers.push(b"retry-after", b"1"),
            _ => (),
        }
        Whole { answered: Answered { status: self.status(), headers }, body: self.body(dialect, request_id).into() }
    }

    fn body(&self, dialect: Dialect, request_id: Option<&str>) -> Vec<u8> {
        let message = self.message();
        if dialect != Dialect::OpenAi {
            let failure = Failure { status: self.status(), kind: None, message: &message, code: None, request_id };
            return api_format::error_body(dialect, &failure);
        }
        let error = serde_json::json!({"message": message, "type": self.kind(), "param": null, "code": self.code()});
        let body = match self {
            Self::NotFound => serde_json::json!({"message": message, "ok": false}),
            Self::Timeout { .. } | Self::Silence { .. } => {
                serde_json::json!({"error": {"message": message, "type": self.kind(), "param": null, "code": null}})
            }
            Self::AnswerInvalid { provider, .. } => {
                let error = serde_json::json!({"message": message, "type": null, "param": null, "code": null});
                serde_json::json!({"error": error, "provider": provider})
            }
            Self::ConfigInvalid(problems) | Self::RequestInvalid(problems) => {
                let errors: Vec<_> = problems
                    .iter()
                    .map(|p| format!("path: {}, message: {}", p.path.trim_start_matches("$."), p.message))
                    .collect();
                serde_json::json!({"status": "failure", "message": message, "errors": errors, "error": error})
            }
            Self::KeyForbidden { .. } | Self::TokenForbidden { .. } => {
                serde_json::json!({"success": false, "data": {"message": message, "errorCode": self.code()}})
            }
            Self::InlineBlocked { field, .. } => serde_json::json!({"status": "failure", "message": message,
                "error": {"code": self.code(), "message": message, "field": field}}),
            _ => serde_json::json!({"status": "failure", "message": message, "error": error}),
        };
        body.to_string().into_bytes()
    }
}

/// Files and batches there are at every provider, where the gateway keeps them itself.
fn other_way(operation: &str) -> &'static str {
    let is_it = |one: &&Operation| one.id() == operation;
    let is_ours = |one: &Operation| one.is_of_files() || one.batches() || *one == Operation::GetBatchOutput;
    if Operation::ALL.iter().find(is_it).is_some_and(is_ours) {
        "; hint: with a store the gateway has files and batches of its own, which any provider answers: name none in \
         x-gateway-provider, or `gateway`, and this one in gateway_options of the batch (docs/batches.md)"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_the_shape_of_the_spec() {
        let answer = Error::Timeout { milliseconds: 50 }.answer(Dialect::OpenAi, None);
        assert_eq!(answer.answered.status, 408);
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["error"]["type"], "timeout_error");
        assert!(body["error"]["message"].as_str().unwrap().contains("50 ms"));
    }

    #[test]
    fn an_anthropic_client_gets_its_own_shape() {
        let answer = Error::KeyUnknown.answer(Dialect::Anthropic, Some("r-1"));
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let error = serde_json::json!({"type": "authentication_error", "message": Error::KeyUnknown.message()});
        assert_eq!(body, serde_json::json!({"type": "error", "error": error, "request_id": "r-1"}));
    }

    #[test]
    fn who_has_no_key_is_told_so_in_the_envelope_that_clients_know() {
        for error in [Error::KeyMissing, Error::KeyUnknown, Error::KeyExpired] {
            let body: serde_json::Value = serde_json::from_slice(&error.answer(Dialect::OpenAi, None).body).unwrap();
            let said = serde_json::json!([body["status"], body["message"], body["error"]["code"]]);
            assert_eq!(said, serde_json::json!(["failure", body["error"]["message"], "03"]));
            assert!(error.message().ends_with("Error Code: 03"));
        }
    }
}
