//! What a config may ask about a request: its metadata, the fields of its JSON, its path.

use serde_json::Value;

use crate::{accounting::record::metadata::Metadata, config::Reading};

/// A request as conditions see it.
#[derive(Debug)]
pub struct Asked<'a> {
    pub metadata: &'a Metadata,
    /// The fields that the config asks about, in its order.
    pub params: &'a [Option<Value>],
    pub path: &'a str,
}

/// Where a value is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Metadata(String),
    /// A top-level field by its place in the config's list, and the way on from there.
    Param(usize, Vec<String>),
    Path,
}

/// What was found there.
#[derive(Debug, Clone, Copy)]
pub enum Found<'a> {
    Text(&'a str),
    Json(&'a Value),
    Nothing,
}

impl Source {
    pub fn parse(text: &str, reading: &mut Reading) -> Option<Self> {
        let parsed = match text.split_once('.') {
            Some(("metadata", key)) if !key.is_empty() => Some(Self::Metadata(key.to_owned())),
            Some(("params", path)) if !path.is_empty() => {
                let mut steps = path.split('.').map(ToOwned::to_owned);
                let slot = reading.param(&steps.next().unwrap_or_default());
                Some(Self::Param(slot, steps.collect()))
            }
            Some(("url", "pathname")) => Some(Self::Path),
            _ => None,
        };
        if parsed.is_none() {
            reading.refuse(format!("`{text}` must be `metadata.<key>`, `params.<field>` or `url.pathname`"));
        }
        parsed
    }

    pub fn find<'a>(&self, asked: &Asked<'a>) -> Found<'a> {
        match self {
            Self::Metadata(key) => asked.metadata.get(key).map_or(Found::Nothing, Found::Text),
            Self::Path => Found::Text(asked.path),
            Self::Param(slot, steps) => {
                let first = asked.params.get(*slot).and_then(Option::as_ref);
                let found = steps.iter().try_fold(first, |value, step| Some(Some(step_into(value?, step)?)));
                found.flatten().map_or(Found::Nothing, Found::Json)
            }
        }
    }
}

fn step_into<'v>(value: &'v Value, step: &str) -> Option<&'v Value> {
    match value {
        Value::Object(object) => object.get(step),
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        _ => None,
    }
}

impl<'a> Found<'a> {
    /// Where it is a text.
    pub fn as_text(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Json(value) => value.as_str(),
            Self::Nothing => None,
        }
    }

    /// As a text, where it can be one.
    pub fn text(self) -> Option<String> {
        match self {
            Self::Json(value @ (Value::Number(_) | Value::Bool(_))) => Some(value.to_string()),
            found => found.as_text().map(ToOwned::to_owned),
        }
    }
}
