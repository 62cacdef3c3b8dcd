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
        event::Taker,
        request::{Asked, Refusal},
    },
    model_list::{self, Listed},
};

pub struct Converse;

/// What is looked at where tokens are counted.
const COUNTED: [&str; 4] = ["messages", "system", "toolConfig", "additionalModelRequestFields"];

impl Wire for Converse {
    fn write(&self, asked: &mut Asked) -> Result<Vec<u8>, Refusal> {
        thinking::refuse(asked)?;
        let answer = thinking::last_answer(asked);
        let body = request::write(asked)?;
        thinking::refuse_beginning(answer, &body)?;
        Ok(serde_json::Value::Object(body).to_string().into_bytes())
    }

    fn says_betas(&self, model: &str) -> bool {
        model.contains("anthropic")
    }

    fn read(&self, answer: &[u8], taker: &mut dyn Taker) -> Result<(), Broken> {
        response::read(answer, taker)
    }

    fn listener(&self) -> Box<dyn Listener> {
        Box::new(response::Hearing::default())
    }

    fn count(&self, asked: &mut Asked) -> Result<Vec<u8>, Refusal> {
        let mut said = request::write(asked)?;
        said.retain(|key, _| COUNTED.contains(&key.as_str()));
        Ok(json!({"input": {"converse": said}}).to_string().into_bytes())
    }

    fn counted(&self, answer: &Value) -> Option<u64> {
        answer["inputTokens"].as_u64()
    }

    fn listed(&self, answer: &Value) -> Option<Vec<Listed>> {
        model_list::found(answer, "/modelSummaries", "modelId", "")
    }

    /// `{message}`, and nothing else.
    fn error(&self, answer: &[u8]) -> Found {
        openai_chat::error(answer)
    }

    fn frames(&self) -> Frames {
        Frames::AwsEventStream
    }
}
