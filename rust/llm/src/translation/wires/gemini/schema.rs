//! JSON schemas as far as Gemini understands them.

use serde_json::Value;

/// References within references are followed so deep; what is deeper may be anything.
const DEEPEST: usize = 24;

/// Without what Gemini refuses: definitions are written out where they are used, a null among alternatives becomes a flag.
pub fn clean(schema: &Value) -> Value {
    cleaned(schema, schema, 0)
}

fn cleaned(schema: &Value, root: &Value, depth: usize) -> Value {
    if depth > DEEPEST {
        return Value::Object(serde_json::Map::default());
    }
    match schema {
        Value::Object(fields) => {
            if let Some(found) = fields.get("$ref").and_then(Value::as_str).and_then(|path| pointed(root, path)) {
                return cleaned(found, root, depth + 1);
            }
            let mut out = serde_json::Map::new();
            for (key, value) in fields {
                match key.as_str() {
                    "additionalProperties" | "$schema" | "strict" | "$defs" | "definitions" | "$id" | "$ref" => (),
                    "properties" => drop(out.insert(key.clone(), properties(value, root, depth))),
                    "enum" | "required" | "default" | "example" => drop(out.insert(key.clone(), value.clone())),
                    "anyOf" | "oneOf" => alternatives(value, root, depth, &mut out),
                    "type" if value.is_array() => types(value, &mut out),
                    _ => drop(out.insert(key.clone(), cleaned(value, root, depth + 1))),
                }
            }
            Value::Object(out)
        }
        Value::Array(items) => items.iter().map(|item| cleaned(item, root, depth + 1)).collect(),
        other => other.clone(),
    }
}

/// The names of properties are the caller's: one may be called as a keyword is.
fn properties(value: &Value, root: &Value, depth: usize) -> Value {
    let Some(fields) = value.as_object() else { return value.clone() };
    fields.iter().map(|(name, schema)| (name.clone(), cleaned(schema, root, depth + 1))).collect()
}

fn pointed<'v>(root: &'v Value, path: &str) -> Option<&'v Value> {
    root.pointer(path.strip_prefix('#')?)
}

fn alternatives(value: &Value, root: &Value, depth: usize, out: &mut serde_json::Map<String, Value>) {
    let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let is_null = |schema: &&Value| schema["type"] == "null";
    if all.iter().any(|schema| is_null(&schema)) {
        out.insert("nullable".into(), true.into());
    }
    let rest: Vec<_> = all.iter().filter(|schema| !is_null(schema)).map(|one| cleaned(one, root, depth + 1)).collect();
    match <[Value; 1]>::try_from(rest) {
        Ok([Value::Object(only)]) => out.extend(only),
        Ok([other]) => drop(out.insert("anyOf".into(), vec![other].into())),
        Err(several) => drop(out.insert("anyOf".into(), several.into())),
    }
}

/// `["string", "null"]`
fn types(value: &Value, out: &mut serde_json::Map<String, Value>) {
    let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
    if all.iter().any(|kind| kind == "null") {
        out.insert("nullable".into(), true.into());
    }
    let mut rest: Vec<_> = all.iter().filter(|kind| *kind != "null").cloned().collect();
    if rest.len() == 1 {
        out.insert("type".into(), rest.remove(0));
    } else {
        let one = |kind| serde_json::json!({"type": kind});
        out.insert("anyOf".into(), rest.into_iter().map(one).collect());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn definitions_are_written_out_and_nulls_become_a_flag() {
        let schema = json!({"$schema": "x", "type": "object", "additionalProperties": false, "$defs": {"a": {"type": "string"}},
            "properties": {"strict": {"$ref": "#/$defs/a"}, "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "t": {"type": ["string", "null"]}}, "required": ["strict"]});
        let expected = json!({"type": "object", "properties": {"strict": {"type": "string"},
            "n": {"nullable": true, "type": "integer"}, "t": {"nullable": true, "type": "string"}}, "required": ["strict"]});
        assert_eq!(clean(&schema), expected);
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let schema = json!({"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"});
        assert!(clean(&schema).to_string().len() < 2_000);
    }
}
