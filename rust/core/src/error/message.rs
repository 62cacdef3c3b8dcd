//! Messages of errors for clients.

use penstock_llm::catalog;

use super::{Error, store_hint::gateway_store_hint};

impl Error {
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
            Self::KeyForbidden { denial } => format!("this key may not {denial}"),
            Self::TokenInvalid => "Invalid token. Error Code: 03".into(),
            Self::TokenExpired => "token has expired or is not valid yet. Error Code: 03".into(),
            Self::TokenVerificationUnavailable => "tokens of this issuer cannot be verified now: its signing keys have not been loaded yet".into(),
            Self::TokenSubjectRemoved => "the subject of this token was removed from the organisation. Error Code: 03".into(),
            Self::TokenForbidden { claim } => format!("the {claim} of this token is not allowed here"),
            Self::ProviderRequired => {
                "no provider: send `@slug/model` as model, x-gateway-provider or x-gateway-config, or bind a config to the key"
                    .into()
            }
            Self::ProviderUnresolved => {
                "a passthrough target takes its provider from the request: send `@slug` in x-gateway-provider or `@slug/model` as model"
                    .into()
            }
            Self::NoMatchingTarget => "no condition of the config matches and it has no default target".into(),
            Self::ProviderUnknown { slug, similar } => {
                let hint = similar.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
                format!("invalid provider: unknown provider `{slug}`{hint}")
            }
            Self::NotFoundInWorkspace { kind, slug } => {
                let built_in = slug.strip_prefix('@').filter(|name| catalog::find_provider(name).is_some());
                let hint =
                    built_in.map(|name| format!("; `{name}` without `@` is the built-in provider")).unwrap_or_default();
                format!("{kind} `{slug}` does not exist in this workspace{hint}")
            }
            Self::ConfigInvalid(_) => "invalid config".into(),
            Self::ExplainRequestInvalid(_) => "invalid explain request".into(),
            Self::TrialFailed { message } => format!("the trial failed: {message}"),
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
            Self::UsageNotBounded(limit) => limit.to_string(),
            Self::Overloaded => "too many requests in flight".into(),
            Self::MemoryExhausted => {
                "not enough memory for this request's body now; limits.buffered_body_bytes bounds the bodies that are buffered at once".into()
            }
            Self::Draining => "the gateway is shutting down; send the request again".into(),
            Self::Panicked => "Something went wrong".into(),
        }
    }
}
