//! Tuning jobs of Vertex AI: files in Cloud Storage, settings within the spec of the method.

use serde_json::{Value, json};

use super::{failure, hand, last, moment, said, status_of};
use crate::{
    chat::request::{Fields, RequestError},
    jobs::fine_tuning::FineTuningRequest,
};

/// What `OpenAI` calls a method, and where its settings stand here.
const SPECS: [(&str, &str); 2] = [("supervised", "supervisedTuningSpec"), ("dpo", "preferenceOptimizationSpec")];
const SETTINGS: [(&str, &str); 6] = [
    ("n_epochs", "epochCount"),
    ("learning_rate_multiplier", "learningRateMultiplier"),
    ("learning_rate", "learningRate"),
    ("batch_size", "batchSize"),
    ("adapter_size", "adapterSize"),
    ("beta", "beta"),
];

pub fn tune(tune: &mut FineTuningRequest<'_>) -> Result<Value, RequestError> {
    tune.check_method(&SPECS.map(|(method, _)| method))?;
    tune.check_file_prefixes("gs://")?;
    let mut spec = json!({"trainingDatasetUri": tune.training_file});
    if let Some(file) = &tune.validation_file {
        spec["validationDatasetUri"] = file.as_str().into();
    }
    let mut settings = Fields::new();
    for (key, name) in SETTINGS {
        hand(&mut tune.hyperparameters, key, &mut settings, name);
    }
    if !settings.is_empty() {
        spec["hyperParameters"] = Value::Object(settings);
    }
    let key = SPECS.iter().find(|(method, _)| *method == tune.method).map_or(SPECS[0].1, |(_, key)| key);
    let mut body = json!({"baseModel": tune.model.trim_start_matches("google."), key: spec});
    if let Some(suffix) = &tune.suffix {
        body["tunedModelDisplayName"] = suffix.as_str().into();
    }
    if let Some(labels) = tune.fields.shift_remove("metadata").filter(Value::is_object) {
        body["labels"] = labels;
    }
    Ok(body)
}

pub fn tuned(job: &Value) -> Option<Fields> {
    // The answer to one that is to be cancelled says nothing.
    job.as_object()?;
    let status = job["state"].as_str().map(status_of);
    let (method, spec) = spec(job).unwrap_or((SPECS[0].0, &Value::Null));
    let tuned = &job["tunedModel"];
    let tokens = &job["tuningDataStats"]["supervisedTuningDataStats"]["totalBillableTokenCount"];
    Some(said([
        ("id", last(&job["name"]).into()),
        ("created_at", moment(&job["createTime"])),
        ("error", failure(status.unwrap_or_default(), &job["error"]["code"], &job["error"]["message"])),
        ("fine_tuned_model", tuned.get("endpoint").or_else(|| tuned.get("model")).cloned().unwrap_or_default()),
        ("finished_at", moment(&job["endTime"])),
        ("hyperparameters", hyperparameters(&spec["hyperParameters"])),
        ("model", job["baseModel"].clone()),
        ("status", status.into()),
        ("trained_tokens", count(tokens)),
        ("training_file", spec["trainingDatasetUri"].clone()),
        ("validation_file", spec["validationDatasetUri"].clone()),
        ("user_provided_suffix", job["tunedModelDisplayName"].clone()),
        ("metadata", job["labels"].clone()),
        ("method", json!({"type": method, method: {}})),
    ]))
}

fn spec(job: &Value) -> Option<(&'static str, &Value)> {
    SPECS.iter().find_map(|(method, key)| Some((*method, job.get(*key)?)))
}

fn hyperparameters(of: &Value) -> Value {
    let named = |(key, name): &(&str, &str)| {
        let value = of.get(*name)?;
        let number = count(value);
        Some(((*key).to_owned(), if number.is_null() { value.clone() } else { number }))
    };
    if of.is_object() { SETTINGS.iter().filter_map(named).collect::<Fields>().into() } else { Value::Null }
}

/// Whole numbers of 64 bits are text in Google's JSON.
fn count(of: &Value) -> Value {
    of.as_str().and_then(|text| text.parse::<u64>().ok()).map_or(Value::Null, Value::from)
}

/// What was kept on the way.
pub fn checkpoints(job: &Value) -> Vec<Fields> {
    let all = job["tunedModel"]["checkpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    let step = |one: &Value| if one["step"].is_number() { one["step"].clone() } else { count(&one["step"]) };
    let told = |one: &Value| {
        said([
            ("id", one["checkpointId"].clone()),
            ("created_at", json!(moment(&job["updateTime"]).as_u64().unwrap_or_default())),
            ("fine_tuned_model_checkpoint", one["endpoint"].clone()),
            ("step_number", step(one)),
            ("metrics", json!({"step": step(one)})),
        ])
    };
    // The newest first.
    all.iter().rev().map(told).collect()
}
