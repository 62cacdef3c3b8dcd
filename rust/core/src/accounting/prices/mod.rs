//! What requests cost: prices as they were published, found by provider and model, summed up in whole nano-dollars.

pub(crate) mod image_prices;
pub(crate) mod model_clauses;
mod published;
mod rates;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use penstock_llm::{
    api_format::Drawing,
    usage::{Service, Usage},
};

pub use self::published::{Published, PublishedAdjustment, PublishedPrice};
use self::rates::{ALL, NAMES, Rates, Said, Scale, TOKENS, buckets, of_kind, rates_at, spent};
use crate::accounting::prices::{image_prices::Images, model_clauses::Clause};
use crate::{error::Problem, resolve::models::Models};

/// Models of one provider whose prices are remembered; callers may name as many as they like.
const MOST_SEEN: usize = 1000;
const SECONDS_OF_DAY: u64 = 86_400;

/// What a request cost, by which price; no cost where nobody knows one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    pub nanodollars: u64,
    /// None where nothing had to be paid.
    pub price_version: Option<Box<str>>,
}

/// What was saved with a provider of its prices.
#[derive(Debug, Clone, Default)]
pub struct Own {
    /// Of the model that is asked for.
    pub priced: Option<Priced>,
    /// By what all of them differ.
    pub adjustment: Option<Arc<Adjustment>>,
    /// What is answered out of throughput that was paid for before costs nothing more.
    pub is_prepaid: bool,
}

/// Factors of prices, in millionths: a contract has others than the list.
#[derive(Debug)]
pub struct Adjustment {
    version: Box<str>,
    request: u64,
    image: u64,
    factors: Rates,
}

const MILLION: u64 = 1_000_000;

impl Adjustment {
    pub fn compile(published: PublishedAdjustment, path: &str, problems: &mut Vec<Problem>) -> Self {
        let PublishedAdjustment { version, request, image, factors: said } = published;
        for name in said.keys().filter(|name| NAMES.iter().all(|(known, _)| known != name)) {
            problems.push(Problem::new(format!("{path}.factors.{name}"), "is not a known price"));
        }
        let factors = NAMES.map(|(name, _)| said.get(name).copied().unwrap_or(MILLION));
        Self { version, request, image: image.unwrap_or(request), factors }
    }

    fn rates(&self, rates: &Rates) -> Rates {
        std::array::from_fn(|bucket| times(rates[bucket], self.factors[bucket]))
    }
}

/// So many millionths of a number.
fn times(number: u64, factor: u64) -> u64 {
    let product = u128::from(number) * u128::from(factor);
    u64::try_from((product + u128::from(MILLION / 2)) / u128::from(MILLION)).unwrap_or(u64::MAX)
}

/// Where the price of a request is looked up when it is known what it used.
#[derive(Debug, Clone, Default)]
pub struct Tariff {
    pub prices: Arc<Prices>,
    /// What is said where its provider was saved.
    pub own: Own,
    /// What is said there of models that nobody asked for by name.
    pub others: Option<Arc<Models>>,
    /// It is asked in a batch that its provider runs, which costs less.
    pub is_batch: bool,
}

impl Cost {
    /// Where nothing had to be paid.
    const NOTHING: Self = Self { nanodollars: 0, price_version: None };

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let price_version = match (self.price_version, other.price_version) {
            (Some(one), Some(other)) if one != other => Some(format!("{one}+{other}").into()),
            (one, other) => one.or(other),
        };
        Self { nanodollars: self.nanodollars.saturating_add(other.nanodollars), price_version }
    }
}

impl Tariff {
    /// As it is for a model that nobody asked for by name.
    #[must_use]
    pub fn of_another(&self, model: &str) -> Self {
        let priced = self.others.as_ref().and_then(|models| models.priced(model));
        Self { own: Own { priced, ..self.own.clone() }, ..self.clone() }
    }

    /// What was used of a model, at a moment in Unix seconds.
    pub fn cost(&self, provider: &str, model: &str, at: u64, usage: &Usage) -> Option<Cost> {
        if self.is_paid(usage) {
            return Some(Cost::NOTHING);
        }
        self.price(provider, model, at, |price| self.of(price, usage))
    }

    /// Likewise of images that were made, which may be paid for by the piece, whether it is known what they used or not.
    pub fn cost_of_images(
        &self,
        (provider, model): (&str, &str),
        at: u64,
        usage: Option<&Usage>,
        drawing: &Drawing,
    ) -> Option<Cost> {
        if usage.is_some_and(|usage| self.is_paid(usage)) {
            return Some(Cost::NOTHING);
        }
        let of = |price: &Price| match &price.images {
            None => usage.map(|usage| self.of(price, usage)),
            Some(images) => {
                let nanodollars = nanodollars(images.cost(drawing)?);
                let drawn = Cost { nanodollars, price_version: None };
                Some(self.of(price, usage.unwrap_or(&Usage::default())).plus(drawn))
            }
        };
        self.price(provider, model, at, of).flatten()
    }

    fn is_paid(&self, usage: &Usage) -> bool {
        self.own.is_prepaid && usage.service == Service::Provisioned
    }

    fn price<T>(&self, provider: &str, model: &str, at: u64, take: impl Fn(&Price) -> T) -> Option<T> {
        let of = |price: &Price| match &self.own.adjustment {
            None => take(price),
            Some(adjustment) => take(&price.adjusted(adjustment)),
        };
        let own = self.own.priced.as_ref().and_then(|own| valid(own, at));
        own.map(of).or_else(|| self.prices.find(provider, model, at, of))
    }

    fn of(&self, price: &Price, usage: &Usage) -> Cost {
        Cost {
            nanodollars: if self.is_batch { price.batch_cost(usage) } else { price.cost(usage) },
            price_version: Some(price.version.clone()),
        }
    }
}

/// One price of a model.
#[derive(Debug)]
pub struct Price {
    pub version: Box<str>,
    /// Unix seconds.
    from: Option<u64>,
    /// Seconds of the day in UTC, if it is for a part of it: from the first up to the second, past midnight too.
    daily: Option<(u64, u64)>,
    /// Pico-dollars for each request.
    request: u64,
    images: Option<Box<Images>>,
    scale: Scale,
    /// What it costs where it is served faster, or when there is time.
    services: Vec<(Service, Scale)>,
    /// What is said of batches, and of which buckets it is; half of the price where nothing is.
    batch: Option<Box<(Rates, [bool; ALL])>>,
}

/// The prices of one model, of which the last that is valid counts.
pub type Priced = Arc<[Price]>;

type List = Arc<[(Clause, Priced)]>;

/// Whose prices a provider has, and what was found in them.
#[derive(Debug, Default)]
struct Seller {
    lists: Vec<List>,
    said: HashMap<Box<str>, Priced>,
    seen: Mutex<HashMap<Box<str>, Option<Priced>>>,
}

/// Everything that is known of prices.
#[derive(Debug, Default)]
pub struct Prices(HashMap<Box<str>, Seller>);

impl Prices {
    pub fn compile(published: Published, problems: &mut Vec<Problem>) -> Self {
        let mut lists: HashMap<String, List> = HashMap::with_capacity(published.lists.len());
        for (id, models) in published.lists {
            let path = format!("$.prices.lists.{id}");
            let models = models.into_iter().map(|model| (model.names, compile(model.prices, &path, problems)));
            lists.insert(id, models.collect());
        }
        let mut sellers: HashMap<Box<str>, Seller> = HashMap::new();
        for (provider, ids) in published.sellers {
            let lists = ids.iter().filter_map(|id| lists.get(id)).map(Arc::clone).collect();
            sellers.insert(provider.into(), Seller { lists, ..Seller::default() });
        }
        for (index, row) in published.said.into_iter().enumerate() {
            let priced = compile(row.prices, &format!("$.prices.said[{index}]"), problems);
            sellers.entry(row.provider.into()).or_default().said.insert(row.model.into(), priced);
        }
        Self(sellers)
    }

    /// What a model costs at a moment, in Unix seconds.
    pub fn find<T>(&self, provider: &str, model: &str, at: u64, take: impl Fn(&Price) -> T) -> Option<T> {
        let seller = self.0.get(provider)?;
        let said = seller.said.get(model).and_then(|priced| valid(priced, at));
        if let Some(price) = said {
            return Some(take(price));
        }
        valid(&seller.listed(model)?, at).map(take)
    }
}

impl Seller {
    fn listed(&self, model: &str) -> Option<Priced> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = seen.get(model) {
            return found.clone();
        }
        let found = self.look_up(&model.to_lowercase());
        if seen.len() >= MOST_SEEN {
            seen.clear();
        }
        seen.insert(model.into(), found.clone());
        found
    }

    fn look_up(&self, name: &str) -> Option<Priced> {
        let mut models = self.lists.iter().flat_map(|list| list.iter());
        models.find(|(names, _)| names.fits(name)).map(|(_, priced)| Arc::clone(priced))
    }
}

/// The last price that is valid at a moment, in Unix seconds.
pub fn valid(priced: &[Price], at: u64) -> Option<&Price> {
    priced.iter().rev().find(|price| price.is_valid(at))
}

pub fn compile(published: Vec<PublishedPrice>, path: &str, problems: &mut Vec<Problem>) -> Priced {
    published.into_iter().map(|price| Price::compile(price, path, problems)).collect()
}

impl Price {
    fn compile(published: PublishedPrice, path: &str, problems: &mut Vec<Problem>) -> Self {
        let PublishedPrice { version, from, daily, request, images, rates, batch, services: served } = published;
        let images = Images::of(images);
        for name in rates.unknown.iter().chain(batch.iter().chain(served.values()).flat_map(|said| &said.unknown)) {
            problems.push(Problem::new(format!("{path}.rates.{name}"), "is not a known price"));
        }
        let mut services = Vec::new();
        for (name, said) in served {
            match Service::of(name.as_bytes()) {
                Some(service) => services.push((service, Scale::compile(&said.over(&rates)))),
                None => problems.push(Problem::new(format!("{path}.services.{name}"), "is not a known service")),
            }
        }
        let has = |said: &Said, at| said.rates.iter().any(|(of, ..)| *of == at);
        let whose = |batch: &Said, at| has(batch, at).then_some(true).or(has(&rates, at).then_some(false));
        let own = |batch: &Said| std::array::from_fn(|at| of_kind(at, |at| whose(batch, at)).unwrap_or_default());
        let batch = batch.map(|batch| Box::new((rates_at(&batch, 0), own(&batch))));
        Self { version, from, daily, request, images, scale: Scale::compile(&rates), services, batch }
    }

    fn is_valid(&self, at: u64) -> bool {
        let time = at % SECONDS_OF_DAY;
        let is_hour =
            self.daily.is_none_or(
                |(start, end)| {
                    if start <= end { start <= time && time < end } else { start <= time || time < end }
                },
            );
        is_hour && self.from.is_none_or(|from| from <= at)
    }

    /// The same price as somebody pays it whose contract says so; its version names both.
    fn adjusted(&self, by: &Adjustment) -> Self {
        Self {
            version: format!("{}*{}", self.version, by.version).into(),
            from: self.from,
            daily: self.daily,
            request: times(self.request, by.request),
            images: self.images.as_ref().map(|images| Box::new(images.with(|price| times(price, by.image)))),
            scale: self.scale.with(|rates| by.rates(rates)),
            services: self
                .services
                .iter()
                .map(|(service, scale)| (*service, scale.with(|rates| by.rates(rates))))
                .collect(),
            batch: self.batch.as_ref().map(|batch| Box::new((by.rates(&batch.0), batch.1))),
        }
    }

    /// Whole nano-dollars, half of one rounded up.
    pub fn cost(&self, usage: &Usage) -> u64 {
        nanodollars(u128::from(self.request).saturating_add(spent(usage, self.rates_of(usage))))
    }

    /// The same in a batch that the provider runs: each bucket by its own rate there, or at half of the price.
    pub fn batch_cost(&self, usage: &Usage) -> u64 {
        let twice = |(at, (count, rate)): (usize, (u64, &u64))| {
            let own = self.batch.as_ref().filter(|batch| batch.1[at]).map(|batch| 2 * u128::from(batch.0[at]));
            let whole = if at < TOKENS { 1 } else { 2 };
            own.unwrap_or_else(|| whole * u128::from(*rate)).saturating_mul(count.into())
        };
        let tokens = buckets(usage).into_iter().zip(self.rates_of(usage)).enumerate().map(twice);
        nanodollars(u128::from(self.request / 2).saturating_add(tokens.fold(0, u128::saturating_add) / 2))
    }

    fn rates_of(&self, usage: &Usage) -> &Rates {
        let served = self.services.iter().find(|(service, _)| *service == usage.service);
        let scale = served.map_or(&self.scale, |(_, scale)| scale);
        scale.at(usage.total_in())
    }
}

fn nanodollars(pico: u128) -> u64 {
    u64::try_from(pico.saturating_add(500) / 1000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use penstock_llm::usage::Tools;

    use super::*;

    const LIST: &str = r#"{"sellers":{"openai":["openai"],"azure-openai":["azure","openai"]},
        "lists":{"azure":[{"names":{"is":"own"},"prices":[{"version":"a","rates":{"input":[[0,5]]}}]}],
        "openai":[
        {"names":{"any":[{"is":"gpt-4o"},{"starts":"gpt-4o-2"}]},"prices":[
            {"version":"old","rates":{"input":[[0,1000000]]}},
            {"version":"new","from":1000,"rates":{"input":[[0,2500000]],"output":[[0,10000000]],"cache_read":[[0,1250000]]}}]},
        {"names":{"all":[{"has":"long"},{"not":{"like":"-tts$"}}]},"prices":[{"version":"l",
            "rates":{"input":[[0,100],[200,300]],"output":[[0,7],[400,9]]}}]},
        {"names":{"ends":"-night"},"prices":[{"version":"day","request":1500,"rates":{}},
            {"version":"night","daily":[79200,3600],"rates":{"input":[[0,499]]}}]}]},
        "said":[{"provider":"mock","model":"m","prices":[{"version":"s","from":50,"rates":{"input":[[0,1000]]}}]}]}"#;

    fn prices() -> Prices {
        let mut problems = Vec::new();
        let prices = Prices::compile(serde_json::from_str(LIST).unwrap(), &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
        prices
    }

    fn cost(provider: &str, model: &str, at: u64, usage: Usage) -> Option<(String, u64)> {
        prices().find(provider, model, at, |price| (price.version.to_string(), price.cost(&usage)))
    }

    #[allow(clippy::unnecessary_wraps, reason = "as `cost` has it")]
    fn said(version: &str, cost: u64) -> Option<(String, u64)> {
        Some((version.to_owned(), cost))
    }

    #[test]
    fn each_bucket_is_paid_at_its_own_price_or_at_that_of_its_kind() {
        let usage = Usage { input: 10, output: 2, cache_read: 4, reasoning: 3, audio_in: 1, ..Usage::default() };
        assert_eq!(cost("openai", "gpt-4o", 2000, usage), said("new", 25_000 + 20_000 + 5_000 + 30_000 + 2_500));
        let written = Usage { cache_write_1h: 2, image_in: 1, ..Usage::default() };
        assert_eq!(cost("openai", "GPT-4o-2024-11-20", 2000, written), said("new", 7_500));
    }

    #[test]
    fn the_price_of_the_moment_counts() {
        let one = Usage { input: 1, ..Usage::default() };
        assert_eq!(cost("openai", "gpt-4o", 999, one), said("old", 1000));
        assert_eq!(cost("openai", "gpt-4o", 1000, one), said("new", 2500));
        for (time, version) in [(79_199, "day"), (79_200, "night"), (86_400 + 3_599, "night"), (3_600, "day")] {
            assert_eq!(cost("openai", "my-night", time, one).unwrap().0, version);
        }
        assert_eq!((cost("mock", "m", 49, one), cost("mock", "m", 50, one)), (None, said("s", 1)));
    }

    #[test]
    fn a_long_request_is_paid_whole_at_the_price_of_long_ones() {
        let asked = |input, output| cost("openai", "long", 0, Usage { input, output, ..Usage::default() });
        assert_eq!(asked(200, 10), said("l", 20));
        assert_eq!(asked(201, 10), said("l", 60));
        assert_eq!(asked(401, 1000), said("l", 129));
        assert_eq!(cost("openai", "long-tts", 0, Usage::default()), None);
    }

    #[test]
    fn parts_of_a_nano_dollar_are_rounded_and_sums_never_overflow() {
        let asked = |input| cost("openai", "x-night", 80_000, Usage { input, ..Usage::default() });
        assert_eq!((asked(1), asked(2)), (said("night", 0), said("night", 1)));
        assert_eq!(cost("openai", "x-night", 40_000, Usage::default()), said("day", 2));
        let most = Usage { input: u64::MAX, output: u64::MAX, ..Usage::default() };
        assert_eq!(cost("openai", "gpt-4o", 2000, most), said("new", u64::MAX));
    }

    #[test]
    fn who_sells_others_models_has_their_prices_unless_it_has_its_own() {
        assert_eq!(cost("azure-openai", "own", 0, Usage::default()).unwrap().0, "a");
        assert_eq!(cost("azure-openai", "gpt-4o", 0, Usage::default()).unwrap().0, "old");
        assert_eq!(cost("nobody", "gpt-4o", 0, Usage::default()), None);
    }

    #[test]
    fn a_batch_costs_what_is_said_of_batches_and_else_half() {
        let tools = Tools { web_searches: 1, ..Tools::default() };
        let usage = Usage { input: 3, output: 2, cache_read: 1, tools, ..Usage::default() };
        let cost = |price: &str| {
            let mut problems = Vec::new();
            let priced = compile(serde_json::from_str(price).unwrap(), "$", &mut problems);
            assert!(problems.is_empty(), "{problems:?}");
            valid(&priced, 0).unwrap().batch_cost(&usage)
        };
        let half = r#"[{"version":"v","request":4000,"rates":{"input":[[0,1000],[3,3000]],"output":[[0,5000]]}}]"#;
        assert_eq!(cost(half), 2 + 11);
        let own = half.replace(r#""rates""#, r#""batch":{"input":[[0,1000]],"output":[[0,2000]]},"rates""#);
        assert_eq!(cost(&own), 2 + 4 + 2 * 2);
        let one = own.replace(r#","output":[[0,2000]]"#, "");
        assert_eq!(cost(&one), 2 + 4 + 2 * 5 / 2);
        let searched = half.replace(r#""output""#, r#""web_search":[[0,7000]],"output""#);
        assert_eq!(cost(&searched), 2 + 11 + 7);
    }

    #[test]
    fn who_is_served_otherwise_pays_what_is_said_of_that() {
        let mut problems = Vec::new();
        let json = r#"[{"version":"v","rates":{"input":[[0,1000],[3,3000]],"output":[[0,5000]],"audio_in":[[0,7000]]},
            "services":{"flex":{"input":[[0,500],[3,1500]],"output":[[0,2500]]},"priority":{"output":[[0,9000]]}}}]"#;
        let priced = compile(serde_json::from_str(json).unwrap(), "$", &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
        let cost = |service, input| {
            let usage = Usage { input, output: 2, audio_in: 1, service, ..Usage::default() };
            valid(&priced, 0).unwrap().cost(&usage)
        };
        for (service, short, long) in [
            (Service::Standard, 2 + 10 + 7, 9 + 10 + 7),
            (Service::Flex, 1 + 5 + 7, 4 + 5 + 7 + 1),
            (Service::Priority, 2 + 18 + 7, 9 + 18 + 7),
            // Nothing is said of it.
            (Service::Fast, 2 + 10 + 7, 9 + 10 + 7),
        ] {
            assert_eq!((cost(service, 2), cost(service, 3)), (short, long), "{service:?}");
        }
        let json = r#"[{"version":"v","services":{"slow":{}}}]"#;
        drop(compile(serde_json::from_str(json).unwrap(), "$.x", &mut problems));
        assert_eq!(problems[0].path, "$.x.services.slow");
    }

    #[test]
    fn factors_of_a_contract_change_each_price_by_its_kind_and_its_version() {
        let mut problems = Vec::new();
        let by = r#"{"version":"f","request":3000000,"factors":{"input":500000,"output":0,"cache_read":1250000}}"#;
        let adjustment = Adjustment::compile(serde_json::from_str(by).unwrap(), "$", &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
        let own = Own { adjustment: Some(Arc::new(adjustment)), ..Own::default() };
        let mut tariff = Tariff { prices: Arc::new(prices()), own, others: None, is_batch: false };
        let usage = Usage { input: 4, output: 9, cache_read: 8, audio_in: 1, ..Usage::default() };
        let told = |tariff: &Tariff, model: &str| tariff.cost("openai", model, 40_000, &usage).unwrap();
        let cost = Cost { nanodollars: 5_000 + 12_500 + 2_500, price_version: Some("new*f".into()) };
        assert_eq!(told(&tariff, "gpt-4o"), cost);
        // Long requests and those that are paid by the request.
        let long = Usage { input: 201, output: 1000, ..Usage::default() };
        assert_eq!(tariff.cost("openai", "long", 0, &long).unwrap().nanodollars, 30);
        assert_eq!(told(&tariff, "x-night").nanodollars, 5);
        tariff.is_batch = true;
        assert_eq!(told(&tariff, "gpt-4o").nanodollars, 10_000);
        let own = r#"[{"version":"o","rates":{"input":[[0,2000]]}}]"#;
        tariff.own.priced = Some(compile(serde_json::from_str(own).unwrap(), "$", &mut problems));
        let cost = Cost { nanodollars: (4 * 1000 + 8 * 2500 + 2000) / 2000, price_version: Some("o*f".into()) };
        assert_eq!(told(&tariff, "gpt-4o"), cost);
    }

    #[test]
    fn any_number_of_made_up_models_takes_bounded_room() {
        let prices = prices();
        for index in 0..MOST_SEEN * 2 {
            assert_eq!(prices.find("openai", &format!("made-up-{index}"), 0, |_| ()), None);
        }
        assert!(prices.0["openai"].seen.lock().unwrap().len() <= MOST_SEEN);
    }

    #[test]
    fn a_price_or_a_factor_of_something_unknown_is_refused() {
        let mut problems = Vec::new();
        let json = r#"{"version":"v","request":1,"factors":{"water":1}}"#;
        drop(Adjustment::compile(serde_json::from_str(json).unwrap(), "$.x", &mut problems));
        assert_eq!(problems.remove(0).path, "$.x.factors.water");
        let json = r#"[{"version":"v","rates":{"water":[[0,1]]}}]"#;
        drop(compile(serde_json::from_str(json).unwrap(), "$.x", &mut problems));
        assert_eq!(problems[0].path, "$.x.rates.water");
    }
}
