//! Anthropic Messages format, for Anthropic itself and for hosts of its models.

mod request;
pub(crate) mod response;
pub(crate) mod thinking;

pub use crate::chat::providers::anthropic_messages::response::compact_json;
pub(crate) use request::{MAX_USER_ID_CHARS, is_native_tool, max_output_tokens, native_tool, trim_prefill};

use serde_json::Value;

use crate::{
    chat::{event::EventSink, request::ChatRequest},
    errors::{MalformedResponse, RequestError},
    model_list::ListedModel,
    operation::Operation,
    provider_format::{
        ChatFormat, ModelListFormat, PassThroughBody, PassThroughFormat, ProviderFormat, StreamDecoder,
        TokenCountFormat,
    },
    reports::DroppedParams,
    timestamp,
    translation_input::TranslationInput,
};

pub struct MessagesFormat {
    /// Default API version. Set only for a host, which expects the version in the body and the model in the path.
    hosted_api_version: Option<&'static str>,
}

pub static ANTHROPIC: ProviderFormat = MessagesFormat::provider_format(&MessagesFormat { hosted_api_version: None });
pub static VERTEX: ProviderFormat =
    MessagesFormat::provider_format(&MessagesFormat { hosted_api_version: Some("vertex-2023-10-16") });

impl MessagesFormat {
    const fn provider_format(format: &'static Self) -> ProviderFormat {
        ProviderFormat {
            chat: Some(format),
            token_count: Some(&MessagesTokenCount),
            model_list: Some(&AnthropicModelList),
            pass_through: Some(&AnthropicModelList),
            ..ProviderFormat::NONE
        }
    }
}

impl ChatFormat for MessagesFormat {
    fn write_request(&self, chat_request: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        thinking::reject_forced_tool_choice(chat_request)?;
        let response = thinking::prefill_index(chat_request);
        let mut body = request::write_body(chat_request)?;
        thinking::reject_prefill(response, &body)?;
        let requested_version =
            chat_request.fields.get("anthropic_version").and_then(Value::as_str).map(ToOwned::to_owned);
        // A host's version is a date with the host's name as prefix.
        let host = if self.hosted_api_version.is_some() { "vertex-" } else { "" };
        let is_date = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        let api_version = requested_version
            .filter(|version| version.strip_prefix(host).is_some_and(|date| !date.is_empty() && is_date(date)));
        if api_version.is_some() {
            chat_request.fields.shift_remove("anthropic_version");
        }
        match self.hosted_api_version {
            Some(usual) => {
                body.shift_remove("model");
                body.insert("anthropic_version".into(), api_version.map_or_else(|| usual.into(), Value::from));
            }
            None => chat_request.api_version = api_version,
        }
        Ok(Value::Object(body).to_string().into_bytes())
    }

    fn read_response(&self, body: &[u8], sink: &mut dyn EventSink) -> Result<(), MalformedResponse> {
        response::decode_message(body, sink)
    }

    fn stream_decoder(&self) -> Box<dyn StreamDecoder> {
        Box::new(response::MessageStreamDecoder::default())
    }
}

/// Token count endpoint of Anthropic's API.
pub struct MessagesTokenCount;

impl TokenCountFormat for MessagesTokenCount {
    /// Writes only the fields that count as input, because the endpoint rejects those that control the output.
    fn write_count_request(&self, chat_request: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        const COUNTED_FIELDS: [&str; 6] = ["model", "messages", "system", "tools", "tool_choice", "thinking"];
        let mut body = request::write_body(chat_request)?;
        body.retain(|key, _| COUNTED_FIELDS.contains(&key.as_str()));
        Ok(Value::Object(body).to_string().into_bytes())
    }

    fn read_token_count(&self, response: &Value) -> Option<u64> {
        response["input_tokens"].as_u64()
    }
}

/// Model list of Anthropic's API.
struct AnthropicModelList;

impl ModelListFormat for AnthropicModelList {
    fn read_model_list(&self, response: &Value) -> Option<Vec<ListedModel>> {
        let entry = |item: &Value| {
            let created = item["created_at"].as_str().and_then(timestamp::parse_rfc3339).unwrap_or_default();
            Some(ListedModel { id: item["id"].as_str()?.to_owned(), created, owner: String::new() })
        };
        Some(response["data"].as_array()?.iter().filter_map(entry).collect())
    }
}

impl PassThroughFormat for AnthropicModelList {
    /// Passes a model list request through unchanged if the client uses Anthropic's API.
    fn pass_through_request(&self, input: &TranslationInput<'_>) -> Option<PassThroughBody> {
        (input.operation == Operation::Models && input.hints.is_anthropic_client)
            .then(|| Ok((Vec::new(), DroppedParams::default())))
    }
}
