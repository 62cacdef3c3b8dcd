//! Embedding requests in a canonical form, and their responses in the client's format.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    chat::{request::Source, response_context::ResponseContext},
    errors::{MalformedResponse, RequestError},
    fields::{Fields, parse_body, take_string},
    json::scan::{for_each_element_from, for_each_field, for_each_field_from},
    reports::DroppedParams,
    usage::Usage,
};

/// Format in which the client receives vectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VectorEncoding {
    #[default]
    Floats,
    /// Base64 of 32-bit floats.
    Base64,
    /// One vector, as in the response of Gemini's `embedContent`.
    GeminiSingle,
    /// A list of vectors, as in the response of Gemini's `batchEmbedContents`.
    GeminiBatch,
}

/// Task types: Gemini's name, and the name that `Cohere` and `Nomic` use.
const TASK_TYPES: &[(&str, &str)] = &[
    ("RETRIEVAL_QUERY", "search_query"),
    ("RETRIEVAL_DOCUMENT", "search_document"),
    ("CLASSIFICATION", "classification"),
    ("CLUSTERING", "clustering"),
];

/// Input of a multimodal request: an image or a video, optionally with a text, or a text alone.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct EmbeddingInput {
    pub text: Option<String>,
    pub image: Option<Source>,
    pub video: Option<Video>,
}

impl EmbeddingInput {
    pub fn from_text(text: String) -> Self {
        Self { text: Some(text), ..Self::default() }
    }
}

/// Video that is split into segments; the provider returns one vector for each.
#[derive(Debug, PartialEq, Eq)]
pub struct Video {
    pub source: Source,
    /// Start offset, end offset and segment length in seconds. Each is optional.
    pub segment_options: [Option<Value>; 3],
}

/// Embedding request in a canonical form.
#[derive(Debug, Default)]
pub struct EmbeddingRequest {
    pub model: String,
    pub texts: Vec<String>,
    /// All inputs, if one of them is an image or a video; `texts` is empty then.
    pub multimodal_inputs: Vec<EmbeddingInput>,
    pub dimensions: Option<Value>,
    /// Path of the inputs in the client's body, for errors.
    pub input_path: &'static str,
    pub format: VectorEncoding,
    /// All other fields. The provider format removes those that it supports.
    pub fields: Fields,
}

impl EmbeddingRequest {
    pub fn parse(json: &[u8]) -> Result<Self, RequestError> {
        let mut fields = parse_body(json)?;
        let mut items = match fields.shift_remove("input") {
            Some(Value::String(text)) => vec![EmbeddingInput::from_text(text)],
            Some(Value::Array(items)) => {
                items.into_iter().enumerate().map(|(at, value)| parse_input(at, value)).collect::<Result<_, _>>()?
            }
            _ => return Err(RequestError::new("input", "must be a string, or an array of strings and images")),
        };
        let shape = match fields.get("encoding_format") {
            Some(format) if format == "base64" => VectorEncoding::Base64,
            _ => VectorEncoding::Floats,
        };
        // Vectors are returned as floats or base64. Any other encoding stays in `fields`, so that it is reported as
        // dropped.
        if fields.get("encoding_format").is_some_and(|format| format == "float" || shape == VectorEncoding::Base64) {
            fields.shift_remove("encoding_format");
        }
        let mut inputs = Vec::new();
        if items.iter().all(|item| item.image.is_none() && item.video.is_none()) {
            inputs = std::mem::take(&mut items).into_iter().filter_map(|item| item.text).collect();
        }
        Ok(Self {
            model: take_string(&mut fields, "model").unwrap_or_default(),
            texts: inputs,
            multimodal_inputs: items,
            dimensions: fields.shift_remove("dimensions").filter(|dimensions| !dimensions.is_null()),
            input_path: "input",
            format: shape,
            fields,
        })
    }

    /// Removes the task type and returns the name that `Cohere` and `Nomic` use. A type that they do not have stays.
    pub fn take_task_type(&mut self) -> Option<Value> {
        let task_type = self.fields.get("task_type")?.as_str()?;
        let mapped = match TASK_TYPES.iter().find(|(googles, _)| *googles == task_type) {
            Some((_, name)) => *name,
            None if task_type.bytes().any(|byte| byte.is_ascii_uppercase()) => return None,
            None => task_type,
        };
        let value = Value::from(mapped);
        self.fields.shift_remove("task_type");
        Some(value)
    }

    pub fn into_dropped_params(self) -> DroppedParams {
        let mut dropped = DroppedParams::default();
        self.fields.iter().filter(|(_, value)| !value.is_null()).for_each(|(key, _)| dropped.add(key));
        dropped
    }
}

/// Parses an input. It is a string, an object with `text`, `image` or `video`, or a content part of chat completions.
/// An image has `base64` or `url`, and `mime_type`; a video also has `start_offset`, `end_offset` and `interval`.
fn parse_input(at: usize, value: Value) -> Result<EmbeddingInput, RequestError> {
    let path = || format!("input[{at}]");
    let mut fields = match value {
        Value::String(text) => return Ok(EmbeddingInput::from_text(text)),
        Value::Object(fields) => fields,
        _ => return Err(RequestError::new(path(), "must be a string, or an object with `text` or `image`")),
    };
    let kind = take_string(&mut fields, "type");
    let text = take_string(&mut fields, "text");
    let key = if kind.as_deref() == Some("image_url") { "image_url" } else { "image" };
    let image = fields.shift_remove(key).map(|image| {
        parse_media_source(image)
            .ok_or_else(|| RequestError::new(format!("input[{at}].{key}"), "must have `base64` or `url`"))
    });
    let image = image.transpose()?;
    let video = fields.shift_remove("video").map(|video| {
        parse_video(video).ok_or_else(|| RequestError::new(format!("input[{at}].video"), "must have `base64` or `url`"))
    });
    let video = video.transpose()?;
    if let Some(other) = fields.keys().next() {
        return Err(RequestError::new(
            format!("input[{at}].{other}"),
            "is not supported in an embedding input; use `text` or `image`",
        ));
    }
    if text.is_none() && image.is_none() && video.is_none() {
        return Err(RequestError::new(path(), "must have `text` or `image`"));
    }
    Ok(EmbeddingInput { text, image, video })
}

fn parse_video(video: Value) -> Option<Video> {
    let mut video = video;
    let fields = video.as_object_mut()?;
    let segment = ["start_offset", "end_offset", "interval"].map(|key| fields.shift_remove(key));
    parse_media_source(video).map(|source| Video { source, segment_options: segment })
}

fn parse_media_source(image: Value) -> Option<Source> {
    let mut fields = match image {
        Value::String(url) => return Some(Source::from_url(url, None)),
        Value::Object(fields) => fields,
        _ => return None,
    };
    let mime = take_string(&mut fields, "mime_type");
    if let Some(data) = take_string(&mut fields, "base64") {
        // Some clients send a data URL here.
        let plain = |data| Source::Data { mime: mime.clone().unwrap_or_else(|| "image/png".to_owned()), data };
        return Some(if data.starts_with("data:") { Source::from_url(data, mime) } else { plain(data) });
    }
    take_string(&mut fields, "url").map(|url| Source::from_url(url, mime))
}

/// Vectors of an embedding response, and the number of input tokens if the provider reports it.
#[derive(Default)]
#[allow(clippy::struct_field_names, reason = "the vectors are the main content of the type")]
pub struct EmbeddingResponse {
    pub vectors: Vec<Value>,
    pub token_count: Option<u64>,
    /// Additional fields of each vector, for inputs that yield several vectors, such as videos.
    pub extra_fields: Vec<Fields>,
}

impl EmbeddingResponse {
    /// Serialises the response in the client's format.
    pub fn into_client_json(
        self,
        context: &ResponseContext,
        shape: VectorEncoding,
    ) -> Result<Vec<u8>, MalformedResponse> {
        if let Some(tokens @ 1..) = self.token_count {
            context.report.set_usage(Usage { input: tokens, ..Usage::default() });
        }
        if matches!(shape, VectorEncoding::GeminiSingle | VectorEncoding::GeminiBatch) {
            return self.into_gemini_json(shape);
        }
        let mut data = Vec::with_capacity(self.vectors.len());
        for (index, vector) in self.vectors.into_iter().enumerate() {
            let embedding = if shape == VectorEncoding::Base64 { encode_base64(&vector)? } else { vector };
            let mut item = json!({"object": "embedding", "index": index, "embedding": embedding});
            if let (Some(item), Some(more)) = (item.as_object_mut(), self.extra_fields.get(index)) {
                item.extend(more.clone());
            }
            data.push(item);
        }
        let mut response =
            json!({"object": "list", "data": data, "model": context.model, "provider": context.provider});
        // SDKs require the field. 0 means that the tokens are unknown.
        let tokens = self.token_count.unwrap_or_default();
        response["usage"] = json!({"prompt_tokens": tokens, "total_tokens": tokens});
        Ok(response.to_string().into_bytes())
    }

    /// Serialises the response in Gemini's format.
    fn into_gemini_json(self, shape: VectorEncoding) -> Result<Vec<u8>, MalformedResponse> {
        let mut vectors = self.vectors.into_iter().map(|vector| json!({"values": vector}));
        let mut response = if shape == VectorEncoding::GeminiSingle {
            json!({"embedding": vectors.next().ok_or_else(|| MalformedResponse("the response has no vector".into()))?})
        } else {
            json!({"embeddings": vectors.collect::<Value>()})
        };
        if let Some(tokens) = self.token_count {
            response["usageMetadata"] = json!({"promptTokenCount": tokens, "totalTokenCount": tokens});
        }
        Ok(response.to_string().into_bytes())
    }
}

/// Returns true if a request asks for vectors in base64.
pub(crate) fn wants_base64(body: &[u8]) -> bool {
    let mut is_base64 = false;
    let _ = for_each_field(body, |key, at| {
        is_base64 |= key == b"encoding_format" && &body[at] == b"\"base64\"";
        Ok(())
    });
    is_base64
}

/// Encodes the vectors of a response in `OpenAI`'s format as base64; `None` if none of them is a list of numbers. The
/// response is scanned but not parsed, because vectors make it large. All other bytes stay.
pub(crate) fn encode_response_vectors(response: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut copied = 0;
    for_each_field_from(response, 0, |key, at| {
        if key != b"data" || response[at.start] != b'[' {
            return Ok(());
        }
        for_each_element_from(response, at.start, |item| {
            if response[item.start] != b'{' {
                return Ok(());
            }
            for_each_field_from(response, item.start, |key, vector| {
                if key == b"embedding"
                    && response[vector.start] == b'['
                    && let Some(bytes) = float_bytes(&response[vector.clone()])
                {
                    out.extend_from_slice(&response[copied..vector.start]);
                    out.extend_from_slice(format!("\"{}\"", STANDARD.encode(bytes)).as_bytes());
                    copied = vector.end;
                }
                Ok(())
            })?;
            Ok(())
        })?;
        Ok(())
    })
    .ok()?;
    (copied > 0).then(|| [&out, &response[copied..]].concat())
}

/// Returns the numbers of a JSON array as little-endian 32-bit floats; `None` if an element is no number.
fn float_bytes(array: &[u8]) -> Option<Vec<u8>> {
    let inner = std::str::from_utf8(array).ok()?.strip_prefix('[')?.strip_suffix(']')?.trim();
    let mut bytes = Vec::with_capacity(inner.len() / 4);
    for number in inner.split(',').filter(|_| !inner.is_empty()) {
        bytes.extend_from_slice(&number.trim().parse::<f32>().ok().filter(|number| number.is_finite())?.to_le_bytes());
    }
    Some(bytes)
}

/// Encodes a vector as base64 of little-endian 32-bit floats.
fn encode_base64(vector: &Value) -> Result<Value, MalformedResponse> {
    // Some providers encode the vector themselves.
    if vector.is_string() {
        return Ok(vector.clone());
    }
    let numbers = vector.as_array().ok_or_else(|| MalformedResponse("a vector is not an array".into()))?;
    #[allow(clippy::cast_possible_truncation)] // The format requires 32-bit floats.
    let bytes = numbers.iter().flat_map(|number| (number.as_f64().unwrap_or_default() as f32).to_le_bytes());
    Ok(STANDARD.encode(bytes.collect::<Vec<_>>()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_a_vector_as_base64_of_32_bit_floats() {
        assert_eq!(encode_base64(&json!([1.0, -0.5])).unwrap(), "AACAPwAAAL8=");
        assert_eq!(encode_base64(&json!("AACAPw==")).unwrap(), "AACAPw==");
        assert!(encode_base64(&json!({})).is_err());
    }

    #[test]
    fn encodes_the_vectors_of_a_response_and_keeps_all_other_bytes() {
        let encoded = |response: &str| {
            encode_response_vectors(response.as_bytes()).map(|encoded| String::from_utf8(encoded).unwrap())
        };
        assert_eq!(
            encoded(r#"{"data": [{"index":0,"embedding":[1.0, -5e-1]},{"embedding":[]},{"embedding":"x"}],"n":1.50}"#),
            Some(
                r#"{"data": [{"index":0,"embedding":"AACAPwAAAL8="},{"embedding":""},{"embedding":"x"}],"n":1.50}"#
                    .into()
            )
        );
        for same in
            [r#"{"data":[{"embedding":["a"]}]}"#, r#"{"data":[{"embedding":[[1]]}]}"#, r#"{"data":[1]}"#, "{\"data\":"]
        {
            assert_eq!(encoded(same), None, "{same}");
        }
    }

    #[test]
    fn maps_task_types_to_the_name_of_the_vendor() {
        let texts = |task: &str| {
            let mut texts = EmbeddingRequest::default();
            texts.fields.insert("task_type".into(), task.into());
            (texts.take_task_type(), texts.into_dropped_params().header_value())
        };
        assert_eq!(texts("RETRIEVAL_QUERY"), (Some("search_query".into()), String::new()));
        assert_eq!(texts("search_document"), (Some("search_document".into()), String::new()));
        assert_eq!(texts("FACT_VERIFICATION"), (None, "task_type".into()));
    }

    #[test]
    fn reports_an_unsupported_encoding_format_as_dropped() {
        for (format, shape, dropped) in [
            ("float", VectorEncoding::Floats, ""),
            ("base64", VectorEncoding::Base64, ""),
            ("int8", VectorEncoding::Floats, "encoding_format"),
        ] {
            let texts =
                EmbeddingRequest::parse(json!({"input": "a", "encoding_format": format}).to_string().as_bytes())
                    .unwrap();
            assert_eq!((texts.format, texts.into_dropped_params().header_value()), (shape, dropped.into()), "{format}");
        }
    }

    #[test]
    fn rejects_token_ids_as_input() {
        assert_eq!(EmbeddingRequest::parse(b"{\"input\":[1,2]}").unwrap_err().path, "input[0]");
        assert_eq!(EmbeddingRequest::parse(b"{\"input\":\"a\"}").unwrap().texts, ["a"]);
    }

    #[test]
    fn parses_images_in_each_form_and_rejects_everything_else() {
        let read = |item: Value| EmbeddingRequest::parse(json!({"input": ["a", item]}).to_string().as_bytes());
        let png = || Source::Data { mime: "image/png".into(), data: "aGk=".into() };
        for image in [
            json!({"image": {"base64": "aGk="}}),
            json!({"image": {"base64": "data:image/png;base64,aGk="}}),
            json!({"image": "data:image/png;base64,aGk="}),
            json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}),
        ] {
            let texts = read(image).unwrap();
            let expected = [
                EmbeddingInput::from_text("a".into()),
                EmbeddingInput { image: Some(png()), ..EmbeddingInput::default() },
            ];
            assert_eq!((texts.texts.len(), &texts.multimodal_inputs[..]), (0, &expected[..]));
        }
        assert_eq!(read(json!({"type": "text", "text": "b"})).unwrap().texts, ["a", "b"]);
        for (item, path) in [
            (json!({"audio": {"url": "gs://a/b.mp3"}}), "input[1].audio"),
            (json!({"video": {"start_offset": 1}}), "input[1].video"),
            (json!({"image": {}}), "input[1].image"),
            (json!({}), "input[1]"),
            (json!([1]), "input[1]"),
        ] {
            assert_eq!(read(item).unwrap_err().path, path);
        }
    }
}
