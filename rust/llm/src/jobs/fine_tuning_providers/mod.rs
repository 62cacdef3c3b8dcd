//! Fine-tuning formats of providers that do not use `OpenAI`'s.

mod bedrock;
mod fireworks;
mod vertex;

use serde_json::Value;

use crate::chat::providers::ProviderFormat;

use crate::{
    chat::request::{Fields, RequestError},
    jobs::fine_tuning::{FineTuningRequest, JobList},
};

/// Fine-tuning format of one provider.
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

    fn read_job_list<'a>(&self, response: &'a Value) -> Option<JobList<'a>> {
        response.as_object()?;
        Some(match self {
            Self::Bedrock => JobList::from_response(response, "modelCustomizationJobSummaries", "nextToken"),
            Self::Fireworks => JobList::from_response(response, "supervisedFineTuningJobs", "nextPageToken"),
            Self::Vertex => JobList::from_response(response, "tuningJobs", "nextPageToken"),
        })
    }

    fn read_checkpoints(&self, job: &Value) -> Vec<Fields> {
        if *self == Self::Vertex { vertex::read_checkpoints(job) } else { Vec::new() }
    }
}

/// Returns the full resource name of an object in a Fireworks account.
pub fn account_resource(account: &str, kind: &str, id: &str) -> String {
    if id.contains('/') { id.to_owned() } else { format!("accounts/{account}/{kind}/{id}") }
}

/// Moves a setting to the provider's name for it.
fn move_setting(from: &mut Fields, key: &str, to: &mut Fields, name: &str) {
    if let Some(value) = from.shift_remove(key) {
        to.insert(name.to_owned(), value);
    }
}

/// Returns the job fields that are not null.
pub fn non_null_fields<const N: usize>(fields: [(&str, Value); N]) -> Fields {
    let present = fields.into_iter().filter(|(_, value)| !value.is_null());
    present.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns the last segment of a resource name.
pub fn last_segment(name: &Value) -> Option<&str> {
    name.as_str()?.rsplit('/').next().filter(|last| !last.is_empty())
}

/// Converts a timestamp to Unix seconds; returns null if it is not a timestamp.
pub fn unix_seconds(text: &Value) -> Value {
    text.as_str().and_then(crate::timestamp::parse_rfc3339).map_or(Value::Null, Value::from)
}

/// Returns the error of a failed job; null for any other status.
fn job_error(status: &str, code: &Value, message: &Value) -> Value {
    if status != "failed" {
        return Value::Null;
    }
    let code = code.as_str().map_or_else(|| code.to_string(), ToOwned::to_owned);
    serde_json::json!({"code": code, "message": message.as_str().unwrap_or("it failed"), "param": null})
}

/// Converts Google's job states, which Fireworks uses too.
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
