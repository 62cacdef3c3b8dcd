//! Fine-tuning responses in `OpenAI`'s format.

use serde_json::{Value, json};

use crate::{
    chat::response_context::ResponseContext,
    errors::MalformedResponse,
    fields::Fields,
    jobs::{
        fine_tuning::AUTO,
        job_list::{JobList, PageQuery},
    },
    operation::Operation,
    provider_format::{FineTuningFormat, JobFormat},
};

/// Encodes the response to the client: one job, a list of jobs, or the checkpoints of a job.
pub fn encode_response(
    format: &dyn FineTuningFormat,
    response: &Value,
    context: &ResponseContext,
    operation: Operation,
    page: &PageQuery,
) -> Result<Vec<u8>, MalformedResponse> {
    let response = match operation {
        Operation::ListFinetunes => render_job_list(format, response, page, |operation| {
            format.read_tuning_job(operation).map(|job| render_job(job, context))
        })?,
        Operation::ListFinetuneCheckpoints => {
            let id =
                format.read_tuning_job(response).ok_or_else(invalid_job_error)?.shift_remove("id").unwrap_or_default();
            let to_checkpoint = |mut fields: Fields| {
                fields.insert("fine_tuning_job_id".into(), id.clone());
                fields.insert("object".into(), "fine_tuning.job.checkpoint".into());
                Value::Object(fields)
            };
            page.paginate(format.read_checkpoints(response).into_iter().map(to_checkpoint).collect(), false)
        }
        _ => render_job(format.read_tuning_job(response).ok_or_else(invalid_job_error)?, context),
    };
    Ok(response.to_string().into_bytes())
}

/// Renders each job of the provider's list and returns the requested page.
pub fn render_job_list(
    format: &dyn JobFormat,
    response: &Value,
    page: &PageQuery,
    render: impl Fn(&Value) -> Option<Value>,
) -> Result<Value, MalformedResponse> {
    let JobList { jobs, has_more } =
        format.read_job_list(response).ok_or_else(|| MalformedResponse("it has no jobs".into()))?;
    let jobs: Option<Vec<_>> = jobs.iter().map(render).collect();
    Ok(page.paginate(jobs.ok_or_else(invalid_job_error)?, has_more))
}

fn invalid_job_error() -> MalformedResponse {
    MalformedResponse("it is not a job".into())
}

/// Renders a job in `OpenAI`'s format. Provider fields override request fields, which override the defaults.
fn render_job(fields: Fields, context: &ResponseContext) -> Value {
    let mut job = json!({"id": "", "object": "fine_tuning.job", "created_at": context.created, "error": null,
        "fine_tuned_model": null, "finished_at": null, "hyperparameters": {"n_epochs": AUTO}, "model": "",
        "organization_id": "", "result_files": [], "seed": 0, "status": "queued", "trained_tokens": null,
        "training_file": "", "validation_file": null, "integrations": [], "estimated_finish": null,
        "method": {"type": "supervised", "supervised": {}}});
    if let Some(object) = job.as_object_mut() {
        object.extend(context.echoed_fields.clone());
        object.extend(fields.into_iter().filter(|(_, value)| !value.is_null()));
        object.insert("provider".into(), context.provider.into());
    }
    job
}
