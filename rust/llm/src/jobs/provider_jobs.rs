//! Parts of jobs that several providers have in common: names, states, times and output locations.

use serde_json::Value;

use crate::{errors::RequestError, fields::Fields, jobs::batch::BatchRequest};

/// Returns the full resource name of an object in a Fireworks account.
pub fn account_resource(account: &str, kind: &str, id: &str) -> String {
    if id.contains('/') { id.to_owned() } else { format!("accounts/{account}/{kind}/{id}") }
}

/// Moves a setting to the provider's name for it.
pub fn move_setting(from: &mut Fields, key: &str, to: &mut Fields, name: &str) {
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
pub fn job_error(status: &str, code: &Value, message: &Value) -> Value {
    if status != "failed" {
        return Value::Null;
    }
    let code = code.as_str().map_or_else(|| code.to_string(), ToOwned::to_owned);
    serde_json::json!({"code": code, "message": message.as_str().unwrap_or("it failed"), "param": null})
}

/// Converts Google's job states, which Fireworks uses too.
pub fn job_status(state: &str) -> &'static str {
    match state.strip_prefix("JOB_STATE_").unwrap_or(state) {
        "RUNNING" | "UPDATING" | "PAUSED" | "WRITING_RESULTS" => "running",
        "SUCCEEDED" | "PARTIALLY_SUCCEEDED" | "COMPLETED" | "EARLY_STOPPED" => "succeeded",
        "FAILED" => "failed",
        "CANCELLED" | "CANCELLING" | "EXPIRED" | "DELETING" | "DELETING_CLEANING_UP" | "DELETED" => "cancelled",
        "VALIDATING" => "validating_files",
        _ => "queued",
    }
}

/// Maps Google's job states, which Fireworks uses too, to `OpenAI`'s batch status.
pub fn map_job_state(state: &str) -> &'static str {
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
pub fn resolve_output_location(
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
            // Requests with stored credentials may read the files in this folder.
            Ok(Err(format!("{scheme}{bucket}/{}batches/{}/", crate::files::GATEWAY_PREFIX, run.unique_id)))
        }
    }
}
