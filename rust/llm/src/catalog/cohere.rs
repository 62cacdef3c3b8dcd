//! Cohere provider: its own chat API, the rerank format that other providers share, and batches over datasets, which
//! serve as its files.

use super::{FILES, OperationGroup, Options, PathInfo, Provider, RERANK, write_path};
use crate::{
    chat::providers::{self, ProviderFormat},
    files::{DatasetStore, FileStore},
    jobs::batch_providers,
    operation::Operation,
    translation::{self},
};

pub(crate) struct Cohere;

/// Batch operations in Cohere's own format.
const NATIVE_BATCHES: OperationGroup = &[
    Operation::CreateBatchJob,
    Operation::RetrieveBatchJob,
    Operation::CancelBatchJob,
    Operation::UploadBatchDataset,
    Operation::LocateBatchDataset,
];

impl Provider for Cohere {
    fn slug(&self) -> &'static str {
        "cohere"
    }

    fn base_url(&self) -> &'static str {
        "https://api.cohere.ai"
    }

    fn version_segment(&self) -> &'static str {
        "/v2"
    }

    fn native_operations(&self) -> &'static [OperationGroup] {
        &[RERANK, NATIVE_BATCHES, FILES]
    }

    fn file_store(&self) -> Option<FileStore> {
        Some(FileStore::Datasets(DatasetStore::Cohere))
    }

    fn operation_path(&self, operation: Operation) -> Option<&'static str> {
        self.provider_format(operation, "").map(|_| if operation.is_embedding() { "/embed" } else { "/chat" })
    }

    fn provider_format(&self, operation: Operation, _model: &str) -> Option<&'static dyn ProviderFormat> {
        if operation.is_batch() {
            return Some(&batch_providers::COHERE);
        }
        let is_known =
            operation == Operation::Models || operation.is_embedding() || translation::is_chat_operation(operation);
        is_known.then_some(&providers::cohere::CohereFormat)
    }

    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        _options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        match path_info.operation {
            // Only API v1 has a model list.
            Operation::Models => {
                out.extend_from_slice(b"/v1/models?page_size=1000");
                crate::catalog::model_lists::write_page_token(path_info, "page_token", out);
            }
            operation if FILES.contains(&operation) => {
                out.extend_from_slice(b"/v1/");
                out.extend_from_slice(DatasetStore::Cohere.request_target(path_info)?.as_bytes());
            }
            operation if operation.is_batch() => out.extend_from_slice(embed_job_path(path_info)?.as_bytes()),
            operation if NATIVE_BATCHES.contains(&operation) => out.extend_from_slice(batch_path(path_info).as_bytes()),
            _ => write_path(self, path_info, out),
        }
        Ok(())
    }
}

/// Returns the path of an embed job or of all embed jobs.
fn embed_job_path(path_info: &PathInfo<'_>) -> Result<String, String> {
    let jobs = "/v1/embed-jobs";
    Ok(match path_info.operation {
        Operation::CreateBatch | Operation::ListBatches => jobs.to_owned(),
        Operation::CancelBatch => format!("{jobs}/{}/cancel", super::job_id_in_path(path_info.path)?),
        _ => format!("{jobs}/{}", super::job_id_in_path(path_info.path)?),
    })
}

/// Returns the path of a batch or of its dataset. Datasets belong to API v1.
fn batch_path(path_info: &PathInfo<'_>) -> String {
    let id = path_info.path.split('/').nth(2).unwrap_or_default();
    match path_info.operation {
        Operation::CreateBatchJob => "/v2/batches".into(),
        Operation::RetrieveBatchJob => format!("/v2/batches/{id}"),
        Operation::CancelBatchJob => format!("/v2/batches/{id}:cancel"),
        Operation::LocateBatchDataset => format!("/v1/datasets/{id}"),
        _ => {
            let mark = if path_info.query.is_empty() { "" } else { "&" };
            format!("/v1/datasets?name={}{mark}{}", id.replace('&', "%26"), path_info.query)
        }
    }
}
