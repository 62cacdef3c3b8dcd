//! Reads texts that are to be embedded, one or several.

use serde_json::Value;

use super::request::take;
use crate::{
    chat::request::{Fields, Refusal, array, body, object},
    embeddings::request::{Shape, Texts},
};

/// What is said for all texts, and its name among those of embeddings.
const SETTINGS: [(&str, &str); 3] =
    [("taskType", "task_type"), ("title", "title"), ("outputDimensionality", "dimensions")];

pub fn one(json: &[u8], model: &str) -> Result<Texts, Refusal> {
    let mut fields = body(json)?;
    let text = text(&mut fields, "content")?;
    let settings = settings(&mut fields);
    fields.extend(settings);
    Ok(texts(model, ("content", Shape::Content), vec![text], fields))
}

pub fn several(json: &[u8], model: &str) -> Result<Texts, Refusal> {
    let mut fields = body(json)?;
    let mut inputs = Vec::new();
    let mut all: Option<Fields> = None;
    for (at, request) in array(take(&mut fields, "requests"), "requests")?.into_iter().enumerate() {
        let path = format!("requests[{at}]");
        let mut request = object(request, &path)?;
        inputs.push(text(&mut request, &format!("{path}.content"))?);
        let settings = settings(&mut request);
        if all.as_ref().is_some_and(|all| *all != settings) {
            let message = "this provider is told once what all vectors are for, and how long they are";
            return Err(Refusal::new(path, message));
        }
        all = Some(settings);
        request.shift_remove("model");
        fields.extend(request);
    }
    if inputs.is_empty() {
        return Err(Refusal::new("requests", "must be an array of at least one request"));
    }
    fields.extend(all.unwrap_or_default());
    Ok(texts(model, ("requests", Shape::Contents), inputs, fields))
}

fn texts(model: &str, (path, shape): (&'static str, Shape), inputs: Vec<String>, mut fields: Fields) -> Texts {
    // The path names it.
    fields.shift_remove("model");
    let dimensions = fields.shift_remove("dimensions");
    Texts { model: model.to_owned(), inputs, items: Vec::new(), dimensions, path, shape, fields }
}

fn settings(fields: &mut Fields) -> Fields {
    let found = SETTINGS.iter().filter_map(|(key, name)| Some(((*name).to_owned(), take(fields, key)?)));
    found.collect()
}

/// The text of a content, whose parts may be several.
fn text(fields: &mut Fields, path: &str) -> Result<String, Refusal> {
    let content = take(fields, "content").ok_or_else(|| Refusal::new(path, "must be there"))?;
    if let Value::String(text) = content {
        return Ok(text);
    }
    let parts = match take(&mut object(content, path)?, "parts") {
        Some(one @ Value::Object(_)) => vec![one],
        parts => array(parts, &format!("{path}.parts"))?,
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        let wrong = || Refusal::new(format!("{path}.parts[{at}]"), "this provider embeds texts: it must be a `text`");
        texts.push(part["text"].as_str().ok_or_else(wrong)?);
    }
    if texts.is_empty() {
        return Err(Refusal::new(format!("{path}.parts"), "must be an array of at least one part"));
    }
    Ok(texts.join("\n"))
}
