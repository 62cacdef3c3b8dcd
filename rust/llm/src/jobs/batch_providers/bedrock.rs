//! Bedrock model invocation jobs. Input and output lie in the customer's S3 buckets, which Bedrock accesses through the
//! customer's role.

use serde_json::{Value, json};

use crate::{
    errors::RequestError,
    fields::Fields,
    jobs::{
        batch::{
            BatchRequest, ENDPOINTS, endpoint_from_slug, endpoint_slug, file_id_from_address, parse_number,
            request_counts,
        },
        provider_jobs::{last_segment, non_null_fields, resolve_output_location, unix_seconds},
    },
};

const EMBEDDINGS_ENDPOINT: &str = ENDPOINTS[2];
/// Value of `modelInvocationType` for batch lines in the Converse format.
const CONVERSE_INVOCATION_TYPE: &str = "Converse";
/// Value of `modelInvocationType` for batch lines in the model's native format.
const INVOKE_MODEL_INVOCATION_TYPE: &str = "InvokeModel";

pub fn build_job_body(run: &mut BatchRequest<'_>) -> Result<Value, RequestError> {
    run.check_input_prefix("s3://")?;
    let stated = run.take_string("role_arn");
    let role = stated.or_else(|| run.option("aws_batch_role_arn").map(ToOwned::to_owned)).ok_or_else(|| {
        let message = "must be the ARN of a role that may read and write your buckets: send it, or \
            x-gateway-aws-batch-role-arn";
        RequestError::new("role_arn", message)
    })?;
    let name = run.take_string("job_name").unwrap_or_else(|| format!("penstock-batch-{}", run.unique_id));
    let output = match resolve_output_location(run, "s3://", "aws_s3_bucket")? {
        Ok(shaped) => shaped,
        Err(location) => {
            let mut s3_config = json!({"s3Uri": location});
            if let Some(key) = run.option("amz_server_side_encryption_aws_kms_key_id") {
                s3_config["s3EncryptionKeyId"] = key.into();
            }
            json!({"s3OutputDataConfig": s3_config})
        }
    };
    Ok(json!({
        "jobName": name,
        "roleArn": role,
        // Bedrock returns this token with the job. It carries the endpoint, because the job has no other field for it.
        "clientRequestToken": format!("{}-{}", endpoint_slug(run.endpoint), run.unique_id),
        "modelId": run.model,
        "modelInvocationType": if run.endpoint == EMBEDDINGS_ENDPOINT { INVOKE_MODEL_INVOCATION_TYPE } else { CONVERSE_INVOCATION_TYPE },
        "inputDataConfig": {"s3InputDataConfig": {"s3Uri": run.input_address}},
        "outputDataConfig": output,
    }))
}

pub fn parse_job(job: &Value) -> Option<Fields> {
    // The response to a new job contains only its ARN.
    let id = last_segment(&job["jobArn"])?;
    let status = match job["status"].as_str() {
        Some("InProgress") => "in_progress",
        // Lines that ran out of time have no result.
        Some("Completed" | "PartiallyCompleted") => "completed",
        Some("Failed") => "failed",
        Some("Stopping") => "cancelling",
        Some("Stopped") => "cancelled",
        Some("Expired") => "expired",
        _ => "validating",
    };
    let is_over = matches!(status, "completed" | "cancelled" | "expired");
    let input = job["inputDataConfig"]["s3InputDataConfig"]["s3Uri"].as_str().unwrap_or_default();
    let output = job["outputDataConfig"]["s3OutputDataConfig"]["s3Uri"].as_str().filter(|_| is_over);
    let output = output.map(|prefix| {
        let name = input.rsplit('/').next().unwrap_or_default();
        format!("{}/{id}/{name}.out", prefix.trim_end_matches('/'))
    });
    let token = job["clientRequestToken"].as_str().unwrap_or_default();
    let by_kind =
        || if job["modelInvocationType"] == INVOKE_MODEL_INVOCATION_TYPE { EMBEDDINGS_ENDPOINT } else { ENDPOINTS[0] };
    let is_new = job["status"].is_null();
    let [good, bad] = ["successRecordCount", "errorRecordCount"].map(|key| parse_number(&job[key]).unwrap_or_default());
    Some(non_null_fields([
        ("id", id.into()),
        ("endpoint", if is_new { Value::Null } else { endpoint_from_slug(token).unwrap_or_else(by_kind).into() }),
        ("model", foundation_model_id(&job["modelId"])),
        ("input_file_id", file_id_from_address(input)),
        ("status", status.into()),
        ("output_file_id", file_id_from_address(&output.unwrap_or_default())),
        ("created_at", unix_seconds(&job["submitTime"])),
        ("expires_at", unix_seconds(&job["jobExpirationTime"])),
        ("ended", unix_seconds(&job["endTime"])),
        (
            "request_counts",
            if is_new { Value::Null } else { request_counts(parse_number(&job["totalRecordCount"]), good, bad) },
        ),
        ("why", job["message"].clone()),
    ]))
}

/// Returns the model id without the `foundation-model` ARN prefix, as other APIs name the model.
fn foundation_model_id(model_arn: &Value) -> Value {
    let name = model_arn.as_str().map(|name| name.split_once(":foundation-model/").map_or(name, |(_, name)| name));
    name.into()
}
