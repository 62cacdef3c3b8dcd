//! Batch formats of providers whose batch API differs from `OpenAI`'s.

mod bedrock;
mod cohere;
mod fireworks;
mod vertex;

use serde_json::Value;

use crate::{
    chat::providers::ProviderFormat,
    jobs::fine_tuning_providers::{last_segment, non_null_fields, unix_seconds},
};
use crate::{
    chat::request::{Fields, RequestError},
    jobs::{batch::BatchRequest, fine_tuning::JobList},
};

/// Provider whose batch API is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchFormat {
    Bedrock,
    Cohere,
    Fireworks,
    Vertex,
}

pub static BEDROCK: BatchFormat = BatchFormat::Bedrock;
pub static COHERE: BatchFormat = BatchFormat::Cohere;
pub static FIREWORKS: BatchFormat = BatchFormat::Fireworks;
pub static VERTEX: BatchFormat = BatchFormat::Vertex;

impl ProviderFormat for BatchFormat {
    fn write_batch_request(&self, run: &mut BatchRequest<'_>) -> Result<Vec<u8>, RequestError> {
        let body = match self {
            Self::Bedrock => bedrock::build_job_body(run),
            Self::Cohere => cohere::build_job_body(run),
            Self::Fireworks => fireworks::build_job_body(run),
            Self::Vertex => vertex::build_job_body(run),
        };
        Ok(body?.to_string().into_bytes())
    }

    fn read_batch(&self, job: &Value) -> Option<Fields> {
        match self {
            Self::Bedrock => bedrock::parse_job(job),
            Self::Cohere => cohere::parse_job(job),
            Self::Fireworks => fireworks::parse_job(job),
            Self::Vertex => vertex::parse_job(job),
        }
    }

    fn cancels_by_delete(&self) -> bool {
        *self == Self::Fireworks
    }

    fn read_job_list<'a>(&self, response: &'a Value) -> Option<JobList<'a>> {
        response.as_object()?;
        Some(match self {
            Self::Bedrock => JobList::from_response(response, "invocationJobSummaries", "nextToken"),
            Self::Cohere => JobList::from_response(response, "embed_jobs", "next_page_token"),
            Self::Fireworks => JobList::from_response(response, "batchInferenceJobs", "nextPageToken"),
            Self::Vertex => JobList::from_response(response, "batchPredictionJobs", "nextPageToken"),
        })
    }
}

/// Maps Google's job states, which Fireworks uses too, to `OpenAI`'s batch status.
fn map_job_state(state: &str) -> &'static str {
    match state.strip_prefix("JOB_STATE_").unwrap_or(state) {
        "SUCCEEDED" | "PARTIALLY_SUCCEEDED" | "COMPLETED" => "completed",
        "RUNNING" | "UPDATING" | "PAUSED" => "in_progress",
        "WRITING_RESULTS" => "finalizing",
        "FAILED" => "failed",
        "CANCELLING" | "DELETING" | "DELETING_CLEANING_UP" => "cancelling",
        "CANCELLED" | "DELETED" => "cancelled",
        "EXPIRED" => "expired",
        _ => "validating",
    }
}

/// Resolves where the provider writes the results. Returns `Ok(Ok(config))` for a provider-native object and
/// `Ok(Err(address))` for a bucket address. Defaults to a folder in the configured bucket, or else in the input file's
/// bucket.
fn resolve_output_location(
    run: &mut BatchRequest<'_>,
    scheme: &str,
    option: &str,
) -> Result<Result<Value, String>, RequestError> {
    const OUTPUT_FIELD: &str = "output_data_config";
    match run.take_field(OUTPUT_FIELD) {
        Some(Value::String(stated)) if stated.starts_with(scheme) => Ok(Err(stated)),
        Some(shaped @ Value::Object(_)) => Ok(Ok(shaped)),
        Some(_) => Err(RequestError::new(OUTPUT_FIELD, format!("must begin with {scheme}"))),
        None => {
            let hints = run.input_address.strip_prefix(scheme).and_then(|rest| rest.split('/').next());
            let bucket = run.option(option).or(hints).unwrap_or_default();
            // Stored credentials may read files in this folder.
            Ok(Err(format!("{scheme}{bucket}/{}batches/{}/", crate::files::GATEWAY_PREFIX, run.unique_id)))
        }
    }
}
