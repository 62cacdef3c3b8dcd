//! Fine-tuning on Bedrock (model customization). The files are in the customer's S3 buckets, which Bedrock accesses
//! with a role of the customer.

use serde_json::{Value, json};

use crate::{
    errors::RequestError,
    fields::Fields,
    jobs::{
        fine_tuning::FineTuningRequest,
        provider_jobs::{job_error, last_segment, non_null_fields, unix_seconds},
    },
};

/// Hyperparameters with other names on Bedrock; the remaining ones keep their names.
const HYPERPARAMETER_NAMES: [(&str, &str); 3] =
    [("n_epochs", "epochCount"), ("batch_size", "batchSize"), ("learning_rate_multiplier", "learningRateMultiplier")];
/// Prefix of the job name if the request has no suffix.
const DEFAULT_JOB_NAME: &str = "fine-tune";
/// Number of characters of the suffix that fit into a job name.
const MAX_SUFFIX_CHARS: usize = 48;

pub fn write_job(tune: &mut FineTuningRequest<'_>) -> Result<Value, RequestError> {
    tune.check_method(&["supervised"])?;
    tune.check_file_prefixes("s3://")?;
    let name = tune.take_field_or_option("job_name", "").unwrap_or_else(|| job_name(tune));
    let role = tune.take_field_or_option("role_arn", "aws_customization_role_arn").ok_or_else(|| {
        let message = "must be the ARN of a role that may read and write your buckets: send it, or \
            x-gateway-aws-customization-role-arn";
        RequestError::new("role_arn", message)
    })?;
    let output = output_uri(tune, &name)?;
    let kind = tune.take_field_or_option("customization_type", "").unwrap_or_else(|| "FINE_TUNING".into());
    let mut body = json!({
        "jobName": name,
        "customModelName": tune.suffix.as_deref().unwrap_or(&name),
        "roleArn": role,
        "baseModelIdentifier": tune.model,
        "customizationType": kind,
        "trainingDataConfig": {"s3Uri": tune.training_file},
        "outputDataConfig": {"s3Uri": output},
    });
    if let Some(file) = &tune.validation_file {
        body["validationDataConfig"] = json!({"validators": [{"s3Uri": file}]});
    }
    if !tune.hyperparameters.is_empty() {
        body["hyperParameters"] = Value::Object(write_hyperparameters(&mut tune.hyperparameters));
    }
    tune.job_name = Some(name);
    Ok(body)
}

/// Returns a unique job name from the suffix and the current time, because Bedrock identifies a job by its name.
fn job_name(tune: &FineTuningRequest<'_>) -> String {
    let suffix = tune.suffix.as_deref().unwrap_or(DEFAULT_JOB_NAME);
    let plain = |character: char| if character.is_ascii_alphanumeric() { character } else { '-' };
    let plain: String = suffix.chars().take(MAX_SUFFIX_CHARS).map(plain).collect();
    let plain = plain.trim_matches('-');
    format!("{}-{}", if plain.is_empty() { DEFAULT_JOB_NAME } else { plain }, tune.now)
}

fn output_uri(tune: &mut FineTuningRequest<'_>, name: &str) -> Result<String, RequestError> {
    if let Some(stated) = tune.take_field_or_option("output_file", "") {
        let message = "must begin with s3://";
        return if stated.starts_with("s3://") { Ok(stated) } else { Err(RequestError::new("output_file", message)) };
    }
    let bucket = tune.take_field_or_option("", "aws_s3_bucket").ok_or_else(|| {
        RequestError::new("output_file", "must be the S3 URI for the results (s3://…), or send x-gateway-aws-s3-bucket")
    })?;
    Ok(format!("s3://{bucket}/{name}/"))
}

/// Returns the hyperparameters under Bedrock's names, with all values as strings.
fn write_hyperparameters(from: &mut Fields) -> Fields {
    let rename = |(key, value): (String, Value)| {
        let name = HYPERPARAMETER_NAMES
            .iter()
            .find(|(client_name, _)| *client_name == key)
            .map_or(key.as_str(), |(_, name)| name)
            .to_owned();
        (name, value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned).into())
    };
    std::mem::take(from).into_iter().map(rename).collect()
}

pub fn read_job(job: &Value) -> Option<Fields> {
    // The response to a job creation contains only the ARN.
    job["jobArn"].as_str()?;
    let status = match job["status"].as_str() {
        Some("Completed") => "succeeded",
        Some("Failed") => "failed",
        Some("Stopping" | "Stopped") => "cancelled",
        Some(_) => "running",
        None => "queued",
    };
    let model = ["outputModelArn", "customModelArn"].into_iter().map(|key| &job[key]).find(|arn| arn.is_string());
    Some(non_null_fields([
        ("id", job["jobName"].clone()),
        ("created_at", unix_seconds(&job["creationTime"])),
        ("error", job_error(status, &"failed".into(), &job["failureMessage"])),
        ("fine_tuned_model", model.cloned().unwrap_or_default()),
        ("finished_at", unix_seconds(&job["endTime"])),
        ("hyperparameters", read_hyperparameters(&job["hyperParameters"])),
        ("model", last_segment(&job["baseModelArn"]).into()),
        ("result_files", job["outputDataConfig"]["s3Uri"].as_str().map_or(Value::Null, |uri| json!([uri]))),
        ("status", status.into()),
        ("training_file", job["trainingDataConfig"]["s3Uri"].clone()),
        ("validation_file", job["validationDataConfig"]["validators"][0]["s3Uri"].clone()),
        ("user_provided_suffix", job["outputModelName"].clone()),
    ]))
}

/// Returns the hyperparameters under `OpenAI`'s names, with numeric strings as numbers.
fn read_hyperparameters(hyperparameters: &Value) -> Value {
    let rename = |(key, value): (&String, &Value)| {
        let name = HYPERPARAMETER_NAMES
            .iter()
            .find(|(_, name)| name == key)
            .map_or(key.as_str(), |(client_name, _)| client_name)
            .to_owned();
        let number = value.as_str().and_then(|text| serde_json::from_str(text).ok()).filter(Value::is_number);
        (name, number.unwrap_or_else(|| value.clone()))
    };
    hyperparameters.as_object().map_or(Value::Null, |fields| fields.iter().map(rename).collect::<Fields>().into())
}
