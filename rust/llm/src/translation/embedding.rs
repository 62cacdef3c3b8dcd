//! Embeddings: texts out, vectors back, in the shape that `OpenAI` gave them.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    answering::Answering,
    asked::{Fields, Refusal, body, string},
    lost::Lost,
    wires::Broken,
};

/// What is to be embedded.
#[derive(Debug, Default)]
pub struct Texts {
    pub model: String,
    pub inputs: Vec<String>,
    pub dimensions: Option<Value>,
    /// The vectors are wanted as base64 of their numbers.
    pub is_packed: bool,
    /// Everything else, of which a wire takes what it knows.
    pub fields: Fields,
}

impl Texts {
    pub fn read(json: &[u8]) -> Result<Self, Refusal> {
        let mut fields = body(json)?;
        let inputs = match fields.shift_remove("input") {
            Some(Value::String(text)) => vec![text],
            Some(Value::Array(items)) => items.into_iter().enumerate().map(text).collect::<Result<_, _>>()?,
            _ => return Err(Refusal::new("input", "must be a string or an array of strings")),
        };
        Ok(Self {
            model: string(&mut fields, "model").unwrap_or_default(),
            inputs,
            dimensions: fields.shift_remove("dimensions").filter(|dimensions| !dimensions.is_null()),
            is_packed: fields.shift_remove("encoding_format").is_some_and(|format| format == "base64"),
            fields,
        })
    }

    pub fn into_lost(self) -> Lost {
        let mut lost = Lost::default();
        self.fields.iter().filter(|(_, value)| !value.is_null()).for_each(|(key, _)| lost.add(key));
        lost
    }
}

fn text((at, value): (usize, Value)) -> Result<String, Refusal> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(Refusal::new(format!("input[{at}]"), "this provider embeds texts: it must be a string")),
    }
}

/// The vectors of an answer, and the tokens that they cost where the provider says so.
pub struct Vectors {
    pub vectors: Vec<Value>,
    pub tokens: Option<u64>,
}

impl Vectors {
    /// As the caller is told.
    pub fn told(self, answering: &Answering, is_packed: bool) -> Result<Vec<u8>, Broken> {
        let mut data = Vec::with_capacity(self.vectors.len());
        for (index, vector) in self.vectors.into_iter().enumerate() {
            let embedding = if is_packed { packed(&vector)? } else { vector };
            data.push(json!({"object": "embedding", "index": index, "embedding": embedding}));
        }
        let mut answer =
            json!({"object": "list", "data": data, "model": answering.model, "provider": answering.provider});
        if let Some(tokens) = self.tokens {
            answer["usage"] = json!({"prompt_tokens": tokens, "total_tokens": tokens});
        }
        Ok(answer.to_string().into_bytes())
    }
}

/// Four bytes for each number, the least significant first.
fn packed(vector: &Value) -> Result<Value, Broken> {
    let numbers = vector.as_array().ok_or_else(|| Broken("a vector is no array".into()))?;
    #[allow(clippy::cast_possible_truncation)] // That is what the format is.
    let bytes = numbers.iter().flat_map(|number| (number.as_f64().unwrap_or_default() as f32).to_le_bytes());
    Ok(STANDARD.encode(bytes.collect::<Vec<_>>()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_vector_is_its_numbers_in_four_bytes_each() {
        assert_eq!(packed(&json!([1.0, -0.5])).unwrap(), "AACAPwAAAL8=");
        assert!(packed(&json!("x")).is_err());
    }

    #[test]
    fn tokens_are_no_texts() {
        assert_eq!(Texts::read(b"{\"input\":[1,2]}").unwrap_err().path, "input[0]");
        assert_eq!(Texts::read(b"{\"input\":\"a\"}").unwrap().inputs, ["a"]);
    }
}
