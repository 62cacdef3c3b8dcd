//! Conversion of Gemini schemas to JSON Schema: types in lower case, and null as a type instead of `nullable`.

use serde_json::{Value, json};

use crate::fields::Fields;

pub fn to_json_schema(schema: Value) -> Value {
    match schema {
        Value::Object(fields) => convert_object(fields),
        Value::Array(items) => items.into_iter().map(to_json_schema).collect(),
        other => other,
    }
}

fn convert_object(mut fields: Fields) -> Value {
    for order in ["propertyOrdering", "property_ordering"] {
        fields.shift_remove(order);
    }
    let is_nullable = fields.shift_remove("nullable") == Some(Value::Bool(true));
    let convert_property = |(key, value): (String, Value)| {
        let value = match (key.as_str(), value) {
            ("type", Value::String(kind)) => kind.to_ascii_lowercase().into(),
            // The keys here are property names, not keywords, so they stay unchanged.
            ("properties" | "$defs" | "defs", Value::Object(inner)) => {
                inner.into_iter().map(|(name, schema)| (name, to_json_schema(schema))).collect::<Fields>().into()
            }
            ("items" | "anyOf" | "any_of" | "additionalProperties", value) => to_json_schema(value),
            (key, Value::String(text)) if COUNT_KEYWORDS.contains(&key) => {
                text.parse::<u64>().map_or(text.into(), Value::from)
            }
            (_, value) => value,
        };
        (if key == "any_of" { "anyOf".to_owned() } else { key }, value)
    };
    let mut fields: Fields = fields.into_iter().map(convert_property).collect();
    if is_nullable && let Some(kind) = fields.get_mut("type") {
        *kind = json!([kind.take(), "null"]);
    }
    fields.into()
}

/// Keywords with 64-bit integers, which Google writes as strings.
const COUNT_KEYWORDS: &[&str] = &["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converts_types_to_lower_case_but_keeps_property_names() {
        let schema = json!({"type": "OBJECT", "propertyOrdering": ["type"], "properties": {
            "type": {"type": "STRING", "nullable": true},
            "list": {"type": "ARRAY", "maxItems": "3", "items": {"type": "INTEGER"}}}});
        let expected = json!({"type": "object", "properties": {
            "type": {"type": ["string", "null"]},
            "list": {"type": "array", "maxItems": 3, "items": {"type": "integer"}}}});
        assert_eq!(to_json_schema(schema), expected);
    }
}
