//! Prices as they are published: what is read, before anything is compiled.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{names::Clause, rates::Said};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedAdjustment {
    pub(super) version: Box<str>,
    /// Of what is paid for each request.
    pub(super) request: u64,
    /// Of what is paid for each image, where that differs by another.
    #[serde(default)]
    pub(super) image: Option<u64>,
    /// By bucket; what is left out is as it was.
    pub(super) factors: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedPrice {
    pub(super) version: Box<str>,
    #[serde(default)]
    pub(super) from: Option<u64>,
    #[serde(default)]
    pub(super) daily: Option<(u64, u64)>,
    #[serde(default)]
    pub(super) request: u64,
    /// Pico-dollars for an image, by quality and size.
    #[serde(default)]
    pub(super) images: BTreeMap<Box<str>, BTreeMap<Box<str>, u64>>,
    /// By bucket: pico-dollars for a token, where more than so many are asked.
    #[serde(default)]
    pub(super) rates: Said,
    /// Likewise, in batches that the provider runs.
    #[serde(default)]
    pub(super) batch: Option<Said>,
    /// Likewise, by what its provider calls the way in which it was served.
    #[serde(default)]
    pub(super) services: BTreeMap<String, Said>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The list of each provider, and those in which others' models are looked up.
    #[serde(default)]
    pub(super) sellers: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub(super) lists: BTreeMap<String, Vec<PublishedModel>>,
    /// What the operator says instead.
    #[serde(default)]
    pub(super) said: Vec<PublishedSaid>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishedModel {
    pub(super) names: Clause,
    pub(super) prices: Vec<PublishedPrice>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishedSaid {
    pub(super) provider: String,
    pub(super) model: String,
    pub(super) prices: Vec<PublishedPrice>,
}
