//! Fields of JSON objects: typed reads that remove a field from a request body.

use serde_json::{Map, Value};

use crate::errors::RequestError;

pub type Fields = Map<String, Value>;

/// Returns true for values that mean the default, so that dropping them changes nothing.
pub(crate) fn is_default_value(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Removes and returns a string field. A value of another type stays, so that it is reported as dropped.
pub fn take_string(fields: &mut Fields, key: &str) -> Option<String> {
    fields.get(key).filter(|value| value.is_string())?;
    match fields.shift_remove(key)? {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// Removes and returns a required string field.
pub fn take_required_string(fields: &mut Fields, key: &str, path: &str) -> Result<String, RequestError> {
    take_string(fields, key).ok_or_else(|| RequestError::new(format!("{path}.{key}"), "must be a string"))
}

pub fn into_object(value: Value, path: &str) -> Result<Fields, RequestError> {
    match value {
        Value::Object(fields) => Ok(fields),
        _ => Err(RequestError::new(path, "must be an object")),
    }
}

/// Removes and returns an optional object field. A value of another type stays, so that it is reported as dropped.
pub fn take_object(fields: &mut Fields, key: &str) -> Option<Fields> {
    fields.get(key).filter(|value| value.is_object())?;
    match fields.shift_remove(key)? {
        Value::Object(inner) => Some(inner),
        _ => None,
    }
}

/// Removes and returns the parameter schema of a function: an object, or null if it is absent.
pub fn take_schema(fields: &mut Fields, key: &str, path: &str) -> Result<Value, RequestError> {
    match fields.shift_remove(key) {
        None | Some(Value::Null) => Ok(Value::Null),
        Some(schema @ Value::Object(_)) => Ok(schema),
        Some(_) => Err(RequestError::new(format!("{path}.{key}"), "must be an object")),
    }
}

pub fn into_array(value: Option<Value>, path: &str) -> Result<Vec<Value>, RequestError> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(RequestError::new(path, "must be an array")),
    }
}

/// Parses a complete body as a JSON object.
pub fn parse_body(json: &[u8]) -> Result<Fields, RequestError> {
    serde_json::from_slice(json).map_err(|error| RequestError::new("$", error.to_string()))
}
