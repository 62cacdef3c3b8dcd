//! Parser of Gemini's embedding requests, for one text or several.

use serde_json::Value;

use super::request::take_field;
use crate::{
    embeddings::request::{EmbeddingRequest, VectorEncoding},
    errors::RequestError,
    fields::{Fields, into_array, into_object, parse_body},
};

/// Settings that apply to all texts, and their names in embedding requests.
const SETTING_NAMES: [(&str, &str); 3] =
    [("taskType", "task_type"), ("title", "title"), ("outputDimensionality", "dimensions")];

pub fn parse_embed_request(json: &[u8], model: &str) -> Result<EmbeddingRequest, RequestError> {
    let mut fields = parse_body(json)?;
    let text = take_content_text(&mut fields, "content")?;
    let settings = take_settings(&mut fields);
    fields.extend(settings);
    Ok(build_request(model, "content", VectorEncoding::GeminiSingle, vec![text], fields))
}

pub fn parse_batch_embed_request(json: &[u8], model: &str) -> Result<EmbeddingRequest, RequestError> {
    let mut fields = parse_body(json)?;
    let mut inputs = Vec::new();
    let mut all: Option<Fields> = None;
    for (at, request) in into_array(take_field(&mut fields, "requests"), "requests")?.into_iter().enumerate() {
        let path = format!("requests[{at}]");
        let mut request = into_object(request, &path)?;
        inputs.push(take_content_text(&mut request, &format!("{path}.content"))?);
        let settings = take_settings(&mut request);
        if all.as_ref().is_some_and(|all| *all != settings) {
            let message = "`taskType`, `title` and `outputDimensionality` must be the same for all requests";
            return Err(RequestError::new(path, message));
        }
        all = Some(settings);
        request.shift_remove("model");
        fields.extend(request);
    }
    if inputs.is_empty() {
        return Err(RequestError::new("requests", "must be an array of at least one request"));
    }
    fields.extend(all.unwrap_or_default());
    Ok(build_request(model, "requests", VectorEncoding::GeminiBatch, inputs, fields))
}

fn build_request(
    model: &str,
    path: &'static str,
    shape: VectorEncoding,
    inputs: Vec<String>,
    mut fields: Fields,
) -> EmbeddingRequest {
    // The model is taken from the URL path.
    fields.shift_remove("model");
    let dimensions = fields.shift_remove("dimensions");
    EmbeddingRequest {
        model: model.to_owned(),
        texts: inputs,
        multimodal_inputs: Vec::new(),
        dimensions,
        input_path: path,
        format: shape,
        fields,
    }
}

fn take_settings(fields: &mut Fields) -> Fields {
    let settings = SETTING_NAMES.iter().filter_map(|(key, name)| Some(((*name).to_owned(), take_field(fields, key)?)));
    settings.collect()
}

/// Removes a content and returns its text; joins several parts with newlines.
fn take_content_text(fields: &mut Fields, path: &str) -> Result<String, RequestError> {
    let content = take_field(fields, "content").ok_or_else(|| RequestError::new(path, "is required"))?;
    if let Value::String(text) = content {
        return Ok(text);
    }
    let parts = match take_field(&mut into_object(content, path)?, "parts") {
        Some(item @ Value::Object(_)) => vec![item],
        parts => into_array(parts, &format!("{path}.parts"))?,
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        let wrong = || {
            RequestError::new(format!("{path}.parts[{at}]"), "must be a `text` part; this provider embeds text only")
        };
        texts.push(part["text"].as_str().ok_or_else(wrong)?);
    }
    if texts.is_empty() {
        return Err(RequestError::new(format!("{path}.parts"), "must be an array of at least one part"));
    }
    Ok(texts.join("\n"))
}
