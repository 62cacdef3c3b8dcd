//! All models that a request body names besides its main one: models of tools, fallback lists, sessions, graders. An
//! allow-list of models must cover all of them. So this reader counts every key that looks like the key of a model, at
//! any depth.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
};

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::json::scan::{ScanError, for_each_field};

/// Model that a request names, and the field that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedModel {
    /// JSON path, query parameter, form field or header.
    pub field: String,
    pub name: String,
}

/// Error for a body whose models cannot be listed: a value cannot be parsed, or the body names too many models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnlistableModels {
    /// JSON path of the value.
    pub field: String,
}

/// Maximum number of models that a body may name besides its main one.
const MAX_NAMED_MODELS: usize = 1000;
/// Maximum length in bytes of a JSON path in an error; longer ones are cut.
const MAX_PATH_BYTES: usize = 256;

/// Endings of keys under which providers read a model or deployment, in lower case and without separators.
const MODEL_KEY_ENDINGS: [&str; 13] = [
    "model",
    "models",
    "modelid",
    "modelids",
    "modelname",
    "modelnames",
    "modelarn",
    "modeluri",
    "deployment",
    "deployments",
    "deploymentid",
    "deploymentname",
    "deploymentids",
];
/// Keys that name a model only at the top level. `version` selects the model at Replicate, `engine` in old APIs.
const TOP_LEVEL_MODEL_KEYS: [&str; 4] = ["engine", "engineid", "version", "fallbacks"];
/// Keys of content and schemas, where no string selects a model.
const CONTENT_KEYS: [&str; 21] = [
    "messages",
    "contents",
    "content",
    "system",
    "systeminstruction",
    "metadata",
    "labels",
    "properties",
    "schema",
    "inputschema",
    "jsonschema",
    "defs",
    "definitions",
    "documents",
    "instances",
    "arguments",
    "args",
    "history",
    "chathistory",
    "item",
    "examples",
];
/// Key of conversation items if its value is an array. An object under it holds parameters at some providers.
const INPUT_KEY: &str = "input";

/// Returns true if a field, parameter or header with this name selects a model at some provider, whatever its letter
/// case and separators.
pub fn is_model_key(key: &str) -> bool {
    is_folded_model_key(&fold_key(key))
}

fn is_folded_model_key(folded: &str) -> bool {
    MODEL_KEY_ENDINGS.iter().any(|ending| folded.ends_with(ending))
}

fn fold_key(key: &str) -> String {
    key.chars().filter(|character| character.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Returns all models that a JSON body names, including those under duplicate keys. Fails if a value cannot be parsed,
/// because the provider may read it nevertheless. A body that is no JSON object names none.
pub fn named_models(body: &[u8]) -> Result<Vec<NamedModel>, UnlistableModels> {
    let (mut models, mut unlistable) = (Vec::new(), None);
    // The scanner skips large content at the top level much faster than the visitor.
    let scanned: Result<(), ScanError> = for_each_field(body, |key, at| {
        let key = String::from_utf8_lossy(key);
        let folded = fold_key(&key);
        let is_items = folded == INPUT_KEY && body.get(at.start) == Some(&b'[');
        if !is_items && !CONTENT_KEYS.contains(&folded.as_str()) {
            let is_model = is_folded_model_key(&folded) || TOP_LEVEL_MODEL_KEYS.contains(&folded.as_str());
            let mut path = key.into_owned();
            let search = ModelSearch { found: &mut models, path: &mut path, is_model };
            if search.deserialize(&mut serde_json::Deserializer::from_slice(&body[at])).is_err() {
                unlistable.get_or_insert_with(|| UnlistableModels { field: shorten_path(&path) });
            }
        }
        Ok(())
    });
    let _ = scanned;
    unlistable.map_or(Ok(models), Err)
}

/// Cuts a path at `MAX_PATH_BYTES`, because a client can send a path as long as its body.
fn shorten_path(path: &str) -> String {
    path[..path.floor_char_boundary(MAX_PATH_BYTES)].to_owned()
}

/// Searches a JSON value for model names. `is_model` is true if the value is stored under a model's key.
struct ModelSearch<'f> {
    found: &'f mut Vec<NamedModel>,
    path: &'f mut String,
    is_model: bool,
}

impl<'de> DeserializeSeed<'de> for ModelSearch<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ModelSearch<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        if !self.is_model {
            return Ok(());
        }
        if self.found.len() == MAX_NAMED_MODELS {
            return Err(E::custom("too many models"));
        }
        self.found.push(NamedModel { field: shorten_path(self.path), name: text.to_owned() });
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            let folded = fold_key(&key);
            if CONTENT_KEYS.contains(&folded.as_str()) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let is_model = is_folded_model_key(&folded) || self.is_model && matches!(&*folded, "id" | "name");
            let length = self.path.len();
            self.path.push('.');
            self.path.push_str(&key);
            map.next_value_seed(ModelSearch { found: &mut *self.found, path: &mut *self.path, is_model })?;
            self.path.truncate(length);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let length = self.path.len();
        let mut index = 0;
        loop {
            let _ = write!(self.path, "[{index}]");
            let search = ModelSearch { found: &mut *self.found, path: &mut *self.path, is_model: self.is_model };
            let is_item = items.next_element_seed(search)?.is_some();
            self.path.truncate(length);
            if !is_item {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(request: &str) -> String {
        let rows = named_models(request.as_bytes()).unwrap();
        rows.into_iter().map(|row| format!("{}={}", row.field, row.name)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn finds_models_at_any_depth_and_in_any_letter_case() {
        for (request, models) in [
            (r#"{"model":"a","Model":"b","mod\u0065l":"c"}"#, "model=a Model=b model=c"),
            (
                r#"{"tools":[{"type":"image_generation","model":"a","MODEL":"b"},{"model":"c"}]}"#,
                "tools[0].model=a tools[0].MODEL=b tools[1].model=c",
            ),
            (r#"{"models":["a", "b", 1]}"#, "models[0]=a models[1]=b"),
            (r#"{"fallbacks":["a",{"model":"b"}],"version":"c"}"#, "fallbacks[0]=a fallbacks[1].model=b version=c"),
            (
                r#"{"plugins":[{"id":"x","analysis_models":["a"]}],"tools":[{"parameters":{"model":"b"}}]}"#,
                "plugins[0].analysis_models[0]=a tools[0].parameters.model=b",
            ),
            (
                r#"{"data_sources":[{"parameters":{"embedding_dependency":{"deployment_name":"a"}}}]}"#,
                "data_sources[0].parameters.embedding_dependency.deployment_name=a",
            ),
            (
                r#"{"session":{"model":"a","audio":{"input":{"transcription":{"model":"b"}}}}}"#,
                "session.model=a session.audio.input.transcription.model=b",
            ),
            (r#"{"method":{"grader":{"graders":{"x":{"model":{"id":"a"}}}}}}"#, "method.grader.graders.x.model.id=a"),
            (r#"{"input":{"model":"a"},"modelId":"b"}"#, "input.model=a modelId=b"),
            (r#"{"model":"a","extra":{"n":1e999,"model":"b"}}"#, "model=a extra.model=b"),
        ] {
            assert_eq!(found(request), models, "{request}");
        }
    }

    #[test]
    fn ignores_content_and_schemas() {
        for none in [
            r#"{"messages":[{"content":"models tools","model":"a"}],"metadata":{"models":["a"]}}"#,
            r#"{"tools":[{"type":"function","parameters":{"properties":{"model":{"default":"a","type":"string"}}}}]}"#,
            r#"{"input":[{"type":"message","model":"a"}],"contents":[{"model":"a"}]}"#,
            r#"{"tools":[{"model":null},"model",[]],"plugins":[{"engine":"exa","version":"1"}]}"#,
            "[",
            "",
        ] {
            assert_eq!(found(none), "", "{none}");
        }
    }

    #[test]
    fn fails_for_values_that_only_other_parsers_accept_and_for_too_many_models() {
        let many = format!(r#"{{"{}":{{"models":[{}"a"]}}}}"#, "k".repeat(9000), r#""a","#.repeat(MAX_NAMED_MODELS));
        let cases =
            [(r#"{"model":"a","tools":[{"x":"\ud800","model":"b"}]}"#, "tools"), (&many, &"k".repeat(MAX_PATH_BYTES))];
        for (request, field) in cases {
            let error = named_models(request.as_bytes()).unwrap_err();
            assert!(error.field.starts_with(field) && error.field.len() <= MAX_PATH_BYTES, "{}", error.field);
        }
    }

    #[test]
    fn recognises_model_keys() {
        for key in
            ["model", "MODEL", "model_id", "Judge-Model", "session[model]", "azureml-model-deployment", "models[]"]
        {
            assert!(is_model_key(key), "{key}");
        }
        for key in ["api-version", "modelling", "model_settings", "n"] {
            assert!(!is_model_key(key), "{key}");
        }
    }
}
