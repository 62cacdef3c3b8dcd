//! Batches of providers with a batch API of their own: create, list and status requests, translated from and to the
//! `OpenAI` format.

use serde_json::{Value, json};

use crate::{
    catalog::{options::Options, path_segment},
    errors::RequestError,
    fields::{Fields, into_object, take_required_string, take_string},
    jobs::fine_tuning::{parse_job_fields, resolve_file_address},
    reports::DroppedParams,
    translation_input::TranslationInput,
};

/// Endpoints that the lines of a batch may use.
pub const ENDPOINTS: [&str; 4] = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"];
/// Completion window of a batch if the provider reports none.
pub const DEFAULT_COMPLETION_WINDOW: &str = "24h";

/// Request to create a batch. The provider format takes the fields that it supports; the rest is reported as dropped.
#[derive(Debug)]
pub struct BatchRequest<'a> {
    pub model: String,
    /// Id of the input file, as the client sent it.
    input_file_id: String,
    /// Address of the input file that the provider's jobs use.
    pub input_address: String,
    pub endpoint: &'static str,
    pub metadata: Fields,
    /// All other fields.
    pub fields: Fields,
    pub options: Option<&'a Options>,
    /// Identifier that no other batch has.
    pub unique_id: String,
}

impl<'a> BatchRequest<'a> {
    pub fn parse(input: &TranslationInput<'a>) -> Result<Self, RequestError> {
        let mut fields = parse_job_fields(input)?;
        take_string(&mut fields, "model");
        let options = input.hints.options;
        let pinned = options.and_then(|options| input.provider.model_override(options));
        let model = pinned.unwrap_or(input.model).to_owned();
        if model.is_empty() {
            return Err(RequestError::new(
                "model",
                "must be the model of all lines of the file; this provider requires it",
            ));
        }
        let file = take_required_string(&mut fields, "input_file_id", "$")?;
        let requested = take_required_string(&mut fields, "endpoint", "$")?;
        let endpoint = ENDPOINTS.into_iter().find(|candidate| *candidate == requested);
        let endpoint = endpoint.ok_or_else(|| {
            RequestError::new("endpoint", format!("is `{requested}`; it must be {}", ENDPOINTS.join(" or ")))
        })?;
        if take_string(&mut fields, "completion_window").is_some_and(|window| window != DEFAULT_COMPLETION_WINDOW) {
            return Err(RequestError::new(
                "completion_window",
                "must be 24h; this provider has no other completion window",
            ));
        }
        let metadata =
            take_field(&mut fields, "metadata").map(|metadata| into_object(metadata, "metadata")).transpose()?;
        Ok(Self {
            model,
            input_address: resolve_file_address(input, file.clone()),
            input_file_id: file,
            endpoint,
            metadata: metadata.unwrap_or_default(),
            fields,
            options,
            unique_id: format!("{}-{:x}", input.now_ms, input.nonce),
        })
    }

    pub fn option(&self, key: &str) -> Option<&'a str> {
        self.options.and_then(|options| options.get(key))
    }

    /// Removes and returns a string field of the body, unless it is empty.
    pub fn take_string(&mut self, key: &str) -> Option<String> {
        take_string(&mut self.fields, key).filter(|value| !value.is_empty())
    }

    /// Removes and returns a field of the body in the provider's own format; null counts as absent.
    pub fn take_field(&mut self, key: &str) -> Option<Value> {
        take_field(&mut self.fields, key)
    }

    /// Rejects an input file that is not in the provider's storage.
    pub fn check_input_prefix(&self, prefix: &str) -> Result<(), RequestError> {
        if self.input_address.starts_with(prefix) {
            return Ok(());
        }
        let message = format!("must be a file of this provider, or begin with {prefix}");
        Err(RequestError::new("input_file_id", message))
    }

    /// Rejects an endpoint that is not in this list.
    pub fn check_endpoint(&self, supported: &[&str]) -> Result<(), RequestError> {
        if supported.contains(&self.endpoint) {
            return Ok(());
        }
        let message =
            format!("is `{}`; batches of this provider support only {}", self.endpoint, supported.join(" and "));
        Err(RequestError::new("endpoint", message))
    }

    /// Returns the request fields that the response repeats.
    pub fn echoed_fields(&self) -> Fields {
        let mut echo = Fields::new();
        echo.insert("endpoint".into(), self.endpoint.into());
        echo.insert("input_file_id".into(), self.input_file_id.as_str().into());
        echo.insert("model".into(), self.model.as_str().into());
        echo
    }

    /// Returns the dropped fields, which the provider format did not take.
    pub fn into_dropped_params(self) -> DroppedParams {
        let mut dropped = DroppedParams::default();
        self.fields.iter().filter(|(_, value)| !value.is_null()).for_each(|(key, _)| dropped.add(key));
        if !self.metadata.is_empty() {
            dropped.add("metadata");
        }
        dropped
    }
}

fn take_field(fields: &mut Fields, key: &str) -> Option<Value> {
    fields.shift_remove(key).filter(|value| !value.is_null())
}

/// Returns an endpoint as a slug, for job names that cannot contain a path.
pub fn endpoint_slug(endpoint: &str) -> String {
    endpoint.trim_start_matches('/').replace('/', "-")
}

/// Returns the endpoint whose slug the text begins with.
pub fn endpoint_from_slug(text: &str) -> Option<&'static str> {
    ENDPOINTS
        .into_iter()
        .find(|endpoint| text.strip_prefix(&endpoint_slug(endpoint)).is_some_and(|rest| !rest.starts_with('/')))
}

/// Returns the id of a file from its address in a bucket; null if the address is empty.
pub fn file_id_from_address(address: &str) -> Value {
    if address.is_empty() { Value::Null } else { path_segment::encode_segment(address).into() }
}

/// Returns the `request_counts` of a batch: lines in total, completed and failed.
pub fn request_counts(total: Option<u64>, completed: u64, failed: u64) -> Value {
    json!({"total": total.unwrap_or(completed + failed), "completed": completed, "failed": failed})
}

/// Parses a number, which Google sends as a string.
pub fn parse_number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_endpoint_whose_slug_begins_a_text() {
        for endpoint in ENDPOINTS {
            assert_eq!(endpoint_from_slug(&format!("{}-17-a", endpoint_slug(endpoint))), Some(endpoint));
        }
        assert_eq!((endpoint_from_slug("v1-audio"), endpoint_from_slug("")), (None, None));
    }
}
