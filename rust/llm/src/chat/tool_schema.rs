//! Schemas of functions in the form that strict providers require: an object, without alternatives at its top level.

use serde_json::{Map, Value, json};

/// Keywords that combine schemas.
const COMBINATORS: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Maximum nesting of combinators. Deeper ones are removed.
const MAX_COMBINATOR_DEPTH: usize = 8;
/// Maximum number of schemas that are merged into one.
const MAX_PARTS: usize = 1000;

/// Converts the schema of a function to the form that strict providers require: an object, without alternatives at its
/// top level. Also returns true if combined schemas were merged into one object, which accepts more values.
pub fn object_schema(schema: Value) -> (Value, bool) {
    let has_combinator = COMBINATORS.iter().any(|key| schema.get(key).is_some());
    let root = if has_combinator { schema.clone() } else { Value::Null };
    let Value::Object(mut fields) = schema else { return (json!({"type": "object", "properties": {}}), false) };
    let (mut is_merged, mut part_count) = (false, 0);
    for _ in 0..MAX_COMBINATOR_DEPTH {
        let combinators = COMBINATORS.map(|key| (key, fields.shift_remove(key)));
        for (key, parts) in combinators {
            let Some(Value::Array(parts)) = parts else { continue };
            is_merged = true;
            for part in parts {
                part_count += 1;
                if part_count <= MAX_PARTS {
                    merge_part(&mut fields, resolve_reference(&root, part), key == "allOf");
                }
            }
        }
    }
    for key in COMBINATORS {
        fields.shift_remove(key);
    }
    match fields.get("type") {
        None | Some(Value::Null | Value::Array(_)) => drop(fields.insert("type".into(), "object".into())),
        Some(_) => (),
    }
    if fields["type"] == "object" {
        fields.entry("properties").or_insert_with(|| json!({}));
    }
    (fields.into(), is_merged)
}

/// Resolves a local reference. Returns a schema that is not a local reference unchanged.
fn resolve_reference(root: &Value, part: Value) -> Value {
    let path = part.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
    path.and_then(|path| root.pointer(path)).cloned().unwrap_or(part)
}

/// Merges one part of a combinator into `fields`. `is_required` is true for `allOf`; the constraints of other parts are
/// dropped.
fn merge_part(fields: &mut Map<String, Value>, part: Value, is_required: bool) {
    let Value::Object(part) = part else { return };
    for (key, value) in part {
        match (key.as_str(), value) {
            ("properties", Value::Object(more)) => {
                if let Some(properties) = fields.entry("properties").or_insert_with(|| json!({})).as_object_mut() {
                    more.into_iter().for_each(|(name, schema)| merge_property(properties, name, schema, is_required));
                }
            }
            ("required", Value::Array(more)) if is_required => {
                if let Some(required) = fields.entry("required").or_insert_with(|| json!([])).as_array_mut() {
                    for name in more {
                        if !required.contains(&name) {
                            required.push(name);
                        }
                    }
                }
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(more)) => {
                let key = if is_required { key } else { "anyOf".to_owned() };
                if let Some(parts) = fields.entry(key).or_insert_with(|| json!([])).as_array_mut() {
                    parts.extend(more);
                }
            }
            (_, value) if is_required => drop(fields.entry(key).or_insert(value)),
            // Constraints of one `anyOf` or `oneOf` alternative are dropped, because they do not apply to the others.
            _ => (),
        }
    }
}

/// Adds a property. If alternatives define it differently, it accepts the values of each.
fn merge_property(properties: &mut Map<String, Value>, name: String, schema: Value, is_required: bool) {
    let Some(existing) = properties.get_mut(&name) else {
        properties.insert(name, schema);
        return;
    };
    if is_required || *existing == schema {
        return;
    }
    match existing.as_object_mut().filter(|fields| fields.len() == 1).and_then(|fields| fields.get_mut("anyOf")) {
        Some(Value::Array(schemas)) => {
            if !schemas.contains(&schema) {
                schemas.push(schema);
            }
        }
        _ => *existing = json!({"anyOf": [existing.take(), schema]}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_becomes_an_object_without_alternatives() {
        let (empty, text) = (json!({"type": "object", "properties": {}}), json!({"type": "string"}));
        for (schema, expected, is_merged) in [
            (json!(null), empty.clone(), false),
            (json!({}), empty.clone(), false),
            (json!({"type": ["object", "null"], "properties": {}}), empty, false),
            (json!({"properties": {"a": text}}), json!({"properties": {"a": text}, "type": "object"}), false),
            (
                json!({"type": "object", "anyOf": [{"properties": {"a": text}, "required": ["a"]}, {"properties": {"b": text}}]}),
                json!({"type": "object", "properties": {"a": text, "b": text}}),
                true,
            ),
            (
                json!({"oneOf": [
                    {"properties": {"kind": {"const": "a"}}, "additionalProperties": false},
                    {"$ref": "#/$defs/b"},
                    {"allOf": [{"properties": {"c": text}, "required": ["c"]}]},
                ], "$defs": {"b": {"properties": {"kind": {"const": "b"}}}}}),
                json!({"$defs": {"b": {"properties": {"kind": {"const": "b"}}}}, "properties": {
                    "kind": {"anyOf": [{"const": "a"}, {"const": "b"}]}, "c": text}, "type": "object"}),
                true,
            ),
            (
                json!({"required": ["a"], "allOf": [{"required": ["a", "b"], "minProperties": 1}]}),
                json!({"required": ["a", "b"], "minProperties": 1, "type": "object", "properties": {}}),
                true,
            ),
            (
                json!({"type": "object", "allOf": [{"properties": {"a": text}, "required": ["a"]}]}),
                json!({"type": "object", "properties": {"a": text}, "required": ["a"]}),
                true,
            ),
        ] {
            assert_eq!(object_schema(schema.clone()), (expected, is_merged), "{schema}");
        }
    }
}
