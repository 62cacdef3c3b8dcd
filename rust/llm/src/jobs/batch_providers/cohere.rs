//! Cohere embed jobs. They read texts from one dataset and write the embeddings to another.

use serde_json::{Value, json};

use crate::{
    errors::RequestError,
    fields::Fields,
    jobs::{
        batch::{BatchRequest, ENDPOINTS},
        provider_jobs::{non_null_fields, unix_seconds},
    },
};

const EMBEDDINGS_ENDPOINT: &str = ENDPOINTS[2];

pub fn build_job_body(run: &mut BatchRequest<'_>) -> Result<Value, RequestError> {
    run.check_endpoint(&[EMBEDDINGS_ENDPOINT])?;
    let stated = run.take_string("name").or_else(|| run.take_string("job_name"));
    let mut body = json!({
        "model": run.model,
        "dataset_id": run.input_address,
        // Cohere requires `input_type`. The default is `search_document`, because clients that do not set it usually
        // store the embeddings.
        "input_type": run.take_string("input_type").unwrap_or_else(|| "search_document".into()),
        "name": stated.unwrap_or_else(|| format!("penstock-batch-{}", run.unique_id)),
    });
    for key in ["embedding_types", "truncate"] {
        if let Some(value) = run.take_field(key) {
            body[key] = value;
        }
    }
    Ok(body)
}

/// Parses a job. Cohere reports neither request counts nor an end time.
pub fn parse_job(job: &Value) -> Option<Fields> {
    let id = job["job_id"].as_str().filter(|id| !id.is_empty())?;
    let status = match job["status"].as_str() {
        Some("processing") => "in_progress",
        Some("complete") => "completed",
        Some("failed") => "failed",
        Some("cancelling") => "cancelling",
        Some("cancelled") => "cancelled",
        // The response to a new job contains only its id.
        _ => "validating",
    };
    let output = if status == "completed" { job["output_dataset_id"].clone() } else { Value::Null };
    Some(non_null_fields([
        ("id", id.into()),
        ("endpoint", EMBEDDINGS_ENDPOINT.into()),
        ("model", job["model"].clone()),
        ("input_file_id", job["input_dataset_id"].clone()),
        ("status", status.into()),
        ("output_file_id", output),
        ("created_at", unix_seconds(&job["created_at"])),
        ("why", job["meta"]["warnings"][0].clone()),
    ]))
}
