//! What a request used and what that costs: tokens, tools and images, in a session those of several models.

use penstock_llm::{
    api_format::ImageParams,
    usage::{ModelUsage, Usage},
};

use super::DeferredBilling;
use crate::accounting::prices::{Cost, RequestPricing};

/// What was used in a session of several models.
#[derive(Debug)]
pub struct SessionUsage {
    /// Of the model that the record names.
    pub main: Option<Usage>,
    pub others: Vec<ModelUsage>,
}

#[derive(Debug, Default)]
pub struct Billing {
    pub usage: Option<Usage>,
    /// Which models used how much of that, where there were several.
    pub session_usage: Option<Box<SessionUsage>>,
    /// What streams cost that broke off before the one that goes on: counted here.
    pub interrupted_usage: Option<Usage>,
    /// What their models looked up of themselves for a chat.
    pub interrupted_searches: u64,
    /// Which images it asks for, and how many came.
    pub image_params: Option<Box<ImageParams>>,
    pub image_count: Option<u64>,
    /// The model behind a name that does not say whose it is: it costs what that one does.
    pub backing_model: Option<String>,
    /// Where it is paid for at another time than it is answered.
    pub deferred_billing: Option<DeferredBilling>,
    /// What it may cost.
    pub tariff: RequestPricing,
}

impl Billing {
    /// Of the same request to another target, as it begins.
    pub(crate) fn fork(&self) -> Self {
        Self { backing_model: self.backing_model.clone(), tariff: self.tariff.clone(), ..Self::default() }
    }

    /// Takes over what is true of the target that answered.
    pub(crate) fn adopt_target(&mut self, other: Self) {
        self.image_params = other.image_params.or_else(|| self.image_params.take());
        (self.backing_model, self.tariff) = (other.backing_model, other.tariff);
    }

    /// Nothing more will become known: as many images are paid for as came, and all that was used.
    pub(crate) fn finalize(&mut self) {
        self.usage = self.usage.or(self.interrupted_usage);
        if let (Some(drawing), Some(drawn)) = (&mut self.image_params, self.image_count) {
            drawing.count = drawn;
        }
    }

    /// What it cost at a provider, whose model has this name there.
    pub(crate) fn cost(&self, (provider, told): (&str, &str), at: u64, is_good: bool) -> Option<Cost> {
        let model = self.backing_model.as_deref().unwrap_or(told);
        let cost = |usage| self.tariff.cost(provider, model, at, usage);
        let Some(SessionUsage { main: rest, others }) = self.session_usage.as_deref() else {
            return match self.image_params.as_deref().filter(|_| is_good) {
                Some(drawing) => self.tariff.image_cost((provider, model), at, self.usage.as_ref(), drawing),
                None => cost(self.usage.as_ref()?),
            };
        };
        let others = others.iter().map(|ModelUsage { model, usage, is_transcription: is_writing }| {
            // Who writes costs as much as who talks where nobody says what it costs.
            let own = || is_writing.then(|| cost(usage)).flatten();
            self.tariff.for_other_model(model).cost(provider, model, at, usage).or_else(own)
        });
        // Where nobody talked there may be no model whose price is known.
        let all = rest.iter().map(cost).chain(others);
        all.reduce(|sum, next| Some(sum?.plus(next?))).flatten()
    }
}
