//! Lists of models, in the shape that `OpenAI` gave them.

use serde_json::{Value, json};

use super::answering::Answering;

/// A model as it may be asked for.
pub struct Listed {
    pub id: String,
    /// In seconds since 1970; 0 where nobody says.
    pub created: u64,
    pub owner: String,
}

pub fn told(models: Vec<Listed>, answering: &Answering) -> Vec<u8> {
    let count = models.len();
    let one = |model: Listed| {
        let owner = if model.owner.is_empty() { answering.provider.to_owned() } else { model.owner };
        json!({"id": model.id, "object": "model", "created": model.created, "owned_by": owner})
    };
    let data: Vec<Value> = models.into_iter().map(one).collect();
    json!({"object": "list", "data": data, "total_count": count}).to_string().into_bytes()
}

/// The models of a list that is an array, and no object around one.
pub fn bare(answer: &Value) -> Option<Vec<Listed>> {
    let one = |item: &Value| {
        let owner = item["owned_by"].as_str().or_else(|| item["organization"].as_str()).unwrap_or_default();
        Some(Listed {
            id: item["id"].as_str()?.to_owned(),
            created: item["created"].as_u64().unwrap_or_default(),
            owner: owner.to_owned(),
        })
    };
    Some(answer.as_array()?.iter().filter_map(one).collect())
}

/// The models of an array under a pointer, by the text behind a key without what stands before it.
pub fn found(answer: &Value, pointer: &str, key: &str, before: &str) -> Option<Vec<Listed>> {
    let one = |item: &Value| {
        let id = item[key].as_str()?;
        Some(Listed { id: id.trim_start_matches(before).to_owned(), created: 0, owner: String::new() })
    };
    Some(answer.pointer(pointer)?.as_array()?.iter().filter_map(one).collect())
}
