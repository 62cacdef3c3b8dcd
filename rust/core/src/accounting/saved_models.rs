//! Models of an integration as the store publishes them: which are allowed, their prices, hosts, headers and options.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use penstock_llm::api_format;
use penstock_llm::catalog::{self, OptionField};
use serde::Deserialize;

use crate::{
    accounting::prices::{self, Adjustment, ModelPrices, PublishedAdjustment, PublishedPrice},
    error::{Error, Problem, Result},
    ingress::headers::is_allowed_field,
    upstream::BaseUrl,
};

/// Header fields added to every request to a saved provider, or to one of its models.
pub type HeaderFields = Vec<(String, String)>;

/// Models of a saved provider: permissions, options and prices.
#[derive(Debug, Default)]
pub struct SavedModels {
    /// True if models that are not listed may be used.
    pub(crate) allow_all: bool,
    /// True if at least one listed model is disabled.
    pub(crate) has_disabled: bool,
    pub(crate) by_slug: HashMap<String, SavedModel>,
    /// Factors by which its prices differ from the list prices.
    pub(crate) price_adjustment: Option<Arc<Adjustment>>,
    /// True if header fields or credentials are stored with at least one model.
    pub has_stored_fields: bool,
}

#[derive(Debug)]
pub(crate) struct SavedModel {
    pub(crate) is_enabled: bool,
    pub(crate) custom_host: Option<BaseUrl>,
    pub(crate) header_fields: HeaderFields,
    pub(crate) options: Vec<(OptionField, String)>,
    pub(crate) prices: Option<ModelPrices>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedModels {
    pub id: String,
    allow_all: bool,
    models: Vec<PublishedModel>,
    #[serde(default)]
    adjustment: Option<PublishedAdjustment>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedModel {
    slug: String,
    enabled: bool,
    #[serde(default)]
    custom_host: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    options: BTreeMap<String, String>,
    #[serde(default)]
    prices: Vec<PublishedPrice>,
}

impl SavedModels {
    /// Returns true if at least one model may not be used.
    pub fn is_restricted(&self) -> bool {
        !self.allow_all || self.has_disabled
    }

    /// Returns true if this model may be used.
    pub fn is_allowed(&self, model: &str) -> bool {
        self.by_slug.get(model).map_or(self.allow_all, |saved| saved.is_enabled)
    }

    /// Returns the saved prices of a model.
    pub fn model_prices(&self, model: &str) -> Option<ModelPrices> {
        self.by_slug.get(model).and_then(|saved| saved.prices.clone())
    }

    /// Rejects a request that uses a forbidden model in addition to its main model.
    pub fn check_secondary_models(&self, request: &[u8]) -> Result<()> {
        if !self.is_restricted() {
            return Ok(());
        }
        let refused = api_format::secondary_models(request).into_iter().find(|model| !self.is_allowed(model));
        refused.map_or(Ok(()), |model| Err(Error::ModelNotAllowed { model }))
    }

    /// Rejects a job for a model that may not be used. `names` are the names under which callers may know the job's
    /// model.
    pub(crate) fn check_job_model(&self, names: &[String]) -> Result<()> {
        let mut listed = names.iter().filter_map(|name| self.by_slug.get(name)).peekable();
        let is_fine = match listed.peek() {
            Some(_) => listed.all(|model| model.is_enabled),
            None if names.is_empty() => !self.is_restricted(),
            None => self.allow_all,
        };
        if is_fine { Ok(()) } else { Err(Error::ModelNotAllowed { model: names.first().cloned().unwrap_or_default() }) }
    }

    /// Compiles the published models of one integration.
    pub fn compile(published: PublishedModels, path: &str, problems: &mut Vec<Problem>) -> Self {
        let mut by_slug = HashMap::with_capacity(published.models.len());
        for (index, row) in published.models.into_iter().enumerate() {
            let path = format!("{path}.models[{index}]");
            let model = SavedModel {
                is_enabled: row.enabled,
                custom_host: parse_custom_host(row.custom_host.as_deref(), &path, problems),
                header_fields: compile_header_fields(row.headers, &path, problems),
                options: compile_options(row.options, &path, problems),
                prices: (!row.prices.is_empty()).then(|| prices::compile_prices(row.prices, &path, problems)),
            };
            by_slug.insert(row.slug, model);
        }
        let path = format!("{path}.adjustment");
        let adjusted = |adjustment| Arc::new(Adjustment::compile(adjustment, &path, problems));
        let has_stored_fields = by_slug.values().any(SavedModel::has_stored_fields);
        let (allow_all, has_disabled) = (published.allow_all, by_slug.values().any(|model| !model.is_enabled));
        Self {
            allow_all,
            has_disabled,
            by_slug,
            price_adjustment: published.adjustment.map(adjusted),
            has_stored_fields,
        }
    }
}

impl SavedModel {
    pub(crate) fn has_stored_fields(&self) -> bool {
        !self.header_fields.is_empty() || self.options.iter().any(|(option, _)| option.is_secret())
    }
}

/// Parses the custom host of a saved provider or model; reports an invalid one in `problems`.
pub fn parse_custom_host(url: Option<&str>, path: &str, problems: &mut Vec<Problem>) -> Option<BaseUrl> {
    url.map(BaseUrl::parse)?.map_err(|message| problems.push(Problem::new(format!("{path}.custom_host"), message))).ok()
}

/// Compiles saved header fields, sorted by name.
pub fn compile_header_fields(
    given: impl IntoIterator<Item = (String, String)>,
    path: &str,
    problems: &mut Vec<Problem>,
) -> HeaderFields {
    let mut fields: HeaderFields = given.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    fields.sort();
    for (name, value) in &fields {
        if !is_allowed_field(name, value) {
            problems.push(Problem::new(format!("{path}.headers.{name}"), "is not an allowed header field"));
        }
    }
    fields
}

pub(crate) fn compile_options(
    given: BTreeMap<String, String>,
    path: &str,
    problems: &mut Vec<Problem>,
) -> Vec<(OptionField, String)> {
    let mut options = Vec::with_capacity(given.len());
    for (key, value) in given {
        match catalog::find_option(&key) {
            Some(_) if value.is_empty() || value.chars().any(char::is_control) => {
                problems.push(Problem::new(format!("{path}.options.{key}"), "must be text without control characters"));
            }
            Some(option) => options.push((option, value)),
            None => problems.push(Problem::new(format!("{path}.options.{key}"), "is not a known option")),
        }
    }
    options
}
