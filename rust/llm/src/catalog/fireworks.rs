//! Fireworks: `OpenAI`'s API as a row has it, and one of its own for what belongs to an account: jobs of fine-tuning, batches, and
//! the datasets that these read and write.

use super::{Asked, CHAT, COMPLETE, EMBED, Group, Known, Options, Provider, options::known};
use crate::catalog::{
    openai_compatible::{Compatible, paints, row},
    param_map::{FIREWORKS, FIREWORKS_TEXT, Wording},
    path_segment,
};
use crate::{
    chat::providers::Wire,
    files::{DatasetStore, FileStore},
    images::image_formats,
    jobs::{batch_providers, fine_tuning_providers},
    operation::Operation,
};

pub(crate) struct Fireworks;

const OPTIONS: [Known; 3] = [
    known("fireworks_account_id", "fireworks-account-id"),
    known("file_upload_size", "file-upload-size"),
    known("file_purpose", "file-purpose"),
];

const FILES: Group = super::FILES;
/// Batches in its own words.
const BATCHES: Group = &[
    Operation::CreateBatchJob,
    Operation::RetrieveBatchJob,
    Operation::DeleteBatchJob,
    Operation::CreateBatchDataset,
    Operation::UploadBatchDataset,
    Operation::LocateBatchDataset,
];

static ROW: Compatible = paints(
    row("fireworks-ai", "https://api.fireworks.ai/inference/v1", "", &[CHAT, COMPLETE, EMBED, BATCHES, FILES])
        .says(&FIREWORKS)
        .completes_in(&FIREWORKS_TEXT),
    &image_formats::FIREWORKS,
    "/image_generation/:model",
);

impl Provider for Fireworks {
    fn slug(&self) -> &'static str {
        ROW.slug()
    }

    fn base_url(&self) -> &'static str {
        ROW.base_url()
    }

    fn offers(&self) -> &'static [Group] {
        ROW.offers()
    }

    fn options(&self) -> &'static [Known] {
        &OPTIONS
    }

    fn base(&self, operation: Operation, _options: &Options) -> Result<Option<String>, String> {
        Ok(is_of_account(operation).then(|| "https://api.fireworks.ai".into()))
    }

    fn path(&self, operation: Operation) -> Option<&'static str> {
        ROW.path(operation)
    }

    fn keeper(&self) -> Option<FileStore> {
        Some(FileStore::Datasets(DatasetStore::Fireworks))
    }

    fn has_own_ends(&self) -> bool {
        ROW.has_own_ends()
    }

    fn wording(&self, operation: Operation) -> &'static Wording {
        ROW.wording(operation)
    }

    fn wire(&self, operation: Operation, model: &str) -> Option<&'static dyn Wire> {
        match operation {
            Operation::ListFinetuneCheckpoints => None,
            _ if operation.tunes() => Some(&fine_tuning_providers::FIREWORKS),
            _ if operation.batches() => Some(&batch_providers::FIREWORKS),
            _ => ROW.wire(operation, model),
        }
    }

    fn write_target(&self, asked: &Asked<'_>, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        if !is_of_account(asked.operation) {
            return ROW.write_target(asked, options, out);
        }
        let account = options.get("fireworks_account_id").ok_or("no account: send x-gateway-fireworks-account-id")?;
        let version = if asked.prefix.ends_with("/v1") { "" } else { "/v1" };
        let below = match asked.operation {
            operation if operation.is_of_jobs() => job(asked)?,
            operation if FILES.contains(&operation) => DatasetStore::Fireworks.request_target(asked)?,
            _ => batched(asked),
        };
        out.extend_from_slice(format!("{version}/accounts/{}/{below}", path_segment::escaped(account)).as_bytes());
        Ok(())
    }
}

fn is_of_account(operation: Operation) -> bool {
    operation.is_of_jobs() || BATCHES.contains(&operation) || FILES.contains(&operation)
}

/// A job of fine-tuning or a batch, or all of them: which part of a list is told is decided here.
fn job(asked: &Asked<'_>) -> Result<String, String> {
    let jobs = if asked.operation.tunes() { "supervisedFineTuningJobs" } else { "batchInferenceJobs" };
    Ok(match asked.operation {
        Operation::ListFinetunes | Operation::ListBatches => format!("{jobs}?pageSize=200"),
        Operation::CreateFinetune | Operation::CreateBatch => jobs.to_owned(),
        // A batch is ended by deleting it.
        Operation::CancelFinetune => format!("{jobs}/{}:cancel", super::job(asked.path)?),
        _ => format!("{jobs}/{}", super::job(asked.path)?),
    })
}

/// A batch, or a dataset of one.
fn batched(asked: &Asked<'_>) -> String {
    let id = asked.path.split('/').nth(2).unwrap_or_default();
    let below = match asked.operation {
        Operation::CreateBatchDataset => "datasets".into(),
        Operation::UploadBatchDataset => format!("datasets/{id}:upload"),
        Operation::LocateBatchDataset => format!("datasets/{id}:getDownloadEndpoint"),
        Operation::CreateBatchJob => "batchInferenceJobs".into(),
        _ => format!("batchInferenceJobs/{id}"),
    };
    let mark = if asked.query.is_empty() { "" } else { "?" };
    format!("{below}{mark}{}", asked.query)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(operation: Operation, path: &str, query: &str, account: &[(&str, &str)]) -> Result<String, String> {
        let asked = Asked { query, ..Asked::of(operation, path, "") };
        let mut out = Vec::new();
        Fireworks.write_target(&asked, &Options::of(&OPTIONS, account), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn jobs_belong_to_an_account_and_are_asked_for_beside_the_models() {
        let base = |operation| Fireworks.base(operation, &Options::default()).unwrap();
        assert_eq!(base(Operation::ChatComplete), None);
        for operation in [Operation::ListFinetunes, Operation::RetrieveBatchJob] {
            assert_eq!(base(operation).as_deref(), Some("https://api.fireworks.ai"));
        }
        let job = |path, account: &[(&str, &str)]| target(Operation::RetrieveFinetune, path, "", account);
        let account = [("fireworks_account_id", "a/b")];
        assert!(job("/fine_tuning/jobs/..", &[]).unwrap_err().contains("x-gateway-fireworks-account-id"));
        assert!(job("/fine_tuning/jobs/..", &account).unwrap_err().contains("name a job"));
        let found = job("/fine_tuning/jobs/j%2F1", &account).unwrap();
        assert_eq!(found, "/v1/accounts/a%2Fb/supervisedFineTuningJobs/j%2F1");
    }

    #[test]
    fn batches_and_datasets_are_the_accounts() {
        let account = [("fireworks_account_id", "acme")];
        let made = target(Operation::CreateBatchJob, "/batch_jobs", "batchInferenceJobId=b", &account).unwrap();
        assert_eq!(made, "/v1/accounts/acme/batchInferenceJobs?batchInferenceJobId=b");
        let located = target(Operation::LocateBatchDataset, "/batch_datasets/d-1", "", &account).unwrap();
        assert_eq!(located, "/v1/accounts/acme/datasets/d-1:getDownloadEndpoint");
        assert!(target(Operation::CreateBatchJob, "/batch_jobs", "", &[]).unwrap_err().contains("no account"));
    }
}
