//! JSON schemas as far as Gemini understands them.

use std::{cell::Cell, collections::HashSet};

use serde_json::{Map, Value};

/// References within references are followed so deep; what is deeper may be anything.
const DEEPEST: usize = 24;
/// So much is written out for references altogether: definitions that name each other twice double with every step.
const MOST: usize = 10_000;

/// Without what Gemini refuses: definitions are written out where they are used, a null among alternatives becomes a flag.
pub fn clean(schema: &Value) -> Value {
    Cleaning { root: schema, left: Cell::new(MOST) }.cleaned(schema, 0, false)
}

/// Whether it is an object and says nothing of what is in it. Gemini refuses such a one.
pub fn is_empty(schema: &Value) -> bool {
    let says_nothing = |key: &str, value: &Value| match (key, value) {
        ("type", kind) => kind == "object",
        ("description" | "title", _) | (_, Value::Null) => true,
        (_, Value::Object(fields)) => fields.is_empty(),
        (_, Value::Array(items)) => items.is_empty(),
        _ => false,
    };
    schema.as_object().is_none_or(|fields| fields.iter().all(|(key, value)| says_nothing(key, value)))
}

/// Whether somewhere in it any names may be given to values of a kind: what Gemini has no word for.
pub fn has_free_names(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().any(|(key, value)| match key.as_str() {
            "additionalProperties" => value.as_object().is_some_and(|kind| !kind.is_empty()),
            // The names in it are the caller's.
            "properties" | "$defs" | "definitions" => {
                value.as_object().is_some_and(|named| named.values().any(has_free_names))
            }
            "enum" | "default" | "example" | "examples" | "const" => false,
            _ => has_free_names(value),
        }),
        Value::Array(items) => items.iter().any(has_free_names),
        _ => false,
    }
}

struct Cleaning<'v> {
    root: &'v Value,
    left: Cell<usize>,
}

impl Cleaning<'_> {
    fn cleaned(&self, schema: &Value, depth: usize, is_referred: bool) -> Value {
        let left = self.left.get();
        if depth > DEEPEST || is_referred && left == 0 {
            return Value::Object(Map::default());
        }
        self.left.set(left.saturating_sub(usize::from(is_referred)));
        let inner = |value: &Value| self.cleaned(value, depth + 1, is_referred);
        match schema {
            Value::Object(fields) => {
                let path = fields.get("$ref").and_then(Value::as_str);
                if let Some(found) = path.and_then(|path| self.root.pointer(path.strip_prefix('#')?)) {
                    return self.cleaned(found, depth + 1, true);
                }
                let mut out = Map::new();
                for (key, value) in fields {
                    match key.as_str() {
                        "additionalProperties"
                        | "$schema"
                        | "strict"
                        | "$defs"
                        | "definitions"
                        | "$id"
                        | "$ref"
                        | "allOf" => (),
                        "properties" => drop(out.insert(key.clone(), properties(value, inner))),
                        "enum" | "required" | "default" | "example" => drop(out.insert(key.clone(), value.clone())),
                        "anyOf" | "oneOf" => alternatives(value, inner, &mut out),
                        "type" if value.is_array() => types(value, &mut out),
                        _ => drop(out.insert(key.clone(), inner(value))),
                    }
                }
                for more in fields.get("allOf").and_then(Value::as_array).into_iter().flatten() {
                    if let Value::Object(more) = inner(more) {
                        join(&mut out, more);
                    }
                }
                Value::Object(out)
            }
            Value::Array(items) => items.iter().map(inner).collect(),
            other => other.clone(),
        }
    }
}

/// The names of properties are the caller's: one may be called as a keyword is.
fn properties(value: &Value, cleaned: impl Fn(&Value) -> Value) -> Value {
    let Some(fields) = value.as_object() else { return value.clone() };
    fields.iter().map(|(name, schema)| (name.clone(), cleaned(schema))).collect()
}

/// A schema that holds as well: what both say of one thing is said by the first, but for properties, which are everybody's.
fn join(out: &mut Map<String, Value>, more: Map<String, Value>) {
    for (key, value) in more {
        match (out.get_mut(&key), value) {
            (None, value) => drop(out.insert(key, value)),
            (Some(Value::Object(known)), Value::Object(more)) if key == "properties" => {
                for (name, schema) in more {
                    known.entry(name).or_insert(schema);
                }
            }
            (Some(Value::Array(known)), Value::Array(more)) if key == "required" => {
                let names: HashSet<_> = known.iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect();
                known.extend(more.into_iter().filter(|name| name.as_str().is_some_and(|name| !names.contains(name))));
            }
            (Some(_), _) => (),
        }
    }
}

fn alternatives(value: &Value, cleaned: impl Fn(&Value) -> Value, out: &mut Map<String, Value>) {
    let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let is_null = |schema: &&Value| schema["type"] == "null";
    if all.iter().any(|schema| is_null(&schema)) {
        out.insert("nullable".into(), true.into());
    }
    let rest: Vec<_> = all.iter().filter(|schema| !is_null(schema)).map(cleaned).collect();
    match <[Value; 1]>::try_from(rest) {
        Ok([Value::Object(only)]) => out.extend(only),
        Ok([other]) => drop(out.insert("anyOf".into(), vec![other].into())),
        Err(several) => drop(out.insert("anyOf".into(), several.into())),
    }
}

/// `["string", "null"]`
fn types(value: &Value, out: &mut Map<String, Value>) {
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
    fn definitions_that_name_each_other_again_and_again_end_soon() {
        let names: Vec<_> = (0..30).map(|n| format!("p{n}")).collect();
        let again: Map<_, _> = names.iter().map(|name| (name.clone(), json!({"$ref": "#/$defs/a"}))).collect();
        let schema = json!({"$defs": {"a": {"type": "object", "properties": again}}, "$ref": "#/$defs/a"});
        assert!(clean(&schema).to_string().len() < 1_000_000);
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let schema = json!({"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"});
        assert!(clean(&schema).to_string().len() < 2_000);
    }
}
