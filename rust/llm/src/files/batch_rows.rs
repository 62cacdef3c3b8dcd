//! Encoder of batch input lines for a provider's batch jobs. It wraps a request body, already translated to the model's
//! format, into one line.

use serde::Deserialize;
use serde_json::value::RawValue;

/// Line of a batch input file, either in `OpenAI`'s format or already in the provider's format.
#[derive(Debug, Deserialize)]
pub struct BatchInputLine<'r> {
    pub custom_id: Option<String>,
    pub url: Option<String>,
    #[serde(borrow)]
    pub body: Option<&'r RawValue>,
    #[serde(borrow, rename = "modelInput")]
    model_input: Option<&'r RawValue>,
    #[serde(borrow)]
    request: Option<&'r RawValue>,
    #[serde(borrow)]
    text: Option<&'r RawValue>,
}

/// Line format of a batch file, by provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchLineFormat {
    Bedrock,
    Vertex,
    Fireworks,
    Cohere,
}

/// Maximum length of a Vertex AI label.
const MAX_LABEL_BYTES: usize = 63;

impl BatchLineFormat {
    /// Returns the only endpoint that a batch may use if bodies are stored untranslated. `None` if each body is
    /// translated to the format of its model.
    pub fn passthrough_endpoint(self) -> Option<&'static str> {
        match self {
            Self::Bedrock | Self::Vertex => None,
            Self::Fireworks => Some("/v1/chat/completions"),
            Self::Cohere => Some("/v1/embeddings"),
        }
    }

    /// Returns true if a line is already in the provider's format.
    pub fn is_native_line(self, row: &BatchInputLine<'_>) -> bool {
        match self {
            Self::Bedrock => row.model_input.is_some(),
            Self::Vertex => row.request.is_some(),
            Self::Fireworks => row.url.is_none() && row.body.is_some(),
            Self::Cohere => row.text.is_some(),
        }
    }

    /// Returns the body parameters that a line cannot carry, because the job sets them for all lines.
    pub fn unsupported_fields(self, body: &[u8]) -> Vec<String> {
        if self != Self::Cohere {
            return Vec::new();
        }
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(body).unwrap_or_default();
        let is_unset = |(key, value): &(String, serde_json::Value)| match &**key {
            "model" | "input" => false,
            "encoding_format" => *value != "float" && !value.is_null(),
            _ => !value.is_null(),
        };
        fields.into_iter().filter(is_unset).map(|(key, _)| key).collect()
    }

    /// Encodes a line with this body, which is already in the model's format.
    pub fn encode_line(self, custom_id: &str, body: &[u8]) -> Result<Vec<u8>, String> {
        let id = serde_json::to_vec(custom_id).map_err(|error| error.to_string())?;
        Ok(match self {
            Self::Bedrock => [b"{\"recordId\":", &*id, b",\"modelInput\":", body, b"}"].concat(),
            // Lines for Claude carry a `custom_id` field, so they need no label.
            Self::Vertex if is_claude_body(body) => [b"{\"custom_id\":", &*id, b",\"request\":", body, b"}"].concat(),
            Self::Vertex => [b"{\"request\":", &*add_custom_id_label(custom_id, body)?, b"}"].concat(),
            Self::Fireworks => [b"{\"custom_id\":", &*id, b",\"body\":", &*remove_model(body)?, b"}"].concat(),
            Self::Cohere => [b"{\"custom_id\":", &*id, b",\"text\":", &*encode_input_text(body)?, b"}"].concat(),
        })
    }
}

/// Returns the single text that a line embeds, as JSON.
fn encode_input_text(body: &[u8]) -> Result<Vec<u8>, String> {
    #[derive(Deserialize)]
    struct EmbedBody<'r> {
        #[serde(borrow)]
        input: Option<&'r RawValue>,
    }
    let texts: EmbedBody<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let input_json = texts.input.map(RawValue::get).unwrap_or_default();
    let single_text = serde_json::from_str::<[String; 1]>(input_json).map(|[text]| text);
    let text = serde_json::from_str::<String>(input_json).or(single_text);
    let text = text.map_err(|_| "input must be one text; an embed job embeds one text for each line".to_owned())?;
    serde_json::to_vec(&text).map_err(|error| error.to_string())
}

/// Removes `model` from a body, because the job names the model.
fn remove_model(body: &[u8]) -> Result<Vec<u8>, String> {
    let mut request: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(body).map_err(|error| error.to_string())?;
    request.shift_remove("model");
    serde_json::to_vec(&request).map_err(|error| error.to_string())
}

/// Returns true if a Vertex AI body is for Claude and not for Gemini.
fn is_claude_body(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct AnthropicBody {
        anthropic_version: Option<serde::de::IgnoredAny>,
    }
    serde_json::from_slice::<AnthropicBody>(body).is_ok_and(|body| body.anthropic_version.is_some())
}

/// Adds the `custom_id` to a Gemini request as a label. Gemini's result lines only repeat the request, so the label
/// identifies the line.
fn add_custom_id_label(custom_id: &str, body: &[u8]) -> Result<Vec<u8>, String> {
    let is_label = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    if custom_id.is_empty() || custom_id.len() > MAX_LABEL_BYTES || !custom_id.bytes().all(is_label) {
        return Err(format!(
            "custom_id is `{}`; it is returned as a label, which must be 1 to {MAX_LABEL_BYTES} of a-z, 0-9, - and _",
            custom_id.chars().take(MAX_LABEL_BYTES).collect::<String>()
        ));
    }
    let mut request: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let labels = request.entry("labels").or_insert_with(|| serde_json::json!({}));
    if let Some(labels) = labels.as_object_mut() {
        labels.insert("custom_id".into(), custom_id.into());
    }
    serde_json::to_vec(&request).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(line_format: BatchLineFormat, id: &str, body: &str) -> String {
        String::from_utf8(line_format.encode_line(id, body.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn encoded_line_carries_the_custom_id() {
        assert_eq!(
            encode(BatchLineFormat::Bedrock, "a\"1", r#"{"b":1}"#),
            r#"{"recordId":"a\"1","modelInput":{"b":1}}"#
        );
        let claude = r#"{"anthropic_version":"v"}"#;
        assert_eq!(
            encode(BatchLineFormat::Vertex, "A 1", claude),
            format!(r#"{{"custom_id":"A 1","request":{claude}}}"#)
        );
        let gemini = encode(BatchLineFormat::Vertex, "a-1", r#"{"contents":[],"labels":{"x":"y"}}"#);
        assert_eq!(gemini, r#"{"request":{"contents":[],"labels":{"x":"y","custom_id":"a-1"}}}"#);
        let chat = encode(BatchLineFormat::Fireworks, "A", r#"{"model":"m","messages":[]}"#);
        assert_eq!(chat, r#"{"custom_id":"A","body":{"messages":[]}}"#);
        let text =
            encode(BatchLineFormat::Cohere, "a", r#"{"model":"m","input":"one \u00e9","input_type":"x","user":null}"#);
        assert_eq!(text, r#"{"custom_id":"a","text":"one é"}"#);
        assert_eq!(encode(BatchLineFormat::Cohere, "a", r#"{"input":["x"]}"#), r#"{"custom_id":"a","text":"x"}"#);
        for several in [r#"{"input":["x","y"]}"#, r#"{"input":[1,2]}"#, "{}"] {
            assert!(
                BatchLineFormat::Cohere.encode_line("a", several.as_bytes()).unwrap_err().contains("one text"),
                "{several}"
            );
        }
        for id in ["", "A", "a b", &"a".repeat(64)] {
            assert!(BatchLineFormat::Vertex.encode_line(id, b"{}").unwrap_err().contains("custom_id"), "{id}");
        }
    }

    #[test]
    fn detects_lines_in_the_providers_format() {
        let read = |text| serde_json::from_str::<BatchInputLine<'_>>(text).unwrap();
        let (openai_line, amazons, googles) =
            (read(r#"{"custom_id":"a","body":{}}"#), read(r#"{"modelInput":{}}"#), read(r#"{"request":{}}"#));
        assert!(
            !BatchLineFormat::Bedrock.is_native_line(&openai_line)
                && BatchLineFormat::Bedrock.is_native_line(&amazons)
                && !BatchLineFormat::Bedrock.is_native_line(&googles)
        );
        let (texts, vectors) = (
            read(r#"{"text":"x"}"#),
            br#"{"model":"m","input":"x","encoding_format":"float","user":"u",
            "input_type":"search_query","dimensions":null}"#,
        );
        assert!(
            BatchLineFormat::Cohere.is_native_line(&texts) && !BatchLineFormat::Cohere.is_native_line(&openai_line)
        );
        assert_eq!(BatchLineFormat::Cohere.unsupported_fields(vectors), ["user", "input_type"]);
        assert!(BatchLineFormat::Fireworks.unsupported_fields(vectors).is_empty());
        assert!(
            !BatchLineFormat::Vertex.is_native_line(&openai_line)
                && !BatchLineFormat::Vertex.is_native_line(&amazons)
                && BatchLineFormat::Vertex.is_native_line(&googles)
        );
    }
}
