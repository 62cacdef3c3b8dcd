//! Anthropic Messages format, for Anthropic itself and for hosts of its models.

mod request;
pub(crate) mod response;
pub(crate) mod thinking;

pub use crate::chat::providers::anthropic_messages::response::compact_json;
pub(crate) use request::{max_output_tokens, native_tool, trim_prefill};

use serde_json::Value;

use super::{ErrorDetails, MalformedResponse, ProviderFormat, StreamDecoder};
use crate::chat::providers::openai_chat;
use crate::{
    chat::{
        event::EventSink,
        request::{ChatRequest, RequestError},
    },
    model_list::ListedModel,
    operation::Operation,
    timestamp,
    translation::TranslationInput,
};

pub struct MessagesFormat {
    /// Default API version. Set only for a host, which expects the version in the body and the model in the path.
    hosted_api_version: Option<&'static str>,
}

pub static ANTHROPIC: MessagesFormat = MessagesFormat { hosted_api_version: None };
pub static VERTEX: MessagesFormat = MessagesFormat { hosted_api_version: Some("vertex-2023-10-16") };

impl ProviderFormat for MessagesFormat {
    fn write_request(&self, asked: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        thinking::reject_forced_tool_choice(asked)?;
        let answer = thinking::prefill_index(asked);
        let mut body = request::write_body(asked)?;
        thinking::reject_prefill(answer, &body)?;
        let said = asked.fields.get("anthropic_version").and_then(Value::as_str).map(ToOwned::to_owned);
        // A host's version is a date with the host's name as prefix.
        let host = if self.hosted_api_version.is_some() { "vertex-" } else { "" };
        let is_date = |text: &str| text.bytes().all(|one| one.is_ascii_digit() || one == b'-');
        let said = said.filter(|said| said.strip_prefix(host).is_some_and(|date| !date.is_empty() && is_date(date)));
        if said.is_some() {
            asked.fields.shift_remove("anthropic_version");
        }
        match self.hosted_api_version {
            Some(usual) => {
                body.shift_remove("model");
                body.insert("anthropic_version".into(), said.map_or_else(|| usual.into(), Value::from));
            }
            None => asked.api_version = said,
        }
        Ok(Value::Object(body).to_string().into_bytes())
    }

    fn read_response(&self, answer: &[u8], taker: &mut dyn EventSink) -> Result<(), MalformedResponse> {
        response::decode_message(answer, taker)
    }

    fn stream_decoder(&self) -> Box<dyn StreamDecoder> {
        Box::new(response::MessageStreamDecoder::default())
    }

    /// Writes only the fields that count as input, because the endpoint rejects those that control the output.
    fn write_count_request(&self, asked: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        const COUNTED_FIELDS: [&str; 6] = ["model", "messages", "system", "tools", "tool_choice", "thinking"];
        let mut body = request::write_body(asked)?;
        body.retain(|key, _| COUNTED_FIELDS.contains(&key.as_str()));
        Ok(Value::Object(body).to_string().into_bytes())
    }

    /// Passes a model list request through unchanged if the client uses Anthropic's API.
    fn pass_through_request(&self, question: &TranslationInput<'_>) -> Option<Result<Vec<u8>, RequestError>> {
        (question.operation == Operation::Models && question.hints.is_anthropic_client).then(|| Ok(Vec::new()))
    }

    fn read_model_list(&self, answer: &Value) -> Option<Vec<ListedModel>> {
        let one = |item: &Value| {
            let created = item["created_at"].as_str().and_then(timestamp::parse_rfc3339).unwrap_or_default();
            Some(ListedModel { id: item["id"].as_str()?.to_owned(), created, owner: String::new() })
        };
        Some(answer["data"].as_array()?.iter().filter_map(one).collect())
    }

    fn read_token_count(&self, answer: &Value) -> Option<u64> {
        answer["input_tokens"].as_u64()
    }

    fn parse_error(&self, answer: &[u8]) -> ErrorDetails {
        openai_chat::parse_error(answer)
    }
}
