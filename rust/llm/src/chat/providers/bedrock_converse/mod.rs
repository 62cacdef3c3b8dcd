//! Amazon Bedrock's Converse: one shape for the models of all its vendors.

pub(crate) mod document_names;
mod request;
pub(crate) mod response;
pub(crate) mod vendor_fields;

use serde_json::{Value, json};

use super::{Broken, Found, Frames, Listener, Wire};
use crate::chat::providers::{anthropic_messages::thinking, openai_chat};
use crate::{
    chat::{
        event::EventSink,
        request::{ChatRequest, RequestError},
    },
    model_list::{self, ListedModel},
};

pub struct ConverseFormat;

/// What is looked at where tokens are counted.
const TOKEN_COUNT_FIELDS: [&str; 4] = ["messages", "system", "toolConfig", "additionalModelRequestFields"];

impl Wire for ConverseFormat {
    fn write(&self, asked: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        thinking::refuse(asked)?;
        let answer = thinking::last_answer(asked);
        let body = request::build_body(asked)?;
        thinking::refuse_beginning(answer, &body)?;
        Ok(serde_json::Value::Object(body).to_string().into_bytes())
    }

    fn says_betas(&self, model: &str) -> bool {
        model.contains("anthropic")
    }

    fn read(&self, answer: &[u8], taker: &mut dyn EventSink) -> Result<(), Broken> {
        response::decode_response(answer, taker)
    }

    fn listener(&self) -> Box<dyn Listener> {
        Box::new(response::ConverseDecoder::default())
    }

    fn count(&self, asked: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        let mut said = request::build_body(asked)?;
        said.retain(|key, _| TOKEN_COUNT_FIELDS.contains(&key.as_str()));
        Ok(json!({"input": {"converse": said}}).to_string().into_bytes())
    }

    fn counted(&self, answer: &Value) -> Option<u64> {
        answer["inputTokens"].as_u64()
    }

    fn listed(&self, answer: &Value) -> Option<Vec<ListedModel>> {
        model_list::parse_models_at(answer, "/modelSummaries", "modelId", "")
    }

    /// `{message}`, and nothing else.
    fn error(&self, answer: &[u8]) -> Found {
        openai_chat::parse_error(answer)
    }

    fn frames(&self) -> Frames {
        Frames::AwsEventStream
    }
}
