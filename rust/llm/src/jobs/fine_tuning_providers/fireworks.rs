//! Supervised fine-tuning at Fireworks: datasets, models and results are resources of an account.

use serde_json::{Value, json};

use super::{failure, hand, last, moment, of_account, said, status_of};
use crate::{
    chat::request::{Fields, RequestError},
    jobs::fine_tuning::FineTuningRequest,
};

const SETTINGS: [(&str, &str); 6] = [
    ("n_epochs", "epochs"),
    ("learning_rate", "learningRate"),
    ("batch_size", "batchSize"),
    ("lora_rank", "loraRank"),
    ("max_context_length", "maxContextLength"),
    ("early_stop", "earlyStop"),
];

pub fn tune(tune: &mut FineTuningRequest<'_>) -> Result<Value, RequestError> {
    tune.check_method(&["supervised"])?;
    let account = tune.take_field_or_option("", "fireworks_account_id").unwrap_or_default();
    let mut body = Fields::new();
    body.insert("dataset".into(), of_account(&account, "datasets", &tune.training_file).into());
    if let Some(file) = &tune.validation_file {
        body.insert("evaluationDataset".into(), of_account(&account, "datasets", file).into());
    }
    if let Some(suffix) = &tune.suffix {
        body.insert("displayName".into(), suffix.as_str().into());
    }
    // Theirs need no account.
    body.insert("baseModel".into(), of_account("fireworks", "models", &tune.model).into());
    if let Some(output) = tune.take_field_or_option("output_model", "") {
        body.insert("outputModel".into(), of_account(&account, "models", &output).into());
    }
    // Beside the settings is where some clients say it.
    hand(&mut tune.fields, "learning_rate", &mut body, "learningRate");
    for (key, name) in SETTINGS {
        hand(&mut tune.hyperparameters, key, &mut body, name);
    }
    Ok(Value::Object(body))
}

pub fn tuned(job: &Value) -> Option<Fields> {
    job.as_object()?;
    let status = job["state"].as_str().map(status_of);
    let settings = SETTINGS.iter().filter_map(|(key, name)| Some(((*key).to_owned(), job.get(*name)?.clone())));
    let settings: Fields = settings.filter(|(_, value)| *value != 0).collect();
    let reason = &job["status"];
    Some(said([
        ("id", last(&job["name"]).into()),
        ("created_at", moment(&job["createTime"])),
        ("error", failure(status.unwrap_or_default(), &reason["code"], &reason["message"])),
        ("fine_tuned_model", if status == Some("succeeded") { job["outputModel"].clone() } else { json!(null) }),
        ("finished_at", moment(&job["completedTime"])),
        ("hyperparameters", if settings.is_empty() { json!(null) } else { settings.into() }),
        ("model", job["baseModel"].clone()),
        ("status", status.into()),
        ("training_file", job["dataset"].clone()),
        ("validation_file", job["evaluationDataset"].as_str().filter(|file| !file.is_empty()).into()),
        ("user_provided_suffix", job["displayName"].as_str().filter(|name| !name.is_empty()).into()),
    ]))
}
