//! Estimates the usage of translated responses whose provider reports none, so that the client and the record have the
//! same numbers.

use std::sync::Arc;

use bytes::Bytes;
use penstock_llm::{
    tokens::encoding_for_model,
    translation::{MalformedResponse, Translation, UsageEstimate},
};

use crate::{
    accounting::{record::RequestLog, token_counting::CountInput},
    error::Result,
    response::offload,
};

/// Request and model, for the case that the provider reports no usage.
pub struct UsageEstimator {
    count_input: Arc<CountInput>,
    model: String,
}

impl UsageEstimator {
    /// Returns the estimator for a response to this request; `None` if its tokens cannot be counted.
    pub fn from_log(log: &RequestLog) -> Option<Self> {
        let count_input = log.count_input.clone()?;
        Some(Self { count_input, model: log.resolved_model().to_owned() })
    }

    /// Counts the tokens of the request. This may take milliseconds.
    pub fn estimate(&self) -> UsageEstimate {
        let encoding = encoding_for_model(&self.model);
        UsageEstimate { input_tokens: self.count_input.count_tokens(encoding), encoding }
    }

    /// Translates a complete response with estimated usage.
    pub async fn translate_complete(
        self,
        translation: Translation,
        response: Bytes,
    ) -> Result<std::result::Result<Vec<u8>, MalformedResponse>> {
        offload::run_blocking(move || translation.translate_with_estimate(&response, self.estimate())).await
    }
}
