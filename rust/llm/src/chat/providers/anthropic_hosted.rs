//! Anthropic's messages where somebody else hosts the models: the caller's own bytes, but for what stands in the path there.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{Broken, Found, Frames, Listener, Wire};
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

/// A host of Claude.
pub struct Hosted {
    version: &'static str,
    /// Fields that the host refuses.
    refused: &'static [&'static str],
    frames: Frames,
}

/// Google takes the same fields as Anthropic, betas in their header.
pub static VERTEX: Hosted = Hosted { version: "vertex-2023-10-16", refused: &["model"], frames: Frames::Events };
/// Amazon is told by the path whether to stream, and of betas in the body.
pub static BEDROCK: Hosted =
    Hosted { version: "bedrock-2023-05-31", refused: &["model", "stream"], frames: Frames::AwsEventStream };

/// As many tokens as must be said where nothing is to be said.
const FEW: u64 = 10;

impl Hosted {
    fn is_bedrock(&self) -> bool {
        self.frames == Frames::AwsEventStream
    }

    fn changed(&self, question: &TranslationInput<'_>) -> Result<Vec<u8>, RequestError> {
        let wrong = |error: crate::api_format::ScanError| RequestError::new("$", error.message);
        let paths: Vec<FieldPath> = self.refused.iter().filter_map(|name| FieldPath::parse(name).ok()).collect();
        let body = edit::remove_paths(question.body, &paths).map_err(wrong)?;
        let version = question.hints.anthropic_version.unwrap_or(self.version);
        let mut missing = vec![json_field("anthropic_version", &version.into())];
        if let Some(betas) = question.hints.anthropic_betas.filter(|_| self.is_bedrock()) {
            let betas: Vec<Value> = betas.split(',').map(|one| one.trim().into()).collect();
            missing.push(json_field("anthropic_beta", &betas.into()));
        }
        edit::set_fields(body.as_deref().unwrap_or(question.body), &missing, &[]).map_err(wrong)
    }

    /// Only what would be asked is said, and that in full.
    fn counted(&self, question: &TranslationInput<'_>) -> Result<Vec<u8>, RequestError> {
        let wrong = |error: crate::api_format::ScanError| RequestError::new("$", error.message);
        if !self.is_bedrock() {
            // The model stands in the body here, without who made it.
            let model = question.model.trim_start_matches("anthropic.");
            return edit::set_fields(question.body, &[], &[json_field("model", &model.into())]).map_err(wrong);
        }
        let body = self.changed(question)?;
        let body = edit::set_fields(&body, &[json_field("max_tokens", &FEW.into())], &[]).map_err(wrong)?;
        Ok(json!({"input": {"invokeModel": {"body": STANDARD.encode(body)}}}).to_string().into_bytes())
    }
}

impl Wire for Hosted {
    fn carry(&self, question: &TranslationInput<'_>) -> Option<Result<Vec<u8>, RequestError>> {
        match question.operation {
            Operation::Messages => Some(self.changed(question)),
            Operation::MessagesCountTokens => Some(self.counted(question)),
            _ => None,
        }
    }

    fn carried(&self, operation: Operation, answer: &[u8]) -> Result<Vec<u8>, Broken> {
        if operation != Operation::MessagesCountTokens || !self.is_bedrock() {
            return Ok(answer.to_vec());
        }
        let answer: Value = serde_json::from_slice(answer)?;
        let count = answer["inputTokens"].as_u64().ok_or_else(|| Broken("it has no inputTokens".into()))?;
        Ok(json!({"input_tokens": count}).to_string().into_bytes())
    }

    fn write(&self, asked: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        anthropic_messages::VERTEX.write(asked)
    }

    fn read(&self, answer: &[u8], taker: &mut dyn EventSink) -> Result<(), Broken> {
        anthropic_messages::VERTEX.read(answer, taker)
    }

    /// For who asks in another dialect: the model stands in the body here too, without who made it.
    fn count(&self, asked: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        asked.model = asked.model.trim_start_matches("anthropic.").to_owned();
        anthropic_messages::ANTHROPIC.count(asked)
    }

    fn counted(&self, answer: &Value) -> Option<u64> {
        anthropic_messages::ANTHROPIC.counted(answer)
    }

    fn listener(&self) -> Box<dyn Listener> {
        anthropic_messages::VERTEX.listener()
    }

    fn error(&self, answer: &[u8]) -> Found {
        openai_chat::parse_error(answer)
    }

    fn frames(&self) -> Frames {
        self.frames
    }
}
