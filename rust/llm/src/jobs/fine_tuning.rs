//! Fine-tuning requests in a canonical form. Creates and lists jobs, and returns them in `OpenAI`'s response format.

use serde_json::{Value, json};

use crate::{
    catalog::options::Options,
    errors::RequestError,
    fields::{Fields, into_object, parse_body, take_required_string, take_string},
    files::FileStore,
    reports::DroppedParams,
    translation_input::TranslationInput,
};

/// Placeholder value of a setting that the client leaves to the provider. It is not sent.
pub const AUTO: &str = "auto";

/// Parameters of a fine-tuning job to create. Provider formats remove the fields they support; the remaining fields are
/// reported as dropped.
#[derive(Debug)]
pub struct FineTuningRequest<'a> {
    pub model: String,
    pub training_file: String,
    pub validation_file: Option<String>,
    pub suffix: Option<String>,
    /// Training method; defaults to `supervised`.
    pub method: String,
    /// Hyperparameters, without those that are null or `auto`.
    pub hyperparameters: Fields,
    /// Remaining fields of the request body.
    pub fields: Fields,
    /// Job name, if the provider lets the client choose the job's id.
    pub job_name: Option<String>,
    pub options: Option<&'a Options>,
    pub now: u64,
}

/// Parses the body of a job request. Merges `provider_options` into the top-level fields, because clients send
/// provider-specific fields either way.
pub fn parse_job_fields(input: &TranslationInput<'_>) -> Result<Fields, RequestError> {
    let mut fields = parse_body(input.body)?;
    if let Some(options) = take_non_null(&mut fields, "provider_options") {
        fields.extend(into_object(options, "provider_options")?);
    }
    Ok(fields)
}

impl<'a> FineTuningRequest<'a> {
    pub fn parse(input: &TranslationInput<'a>) -> Result<Self, RequestError> {
        let mut fields = parse_job_fields(input)?;
        let (method, hyperparameters) = take_method(&mut fields)?;
        take_string(&mut fields, "model");
        Ok(Self {
            model: input.model.to_owned(),
            training_file: resolve_file_address(input, take_required_string(&mut fields, "training_file", "$")?),
            validation_file: take_string(&mut fields, "validation_file").map(|file| resolve_file_address(input, file)),
            suffix: take_string(&mut fields, "suffix").filter(|suffix| !suffix.is_empty()),
            method,
            hyperparameters,
            fields,
            job_name: None,
            options: input.hints.options,
            now: input.now_ms,
        })
    }

    /// Removes and returns a field of the body; falls back to a provider option.
    pub fn take_field_or_option(&mut self, key: &str, option: &str) -> Option<String> {
        let from_option = || self.options.and_then(|options| options.get(option)).map(ToOwned::to_owned);
        take_string(&mut self.fields, key).or_else(from_option)
    }

    /// Rejects a training method that the provider does not support.
    pub fn check_method(&self, supported: &[&str]) -> Result<(), RequestError> {
        if supported.contains(&self.method.as_str()) {
            return Ok(());
        }
        let message =
            format!("`{}` is not supported by this provider; it must be {}", self.method, supported.join(" or "));
        Err(RequestError::new("method.type", message))
    }

    /// Rejects files whose address does not start with `prefix`, because the provider cannot read them.
    pub fn check_file_prefixes(&self, prefix: &str) -> Result<(), RequestError> {
        let files = [("training_file", Some(&self.training_file)), ("validation_file", self.validation_file.as_ref())];
        for (path, file) in files {
            if file.is_some_and(|file| !file.starts_with(prefix)) {
                return Err(RequestError::new(
                    path,
                    format!("must be a file of this provider; it must begin with {prefix}"),
                ));
            }
        }
        Ok(())
    }

    /// Returns the request fields that the response repeats.
    pub fn echoed_fields(&self) -> Fields {
        let method = &self.method;
        let mut echo = Fields::new();
        if !self.hyperparameters.is_empty() {
            echo.insert("hyperparameters".into(), self.hyperparameters.clone().into());
        }
        echo.insert("model".into(), self.model.as_str().into());
        echo.insert("training_file".into(), self.training_file.as_str().into());
        echo.insert("validation_file".into(), self.validation_file.clone().into());
        if let Some(suffix) = &self.suffix {
            echo.insert("user_provided_suffix".into(), suffix.as_str().into());
        }
        echo.insert("method".into(), json!({"type": method, method: {}}));
        echo
    }

    /// Returns the parameters that the provider format did not use.
    pub fn into_dropped_params(self) -> DroppedParams {
        let mut dropped = DroppedParams::default();
        let is_set = |(_, value): &(&String, &Value)| !value.is_null() && **value != json!([]) && **value != json!({});
        self.fields.iter().filter(is_set).for_each(|(key, _)| dropped.add(key));
        self.hyperparameters.keys().for_each(|key| dropped.add(&format!("hyperparameters.{key}")));
        dropped
    }
}

/// Converts a file id from an upload to the address that the provider's jobs use. Returns any other value unchanged.
pub fn resolve_file_address(input: &TranslationInput<'_>, file: String) -> String {
    input
        .provider
        .file_store
        .and_then(FileStore::object_store)
        .and_then(|bucket| bucket.object_uri(&file))
        .unwrap_or(file)
}

fn take_non_null(fields: &mut Fields, key: &str) -> Option<Value> {
    fields.shift_remove(key).filter(|value| !value.is_null())
}

/// Takes the training method and its hyperparameters. Reads both the `method` object and the older top-level
/// `hyperparameters`; `method` wins.
fn take_method(fields: &mut Fields) -> Result<(String, Fields), RequestError> {
    let mut settings = match take_non_null(fields, "hyperparameters") {
        Some(old) => into_object(old, "hyperparameters")?,
        None => Fields::new(),
    };
    let mut kind = "supervised".to_owned();
    if let Some(method) = take_non_null(fields, "method") {
        let mut method = into_object(method, "method")?;
        kind = take_required_string(&mut method, "type", "method")?;
        if let Some(of_kind) = take_non_null(&mut method, &kind) {
            let mut of_kind = into_object(of_kind, &format!("method.{kind}"))?;
            if let Some(newer) = take_non_null(&mut of_kind, "hyperparameters") {
                settings.extend(into_object(newer, &format!("method.{kind}.hyperparameters"))?);
            }
        }
    }
    settings.retain(|_, value| !value.is_null() && *value != AUTO);
    Ok((kind, settings))
}
