//! Prices in their published form, as deserialised before compilation.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::rates::PublishedRates;
use crate::accounting::prices::model_clauses::NameClause;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedAdjustment {
    pub(crate) version: Box<str>,
    /// Factor of the price per request.
    pub(crate) request: u64,
    /// Factor of the price per image; `request` applies if absent.
    #[serde(default)]
    pub(crate) image: Option<u64>,
    /// Factors by bucket; a missing bucket keeps its rate.
    pub(crate) factors: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedPrice {
    pub(crate) version: Box<str>,
    #[serde(default)]
    pub(crate) from: Option<u64>,
    #[serde(default)]
    pub(crate) daily: Option<(u64, u64)>,
    #[serde(default)]
    pub(crate) request: u64,
    /// Pico-dollars per image, by quality and size.
    #[serde(default)]
    pub(crate) images: BTreeMap<Box<str>, BTreeMap<Box<str>, u64>>,
    /// Pico-dollars per token by bucket, each with the input length above which it applies.
    #[serde(default)]
    pub(crate) rates: PublishedRates,
    /// Rates in batches that the provider runs.
    #[serde(default)]
    pub(crate) batch: Option<PublishedRates>,
    /// Rates by the provider's name of the service level.
    #[serde(default)]
    pub(crate) services: BTreeMap<String, PublishedRates>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct PublishedPrices {
    /// Lists of each provider, in lookup order: its own first, then those of the providers whose models it resells.
    #[serde(default)]
    pub(crate) sellers: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub(crate) lists: BTreeMap<String, Vec<PublishedModelPrices>>,
    /// Prices of the operator, which replace those of the lists.
    #[serde(default)]
    pub(crate) overrides: Vec<PublishedOverride>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedModelPrices {
    pub(crate) names: NameClause,
    pub(crate) prices: Vec<PublishedPrice>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedOverride {
    pub(crate) provider: String,
    pub(crate) model: String,
    pub(crate) prices: Vec<PublishedPrice>,
}
