//! Rates per kind of token and per tool use.

use std::{borrow::Cow, fmt};

use penstock_llm::usage::{ToolUses, Usage};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};

use super::highest_cost::HighestUsage;

/// Number of buckets that count tokens.
pub const TOKEN_BUCKET_COUNT: usize = 12;
/// Number of all buckets, including those that count tool uses and rerank queries.
pub const BUCKET_COUNT: usize = 19;

/// Pico-dollars per token of each bucket and per use of each tool, in the order of `usage_buckets`. Tool uses cost the
/// same in a batch.
pub type Rates = [u64; BUCKET_COUNT];

/// Price name of each bucket, and the bucket whose price it inherits if it has none.
pub const BUCKET_NAMES: [(&str, Option<&str>); BUCKET_COUNT] = [
    ("input", None),
    ("output", None),
    ("cache_read", Some("input")),
    ("cache_write", Some("input")),
    ("cache_write_1h", Some("cache_write")),
    ("reasoning", Some("output")),
    ("audio_in", Some("input")),
    ("audio_out", Some("output")),
    ("cache_read_audio", Some("cache_read")),
    ("image_in", Some("input")),
    ("image_out", Some("output")),
    ("cache_read_image", Some("cache_read")),
    ("web_search", None),
    ("file_search", None),
    ("x_search", None),
    ("code_execution", None),
    ("attachment_search", None),
    ("maps", None),
    ("search", None),
];

/// Positions in `Rates` of the buckets that count tokens of requests.
const INPUT_BUCKETS: [usize; 8] = [0, 2, 3, 4, 6, 8, 9, 11];
/// Positions in `Rates` of the buckets that count tokens of responses.
const OUTPUT_BUCKETS: [usize; 4] = [1, 5, 7, 10];
/// Position in `Rates` of the bucket that counts queries to rerank models.
const RANKING_BUCKET: usize = 18;

pub fn usage_buckets(usage: &Usage) -> Rates {
    let ToolUses { web_searches, file_searches, x_searches, code_executions, attachment_searches, maps, rankings } =
        usage.tool_uses;
    [
        usage.input,
        usage.output,
        usage.cache_read,
        usage.cache_write_5m,
        usage.cache_write_1h,
        usage.reasoning,
        usage.audio_in,
        usage.audio_out,
        usage.cache_read_audio,
        usage.image_in,
        usage.image_out,
        usage.cache_read_image,
        web_searches,
        file_searches,
        x_searches,
        code_executions,
        attachment_searches,
        maps,
        rankings,
    ]
}

/// Rates of one price, with tiers by input length.
#[derive(Debug, Default)]
pub struct RateTiers {
    base_rates: Rates,
    /// Rates that apply to all tokens if the input exceeds this number of tokens; longest tier first.
    tiers: Vec<(u64, Rates)>,
}

/// Rates as published: bucket, input length above which the rate applies, pico-dollars. Stored compactly, because there
/// are thousands.
#[derive(Debug, Clone, Default)]
pub struct PublishedRates {
    pub rates: Vec<(usize, u64, u64)>,
    pub unknown_names: Vec<String>,
}

impl<'de> Deserialize<'de> for PublishedRates {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PublishedRatesVisitor)
    }
}

struct PublishedRatesVisitor;

impl<'de> Visitor<'de> for PublishedRatesVisitor {
    type Value = PublishedRates;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("prices by bucket")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<PublishedRates, A::Error> {
        let mut published = PublishedRates::default();
        while let Some(name) = members.next_key::<Cow<str>>()? {
            let tiers = members.next_value::<Vec<(u64, u64)>>()?;
            match BUCKET_NAMES.iter().position(|(bucket_name, _)| *bucket_name == name) {
                Some(bucket) => published.rates.extend(tiers.into_iter().map(|(start, rate)| (bucket, start, rate))),
                None => published.unknown_names.push(name.into_owned()),
            }
        }
        published.rates.shrink_to_fit();
        Ok(published)
    }
}

impl RateTiers {
    pub fn compile(published: &PublishedRates) -> Self {
        let mut starts: Vec<u64> =
            published.rates.iter().map(|(_, start, _)| *start).filter(|start| *start > 0).collect();
        starts.sort_unstable_by(|left, right| right.cmp(left));
        starts.dedup();
        let tiers = starts.into_iter().map(|start| (start, resolve_rates(published, start))).collect();
        Self { base_rates: resolve_rates(published, 0), tiers }
    }

    /// Returns a copy with each set of rates converted by `other`.
    pub fn map_rates(&self, other: impl Fn(&Rates) -> Rates) -> Self {
        let tiers = self.tiers.iter().map(|(start, rates)| (*start, other(rates))).collect();
        Self { base_rates: other(&self.base_rates), tiers }
    }

    /// Returns the rates of a request with this many input tokens.
    pub fn for_length(&self, length: u64) -> &Rates {
        let tier = self.tiers.iter().find(|(start, _)| length > *start);
        tier.map_or(&self.base_rates, |(_, rates)| rates)
    }

    /// Returns the highest cost of usage within these bounds, in pico-dollars. Assumes the most expensive kind of
    /// tokens.
    pub fn highest_picodollars(&self, most: &HighestUsage<'_>) -> u128 {
        let reached = self.tiers.iter().filter(|(start, _)| most.input_tokens > *start).map(|(_, rates)| rates);
        let cost = |rates: &Rates| {
            let highest = |buckets: &[usize]| buckets.iter().map(|bucket| rates[*bucket]).max().unwrap_or(0);
            let product = |count: u64, rate: u64| u128::from(count) * u128::from(rate);
            product(most.input_tokens, highest(&INPUT_BUCKETS))
                .saturating_add(product(most.output_tokens, highest(&OUTPUT_BUCKETS)))
                .saturating_add(product(most.rankings, rates[RANKING_BUCKET]))
        };
        std::iter::once(&self.base_rates).chain(reached).map(cost).max().unwrap_or(0)
    }
}

impl PublishedRates {
    /// Adds the rates of `other` for buckets that have none.
    pub fn with_defaults(self, other: &Self) -> Self {
        let is_set = |at: usize| self.rates.iter().any(|(bucket, ..)| *bucket == at);
        let more: Vec<_> = other.rates.iter().filter(|(bucket, ..)| !is_set(*bucket)).copied().collect();
        Self { rates: [self.rates, more].concat(), unknown_names: self.unknown_names }
    }
}

/// Returns the cost of the usage in pico-dollars.
pub fn usage_picodollars(usage: &Usage, rates: &Rates) -> u128 {
    let products =
        usage_buckets(usage).into_iter().zip(rates).map(|(count, rate)| u128::from(count) * u128::from(*rate));
    products.fold(0, u128::saturating_add)
}

/// Returns all rates of a request of this length. A bucket without a rate inherits that of its parent bucket.
pub fn resolve_rates(rates: &PublishedRates, length: u64) -> Rates {
    let rate_at = |bucket: usize| {
        let tiers = rates.rates.iter().filter(|(entry_bucket, start, _)| *entry_bucket == bucket && *start <= length);
        tiers.max_by_key(|(_, start, _)| *start).map(|(_, _, rate)| *rate)
    };
    std::array::from_fn(|bucket| find_or_inherit(bucket, rate_at).unwrap_or_default())
}

/// Returns the value of a bucket, or that of the closest parent bucket that has one.
pub fn find_or_inherit<T>(mut bucket: usize, lookup: impl Fn(usize) -> Option<T>) -> Option<T> {
    loop {
        if let found @ Some(_) = lookup(bucket) {
            return found;
        }
        let other = BUCKET_NAMES[bucket].1?;
        bucket = BUCKET_NAMES.iter().position(|(name, _)| *name == other)?;
    }
}
