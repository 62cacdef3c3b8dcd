//! Amazon Bedrock's Converse API: one format for the models of all its vendors.

pub(crate) mod document_names;
mod request;
pub(crate) mod response;
pub(crate) mod vendor_fields;

use serde_json::{Value, json};

use crate::{
    chat::{event::EventSink, providers::anthropic_messages::thinking, request::ChatRequest},
    errors::{MalformedResponse, RequestError},
    model_list::{self, ListedModel},
    provider_format::{ChatFormat, EventFraming, ModelListFormat, ProviderFormat, StreamDecoder, TokenCountFormat},
};

struct ConverseFormat;

pub static CONVERSE: ProviderFormat = ProviderFormat {
    chat: Some(&ConverseFormat),
    token_count: Some(&ConverseFormat),
    model_list: Some(&ConverseFormat),
    event_framing: EventFraming::AwsEventStream,
    ..ProviderFormat::NONE
};

/// Body fields that Bedrock's token count takes into account.
const TOKEN_COUNT_FIELDS: [&str; 4] = ["messages", "system", "toolConfig", "additionalModelRequestFields"];

impl ChatFormat for ConverseFormat {
    fn write_request(&self, chat_request: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        thinking::reject_forced_tool_choice(chat_request)?;
        let response = thinking::prefill_index(chat_request);
        let body = request::build_body(chat_request)?;
        thinking::reject_prefill(response, &body)?;
        Ok(serde_json::Value::Object(body).to_string().into_bytes())
    }

    fn has_betas_in_body(&self, model: &str) -> bool {
        model.contains("anthropic")
    }

    fn read_response(&self, body: &[u8], sink: &mut dyn EventSink) -> Result<(), MalformedResponse> {
        response::decode_response(body, sink)
    }

    fn stream_decoder(&self) -> Box<dyn StreamDecoder> {
        Box::new(response::ConverseDecoder::default())
    }
}

impl TokenCountFormat for ConverseFormat {
    fn write_count_request(&self, chat_request: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        let mut body = request::build_body(chat_request)?;
        body.retain(|key, _| TOKEN_COUNT_FIELDS.contains(&key.as_str()));
        Ok(json!({"input": {"converse": body}}).to_string().into_bytes())
    }

    fn read_token_count(&self, response: &Value) -> Option<u64> {
        response["inputTokens"].as_u64()
    }
}

impl ModelListFormat for ConverseFormat {
    fn read_model_list(&self, response: &Value) -> Option<Vec<ListedModel>> {
        model_list::parse_models_at(response, "/modelSummaries", "modelId", "")
    }
}
