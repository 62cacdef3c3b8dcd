//! Batch prediction jobs of Vertex AI: lines and answers in Cloud Storage.

use serde_json::{Value, json};

use super::{last, moment, output, said, status_of};
use crate::{
    catalog::vertex_model,
    chat::request::{Fields, Refusal},
    jobs::batch::{ENDPOINTS, Run, counts, endpoint_in, file_id, number, word},
};

/// The label by which a job says what its lines are for.
const LABEL: &str = "gateway_endpoint";

pub fn run(run: &mut Run<'_>) -> Result<Value, Refusal> {
    run.refuse_file_without("gs://")?;
    run.refuse_endpoint_but(&[ENDPOINTS[0], ENDPOINTS[1], ENDPOINTS[3]])?;
    let name = run.said("job_name").unwrap_or_else(|| format!("penstock-batch-{}", run.unique));
    let output = output(run, "gs://", "vertex_storage_bucket_name")?.unwrap_or_else(
        |place| json!({"predictionsFormat": "jsonl", "gcsDestination": {"outputUriPrefix": place.trim_end_matches('/')}}),
    );
    // What the caller notes of it is noted there too.
    let mut labels = std::mem::take(&mut run.metadata);
    labels.insert(LABEL.into(), word(run.endpoint).into());
    let mut body = json!({
        "displayName": name,
        "model": vertex_model(&run.model),
        "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": [run.input]}},
        "outputConfig": output,
        "labels": labels,
    });
    if let Some(config) = run.shaped("instance_config") {
        body["instanceConfig"] = config;
    }
    Ok(body)
}

pub fn ran(job: &Value) -> Option<Fields> {
    let id = last(&job["name"])?;
    let status = job["state"].as_str().map_or("validating", status_of);
    let mut labels = job["labels"].as_object().cloned().unwrap_or_default();
    let endpoint = labels.shift_remove(LABEL).and_then(|word| endpoint_in(word.as_str()?));
    let folder = job["outputInfo"]["gcsOutputDirectory"].as_str().unwrap_or_default().trim_end_matches('/');
    let is_over = matches!(status, "completed" | "cancelled" | "expired") && !folder.is_empty();
    let output = if is_over { format!("{folder}/predictions.jsonl") } else { String::new() };
    let counted = &job["completionStats"];
    let [good, bad, left] =
        ["successfulCount", "failedCount", "incompleteCount"].map(|key| number(&counted[key]).unwrap_or_default());
    Some(said([
        ("id", id.into()),
        ("endpoint", endpoint.into()),
        ("model", last(&job["model"]).into()),
        ("input_file_id", file_id(job["inputConfig"]["gcsSource"]["uris"][0].as_str().unwrap_or_default())),
        ("status", status.into()),
        ("output_file_id", file_id(&output)),
        ("created_at", moment(&job["createTime"])),
        ("in_progress_at", moment(&job["startTime"])),
        ("ended", moment(&job["endTime"])),
        ("request_counts", if counted.is_object() { counts(Some(good + bad + left), good, bad) } else { Value::Null }),
        ("metadata", if labels.is_empty() { Value::Null } else { labels.into() }),
        ("why", job["error"]["message"].clone()),
    ]))
}
