//! Request costs in whole nano-dollars. Compiles published prices and finds them by provider and model.

mod highest_cost;
pub(crate) mod image_prices;
pub(crate) mod model_clauses;
mod published;
mod rates;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use penstock_llm::{
    api_format::ImageParams,
    usage::{ServiceTier, Usage},
};

pub use self::highest_cost::HighestUsage;
pub use self::published::{PublishedAdjustment, PublishedPrice, PublishedPrices};
use self::rates::{
    BUCKET_COUNT, BUCKET_NAMES, PublishedRates, RateTiers, Rates, TOKEN_BUCKET_COUNT, find_or_inherit, resolve_rates,
    usage_buckets, usage_picodollars,
};
use crate::accounting::prices::{image_prices::ImagePrices, model_clauses::NameClause};
use crate::{accounting::saved_models::SavedModels, error::Problem};

/// Maximum number of models per provider whose price lookup is cached. Bounded because clients may send any model name.
const MAX_CACHED_MODELS: usize = 1000;
const SECONDS_PER_DAY: u64 = 86_400;

/// Cost of a request, and the price version that it was computed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cost {
    pub nanodollars: u64,
    /// Version of the price that was applied; `None` if the request is free of charge.
    pub price_version: Option<Box<str>>,
}

/// Pricing that is saved with a provider.
#[derive(Debug, Clone, Default)]
pub struct ProviderPricing {
    /// Prices of the requested model.
    pub model_prices: Option<ModelPrices>,
    /// Factors for all prices of the provider.
    pub adjustment: Option<Arc<Adjustment>>,
    /// True if provisioned throughput is paid in advance, so that the requests that it serves cost nothing.
    pub is_prepaid: bool,
}

/// Factors of prices in millionths, for a contract that differs from the list prices.
#[derive(Debug)]
pub struct Adjustment {
    version: Box<str>,
    request_factor: u64,
    image_factor: u64,
    rate_factors: Rates,
}

const MILLION: u64 = 1_000_000;

impl Adjustment {
    pub fn compile(published: PublishedAdjustment, path: &str, problems: &mut Vec<Problem>) -> Self {
        let PublishedAdjustment { version, request: request_factor, image, factors: factors_by_name } = published;
        for name in
            factors_by_name.keys().filter(|name| BUCKET_NAMES.iter().all(|(bucket_name, _)| bucket_name != name))
        {
            problems.push(Problem::new(format!("{path}.factors.{name}"), "is not a known price"));
        }
        let rate_factors = BUCKET_NAMES.map(|(name, _)| factors_by_name.get(name).copied().unwrap_or(MILLION));
        Self { version, request_factor, image_factor: image.unwrap_or(request_factor), rate_factors }
    }

    fn adjust_rates(&self, rates: &Rates) -> Rates {
        std::array::from_fn(|bucket| scale_by_millionths(rates[bucket], self.rate_factors[bucket]))
    }
}

/// Multiplies a number by a factor in millionths; rounds half up.
fn scale_by_millionths(number: u64, factor: u64) -> u64 {
    let product = u128::from(number) * u128::from(factor);
    u64::try_from((product + u128::from(MILLION / 2)) / u128::from(MILLION)).unwrap_or(u64::MAX)
}

/// Price sources of one request, used once its usage is known.
#[derive(Debug, Clone, Default)]
pub struct RequestPricing {
    pub prices: Arc<Prices>,
    /// Pricing saved with the provider.
    pub provider_pricing: ProviderPricing,
    /// Saved models of the provider, for models that the request did not name.
    pub saved_models: Option<Arc<SavedModels>>,
    /// True if the request runs in a provider's batch, which costs less.
    pub is_batch: bool,
}

impl Cost {
    /// Cost of a request for which nothing has to be paid.
    const ZERO: Self = Self { nanodollars: 0, price_version: None };

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let price_version = match (self.price_version, other.price_version) {
            (Some(first), Some(second)) if first != second => Some(format!("{first}+{second}").into()),
            (first, second) => first.or(second),
        };
        Self { nanodollars: self.nanodollars.saturating_add(other.nanodollars), price_version }
    }
}

impl RequestPricing {
    /// Returns the pricing for a model other than the one that the request named.
    #[must_use]
    pub fn for_other_model(&self, model: &str) -> Self {
        let priced = self.saved_models.as_ref().and_then(|models| models.model_prices(model));
        Self {
            provider_pricing: ProviderPricing { model_prices: priced, ..self.provider_pricing.clone() },
            ..self.clone()
        }
    }

    /// Returns the cost of this usage of a model; `at` is in Unix seconds. `None` if no price is known.
    pub fn cost(&self, provider: &str, model: &str, at: u64, usage: &Usage) -> Option<Cost> {
        if self.is_prepaid_usage(usage) {
            return Some(Cost::ZERO);
        }
        self.apply_price(provider, model, at, |price| self.usage_cost(price, usage))
    }

    /// Returns the cost of generated images, which may be priced per image. Usage is not needed if a price per image is
    /// known.
    pub fn image_cost(
        &self,
        provider: &str,
        model: &str,
        at: u64,
        usage: Option<&Usage>,
        image_params: &ImageParams,
    ) -> Option<Cost> {
        if usage.is_some_and(|usage| self.is_prepaid_usage(usage)) {
            return Some(Cost::ZERO);
        }
        let total_cost = |price: &Price| match &price.image_prices {
            None => usage.map(|usage| self.usage_cost(price, usage)),
            Some(images) => {
                let nanodollars = to_nanodollars(images.cost(image_params)?);
                let image_cost = Cost { nanodollars, price_version: None };
                Some(self.usage_cost(price, usage.unwrap_or(&Usage::default())).plus(image_cost))
            }
        };
        self.apply_price(provider, model, at, total_cost).flatten()
    }

    fn is_prepaid_usage(&self, usage: &Usage) -> bool {
        self.provider_pricing.is_prepaid && usage.service_tier == ServiceTier::Provisioned
    }

    fn apply_price<T>(&self, provider: &str, model: &str, at: u64, compute: impl Fn(&Price) -> T) -> Option<T> {
        let apply = |price: &Price| match &self.provider_pricing.adjustment {
            None => compute(price),
            Some(adjustment) => compute(&price.adjusted(adjustment)),
        };
        let own_price = self.provider_pricing.model_prices.as_ref().and_then(|prices| find_valid_price(prices, at));
        own_price.map(apply).or_else(|| self.prices.find(provider, model, at, apply))
    }

    fn usage_cost(&self, price: &Price, usage: &Usage) -> Cost {
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
    /// Start of the price's validity, in Unix seconds.
    valid_from: Option<u64>,
    /// Daily validity window in seconds of the day (UTC): start inclusive, end exclusive. The window may cross
    /// midnight.
    daily_window: Option<(u64, u64)>,
    /// Pico-dollars per request.
    request_picodollars: u64,
    image_prices: Option<Box<ImagePrices>>,
    rate_tiers: RateTiers,
    /// Rates by service level, such as faster or deferred processing.
    service_tiers: Vec<(ServiceTier, RateTiers)>,
    /// Batch rates, and a flag for each bucket that has one. Without one, tokens cost half of the usual rate and tool
    /// uses cost the usual rate.
    batch_rates: Option<Box<(Rates, [bool; BUCKET_COUNT])>>,
}

/// Prices of one model. The last valid one applies.
pub type ModelPrices = Arc<[Price]>;

type PriceList = Arc<[(NameClause, ModelPrices)]>;

/// Price lists of one provider, the operator's overrides, and a cache of lookups.
#[derive(Debug, Default)]
struct ProviderPrices {
    lists: Vec<PriceList>,
    overrides: HashMap<Box<str>, ModelPrices>,
    lookup_cache: Mutex<HashMap<Box<str>, Option<ModelPrices>>>,
}

/// Prices of all providers.
#[derive(Debug, Default)]
pub struct Prices(HashMap<Box<str>, ProviderPrices>);

impl Prices {
    pub fn compile(published: PublishedPrices, problems: &mut Vec<Problem>) -> Self {
        let mut lists: HashMap<String, PriceList> = HashMap::with_capacity(published.lists.len());
        for (id, models) in published.lists {
            let path = format!("$.prices.lists.{id}");
            let models = models.into_iter().map(|model| (model.names, compile_prices(model.prices, &path, problems)));
            lists.insert(id, models.collect());
        }
        let mut by_provider: HashMap<Box<str>, ProviderPrices> = HashMap::new();
        for (provider, ids) in published.sellers {
            let lists = ids.iter().filter_map(|id| lists.get(id)).map(Arc::clone).collect();
            by_provider.insert(provider.into(), ProviderPrices { lists, ..ProviderPrices::default() });
        }
        for (index, row) in published.overrides.into_iter().enumerate() {
            let priced = compile_prices(row.prices, &format!("$.prices.overrides[{index}]"), problems);
            by_provider.entry(row.provider.into()).or_default().overrides.insert(row.model.into(), priced);
        }
        Self(by_provider)
    }

    /// Applies `compute` to the price of a model that is valid at `at` (Unix seconds). `None` if no price is known.
    pub fn find<T>(&self, provider: &str, model: &str, at: u64, compute: impl Fn(&Price) -> T) -> Option<T> {
        let provider_prices = self.0.get(provider)?;
        let override_price = provider_prices.overrides.get(model).and_then(|priced| find_valid_price(priced, at));
        if let Some(price) = override_price {
            return Some(compute(price));
        }
        find_valid_price(&provider_prices.find_listed(model)?, at).map(compute)
    }
}

impl ProviderPrices {
    fn find_listed(&self, model: &str) -> Option<ModelPrices> {
        let mut cache = self.lookup_cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(price_list) = cache.get(model) {
            return price_list.clone();
        }
        let price_list = self.search_lists(&model.to_lowercase());
        if cache.len() >= MAX_CACHED_MODELS {
            cache.clear();
        }
        cache.insert(model.into(), price_list.clone());
        price_list
    }

    fn search_lists(&self, name: &str) -> Option<ModelPrices> {
        let mut models = self.lists.iter().flat_map(|list| list.iter());
        models.find(|(names, _)| names.matches(name)).map(|(_, priced)| Arc::clone(priced))
    }
}

/// Returns the last price that is valid at `at` (Unix seconds).
pub fn find_valid_price(priced: &[Price], at: u64) -> Option<&Price> {
    priced.iter().rev().find(|price| price.is_valid_at(at))
}

pub fn compile_prices(published: Vec<PublishedPrice>, path: &str, problems: &mut Vec<Problem>) -> ModelPrices {
    published.into_iter().map(|price| Price::compile(price, path, problems)).collect()
}

impl Price {
    fn compile(published: PublishedPrice, path: &str, problems: &mut Vec<Problem>) -> Self {
        let PublishedPrice {
            version,
            from: valid_from,
            daily: daily_window,
            request: request_picodollars,
            images,
            rates,
            batch,
            services: service_rates,
        } = published;
        let image_prices = ImagePrices::from_published(images);
        for name in rates
            .unknown_names
            .iter()
            .chain(batch.iter().chain(service_rates.values()).flat_map(|tier_rates| &tier_rates.unknown_names))
        {
            problems.push(Problem::new(format!("{path}.rates.{name}"), "is not a known price"));
        }
        let mut service_tiers = Vec::new();
        for (name, tier_rates) in service_rates {
            match ServiceTier::parse(name.as_bytes()) {
                Some(service) => service_tiers.push((service, RateTiers::compile(&tier_rates.with_defaults(&rates)))),
                None => problems.push(Problem::new(format!("{path}.services.{name}"), "is not a known service")),
            }
        }
        let has = |source: &PublishedRates, at| source.rates.iter().any(|(bucket, ..)| *bucket == at);
        let from_batch =
            |batch: &PublishedRates, at| has(batch, at).then_some(true).or(has(&rates, at).then_some(false));
        let has_own_rate = |batch: &PublishedRates| {
            std::array::from_fn(|at| find_or_inherit(at, |at| from_batch(batch, at)).unwrap_or_default())
        };
        let batch_rates = batch.map(|batch| Box::new((resolve_rates(&batch, 0), has_own_rate(&batch))));
        Self {
            version,
            valid_from,
            daily_window,
            request_picodollars,
            image_prices,
            rate_tiers: RateTiers::compile(&rates),
            service_tiers,
            batch_rates,
        }
    }

    fn is_valid_at(&self, at: u64) -> bool {
        let time = at % SECONDS_PER_DAY;
        let is_hour = self.daily_window.is_none_or(|(start, end)| {
            if start <= end { start <= time && time < end } else { start <= time || time < end }
        });
        is_hour && self.valid_from.is_none_or(|from| from <= at)
    }

    /// Returns the price with a contract's factors applied. Its version combines those of the price and of the
    /// adjustment.
    fn adjusted(&self, by: &Adjustment) -> Self {
        Self {
            version: format!("{}*{}", self.version, by.version).into(),
            valid_from: self.valid_from,
            daily_window: self.daily_window,
            request_picodollars: scale_by_millionths(self.request_picodollars, by.request_factor),
            image_prices: self
                .image_prices
                .as_ref()
                .map(|images| Box::new(images.map_prices(|price| scale_by_millionths(price, by.image_factor)))),
            rate_tiers: self.rate_tiers.map_rates(|rates| by.adjust_rates(rates)),
            service_tiers: self
                .service_tiers
                .iter()
                .map(|(service, scale)| (*service, scale.map_rates(|rates| by.adjust_rates(rates))))
                .collect(),
            batch_rates: self.batch_rates.as_ref().map(|batch| Box::new((by.adjust_rates(&batch.0), batch.1))),
        }
    }

    /// Returns the cost in whole nano-dollars; rounds half up.
    pub fn cost(&self, usage: &Usage) -> u64 {
        to_nanodollars(
            u128::from(self.request_picodollars).saturating_add(usage_picodollars(usage, self.select_rates(usage))),
        )
    }

    /// Returns the cost in a provider's batch, in whole nano-dollars. A bucket without a batch rate is charged at half
    /// of its usual rate if it counts tokens, else at its usual rate.
    pub fn batch_cost(&self, usage: &Usage) -> u64 {
        let doubled_cost = |(at, (count, rate)): (usize, (u64, &u64))| {
            let batch_rate =
                self.batch_rates.as_ref().filter(|batch| batch.1[at]).map(|batch| 2 * u128::from(batch.0[at]));
            let multiplier = if at < TOKEN_BUCKET_COUNT { 1 } else { 2 };
            batch_rate.unwrap_or_else(|| multiplier * u128::from(*rate)).saturating_mul(count.into())
        };
        let tokens = usage_buckets(usage).into_iter().zip(self.select_rates(usage)).enumerate().map(doubled_cost);
        to_nanodollars(
            u128::from(self.request_picodollars / 2).saturating_add(tokens.fold(0, u128::saturating_add) / 2),
        )
    }

    fn select_rates(&self, usage: &Usage) -> &Rates {
        let tier = self.service_tiers.iter().find(|(service, _)| *service == usage.service_tier);
        let scale = tier.map_or(&self.rate_tiers, |(_, scale)| scale);
        scale.for_length(usage.total_input())
    }
}

fn to_nanodollars(pico: u128) -> u64 {
    u64::try_from(pico.saturating_add(500) / 1000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use penstock_llm::usage::ToolUses;

    use super::*;

    const PRICES_JSON: &str = r#"{"sellers":{"openai":["openai"],"azure-openai":["azure","openai"]},
        "lists":{"azure":[{"names":{"is":"own"},"prices":[{"version":"a","rates":{"input":[[0,5]]}}]}],
        "openai":[
        {"names":{"any":[{"is":"gpt-4o"},{"starts":"gpt-4o-2"}]},"prices":[
            {"version":"old","rates":{"input":[[0,1000000]]}},
            {"version":"new","from":1000,"rates":{"input":[[0,2500000]],"output":[[0,10000000]],"cache_read":[[0,1250000]]}}]},
        {"names":{"all":[{"has":"long"},{"not":{"like":"-tts$"}}]},"prices":[{"version":"l",
            "rates":{"input":[[0,100],[200,300]],"output":[[0,7],[400,9]]}}]},
        {"names":{"ends":"-night"},"prices":[{"version":"day","request":1500,"rates":{}},
            {"version":"night","daily":[79200,3600],"rates":{"input":[[0,499]]}}]}]},
        "overrides":[{"provider":"mock","model":"m","prices":[{"version":"s","from":50,"rates":{"input":[[0,1000]]}}]}]}"#;

    fn sample_prices() -> Prices {
        let mut problems = Vec::new();
        let prices = Prices::compile(serde_json::from_str(PRICES_JSON).unwrap(), &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
        prices
    }

    fn find_cost(provider: &str, model: &str, at: u64, usage: Usage) -> Option<(String, u64)> {
        sample_prices().find(provider, model, at, |price| (price.version.to_string(), price.cost(&usage)))
    }

    #[allow(clippy::unnecessary_wraps, reason = "as `cost` has it")]
    fn expected_cost(version: &str, cost: u64) -> Option<(String, u64)> {
        Some((version.to_owned(), cost))
    }

    #[test]
    fn prices_each_bucket_at_its_own_or_inherited_rate() {
        let usage = Usage { input: 10, output: 2, cache_read: 4, reasoning: 3, audio_in: 1, ..Usage::default() };
        assert_eq!(
            find_cost("openai", "gpt-4o", 2000, usage),
            expected_cost("new", 25_000 + 20_000 + 5_000 + 30_000 + 2_500)
        );
        let written = Usage { cache_write_1h: 2, image_in: 1, ..Usage::default() };
        assert_eq!(find_cost("openai", "GPT-4o-2024-11-20", 2000, written), expected_cost("new", 7_500));
    }

    #[test]
    fn picks_the_price_valid_at_the_time() {
        let usage = Usage { input: 1, ..Usage::default() };
        assert_eq!(find_cost("openai", "gpt-4o", 999, usage), expected_cost("old", 1000));
        assert_eq!(find_cost("openai", "gpt-4o", 1000, usage), expected_cost("new", 2500));
        for (time, version) in [(79_199, "day"), (79_200, "night"), (86_400 + 3_599, "night"), (3_600, "day")] {
            assert_eq!(find_cost("openai", "my-night", time, usage).unwrap().0, version);
        }
        assert_eq!(
            (find_cost("mock", "m", 49, usage), find_cost("mock", "m", 50, usage)),
            (None, expected_cost("s", 1))
        );
    }

    #[test]
    fn prices_all_tokens_of_a_long_request_at_its_tier() {
        let cost_of = |input, output| find_cost("openai", "long", 0, Usage { input, output, ..Usage::default() });
        assert_eq!(cost_of(200, 10), expected_cost("l", 20));
        assert_eq!(cost_of(201, 10), expected_cost("l", 60));
        assert_eq!(cost_of(401, 1000), expected_cost("l", 129));
        assert_eq!(find_cost("openai", "long-tts", 0, Usage::default()), None);
    }

    #[test]
    fn rounds_nanodollars_and_saturates_sums() {
        let cost_of = |input| find_cost("openai", "x-night", 80_000, Usage { input, ..Usage::default() });
        assert_eq!((cost_of(1), cost_of(2)), (expected_cost("night", 0), expected_cost("night", 1)));
        assert_eq!(find_cost("openai", "x-night", 40_000, Usage::default()), expected_cost("day", 2));
        let highest_usage = Usage { input: u64::MAX, output: u64::MAX, ..Usage::default() };
        assert_eq!(find_cost("openai", "gpt-4o", 2000, highest_usage), expected_cost("new", u64::MAX));
    }

    #[test]
    fn reseller_uses_its_own_list_before_the_original_prices() {
        assert_eq!(find_cost("azure-openai", "own", 0, Usage::default()).unwrap().0, "a");
        assert_eq!(find_cost("azure-openai", "gpt-4o", 0, Usage::default()).unwrap().0, "old");
        assert_eq!(find_cost("nobody", "gpt-4o", 0, Usage::default()), None);
    }

    #[test]
    fn batch_uses_batch_rates_or_half_price() {
        let tools = ToolUses { web_searches: 1, ..ToolUses::default() };
        let usage = Usage { input: 3, output: 2, cache_read: 1, tool_uses: tools, ..Usage::default() };
        let cost = |price: &str| {
            let mut problems = Vec::new();
            let priced = compile_prices(serde_json::from_str(price).unwrap(), "$", &mut problems);
            assert!(problems.is_empty(), "{problems:?}");
            find_valid_price(&priced, 0).unwrap().batch_cost(&usage)
        };
        let half = r#"[{"version":"v","request":4000,"rates":{"input":[[0,1000],[3,3000]],"output":[[0,5000]]}}]"#;
        assert_eq!(cost(half), 2 + 11);
        let batch_prices = half.replace(r#""rates""#, r#""batch":{"input":[[0,1000]],"output":[[0,2000]]},"rates""#);
        assert_eq!(cost(&batch_prices), 2 + 4 + 2 * 2);
        let without_output = batch_prices.replace(r#","output":[[0,2000]]"#, "");
        assert_eq!(cost(&without_output), 2 + 4 + 2 * 5 / 2);
        let searched = half.replace(r#""output""#, r#""web_search":[[0,7000]],"output""#);
        assert_eq!(cost(&searched), 2 + 11 + 7);
    }

    #[test]
    fn service_level_uses_its_own_rates() {
        let mut problems = Vec::new();
        let json = r#"[{"version":"v","rates":{"input":[[0,1000],[3,3000]],"output":[[0,5000]],"audio_in":[[0,7000]]},
            "services":{"flex":{"input":[[0,500],[3,1500]],"output":[[0,2500]]},"priority":{"output":[[0,9000]]}}}]"#;
        let priced = compile_prices(serde_json::from_str(json).unwrap(), "$", &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
        let cost = |service, input| {
            let usage = Usage { input, output: 2, audio_in: 1, service_tier: service, ..Usage::default() };
            find_valid_price(&priced, 0).unwrap().cost(&usage)
        };
        for (service, short, long) in [
            (ServiceTier::Standard, 2 + 10 + 7, 9 + 10 + 7),
            (ServiceTier::Flex, 1 + 5 + 7, 4 + 5 + 7 + 1),
            (ServiceTier::Priority, 2 + 18 + 7, 9 + 18 + 7),
            // No rates are defined for this tier, so the usual rates apply.
            (ServiceTier::Fast, 2 + 10 + 7, 9 + 10 + 7),
        ] {
            assert_eq!((cost(service, 2), cost(service, 3)), (short, long), "{service:?}");
        }
        let json = r#"[{"version":"v","services":{"slow":{}}}]"#;
        drop(compile_prices(serde_json::from_str(json).unwrap(), "$.x", &mut problems));
        assert_eq!(problems[0].path, "$.x.services.slow");
    }

    #[test]
    fn contract_factors_scale_prices_and_extend_the_version() {
        let mut problems = Vec::new();
        let by = r#"{"version":"f","request":3000000,"factors":{"input":500000,"output":0,"cache_read":1250000}}"#;
        let adjustment = Adjustment::compile(serde_json::from_str(by).unwrap(), "$", &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
        let pricing = ProviderPricing { adjustment: Some(Arc::new(adjustment)), ..ProviderPricing::default() };
        let mut tariff = RequestPricing {
            prices: Arc::new(sample_prices()),
            provider_pricing: pricing,
            saved_models: None,
            is_batch: false,
        };
        let usage = Usage { input: 4, output: 9, cache_read: 8, audio_in: 1, ..Usage::default() };
        let cost_for = |tariff: &RequestPricing, model: &str| tariff.cost("openai", model, 40_000, &usage).unwrap();
        let cost = Cost { nanodollars: 5_000 + 12_500 + 2_500, price_version: Some("new*f".into()) };
        assert_eq!(cost_for(&tariff, "gpt-4o"), cost);
        // Covers long requests and prices per request.
        let long = Usage { input: 201, output: 1000, ..Usage::default() };
        assert_eq!(tariff.cost("openai", "long", 0, &long).unwrap().nanodollars, 30);
        assert_eq!(cost_for(&tariff, "x-night").nanodollars, 5);
        tariff.is_batch = true;
        assert_eq!(cost_for(&tariff, "gpt-4o").nanodollars, 10_000);
        let own_prices = r#"[{"version":"o","rates":{"input":[[0,2000]]}}]"#;
        tariff.provider_pricing.model_prices =
            Some(compile_prices(serde_json::from_str(own_prices).unwrap(), "$", &mut problems));
        let cost = Cost { nanodollars: (4 * 1000 + 8 * 2500 + 2000) / 2000, price_version: Some("o*f".into()) };
        assert_eq!(cost_for(&tariff, "gpt-4o"), cost);
    }

    #[test]
    fn lookup_cache_is_bounded_for_unknown_models() {
        let prices = sample_prices();
        for index in 0..MAX_CACHED_MODELS * 2 {
            assert_eq!(prices.find("openai", &format!("made-up-{index}"), 0, |_| ()), None);
        }
        assert!(prices.0["openai"].lookup_cache.lock().unwrap().len() <= MAX_CACHED_MODELS);
    }

    #[test]
    fn rejects_unknown_price_and_factor_names() {
        let mut problems = Vec::new();
        let json = r#"{"version":"v","request":1,"factors":{"water":1}}"#;
        drop(Adjustment::compile(serde_json::from_str(json).unwrap(), "$.x", &mut problems));
        assert_eq!(problems.remove(0).path, "$.x.factors.water");
        let json = r#"[{"version":"v","rates":{"water":[[0,1]]}}]"#;
        drop(compile_prices(serde_json::from_str(json).unwrap(), "$.x", &mut problems));
        assert_eq!(problems[0].path, "$.x.rates.water");
    }
}
