//! Others' APIs at Amazon: Anthropic's, `OpenAI`'s, and `SageMaker`'s endpoints; signed, or with a key.

use super::{
    Asked, CHAT, Credential, FILES, Grant, Group, Known, MESSAGES, Options, Provider, RESPONSES, Signature, anthropic,
    aws::{self, region},
    by_openai,
    options::{joined, known},
};
use crate::{
    api_format::ApiFormat,
    chat::providers::{Wire, anthropic_messages, openai_chat},
    operation::Operation,
};

pub(crate) struct ClaudePlatform;
pub(crate) struct Mantle;
pub(crate) struct SageMaker;

/// What requests are signed for, as Amazon calls each.
const CLAUDE: &str = "aws-external-anthropic";
const MANTLE: &str = "bedrock-mantle";
const SAGEMAKER: &str = "sagemaker";

const CLAUDE_OPTIONS: [Known; 12] = joined(
    aws::OPTIONS,
    [
        Known {
            key: "anthropic_aws_workspace_id",
            header: "anthropic-aws-workspace-id",
            sent_as: Some("anthropic-workspace-id"),
        },
        Known { key: "anthropic_version", header: "anthropic-version", sent_as: Some("anthropic-version") },
        Known { key: "anthropic_beta", header: "anthropic-beta", sent_as: Some("anthropic-beta") },
    ],
);

impl Provider for ClaudePlatform {
    fn slug(&self) -> &'static str {
        "claude-platform-aws"
    }

    fn base_url(&self) -> &'static str {
        ""
    }

    fn offers(&self) -> &'static [Group] {
        &[MESSAGES, FILES]
    }

    fn options(&self) -> &'static [Known] {
        &CLAUDE_OPTIONS
    }

    fn base(&self, _operation: Operation, options: &Options) -> Result<Option<String>, String> {
        Ok(Some(format!("https://aws-external-anthropic.{}.api.aws/v1", region(options)?)))
    }

    fn path(&self, operation: Operation) -> Option<&'static str> {
        self.wire(operation, "").map(|_| anthropic::path(operation))
    }

    fn write_target(&self, asked: &Asked<'_>, _options: &Options, out: &mut Vec<u8>) -> Result<(), String> {
        anthropic::write_all(self, asked, out);
        Ok(())
    }

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        anthropic::is_translated(operation).then_some(&anthropic_messages::ANTHROPIC)
    }

    fn credential(&self, _key: &str, _prefix: &str) -> Credential {
        Credential::Header("x-api-key")
    }

    fn signature<'o>(&self, options: &'o Options) -> Result<Option<Signature<'o>>, String> {
        aws::signature(CLAUDE, options)
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        aws::grant(CLAUDE, options)
    }

    fn required_header(&self, _prefix: &str) -> Option<(&'static str, &'static str)> {
        Some(("anthropic-version", "2023-06-01"))
    }

    fn dialect(&self) -> ApiFormat {
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

    fn offers(&self) -> &'static [Group] {
        &[CHAT, RESPONSES]
    }

    fn options(&self) -> &'static [Known] {
        &aws::OPTIONS
    }

    fn base(&self, _operation: Operation, options: &Options) -> Result<Option<String>, String> {
        Ok(Some(format!("https://bedrock-mantle.{}.api.aws/v1", region(options)?)))
    }

    fn wire(&self, operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        by_openai(self.offers(), operation).then_some(&openai_chat::COMPATIBLE)
    }

    fn signature<'o>(&self, options: &'o Options) -> Result<Option<Signature<'o>>, String> {
        aws::signature(MANTLE, options)
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        aws::grant(MANTLE, options)
    }
}

const fn told(key: &'static str, header: &'static str, sent_as: &'static str) -> Known {
    Known { key, header, sent_as: Some(sent_as) }
}

const SAGEMAKER_OPTIONS: [Known; 18] = joined(
    aws::OPTIONS,
    [
        told(
            "amzn_sagemaker_custom_attributes",
            "amzn-sagemaker-custom-attributes",
            "x-amzn-sagemaker-custom-attributes",
        ),
        told("amzn_sagemaker_target_model", "amzn-sagemaker-target-model", "x-amzn-sagemaker-target-model"),
        told("amzn_sagemaker_target_variant", "amzn-sagemaker-target-variant", "x-amzn-sagemaker-target-variant"),
        told(
            "amzn_sagemaker_target_container_hostname",
            "amzn-sagemaker-target-container-hostname",
            "x-amzn-sagemaker-target-container-hostname",
        ),
        told("amzn_sagemaker_inference_id", "amzn-sagemaker-inference-id", "x-amzn-sagemaker-inference-id"),
        told(
            "amzn_sagemaker_enable_explanations",
            "amzn-sagemaker-enable-explanations",
            "x-amzn-sagemaker-enable-explanations",
        ),
        told(
            "amzn_sagemaker_inference_component",
            "amzn-sagemaker-inference-component",
            "x-amzn-sagemaker-inference-component",
        ),
        told("amzn_sagemaker_session_id", "amzn-sagemaker-session-id", "x-amzn-sagemaker-session-id"),
        known("amzn_sagemaker_model_name", "amzn-sagemaker-model-name"),
    ],
);

/// Bodies are those of whatever runs there: they pass as they are.
impl Provider for SageMaker {
    fn slug(&self) -> &'static str {
        "sagemaker"
    }

    fn base_url(&self) -> &'static str {
        ""
    }

    fn offers(&self) -> &'static [Group] {
        &[]
    }

    fn options(&self) -> &'static [Known] {
        &SAGEMAKER_OPTIONS
    }

    fn base(&self, _operation: Operation, options: &Options) -> Result<Option<String>, String> {
        Ok(Some(format!("https://runtime.sagemaker.{}.amazonaws.com", region(options)?)))
    }

    fn wire(&self, _operation: Operation, _model: &str) -> Option<&'static dyn Wire> {
        None
    }

    fn signature<'o>(&self, options: &'o Options) -> Result<Option<Signature<'o>>, String> {
        aws::signature(SAGEMAKER, options)
    }

    fn grant(&self, options: &Options) -> Result<Option<Grant>, String> {
        aws::grant(SAGEMAKER, options)
    }

    fn model<'o>(&self, options: &'o Options) -> Option<&'o str> {
        options.get("amzn_sagemaker_model_name")
    }
}
