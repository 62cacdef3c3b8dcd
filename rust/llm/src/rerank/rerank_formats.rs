//! Those who rank documents in ways of their own.

use serde_json::{Value, json};

use crate::chat::providers::{Found, Wire, openai_chat};
use crate::{
    chat::request::RequestError,
    rerank::request::{RerankRequest, RerankResponse},
};

/// Whose way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reranking {
    Voyage,
    /// Google's ranking, beside Vertex AI.
    Google,
    /// Amazon's own model at Bedrock.
    Amazon,
    /// Cohere's there.
    Cohere,
}

pub static VOYAGE: Reranking = Reranking::Voyage;
pub static GOOGLE: Reranking = Reranking::Google;
pub static AMAZON: Reranking = Reranking::Amazon;
pub static COHERE: Reranking = Reranking::Cohere;

/// Who made a model decides the body at Bedrock.
pub fn at_bedrock(model: &str) -> &'static Reranking {
    if model.contains("cohere.") { &COHERE } else { &AMAZON }
}

impl Reranking {
    fn body(self, ranking: &mut RerankRequest) -> Value {
        let query = std::mem::take(&mut ranking.query);
        let documents = std::mem::take(&mut ranking.documents);
        match self {
            Self::Voyage => json!({"model": ranking.model, "query": query, "documents": documents}),
            Self::Google => {
                let record = |(at, text): (usize, String)| json!({"id": at.to_string(), "content": text});
                let records: Vec<_> = documents.into_iter().enumerate().map(record).collect();
                json!({"model": ranking.model, "query": query, "records": records, "ignoreRecordDetailsInResponse": true})
            }
            Self::Amazon => json!({"query": query, "documents": documents}),
            Self::Cohere => json!({"query": query, "documents": documents, "api_version": 2}),
        }
    }

    /// What the number of the best is called, and what else may be said.
    fn names(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Voyage => ("top_k", &["truncation"]),
            Self::Google => ("topN", &[]),
            Self::Amazon => ("top_n", &[]),
            Self::Cohere => ("top_n", &["max_tokens_per_doc"]),
        }
    }
}

impl Wire for Reranking {
    fn rank(&self, ranking: &mut RerankRequest) -> Result<Vec<u8>, RequestError> {
        let mut body = self.body(ranking);
        let (top, more) = self.names();
        if let Some(count) = ranking.top_n.take() {
            body[top] = count;
        }
        for key in more {
            if let Some(value) = ranking.fields.shift_remove(*key) {
                body[*key] = value;
            }
        }
        Ok(body.to_string().into_bytes())
    }

    fn ranked(&self, answer: &Value) -> Option<RerankResponse> {
        match self {
            Self::Voyage => RerankResponse::parse_results_at(answer, "/data", ("index", "relevance_score")),
            Self::Google => RerankResponse::parse_results_at(answer, "/records", ("id", "score")),
            Self::Amazon | Self::Cohere => {
                RerankResponse::parse_results_at(answer, "/results", ("index", "relevance_score"))
            }
        }
    }

    fn error(&self, answer: &[u8]) -> Found {
        openai_chat::parse_error(answer)
    }
}
