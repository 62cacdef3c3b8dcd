//! Anthropic Messages as Bedrock and Vertex AI host them. Passes the client's body through with small edits, because
//! these hosts expect some fields elsewhere.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{ErrorDetails, EventFraming, MalformedResponse, ProviderFormat, StreamDecoder};
use crate::chat::providers::{anthropic_messages, openai_chat};
use crate::{
    chat::{
        event::EventSink,
        request::{ChatRequest, RequestError},
    },
    json::edit::{self, FieldPath, json_field},
    operation::Operation,
    translation::TranslationInput,
};

/// Format of a cloud host that serves Claude models.
pub struct HostedMessagesFormat {
    api_version: &'static str,
    /// Body fields that the host rejects.
    rejected_fields: &'static [&'static str],
    framing: EventFraming,
}

/// Vertex AI accepts the same body fields as Anthropic, and beta names in Anthropic's header.
pub static VERTEX: HostedMessagesFormat = HostedMessagesFormat {
    api_version: "vertex-2023-10-16",
    rejected_fields: &["model"],
    framing: EventFraming::ServerSentEvents,
};
/// Bedrock selects streaming by the path and expects beta names in the body.
pub static BEDROCK: HostedMessagesFormat = HostedMessagesFormat {
    api_version: "bedrock-2023-05-31",
    rejected_fields: &["model", "stream"],
    framing: EventFraming::AwsEventStream,
};

/// Value of the required `max_tokens` in a count request, which generates nothing.
const PLACEHOLDER_MAX_TOKENS: u64 = 10;

impl HostedMessagesFormat {
    fn is_bedrock(&self) -> bool {
        self.framing == EventFraming::AwsEventStream
    }

    fn rewrite_body(&self, question: &TranslationInput<'_>) -> Result<Vec<u8>, RequestError> {
        let wrong = |error: crate::api_format::ScanError| RequestError::new("$", error.message);
        let paths: Vec<FieldPath> =
            self.rejected_fields.iter().filter_map(|name| FieldPath::parse(name).ok()).collect();
        let body = edit::remove_paths(question.body, &paths).map_err(wrong)?;
        let version = question.hints.anthropic_version.unwrap_or(self.api_version);
        let mut missing = vec![json_field("anthropic_version", &version.into())];
        if let Some(betas) = question.hints.anthropic_betas.filter(|_| self.is_bedrock()) {
            let betas: Vec<Value> = betas.split(',').map(|one| one.trim().into()).collect();
            missing.push(json_field("anthropic_beta", &betas.into()));
        }
        edit::set_fields(body.as_deref().unwrap_or(question.body), &missing, &[]).map_err(wrong)
    }

    /// Writes the body of a token count request. Bedrock expects the complete invoke body, encoded as base64.
    fn write_count_body(&self, question: &TranslationInput<'_>) -> Result<Vec<u8>, RequestError> {
        let wrong = |error: crate::api_format::ScanError| RequestError::new("$", error.message);
        if !self.is_bedrock() {
            // This endpoint expects the model in the body, without the vendor prefix.
            let model = question.model.trim_start_matches("anthropic.");
            return edit::set_fields(question.body, &[], &[json_field("model", &model.into())]).map_err(wrong);
        }
        let body = self.rewrite_body(question)?;
        let body =
            edit::set_fields(&body, &[json_field("max_tokens", &PLACEHOLDER_MAX_TOKENS.into())], &[]).map_err(wrong)?;
        Ok(json!({"input": {"invokeModel": {"body": STANDARD.encode(body)}}}).to_string().into_bytes())
    }
}

impl ProviderFormat for HostedMessagesFormat {
    fn pass_through_request(&self, question: &TranslationInput<'_>) -> Option<Result<Vec<u8>, RequestError>> {
        match question.operation {
            Operation::Messages => Some(self.rewrite_body(question)),
            Operation::MessagesCountTokens => Some(self.write_count_body(question)),
            _ => None,
        }
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

    fn write_request(&self, request: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        anthropic_messages::VERTEX.write_request(request)
    }

    fn read_response(&self, response: &[u8], sink: &mut dyn EventSink) -> Result<(), MalformedResponse> {
        anthropic_messages::VERTEX.read_response(response, sink)
    }

    /// Used for other client formats. Here too, the model is in the body and without the vendor prefix.
    fn write_count_request(&self, request: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        request.model = request.model.trim_start_matches("anthropic.").to_owned();
        anthropic_messages::ANTHROPIC.write_count_request(request)
    }

    fn read_token_count(&self, response: &Value) -> Option<u64> {
        anthropic_messages::ANTHROPIC.read_token_count(response)
    }

    fn stream_decoder(&self) -> Box<dyn StreamDecoder> {
        anthropic_messages::VERTEX.stream_decoder()
    }

    fn parse_error(&self, response: &[u8]) -> ErrorDetails {
        openai_chat::parse_error(response)
    }

    fn event_framing(&self) -> EventFraming {
        self.framing
    }
}
