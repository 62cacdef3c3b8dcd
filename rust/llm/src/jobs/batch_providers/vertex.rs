//! Vertex AI batch prediction jobs. Input and output lie in Cloud Storage.

use serde_json::{Value, json};

use crate::{
    catalog::vertex_publishers::publisher_model_path,
    errors::RequestError,
    fields::Fields,
    jobs::{
        batch::{
            BatchRequest, ENDPOINTS, endpoint_from_slug, endpoint_slug, file_id_from_address, parse_number,
            request_counts,
        },
        provider_jobs::{last_segment, map_job_state, non_null_fields, resolve_output_location, unix_seconds},
    },
};

/// Job label that stores the endpoint of the batch lines.
const ENDPOINT_LABEL: &str = "gateway_endpoint";

pub fn build_job_body(run: &mut BatchRequest<'_>) -> Result<Value, RequestError> {
    run.check_input_prefix("gs://")?;
    run.check_endpoint(&[ENDPOINTS[0], ENDPOINTS[1], ENDPOINTS[3]])?;
    let name = run.take_string("job_name").unwrap_or_else(|| format!("penstock-batch-{}", run.unique_id));
    let output = resolve_output_location(run, "gs://", "vertex_storage_bucket_name")?.unwrap_or_else(
        |location| json!({"predictionsFormat": "jsonl", "gcsDestination": {"outputUriPrefix": location.trim_end_matches('/')}}),
    );
    // The client's metadata becomes labels of the job.
    let mut labels = std::mem::take(&mut run.metadata);
    labels.insert(ENDPOINT_LABEL.into(), endpoint_slug(run.endpoint).into());
    let mut body = json!({
        "displayName": name,
        "model": publisher_model_path(&run.model),
        "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": [run.input_address]}},
        "outputConfig": output,
        "labels": labels,
    });
    if let Some(config) = run.take_field("instance_config") {
        body["instanceConfig"] = config;
    }
    Ok(body)
}

pub fn parse_job(job: &Value) -> Option<Fields> {
    let id = last_segment(&job["name"])?;
    let status = job["state"].as_str().map_or("validating", map_job_state);
    let mut labels = job["labels"].as_object().cloned().unwrap_or_default();
    let endpoint = labels.shift_remove(ENDPOINT_LABEL).and_then(|slug| endpoint_from_slug(slug.as_str()?));
    let folder = job["outputInfo"]["gcsOutputDirectory"].as_str().unwrap_or_default().trim_end_matches('/');
    let is_over = matches!(status, "completed" | "cancelled" | "expired") && !folder.is_empty();
    let output = if is_over { format!("{folder}/predictions.jsonl") } else { String::new() };
    let counted = &job["completionStats"];
    let [good, bad, incomplete] = ["successfulCount", "failedCount", "incompleteCount"]
        .map(|key| parse_number(&counted[key]).unwrap_or_default());
    Some(non_null_fields([
        ("id", id.into()),
        ("endpoint", endpoint.into()),
        ("model", last_segment(&job["model"]).into()),
        (
            "input_file_id",
            file_id_from_address(job["inputConfig"]["gcsSource"]["uris"][0].as_str().unwrap_or_default()),
        ),
        ("status", status.into()),
        ("output_file_id", file_id_from_address(&output)),
        ("created_at", unix_seconds(&job["createTime"])),
        ("in_progress_at", unix_seconds(&job["startTime"])),
        ("ended", unix_seconds(&job["endTime"])),
        (
            "request_counts",
            if counted.is_object() { request_counts(Some(good + bad + incomplete), good, bad) } else { Value::Null },
        ),
        ("metadata", if labels.is_empty() { Value::Null } else { labels.into() }),
        ("why", job["error"]["message"].clone()),
    ]))
}
