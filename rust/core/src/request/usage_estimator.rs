//! Estimates the usage of translated responses whose provider reports none, so that the client and the record have the
//! same numbers.

use std::sync::Arc;

use bytes::Bytes;
use penstock_llm::{
    tokens::encoding_for_model,
    translation::{MalformedResponse, Translation, UsageEstimate},
};
use tokio::sync::Semaphore;

use crate::{
    accounting::{record::RequestLog, token_counting::CountInput},
    error::{Error, Result},
    response::offload,
};

/// Responses whose tokens are counted at the same time. The client waits for the count, and other work needs the
/// blocking threads.
static COUNTING: Semaphore = Semaphore::const_new(2);

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

    /// Counts the tokens of the request on a blocking thread, and runs `finish` there with the estimate.
    ///
    /// # Errors
    /// If the process shuts down.
    pub async fn run<T: Send + 'static>(self, finish: impl FnOnce(UsageEstimate) -> T + Send + 'static) -> Result<T> {
        let _permit = COUNTING.acquire().await.map_err(|_| Error::Draining)?;
        offload::run_blocking(move || finish(self.estimate())).await
    }

    fn estimate(&self) -> UsageEstimate {
        let encoding = encoding_for_model(&self.model);
        UsageEstimate { input_tokens: self.count_input.count_tokens(encoding), encoding }
    }

    /// Translates a complete response with estimated usage.
    pub async fn translate_complete(
        self,
        translation: Translation,
        response: Bytes,
    ) -> Result<std::result::Result<Vec<u8>, MalformedResponse>> {
        self.run(move |estimate| translation.translate_with_estimate(&response, estimate)).await
    }
}
