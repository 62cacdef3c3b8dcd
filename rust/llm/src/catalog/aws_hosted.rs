//! Third-party APIs hosted by AWS: Anthropic's, `OpenAI`'s, and `SageMaker` endpoints. Requests are signed or carry an
//! API key.

use super::{
    CHAT, Credential, FILES, Grant, MESSAGES, OperationGroup, OptionField, Options, PathInfo, Provider, RESPONSES,
    SigningKeys, anthropic,
    aws::{self, region_from_options},
    needs_openai_translation,
    options::{concat_options, gateway_option},
};
use crate::{
    api_format::format::ApiFormat,
    chat::providers::{ProviderFormat, anthropic_messages, openai_chat},
    operation::Operation,
};

pub(crate) struct ClaudePlatform;
pub(crate) struct Mantle;
pub(crate) struct SageMaker;

/// AWS service names that requests are signed for.
const CLAUDE_SERVICE: &str = "aws-external-anthropic";
const MANTLE_SERVICE: &str = "bedrock-mantle";
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

impl Provider for ClaudePlatform {
    fn slug(&self) -> &'static str {
        "claude-platform-aws"
    }

    fn base_url(&self) -> &'static str {
        ""
    }

    fn native_operations(&self) -> &'static [OperationGroup] {
        &[MESSAGES, FILES]
    }

    fn options(&self) -> &'static [OptionField] {
        &CLAUDE_OPTIONS
    }

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

    fn provider_format(&self, operation: Operation, _model: &str) -> Option<&'static dyn ProviderFormat> {
        anthropic::is_translated_operation(operation).then_some(&anthropic_messages::ANTHROPIC)
    }

    fn credential(&self, _key: &str, _prefix: &str) -> Credential {
        Credential::Header("x-api-key")
    }

    fn signing_keys<'o>(&self, options: &'o Options) -> Result<Option<SigningKeys<'o>>, String> {
        aws::signature_from_options(CLAUDE_SERVICE, options)
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        aws::grant_from_options(CLAUDE_SERVICE, options)
    }

    fn required_header(&self, _prefix: &str) -> Option<(&'static str, &'static str)> {
        Some(("anthropic-version", "2023-06-01"))
    }

    fn api_format(&self) -> ApiFormat {
        ApiFormat::Anthropic
    }
}

impl Provider for Mantle {
    fn slug(&self) -> &'static str {
        "bedrock-mantle"
    }

    fn base_url(&self) -> &'static str {
        ""
    }

    fn native_operations(&self) -> &'static [OperationGroup] {
        &[CHAT, RESPONSES]
    }

    fn options(&self) -> &'static [OptionField] {
        &aws::OPTIONS
    }

    fn resolve_base_url(&self, _operation: Operation, options: &Options) -> Result<Option<String>, String> {
        Ok(Some(format!("https://bedrock-mantle.{}.api.aws/v1", region_from_options(options)?)))
    }

    fn provider_format(&self, operation: Operation, _model: &str) -> Option<&'static dyn ProviderFormat> {
        needs_openai_translation(self.native_operations(), operation).then_some(&openai_chat::COMPATIBLE)
    }

    fn signing_keys<'o>(&self, options: &'o Options) -> Result<Option<SigningKeys<'o>>, String> {
        aws::signature_from_options(MANTLE_SERVICE, options)
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        aws::grant_from_options(MANTLE_SERVICE, options)
    }
}

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

/// `SageMaker` endpoints run arbitrary models, so bodies are forwarded unchanged.
impl Provider for SageMaker {
    fn slug(&self) -> &'static str {
        "sagemaker"
    }

    fn base_url(&self) -> &'static str {
        ""
    }

    fn native_operations(&self) -> &'static [OperationGroup] {
        &[]
    }

    fn options(&self) -> &'static [OptionField] {
        &SAGEMAKER_OPTIONS
    }

    fn resolve_base_url(&self, _operation: Operation, options: &Options) -> Result<Option<String>, String> {
        Ok(Some(format!("https://runtime.sagemaker.{}.amazonaws.com", region_from_options(options)?)))
    }

    fn provider_format(&self, _operation: Operation, _model: &str) -> Option<&'static dyn ProviderFormat> {
        None
    }

    fn signing_keys<'o>(&self, options: &'o Options) -> Result<Option<SigningKeys<'o>>, String> {
        aws::signature_from_options(SAGEMAKER_SERVICE, options)
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        aws::grant_from_options(SAGEMAKER_SERVICE, options)
    }

    fn model_from_options<'o>(&self, options: &'o Options) -> Option<&'o str> {
        options.get("amzn_sagemaker_model_name")
    }
}
