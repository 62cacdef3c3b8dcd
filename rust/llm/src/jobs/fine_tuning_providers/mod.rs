//! Fine-tuning where it is not asked for as `OpenAI` has it.

mod bedrock;
mod fireworks;
mod vertex;

use serde_json::Value;

use crate::chat::providers::ProviderFormat;

use crate::{
    chat::request::{Fields, RequestError},
    jobs::fine_tuning::{FineTuningRequest, JobList},
};

/// Whose way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FineTuningFormat {
    Bedrock,
    Fireworks,
    Vertex,
}

pub static BEDROCK: FineTuningFormat = FineTuningFormat::Bedrock;
pub static FIREWORKS: FineTuningFormat = FineTuningFormat::Fireworks;
pub static VERTEX: FineTuningFormat = FineTuningFormat::Vertex;

impl ProviderFormat for FineTuningFormat {
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

    fn read_job_list<'a>(&self, answer: &'a Value) -> Option<JobList<'a>> {
        answer.as_object()?;
        Some(match self {
            Self::Bedrock => JobList::from_response(answer, "modelCustomizationJobSummaries", "nextToken"),
            Self::Fireworks => JobList::from_response(answer, "supervisedFineTuningJobs", "nextPageToken"),
            Self::Vertex => JobList::from_response(answer, "tuningJobs", "nextPageToken"),
        })
    }

    fn read_checkpoints(&self, job: &Value) -> Vec<Fields> {
        if *self == Self::Vertex { vertex::read_checkpoints(job) } else { Vec::new() }
    }
}

/// The full name of what belongs to an account at Fireworks.
pub fn account_resource(account: &str, kind: &str, id: &str) -> String {
    if id.contains('/') { id.to_owned() } else { format!("accounts/{account}/{kind}/{id}") }
}

/// Moves a setting under the name that it has here.
fn move_setting(from: &mut Fields, key: &str, to: &mut Fields, name: &str) {
    if let Some(value) = from.shift_remove(key) {
        to.insert(name.to_owned(), value);
    }
}

/// What of a job's fields has a value.
pub fn non_null_fields<const N: usize>(fields: [(&str, Value); N]) -> Fields {
    let said = fields.into_iter().filter(|(_, value)| !value.is_null());
    said.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The last segment of a resource's name.
pub fn last_segment(name: &Value) -> Option<&str> {
    name.as_str()?.rsplit('/').next().filter(|last| !last.is_empty())
}

/// In seconds since 1970, where it is one.
pub fn unix_seconds(text: &Value) -> Value {
    text.as_str().and_then(crate::timestamp::parse_rfc3339).map_or(Value::Null, Value::from)
}

/// Why a job that failed did.
fn job_error(status: &str, code: &Value, message: &Value) -> Value {
    if status != "failed" {
        return Value::Null;
    }
    let code = code.as_str().map_or_else(|| code.to_string(), ToOwned::to_owned);
    serde_json::json!({"code": code, "message": message.as_str().unwrap_or("it failed"), "param": null})
}

/// Google's words for how a job stands, which Fireworks has too.
fn job_status(state: &str) -> &'static str {
    match state.strip_prefix("JOB_STATE_").unwrap_or(state) {
        "RUNNING" | "UPDATING" | "PAUSED" | "WRITING_RESULTS" => "running",
        "SUCCEEDED" | "PARTIALLY_SUCCEEDED" | "COMPLETED" | "EARLY_STOPPED" => "succeeded",
        "FAILED" => "failed",
        "CANCELLED" | "CANCELLING" | "EXPIRED" | "DELETING" | "DELETING_CLEANING_UP" | "DELETED" => "cancelled",
        "VALIDATING" => "validating_files",
        _ => "queued",
    }
}
