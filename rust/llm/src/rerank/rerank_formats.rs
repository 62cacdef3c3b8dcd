//! Rerank formats that are specific to one provider.

use serde_json::{Value, json};

use crate::{
    errors::RequestError,
    provider_format::{ProviderFormat, RerankFormat},
    rerank::request::{RerankRequest, RerankResponse},
};

/// Rerank format of one provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RerankApi {
    Voyage,
    /// Google's ranking API, which is separate from Vertex AI.
    Google,
    /// Amazon's own rerank model on Bedrock.
    Amazon,
    /// Cohere's rerank model on Bedrock.
    Cohere,
}

pub static VOYAGE: ProviderFormat = ProviderFormat::of_rerank(&RerankApi::Voyage);
pub static GOOGLE: ProviderFormat = ProviderFormat::of_rerank(&RerankApi::Google);
pub static AMAZON: ProviderFormat = ProviderFormat::of_rerank(&RerankApi::Amazon);
pub static COHERE: ProviderFormat = ProviderFormat::of_rerank(&RerankApi::Cohere);

/// Selects the format on Bedrock, which depends on the model's vendor.
pub fn bedrock_format(model: &str) -> &'static ProviderFormat {
    if model.contains("cohere.") { &COHERE } else { &AMAZON }
}

impl RerankApi {
    fn write_body(self, ranking: &mut RerankRequest) -> Value {
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

    /// Returns the parameter name for the number of results, and the names of further supported parameters.
    fn param_names(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Voyage => ("top_k", &["truncation"]),
            Self::Google => ("topN", &[]),
            Self::Amazon => ("top_n", &[]),
            Self::Cohere => ("top_n", &["max_tokens_per_doc"]),
        }
    }
}

impl RerankFormat for RerankApi {
    fn write_rerank_request(&self, ranking: &mut RerankRequest) -> Result<Vec<u8>, RequestError> {
        let mut body = self.write_body(ranking);
        let (top, more) = self.param_names();
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

    fn read_ranking(&self, response: &Value) -> Option<RerankResponse> {
        match self {
            Self::Voyage => RerankResponse::parse_results_at(response, "/data", "index", "relevance_score"),
            Self::Google => RerankResponse::parse_results_at(response, "/records", "id", "score"),
            Self::Amazon | Self::Cohere => {
                RerankResponse::parse_results_at(response, "/results", "index", "relevance_score")
            }
        }
    }
}
