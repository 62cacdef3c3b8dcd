//! Batches where they are not asked for as `OpenAI` has them.

mod bedrock;
mod cohere;
mod fireworks;
mod vertex;

use serde_json::Value;

use crate::{
    chat::providers::Wire,
    jobs::fine_tuning_providers::{last, moment, said},
};
use crate::{
    chat::request::{Fields, Refusal},
    jobs::{batch::Run, fine_tuning::Jobs},
};

/// Whose way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batching {
    Bedrock,
    Cohere,
    Fireworks,
    Vertex,
}

pub static BEDROCK: Batching = Batching::Bedrock;
pub static COHERE: Batching = Batching::Cohere;
pub static FIREWORKS: Batching = Batching::Fireworks;
pub static VERTEX: Batching = Batching::Vertex;

impl Wire for Batching {
    fn run(&self, run: &mut Run<'_>) -> Result<Vec<u8>, Refusal> {
        let body = match self {
            Self::Bedrock => bedrock::run(run),
            Self::Cohere => cohere::run(run),
            Self::Fireworks => fireworks::run(run),
            Self::Vertex => vertex::run(run),
        };
        Ok(body?.to_string().into_bytes())
    }

    fn ran(&self, job: &Value) -> Option<Fields> {
        match self {
            Self::Bedrock => bedrock::ran(job),
            Self::Cohere => cohere::ran(job),
            Self::Fireworks => fireworks::ran(job),
            Self::Vertex => vertex::ran(job),
        }
    }

    fn deletes(&self) -> bool {
        *self == Self::Fireworks
    }

    fn jobs<'a>(&self, answer: &'a Value) -> Option<Jobs<'a>> {
        answer.as_object()?;
        Some(match self {
            Self::Bedrock => Jobs::of(answer, "invocationJobSummaries", "nextToken"),
            Self::Cohere => Jobs::of(answer, "embed_jobs", "next_page_token"),
            Self::Fireworks => Jobs::of(answer, "batchInferenceJobs", "nextPageToken"),
            Self::Vertex => Jobs::of(answer, "batchPredictionJobs", "nextPageToken"),
        })
    }
}

/// Google's words for how a job stands, which Fireworks has too.
fn status_of(state: &str) -> &'static str {
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

/// Where a provider is to write: said as its jobs have it, or as one address, or else here.
fn output(run: &mut Run<'_>, scheme: &str, option: &str) -> Result<Result<Value, String>, Refusal> {
    const FIELD: &str = "output_data_config";
    match run.shaped(FIELD) {
        Some(Value::String(stated)) if stated.starts_with(scheme) => Ok(Err(stated)),
        Some(shaped @ Value::Object(_)) => Ok(Ok(shaped)),
        Some(_) => {
            Err(Refusal::new(FIELD, format!("this provider writes to buckets of yours: it must begin with {scheme}")))
        }
        None => {
            let beside = run.input.strip_prefix(scheme).and_then(|rest| rest.split('/').next());
            let bucket = run.option(option).or(beside).unwrap_or_default();
            // Where files may be read with a stored credential.
            Ok(Err(format!("{scheme}{bucket}/{}batches/{}/", crate::files::GATEWAY_PREFIX, run.unique)))
        }
    }
}
