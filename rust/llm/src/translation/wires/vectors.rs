//! Providers that embed texts in ways of their own, and do nothing else so.

use serde_json::{Value, json};

use super::{Wire, chat};
use crate::translation::{
    asked::{Refusal, Source},
    embedding::{Item, Texts, Vectors},
};

/// Whose way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Embedding {
    Nomic,
    /// Google's models at Vertex AI.
    Predict,
    /// Voyage's, of texts and pictures together.
    Multimodal,
}

pub static NOMIC: Embedding = Embedding::Nomic;
pub static PREDICT: Embedding = Embedding::Predict;
pub static MULTIMODAL: Embedding = Embedding::Multimodal;

fn nomic(texts: &mut Texts) -> Value {
    let mut out = json!({"model": texts.model, "texts": std::mem::take(&mut texts.inputs)});
    if let Some(dimensions) = texts.dimensions.take() {
        out["dimensionality"] = dimensions;
    }
    if let Some(task) = texts.purpose() {
        out["task_type"] = task;
    }
    for key in ["long_text_mode", "dimensionality"] {
        if let Some(value) = texts.fields.shift_remove(key) {
            out[key] = value;
        }
    }
    out
}

/// Google's model for pictures has a shape of its own.
fn is_of_pictures(model: &str) -> bool {
    model.contains("multimodalembedding")
}

fn shown(texts: &mut Texts) -> Result<Value, Refusal> {
    let mut items = std::mem::take(&mut texts.items);
    items.extend(std::mem::take(&mut texts.inputs).into_iter().map(|text| Item { text: Some(text), image: None }));
    let instances = items.into_iter().enumerate().map(instance).collect::<Result<Value, _>>()?;
    let mut out = json!({"instances": instances});
    if let Some(dimensions) = texts.dimensions.take() {
        out["parameters"]["dimension"] = dimensions;
    }
    Ok(out)
}

fn instance((at, item): (usize, Item)) -> Result<Value, Refusal> {
    let refused = |message| Err(Refusal::new(format!("input[{at}].image"), message));
    match (item.text, item.image) {
        // It would make two vectors of them.
        (Some(_), Some(_)) => refused("has a vector of its own here: send text and image apart"),
        (text, None) => Ok(json!({"text": text})),
        (None, Some(Source::Data { data, mime })) => {
            Ok(json!({"image": {"bytesBase64Encoded": data, "mimeType": mime}}))
        }
        (None, Some(Source::Url { url, .. })) if url.starts_with("gs://") => Ok(json!({"image": {"gcsUri": url}})),
        (None, Some(_)) => refused("must be sent as bytes, or be an object of Google's storage (gs://)"),
    }
}

fn together(texts: &mut Texts) -> Result<Value, Refusal> {
    let mut items = std::mem::take(&mut texts.items);
    items.extend(std::mem::take(&mut texts.inputs).into_iter().map(|text| Item { text: Some(text), image: None }));
    let one = |(at, Item { text, image }): (usize, Item)| {
        let mut content: Vec<_> = text.iter().map(|text| json!({"type": "text", "text": text})).collect();
        match image {
            None => (),
            Some(Source::Url { url, .. }) => content.push(json!({"type": "image_url", "image_url": url})),
            Some(Source::Data { mime, data }) => {
                content.push(json!({"type": "image_base64", "image_base64": format!("data:{mime};base64,{data}")}));
            }
            Some(_) => return Err(Refusal::new(format!("input[{at}].image"), "must be sent as bytes or by URL")),
        }
        Ok(json!({"content": content}))
    };
    let inputs = items.into_iter().enumerate().map(one).collect::<Result<Value, _>>()?;
    let mut out = json!({"model": texts.model, "inputs": inputs});
    for key in ["input_type", "truncation"] {
        if let Some(value) = texts.fields.shift_remove(key) {
            out[key] = value;
        }
    }
    if let Some(dimensions) = texts.dimensions.take() {
        out["output_dimension"] = dimensions;
    }
    Ok(out)
}

fn predict(texts: &mut Texts) -> Value {
    let task = texts.fields.shift_remove("task_type");
    let one = |text: String| {
        let mut instance = json!({"content": text});
        if let Some(task) = &task {
            instance["task_type"] = task.clone();
        }
        instance
    };
    let instances: Vec<_> = std::mem::take(&mut texts.inputs).into_iter().map(one).collect();
    let mut out = json!({"instances": instances});
    // An object, or nobody knows what to add to it.
    if let Some(given @ Value::Object(_)) = texts.fields.get("parameters") {
        out["parameters"] = given.clone();
        texts.fields.shift_remove("parameters");
    }
    if let Some(dimensions) = texts.dimensions.take() {
        out["parameters"]["outputDimensionality"] = dimensions;
    }
    out
}

fn predicted(answer: &Value) -> Option<Vectors> {
    let predictions = answer["predictions"].as_array()?;
    let of = |one: &Value| {
        let own = ["textEmbedding", "imageEmbedding"].iter().find_map(|key| one.get(key));
        own.unwrap_or(&one["embeddings"]["values"]).clone()
    };
    let vectors = predictions.iter().map(of).collect();
    let tokens = predictions.iter().map(|one| one["embeddings"]["statistics"]["token_count"].as_f64());
    #[allow(clippy::cast_sign_loss)] // The cast saturates: below zero is zero.
    let tokens = tokens.sum::<Option<f64>>().map(|tokens| tokens as u64);
    Some(Vectors { vectors, tokens })
}

impl Wire for Embedding {
    fn sees(&self, model: &str) -> bool {
        *self == Self::Multimodal || *self == Self::Predict && is_of_pictures(model)
    }

    fn embed(&self, texts: &mut Texts) -> Result<Vec<u8>, Refusal> {
        let out = match self {
            Self::Nomic => nomic(texts),
            Self::Predict if is_of_pictures(&texts.model) => shown(texts)?,
            Self::Predict => predict(texts),
            Self::Multimodal => together(texts)?,
        };
        Ok(out.to_string().into_bytes())
    }

    fn embedded(&self, answer: &Value) -> Option<Vectors> {
        match self {
            Self::Nomic => Some(Vectors {
                vectors: answer["embeddings"].as_array()?.clone(),
                tokens: answer["usage"]["total_tokens"].as_u64(),
            }),
            Self::Predict => predicted(answer),
            Self::Multimodal => chat::OPENAI.embedded(answer),
        }
    }
}
