//! Usage and cost of a request: tokens, tools and images. A session may have usage of several models.

use penstock_llm::{api_format::ImageParams, stream::session::ModelUsage, usage::Usage};

use super::deferred_billing::DeferredBilling;
use crate::accounting::prices::{Cost, RequestPricing};

/// Usage of a session by model.
#[derive(Debug)]
pub struct SessionUsage {
    /// Usage of the model that the record names.
    pub main: Option<Usage>,
    pub other_models: Vec<ModelUsage>,
}

#[derive(Debug, Default)]
pub struct Billing {
    pub usage: Option<Usage>,
    /// Usage by model, if a session used several.
    pub session_usage: Option<Box<SessionUsage>>,
    /// Estimated usage of streams that broke off before the one that continued the response.
    pub interrupted_usage: Option<Usage>,
    /// Web searches that the models of interrupted streams always make and never report. They are billed in addition to
    /// those of the stream that completed the response.
    pub interrupted_searches: u64,
    /// Number, quality and size of the requested images.
    pub image_params: Option<Box<ImageParams>>,
    /// Number of images in the response.
    pub image_count: Option<u64>,
    /// Model behind an alias such as an inference profile. Its price applies.
    pub backing_model: Option<String>,
    /// Set if the request creates, reads or cancels a response object. A background response is charged when a client
    /// first reads its usage, not when it starts.
    pub deferred_billing: Option<DeferredBilling>,
    /// Prices that apply to the request.
    pub tariff: RequestPricing,
}

impl Billing {
    /// Returns the initial billing state of the same request for another target.
    pub(crate) fn fork(&self) -> Self {
        Self { backing_model: self.backing_model.clone(), tariff: self.tariff.clone(), ..Self::default() }
    }

    /// Takes from `other` the fields that describe the target that responded.
    pub(crate) fn adopt_attempt(&mut self, other: Self) {
        self.image_params = other.image_params.or_else(|| self.image_params.take());
        (self.backing_model, self.tariff) = (other.backing_model, other.tariff);
    }

    /// Finalises the usage: includes interrupted streams and uses the number of images in the response.
    pub(crate) fn finalize(&mut self) {
        self.usage = self.usage.or(self.interrupted_usage);
        if let (Some(image_params), Some(image_count)) = (&mut self.image_params, self.image_count) {
            image_params.count = image_count;
        }
    }

    /// Returns the cost at a provider. `model_name` is the provider's name of the model, `at` the time in seconds since
    /// the epoch.
    pub(crate) fn cost(&self, provider: &str, model_name: &str, at: u64, is_good: bool) -> Option<Cost> {
        let model = self.backing_model.as_deref().unwrap_or(model_name);
        let cost = |usage| self.tariff.cost(provider, model, at, usage);
        let Some(SessionUsage { main: rest, other_models }) = self.session_usage.as_deref() else {
            return match self.image_params.as_deref().filter(|_| is_good) {
                Some(image_params) => self.tariff.image_cost(provider, model, at, self.usage.as_ref(), image_params),
                None => cost(self.usage.as_ref()?),
            };
        };
        let others = other_models.iter().map(|ModelUsage { model, usage, is_transcription: is_writing }| {
            // A transcription model without a known price costs as much as the main model.
            let main_model_cost = || is_writing.then(|| cost(usage)).flatten();
            self.tariff.for_other_model(model).cost(provider, model, at, usage).or_else(main_model_cost)
        });
        // If the main model has no usage, its price need not be known.
        let all = rest.iter().map(cost).chain(others);
        all.reduce(|sum, next| Some(sum?.plus(next?))).flatten()
    }
}
