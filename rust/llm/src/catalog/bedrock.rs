//! Amazon Bedrock: models of many vendors by one shape, the region in the host, requests signed or with a key of Bedrock's own.

use super::{
    Asked, BEDROCK, BEHIND, Credential, FILES, Grant, Group, JOBS, Known, Nameless, Options, Provider, Signature,
    Stated,
    aws::{self, region},
    is_in,
    options::{PROVIDER_MODEL, joined, known},
};
use crate::catalog::{batch_jobs, path_segment};
use crate::{
    chat::providers::{Wire, anthropic_hosted, bedrock_converse::Converse, bedrock_invoke},
    files::{self, FileStore},
    jobs::{batch_providers, fine_tuning_providers},
    operation::Operation,
    rerank::rerank_formats,
    translation::{self},
};

pub(crate) struct Bedrock;

const OPTIONS: [Known; 20] = joined(
    aws::OPTIONS,
    [
        known("aws_bedrock_model", "aws-bedrock-model"),
        PROVIDER_MODEL,
        known("anthropic_beta", "anthropic-beta"),
        known("anthropic_version", "anthropic-version"),
        known("aws_s3_bucket", "aws-s3-bucket"),
        known("aws_s3_object_key", "aws-s3-object-key"),
        known("provider_file_name", "provider-file-name"),
        known("amz_server_side_encryption", "amz-server-side-encryption"),
        known("amz_server_side_encryption_aws_kms_key_id", "amz-server-side-encryption-aws-kms-key-id"),
        known("aws_batch_role_arn", "aws-batch-role-arn"),
        // Not the role that is taken on here: Bedrock itself takes this one on.
        known("aws_customization_role_arn", "aws-customization-role-arn"),
    ],
);

impl Provider for Bedrock {
    fn slug(&self) -> &'static str {
        "bedrock"
    }

    fn base_url(&self) -> &'static str {
        ""
    }

    fn offers(&self) -> &'static [Group] {
        &[BEDROCK, JOBS, FILES]
    }

    fn options(&self) -> &'static [Known] {
        &OPTIONS
    }

    fn base(&self, operation: Operation, options: &Options) -> Result<Option<String>, String> {
        let host = match operation {
            // Who lists the models, makes new ones and runs batches of them is not who answers.
            Operation::Models | Operation::CreateBatchJob | Operation::RetrieveBatchJob | Operation::CancelBatchJob => {
                "bedrock"
            }
            _ if operation.is_of_jobs() => "bedrock",
            operation => self.storage(operation).unwrap_or("bedrock-runtime"),
        };
        Ok(Some(format!("https://{host}.{}.amazonaws.com", region(options)?)))
    }

    fn wire(&self, operation: Operation, model: &str) -> Option<&'static dyn Wire> {
        match operation {
            own if is_in(self.offers(), own) => None,
            Operation::ListFinetuneCheckpoints => None,
            _ if operation.tunes() => Some(&fine_tuning_providers::BEDROCK),
            _ if operation.batches() => Some(&batch_providers::BEDROCK),
            Operation::Messages | Operation::MessagesCountTokens if is_claude(model) => {
                Some(&anthropic_hosted::BEDROCK)
            }
            Operation::MessagesCountTokens | Operation::CountTokens | Operation::Models => Some(&Converse),
            _ if operation.embeds() => bedrock_invoke::embedding(model).map(|wire| wire as &dyn Wire),
            Operation::Rerank => Some(rerank_formats::at_bedrock(model)),
            Operation::ImageGenerate => bedrock_invoke::drawing(model).map(|wire| wire as &dyn Wire),
            _ => translation::is_talk(operation).then_some(&Converse),
        }
    }

    fn write_target(&self, asked: &Asked<'_>, options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        if asked.operation == Operation::Models {
            out.extend_from_slice(b"/foundation-models");
            return Ok(());
        }
        if asked.operation.tunes() {
            return write_job(asked, out);
        }
        if asked.operation.batches() {
            return write_batch(asked, out);
        }
        if FILES.contains(&asked.operation) {
            out.extend_from_slice(files::S3.request_target(asked, options)?.as_bytes());
            return Ok(());
        }
        if JOBS.contains(&asked.operation) {
            let bucket = options.get("aws_s3_bucket").ok_or("no bucket: send x-gateway-aws-s3-bucket");
            let path = batch_jobs::path(asked, ("/model-invocation-job", "/stop"), bucket)?;
            out.extend_from_slice(path.as_bytes());
            return Ok(());
        }
        let own = BEDROCK.contains(&asked.operation).then(|| own(asked.operation));
        let meant = self.meant(options, asked.model);
        if self.wire(asked.operation, meant).is_none() && own.is_none() {
            if asked.operation != Operation::Proxy {
                return Err(format!("the model `{meant}` cannot be asked for {} here", asked.operation.id()));
            }
            super::write_path(self, asked, out);
            return Ok(());
        }
        let model = self.model(options).unwrap_or(asked.model);
        // Tokens are counted by models, and not by the profiles by which these are asked in several regions.
        let counted = Some(model).filter(|model| names_vendor(model)).or_else(|| options.get(BEHIND.key));
        let counted = counted.filter(|_| asked.operation.counts_tokens()).map(bedrock_invoke::vendor);
        let model = path_segment::model(counted.unwrap_or(model))?;
        let is_carried = asked.operation == Operation::Messages && is_claude(meant);
        let verb = own.unwrap_or(match (asked.operation, asked.streams) {
            (counting, _) if counting.counts_tokens() => "count-tokens",
            (Operation::ImageGenerate | Operation::Rerank, _) => "invoke",
            (embedding, _) if embedding.embeds() => "invoke",
            (_, false) if is_carried => "invoke",
            (_, true) if is_carried => "invoke-with-response-stream",
            (_, false) => "converse",
            (_, true) => "converse-stream",
        });
        out.extend_from_slice(format!("/model/{model}/{verb}").as_bytes());
        Ok(())
    }

    /// Not all of its models count, and those that do not are said to be asked wrongly.
    fn counts_with_every_model(&self) -> bool {
        false
    }

    fn job_models(&self, job: &[u8]) -> Vec<String> {
        let Some(name) = batch_jobs::model(job, "modelId") else { return Vec::new() };
        let bare = name.strip_prefix("arn:").and_then(|arn| arn.split_once('/')).map(|(_, bare)| bare.to_owned());
        [name].into_iter().chain(bare).collect()
    }

    fn named_in<'p>(&self, path: &'p str) -> Option<&'p str> {
        path_segment::after(path, &["/model/"])
    }

    fn credential(&self, _key: &str, _prefix: &str) -> Credential {
        Credential::Bearer
    }

    fn model<'o>(&self, options: &'o Options) -> Option<&'o str> {
        options.get("aws_bedrock_model").or_else(|| options.get(PROVIDER_MODEL.key))
    }

    fn pinned<'o>(&self, options: &'o Options, _stated: Stated<'o>) -> Option<&'o str> {
        self.model(options)
    }

    /// Some ARNs do not say whose model is behind them: then the request's own word for it is taken.
    fn meant<'o>(&self, options: &'o Options, named: &'o str) -> &'o str {
        let pinned = self.model(options).filter(|pinned| names_vendor(pinned));
        pinned.or_else(|| options.get(BEHIND.key)).unwrap_or(named)
    }

    /// An application's own profile, of which Bedrock itself says which model is behind it.
    fn nameless(&self, options: &Options, named: &str) -> Option<Nameless> {
        let profile = self.model(options).unwrap_or(named);
        if !profile.contains(PROFILE) || names_vendor(profile) || names_vendor(named) {
            return None;
        }
        let base = format!("https://bedrock.{}.amazonaws.com", region(options).ok()?);
        let path = format!("/inference-profiles/{}", path_segment::model(profile).ok()?);
        Some(Nameless { base, path, read: behind })
    }

    fn signature<'o>(&self, options: &'o Options) -> Result<Option<Signature<'o>>, String> {
        aws::signature("bedrock", options)
    }

    fn storage(&self, operation: Operation) -> Option<&'static str> {
        let is_object = matches!(operation, Operation::PutBatchObject | Operation::GetBatchObject);
        (is_object || FILES.contains(&operation)).then_some("s3")
    }

    fn keeper(&self) -> Option<FileStore> {
        Some(FileStore::Bucket(&files::S3))
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        aws::grant("bedrock", options)
    }
}

/// A job of customizing, by its name. Lists come as long as they may be: which part is told is decided here.
fn write_job(asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<(), String> {
    out.extend_from_slice(b"/model-customization-jobs");
    match asked.operation {
        Operation::ListFinetunes => {
            out.extend_from_slice(b"?maxResults=1000&sortBy=CreationTime&sortOrder=Descending");
        }
        Operation::CreateFinetune => (),
        operation => {
            out.extend_from_slice(format!("/{}", super::job(asked.path)?).as_bytes());
            if operation == Operation::CancelFinetune {
                out.extend_from_slice(b"/stop");
            }
        }
    }
    Ok(())
}

/// Likewise a job over many lines.
fn write_batch(asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<(), String> {
    let path = match asked.operation {
        Operation::ListBatches => {
            "/model-invocation-jobs?maxResults=1000&sortBy=CreationTime&sortOrder=Descending".to_owned()
        }
        Operation::CreateBatch => "/model-invocation-job".to_owned(),
        Operation::CancelBatch => format!("/model-invocation-job/{}/stop", super::job(asked.path)?),
        _ => format!("/model-invocation-job/{}", super::job(asked.path)?),
    };
    out.extend_from_slice(path.as_bytes());
    Ok(())
}

/// What its own clients ask for.
fn own(operation: Operation) -> &'static str {
    match operation {
        Operation::CountConverse => "count-tokens",
        Operation::ConverseStream => "converse-stream",
        Operation::InvokeModel => "invoke",
        Operation::InvokeModelStream => "invoke-with-response-stream",
        _ => "converse",
    }
}

/// Stands in the ARN of a profile of one's own.
const PROFILE: &str = ":application-inference-profile/";

/// The model of a profile: in each of its regions it is the same.
fn behind(answer: &[u8]) -> Option<String> {
    let answer: serde_json::Value = serde_json::from_slice(answer).ok()?;
    let arn = answer.pointer("/models/0/modelArn")?.as_str()?;
    arn.rsplit('/').next().filter(|name| names_vendor(name)).map(ToOwned::to_owned)
}

/// Whether a name says who made the model. That of a profile of one's own, or of throughput that was bought, does not.
fn names_vendor(model: &str) -> bool {
    let name = model.split_once('/').map_or(model, |(_, name)| name);
    name.contains('.')
}

/// Whether a model is Anthropic's: its own body goes there as it is.
fn is_claude(model: &str) -> bool {
    model.contains("anthropic.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_runs_models_is_not_who_makes_them() {
        let options = Options::of(&OPTIONS, &[("aws_region", "eu-west-1")]);
        let base = |operation| Bedrock.base(operation, &options).unwrap().unwrap();
        assert_eq!(base(Operation::CreateFinetune), "https://bedrock.eu-west-1.amazonaws.com");
        assert_eq!(base(Operation::ChatComplete), "https://bedrock-runtime.eu-west-1.amazonaws.com");
    }

    #[test]
    fn an_arn_is_one_segment_of_the_path() {
        let model = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-v1:0";
        let operation = Operation::ChatComplete;
        let asked = Asked { streams: true, ..Asked::of(operation, "", model) };
        let mut out = Vec::new();
        Bedrock.write_target(&asked, &Options::default(), &mut out).unwrap();
        let expected = "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Ainference-profile%2Fus.anthropic.claude-v1%3A0/converse-stream";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn tokens_are_counted_by_the_model_behind_a_profile() {
        let target = |operation, model: &str| {
            let mut out = Vec::new();
            Bedrock.write_target(&Asked::of(operation, "", model), &Options::default(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let of_one = "/model/anthropic.claude-opus-4-5/count-tokens";
        let arn = "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-opus-4-5";
        for model in
            ["us.anthropic.claude-opus-4-5", "global.anthropic.claude-opus-4-5", "anthropic.claude-opus-4-5", arn]
        {
            for operation in [Operation::MessagesCountTokens, Operation::CountTokens, Operation::CountConverse] {
                assert_eq!(target(operation, model), of_one);
            }
        }
        let nameless = "arn:aws:bedrock:us-east-1:1:application-inference-profile/a1b2";
        assert!(
            target(Operation::CountConverse, nameless).ends_with("application-inference-profile%2Fa1b2/count-tokens")
        );
    }

    #[test]
    fn a_profile_of_ones_own_is_asked_about_and_then_asked_as_the_model_behind_it() {
        let profile = "arn:aws:bedrock:us-east-1:1:application-inference-profile/a1b2";
        let region = ("aws_region", "us-east-1");
        let asked = |given: &[(&str, &str)], named| Bedrock.nameless(&Options::of(&OPTIONS, given), named);
        let found = asked(&[region], profile).unwrap();
        assert_eq!(found.base, "https://bedrock.us-east-1.amazonaws.com");
        assert_eq!(
            found.path,
            "/inference-profiles/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Aapplication-inference-profile%2Fa1b2"
        );
        let answer = br#"{"type":"APPLICATION","models":[{"modelArn":"arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-v9"},
            {"modelArn":"arn:aws:bedrock:us-west-2::foundation-model/anthropic.claude-v9"}]}"#;
        assert_eq!((found.read)(answer).as_deref(), Some("anthropic.claude-v9"));
        assert_eq!((found.read)(br#"{"models":[]}"#), None);
        let pinned = ("aws_bedrock_model", profile);
        assert!(asked(&[region, pinned], "my-word-for-it").is_some());
        // Who says whose it is is believed.
        assert!(asked(&[region, pinned], "anthropic.claude-v9").is_none());
        assert!(asked(&[region], "us.anthropic.claude-v9").is_none());
        assert!(asked(&[region], "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-v9").is_none());
        let mut options = Options::of(&OPTIONS, &[region]);
        options.put(BEHIND, "anthropic.claude-v9".into());
        let target = |operation| {
            let mut out = Vec::new();
            Bedrock.write_target(&Asked::of(operation, "", profile), &options, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(target(Operation::Messages).ends_with("application-inference-profile%2Fa1b2/invoke"));
        assert_eq!(target(Operation::CountConverse), "/model/anthropic.claude-v9/count-tokens");
    }

    #[test]
    fn a_model_that_is_pinned_decides_how_it_is_asked_where_its_name_says_whose_it_is() {
        let target = |pinned: &str, named| {
            let options = Options::of(&OPTIONS, &[("aws_bedrock_model", pinned)]);
            let mut out = Vec::new();
            Bedrock.write_target(&Asked::of(Operation::Messages, "", named), &options, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let profile = "arn:aws:bedrock:us-east-1:1:application-inference-profile/a1b2";
        let path = "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Aapplication-inference-profile%2Fa1b2";
        assert_eq!(target(profile, "anthropic.claude-opus-4-5"), format!("{path}/invoke"));
        assert_eq!(target(profile, "amazon.nova-lite-v1:0"), format!("{path}/converse"));
        let (nova, claude) = ("us.amazon.nova-lite-v1:0", "us.anthropic.claude-opus-4-5");
        assert_eq!(target(nova, claude), "/model/us.amazon.nova-lite-v1%3A0/converse");
        assert_eq!(target(claude, nova), "/model/us.anthropic.claude-opus-4-5/invoke");
    }
}
