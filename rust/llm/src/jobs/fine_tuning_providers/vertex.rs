//! Fine-tuning on Vertex AI. The files are in Cloud Storage, and the hyperparameters are in the spec of the tuning
//! method.

use serde_json::{Value, json};

use crate::{
    errors::RequestError,
    fields::Fields,
    jobs::{
        fine_tuning::FineTuningRequest,
        provider_jobs::{job_error, job_status, last_segment, move_setting, non_null_fields, unix_seconds},
    },
};

/// `OpenAI`'s name of each method, and the field with its spec on Vertex AI.
const METHOD_SPECS: [(&str, &str); 2] = [("supervised", "supervisedTuningSpec"), ("dpo", "preferenceOptimizationSpec")];
const HYPERPARAMETER_NAMES: [(&str, &str); 6] = [
    ("n_epochs", "epochCount"),
    ("learning_rate_multiplier", "learningRateMultiplier"),
    ("learning_rate", "learningRate"),
    ("batch_size", "batchSize"),
    ("adapter_size", "adapterSize"),
    ("beta", "beta"),
];

pub fn write_job(tune: &mut FineTuningRequest<'_>) -> Result<Value, RequestError> {
    tune.check_method(&METHOD_SPECS.map(|(method, _)| method))?;
    tune.check_file_prefixes("gs://")?;
    let mut spec = json!({"trainingDatasetUri": tune.training_file});
    if let Some(file) = &tune.validation_file {
        spec["validationDatasetUri"] = file.as_str().into();
    }
    let mut settings = Fields::new();
    for (key, name) in HYPERPARAMETER_NAMES {
        move_setting(&mut tune.hyperparameters, key, &mut settings, name);
    }
    if !settings.is_empty() {
        spec["hyperParameters"] = Value::Object(settings);
    }
    let key = METHOD_SPECS.iter().find(|(method, _)| *method == tune.method).map_or(METHOD_SPECS[0].1, |(_, key)| key);
    let mut body = json!({"baseModel": tune.model.trim_start_matches("google."), key: spec});
    if let Some(suffix) = &tune.suffix {
        body["tunedModelDisplayName"] = suffix.as_str().into();
    }
    if let Some(labels) = tune.fields.shift_remove("metadata").filter(Value::is_object) {
        body["labels"] = labels;
    }
    Ok(body)
}

pub fn read_job(job: &Value) -> Option<Fields> {
    // The response to a cancellation is an empty object.
    job.as_object()?;
    let status = job["state"].as_str().map(job_status);
    let (method, spec) = method_spec(job).unwrap_or((METHOD_SPECS[0].0, &Value::Null));
    let tuned = &job["tunedModel"];
    let tokens = &job["tuningDataStats"]["supervisedTuningDataStats"]["totalBillableTokenCount"];
    Some(non_null_fields([
        ("id", last_segment(&job["name"]).into()),
        ("created_at", unix_seconds(&job["createTime"])),
        ("error", job_error(status.unwrap_or_default(), &job["error"]["code"], &job["error"]["message"])),
        ("fine_tuned_model", tuned.get("endpoint").or_else(|| tuned.get("model")).cloned().unwrap_or_default()),
        ("finished_at", unix_seconds(&job["endTime"])),
        ("hyperparameters", read_hyperparameters(&spec["hyperParameters"])),
        ("model", job["baseModel"].clone()),
        ("status", status.into()),
        ("trained_tokens", parse_int64(tokens)),
        ("training_file", spec["trainingDatasetUri"].clone()),
        ("validation_file", spec["validationDatasetUri"].clone()),
        ("user_provided_suffix", job["tunedModelDisplayName"].clone()),
        ("metadata", job["labels"].clone()),
        ("method", json!({"type": method, method: {}})),
    ]))
}

fn method_spec(job: &Value) -> Option<(&'static str, &Value)> {
    METHOD_SPECS.iter().find_map(|(method, key)| Some((*method, job.get(*key)?)))
}

fn read_hyperparameters(hyperparameters: &Value) -> Value {
    let read_entry = |(key, name): &(&str, &str)| {
        let value = hyperparameters.get(*name)?;
        let number = parse_int64(value);
        Some(((*key).to_owned(), if number.is_null() { value.clone() } else { number }))
    };
    if hyperparameters.is_object() {
        HYPERPARAMETER_NAMES.iter().filter_map(read_entry).collect::<Fields>().into()
    } else {
        Value::Null
    }
}

/// Parses a 64-bit integer, which Google's JSON encodes as a string.
fn parse_int64(value: &Value) -> Value {
    value.as_str().and_then(|text| text.parse::<i64>().ok()).map_or(Value::Null, Value::from)
}

/// Returns the checkpoints that were saved during tuning.
pub fn read_checkpoints(job: &Value) -> Vec<Fields> {
    let all = job["tunedModel"]["checkpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    let step = |item: &Value| if item["step"].is_number() { item["step"].clone() } else { parse_int64(&item["step"]) };
    let to_checkpoint = |item: &Value| {
        non_null_fields([
            ("id", item["checkpointId"].clone()),
            ("created_at", json!(unix_seconds(&job["updateTime"]).as_u64().unwrap_or_default())),
            ("fine_tuned_model_checkpoint", item["endpoint"].clone()),
            ("step_number", step(item)),
            ("metrics", json!({"step": step(item)})),
        ])
    };
    // Returns the newest checkpoint first.
    all.iter().rev().map(to_checkpoint).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_from_strings() {
        for (text, number) in [
            (json!("12"), json!(12)),
            (json!("0"), json!(0)),
            (json!("-1"), json!(-1)),
            (json!("9223372036854775807"), json!(i64::MAX)),
            (json!("9223372036854775808"), Value::Null),
            (json!("1.5"), Value::Null),
            (json!(""), Value::Null),
            (json!(12), Value::Null),
        ] {
            assert_eq!(parse_int64(&text), number, "{text}");
        }
    }

    #[test]
    fn hyperparameters_that_are_no_integers_stay_as_they_are() {
        let read =
            read_hyperparameters(&json!({"epochCount": "-1", "learningRateMultiplier": 0.5, "adapterSize": "S"}));
        assert_eq!(read, json!({"n_epochs": -1, "learning_rate_multiplier": 0.5, "adapter_size": "S"}));
    }
}
