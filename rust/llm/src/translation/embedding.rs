//! Embeddings: texts out, vectors back, in the shape of who asked.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    answering::Answering,
    asked::{Fields, Refusal, body, string},
    lost::Lost,
    wires::Broken,
};

/// How a caller reads vectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Shape {
    #[default]
    Numbers,
    /// As base64 of their numbers.
    Packed,
    /// One, as Google's own clients read it.
    Content,
    /// Any number, likewise.
    Contents,
}

/// What a vector is for, in Google's word and in the one that `Cohere` and `Nomic` have for it.
const PURPOSES: &[(&str, &str)] = &[
    ("RETRIEVAL_QUERY", "search_query"),
    ("RETRIEVAL_DOCUMENT", "search_document"),
    ("CLASSIFICATION", "classification"),
    ("CLUSTERING", "clustering"),
];

/// What is to be embedded.
#[derive(Debug, Default)]
pub struct Texts {
    pub model: String,
    pub inputs: Vec<String>,
    pub dimensions: Option<Value>,
    /// Where they stand in the caller's body.
    pub path: &'static str,
    pub shape: Shape,
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
            path: "input",
            shape: match fields.shift_remove("encoding_format") {
                Some(format) if format == "base64" => Shape::Packed,
                _ => Shape::Numbers,
            },
            fields,
        })
    }

    /// What the vectors are for, in the word of `Cohere` and `Nomic`; what they have no word for stays.
    pub fn purpose(&mut self) -> Option<Value> {
        let said = self.fields.get("task_type")?.as_str()?;
        let word = match PURPOSES.iter().find(|(googles, _)| *googles == said) {
            Some((_, word)) => *word,
            None if said.bytes().any(|byte| byte.is_ascii_uppercase()) => return None,
            None => said,
        };
        let word = Value::from(word);
        self.fields.shift_remove("task_type");
        Some(word)
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
    pub fn told(self, answering: &Answering, shape: Shape) -> Result<Vec<u8>, Broken> {
        if matches!(shape, Shape::Content | Shape::Contents) {
            return self.into_contents(shape);
        }
        let mut data = Vec::with_capacity(self.vectors.len());
        for (index, vector) in self.vectors.into_iter().enumerate() {
            let embedding = if shape == Shape::Packed { packed(&vector)? } else { vector };
            data.push(json!({"object": "embedding", "index": index, "embedding": embedding}));
        }
        let mut answer =
            json!({"object": "list", "data": data, "model": answering.model, "provider": answering.provider});
        if let Some(tokens) = self.tokens {
            answer["usage"] = json!({"prompt_tokens": tokens, "total_tokens": tokens});
        }
        Ok(answer.to_string().into_bytes())
    }

    /// As Google's own clients read them.
    fn into_contents(self, shape: Shape) -> Result<Vec<u8>, Broken> {
        let mut vectors = self.vectors.into_iter().map(|vector| json!({"values": vector}));
        let mut answer = if shape == Shape::Content {
            json!({"embedding": vectors.next().ok_or_else(|| Broken("it has no vector".into()))?})
        } else {
            json!({"embeddings": vectors.collect::<Value>()})
        };
        if let Some(tokens) = self.tokens {
            answer["usageMetadata"] = json!({"promptTokenCount": tokens, "totalTokenCount": tokens});
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
    fn what_vectors_are_for_has_a_word_of_each_vendors() {
        let texts = |task: &str| {
            let mut texts = Texts::default();
            texts.fields.insert("task_type".into(), task.into());
            (texts.purpose(), texts.into_lost().text())
        };
        assert_eq!(texts("RETRIEVAL_QUERY"), (Some("search_query".into()), String::new()));
        assert_eq!(texts("search_document"), (Some("search_document".into()), String::new()));
        assert_eq!(texts("FACT_VERIFICATION"), (None, "task_type".into()));
    }

    #[test]
    fn tokens_are_no_texts() {
        assert_eq!(Texts::read(b"{\"input\":[1,2]}").unwrap_err().path, "input[0]");
        assert_eq!(Texts::read(b"{\"input\":\"a\"}").unwrap().inputs, ["a"]);
    }
}
