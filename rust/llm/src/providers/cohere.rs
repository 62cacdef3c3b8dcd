//! Cohere: its own chat, reranking as others have it from there, and batches over datasets.

use super::{Asked, Group, Options, Provider, RERANK, write_path};
use crate::{
    operation::Operation,
    translation::{
        self,
        wires::{self, Wire},
    },
};

pub(super) struct Cohere;

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
        &[RERANK, BATCHES]
    }

    fn path(&self, operation: Operation) -> Option<&'static str> {
        self.wire(operation, "").map(|_| if operation.embeds() { "/embed" } else { "/chat" })
    }

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        let is_known = operation == Operation::Models || operation.embeds() || translation::is_talk(operation);
        is_known.then_some(&wires::cohere::Cohere)
    }

    fn write_target(&self, asked: &Asked<'_>, _options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        match asked.operation {
            // Of the version before.
            Operation::Models => {
                out.extend_from_slice(b"/v1/models?page_size=1000");
                super::lists::write_next(asked, "page_token", out);
            }
            operation if BATCHES.contains(&operation) => out.extend_from_slice(batched(asked).as_bytes()),
            _ => write_path(self, asked, out),
        }
        Ok(())
    }
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
