//! Models of an integration as the store publishes them: which are allowed, their prices, hosts, headers and options.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use penstock_llm::api_format::{self, NamedModel, UnlistableModels};
use penstock_llm::catalog::{self, OptionField};
use penstock_net::{BaseUrl, headers::is_allowed_field};
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use crate::{
    accounting::prices::{self, Adjustment, ModelPrices, PublishedAdjustment, PublishedPrice},
    error::{Error, Problem, Result},
};

/// Header fields added to every request to a saved provider, or to one of its models.
pub type HeaderFields = Vec<(String, String)>;

/// Models of a saved provider: permissions, options and prices.
#[derive(Debug, Default)]
pub struct SavedModels {
    /// True if models that are not listed may be used.
    pub(crate) allow_all: bool,
    /// Folded names of the listed models that are disabled.
    pub(crate) disabled: HashSet<String>,
    pub(crate) by_slug: HashMap<String, SavedModel>,
    /// Factors by which the prices of the saved provider differ from the list prices.
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
    models: Vec<PublishedSavedModel>,
    #[serde(default)]
    adjustment: Option<PublishedAdjustment>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedSavedModel {
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
    /// Returns true if callers may not use every model.
    pub fn is_restricted(&self) -> bool {
        !self.allow_all || !self.disabled.is_empty()
    }

    /// Returns true if this model may be used.
    pub fn is_allowed(&self, model: &str) -> bool {
        match self.by_slug.get(model) {
            Some(saved) => saved.is_enabled,
            None => self.allow_all && !self.may_name_disabled(model),
        }
    }

    /// Returns true if a provider may read this text as the name of a disabled model. The name may have another letter
    /// case or encoding, or a prefix or suffix. Also returns true for text that `fold_model_name` cannot compare.
    pub(crate) fn may_name_disabled(&self, text: &str) -> bool {
        !self.disabled.is_empty()
            && fold_model_name(text).is_none_or(|folded| name_parts(&folded).any(|part| self.disabled.contains(part)))
    }

    /// Returns the saved prices of a model.
    pub fn model_prices(&self, model: &str) -> Option<ModelPrices> {
        self.by_slug.get(model).and_then(|saved| saved.prices.clone())
    }

    /// Rejects a body that names, at any depth, a model that may not be used. Ignores `main_models`, which were checked
    /// already.
    pub fn check_named_models(&self, body: &[u8], main_models: &[&str]) -> Result<()> {
        if !self.is_restricted() {
            return Ok(());
        }
        let is_main = |model: &NamedModel| main_models.contains(&model.name.as_str());
        let unlistable = |unlistable: UnlistableModels| Error::ModelsUnlistable { field: unlistable.field };
        api_format::named_models(body)
            .map_err(unlistable)?
            .into_iter()
            .filter(|model| !is_main(model))
            .try_for_each(|model| self.check(model))
    }

    /// Rejects a named model that may not be used.
    pub fn check(&self, model: NamedModel) -> Result<()> {
        if self.is_allowed(&model.name) {
            return Ok(());
        }
        Err(Error::ModelNotAllowed { model: model.name, field: model.field })
    }

    /// Rejects a job for a model that may not be used. `names` are the names by which callers may refer to the job's
    /// model.
    pub(crate) fn check_job_model(&self, names: &[String]) -> Result<()> {
        let mut listed = names.iter().filter_map(|name| self.by_slug.get(name)).peekable();
        let is_fine = match listed.peek() {
            Some(_) => listed.all(|model| model.is_enabled),
            None if names.is_empty() => !self.is_restricted(),
            None => names.iter().all(|name| self.is_allowed(name)),
        };
        if is_fine { Ok(()) } else { Err(Error::model_not_allowed(names.first().cloned().unwrap_or_default())) }
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
        let disabled = by_slug.iter().filter(|(_, model)| !model.is_enabled);
        let disabled = disabled.map(|(slug, _)| fold_model_name(slug).unwrap_or_else(|| slug.clone())).collect();
        Self {
            allow_all: published.allow_all,
            disabled,
            by_slug,
            price_adjustment: published.adjustment.map(adjusted),
            has_stored_fields,
        }
    }
}

/// Maximum number of rounds of percent-decoding. A name that is encoded more often cannot be compared.
const MAX_DECODING_ROUNDS: usize = 4;

/// Returns a model name decoded, trimmed and in lower case. `None` if it cannot be compared: it is too long, has
/// characters other than printable ASCII, has too many parts, or is encoded too often.
fn fold_model_name(name: &str) -> Option<String> {
    let mut decoded = name.trim().to_owned();
    for _ in 0..MAX_DECODING_ROUNDS {
        if !decoded.contains('%') {
            break;
        }
        decoded = percent_decode_str(&decoded).decode_utf8().ok()?.trim().to_owned();
    }
    if decoded.len() > MAX_NAME_BYTES || decoded.matches(is_part_start).count() > MAX_NAME_SEPARATORS {
        return None;
    }
    let is_plain = decoded.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) && !decoded.contains('%');
    is_plain.then(|| decoded.to_ascii_lowercase())
}

/// Maximum number of separators in a name that is compared by its parts.
const MAX_NAME_SEPARATORS: usize = 32;
/// Maximum length of a name that is compared by its parts, in bytes.
const MAX_NAME_BYTES: usize = 512;

/// Returns all parts of a folded name that providers may read as the model. Prefixes such as a vendor, a region or a
/// path may precede the model. A version or a verb may follow it.
fn name_parts(folded: &str) -> impl Iterator<Item = &str> {
    let starts = [0].into_iter().chain(folded.match_indices(is_part_start).map(|(at, _)| at + 1));
    starts.flat_map(move |start| {
        let rest = &folded[start..];
        let ends = rest.match_indices(is_separator).map(|(at, _)| at).chain([rest.len()]);
        ends.map(move |end| &rest[..end])
    })
}

fn is_separator(character: char) -> bool {
    matches!(character, '/' | ':' | '@' | '?' | '#' | '\\' | ' ' | '=' | '&' | ',' | ';')
}

fn is_part_start(character: char) -> bool {
    is_separator(character) || character == '.'
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
    fields: impl IntoIterator<Item = (String, String)>,
    path: &str,
    problems: &mut Vec<Problem>,
) -> HeaderFields {
    let mut fields: HeaderFields = fields.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    fields.sort();
    for (name, value) in &fields {
        if !is_allowed_field(name, value) {
            problems.push(Problem::new(format!("{path}.headers.{name}"), "is not an allowed header field"));
        }
    }
    fields
}

pub(crate) fn compile_options(
    fields: BTreeMap<String, String>,
    path: &str,
    problems: &mut Vec<Problem>,
) -> Vec<(OptionField, String)> {
    let mut options = Vec::with_capacity(fields.len());
    for (key, value) in fields {
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
