//! A routing config: parsed and checked in one place, for requests, for saving and for `penstock check`.

use penstock_llm::providers::{self, Options};
use serde_json::{Map, Value};

use crate::{
    error::Problem,
    features::{
        custom_host::CustomHost, forward_headers::ForwardHeaders, inspect_stream::InspectStream,
        timeout::RequestTimeout,
    },
    secret::Secret,
};

/// Whether keys that no feature knows are refused (saved configs) or ignored (inline ones).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    Refused,
    Ignored,
}

/// What a config says of its one target.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    pub provider: Option<String>,
    pub api_key: Option<Secret>,
    pub custom_host: CustomHost,
    pub forward_headers: ForwardHeaders,
    pub request_timeout: RequestTimeout,
    pub inspect_stream: InspectStream,
    /// What the provider is told besides a credential.
    pub options: Options,
    /// A list of models is that of the catalogue.
    pub fetch_integrated_models: bool,
}

/// Keys of the config schema that this engine does not act on yet. Obeying half of a config would be worse than refusing it.
const NOT_YET: &[&str] = &[
    "strategy",
    "targets",
    "cache",
    "retry",
    "cb_config",
    "deployments",
    "virtual_key",
    "prompt_id",
    "passthrough",
    "override_params",
    "default_params",
    "drop_params",
    "before_request_hooks",
    "after_request_hooks",
    "input_guardrails",
    "output_guardrails",
    "input_mutators",
    "output_mutators",
];

impl Config {
    /// Parses and checks a config; every problem at once.
    pub fn parse(json: &[u8], unknown: Unknown) -> Result<Self, Vec<Problem>> {
        match serde_json::from_slice(json) {
            Ok(Value::Object(object)) => Self::from_object(object, unknown),
            Ok(other) => Err(vec![Problem::new("$", format!("must be a JSON object, not {}", kind(&other)))]),
            Err(error) => Err(vec![Problem::new("$", format!("must be valid JSON: {error}"))]),
        }
    }

    fn from_object(object: Map<String, Value>, unknown: Unknown) -> Result<Self, Vec<Problem>> {
        let mut config = Self::default();
        let mut problems = Vec::new();
        for (key, value) in object {
            if let Err(message) = config.set(&key, value, unknown) {
                problems.push(Problem::new(format!("$.{key}"), message));
            }
        }
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }

    fn set(&mut self, key: &str, value: Value, unknown: Unknown) -> Result<(), String> {
        match key {
            "provider" => self.provider = Some(text(value)?),
            "api_key" | "apiKey" => self.api_key = Some(Secret::new(text(value)?)),
            "custom_host" | "customHost" => self.custom_host = CustomHost::parse(&text(value)?)?,
            "forward_headers" | "forwardHeaders" => self.forward_headers = ForwardHeaders::parse(value)?,
            "request_timeout" | "requestTimeout" => self.request_timeout = RequestTimeout::parse(&value)?,
            "anthropic_inspect_stream_for_overloaded_error" | "anthropicInspectStreamForOverloadedError" => {
                self.inspect_stream = InspectStream::parse(&value)?;
            }
            "fetch_integrated_models" | "fetchIntegratedModels" => {
                let Value::Bool(asked) = value else { return Err(format!("must be a boolean, not {}", kind(&value))) };
                self.fetch_integrated_models = asked;
            }
            "options" => return Err("belongs to a version that is no longer read: use targets".into()),
            _ if NOT_YET.contains(&key) => return Err("is not available in this version".into()),
            _ if let Some(option) = providers::option(key) => self.options.put(option, text(value)?),
            _ if unknown == Unknown::Refused => return Err("is not a known key".into()),
            _ => (),
        }
        Ok(())
    }
}

/// A non-empty string without control characters (it may become a header field), or what was found instead.
pub fn text(value: Value) -> Result<String, String> {
    match value {
        Value::String(text) if text.is_empty() => Err("must not be empty".into()),
        Value::String(text) if text.chars().any(char::is_control) => Err("must not hold control characters".into()),
        Value::String(text) => Ok(text),
        other => Err(format!("must be a string, not {}", kind(&other))),
    }
}

/// The JSON type of a value, for messages.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_one_provider() {
        let config = Config::parse(br#"{"provider":"openai","api_key":"sk-1","other":1}"#, Unknown::Ignored).unwrap();
        assert_eq!(config.provider.as_deref(), Some("openai"));
        assert_eq!(config.api_key, Some(Secret::new("sk-1")));
    }

    #[test]
    fn tells_every_problem_with_its_path() {
        let problems = Config::parse(br#"{"provider":3,"targets":[],"odd":1}"#, Unknown::Refused).unwrap_err();
        let paths: Vec<_> = problems.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["$.provider", "$.targets", "$.odd"]);
    }

    #[test]
    fn refuses_what_is_no_object() {
        assert_eq!(Config::parse(b"[]", Unknown::Ignored).unwrap_err()[0].path, "$");
        assert_eq!(Config::parse(b"{", Unknown::Ignored).unwrap_err()[0].path, "$");
    }
}
