//! Fireworks provider: `OpenAI`'s API for inference, and an account API for fine-tuning jobs, batches and their
//! datasets.

use crate::{
    catalog::{
        openai_compatible::{OpenAiCompatible, row},
        operation_groups::{CHAT, COMPLETIONS, EMBED, FILES, OperationGroup},
        options::{OptionField, Options, gateway_option},
        own_endpoint::{OwnEndpoint, path_with_model},
        param_map::{FIREWORKS, FIREWORKS_COMPLETIONS},
        path_info::PathInfo,
        path_segment::{self, job_id_in_path},
        provider::{ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels},
        row::{PriceList, ProviderRow},
    },
    files::{DatasetStore, FileStore},
    images::image_formats,
    jobs::{batch_providers, fine_tuning_providers},
    operation::Operation,
    provider_format::ProviderFormat,
};

pub(crate) struct Fireworks;

const OPTIONS: [OptionField; 3] = [
    gateway_option("fireworks_account_id", "fireworks-account-id"),
    gateway_option("file_upload_size", "file-upload-size"),
    gateway_option("file_purpose", "file-purpose"),
];

/// Batch operations in Fireworks' own format.
const NATIVE_BATCHES: OperationGroup = &[
    Operation::CreateBatchJob,
    Operation::RetrieveBatchJob,
    Operation::DeleteBatchJob,
    Operation::CreateBatchDataset,
    Operation::UploadBatchDataset,
    Operation::LocateBatchDataset,
];

static INFERENCE_API: OpenAiCompatible = row(
    "fireworks-ai",
    "https://api.fireworks.ai/inference/v1",
    "",
    &[CHAT, COMPLETIONS, EMBED, NATIVE_BATCHES, FILES],
)
.with_chat_rules(&FIREWORKS)
.with_completion_rules(&FIREWORKS_COMPLETIONS)
.with_options(&OPTIONS)
.with_file_store(FileStore::Datasets(DatasetStore::Fireworks))
.with_endpoints(&IMAGE_ENDPOINTS)
.with_price_list(PriceList::named("fireworks"));

static IMAGE_ENDPOINTS: [OwnEndpoint; 1] =
    [OwnEndpoint::for_images(&image_formats::FIREWORKS, |info| path_with_model(info, "/image_generation/:model"))];

impl ProviderFormats for Fireworks {
    fn row(&self) -> &ProviderRow {
        INFERENCE_API.row()
    }

    fn provider_format(&self, operation: Operation, model: &str) -> Option<&'static ProviderFormat> {
        match operation {
            Operation::ListFinetuneCheckpoints => None,
            _ if operation.is_fine_tuning() => Some(&fine_tuning_providers::FIREWORKS),
            _ if operation.is_batch() => Some(&batch_providers::FIREWORKS),
            _ => INFERENCE_API.provider_format(operation, model),
        }
    }
}

impl ProviderAddress for Fireworks {
    fn resolve_base_url(&self, operation: Operation, _options: &Options) -> Result<Option<String>, String> {
        Ok(is_account_operation(operation).then(|| "https://api.fireworks.ai".into()))
    }

    fn operation_path(&self, operation: Operation) -> Option<&'static str> {
        INFERENCE_API.operation_path(operation)
    }

    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if !is_account_operation(path_info.operation) {
            return INFERENCE_API.write_request_target(path_info, options, out);
        }
        let account = options.get("fireworks_account_id").ok_or("no account: send x-gateway-fireworks-account-id")?;
        let version = if path_info.prefix.ends_with("/v1") { "" } else { "/v1" };
        let below = match path_info.operation {
            operation if operation.is_provider_job() => job_path(path_info)?,
            operation if FILES.contains(&operation) => DatasetStore::Fireworks.request_target(path_info)?,
            _ => batch_path(path_info),
        };
        out.extend_from_slice(
            format!("{version}/accounts/{}/{below}", path_segment::encode_segment(account)).as_bytes(),
        );
        Ok(())
    }
}

impl ProviderCredentials for Fireworks {}

impl ProviderModels for Fireworks {}

fn is_account_operation(operation: Operation) -> bool {
    operation.is_provider_job() || NATIVE_BATCHES.contains(&operation) || FILES.contains(&operation)
}

/// Returns the path of a fine-tuning job or a batch, or of all of them. Lists request a fixed page size, because the
/// gateway does the paging.
fn job_path(path_info: &PathInfo<'_>) -> Result<String, String> {
    let jobs = if path_info.operation.is_fine_tuning() { "supervisedFineTuningJobs" } else { "batchInferenceJobs" };
    Ok(match path_info.operation {
        Operation::ListFinetunes | Operation::ListBatches => format!("{jobs}?pageSize=200"),
        Operation::CreateFinetune | Operation::CreateBatch => jobs.to_owned(),
        // Only fine-tuning jobs have a cancel call; a batch is cancelled by deleting it.
        Operation::CancelFinetune => format!("{jobs}/{}:cancel", job_id_in_path(path_info.path)?),
        _ => format!("{jobs}/{}", job_id_in_path(path_info.path)?),
    })
}

/// Returns the path of a batch or of its dataset, with the query.
fn batch_path(path_info: &PathInfo<'_>) -> String {
    let id = path_info.path.split('/').nth(2).unwrap_or_default();
    let below = match path_info.operation {
        Operation::CreateBatchDataset => "datasets".into(),
        Operation::UploadBatchDataset => format!("datasets/{id}:upload"),
        Operation::LocateBatchDataset => format!("datasets/{id}:getDownloadEndpoint"),
        Operation::CreateBatchJob => "batchInferenceJobs".into(),
        _ => format!("batchInferenceJobs/{id}"),
    };
    let mark = if path_info.query.is_empty() { "" } else { "?" };
    format!("{below}{mark}{}", path_info.query)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_target(
        operation: Operation,
        path: &str,
        query: &str,
        account: &[(&str, &str)],
    ) -> Result<String, String> {
        let path_info = PathInfo { query, ..PathInfo::for_test(operation, path, "") };
        let mut out = Vec::new();
        Fireworks.write_request_target(&path_info, &Options::from_pairs(&OPTIONS, account), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn jobs_use_the_account_path() {
        let base = |operation| Fireworks.resolve_base_url(operation, &Options::default()).unwrap();
        assert_eq!(base(Operation::ChatComplete), None);
        for operation in [Operation::ListFinetunes, Operation::RetrieveBatchJob] {
            assert_eq!(base(operation).as_deref(), Some("https://api.fireworks.ai"));
        }
        let job = |path, account: &[(&str, &str)]| request_target(Operation::RetrieveFinetune, path, "", account);
        let account = [("fireworks_account_id", "a/b")];
        assert!(job("/fine_tuning/jobs/..", &[]).unwrap_err().contains("x-gateway-fireworks-account-id"));
        assert!(job("/fine_tuning/jobs/..", &account).unwrap_err().contains("name a job"));
        let job_path = job("/fine_tuning/jobs/j%2F1", &account).unwrap();
        assert_eq!(job_path, "/v1/accounts/a%2Fb/supervisedFineTuningJobs/j%2F1");
    }

    #[test]
    fn batches_and_datasets_use_the_account_path() {
        let account = [("fireworks_account_id", "acme")];
        let created =
            request_target(Operation::CreateBatchJob, "/batch_jobs", "batchInferenceJobId=b", &account).unwrap();
        assert_eq!(created, "/v1/accounts/acme/batchInferenceJobs?batchInferenceJobId=b");
        let located = request_target(Operation::LocateBatchDataset, "/batch_datasets/d-1", "", &account).unwrap();
        assert_eq!(located, "/v1/accounts/acme/datasets/d-1:getDownloadEndpoint");
        assert!(request_target(Operation::CreateBatchJob, "/batch_jobs", "", &[]).unwrap_err().contains("no account"));
    }
}
