//! `OpenAI`'s chat completions format, as all compatible providers accept it.

mod citations;
pub(crate) mod reasoning_details;
pub(crate) mod request;
pub(crate) mod response;

use serde_json::{Value, json};

use crate::{
    chat::{event::EventSink, request::ChatRequest},
    embeddings::request::{EmbeddingRequest, EmbeddingResponse},
    errors::{MalformedResponse, RequestError},
    model_list::{self, ListedModel},
    provider_format::{ChatFormat, EmbeddingFormat, ModelListFormat, ProviderFormat, StreamDecoder},
};

pub struct OpenAiChatFormat {
    /// Name of the field that limits the response's tokens.
    max_tokens_field: &'static str,
    /// Maps the client's model name to the one in the body.
    map_model_name: fn(&str) -> String,
    /// Maximum temperature that the provider accepts.
    max_temperature: i32,
    /// True if a stream reports usage only when `stream_options` requests it.
    should_request_usage: bool,
    reasoning_replay: ReasoningReplay,
    /// True if `thinking` with a type, but without a budget, switches thinking on and off.
    has_thinking_switch: bool,
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

impl OpenAiChatFormat {
    /// `OpenAI`'s current format.
    const OPENAI: Self = Self {
        max_tokens_field: "max_completion_tokens",
        map_model_name: str::to_owned,
        max_temperature: 2,
        should_request_usage: true,
        reasoning_replay: ReasoningReplay::Dropped,
        has_thinking_switch: false,
        extra_params: &[],
    };
    /// Older format with `max_tokens`, which most compatible providers implement.
    const COMPATIBLE: Self = Self { max_tokens_field: "max_tokens", ..Self::OPENAI };

    const fn provider_format(format: &'static Self) -> ProviderFormat {
        ProviderFormat {
            chat: Some(format),
            embeddings: Some(format),
            model_list: Some(&OpenAiModelList),
            ..ProviderFormat::NONE
        }
    }
}

/// `OpenAI`'s current format.
pub static OPENAI: ProviderFormat = OpenAiChatFormat::provider_format(&OpenAiChatFormat::OPENAI);
/// Older `OpenAI` format with `max_tokens`, which most compatible providers implement.
pub static COMPATIBLE: ProviderFormat = OpenAiChatFormat::provider_format(&OpenAiChatFormat::COMPATIBLE);
/// Compatible format for providers that always report usage in streams.
pub static USAGE_ALWAYS_STREAMED: ProviderFormat = OpenAiChatFormat::provider_format(&OpenAiChatFormat {
    should_request_usage: false,
    ..OpenAiChatFormat::COMPATIBLE
});
/// Compatible format for providers that reject tool call messages without their reasoning. Their thinking is switched
/// on and off as in `SWITCHES_THINKING`.
pub static REPLAYS_REASONING: ProviderFormat = OpenAiChatFormat::provider_format(&OpenAiChatFormat {
    reasoning_replay: ReasoningReplay::Text,
    has_thinking_switch: true,
    ..OpenAiChatFormat::COMPATIBLE
});
/// Compatible format for providers that switch thinking on and off.
pub static SWITCHES_THINKING: ProviderFormat =
    OpenAiChatFormat::provider_format(&OpenAiChatFormat { has_thinking_switch: true, ..OpenAiChatFormat::COMPATIBLE });
/// `OpenRouter`'s format, which replays signed and encrypted reasoning of all vendors.
pub static OPENROUTER: ProviderFormat = OpenAiChatFormat::provider_format(&OpenAiChatFormat {
    reasoning_replay: ReasoningReplay::Details,
    ..OpenAiChatFormat::COMPATIBLE
});
/// Format of third-party models on Vertex AI. `meta.llama` becomes `meta/llama`; other publishers are named in the
/// path, so the body holds the bare model name.
pub static VERTEX_PARTNER_MODELS: ProviderFormat = OpenAiChatFormat::provider_format(&OpenAiChatFormat {
    map_model_name: publisher_model_name,
    ..OpenAiChatFormat::COMPATIBLE
});
/// Format of Predibase, where a deployment has an adapter on top. The body names the adapter.
pub static LORA_ADAPTER: ProviderFormat = OpenAiChatFormat::provider_format(&OpenAiChatFormat {
    map_model_name: adapter_name,
    max_temperature: 1,
    extra_params: &["top_k", "best_of"],
    ..OpenAiChatFormat::COMPATIBLE
});

/// Creates a decoder for a stream in `OpenAI`'s format.
pub fn stream_decoder() -> Box<dyn StreamDecoder> {
    Box::new(response::ChatDecoder::new(ReasoningReplay::Dropped))
}

/// Returns the format for a model at a host with models of many vendors. The newest `OpenAI` models reject
/// `max_tokens`; other models accept nothing else.
pub fn format_for_model(model: &str) -> &'static ProviderFormat {
    if requires_max_completion_tokens(model) { &OPENAI } else { &COMPATIBLE }
}

fn requires_max_completion_tokens(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or_default();
    let number = |rest: &str| {
        rest.split(|character: char| !character.is_ascii_digit()).next().and_then(|digits| digits.parse().ok())
    };
    match (name.strip_prefix("gpt-"), name.strip_prefix('o')) {
        (Some(rest), _) => number(rest).is_some_and(|version: u32| version >= 5),
        (None, Some(rest)) => number(rest).is_some(),
        (None, None) => false,
    }
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

impl ChatFormat for OpenAiChatFormat {
    fn write_request(&self, chat_request: &mut ChatRequest) -> Result<Vec<u8>, RequestError> {
        chat_request.model = (self.map_model_name)(&chat_request.model);
        chat_request.clamp_param("temperature", &(0..=self.max_temperature));
        let mut written = request::build_body(chat_request, self.max_tokens_field, self.reasoning_replay)?;
        if self.has_thinking_switch
            && let Some(kind) = chat_request.fields.get("thinking").and_then(|thinking| thinking.get("type")).cloned()
            && let Some(Value::Object(mut thinking)) = chat_request.take_param("thinking")
        {
            let is_off = kind == "disabled";
            written.insert("thinking".into(), json!({"type": if is_off { "disabled" } else { "enabled" }}));
            thinking.shift_remove("type");
            chat_request.record_dropped_fields("thinking", &thinking);
        }
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
}

impl EmbeddingFormat for OpenAiChatFormat {
    fn write_embedding_request(&self, texts: &mut EmbeddingRequest) -> Result<Vec<u8>, RequestError> {
        let inputs = std::mem::take(&mut texts.texts);
        let mut out = json!({"model": (self.map_model_name)(&texts.model), "input": inputs});
        if let Some(dimensions) = texts.dimensions.take() {
            out["dimensions"] = dimensions;
        }
        Ok(out.to_string().into_bytes())
    }

    fn read_embeddings(&self, response: &Value) -> Option<EmbeddingResponse> {
        read_embeddings(response)
    }
}

/// Reads the vectors of a response in `OpenAI`'s format.
pub fn read_embeddings(response: &Value) -> Option<EmbeddingResponse> {
    let mut data: Vec<_> = response["data"].as_array()?.iter().collect();
    data.sort_by_key(|item| item["index"].as_u64());
    let vectors = data.into_iter().map(|item| item["embedding"].clone()).collect();
    // Some providers report only the total.
    let usage = &response["usage"];
    let tokens = usage["prompt_tokens"].as_u64().or_else(|| usage["total_tokens"].as_u64());
    Some(EmbeddingResponse { vectors, token_count: tokens, ..EmbeddingResponse::default() })
}

/// Model lists in `OpenAI`'s format, or in the format of a compatible provider whose list differs.
struct OpenAiModelList;

impl ModelListFormat for OpenAiModelList {
    fn read_model_list(&self, response: &Value) -> Option<Vec<ListedModel>> {
        model_list::parse_models(response).or_else(|| model_list::parse_models_at(response, "/result", "name", ""))
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
            assert_eq!(requires_max_completion_tokens(model), limit == "max_completion_tokens", "{model}");
        }
    }
}
