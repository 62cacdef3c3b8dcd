//! Amazon Bedrock provider: models of many vendors through one API, with the region in the host. Requests are signed or
//! carry a Bedrock API key.

use crate::{
    catalog::{
        aws::{self, region_from_options},
        batch_jobs,
        grant::Grant,
        operation_groups::{BEDROCK, FILES, NATIVE_BATCH_JOBS, contains_operation},
        options::{BACKING_MODEL, OptionField, Options, PROVIDER_MODEL, concat_options, gateway_option},
        param_map::{CLAUDE_MESSAGES, IDENTITY},
        path_info::PathInfo,
        path_segment::{self, job_id_in_path},
        prefill::{self, PrefillMark, PrefillSupport},
        provider::{ModelLookup, ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels, write_path},
        row::{OperationRules, PriceList, ProviderRow},
        signing_keys::SigningKeys,
    },
    chat::providers::{anthropic_hosted, bedrock_converse, bedrock_invoke},
    files::{self, FileStore},
    jobs::{batch_providers, fine_tuning_providers},
    operation::Operation,
    provider_format::ProviderFormat,
    rerank::rerank_formats,
};

pub(crate) struct Bedrock;

const OPTIONS: [OptionField; 20] = concat_options(
    aws::OPTIONS,
    [
        gateway_option("aws_bedrock_model", "aws-bedrock-model"),
        PROVIDER_MODEL,
        gateway_option("anthropic_beta", "anthropic-beta"),
        gateway_option("anthropic_version", "anthropic-version"),
        gateway_option("aws_s3_bucket", "aws-s3-bucket"),
        gateway_option("aws_s3_object_key", "aws-s3-object-key"),
        gateway_option("provider_file_name", "provider-file-name"),
        gateway_option("amz_server_side_encryption", "amz-server-side-encryption"),
        gateway_option("amz_server_side_encryption_aws_kms_key_id", "amz-server-side-encryption-aws-kms-key-id"),
        gateway_option("aws_batch_role_arn", "aws-batch-role-arn"),
        // Bedrock itself assumes this role; the gateway does not.
        gateway_option("aws_customization_role_arn", "aws-customization-role-arn"),
    ],
);

/// Options with the model to call. The first that is set wins.
const MODEL_OPTIONS: &[&str] = &["aws_bedrock_model", PROVIDER_MODEL.key];

static ROW: ProviderRow = ProviderRow {
    options: &OPTIONS,
    model_name_options: MODEL_OPTIONS,
    model_override_options: MODEL_OPTIONS,
    model_in_path: |path| path_segment::segment_after(path, &["/model/"]),
    param_rules: OperationRules { messages: &CLAUDE_MESSAGES, ..OperationRules::uniform(&IDENTITY) },
    // Some models cannot count tokens; Bedrock rejects such a request as invalid.
    counts_tokens_with_every_model: false,
    prefill: PrefillSupport::new(prefill::is_claude_up_to_4_5, PrefillMark::Implicit),
    file_store: Some(FileStore::Bucket(&files::S3)),
    price_list: PriceList::named("aws"),
    ..ProviderRow::new("bedrock", "", &[BEDROCK, NATIVE_BATCH_JOBS, FILES])
};

impl ProviderFormats for Bedrock {
    fn row(&self) -> &ProviderRow {
        &ROW
    }

    fn provider_format(&self, operation: Operation, model: &str) -> Option<&'static ProviderFormat> {
        match operation {
            native if contains_operation(ROW.native_operations, native) => None,
            Operation::ListFinetuneCheckpoints => None,
            _ if operation.is_fine_tuning() => Some(&fine_tuning_providers::BEDROCK),
            _ if operation.is_batch() => Some(&batch_providers::BEDROCK),
            Operation::Messages | Operation::MessagesCountTokens if is_claude_model(model) => {
                Some(&anthropic_hosted::BEDROCK)
            }
            Operation::MessagesCountTokens | Operation::CountTokens | Operation::Models => {
                Some(&bedrock_converse::CONVERSE)
            }
            _ if operation.is_embedding() => bedrock_invoke::embedding_format(model),
            Operation::Rerank => Some(rerank_formats::bedrock_format(model)),
            Operation::ImageGenerate => bedrock_invoke::image_format(model),
            _ => operation.is_chat().then_some(&bedrock_converse::CONVERSE),
        }
    }

    /// Some ARNs do not reveal the model's vendor. In that case the looked-up model or the model name of the request
    /// decides.
    fn effective_model<'o>(&self, options: &'o Options, requested: &'o str) -> &'o str {
        let pinned = ROW.model_from_options(options).filter(|pinned| has_vendor_name(pinned));
        pinned.or_else(|| options.get(BACKING_MODEL.key)).unwrap_or(requested)
    }
}

impl ProviderAddress for Bedrock {
    fn resolve_base_url(&self, operation: Operation, options: &Options) -> Result<Option<String>, String> {
        let host = match operation {
            // Model lists, customization jobs and batch jobs use the control plane host, not the runtime host.
            Operation::Models | Operation::CreateBatchJob | Operation::RetrieveBatchJob | Operation::CancelBatchJob => {
                "bedrock"
            }
            _ if operation.is_provider_job() => "bedrock",
            operation => self.object_storage_service(operation).unwrap_or("bedrock-runtime"),
        };
        Ok(Some(format!("https://{host}.{}.amazonaws.com", region_from_options(options)?)))
    }

    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if path_info.operation == Operation::Models {
            out.extend_from_slice(b"/foundation-models");
            return Ok(());
        }
        if path_info.operation.is_fine_tuning() {
            return write_fine_tuning_target(path_info, out);
        }
        if path_info.operation.is_batch() {
            return write_batch_target(path_info, out);
        }
        if FILES.contains(&path_info.operation) {
            out.extend_from_slice(files::S3.request_target(path_info, options)?.as_bytes());
            return Ok(());
        }
        if NATIVE_BATCH_JOBS.contains(&path_info.operation) {
            let bucket = options.get("aws_s3_bucket").ok_or("no bucket: send x-gateway-aws-s3-bucket");
            let path = batch_jobs::request_path(path_info, "/model-invocation-job", "/stop", bucket)?;
            out.extend_from_slice(path.as_bytes());
            return Ok(());
        }
        let fixed_verb = BEDROCK.contains(&path_info.operation).then(|| native_verb(path_info.operation));
        let effective_model = self.effective_model(options, path_info.model);
        if self.provider_format(path_info.operation, effective_model).is_none() && fixed_verb.is_none() {
            if path_info.operation != Operation::Proxy {
                return Err(format!(
                    "the model `{effective_model}` does not support {} here",
                    path_info.operation.id()
                ));
            }
            write_path(self, path_info, out);
            return Ok(());
        }
        let model = ROW.model_from_options(options).unwrap_or(path_info.model);
        // Bedrock counts tokens for a model, but not for a cross-region inference profile of that model.
        let counted = Some(model).filter(|model| has_vendor_name(model)).or_else(|| options.get(BACKING_MODEL.key));
        let counted = counted.filter(|_| path_info.operation.counts_tokens()).map(bedrock_invoke::strip_region);
        let model = path_segment::encode_model(counted.unwrap_or(model))?;
        let is_carried = path_info.operation == Operation::Messages && is_claude_model(effective_model);
        let verb = fixed_verb.unwrap_or(match (path_info.operation, path_info.is_streaming) {
            (counting, _) if counting.counts_tokens() => "count-tokens",
            (Operation::ImageGenerate | Operation::Rerank, _) => "invoke",
            (embedding, _) if embedding.is_embedding() => "invoke",
            (_, false) if is_carried => "invoke",
            (_, true) if is_carried => "invoke-with-response-stream",
            (_, false) => "converse",
            (_, true) => "converse-stream",
        });
        out.extend_from_slice(format!("/model/{model}/{verb}").as_bytes());
        Ok(())
    }

    fn object_storage_service(&self, operation: Operation) -> Option<&'static str> {
        let is_object = matches!(operation, Operation::PutBatchObject | Operation::GetBatchObject);
        (is_object || FILES.contains(&operation)).then_some("s3")
    }
}

impl ProviderCredentials for Bedrock {
    fn signing_keys<'o>(&self, options: &'o Options) -> Result<Option<SigningKeys<'o>>, String> {
        aws::signature_from_options("bedrock", options)
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        aws::grant_from_options("bedrock", options)
    }
}

impl ProviderModels for Bedrock {
    fn job_models(&self, job: &[u8]) -> Vec<String> {
        let Some(name) = batch_jobs::read_model(job, "modelId") else { return Vec::new() };
        let model_id =
            name.strip_prefix("arn:").and_then(|arn| arn.split_once('/')).map(|(_, model_id)| model_id.to_owned());
        [name].into_iter().chain(model_id).collect()
    }

    /// Returns the lookup of an application inference profile, because only Bedrock knows the model behind it.
    fn model_lookup(&self, options: &Options, requested: &str) -> Option<ModelLookup> {
        let profile = ROW.model_from_options(options).unwrap_or(requested);
        if !profile.contains(APPLICATION_PROFILE_MARKER) || has_vendor_name(profile) || has_vendor_name(requested) {
            return None;
        }
        let base = format!("https://bedrock.{}.amazonaws.com", region_from_options(options).ok()?);
        let path = format!("/inference-profiles/{}", path_segment::encode_model(profile).ok()?);
        Some(ModelLookup { base_url: base, path, parse_model: parse_backing_model })
    }
}

/// Writes the path of model customization jobs or of one job. Lists request the maximum page size, because the gateway
/// does the paging.
fn write_fine_tuning_target(path_info: &PathInfo<'_>, out: &mut Vec<u8>) -> Result<(), String> {
    out.extend_from_slice(b"/model-customization-jobs");
    match path_info.operation {
        Operation::ListFinetunes => {
            out.extend_from_slice(b"?maxResults=1000&sortBy=CreationTime&sortOrder=Descending");
        }
        Operation::CreateFinetune => (),
        operation => {
            out.extend_from_slice(format!("/{}", job_id_in_path(path_info.path)?).as_bytes());
            if operation == Operation::CancelFinetune {
                out.extend_from_slice(b"/stop");
            }
        }
    }
    Ok(())
}

/// Writes the path of batch inference jobs or of one job. Lists request the maximum page size, because the gateway does
/// the paging.
fn write_batch_target(path_info: &PathInfo<'_>, out: &mut Vec<u8>) -> Result<(), String> {
    let path = match path_info.operation {
        Operation::ListBatches => {
            "/model-invocation-jobs?maxResults=1000&sortBy=CreationTime&sortOrder=Descending".to_owned()
        }
        Operation::CreateBatch => "/model-invocation-job".to_owned(),
        Operation::CancelBatch => format!("/model-invocation-job/{}/stop", job_id_in_path(path_info.path)?),
        _ => format!("/model-invocation-job/{}", job_id_in_path(path_info.path)?),
    };
    out.extend_from_slice(path.as_bytes());
    Ok(())
}

/// Returns the path verb of an operation in Bedrock's own API format.
fn native_verb(operation: Operation) -> &'static str {
    match operation {
        Operation::CountConverse => "count-tokens",
        Operation::ConverseStream => "converse-stream",
        Operation::InvokeModel => "invoke",
        Operation::InvokeModelStream => "invoke-with-response-stream",
        _ => "converse",
    }
}

/// Part of the ARN of an application inference profile.
const APPLICATION_PROFILE_MARKER: &str = ":application-inference-profile/";

/// Parses the model behind an inference profile from Bedrock's response. All regions of a profile have the same model,
/// so the first one is used.
fn parse_backing_model(response: &[u8]) -> Option<String> {
    let response: serde_json::Value = serde_json::from_slice(response).ok()?;
    let arn = response.pointer("/models/0/modelArn")?.as_str()?;
    arn.rsplit('/').next().filter(|name| has_vendor_name(name)).map(ToOwned::to_owned)
}

/// Returns true if a model name contains its vendor. Names of application inference profiles and of provisioned
/// throughput do not.
fn has_vendor_name(model: &str) -> bool {
    let name = model.split_once('/').map_or(model, |(_, name)| name);
    name.contains('.')
}

/// Returns true if Anthropic makes the model. Requests in Anthropic's format are then sent to `InvokeModel` without
/// translation.
fn is_claude_model(model: &str) -> bool {
    model.contains("anthropic.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_use_the_control_plane_host() {
        let options = Options::from_pairs(&OPTIONS, &[("aws_region", "eu-west-1")]);
        let base = |operation| Bedrock.resolve_base_url(operation, &options).unwrap().unwrap();
        assert_eq!(base(Operation::CreateFinetune), "https://bedrock.eu-west-1.amazonaws.com");
        assert_eq!(base(Operation::ChatComplete), "https://bedrock-runtime.eu-west-1.amazonaws.com");
    }

    #[test]
    fn an_arn_is_one_path_segment() {
        let model = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-v1:0";
        let operation = Operation::ChatComplete;
        let path_info = PathInfo { is_streaming: true, ..PathInfo::for_test(operation, "", model) };
        let mut out = Vec::new();
        Bedrock.write_request_target(&path_info, &Options::default(), &mut out).unwrap();
        let expected = "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Ainference-profile%2Fus.anthropic.claude-v1%3A0/converse-stream";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn counts_tokens_with_the_model_behind_a_profile() {
        let target = |operation, model: &str| {
            let mut out = Vec::new();
            Bedrock
                .write_request_target(&PathInfo::for_test(operation, "", model), &Options::default(), &mut out)
                .unwrap();
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
        let lookup = "arn:aws:bedrock:us-east-1:1:application-inference-profile/a1b2";
        assert!(
            target(Operation::CountConverse, lookup).ends_with("application-inference-profile%2Fa1b2/count-tokens")
        );
    }

    #[test]
    fn looks_up_the_model_behind_an_application_profile() {
        let profile = "arn:aws:bedrock:us-east-1:1:application-inference-profile/a1b2";
        let region = ("aws_region", "us-east-1");
        let lookup = |pairs: &[(&str, &str)], model| Bedrock.model_lookup(&Options::from_pairs(&OPTIONS, pairs), model);
        let backing_model = lookup(&[region], profile).unwrap();
        assert_eq!(backing_model.base_url, "https://bedrock.us-east-1.amazonaws.com");
        assert_eq!(
            backing_model.path,
            "/inference-profiles/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Aapplication-inference-profile%2Fa1b2"
        );
        let response = br#"{"type":"APPLICATION","models":[{"modelArn":"arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-v9"},
            {"modelArn":"arn:aws:bedrock:us-west-2::foundation-model/anthropic.claude-v9"}]}"#;
        assert_eq!((backing_model.parse_model)(response).as_deref(), Some("anthropic.claude-v9"));
        assert_eq!((backing_model.parse_model)(br#"{"models":[]}"#), None);
        let pinned = ("aws_bedrock_model", profile);
        assert!(lookup(&[region, pinned], "my-word-for-it").is_some());
        // A name that contains the vendor needs no lookup.
        assert!(lookup(&[region, pinned], "anthropic.claude-v9").is_none());
        assert!(lookup(&[region], "us.anthropic.claude-v9").is_none());
        assert!(lookup(&[region], "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-v9").is_none());
        let mut options = Options::from_pairs(&OPTIONS, &[region]);
        options.insert_if_absent(BACKING_MODEL, "anthropic.claude-v9".into());
        let target = |operation| {
            let mut out = Vec::new();
            Bedrock.write_request_target(&PathInfo::for_test(operation, "", profile), &options, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(target(Operation::Messages).ends_with("application-inference-profile%2Fa1b2/invoke"));
        assert_eq!(target(Operation::CountConverse), "/model/anthropic.claude-v9/count-tokens");
    }

    #[test]
    fn model_override_decides_the_format_if_it_names_its_vendor() {
        let target = |pinned: &str, model| {
            let options = Options::from_pairs(&OPTIONS, &[("aws_bedrock_model", pinned)]);
            let mut out = Vec::new();
            Bedrock
                .write_request_target(&PathInfo::for_test(Operation::Messages, "", model), &options, &mut out)
                .unwrap();
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
