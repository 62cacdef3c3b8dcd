//! Parameter changes of a config to a request's JSON: defaults first, then overrides, then drops. A target's own values
//! take precedence over inherited ones.

use std::{collections::HashSet, sync::Arc};

use penstock_llm::{
    api_format::ScanError,
    json::edit::{self, FieldPath, JsonField},
};
use serde_json::Value;

use crate::{parse::document_reader::ConfigReader, process::secret::find_secrets};

/// Estimated heap size of the segments of a path, in bytes.
const ESTIMATED_PATH_BYTES: usize = 128;

#[derive(Debug, Clone, Default, PartialEq)]
struct Changes {
    defaults: Vec<JsonField>,
    overrides: Vec<JsonField>,
    drops: Vec<FieldPath>,
    /// Prefix that is removed from the model name.
    model_prefix: Option<Box<str>>,
    /// Secret strings in the values.
    secrets: HashSet<String>,
}

/// Maximum number of paths in `drop_params`. Each member of a body is compared with each of them.
const MAX_DROPS: usize = 128;

/// Parameter changes of a target. Targets without changes of their own share those of their parent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parameters(Option<Arc<Changes>>);

impl Parameters {
    /// Parses fields that are set only if the client did not set them.
    pub fn set_defaults(&mut self, value: &Value, reading: &mut ConfigReader) {
        let changes = self.changes_mut();
        changes.defaults = parse_fields(value, reading);
        changes.secrets.extend(find_secrets(value));
    }

    /// Parses fields that replace the client's values.
    pub fn set_overrides(&mut self, value: &Value, reading: &mut ConfigReader) {
        let changes = self.changes_mut();
        changes.overrides = parse_fields(value, reading);
        changes.secrets.extend(find_secrets(value));
    }

    /// Parses the paths of fields that are removed.
    pub fn set_drops(&mut self, value: &Value, reading: &mut ConfigReader) {
        let count = value.as_array().map_or(0, Vec::len);
        if count > MAX_DROPS {
            reading.report_problem(format!("must hold at most {MAX_DROPS} paths, not {count}"));
            return;
        }
        self.changes_mut().drops = reading.read_items(value, "an array of paths", |reading, item| {
            FieldPath::parse(&reading.read_string(item)?).map_err(|message| reading.report_problem(message)).ok()
        });
    }

    /// Parses the prefix that is removed from the model name.
    pub fn set_model_prefix(&mut self, value: &Value, reading: &mut ConfigReader) {
        if let Some(prefix) = reading.read_string(value) {
            if prefix.is_empty() {
                return reading.report_problem("must not be empty");
            }
            self.changes_mut().model_prefix = Some(prefix.into());
        }
    }

    fn changes_mut(&mut self) -> &mut Changes {
        Arc::make_mut(self.0.get_or_insert_default())
    }

    /// Returns the number of fields and paths.
    pub fn count(&self) -> usize {
        self.0.as_ref().map_or(0, |changes| changes.defaults.len() + changes.overrides.len() + changes.drops.len())
    }

    /// Merges the parent's changes field by field: the nearer value takes precedence, and drops accumulate.
    pub fn inherit(&mut self, parent: &Self) {
        let Some(parent) = &parent.0 else { return };
        let Some(changes) = &mut self.0 else {
            self.0 = Some(Arc::clone(parent));
            return;
        };
        let changes = Arc::make_mut(changes);
        let Changes { defaults, overrides, drops, model_prefix, secrets } = &**parent;
        changes.secrets.extend(secrets.iter().cloned());
        merge_fields(&mut changes.defaults, defaults);
        merge_fields(&mut changes.overrides, overrides);
        if changes.model_prefix.is_none() {
            changes.model_prefix.clone_from(model_prefix);
        }
        let own: HashSet<_> = changes.drops.iter().cloned().collect();
        changes.drops.extend(drops.iter().filter(|path| !own.contains(path)).cloned());
    }

    /// Returns the approximate heap memory in bytes, without the value itself.
    pub fn heap_bytes(&self) -> usize {
        let Some(Changes { defaults, overrides, drops, model_prefix, .. }) = self.0.as_deref() else { return 0 };
        let field = |(key, value): &JsonField| size_of::<JsonField>() + key.len() + value.len();
        let fields: usize = defaults.iter().chain(overrides).map(field).sum();
        let prefix = model_prefix.as_ref().map_or(0, |prefix| prefix.len());
        size_of::<Changes>() + fields + prefix + drops.len() * (size_of::<FieldPath>() + ESTIMATED_PATH_BYTES)
    }

    /// Returns the secret strings that the config sets in requests.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|changes| changes.secrets.iter().map(String::as_str))
    }

    pub fn secret_count(&self) -> usize {
        self.secrets().count()
    }

    pub fn secret_bytes(&self) -> usize {
        self.secrets().map(str::len).sum()
    }

    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the model that overrides the client's, if the config sets one.
    pub fn model_override(&self) -> Option<String> {
        let model_field = |fields: &[JsonField]| {
            let (_, value) = fields.iter().find(|(key, _)| key == "model")?;
            serde_json::from_slice(value).ok()
        };
        self.0.as_ref().and_then(|changes| model_field(&changes.overrides))
    }

    /// Returns the model name without the prefix that the config removes. `None` if it does not begin with it, or if
    /// nothing would be left.
    pub fn shorten_model<'m>(&self, model: &'m str) -> Option<&'m str> {
        let prefix = self.0.as_ref()?.model_prefix.as_deref()?;
        model.strip_prefix(prefix).filter(|rest| !rest.is_empty())
    }

    /// Returns true if the config overrides or drops this field, whatever the client sent.
    pub fn overrides_or_drops(&self, field: &str) -> bool {
        self.0.as_ref().is_some_and(|changes| {
            changes.overrides.iter().any(|(key, _)| key == field)
                || changes.drops.iter().any(|path| path.starts_with_field(field))
        })
    }

    /// Returns the fields that the config sets if the client did not.
    pub fn defaulted_fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|changes| changes.defaults.iter().map(|(key, _)| key.as_str()))
    }

    /// Returns the fields that the config overrides or drops, whole or in part, whatever the client sent.
    pub fn forced_fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|changes| {
            let overrides = changes.overrides.iter().map(|(key, _)| key.as_str());
            let shortened = changes.model_prefix.iter().map(|_| "model");
            overrides.chain(shortened).chain(changes.drops.iter().map(FieldPath::first_field))
        })
    }

    /// Returns the changed body; `None` if nothing changes.
    pub fn apply(&self, body: &[u8]) -> Result<Option<Vec<u8>>, ScanError> {
        let Some(changes) = &self.0 else { return Ok(None) };
        let Changes { defaults, overrides, drops, .. } = &**changes;
        let set = match (&defaults[..], &overrides[..]) {
            ([], []) => None,
            (defaults, overrides) => Some(edit::set_fields(body, defaults, overrides)?),
        };
        match drops[..] {
            [] => Ok(set),
            _ => Ok(edit::remove_paths(set.as_deref().unwrap_or(body), drops)?.or(set)),
        }
    }
}

fn parse_fields(value: &Value, reading: &mut ConfigReader) -> Vec<JsonField> {
    let object = reading.read_object(value);
    object.into_iter().flatten().map(|(key, value)| edit::json_field(key, value)).collect()
}

fn merge_fields(fields: &mut Vec<JsonField>, parent: &[JsonField]) {
    let own: HashSet<_> = fields.iter().map(|(key, _)| key.clone()).collect();
    fields.extend(parent.iter().filter(|(key, _)| !own.contains(key)).cloned());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::parse::document_reader::Strictness;

    fn parse_parameters(defaults: &Value, overrides: &Value, drops: &Value) -> Parameters {
        let mut reading = ConfigReader::new(Strictness::Strict);
        let mut parameters = Parameters::default();
        parameters.set_defaults(defaults, &mut reading);
        parameters.set_overrides(overrides, &mut reading);
        parameters.set_drops(drops, &mut reading);
        reading.finish().unwrap();
        parameters
    }

    fn apply_to(parameters: &Parameters, body: &str) -> String {
        parameters
            .apply(body.as_bytes())
            .unwrap()
            .map_or_else(|| "same".to_owned(), |changed| String::from_utf8(changed).unwrap())
    }

    #[test]
    fn applies_defaults_then_overrides_then_drops() {
        let all = parse_parameters(&json!({"a": 1, "b": 1, "c": 1}), &json!({"b": 2, "d": 2}), &json!(["c", "d"]));
        assert_eq!(apply_to(&all, r#"{"a": 0}"#), r#"{"a": 0,"b":2}"#);
        assert_eq!(apply_to(&Parameters::default(), "{}"), "same");
        assert_eq!(apply_to(&parse_parameters(&json!({}), &json!({}), &json!(["x"])), "{}"), "same");
    }

    #[test]
    fn nearer_field_wins_and_drops_accumulate() {
        let parent = parse_parameters(&json!({"t": 1}), &json!({"model": "far", "n": 1}), &json!(["x"]));
        let mut child = parse_parameters(&json!({"t": 2}), &json!({"model": "near"}), &json!(["y"]));
        child.inherit(&parent);
        assert_eq!(apply_to(&child, r#"{"x":0,"y":0,"z":0}"#), r#"{"z":0,"t":2,"model":"near","n":1}"#);
        assert_eq!(child.model_override().as_deref(), Some("near"));
        let mut silent = Parameters::default();
        silent.inherit(&parent);
        assert_eq!(silent, parent);
    }

    fn parse_prefix(prefix: &str) -> Parameters {
        let mut parameters = Parameters::default();
        parameters.set_model_prefix(&json!(prefix), &mut ConfigReader::new(Strictness::Strict));
        parameters
    }

    #[test]
    fn shortens_only_models_that_begin_with_the_prefix() {
        let parameters = parse_prefix("anthropic/");
        assert_eq!(parameters.shorten_model("anthropic/claude"), Some("claude"));
        for other in ["claude", "anthropic/", "", "Anthropic/claude"] {
            assert_eq!(parameters.shorten_model(other), None, "{other}");
        }
        assert_eq!(Parameters::default().shorten_model("anthropic/claude"), None);
    }

    #[test]
    fn nearer_prefix_wins_and_counts_as_a_change_of_the_model() {
        let (mut own, mut inherited) = (parse_prefix("a/"), parse_parameters(&json!({"n": 1}), &json!({}), &json!([])));
        let parent = parse_prefix("b/");
        own.inherit(&parent);
        inherited.inherit(&parent);
        assert_eq!((own.shorten_model("a/m"), inherited.shorten_model("b/m")), (Some("m"), Some("m")));
        assert_eq!(inherited.forced_fields().collect::<Vec<_>>(), ["model"]);
        assert_eq!(apply_to(&own, r#"{"model": "a/m"}"#), "same");
    }

    #[test]
    fn reports_an_invalid_path_with_its_position() {
        let mut reading = ConfigReader::new(Strictness::Strict);
        Parameters::default().set_drops(&json!(["ok", "a["]), &mut reading);
        assert_eq!(reading.finish().unwrap_err()[0].path, "$[1]");
    }
}
