//! Google's Gemini API, as AI Studio and Vertex AI serve it.

mod grounding;
mod logprobs;
mod request;
pub(crate) mod response;
mod schema;
mod thinking;

use serde_json::{Value, json};

use super::{ErrorDetails, MalformedResponse, ProviderFormat, StreamDecoder};
use crate::chat::providers::openai_chat;
use crate::{
    chat::{
        event::EventSink,
        request::{ChatRequest, RequestError},
    },
    embeddings::request::{EmbeddingRequest, EmbeddingResponse},
    model_list::{self, ListedModel},
};

pub struct GeminiFormat {
    /// True for Vertex AI, which differs from AI Studio: for example, function calls have no ids.
    is_vertex: bool,
}

pub static AI_STUDIO: GeminiFormat = GeminiFormat { is_vertex: false };
pub static VERTEX_AI: GeminiFormat = GeminiFormat { is_vertex: true };

impl ProviderFormat for GeminiFormat {
    fn write_request(&self, chat_request: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        Ok(serde_json::Value::Object(request::write_body(chat_request, !self.is_vertex)?).to_string().into_bytes())
    }

    fn read_response(&self, body: &[u8], sink: &mut dyn EventSink) -> Result<(), MalformedResponse> {
        response::decode_response(body, sink)
    }

    fn signs_tool_calls(&self, model: &str) -> bool {
        thinking::requires_signatures(model)
    }

    fn stream_decoder(&self) -> Box<dyn StreamDecoder> {
        Box::new(response::GeminiDecoder::default())
    }

    fn write_embedding_request(&self, texts: &mut EmbeddingRequest) -> Result<Vec<u8>, RequestError> {
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
        let requests: Vec<_> = texts.texts.iter().map(request).collect();
        Ok(json!({"requests": requests}).to_string().into_bytes())
    }

    /// The response reports no token count.
    fn read_embeddings(&self, response: &Value) -> Option<EmbeddingResponse> {
        let vectors = response["embeddings"].as_array()?.iter().map(|one| one["values"].clone()).collect();
        Some(EmbeddingResponse { vectors, ..EmbeddingResponse::default() })
    }

    fn write_count_request(&self, chat_request: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        let model = format!("models/{}", chat_request.model.trim_start_matches("models/"));
        let mut fields = request::write_body(chat_request, !self.is_vertex)?;
        let body = if self.is_vertex {
            fields.retain(|key, _| matches!(key.as_str(), "contents" | "systemInstruction" | "tools"));
            Value::Object(fields)
        } else {
            fields.insert("model".into(), model.into());
            json!({"generateContentRequest": fields})
        };
        Ok(body.to_string().into_bytes())
    }

    fn read_token_count(&self, response: &Value) -> Option<u64> {
        response["totalTokens"].as_u64()
    }

    fn read_model_list(&self, response: &Value) -> Option<Vec<ListedModel>> {
        if self.is_vertex {
            return model_list::parse_models_at(response, "/publisherModels", "name", "publishers/google/models/");
        }
        model_list::parse_models_at(response, "/models", "name", "models/")
    }

    /// The error body is `{error: {code, message, status}}`, with field names that the shared parser knows.
    fn parse_error(&self, response: &[u8]) -> ErrorDetails {
        openai_chat::parse_error(response)
    }
}
