//! Fine-tuning requests in a canonical form. Creates and lists jobs, and returns them in `OpenAI`'s response format.

use serde_json::{Value, json};

use crate::{
    catalog::{Options, path_segment},
    files::FileStore,
    operation::Operation,
};
use crate::{
    chat::{
        providers::{MalformedResponse, ProviderFormat},
        request::{Fields, RequestError, into_object, parse_body, take_required_string, take_string},
        response_context::ResponseContext,
    },
    translation::{TranslationInput, dropped::DroppedParams},
};

/// Placeholder value of a setting that the client leaves to the provider. It is not sent.
const AUTO: &str = "auto";

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
pub fn parse_job_fields(question: &TranslationInput<'_>) -> Result<Fields, RequestError> {
    let mut fields = parse_body(question.body)?;
    if let Some(options) = take_non_null(&mut fields, "provider_options") {
        fields.extend(into_object(options, "provider_options")?);
    }
    Ok(fields)
}

impl<'a> FineTuningRequest<'a> {
    pub fn parse(question: &TranslationInput<'a>) -> Result<Self, RequestError> {
        let mut fields = parse_job_fields(question)?;
        let (method, hyperparameters) = take_method(&mut fields)?;
        take_string(&mut fields, "model");
        Ok(Self {
            model: question.model.to_owned(),
            training_file: resolve_file_address(question, take_required_string(&mut fields, "training_file", "$")?),
            validation_file: take_string(&mut fields, "validation_file")
                .map(|file| resolve_file_address(question, file)),
            suffix: take_string(&mut fields, "suffix").filter(|suffix| !suffix.is_empty()),
            method,
            hyperparameters,
            fields,
            job_name: None,
            options: question.hints.options,
            now: question.now_ms,
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
pub fn resolve_file_address(question: &TranslationInput<'_>, file: String) -> String {
    question
        .provider
        .file_store()
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

/// Jobs of a provider's list response.
pub struct JobList<'a> {
    pub jobs: &'a [Value],
    pub has_more: bool,
}

impl<'a> JobList<'a> {
    pub fn from_response(response: &'a Value, key: &str, token: &str) -> Self {
        let jobs = response[key].as_array().map(Vec::as_slice).unwrap_or_default();
        Self { jobs, has_more: response[token].as_str().is_some_and(|token| !token.is_empty()) }
    }
}

/// Pagination parameters of a list request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageQuery {
    after: Option<String>,
    limit: usize,
}

impl PageQuery {
    pub fn parse(operation: Operation, query: &str) -> Result<Self, RequestError> {
        let usual = if operation == Operation::ListFinetuneCheckpoints { 10 } else { 20 };
        let mut page = Self { after: None, limit: usual };
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match key {
                "after" if !value.is_empty() => page.after = Some(value.to_owned()),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=100).contains(limit));
                    page.limit = limit.ok_or_else(|| RequestError::new("limit", "must be a number from 1 to 100"))?;
                }
                _ => (),
            }
        }
        Ok(page)
    }

    /// Returns the requested page as a list object with `has_more`. Returns an empty page if the `after` job no longer
    /// exists.
    fn paginate(&self, mut all: Vec<Value>, has_more: bool) -> Value {
        if let Some(after) = &self.after {
            let is_it = |one: &Value| {
                one["id"].as_str().is_some_and(|id| id == after || path_segment::encode_segment(id) == *after)
            };
            all = all.iter().position(is_it).map_or_else(Vec::new, |at| all.split_off(at + 1));
        }
        let has_more = all.len() > self.limit || (has_more && !all.is_empty());
        all.truncate(self.limit);
        let id = |one: Option<&Value>| one.map_or(Value::Null, |one| one["id"].clone());
        let (first, last) = (id(all.first()), id(all.last()));
        json!({"object": "list", "data": all, "first_id": first, "last_id": last, "has_more": has_more})
    }
}

/// Encodes the response to the client: one job, a list of jobs, or the checkpoints of a job.
pub fn encode_response(
    wire: &dyn ProviderFormat,
    response: &Value,
    context: &ResponseContext,
    (operation, page): (Operation, &PageQuery),
) -> Result<Vec<u8>, MalformedResponse> {
    let response = match operation {
        Operation::ListFinetunes => {
            render_job_list(wire, response, page, |one| wire.read_tuning_job(one).map(|job| render_job(job, context)))?
        }
        Operation::ListFinetuneCheckpoints => {
            let id =
                wire.read_tuning_job(response).ok_or_else(invalid_job_error)?.shift_remove("id").unwrap_or_default();
            let to_checkpoint = |mut fields: Fields| {
                fields.insert("fine_tuning_job_id".into(), id.clone());
                fields.insert("object".into(), "fine_tuning.job.checkpoint".into());
                Value::Object(fields)
            };
            page.paginate(wire.read_checkpoints(response).into_iter().map(to_checkpoint).collect(), false)
        }
        _ => render_job(wire.read_tuning_job(response).ok_or_else(invalid_job_error)?, context),
    };
    Ok(response.to_string().into_bytes())
}

/// Renders each job of the provider's list and returns the requested page.
pub fn render_job_list(
    wire: &dyn ProviderFormat,
    response: &Value,
    page: &PageQuery,
    render: impl Fn(&Value) -> Option<Value>,
) -> Result<Value, MalformedResponse> {
    let JobList { jobs, has_more } =
        wire.read_job_list(response).ok_or_else(|| MalformedResponse("it has no jobs".into()))?;
    let jobs: Option<Vec<_>> = jobs.iter().map(render).collect();
    Ok(page.paginate(jobs.ok_or_else(invalid_job_error)?, has_more))
}

fn invalid_job_error() -> MalformedResponse {
    MalformedResponse("it is not a job".into())
}

/// Renders a job in `OpenAI`'s format. Provider fields override request fields, which override the defaults.
fn render_job(fields: Fields, context: &ResponseContext) -> Value {
    let mut job = json!({"id": "", "object": "fine_tuning.job", "created_at": context.created, "error": null,
        "fine_tuned_model": null, "finished_at": null, "hyperparameters": {"n_epochs": AUTO}, "model": "",
        "organization_id": "", "result_files": [], "seed": 0, "status": "queued", "trained_tokens": null,
        "training_file": "", "validation_file": null, "integrations": [], "estimated_finish": null,
        "method": {"type": "supervised", "supervised": {}}});
    if let Some(object) = job.as_object_mut() {
        object.extend(context.echoed_fields.clone());
        object.extend(fields.into_iter().filter(|(_, value)| !value.is_null()));
        object.insert("provider".into(), context.provider.into());
    }
    job
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paginate_sample_jobs(query: &str, has_more: bool) -> Value {
        let jobs = (1..=25).map(|id| json!({"id": format!("job {id}")})).collect();
        PageQuery::parse(Operation::ListFinetunes, query).unwrap().paginate(jobs, has_more)
    }

    #[test]
    fn page_starts_after_the_given_job_and_reports_has_more() {
        let first = paginate_sample_jobs("", false);
        assert_eq!((first["data"].as_array().unwrap().len(), &first["has_more"]), (20, &true.into()));
        let rest = paginate_sample_jobs("limit=100&after=job%2020", false);
        assert_eq!((&rest["first_id"], &rest["last_id"]), (&"job 21".into(), &"job 25".into()));
        assert_eq!(rest["has_more"], false);
        assert_eq!(paginate_sample_jobs("after=job%2020", true)["has_more"], true);
        for end in ["after=job%2025", "after=gone"] {
            assert_eq!(
                (&paginate_sample_jobs(end, true)["data"], &paginate_sample_jobs(end, true)["has_more"]),
                (&json!([]), &false.into())
            );
        }
        for wrong in ["limit=0", "limit=101", "limit=x"] {
            assert_eq!(PageQuery::parse(Operation::ListFinetunes, wrong).unwrap_err().path, "limit");
        }
    }
}
