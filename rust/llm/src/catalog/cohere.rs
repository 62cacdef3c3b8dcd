//! Cohere: its own chat, reranking as others have it from there, and batches over datasets, which are its files.

use super::{Asked, FILES, Group, Options, Provider, RERANK, write_path};
use crate::{
    chat::providers::{self, Wire},
    files::{DatasetStore, FileStore},
    jobs::batch_providers,
    operation::Operation,
    translation::{self},
};

pub(crate) struct Cohere;

/// Batches in its own words.
const BATCHES: Group = &[
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

    fn version(&self) -> &'static str {
        "/v2"
    }

    fn offers(&self) -> &'static [Group] {
        &[RERANK, BATCHES, FILES]
    }

    fn keeper(&self) -> Option<FileStore> {
        Some(FileStore::Datasets(DatasetStore::Cohere))
    }

    fn path(&self, operation: Operation) -> Option<&'static str> {
        self.wire(operation, "").map(|_| if operation.embeds() { "/embed" } else { "/chat" })
    }

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        if operation.batches() {
            return Some(&batch_providers::COHERE);
        }
        let is_known = operation == Operation::Models || operation.embeds() || translation::is_talk(operation);
        is_known.then_some(&providers::cohere::Cohere)
    }

    fn write_target(&self, asked: &Asked<'_>, _options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        match asked.operation {
            // Of the version before.
            Operation::Models => {
                out.extend_from_slice(b"/v1/models?page_size=1000");
                crate::catalog::model_lists::write_next(asked, "page_token", out);
            }
            operation if FILES.contains(&operation) => {
                out.extend_from_slice(b"/v1/");
                out.extend_from_slice(DatasetStore::Cohere.request_target(asked)?.as_bytes());
            }
            operation if operation.batches() => out.extend_from_slice(job(asked)?.as_bytes()),
            operation if BATCHES.contains(&operation) => out.extend_from_slice(batched(asked).as_bytes()),
            _ => write_path(self, asked, out),
        }
        Ok(())
    }
}

/// A job that embeds what is in a dataset, or all of them.
fn job(asked: &Asked<'_>) -> Result<String, String> {
    let jobs = "/v1/embed-jobs";
    Ok(match asked.operation {
        Operation::CreateBatch | Operation::ListBatches => jobs.to_owned(),
        Operation::CancelBatch => format!("{jobs}/{}/cancel", super::job(asked.path)?),
        _ => format!("{jobs}/{}", super::job(asked.path)?),
    })
}

/// A batch, or a dataset of one, which is of the version before.
fn batched(asked: &Asked<'_>) -> String {
    let id = asked.path.split('/').nth(2).unwrap_or_default();
    match asked.operation {
        Operation::CreateBatchJob => "/v2/batches".into(),
        Operation::RetrieveBatchJob => format!("/v2/batches/{id}"),
        Operation::CancelBatchJob => format!("/v2/batches/{id}:cancel"),
        Operation::LocateBatchDataset => format!("/v1/datasets/{id}"),
        _ => {
            let mark = if asked.query.is_empty() { "" } else { "&" };
            format!("/v1/datasets?name={}{mark}{}", id.replace('&', "%26"), asked.query)
        }
    }
}
