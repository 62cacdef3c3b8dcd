//! Rerank requests, which rank documents by relevance to a query. Requests and responses have Cohere's format for all
//! providers.

use serde_json::{Value, json};

use crate::{
    chat::response_context::ResponseContext,
    errors::RequestError,
    fields::{Fields, into_array, parse_body, take_required_string, take_string},
    reports::DroppedParams,
};

/// Rerank request in a canonical form.
#[derive(Debug, Default)]
pub struct RerankRequest {
    pub model: String,
    pub query: String,
    pub documents: Vec<String>,
    /// Maximum number of results.
    pub top_n: Option<Value>,
    /// True if the response contains the documents.
    pub should_return_documents: bool,
    /// All other fields. The provider format removes those that it supports.
    pub fields: Fields,
}

impl RerankRequest {
    pub fn parse(json: &[u8]) -> Result<Self, RequestError> {
        let mut fields = parse_body(json)?;
        let documents = into_array(fields.shift_remove("documents"), "documents")?;
        if documents.is_empty() {
            return Err(RequestError::new("documents", "must be an array of at least one text"));
        }
        let top = fields.shift_remove("top_n").or_else(|| fields.shift_remove("top_k"));
        Ok(Self {
            model: take_string(&mut fields, "model").unwrap_or_default(),
            query: take_required_string(&mut fields, "query", "$")?,
            documents: documents
                .into_iter()
                .enumerate()
                .map(|(at, value)| parse_document(at, value))
                .collect::<Result<_, _>>()?,
            top_n: top.filter(|top| !top.is_null()),
            should_return_documents: fields.shift_remove("return_documents") == Some(Value::Bool(true)),
            fields,
        })
    }

    pub fn into_dropped_params(self) -> DroppedParams {
        let mut dropped = DroppedParams::default();
        self.fields.iter().filter(|(_, value)| !value.is_null()).for_each(|(key, _)| dropped.add(key));
        dropped
    }
}

/// Parses a document: a string, or an object with only a `text`.
fn parse_document(at: usize, value: Value) -> Result<String, RequestError> {
    let wrong = || RequestError::new(format!("documents[{at}]"), "must be a string, or an object with a `text`");
    match value {
        Value::String(text) => Ok(text),
        Value::Object(mut fields) => take_string(&mut fields, "text").filter(|_| fields.is_empty()).ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

/// Rerank response: the index of each document in the request, with its relevance score.
pub struct RerankResponse {
    pub results: Vec<(u64, Value)>,
    /// Number of tokens used, if the provider reports it.
    pub token_count: Option<u64>,
}

impl RerankResponse {
    /// Parses the results at a JSON pointer. `index_key` and `score` are the provider's keys for the index and the
    /// relevance score.
    pub fn parse_results_at(response: &Value, pointer: &str, index_key: &str, score: &str) -> Option<Self> {
        let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
        let entry = |item: &Value| Some((number(&item[index_key])?, item.get(score)?.clone()));
        let results = response.pointer(pointer)?.as_array()?.iter().map(entry).collect::<Option<_>>()?;
        Some(Self { results, token_count: response.pointer("/usage/total_tokens").and_then(Value::as_u64) })
    }

    /// Serialises the response in the client's format. Documents are taken from the echoed fields of the request.
    pub fn into_client_json(self, context: &ResponseContext) -> Vec<u8> {
        let documents = context.echoed_fields.get(DOCUMENTS_KEY);
        let build_result = |(index, score): (u64, Value)| {
            let mut result = json!({"index": index, "relevance_score": score});
            if let Some(text) = usize::try_from(index).ok().and_then(|at| documents?.get(at)) {
                result["document"] = json!({"text": text});
            }
            result
        };
        let results: Vec<_> = self.results.into_iter().map(build_result).collect();
        let mut response = json!({"id": context.generate_id(), "model": context.model,
            "provider": context.provider, "results": results});
        if let Some(tokens) = self.token_count {
            response["usage"] = json!({"total_tokens": tokens});
        }
        response.to_string().into_bytes()
    }
}

/// Key of the documents among the request fields that the response repeats.
pub const DOCUMENTS_KEY: &str = "documents";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_a_string_or_an_object_with_only_a_text() {
        let read = |documents: Value| {
            RerankRequest::parse(json!({"query": "q", "documents": documents, "top_k": 1}).to_string().as_bytes())
        };
        let ranking = read(json!(["a", {"text": "b"}])).unwrap();
        assert_eq!((ranking.documents, ranking.top_n), (vec!["a".to_owned(), "b".to_owned()], Some(json!(1))));
        assert_eq!(read(json!([{"text": "b", "title": "t"}])).unwrap_err().path, "documents[0]");
        assert_eq!(read(json!([])).unwrap_err().path, "documents");
    }

    #[test]
    fn rejects_results_without_a_valid_index() {
        let count_results = |response: Value| {
            RerankResponse::parse_results_at(&response, "/r", "id", "score").map(|ranked| ranked.results)
        };
        assert_eq!(count_results(json!({"r": [{"id": "1", "score": 0.5}]})), Some(vec![(1, json!(0.5))]));
        assert_eq!(count_results(json!({"r": [{"id": "x", "score": 0.5}]})), None);
    }
}
