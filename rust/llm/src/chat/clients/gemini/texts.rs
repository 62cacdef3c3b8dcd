//! Reads texts that are to be embedded, one or several.

use serde_json::Value;

use super::request::take_field;
use crate::{
    chat::request::{Fields, RequestError, into_array, into_object, parse_body},
    embeddings::request::{EmbeddingFormat, EmbeddingRequest},
};

/// What is said for all texts, and its name among those of embeddings.
const SETTING_NAMES: [(&str, &str); 3] =
    [("taskType", "task_type"), ("title", "title"), ("outputDimensionality", "dimensions")];

pub fn parse_embed_request(json: &[u8], model: &str) -> Result<EmbeddingRequest, RequestError> {
    let mut fields = parse_body(json)?;
    let text = take_content_text(&mut fields, "content")?;
    let settings = take_settings(&mut fields);
    fields.extend(settings);
    Ok(build_request(model, ("content", EmbeddingFormat::GeminiSingle), vec![text], fields))
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
            let message = "this provider is told once what all vectors are for, and how long they are";
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
    Ok(build_request(model, ("requests", EmbeddingFormat::GeminiBatch), inputs, fields))
}

fn build_request(
    model: &str,
    (path, shape): (&'static str, EmbeddingFormat),
    inputs: Vec<String>,
    mut fields: Fields,
) -> EmbeddingRequest {
    // The path names it.
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
    let found = SETTING_NAMES.iter().filter_map(|(key, name)| Some(((*name).to_owned(), take_field(fields, key)?)));
    found.collect()
}

/// The text of a content, whose parts may be several.
fn take_content_text(fields: &mut Fields, path: &str) -> Result<String, RequestError> {
    let content = take_field(fields, "content").ok_or_else(|| RequestError::new(path, "must be there"))?;
    if let Value::String(text) = content {
        return Ok(text);
    }
    let parts = match take_field(&mut into_object(content, path)?, "parts") {
        Some(one @ Value::Object(_)) => vec![one],
        parts => into_array(parts, &format!("{path}.parts"))?,
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        let wrong =
            || RequestError::new(format!("{path}.parts[{at}]"), "this provider embeds texts: it must be a `text`");
        texts.push(part["text"].as_str().ok_or_else(wrong)?);
    }
    if texts.is_empty() {
        return Err(RequestError::new(format!("{path}.parts"), "must be an array of at least one part"));
    }
    Ok(texts.join("\n"))
}
