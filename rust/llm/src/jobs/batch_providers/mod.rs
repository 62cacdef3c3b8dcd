//! Batch formats of providers whose batch API differs from `OpenAI`'s.

mod bedrock;
mod cohere;
mod fireworks;
mod vertex;

use serde_json::Value;

use crate::{
    errors::RequestError,
    fields::Fields,
    jobs::{batch::BatchRequest, job_list::JobList},
    provider_format::{BatchFormat, JobFormat, ProviderFormat},
};

/// Provider whose batch API is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchApi {
    Bedrock,
    Cohere,
    Fireworks,
    Vertex,
}

pub static BEDROCK: ProviderFormat = ProviderFormat::of_batches(&BatchApi::Bedrock);
pub static COHERE: ProviderFormat = ProviderFormat::of_batches(&BatchApi::Cohere);
pub static FIREWORKS: ProviderFormat = ProviderFormat::of_batches(&BatchApi::Fireworks);
pub static VERTEX: ProviderFormat = ProviderFormat::of_batches(&BatchApi::Vertex);

impl BatchFormat for BatchApi {
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
}

impl JobFormat for BatchApi {
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
