//! Fireworks batch inference jobs. Input and output are datasets of an account.

use serde_json::{Value, json};

use crate::{
    errors::RequestError,
    fields::Fields,
    jobs::{
        batch::{BatchRequest, ENDPOINTS, parse_number, request_counts},
        provider_jobs::account_resource,
        provider_jobs::{last_segment, map_job_state, non_null_fields, unix_seconds},
    },
};

pub fn build_job_body(run: &mut BatchRequest<'_>) -> Result<Value, RequestError> {
    run.check_endpoint(&[ENDPOINTS[0]])?;
    let account = run.option("fireworks_account_id").unwrap_or_default();
    let name = run.take_string("job_name").unwrap_or_else(|| format!("penstock-batch-{}", run.unique_id));
    let output = run.take_string("output_data_config").unwrap_or_else(|| format!("batch-{}-out", run.unique_id));
    let mut body = json!({
        "displayName": name,
        "model": account_resource("fireworks", "models", &run.model),
        "inputDatasetId": account_resource(account, "datasets", &run.input_address),
        "outputDatasetId": account_resource(account, "datasets", &output),
    });
    if let Some(settings) = run.take_field("inference_parameters") {
        body["inferenceParameters"] = settings;
    }
    Ok(body)
}

pub fn parse_job(job: &Value) -> Option<Fields> {
    let id = last_segment(&job["name"])?;
    let status = job["state"].as_str().map_or("validating", map_job_state);
    let is_over = matches!(status, "completed" | "cancelled" | "expired");
    let progress = &job["jobProgress"];
    let count = |key: &str| parse_number(&progress[key]);
    let (good, bad) =
        (count("successfullyProcessedRequests").unwrap_or_default(), count("failedRequests").unwrap_or_default());
    Some(non_null_fields([
        ("id", id.into()),
        ("model", job["model"].clone()),
        ("input_file_id", last_segment(&job["inputDatasetId"]).into()),
        ("status", status.into()),
        ("output_file_id", last_segment(&job["outputDatasetId"]).filter(|_| is_over).into()),
        ("created_at", unix_seconds(&job["createTime"])),
        ("ended", unix_seconds(&job["updateTime"])),
        (
            "request_counts",
            if progress.is_object() {
                request_counts(count("totalInputRequests").filter(|all| *all > 0), good, bad)
            } else {
                Value::Null
            },
        ),
        ("why", job["status"]["message"].clone()),
    ]))
}
