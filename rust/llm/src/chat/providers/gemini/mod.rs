//! Google's Gemini, as AI Studio and Vertex AI take it.

mod grounding;
mod logprobs;
mod request;
pub(crate) mod response;
mod schema;
mod thinking;

use serde_json::{Value, json};

use super::{Broken, Found, Listener, Wire};
use crate::chat::providers::openai_chat;
use crate::{
    chat::{
        event::Taker,
        request::{Asked, Refusal},
    },
    embeddings::request::{Texts, Vectors},
    model_list::{self, Listed},
};

pub struct Gemini {
    /// As it is taken there, where some of it is otherwise: calls have no ids.
    at_vertex: bool,
}

pub static STUDIO: Gemini = Gemini { at_vertex: false };
pub static VERTEX: Gemini = Gemini { at_vertex: true };

impl Wire for Gemini {
    fn write(&self, asked: &mut Asked) -> Result<Vec<u8>, Refusal> {
        Ok(serde_json::Value::Object(request::write(asked, !self.at_vertex)?).to_string().into_bytes())
    }

    fn read(&self, answer: &[u8], taker: &mut dyn Taker) -> Result<(), Broken> {
        response::read(answer, taker)
    }

    fn signs(&self, model: &str) -> bool {
        thinking::wants_signatures(model)
    }

    fn listener(&self) -> Box<dyn Listener> {
        Box::new(response::Hearing::default())
    }

    fn embed(&self, texts: &mut Texts) -> Result<Vec<u8>, Refusal> {
        let model = format!("models/{}", texts.model.trim_start_matches("models/"));
        let task = texts.fields.shift_remove("task_type");
        let request = |text: &String| {
            let mut request = json!({"model": model, "content": {"parts": [{"text": text}]}});
            for (key, value) in [("taskType", &task), ("outputDimensionality", &texts.dimensions)] {
                if let Some(value) = value {
                    request[key] = value.clone();
                }
            }
            request
        };
        let requests: Vec<_> = texts.inputs.iter().map(request).collect();
        Ok(json!({"requests": requests}).to_string().into_bytes())
    }

    /// Nothing is said of tokens.
    fn embedded(&self, answer: &Value) -> Option<Vectors> {
        let vectors = answer["embeddings"].as_array()?.iter().map(|one| one["values"].clone()).collect();
        Some(Vectors { vectors, ..Vectors::default() })
    }

    fn count(&self, asked: &mut Asked) -> Result<Vec<u8>, Refusal> {
        let model = format!("models/{}", asked.model.trim_start_matches("models/"));
        let mut said = request::write(asked, !self.at_vertex)?;
        let body = if self.at_vertex {
            said.retain(|key, _| matches!(key.as_str(), "contents" | "systemInstruction" | "tools"));
            Value::Object(said)
        } else {
            said.insert("model".into(), model.into());
            json!({"generateContentRequest": said})
        };
        Ok(body.to_string().into_bytes())
    }

    fn counted(&self, answer: &Value) -> Option<u64> {
        answer["totalTokens"].as_u64()
    }

    fn listed(&self, answer: &Value) -> Option<Vec<Listed>> {
        if self.at_vertex {
            return model_list::found(answer, "/publisherModels", "name", "publishers/google/models/");
        }
        model_list::found(answer, "/models", "name", "models/")
    }

    /// `{error: {code, message, status}}`: the fields have the names that others use.
    fn error(&self, answer: &[u8]) -> Found {
        openai_chat::error(answer)
    }
}
