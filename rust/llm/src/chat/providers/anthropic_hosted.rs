//! Anthropic Messages as Bedrock and Vertex AI host them. Passes the client's body through with small edits, because
//! these hosts expect some fields elsewhere.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    api_format::ScanError,
    chat::{foreign_history, providers::anthropic_messages, request::ChatRequest},
    errors::{MalformedResponse, RequestError},
    json::edit::{self, FieldPath, json_field},
    operation::Operation,
    provider_format::{EventFraming, PassThroughBody, PassThroughFormat, ProviderFormat, TokenCountFormat},
    translation_input::TranslationInput,
};

/// Format of a cloud host that serves Claude models.
pub struct HostedMessagesFormat {
    api_version: &'static str,
    /// Body fields that the host rejects.
    rejected_fields: &'static [&'static str],
    framing: EventFraming,
}

/// Format of Vertex AI. It accepts the same body fields as Anthropic, and beta names in Anthropic's header.
pub static VERTEX: ProviderFormat = HostedMessagesFormat::provider_format(&HostedMessagesFormat {
    api_version: "vertex-2023-10-16",
    rejected_fields: &["model"],
    framing: EventFraming::ServerSentEvents,
});
/// Format of Bedrock. It selects streaming by the path and expects beta names in the body.
pub static BEDROCK: ProviderFormat = HostedMessagesFormat::provider_format(&HostedMessagesFormat {
    api_version: "bedrock-2023-05-31",
    rejected_fields: &["model", "stream"],
    framing: EventFraming::AwsEventStream,
});

/// Value of the required `max_tokens` in a count request, which generates nothing.
const PLACEHOLDER_MAX_TOKENS: u64 = 10;

impl HostedMessagesFormat {
    const fn provider_format(format: &'static Self) -> ProviderFormat {
        ProviderFormat {
            token_count: Some(&VendorPrefixTokenCount),
            pass_through: Some(format),
            event_framing: format.framing,
            ..ProviderFormat::NONE
        }
    }

    fn is_bedrock(&self) -> bool {
        self.framing == EventFraming::AwsEventStream
    }

    fn rewrite_body(&self, input: &TranslationInput<'_>, client_body: &[u8]) -> Result<Vec<u8>, RequestError> {
        let paths: Vec<FieldPath> =
            self.rejected_fields.iter().filter_map(|name| FieldPath::parse(name).ok()).collect();
        let body = edit::remove_paths(client_body, &paths).map_err(invalid_body)?;
        let version = input.hints.anthropic_version.unwrap_or(self.api_version);
        let mut missing = vec![json_field("anthropic_version", &version.into())];
        if let Some(betas) = input.hints.anthropic_betas.filter(|_| self.is_bedrock()) {
            let betas: Vec<Value> = betas.split(',').map(|name| name.trim().into()).collect();
            missing.push(json_field("anthropic_beta", &betas.into()));
        }
        edit::set_fields(body.as_deref().unwrap_or(client_body), &missing, &[]).map_err(invalid_body)
    }

    /// Writes the body of a token count request. Bedrock expects the complete invoke body, encoded as base64.
    fn write_count_body(&self, input: &TranslationInput<'_>, client_body: &[u8]) -> Result<Vec<u8>, RequestError> {
        if !self.is_bedrock() {
            // This endpoint expects the model in the body, without the vendor prefix.
            let model = input.model.trim_start_matches("anthropic.");
            return edit::set_fields(client_body, &[], &[json_field("model", &model.into())]).map_err(invalid_body);
        }
        let body = self.rewrite_body(input, client_body)?;
        let body = edit::set_fields(&body, &[json_field("max_tokens", &PLACEHOLDER_MAX_TOKENS.into())], &[])
            .map_err(invalid_body)?;
        Ok(json!({"input": {"invokeModel": {"body": STANDARD.encode(body)}}}).to_string().into_bytes())
    }
}

fn invalid_body(error: ScanError) -> RequestError {
    RequestError::new("$", error.message)
}

impl PassThroughFormat for HostedMessagesFormat {
    fn pass_through_request(&self, input: &TranslationInput<'_>) -> Option<PassThroughBody> {
        if !matches!(input.operation, Operation::Messages | Operation::MessagesCountTokens) {
            return None;
        }
        let model = input.hints.effective_model.unwrap_or(input.model);
        let stripped = foreign_history::adapt_history(input.body, model);
        let client_body = stripped.as_ref().map_or(input.body, |(body, _)| body);
        let body = match input.operation {
            Operation::Messages => self.rewrite_body(input, client_body),
            _ => self.write_count_body(input, client_body),
        };
        Some(body.map(|body| (body, stripped.map(|(_, dropped)| dropped).unwrap_or_default())))
    }

    fn pass_through_response(&self, operation: Operation, response: &[u8]) -> Result<Vec<u8>, MalformedResponse> {
        if operation != Operation::MessagesCountTokens || !self.is_bedrock() {
            return Ok(response.to_vec());
        }
        let response: Value = serde_json::from_slice(response)?;
        let count =
            response["inputTokens"].as_u64().ok_or_else(|| MalformedResponse("it has no inputTokens".into()))?;
        Ok(json!({"input_tokens": count}).to_string().into_bytes())
    }
}

/// Token counts for clients that do not use Anthropic's API format.
struct VendorPrefixTokenCount;

impl TokenCountFormat for VendorPrefixTokenCount {
    /// The host expects the model in the body, without the vendor prefix.
    fn write_count_request(&self, request: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        request.model = request.model.trim_start_matches("anthropic.").to_owned();
        anthropic_messages::MessagesTokenCount.write_count_request(request)
    }

    fn read_token_count(&self, response: &Value) -> Option<u64> {
        anthropic_messages::MessagesTokenCount.read_token_count(response)
    }
}
