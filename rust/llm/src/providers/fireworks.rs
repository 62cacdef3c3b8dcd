//! Fireworks: `OpenAI`'s API as a row has it, and beside it the account's batches with the datasets that they read and write.

use super::{
    Asked, CHAT, COMPLETE, EMBED, Group, Known, Options, Provider,
    compatible::{Compatible, paints, row},
    options::known,
    segment,
};
use crate::{
    operation::Operation,
    translation::wires::{Wire, painting},
};

pub(super) struct Fireworks;

const OPTIONS: [Known; 1] = [known("fireworks_account_id", "fireworks-account-id")];

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
    row("fireworks-ai", "https://api.fireworks.ai/inference/v1", "", &[CHAT, COMPLETE, EMBED, BATCHES]),
    &painting::FIREWORKS,
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
        Ok(BATCHES.contains(&operation).then(|| "https://api.fireworks.ai".into()))
    }

    fn path(&self, operation: Operation) -> Option<&'static str> {
        ROW.path(operation)
    }

    fn wire(&self, operation: Operation, model: &str) -> Option<&'static dyn Wire> {
        ROW.wire(operation, model)
    }

    fn write_target(&self, asked: &Asked<'_>, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        if !BATCHES.contains(&asked.operation) {
            return ROW.write_target(asked, options, out);
        }
        let account = options.get("fireworks_account_id").ok_or("no account: send x-gateway-fireworks-account-id")?;
        let version = if asked.prefix.ends_with("/v1") { "" } else { "/v1" };
        let id = asked.path.split('/').nth(2).unwrap_or_default();
        let below = match asked.operation {
            Operation::CreateBatchDataset => "datasets".into(),
            Operation::UploadBatchDataset => format!("datasets/{id}:upload"),
            Operation::LocateBatchDataset => format!("datasets/{id}:getDownloadEndpoint"),
            Operation::CreateBatchJob => "batchInferenceJobs".into(),
            _ => format!("batchInferenceJobs/{id}"),
        };
        let mark = if asked.query.is_empty() { "" } else { "?" };
        let path = format!("{version}/accounts/{}/{below}{mark}{}", segment::escaped(account), asked.query);
        out.extend_from_slice(path.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::Stated;

    fn target(operation: Operation, path: &str, query: &str, account: &[(&str, &str)]) -> Result<String, String> {
        let stated = Stated::default();
        let asked = Asked { operation, path, query, prefix: "", model: "", user: "", streams: false, stated };
        let mut out = Vec::new();
        Fireworks.write_target(&asked, &Options::of(&OPTIONS, account), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn batches_and_datasets_are_the_accounts() {
        let account = [("fireworks_account_id", "acme")];
        let made = target(Operation::CreateBatchJob, "/batch_jobs", "batchInferenceJobId=b", &account).unwrap();
        assert_eq!(made, "/v1/accounts/acme/batchInferenceJobs?batchInferenceJobId=b");
        let located = target(Operation::LocateBatchDataset, "/batch_datasets/d-1", "", &account).unwrap();
        assert_eq!(located, "/v1/accounts/acme/datasets/d-1:getDownloadEndpoint");
        assert!(target(Operation::CreateBatchJob, "/batch_jobs", "", &[]).unwrap_err().contains("no account"));
        let base = |operation| Fireworks.base(operation, &Options::default()).unwrap();
        assert_eq!(base(Operation::RetrieveBatchJob).as_deref(), Some("https://api.fireworks.ai"));
        assert_eq!(base(Operation::ChatComplete), None);
    }
}
