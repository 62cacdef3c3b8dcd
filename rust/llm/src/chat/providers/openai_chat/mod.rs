//! `OpenAI`'s chat completions format, as all compatible providers accept it.

mod citations;
pub(crate) mod reasoning_details;
pub(crate) mod request;
pub(crate) mod response;

pub use crate::chat::providers::openai_chat::response::parse_error;

use serde_json::{Value, json};

use super::{ErrorDetails, MalformedResponse, ProviderFormat, StreamDecoder};
use crate::{
    chat::{
        event::EventSink,
        request::{ChatRequest, RequestError},
    },
    embeddings::request::{EmbeddingRequest, EmbeddingResponse},
    model_list::{self, ListedModel},
};

pub struct ChatFormat {
    /// Name of the field that limits the response's tokens.
    max_tokens_field: &'static str,
    /// Maps the client's model name to the one in the body.
    map_model_name: fn(&str) -> String,
    /// Highest temperature that the provider accepts.
    max_temperature: i32,
    /// True if a stream reports usage only when `stream_options` requests it.
    should_request_usage: bool,
    reasoning_replay: ReasoningReplay,
    /// Additional parameters that this provider accepts.
    extra_params: &'static [&'static str],
}

/// Form in which earlier reasoning is sent back to the model with its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningReplay {
    Dropped,
    Text,
    /// As `OpenRouter`'s `reasoning_details`.
    Details,
}

/// `OpenAI`'s current format.
pub static OPENAI: ChatFormat = ChatFormat {
    max_tokens_field: "max_completion_tokens",
    map_model_name: str::to_owned,
    max_temperature: 2,
    should_request_usage: true,
    reasoning_replay: ReasoningReplay::Dropped,
    extra_params: &[],
};
/// Older `OpenAI` format with `max_tokens`, which most compatible providers implement.
pub static COMPATIBLE: ChatFormat = ChatFormat { max_tokens_field: "max_tokens", ..OPENAI };
/// Compatible format for providers that always report usage in streams.
pub static USAGE_ALWAYS_STREAMED: ChatFormat = ChatFormat { should_request_usage: false, ..COMPATIBLE };
/// Compatible format for providers that reject tool call messages without their reasoning.
pub static REPLAYS_REASONING: ChatFormat = ChatFormat { reasoning_replay: ReasoningReplay::Text, ..COMPATIBLE };
/// `OpenRouter`'s format, which replays signed and encrypted reasoning of all vendors.
pub static OPENROUTER: ChatFormat = ChatFormat { reasoning_replay: ReasoningReplay::Details, ..COMPATIBLE };
/// Third-party models on Vertex AI. `meta.llama` becomes `meta/llama`; other publishers are named in the path, so the
/// body holds the bare model name.
pub static VERTEX_PARTNER_MODELS: ChatFormat = ChatFormat { map_model_name: publisher_model_name, ..COMPATIBLE };
/// Predibase: a deployment with an adapter on top. The body names the adapter.
pub static LORA_ADAPTER: ChatFormat =
    ChatFormat { map_model_name: adapter_name, max_temperature: 1, extra_params: &["top_k", "best_of"], ..COMPATIBLE };

/// Returns the format for a model at a host with models of many vendors. The newest `OpenAI` models reject
/// `max_tokens`; other models accept nothing else.
pub fn format_for_model(model: &str) -> &'static ChatFormat {
    let name = model.rsplit('/').next().unwrap_or_default();
    let number =
        |rest: &str| rest.split(|one: char| !one.is_ascii_digit()).next().and_then(|digits| digits.parse().ok());
    let is_newest = match (name.strip_prefix("gpt-"), name.strip_prefix('o')) {
        (Some(rest), _) => number(rest).is_some_and(|version: u32| version >= 5),
        (None, Some(rest)) => number(rest).is_some(),
        (None, None) => false,
    };
    if is_newest { &OPENAI } else { &COMPATIBLE }
}

fn publisher_model_name(model: &str) -> String {
    match model.split_once('.') {
        Some(("meta", name)) => format!("meta/{name}"),
        Some(("mistralai" | "endpoints", name)) => name.to_owned(),
        _ => model.to_owned(),
    }
}

fn adapter_name(model: &str) -> String {
    model.split_once(':').map_or_else(String::new, |(_, adapter)| adapter.to_owned())
}

impl ProviderFormat for ChatFormat {
    fn write_request(&self, chat_request: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        chat_request.model = (self.map_model_name)(&chat_request.model);
        chat_request.clamp_param("temperature", &(0..=self.max_temperature));
        let mut written = request::build_body(chat_request, self.max_tokens_field, self.reasoning_replay)?;
        for key in self.extra_params {
            chat_request.move_param(key, &mut written, key);
        }
        if self.should_request_usage && written.contains_key("stream") {
            written.insert("stream_options".into(), json!({"include_usage": true}));
        }
        Ok(Value::Object(written).to_string().into_bytes())
    }

    fn read_response(&self, body: &[u8], sink: &mut dyn EventSink) -> Result<(), MalformedResponse> {
        response::decode_response(body, self.reasoning_replay, sink)
    }

    fn stream_decoder(&self) -> Box<dyn StreamDecoder> {
        Box::new(response::ChatDecoder::new(self.reasoning_replay))
    }

    fn write_embedding_request(&self, texts: &mut EmbeddingRequest) -> Result<Vec<u8>, RequestError> {
        let inputs = std::mem::take(&mut texts.texts);
        let mut out = json!({"model": (self.map_model_name)(&texts.model), "input": inputs});
        if let Some(dimensions) = texts.dimensions.take() {
            out["dimensions"] = dimensions;
        }
        Ok(out.to_string().into_bytes())
    }

    fn read_embeddings(&self, response: &Value) -> Option<EmbeddingResponse> {
        let mut data: Vec<_> = response["data"].as_array()?.iter().collect();
        data.sort_by_key(|one| one["index"].as_u64());
        let vectors = data.into_iter().map(|one| one["embedding"].clone()).collect();
        // Some providers report only the total.
        let usage = &response["usage"];
        let tokens = usage["prompt_tokens"].as_u64().or_else(|| usage["total_tokens"].as_u64());
        Some(EmbeddingResponse { vectors, token_count: tokens, ..EmbeddingResponse::default() })
    }

    /// Lists models of providers whose list format differs from `OpenAI`'s.
    fn read_model_list(&self, response: &Value) -> Option<Vec<ListedModel>> {
        model_list::parse_models(response).or_else(|| model_list::parse_models_at(response, "/result", "name", ""))
    }

    fn parse_error(&self, body: &[u8]) -> ErrorDetails {
        response::parse_error(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_tokens_field_matches_the_model() {
        for (model, limit) in [
            ("gpt-5", "max_completion_tokens"),
            ("openai/gpt-5.1-mini", "max_completion_tokens"),
            ("o1", "max_completion_tokens"),
            ("openai/o4-mini", "max_completion_tokens"),
            ("gpt-4o", "max_tokens"),
            ("gpt-oss-120b", "max_tokens"),
            ("olmo-2", "max_tokens"),
            ("meta/Llama-3.3-70B-Instruct", "max_tokens"),
            ("", "max_tokens"),
        ] {
            assert_eq!(format_for_model(model).max_tokens_field, limit, "{model}");
        }
    }
}
