//! Batch responses in `OpenAI`'s format.

use serde_json::{Value, json};

use crate::{
    chat::response_context::ResponseContext,
    errors::MalformedResponse,
    fields::Fields,
    jobs::{
        batch::{DEFAULT_COMPLETION_WINDOW, ENDPOINTS},
        fine_tuning_response,
        job_list::PageQuery,
    },
    operation::Operation,
    provider_format::BatchFormat,
};

/// Translates a provider's response about one batch, or a list of batches, to the `OpenAI` format.
pub fn write_batch_response(
    format: &dyn BatchFormat,
    response: &Value,
    context: &ResponseContext,
    operation: Operation,
    page: &PageQuery,
) -> Result<Vec<u8>, MalformedResponse> {
    let build_one = |job: &Value| format.read_batch(job).map(|fields| build_batch(fields, context));
    let response = match operation {
        Operation::ListBatches => fine_tuning_response::render_job_list(format, response, page, build_one)?,
        // The provider returned the batch as it was before the deletion; reports it as cancelled.
        Operation::CancelBatch if format.cancels_by_delete() => {
            let mut batch = build_one(response).ok_or_else(not_a_batch)?;
            batch["status"] = "cancelled".into();
            batch["cancelled_at"] = context.created.into();
            batch["output_file_id"] = Value::Null;
            batch
        }
        _ => build_one(response).ok_or_else(not_a_batch)?,
    };
    Ok(response.to_string().into_bytes())
}

fn not_a_batch() -> MalformedResponse {
    MalformedResponse("the response is not a batch".into())
}

/// Builds a batch in the `OpenAI` format from the provider's fields, then the request's fields, then defaults.
fn build_batch(mut fields: Fields, context: &ResponseContext) -> Value {
    let mut batch = json!({"id": "", "object": "batch", "endpoint": ENDPOINTS[0], "errors": null, "input_file_id": "",
        "completion_window": DEFAULT_COMPLETION_WINDOW, "status": "validating", "output_file_id": null, "error_file_id": null,
        "created_at": context.created, "in_progress_at": null, "expires_at": null, "finalizing_at": null,
        "completed_at": null, "failed_at": null, "expired_at": null, "cancelling_at": null, "cancelled_at": null,
        "request_counts": {"total": 0, "completed": 0, "failed": 0}, "metadata": null});
    let status = fields.get("status").and_then(Value::as_str).unwrap_or_default().to_owned();
    let reason = fields.shift_remove("why").filter(|reason| reason.as_str().is_some_and(|reason| !reason.is_empty()));
    if status == "failed" {
        let message = reason.unwrap_or_else(|| "it failed".into());
        let error = json!({"code": "provider_failed", "message": message, "param": null, "line": null});
        fields.insert("errors".into(), json!({"object": "list", "data": [error]}));
    }
    if let Some(ended) = fields.shift_remove("ended")
        && ["completed", "failed", "expired", "cancelled"].contains(&&*status)
    {
        fields.insert(format!("{status}_at"), ended);
    }
    if let Some(object) = batch.as_object_mut() {
        object.extend(context.echoed_fields.clone());
        object.extend(fields.into_iter().filter(|(_, value)| !value.is_null()));
        object.insert("provider".into(), context.provider.into());
    }
    batch
}
