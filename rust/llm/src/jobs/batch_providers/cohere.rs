//! Embed jobs of Cohere: texts in a dataset, and what was made of them in another.

use serde_json::{Value, json};

use super::{moment, said};
use crate::{
    chat::request::{Fields, Refusal},
    jobs::batch::{ENDPOINTS, Run},
};

const EMBEDDINGS: &str = ENDPOINTS[2];

pub fn run(run: &mut Run<'_>) -> Result<Value, Refusal> {
    run.refuse_endpoint_but(&[EMBEDDINGS])?;
    let stated = run.said("name").or_else(|| run.said("job_name"));
    let mut body = json!({
        "model": run.model,
        "dataset_id": run.input,
        // It must be said; who does not say it keeps what it embeds.
        "input_type": run.said("input_type").unwrap_or_else(|| "search_document".into()),
        "name": stated.unwrap_or_else(|| format!("penstock-batch-{}", run.unique)),
    });
    for key in ["embedding_types", "truncate"] {
        if let Some(value) = run.shaped(key) {
            body[key] = value;
        }
    }
    Ok(body)
}

/// How many texts there were is not said, nor when it ended.
pub fn ran(job: &Value) -> Option<Fields> {
    let id = job["job_id"].as_str().filter(|id| !id.is_empty())?;
    let status = match job["status"].as_str() {
        Some("processing") => "in_progress",
        Some("complete") => "completed",
        Some("failed") => "failed",
        Some("cancelling") => "cancelling",
        Some("cancelled") => "cancelled",
        // The answer to a new one is its id alone.
        _ => "validating",
    };
    let output = if status == "completed" { job["output_dataset_id"].clone() } else { Value::Null };
    Some(said([
        ("id", id.into()),
        ("endpoint", EMBEDDINGS.into()),
        ("model", job["model"].clone()),
        ("input_file_id", job["input_dataset_id"].clone()),
        ("status", status.into()),
        ("output_file_id", output),
        ("created_at", moment(&job["created_at"])),
        ("why", job["meta"]["warnings"][0].clone()),
    ]))
}
