//! Google's Gemini API, as AI Studio and Vertex AI serve it.

mod grounding;
mod logprobs;
mod request;
pub(crate) mod response;
mod schema;
mod thinking;

use serde_json::{Value, json};

use crate::{
    chat::{event::EventSink, request::ChatRequest},
    embeddings::request::{EmbeddingRequest, EmbeddingResponse},
    errors::{MalformedResponse, RequestError},
    model_list::{self, ListedModel},
    provider_format::{ChatFormat, EmbeddingFormat, ModelListFormat, ProviderFormat, StreamDecoder, TokenCountFormat},
};

pub struct GeminiFormat {
    /// True for Vertex AI, which differs from AI Studio: for example, function calls have no ids.
    is_vertex: bool,
}

pub static AI_STUDIO: ProviderFormat = GeminiFormat::provider_format(&GeminiFormat { is_vertex: false });
pub static VERTEX_AI: ProviderFormat = GeminiFormat::provider_format(&GeminiFormat { is_vertex: true });

impl GeminiFormat {
    const fn provider_format(format: &'static Self) -> ProviderFormat {
        ProviderFormat {
            chat: Some(format),
            embeddings: Some(format),
            token_count: Some(format),
            model_list: Some(format),
            ..ProviderFormat::NONE
        }
    }
}

impl ChatFormat for GeminiFormat {
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
}

impl EmbeddingFormat for GeminiFormat {
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
        let vectors = response["embeddings"].as_array()?.iter().map(|item| item["values"].clone()).collect();
        Some(EmbeddingResponse { vectors, ..EmbeddingResponse::default() })
    }
}

impl TokenCountFormat for GeminiFormat {
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
}

impl ModelListFormat for GeminiFormat {
    fn read_model_list(&self, response: &Value) -> Option<Vec<ListedModel>> {
        if self.is_vertex {
            return model_list::parse_models_at(response, "/publisherModels", "name", "publishers/google/models/");
        }
        model_list::parse_models_at(response, "/models", "name", "models/")
    }
}
