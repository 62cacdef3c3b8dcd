//! What a request used and what that costs: tokens, tools and images, in a session those of several models.

use penstock_llm::{
    api_format::Drawing,
    usage::{Share, Usage},
};

use super::Later;
use crate::accounting::prices::{Cost, Tariff};

/// What was used in a session of several models.
#[derive(Debug)]
pub struct Shares {
    /// Of the model that the record names.
    pub rest: Option<Usage>,
    pub others: Vec<Share>,
}

#[derive(Debug, Default)]
pub struct Payment {
    pub usage: Option<Usage>,
    /// Which models used how much of that, where there were several.
    pub shares: Option<Box<Shares>>,
    /// What streams cost that broke off before the one that goes on: counted here.
    pub spent: Option<Usage>,
    /// What their models looked up of themselves for a chat.
    pub searched: u64,
    /// Which images it asks for, and how many came.
    pub drawing: Option<Box<Drawing>>,
    pub drawn: Option<u64>,
    /// The model behind a name that does not say whose it is: it costs what that one does.
    pub behind: Option<String>,
    /// Where it is paid for at another time than it is answered.
    pub later: Option<Later>,
    /// What it may cost.
    pub tariff: Tariff,
}

impl Payment {
    /// Of the same request to another target, as it begins.
    pub(crate) fn twin(&self) -> Self {
        Self { behind: self.behind.clone(), tariff: self.tariff.clone(), ..Self::default() }
    }

    /// Takes over what is true of the target that answered.
    pub(crate) fn adopt(&mut self, other: Self) {
        self.drawing = other.drawing.or_else(|| self.drawing.take());
        (self.behind, self.tariff) = (other.behind, other.tariff);
    }

    /// Nothing more will become known: as many images are paid for as came, and all that was used.
    pub(crate) fn close(&mut self) {
        self.usage = self.usage.or(self.spent);
        if let (Some(drawing), Some(drawn)) = (&mut self.drawing, self.drawn) {
            drawing.count = drawn;
        }
    }

    /// What it cost at a provider, whose model has this name there.
    pub(crate) fn cost(&self, (provider, told): (&str, &str), at: u64, is_good: bool) -> Option<Cost> {
        let model = self.behind.as_deref().unwrap_or(told);
        let cost = |usage| self.tariff.cost(provider, model, at, usage);
        let Some(Shares { rest, others }) = self.shares.as_deref() else {
            return match self.drawing.as_deref().filter(|_| is_good) {
                Some(drawing) => self.tariff.cost_of_images((provider, model), at, self.usage.as_ref(), drawing),
                None => cost(self.usage.as_ref()?),
            };
        };
        let others = others.iter().map(|Share { model, usage, is_writing }| {
            // Who writes costs as much as who talks where nobody says what it costs.
            let own = || is_writing.then(|| cost(usage)).flatten();
            self.tariff.of_another(model).cost(provider, model, at, usage).or_else(own)
        });
        // Where nobody talked there may be no model whose price is known.
        let all = rest.iter().map(cost).chain(others);
        all.reduce(|sum, next| Some(sum?.plus(next?))).flatten()
    }
}
