//! Providers that embed texts in ways of their own, and do nothing else so.

use serde_json::{Value, json};

use super::Wire;
use crate::translation::{
    asked::Refusal,
    embedding::{Texts, Vectors},
};

/// Whose way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Embedding {
    Nomic,
    /// Google's models at Vertex AI.
    Predict,
}

pub static NOMIC: Embedding = Embedding::Nomic;
pub static PREDICT: Embedding = Embedding::Predict;

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
    let vectors = predictions.iter().map(|one| one["embeddings"]["values"].clone()).collect();
    let tokens = predictions.iter().map(|one| one["embeddings"]["statistics"]["token_count"].as_f64());
    #[allow(clippy::cast_sign_loss)] // The cast saturates: below zero is zero.
    let tokens = tokens.sum::<Option<f64>>().map(|tokens| tokens as u64);
    Some(Vectors { vectors, tokens })
}

impl Wire for Embedding {
    fn embed(&self, texts: &mut Texts) -> Result<Vec<u8>, Refusal> {
        let out = match self {
            Self::Nomic => nomic(texts),
            Self::Predict => predict(texts),
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
        }
    }
}
