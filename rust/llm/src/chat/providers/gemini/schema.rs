//! Conversion of JSON schemas to the subset that Gemini supports.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
};

use serde_json::{Map, Value};

use crate::{fields::is_default_value, reports::DroppedParams};

/// Maximum nesting depth, including expanded references. Deeper values are unconstrained.
const MAX_SCHEMA_DEPTH: usize = 24;
/// Maximum number of schemas written for references. Definitions that reference each other twice double the output at
/// every level.
const MAX_EXPANDED_SCHEMAS: usize = 10_000;

/// Keywords that are copied unchanged. Gemini rejects keywords that it does not know.
const COPIED_KEYWORDS: [&str; 15] = [
    "title",
    "description",
    "nullable",
    "required",
    "default",
    "example",
    "propertyOrdering",
    "pattern",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "enum",
];
/// Keywords that do not constrain a value, or whose content is expanded where it is referenced.
const IGNORED_KEYWORDS: [&str; 7] =
    ["$schema", "$id", "$comment", "$defs", "definitions", "strict", "additionalProperties"];
/// Values of `format` that Gemini supports.
const SUPPORTED_FORMATS: [&str; 6] = ["enum", "date-time", "float", "double", "int32", "int64"];

/// Returns the schema without what Gemini rejects. Expands references to definitions and turns a null alternative into
/// `nullable`. Adds the keywords that it leaves out to `dropped_params`.
pub fn sanitize_schema(schema: &Value, dropped_params: &mut DroppedParams) -> Value {
    let cleaning = SchemaSanitizer {
        root: schema,
        remaining_expansions: Cell::new(MAX_EXPANDED_SCHEMAS),
        dropped: RefCell::default(),
    };
    let cleaned = cleaning.sanitize(schema, 0, false);
    dropped_params.merge(&cleaning.dropped.into_inner());
    cleaned
}

/// Returns true if the model also takes complete JSON schemas.
pub fn supports_json_schema(model: &str) -> bool {
    let Some((_, version)) = model.rsplit_once("gemini-") else { return false };
    let version = version.split('-').next().unwrap_or_default();
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    let (major, minor): (u32, u32) = (major.parse().unwrap_or_default(), minor.parse().unwrap_or_default());
    (major, minor) >= (2, 5)
}

/// Schema in the form in which it is sent to Gemini.
pub enum WrittenSchema {
    /// Schema in Gemini's subset of JSON Schema.
    Subset(Value),
    /// Schema as the client wrote it. It is sent in Gemini's field for JSON schemas.
    Complete(Value),
}

/// Converts a schema to Gemini's subset. If that loses something and the model takes JSON schemas, returns the complete
/// schema instead.
pub fn write_schema(schema: &Value, model: &str, dropped_params: &mut DroppedParams) -> WrittenSchema {
    let mut dropped = DroppedParams::default();
    let subset = sanitize_schema(schema, &mut dropped);
    if has_typed_additional_properties(schema) {
        dropped.add("additionalProperties");
    }
    if !dropped.is_empty() && supports_json_schema(model) {
        return WrittenSchema::Complete(schema.clone());
    }
    dropped_params.merge(&dropped);
    WrittenSchema::Subset(subset)
}

/// Returns true if the schema is an object schema without any constraint on its content. Gemini rejects such a schema.
pub fn is_empty_object(schema: &Value) -> bool {
    let says_nothing = |key: &str, value: &Value| match (key, value) {
        ("type", kind) => kind == "object",
        ("description" | "title", _) | (_, Value::Null) => true,
        (_, Value::Object(fields)) => fields.is_empty(),
        (_, Value::Array(items)) => items.is_empty(),
        _ => false,
    };
    schema.as_object().is_none_or(|fields| fields.iter().all(|(key, value)| says_nothing(key, value)))
}

/// Returns true if any part of the schema has `additionalProperties` with a schema of their own, which Gemini cannot
/// express.
pub fn has_typed_additional_properties(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().any(|(key, value)| match key.as_str() {
            "additionalProperties" => value.as_object().is_some_and(|kind| !kind.is_empty()),
            // The keys of these objects are names that the client chose, not keywords.
            "properties" | "$defs" | "definitions" => {
                value.as_object().is_some_and(|schemas| schemas.values().any(has_typed_additional_properties))
            }
            "enum" | "default" | "example" | "examples" | "const" => false,
            _ => has_typed_additional_properties(value),
        }),
        Value::Array(items) => items.iter().any(has_typed_additional_properties),
        _ => false,
    }
}

struct SchemaSanitizer<'v> {
    root: &'v Value,
    remaining_expansions: Cell<usize>,
    dropped: RefCell<DroppedParams>,
}

impl SchemaSanitizer<'_> {
    fn sanitize(&self, schema: &Value, depth: usize, is_referred: bool) -> Value {
        let remaining = self.remaining_expansions.get();
        if depth > MAX_SCHEMA_DEPTH || is_referred && remaining == 0 {
            if is_referred {
                self.dropped.borrow_mut().add("$ref");
            }
            return Value::Object(Map::default());
        }
        self.remaining_expansions.set(remaining.saturating_sub(usize::from(is_referred)));
        let inner = |value: &Value| self.sanitize(value, depth + 1, is_referred);
        // A schema that is not an object (`true`) does not constrain the value.
        let Value::Object(fields) = schema else { return Value::Object(Map::new()) };
        let mut out = Map::new();
        for (key, value) in fields {
            match key.as_str() {
                _ if IGNORED_KEYWORDS.contains(&key.as_str()) => (),
                "$ref" | "allOf" | "exclusiveMinimum" | "exclusiveMaximum" => (),
                "properties" => drop(out.insert(key.clone(), convert_properties(value, inner))),
                "items" => drop(out.insert(key.clone(), self.convert_items(value, inner))),
                "anyOf" | "oneOf" => convert_alternatives(value, inner, &mut out),
                "type" if value.is_array() => convert_type_list(value, &mut out),
                "const" => self.convert_const(value, &mut out),
                "format" if !SUPPORTED_FORMATS.iter().any(|supported| value == supported) => {
                    self.record_dropped(key, value);
                }
                "type" | "format" | "minimum" | "maximum" => drop(out.insert(key.clone(), value.clone())),
                plain if COPIED_KEYWORDS.contains(&plain) => drop(out.insert(key.clone(), value.clone())),
                _ => self.record_dropped(key, value),
            }
        }
        self.convert_exclusive_bounds(fields, &mut out);
        self.convert_enum(&mut out);
        for more in fields.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            if let Value::Object(more) = inner(more) {
                merge_schema(&mut out, more);
            }
        }
        if let Some(path) = fields.get("$ref").and_then(Value::as_str) {
            // Keywords beside a reference take precedence over the referenced schema.
            match path.strip_prefix('#').and_then(|path| self.root.pointer(path)) {
                None => self.record_dropped("$ref", &fields["$ref"]),
                Some(referenced) => {
                    if let Value::Object(referenced) = self.sanitize(referenced, depth + 1, true) {
                        merge_schema(&mut out, referenced);
                    }
                }
            }
        }
        // Gemini rejects an array without a type of its items. Comes last, because `allOf` and `$ref` may define them.
        let has_items = out.get("items").and_then(Value::as_object).is_some_and(|items| !items.is_empty());
        if out.get("type").is_some_and(|kind| kind == "array") && !has_items {
            out.insert("items".into(), serde_json::json!({"type": "string"}));
        }
        Value::Object(out)
    }

    fn record_dropped(&self, key: &str, value: &Value) {
        if !is_default_value(value) {
            self.dropped.borrow_mut().add(key);
        }
    }

    /// Converts `items`. Gemini has only one schema for all items, so a list of schemas becomes alternatives.
    fn convert_items(&self, value: &Value, cleaned: impl Fn(&Value) -> Value) -> Value {
        let Some(each) = value.as_array() else { return cleaned(value) };
        self.record_dropped("items", value);
        let mut out = Map::new();
        convert_alternatives(&each.iter().cloned().collect(), cleaned, &mut out);
        out.into()
    }

    /// Converts `const`: a string to an `enum` with one value, a number to a range with equal bounds.
    fn convert_const(&self, value: &Value, out: &mut Map<String, Value>) {
        match value {
            Value::String(_) => drop(out.insert("enum".into(), vec![value.clone()].into())),
            Value::Number(number) => {
                let kind = if number.is_f64() { "number" } else { "integer" };
                out.entry("type").or_insert_with(|| kind.into());
                out.insert("minimum".into(), value.clone());
                out.insert("maximum".into(), value.clone());
            }
            Value::Bool(_) => {
                out.entry("type").or_insert_with(|| "boolean".into());
                self.dropped.borrow_mut().add("const");
            }
            Value::Null => drop(out.insert("nullable".into(), true.into())),
            Value::Array(_) | Value::Object(_) => self.dropped.borrow_mut().add("const"),
        }
    }

    /// Converts exclusive bounds to inclusive ones. An integer bound moves to the next integer. Other bounds stay as
    /// they are, become inclusive, and are reported as dropped.
    fn convert_exclusive_bounds(&self, fields: &Map<String, Value>, out: &mut Map<String, Value>) {
        let is_whole = out.get("type").is_some_and(|kind| kind == "integer");
        for (key, name, step) in [("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)] {
            let Some(exclusive) = fields.get(key) else { continue };
            let next = exclusive.as_i64().filter(|_| is_whole).and_then(|bound| bound.checked_add(step));
            if next.is_none() {
                self.record_dropped(key, exclusive);
            }
            let Some(bound) = next.map(Value::from).or_else(|| Some(exclusive.clone()).filter(Value::is_number)) else {
                continue;
            };
            let is_closer = |existing: &Value| match (existing.as_f64(), bound.as_f64()) {
                (Some(current), Some(bound)) if step > 0 => current >= bound,
                (Some(current), Some(bound)) => current <= bound,
                _ => false,
            };
            if !out.get(name).is_some_and(is_closer) {
                out.insert(name.into(), bound);
            }
        }
    }

    /// Converts `enum`. Gemini allows only non-empty strings in it and needs a `type` beside it.
    fn convert_enum(&self, out: &mut Map<String, Value>) {
        let Some(enum_value) = out.get_mut("enum") else { return };
        let mut values = enum_value.as_array().cloned().unwrap_or_default();
        let were = values.len();
        values.retain(|value| !value.is_null());
        let has_null = values.len() < were;
        let non_null_count = values.len();
        values.retain(|value| value != "");
        let is_text = !values.is_empty() && values.iter().all(Value::is_string);
        let kind = match () {
            () if is_text => Some("string"),
            () if values.iter().all(|value| value.is_i64() || value.is_u64()) => Some("integer"),
            () if values.iter().all(Value::is_number) => Some("number"),
            () if values.iter().all(Value::is_boolean) => Some("boolean"),
            () => None,
        };
        if !is_text || values.len() < non_null_count {
            self.dropped.borrow_mut().add("enum");
        }
        let is_empty = values.is_empty();
        if is_text {
            *enum_value = values.into();
        } else {
            out.shift_remove("enum");
        }
        if has_null {
            out.insert("nullable".into(), true.into());
        }
        if let Some(kind) = kind.filter(|_| !is_empty && !out.contains_key("type") && !out.contains_key("anyOf")) {
            out.insert("type".into(), kind.into());
        }
    }
}

/// Converts the schema of each property. The client chooses the property names, so one may equal a keyword.
fn convert_properties(value: &Value, cleaned: impl Fn(&Value) -> Value) -> Value {
    let Some(fields) = value.as_object() else { return value.clone() };
    fields.iter().map(|(name, schema)| (name.clone(), cleaned(schema))).collect()
}

/// Merges a schema that also applies (`allOf`, `$ref`). Existing keywords win, but `properties` and `required` are
/// combined.
fn merge_schema(out: &mut Map<String, Value>, more: Map<String, Value>) {
    for (key, value) in more {
        match (out.get_mut(&key), value) {
            (None, value) => drop(out.insert(key, value)),
            (Some(Value::Object(properties)), Value::Object(more)) if key == "properties" => {
                for (name, schema) in more {
                    properties.entry(name).or_insert(schema);
                }
            }
            (Some(Value::Array(required)), Value::Array(more)) if key == "required" => {
                let names: HashSet<_> = required.iter().filter_map(Value::as_str).map(ToOwned::to_owned).collect();
                required
                    .extend(more.into_iter().filter(|name| name.as_str().is_some_and(|name| !names.contains(name))));
            }
            (Some(_), _) => (),
        }
    }
}

fn convert_alternatives(value: &Value, cleaned: impl Fn(&Value) -> Value, out: &mut Map<String, Value>) {
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

/// Converts a list of types such as `["string", "null"]`.
fn convert_type_list(value: &Value, out: &mut Map<String, Value>) {
    let all = value.as_array().map(Vec::as_slice).unwrap_or_default();
    if all.iter().any(|kind| kind == "null") {
        out.insert("nullable".into(), true.into());
    }
    let mut rest: Vec<_> = all.iter().filter(|kind| *kind != "null").cloned().collect();
    if rest.len() == 1 {
        out.insert("type".into(), rest.remove(0));
    } else {
        let item = |kind: Value| match kind.as_str() {
            Some("array") => serde_json::json!({"type": kind, "items": {"type": "string"}}),
            _ => serde_json::json!({"type": kind}),
        };
        out.insert("anyOf".into(), rest.into_iter().map(item).collect());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expands_definitions_and_converts_null_to_nullable() {
        let schema = json!({"$schema": "x", "type": "object", "additionalProperties": false, "$defs": {"a": {"type": "string"}},
            "properties": {"strict": {"$ref": "#/$defs/a"}, "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "t": {"type": ["string", "null"]}}, "required": ["strict"]});
        let expected = json!({"type": "object", "properties": {"strict": {"type": "string"},
            "n": {"nullable": true, "type": "integer"}, "t": {"nullable": true, "type": "string"}}, "required": ["strict"]});
        let mut dropped = DroppedParams::default();
        assert_eq!(sanitize_schema(&schema, &mut dropped), expected);
        assert!(dropped.is_empty(), "{dropped:?}");
    }

    #[test]
    fn bounds_expansion_of_definitions_that_reference_each_other() {
        let names: Vec<_> = (0..30).map(|n| format!("p{n}")).collect();
        let again: Map<_, _> = names.iter().map(|name| (name.clone(), json!({"$ref": "#/$defs/a"}))).collect();
        let schema = json!({"$defs": {"a": {"type": "object", "properties": again}}, "$ref": "#/$defs/a"});
        assert!(sanitize_schema(&schema, &mut DroppedParams::default()).to_string().len() < 1_000_000);
    }

    #[test]
    fn bounds_expansion_of_self_reference() {
        let schema = json!({"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"});
        assert!(sanitize_schema(&schema, &mut DroppedParams::default()).to_string().len() < 2_000);
    }

    #[test]
    fn converts_unsupported_keywords_or_reports_them_as_dropped() {
        for (schema, expected, dropped_names) in [
            (json!({"const": "a"}), json!({"enum": ["a"], "type": "string"}), ""),
            (json!({"const": 3}), json!({"type": "integer", "minimum": 3, "maximum": 3}), ""),
            (json!({"enum": ["a", null]}), json!({"enum": ["a"], "nullable": true, "type": "string"}), ""),
            (json!({"enum": [1, 2]}), json!({"type": "integer"}), "enum"),
            (json!({"type": "string", "enum": ["", "b"]}), json!({"type": "string", "enum": ["b"]}), "enum"),
            (json!({"type": "integer", "exclusiveMinimum": 0}), json!({"type": "integer", "minimum": 1}), ""),
            (
                json!({"type": "integer", "minimum": 5, "exclusiveMinimum": 0}),
                json!({"type": "integer", "minimum": 5}),
                "",
            ),
            (
                json!({"type": "number", "exclusiveMaximum": 1.5}),
                json!({"type": "number", "maximum": 1.5}),
                "exclusiveMaximum",
            ),
            (json!({"type": "string", "format": "email"}), json!({"type": "string"}), "format"),
            (json!({"type": "string", "format": "date-time"}), json!({"type": "string", "format": "date-time"}), ""),
            (
                json!({"type": "array", "items": {"type": "number", "multipleOf": 2}, "uniqueItems": true}),
                json!({"type": "array", "items": {"type": "number"}}),
                "multipleOf, uniqueItems",
            ),
            (
                json!({"type": "object", "properties": {"not": {"not": {}}, "x": true}, "patternProperties": {"a": {}}}),
                json!({"type": "object", "properties": {"not": {}, "x": {}}}),
                "patternProperties",
            ),
        ] {
            let mut dropped = DroppedParams::default();
            assert_eq!(sanitize_schema(&schema, &mut dropped), expected, "{schema}");
            assert_eq!(dropped.header_value(), dropped_names, "{schema}");
        }
    }

    #[test]
    fn keeps_the_complete_schema_for_models_that_take_it() {
        let recursive = json!({"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"});
        let lossy = json!({"type": "object", "properties": {"n": {"type": "number", "multipleOf": 2}}});
        let plain = json!({"type": "object", "properties": {"n": {"type": "number"}}});
        for (schema, model, is_complete) in [
            (&recursive, "gemini-2.5-flash", true),
            (&lossy, "gemini-3-pro-preview", true),
            (&lossy, "google/gemini-2.0-flash", false),
            (&lossy, "gemini-flash-latest", false),
            (&plain, "gemini-2.5-flash", false),
        ] {
            let mut dropped = DroppedParams::default();
            let written = write_schema(schema, model, &mut dropped);
            assert_eq!(matches!(written, WrittenSchema::Complete(_)), is_complete, "{model} {schema}");
            assert!(!is_complete || dropped.is_empty());
        }
    }

    #[test]
    fn keeps_keywords_beside_reference() {
        let schema = json!({"$defs": {"a": {"type": "string", "description": "any"}}, "type": "object",
            "properties": {"x": {"$ref": "#/$defs/a", "description": "this one", "maxLength": 3}}});
        let expected = json!({"type": "object",
            "properties": {"x": {"description": "this one", "maxLength": 3, "type": "string"}}});
        assert_eq!(sanitize_schema(&schema, &mut DroppedParams::default()), expected);
    }
}
