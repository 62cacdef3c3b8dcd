//! What a config changes of a request's JSON: defaults, then what it sets, then what it drops. A target's own words win over those around it.

use penstock_llm::{
    api_format::PeekError,
    json::edit::{self, Field, Path},
};
use serde_json::Value;

use crate::config::Reading;

/// The steps of a path take about so many bytes.
const DROPPED: usize = 128;

#[derive(Debug, Clone, Default, PartialEq)]
struct Changes {
    defaults: Vec<Field>,
    overrides: Vec<Field>,
    drops: Vec<Path>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parameters(Option<Box<Changes>>);

impl Parameters {
    /// Fields that are set where the caller did not.
    pub fn set_defaults(&mut self, value: &Value, reading: &mut Reading) {
        self.0.get_or_insert_default().defaults = fields(value, reading);
    }

    /// Fields that are set.
    pub fn set_overrides(&mut self, value: &Value, reading: &mut Reading) {
        self.0.get_or_insert_default().overrides = fields(value, reading);
    }

    /// Paths of what is dropped.
    pub fn set_drops(&mut self, value: &Value, reading: &mut Reading) {
        self.0.get_or_insert_default().drops = reading.items(value, "an array of paths", |reading, item| {
            Path::parse(&reading.text(item)?).map_err(|message| reading.refuse(message)).ok()
        });
    }

    /// Field by field, the nearer one wins; what is dropped further out is dropped as well.
    pub fn inherit(&mut self, parent: &Self) {
        let Some(parent) = &parent.0 else { return };
        let own = self.0.get_or_insert_default();
        let Changes { defaults, overrides, drops } = &**parent;
        merge(&mut own.defaults, defaults);
        merge(&mut own.overrides, overrides);
        for path in drops {
            if !own.drops.contains(path) {
                own.drops.push(path.clone());
            }
        }
    }

    /// Bytes beside its own.
    pub fn held(&self) -> usize {
        let Some(Changes { defaults, overrides, drops }) = self.0.as_deref() else { return 0 };
        let field = |(key, value): &Field| size_of::<Field>() + key.len() + value.len();
        let fields: usize = defaults.iter().chain(overrides).map(field).sum();
        size_of::<Changes>() + fields + drops.len() * (size_of::<Path>() + DROPPED)
    }

    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// The model that is asked for whatever the caller wrote, where the config says one.
    pub fn model(&self) -> Option<String> {
        let of = |fields: &[Field]| {
            let (_, value) = fields.iter().find(|(key, _)| key == "model")?;
            serde_json::from_slice(value).ok()
        };
        self.0.as_ref().and_then(|changes| of(&changes.overrides))
    }

    /// Whether it sets or drops this field of a request, whatever the caller wrote.
    pub fn decides(&self, field: &str) -> bool {
        self.0.as_ref().is_some_and(|changes| {
            changes.overrides.iter().any(|(key, _)| key == field)
                || changes.drops.iter().any(|path| path.begins_with(field))
        })
    }

    /// The body with everything changed; `None` where nothing is to be.
    pub fn applied(&self, body: &[u8]) -> Result<Option<Vec<u8>>, PeekError> {
        let Some(changes) = &self.0 else { return Ok(None) };
        let Changes { defaults, overrides, drops } = &**changes;
        let set = match (&defaults[..], &overrides[..]) {
            ([], []) => None,
            (defaults, overrides) => Some(edit::set(body, defaults, overrides)?),
        };
        match drops[..] {
            [] => Ok(set),
            _ => Ok(edit::remove(set.as_deref().unwrap_or(body), drops)?.or(set)),
        }
    }
}

fn fields(value: &Value, reading: &mut Reading) -> Vec<Field> {
    let object = reading.object(value);
    object.into_iter().flatten().map(|(key, value)| edit::field(key, value)).collect()
}

fn merge(own: &mut Vec<Field>, parent: &[Field]) {
    for (key, value) in parent {
        if !own.iter().any(|(known, _)| known == key) {
            own.push((key.clone(), value.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::Unknown;

    fn parameters(defaults: &Value, overrides: &Value, drops: &Value) -> Parameters {
        let mut reading = Reading::new(Unknown::Refused);
        let mut parameters = Parameters::default();
        parameters.set_defaults(defaults, &mut reading);
        parameters.set_overrides(overrides, &mut reading);
        parameters.set_drops(drops, &mut reading);
        reading.end().unwrap();
        parameters
    }

    fn applied(parameters: &Parameters, body: &str) -> String {
        parameters
            .applied(body.as_bytes())
            .unwrap()
            .map_or_else(|| "same".to_owned(), |changed| String::from_utf8(changed).unwrap())
    }

    #[test]
    fn defaults_come_first_then_what_is_set_then_what_is_dropped() {
        let all = parameters(&json!({"a": 1, "b": 1, "c": 1}), &json!({"b": 2, "d": 2}), &json!(["c", "d"]));
        assert_eq!(applied(&all, r#"{"a": 0}"#), r#"{"a": 0,"b":2}"#);
        assert_eq!(applied(&Parameters::default(), "{}"), "same");
        assert_eq!(applied(&parameters(&json!({}), &json!({}), &json!(["x"])), "{}"), "same");
    }

    #[test]
    fn the_nearer_word_wins_field_by_field_and_drops_add_up() {
        let parent = parameters(&json!({"t": 1}), &json!({"model": "far", "n": 1}), &json!(["x"]));
        let mut child = parameters(&json!({"t": 2}), &json!({"model": "near"}), &json!(["y"]));
        child.inherit(&parent);
        assert_eq!(applied(&child, r#"{"x":0,"y":0,"z":0}"#), r#"{"z":0,"t":2,"model":"near","n":1}"#);
        assert_eq!(child.model().as_deref(), Some("near"));
        let mut silent = Parameters::default();
        silent.inherit(&parent);
        assert_eq!(silent, parent);
    }

    #[test]
    fn a_path_that_is_none_is_told_with_its_place() {
        let mut reading = Reading::new(Unknown::Refused);
        Parameters::default().set_drops(&json!(["ok", "a["]), &mut reading);
        assert_eq!(reading.end().unwrap_err()[0].path, "$[1]");
    }
}
