//! Supervised fine-tuning on Fireworks. Datasets, models and results are resources of an account.

use serde_json::{Value, json};

use crate::{
    errors::RequestError,
    fields::Fields,
    jobs::{
        fine_tuning::FineTuningRequest,
        provider_jobs::{
            account_resource, job_error, job_status, last_segment, move_setting, non_null_fields, unix_seconds,
        },
    },
};

const HYPERPARAMETER_NAMES: [(&str, &str); 6] = [
    ("n_epochs", "epochs"),
    ("learning_rate", "learningRate"),
    ("batch_size", "batchSize"),
    ("lora_rank", "loraRank"),
    ("max_context_length", "maxContextLength"),
    ("early_stop", "earlyStop"),
];

pub fn write_job(tune: &mut FineTuningRequest<'_>) -> Result<Value, RequestError> {
    tune.check_method(&["supervised"])?;
    let account = tune.take_field_or_option("", "fireworks_account_id").unwrap_or_default();
    let mut body = Fields::new();
    body.insert("dataset".into(), account_resource(&account, "datasets", &tune.training_file).into());
    if let Some(file) = &tune.validation_file {
        body.insert("evaluationDataset".into(), account_resource(&account, "datasets", file).into());
    }
    if let Some(suffix) = &tune.suffix {
        body.insert("displayName".into(), suffix.as_str().into());
    }
    // Fireworks' own models need no customer account.
    body.insert("baseModel".into(), account_resource("fireworks", "models", &tune.model).into());
    if let Some(output) = tune.take_field_or_option("output_model", "") {
        body.insert("outputModel".into(), account_resource(&account, "models", &output).into());
    }
    // Some clients send the learning rate outside of the hyperparameters.
    move_setting(&mut tune.fields, "learning_rate", &mut body, "learningRate");
    for (key, name) in HYPERPARAMETER_NAMES {
        move_setting(&mut tune.hyperparameters, key, &mut body, name);
    }
    Ok(Value::Object(body))
}

pub fn read_job(job: &Value) -> Option<Fields> {
    job.as_object()?;
    let status = job["state"].as_str().map(job_status);
    let settings =
        HYPERPARAMETER_NAMES.iter().filter_map(|(key, name)| Some(((*key).to_owned(), job.get(*name)?.clone())));
    let settings: Fields = settings.filter(|(_, value)| *value != 0).collect();
    let reason = &job["status"];
    Some(non_null_fields([
        ("id", last_segment(&job["name"]).into()),
        ("created_at", unix_seconds(&job["createTime"])),
        ("error", job_error(status.unwrap_or_default(), &reason["code"], &reason["message"])),
        ("fine_tuned_model", if status == Some("succeeded") { job["outputModel"].clone() } else { json!(null) }),
        ("finished_at", unix_seconds(&job["completedTime"])),
        ("hyperparameters", if settings.is_empty() { json!(null) } else { settings.into() }),
        ("model", job["baseModel"].clone()),
        ("status", status.into()),
        ("training_file", job["dataset"].clone()),
        ("validation_file", job["evaluationDataset"].as_str().filter(|file| !file.is_empty()).into()),
        ("user_provided_suffix", job["displayName"].as_str().filter(|name| !name.is_empty()).into()),
    ]))
}
