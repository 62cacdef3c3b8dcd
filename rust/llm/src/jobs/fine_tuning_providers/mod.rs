//! Fine-tuning formats of providers that do not use `OpenAI`'s.

mod bedrock;
mod fireworks;
mod vertex;

use serde_json::Value;

use crate::{
    errors::RequestError,
    fields::Fields,
    jobs::{fine_tuning::FineTuningRequest, job_list::JobList},
    provider_format::{FineTuningFormat, JobFormat, ProviderFormat},
};

/// Fine-tuning format of one provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FineTuningApi {
    Bedrock,
    Fireworks,
    Vertex,
}

pub static BEDROCK: ProviderFormat = ProviderFormat::of_fine_tuning(&FineTuningApi::Bedrock);
pub static FIREWORKS: ProviderFormat = ProviderFormat::of_fine_tuning(&FineTuningApi::Fireworks);
pub static VERTEX: ProviderFormat = ProviderFormat::of_fine_tuning(&FineTuningApi::Vertex);

impl FineTuningFormat for FineTuningApi {
    fn write_tuning_request(&self, tune: &mut FineTuningRequest<'_>) -> Result<Vec<u8>, RequestError> {
        let body = match self {
            Self::Bedrock => bedrock::write_job(tune),
            Self::Fireworks => fireworks::write_job(tune),
            Self::Vertex => vertex::write_job(tune),
        };
        Ok(body?.to_string().into_bytes())
    }

    fn read_tuning_job(&self, job: &Value) -> Option<Fields> {
        match self {
            Self::Bedrock => bedrock::read_job(job),
            Self::Fireworks => fireworks::read_job(job),
            Self::Vertex => vertex::read_job(job),
        }
    }

    fn read_checkpoints(&self, job: &Value) -> Vec<Fields> {
        if *self == Self::Vertex { vertex::read_checkpoints(job) } else { Vec::new() }
    }
}

impl JobFormat for FineTuningApi {
    fn read_job_list<'a>(&self, response: &'a Value) -> Option<JobList<'a>> {
        response.as_object()?;
        Some(match self {
            Self::Bedrock => JobList::from_response(response, "modelCustomizationJobSummaries", "nextToken"),
            Self::Fireworks => JobList::from_response(response, "supervisedFineTuningJobs", "nextPageToken"),
            Self::Vertex => JobList::from_response(response, "tuningJobs", "nextPageToken"),
        })
    }
}
