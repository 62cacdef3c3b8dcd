//! Documents to be ranked by how well they answer a query: in the shape that Cohere gave it, whoever ranks them.

use serde_json::{Value, json};

use crate::{
    chat::{
        request::{Fields, Refusal, array, body, needed, string},
        response_context::Answering,
    },
    translation::dropped::Lost,
};

/// What is to be ranked.
#[derive(Debug, Default)]
pub struct Ranking {
    pub model: String,
    pub query: String,
    pub documents: Vec<String>,
    /// How many of the best are wanted.
    pub top: Option<Value>,
    /// The documents are to be told with their ranks.
    pub returns: bool,
    /// Everything else, of which a wire takes what it knows.
    pub fields: Fields,
}

impl Ranking {
    pub fn read(json: &[u8]) -> Result<Self, Refusal> {
        let mut fields = body(json)?;
        let documents = array(fields.shift_remove("documents"), "documents")?;
        if documents.is_empty() {
            return Err(Refusal::new("documents", "must be an array of at least one text"));
        }
        let top = fields.shift_remove("top_n").or_else(|| fields.shift_remove("top_k"));
        Ok(Self {
            model: string(&mut fields, "model").unwrap_or_default(),
            query: needed(&mut fields, "query", "$")?,
            documents: documents.into_iter().enumerate().map(text).collect::<Result<_, _>>()?,
            top: top.filter(|top| !top.is_null()),
            returns: fields.shift_remove("return_documents") == Some(Value::Bool(true)),
            fields,
        })
    }

    pub fn into_lost(self) -> Lost {
        let mut lost = Lost::default();
        self.fields.iter().filter(|(_, value)| !value.is_null()).for_each(|(key, _)| lost.add(key));
        lost
    }
}

/// A text, alone or in an object.
fn text((at, value): (usize, Value)) -> Result<String, Refusal> {
    let wrong = || Refusal::new(format!("documents[{at}]"), "must be a string, or an object with a `text`");
    match value {
        Value::String(text) => Ok(text),
        Value::Object(mut fields) => string(&mut fields, "text").filter(|_| fields.is_empty()).ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

/// Where a document stood among those that were sent, and how well it answers.
pub struct Ranked {
    pub results: Vec<(u64, Value)>,
    /// What it cost, where the provider says so.
    pub tokens: Option<u64>,
}

impl Ranked {
    /// Under a pointer, by the names that a provider has for place and score.
    pub fn found(answer: &Value, pointer: &str, (place, score): (&str, &str)) -> Option<Self> {
        let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
        let one = |item: &Value| Some((number(&item[place])?, item.get(score)?.clone()));
        let results = answer.pointer(pointer)?.as_array()?.iter().map(one).collect::<Option<_>>()?;
        Some(Self { results, tokens: answer.pointer("/usage/total_tokens").and_then(Value::as_u64) })
    }

    /// As the caller is told; the documents that were asked for stand in what the answer repeats.
    pub fn told(self, answering: &Answering) -> Vec<u8> {
        let documents = answering.echo.get(DOCUMENTS);
        let one = |(place, score): (u64, Value)| {
            let mut result = json!({"index": place, "relevance_score": score});
            if let Some(text) = usize::try_from(place).ok().and_then(|place| documents?.get(place)) {
                result["document"] = json!({"text": text});
            }
            result
        };
        let results: Vec<_> = self.results.into_iter().map(one).collect();
        let mut told = json!({"id": answering.name(), "model": answering.model,
            "provider": answering.provider, "results": results});
        if let Some(tokens) = self.tokens {
            told["usage"] = json!({"total_tokens": tokens});
        }
        told.to_string().into_bytes()
    }
}

/// Under which an answer finds the documents that it is to repeat.
pub const DOCUMENTS: &str = "documents";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_texts_alone_or_in_an_object() {
        let read = |documents: Value| {
            Ranking::read(json!({"query": "q", "documents": documents, "top_k": 1}).to_string().as_bytes())
        };
        let ranking = read(json!(["a", {"text": "b"}])).unwrap();
        assert_eq!((ranking.documents, ranking.top), (vec!["a".to_owned(), "b".to_owned()], Some(json!(1))));
        assert_eq!(read(json!([{"text": "b", "title": "t"}])).unwrap_err().path, "documents[0]");
        assert_eq!(read(json!([])).unwrap_err().path, "documents");
    }

    #[test]
    fn a_rank_without_a_place_is_no_rank() {
        let found = |answer: Value| Ranked::found(&answer, "/r", ("id", "score")).map(|ranked| ranked.results);
        assert_eq!(found(json!({"r": [{"id": "1", "score": 0.5}]})), Some(vec![(1, json!(0.5))]));
        assert_eq!(found(json!({"r": [{"id": "x", "score": 0.5}]})), None);
    }
}
