//! Recognises the SDK that sent a request by its headers. On paths that several APIs share, the SDK decides the format
//! and the operation.

use penstock_llm::{api_format::ApiFormat, model_list::ModelListShape, operation::Operation};
use penstock_net::headers::Headers;

/// Returns true if a client of Google's API sent these headers.
pub fn is_google_client(headers: &Headers) -> bool {
    headers.get("x-goog-api-client").is_some() || headers.get("x-goog-api-key").is_some()
}

/// Returns true if one of Cohere's SDKs sent these headers.
fn is_cohere_client(headers: &Headers) -> bool {
    ["x-fern-sdk-name", "user-agent"]
        .iter()
        .any(|name| headers.get(name).is_some_and(|value| value.starts_with(b"cohere")))
}

/// Returns the API format of a client on a path that several APIs share.
pub fn shared_path_format(headers: &Headers) -> ApiFormat {
    if headers.get("anthropic-version").is_some() {
        ApiFormat::Anthropic
    } else if is_google_client(headers) {
        ApiFormat::Gemini
    } else {
        ApiFormat::OpenAi
    }
}

/// Returns the name of the API format that a client reads on shared paths: `anthropic`, `google`, `cohere` or `openai`.
pub fn client_format_name(headers: &Headers) -> &'static str {
    match model_list_shape(Operation::Models, headers) {
        ModelListShape::Anthropic => "anthropic",
        ModelListShape::Gemini => "google",
        ModelListShape::Cohere => "cohere",
        ModelListShape::OpenAi => "openai",
    }
}

/// Returns the shape of model lists that the client reads. Other operations have no list.
pub fn model_list_shape(operation: Operation, headers: &Headers) -> ModelListShape {
    if operation != Operation::Models {
        return ModelListShape::OpenAi;
    }
    match shared_path_format(headers) {
        ApiFormat::Anthropic => ModelListShape::Anthropic,
        ApiFormat::Gemini => ModelListShape::Gemini,
        _ if is_cohere_client(headers) => ModelListShape::Cohere,
        _ => ModelListShape::OpenAi,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_sdks_by_their_headers() {
        for (fields, shape) in [
            (&[("authorization", "Bearer k"), ("user-agent", "OpenAI/Python 3.51.0")][..], ModelListShape::OpenAi),
            (&[("x-client-name", "my app")], ModelListShape::OpenAi),
            (&[("x-api-key", "k"), ("anthropic-version", "2023-06-01")], ModelListShape::Anthropic),
            (&[("x-goog-api-key", "k")], ModelListShape::Gemini),
            (&[("x-goog-api-client", "google-genai-sdk/3.3.0 gl-python/3.11")], ModelListShape::Gemini),
            (&[("user-agent", "cohere/7.3.1")], ModelListShape::Cohere),
            (&[("x-fern-sdk-name", "cohere-ai"), ("user-agent", "node")], ModelListShape::Cohere),
        ] {
            let headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
            assert_eq!(model_list_shape(Operation::Models, &headers), shape, "{fields:?}");
        }
    }
}
