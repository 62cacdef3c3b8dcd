//! Cohere provider: its own chat API, the rerank format that other providers share, and batches over datasets, which
//! serve as its files.

use crate::{
    catalog::{
        model_lists,
        operation_groups::{FILES, OperationGroup, RERANK},
        options::Options,
        path_info::PathInfo,
        path_segment::job_id_in_path,
        provider::{ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels, write_path},
        row::ProviderRow,
    },
    chat::providers::cohere,
    files::{DatasetStore, FileStore},
    jobs::batch_providers,
    operation::Operation,
    provider_format::ProviderFormat,
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

static ROW: ProviderRow = ProviderRow {
    max_stop_sequences: Some(5),
    version_segment: "/v2",
    forwarded_version: "/v1",
    // First segment of the paths of Cohere's OpenAI-compatible API, whose version follows that segment.
    unversioned_roots: &["compatibility"],
    file_store: Some(FileStore::Datasets(DatasetStore::Cohere)),
    ..ProviderRow::new("cohere", "https://api.cohere.ai", &[RERANK, NATIVE_BATCHES, FILES])
};

impl ProviderFormats for Cohere {
    fn row(&self) -> &ProviderRow {
        &ROW
    }

    fn provider_format(&self, operation: Operation, _model: &str) -> Option<&'static ProviderFormat> {
        if operation.is_batch() {
            return Some(&batch_providers::COHERE);
        }
        let is_known = operation == Operation::Models || operation.is_embedding() || operation.is_chat();
        is_known.then_some(&cohere::COHERE)
    }
}

impl ProviderAddress for Cohere {
    fn operation_path(&self, operation: Operation) -> Option<&'static str> {
        self.provider_format(operation, "").map(|_| if operation.is_embedding() { "/embed" } else { "/chat" })
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
                model_lists::write_page_token(path_info, "page_token", out);
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

impl ProviderCredentials for Cohere {}

impl ProviderModels for Cohere {}

/// Returns the path of an embed job or of all embed jobs.
fn embed_job_path(path_info: &PathInfo<'_>) -> Result<String, String> {
    let jobs = "/v1/embed-jobs";
    Ok(match path_info.operation {
        Operation::CreateBatch | Operation::ListBatches => jobs.to_owned(),
        Operation::CancelBatch => format!("{jobs}/{}/cancel", job_id_in_path(path_info.path)?),
        _ => format!("{jobs}/{}", job_id_in_path(path_info.path)?),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forwarded_path_has_a_version() {
        for (prefix, path, sent) in [
            ("", "/tokenize", "/v1/tokenize"),
            ("", "/chat", "/v1/chat"),
            ("", "/datasets/a", "/v1/datasets/a"),
            ("", "/v2/chat", "/v2/chat"),
            ("", "/compatibility/v1/chat/completions", "/compatibility/v1/chat/completions"),
            ("/v2", "/tokenize", "/tokenize"),
        ] {
            let path_info = PathInfo { prefix, ..PathInfo::for_test(Operation::Proxy, path, "") };
            let mut out = Vec::new();
            Cohere.write_request_target(&path_info, &Options::default(), &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), sent, "{prefix} {path}");
        }
    }
}
