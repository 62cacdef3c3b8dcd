//! Prices as they are published: what is read, before anything is compiled.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::rates::PublishedRates;
use crate::accounting::prices::model_clauses::NameClause;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedAdjustment {
    pub(crate) version: Box<str>,
    /// Of what is paid for each request.
    pub(crate) request: u64,
    /// Of what is paid for each image, where that differs by another.
    #[serde(default)]
    pub(crate) image: Option<u64>,
    /// By bucket; what is left out is as it was.
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
    /// Pico-dollars for an image, by quality and size.
    #[serde(default)]
    pub(crate) images: BTreeMap<Box<str>, BTreeMap<Box<str>, u64>>,
    /// By bucket: pico-dollars for a token, where more than so many are asked.
    #[serde(default)]
    pub(crate) rates: PublishedRates,
    /// Likewise, in batches that the provider runs.
    #[serde(default)]
    pub(crate) batch: Option<PublishedRates>,
    /// Likewise, by what its provider calls the way in which it was served.
    #[serde(default)]
    pub(crate) services: BTreeMap<String, PublishedRates>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct PublishedPrices {
    /// The list of each provider, and those in which others' models are looked up.
    #[serde(default)]
    pub(crate) sellers: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub(crate) lists: BTreeMap<String, Vec<PublishedModel>>,
    /// What the operator says instead.
    #[serde(default)]
    pub(crate) said: Vec<PublishedOverride>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishedModel {
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
