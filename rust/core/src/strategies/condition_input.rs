//! Inputs of routing conditions: metadata, JSON fields and path of a request.

use std::collections::HashMap;

use serde_json::Value;

use crate::{accounting::record::metadata::Metadata, parse::document_reader::ConfigReader};

/// Request data that conditions can read.
#[derive(Debug)]
pub struct ConditionInput<'a> {
    pub metadata: &'a Metadata,
    /// Values of the JSON fields that the config reads, in the config's order.
    pub params: &'a [Option<Value>],
    pub path: &'a str,
    /// Results of patterns that were matched in advance; `None` if none were.
    pub pattern_results: Option<&'a PatternResults>,
}

/// Results of patterns by the number of the pattern and the source of the text.
pub type PatternResults = HashMap<(usize, ValueSource), bool>;

/// Where a condition reads its value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ValueSource {
    Metadata(String),
    /// Index of a top-level field in the config's list, and the path below that field.
    Param(usize, Vec<String>),
    Path,
}

/// Value that a condition is compared with.
#[derive(Debug, Clone, Copy)]
pub enum FieldValue<'a> {
    Text(&'a str),
    Json(&'a Value),
    Missing,
}

impl ConditionInput<'_> {
    /// Returns the result of a pattern that was matched in advance.
    pub fn pattern_result(&self, number: usize, source: &ValueSource) -> Option<bool> {
        self.pattern_results.map(|results| results.get(&(number, source.clone())).copied().unwrap_or_default())
    }
}

impl ValueSource {
    pub fn parse(text: &str, reading: &mut ConfigReader) -> Option<Self> {
        let parsed = match text.split_once('.') {
            Some(("metadata", key)) if !key.is_empty() => Some(Self::Metadata(key.to_owned())),
            Some(("params", path)) if !path.is_empty() => {
                let mut steps = path.split('.').map(ToOwned::to_owned);
                let slot = reading.param_index(&steps.next().unwrap_or_default());
                Some(Self::Param(slot, steps.collect()))
            }
            Some(("url", "pathname")) => Some(Self::Path),
            _ => None,
        };
        if parsed.is_none() {
            reading.report_problem(format!("`{text}` must be `metadata.<key>`, `params.<field>` or `url.pathname`"));
        }
        parsed
    }

    pub fn resolve<'a>(&self, input: &ConditionInput<'a>) -> FieldValue<'a> {
        match self {
            Self::Metadata(key) => input.metadata.get(key).map_or(FieldValue::Missing, FieldValue::Text),
            Self::Path => FieldValue::Text(input.path),
            Self::Param(slot, steps) => {
                let first = input.params.get(*slot).and_then(Option::as_ref);
                let selected = steps.iter().try_fold(first, |value, step| Some(Some(child_value(value?, step)?)));
                selected.flatten().map_or(FieldValue::Missing, FieldValue::Json)
            }
        }
    }
}

fn child_value<'v>(value: &'v Value, step: &str) -> Option<&'v Value> {
    match value {
        Value::Object(object) => object.get(step),
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        _ => None,
    }
}

impl<'a> FieldValue<'a> {
    /// Returns the value if it is a string.
    pub fn as_str(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Json(value) => value.as_str(),
            Self::Missing => None,
        }
    }

    /// Returns a string, number or boolean as a string; `None` for other values.
    pub fn to_scalar_string(self) -> Option<String> {
        match self {
            Self::Json(value @ (Value::Number(_) | Value::Bool(_))) => Some(value.to_string()),
            value => value.as_str().map(ToOwned::to_owned),
        }
    }
}
