//! Paths of native batch jobs and of the bucket objects that the jobs read and write, and the models that jobs name.

use crate::{
    catalog::path_info::PathInfo,
    files::{INVALID_BUCKET_MESSAGE, is_valid_bucket_name},
    json::{scan::for_each_field, string_literal::unescape},
    operation::Operation,
};

/// Bucket folder that holds the gateway's objects. Everything else in the bucket is out of reach.
const OBJECT_FOLDER: &str = "penstock";

/// Returns the path after the host: a job in the provider's collection, or an object in a bucket. `collection` is
/// the path of all jobs; `cancel_suffix` is added to a job's path to cancel it.
pub(crate) fn request_path(
    path_info: &PathInfo<'_>,
    collection: &str,
    cancel_suffix: &str,
    bucket: Result<&str, &str>,
) -> Result<String, String> {
    let id = path_info.path.split('/').nth(2).unwrap_or_default();
    match path_info.operation {
        Operation::RetrieveBatchJob => Ok(format!("{collection}/{id}")),
        Operation::CancelBatchJob => Ok(format!("{collection}/{id}{cancel_suffix}")),
        Operation::PutBatchObject | Operation::GetBatchObject => object_path(bucket?, id),
        _ => Ok(collection.to_owned()),
    }
}

/// Returns the model in the field `field` of a job. Returns `None` if the field occurs twice, because the provider
/// might read the other value.
pub(crate) fn read_model(job: &[u8], field: &str) -> Option<String> {
    let mut positions = Vec::with_capacity(1);
    let read = for_each_field(job, |key, at| {
        if key == field.as_bytes() {
            positions.push(at);
        }
        Ok(())
    });
    let [at] = read.ok().map(|()| positions)?.try_into().ok()?;
    unescape(&job[at]).filter(|name| !name.is_empty())
}

fn object_path(bucket: &str, name: &str) -> Result<String, String> {
    let is_name = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    };
    if !is_valid_bucket_name(bucket) {
        return Err(INVALID_BUCKET_MESSAGE.into());
    }
    let name = name.replace("%2f", "/").replace("%2F", "/").replace("%3a", ":").replace("%3A", ":");
    if name.split('/').any(|part| !is_name(part) || part.bytes().all(|byte| byte == b'.')) {
        return Err(
            "an object name may have only letters, digits, `-`, `_`, `.` and `:`, with `%2F` between its parts".into(),
        );
    }
    // Amazon's signature covers the colon in its encoded form.
    Ok(format!("/{bucket}/{OBJECT_FOLDER}/{}", name.replace(':', "%3A")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_for(operation: Operation, path: &str, bucket: Result<&str, &str>) -> Result<String, String> {
        let path_info = PathInfo::for_test(operation, path, "");
        super::request_path(&path_info, "/jobs", "/stop", bucket)
    }

    #[test]
    fn job_models_come_from_the_field_that_the_provider_reads() {
        let models_of = |slug: &str, job: &str| crate::catalog::find_provider(slug).unwrap().job_models(job.as_bytes());
        let arn = "arn:aws:bedrock:us-east-1::foundation-model/amazon.nova-lite-v1:0";
        assert_eq!(
            models_of("bedrock", r#"{"model":"x","modelId":"amazon.nova-lite-v1:0"}"#),
            ["amazon.nova-lite-v1:0"]
        );
        assert_eq!(models_of("bedrock", &format!("{{\"modelId\":\"{arn}\"}}")), [arn, "amazon.nova-lite-v1:0"]);
        let google = "publishers/google/models/gemini-2.5-pro";
        assert_eq!(
            models_of("vertex-ai", &format!("{{\"model\":\"{google}\"}}")),
            [google, "google.gemini-2.5-pro", "gemini-2.5-pro"]
        );
        let claude = "publishers/anthropic/models/claude-x@1";
        assert_eq!(
            models_of("vertex-ai", &format!("{{\"model\":\"{claude}\"}}")),
            [claude, "anthropic.claude-x@1", "claude-x@1"]
        );
        let meta = "publishers/meta/models/claude-x";
        assert_eq!(
            models_of("vertex-ai", &format!("{{\"model\":\"{meta}\"}}")),
            [meta, "meta.claude-x"],
            "not Anthropic's"
        );
        let tuned = "projects/p/locations/l/models/gemini-2.5-pro";
        assert_eq!(models_of("vertex-ai", &format!("{{\"model\":\"{tuned}\"}}")), [tuned]);
        assert_eq!(models_of("fireworks-ai", r#"{"model":"accounts/a/models/m"}"#), ["accounts/a/models/m"]);
        for job in [
            "{}",
            r#"{"model":""}"#,
            r#"{"model":7,"modelId":7}"#,
            "[",
            r#"{"modelId":"a","mod\u0065lId":"b","model":"a","model":"b"}"#,
        ] {
            assert!(
                ["bedrock", "vertex-ai", "fireworks-ai"].iter().all(|slug| models_of(slug, job).is_empty()),
                "{job}"
            );
        }
    }

    #[test]
    fn builds_create_retrieve_and_cancel_paths() {
        let job = |operation, path| path_for(operation, path, Err("no bucket")).unwrap();
        assert_eq!(job(Operation::CreateBatchJob, "/batch_jobs"), "/jobs");
        assert_eq!(job(Operation::RetrieveBatchJob, "/batch_jobs/arn%3Aa%2Fb"), "/jobs/arn%3Aa%2Fb");
        assert_eq!(job(Operation::CancelBatchJob, "/batch_jobs/7/cancel"), "/jobs/7/stop");
    }

    #[test]
    fn object_paths_stay_in_the_gateway_folder_of_the_bucket() {
        let object = |bucket, name| path_for(Operation::GetBatchObject, &format!("/batch_objects/{name}"), bucket);
        assert_eq!(object(Ok("b-1"), "a%2Fb-1%3a2.jsonl").unwrap(), "/b-1/penstock/a/b-1%3A2.jsonl");
        for name in ["%2e%2e%2Fx", "..", "a%2F..%2Fb", "a%2F%2Fb", "a?b", "a b", "%2Fa", "a%2F"] {
            assert!(object(Ok("b-1"), name).is_err(), "{name}");
        }
        for bucket in ["", "a/b", "..", ".a", "a..b", "a?b"] {
            assert!(object(Ok(bucket), "a").is_err(), "{bucket}");
        }
        assert_eq!(object(Err("no bucket"), "a").unwrap_err(), "no bucket");
    }
}
