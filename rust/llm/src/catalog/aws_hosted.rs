//! Third-party APIs hosted by AWS: Anthropic's, `OpenAI`'s, and `SageMaker` endpoints. Requests are signed or carry an
//! API key.

use crate::{
    api_format::format::ApiFormat,
    catalog::{
        anthropic,
        aws::{self, region_from_options},
        grant::Grant,
        operation_groups::{CHAT, FILES, MESSAGES, RESPONSES, needs_openai_translation},
        options::{OptionField, Options, concat_options, gateway_option},
        param_map::{CLAUDE_MESSAGES, IDENTITY},
        path_info::PathInfo,
        prefill::{self, PrefillMark, PrefillSupport},
        provider::{ProviderAddress, ProviderCredentials, ProviderFormats, ProviderModels},
        row::{Credential, OperationRules, ProviderRow},
        signing_keys::SigningKeys,
    },
    chat::providers::{anthropic_messages, openai_chat},
    operation::Operation,
    provider_format::ProviderFormat,
};

pub(crate) struct ClaudePlatform;
pub(crate) struct Mantle;
pub(crate) struct SageMaker;

/// AWS service name in signatures of requests to Anthropic's API.
const CLAUDE_SERVICE: &str = "aws-external-anthropic";
/// AWS service name in signatures of requests to `OpenAI`'s API.
const MANTLE_SERVICE: &str = "bedrock-mantle";
/// AWS service name in signatures of requests to `SageMaker` endpoints.
const SAGEMAKER_SERVICE: &str = "sagemaker";

const CLAUDE_OPTIONS: [OptionField; 12] = concat_options(
    aws::OPTIONS,
    [
        OptionField {
            key: "anthropic_aws_workspace_id",
            header: "anthropic-aws-workspace-id",
            forwarded_as: Some("anthropic-workspace-id"),
        },
        OptionField { key: "anthropic_version", header: "anthropic-version", forwarded_as: Some("anthropic-version") },
        OptionField { key: "anthropic_beta", header: "anthropic-beta", forwarded_as: Some("anthropic-beta") },
    ],
);

static CLAUDE_ROW: ProviderRow = ProviderRow {
    options: &CLAUDE_OPTIONS,
    api_format: ApiFormat::Anthropic,
    credential: Credential::Header("x-api-key"),
    required_header: Some(anthropic::REQUIRED_VERSION),
    param_rules: OperationRules { messages: &CLAUDE_MESSAGES, ..OperationRules::uniform(&IDENTITY) },
    prefill: PrefillSupport::new(prefill::is_claude_up_to_4_5, PrefillMark::Implicit),
    ..ProviderRow::new("claude-platform-aws", "", &[MESSAGES, FILES])
};

impl ProviderFormats for ClaudePlatform {
    fn row(&self) -> &ProviderRow {
        &CLAUDE_ROW
    }

    fn provider_format(&self, operation: Operation, _model: &str) -> Option<&'static ProviderFormat> {
        anthropic::is_translated_operation(operation).then_some(&anthropic_messages::ANTHROPIC)
    }
}

impl ProviderAddress for ClaudePlatform {
    fn resolve_base_url(&self, _operation: Operation, options: &Options) -> Result<Option<String>, String> {
        Ok(Some(format!("https://aws-external-anthropic.{}.api.aws/v1", region_from_options(options)?)))
    }

    fn operation_path(&self, operation: Operation) -> Option<&'static str> {
        self.provider_format(operation, "").map(|_| anthropic::translated_path(operation))
    }

    fn write_request_target(
        &self,
        path_info: &PathInfo<'_>,
        _options: &Options,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        anthropic::write_target_with_full_list(self, path_info, out);
        Ok(())
    }
}

impl ProviderCredentials for ClaudePlatform {
    fn signing_keys<'o>(&self, options: &'o Options) -> Result<Option<SigningKeys<'o>>, String> {
        aws::signature_from_options(CLAUDE_SERVICE, options)
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        aws::grant_from_options(CLAUDE_SERVICE, options)
    }
}

impl ProviderModels for ClaudePlatform {}

static MANTLE_ROW: ProviderRow =
    ProviderRow { options: &aws::OPTIONS, ..ProviderRow::new("bedrock-mantle", "", &[CHAT, RESPONSES]) };

impl ProviderFormats for Mantle {
    fn row(&self) -> &ProviderRow {
        &MANTLE_ROW
    }

    fn provider_format(&self, operation: Operation, _model: &str) -> Option<&'static ProviderFormat> {
        needs_openai_translation(MANTLE_ROW.native_operations, operation).then_some(&openai_chat::COMPATIBLE)
    }
}

impl ProviderAddress for Mantle {
    fn resolve_base_url(&self, _operation: Operation, options: &Options) -> Result<Option<String>, String> {
        Ok(Some(format!("https://bedrock-mantle.{}.api.aws/v1", region_from_options(options)?)))
    }
}

impl ProviderCredentials for Mantle {
    fn signing_keys<'o>(&self, options: &'o Options) -> Result<Option<SigningKeys<'o>>, String> {
        aws::signature_from_options(MANTLE_SERVICE, options)
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        aws::grant_from_options(MANTLE_SERVICE, options)
    }
}

impl ProviderModels for Mantle {}

const fn forwarded_option_as(key: &'static str, header: &'static str, sent_as: &'static str) -> OptionField {
    OptionField { key, header, forwarded_as: Some(sent_as) }
}

const SAGEMAKER_OPTIONS: [OptionField; 18] = concat_options(
    aws::OPTIONS,
    [
        forwarded_option_as(
            "amzn_sagemaker_custom_attributes",
            "amzn-sagemaker-custom-attributes",
            "x-amzn-sagemaker-custom-attributes",
        ),
        forwarded_option_as(
            "amzn_sagemaker_target_model",
            "amzn-sagemaker-target-model",
            "x-amzn-sagemaker-target-model",
        ),
        forwarded_option_as(
            "amzn_sagemaker_target_variant",
            "amzn-sagemaker-target-variant",
            "x-amzn-sagemaker-target-variant",
        ),
        forwarded_option_as(
            "amzn_sagemaker_target_container_hostname",
            "amzn-sagemaker-target-container-hostname",
            "x-amzn-sagemaker-target-container-hostname",
        ),
        forwarded_option_as(
            "amzn_sagemaker_inference_id",
            "amzn-sagemaker-inference-id",
            "x-amzn-sagemaker-inference-id",
        ),
        forwarded_option_as(
            "amzn_sagemaker_enable_explanations",
            "amzn-sagemaker-enable-explanations",
            "x-amzn-sagemaker-enable-explanations",
        ),
        forwarded_option_as(
            "amzn_sagemaker_inference_component",
            "amzn-sagemaker-inference-component",
            "x-amzn-sagemaker-inference-component",
        ),
        forwarded_option_as("amzn_sagemaker_session_id", "amzn-sagemaker-session-id", "x-amzn-sagemaker-session-id"),
        gateway_option("amzn_sagemaker_model_name", "amzn-sagemaker-model-name"),
    ],
);

static SAGEMAKER_ROW: ProviderRow = ProviderRow {
    options: &SAGEMAKER_OPTIONS,
    model_name_options: &["amzn_sagemaker_model_name"],
    model_selection_options: &[
        "amzn_sagemaker_target_model",
        "amzn_sagemaker_target_variant",
        "amzn_sagemaker_target_container_hostname",
        "amzn_sagemaker_inference_component",
    ],
    has_model_list: false,
    ..ProviderRow::new("sagemaker", "", &[])
};

/// `SageMaker` endpoints run arbitrary models, so bodies are forwarded unchanged.
impl ProviderFormats for SageMaker {
    fn row(&self) -> &ProviderRow {
        &SAGEMAKER_ROW
    }

    fn provider_format(&self, _operation: Operation, _model: &str) -> Option<&'static ProviderFormat> {
        None
    }
}

impl ProviderAddress for SageMaker {
    fn resolve_base_url(&self, _operation: Operation, options: &Options) -> Result<Option<String>, String> {
        Ok(Some(format!("https://runtime.sagemaker.{}.amazonaws.com", region_from_options(options)?)))
    }
}

impl ProviderCredentials for SageMaker {
    fn signing_keys<'o>(&self, options: &'o Options) -> Result<Option<SigningKeys<'o>>, String> {
        aws::signature_from_options(SAGEMAKER_SERVICE, options)
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        aws::grant_from_options(SAGEMAKER_SERVICE, options)
    }
}

impl ProviderModels for SageMaker {}
