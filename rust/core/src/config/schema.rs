//! JSON Schema of configs, for editors. Generated from the same key table that the parser uses.

use penstock_llm::catalog::{self, ValueFormat};
use serde_json::{Map, Value, json};

use crate::config::config_parser::CONFIG_KEYS;

/// Definitions that several keys share.
const SHARED_DEFS: &str = r##"{
    "text": {"type": "string", "pattern": "^[^\\x00-\\x1f\\x7f-\\x9f]+$"},
    "lines": {"type": "string", "pattern": "^[^\\x00-\\x09\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f]+$"},
    "document": {"type": ["object", "string"], "pattern": "^\\s*\\{[\\s\\S]*\\}\\s*$", "description": "a JSON object, or a string that encodes one"},
    "field": {"type": "string", "pattern": "^(metadata\\..+|params\\..+|url\\.pathname)$"},
    "recovery": {"enum": ["off", "hold", "continue"]},
    "sticky": {"type": "object", "additionalProperties": false, "properties": {"enabled": {"type": "boolean", "default": true},
        "hash_fields": {"type": "array", "items": {"$ref": "#/$defs/field"}, "description": "such as metadata.user_id; requests with equal values go to the same target"},
        "ttl": {"type": "integer", "minimum": 1, "default": 3600, "description": "seconds for which workers that share Redis remember a target; without Redis the target never changes"}},
        "anyOf": [{"required": ["hash_fields"], "properties": {"hash_fields": {"minItems": 1}}}, {"required": ["enabled"], "properties": {"enabled": {"const": false}}}]},
    "statuses": {"type": "array", "items": {"type": "integer", "minimum": 100, "maximum": 599}},
    "cb_config": {"type": "object", "description": "circuit breaker: a target that fails too often is skipped for a while",
        "required": ["failure_threshold", "cooldown_interval"], "additionalProperties": false, "properties": {
        "failure_threshold": {"type": "integer", "minimum": 1, "description": "failures that are tolerated; one more opens the circuit breaker"},
        "failure_threshold_percentage": {"type": "number", "exclusiveMinimum": 0, "maximum": 100},
        "minimum_requests": {"type": "integer", "minimum": 0, "default": 10},
        "cooldown_interval": {"type": "integer", "minimum": 30000, "description": "milliseconds"},
        "failure_status_codes": {"$ref": "#/$defs/statuses", "description": "default: above 500"}}},
    "action": {"type": "object", "properties": {"feedback": {"type": "object", "properties": {"value": {"type": "number"}, "weight": {"type": "number"}, "metadata": {"type": ["object", "string"]}}}}},
    "hooks": {"type": "array", "maxItems": 50, "items": {"anyOf": [{"type": "string", "minLength": 1, "description": "id or slug of a guardrail"},
        {"type": "object", "required": ["checks"], "additionalProperties": false, "properties": {"type": {"enum": ["guardrail", "mutator"], "default": "guardrail"}, "id": {"type": "string"}, "name": {"type": "string"},
            "event_type": {"type": "string"}, "eventType": {"type": "string"},
            "checks": {"type": "array", "maxItems": 50, "items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string", "description": "see docs/guardrail-checks.md"}, "parameters": {"type": "object"}, "name": {"type": "string"}, "is_enabled": {"type": "boolean"}, "soft_deny_200": {"type": "boolean"}}}},
            "deny": {"type": "boolean", "default": false}, "async": {"type": "boolean", "default": false}, "sequential": {"type": "boolean", "default": false}, "dry_run": {"type": "boolean", "default": false, "description": "the guardrail only reports; it denies and changes nothing"}, "soft_deny_200": {"type": "boolean", "default": false, "description": "a denial has status 200 and a message in place of a response"},
            "stream": {"enum": ["hold", "window", "end"], "description": "hold: a stream waits until the checks have passed; window: it is checked in portions; end: the results follow after it"},
            "guardrail_version_id": {"type": "string"}, "on_success": {"$ref": "#/$defs/action"}, "on_fail": {"$ref": "#/$defs/action"}}}]}},
    "guardrails": {"type": "array", "maxItems": 50, "items": {"anyOf": [{"type": "string", "minLength": 1, "description": "id or slug of a guardrail"},
        {"type": "object", "description": "`deny`, `async`, `sequential`, `id`, `type`, `on_success`, `on_fail`, `soft_deny_200`, `dry_run` and `stream`; every other key is a check with its parameters"}]}},
    "flag": {"enum": [true, false, "true", "false"]},
    "bound": {"type": ["number", "string"], "pattern": "^\\s*[+-]?\\.?[0-9]", "description": "a number, or a string that begins with one"},
    "query": {"type": "object", "description": "`metadata.<key>`, `params.<field>` and `url.pathname`, each with a value or operators; all must match",
        "properties": {"$and": {"type": "array", "items": {"$ref": "#/$defs/query"}},
            "$or": {"type": "array", "items": {"$ref": "#/$defs/query"}}},
        "patternProperties": {"^(metadata\\..+|params\\..+|url\\.pathname)$": {"anyOf": [
            {"not": {"type": "object"}},
            {"type": "object", "additionalProperties": false, "properties": {"$eq": {}, "$ne": {}, "$gt": {"$ref": "#/$defs/bound"},
                "$gte": {"$ref": "#/$defs/bound"}, "$lt": {"$ref": "#/$defs/bound"}, "$lte": {"$ref": "#/$defs/bound"}, "$in": {"type": "array"},
                "$nin": {"type": "array"}, "$regex": {"type": "string", "format": "regex", "maxLength": 2048}}}]}},
        "additionalProperties": false}
}"##;

/// Constraints between keys, in every config and nested config.
const KEY_CONSTRAINTS: &str = r#"[
    {"if": {"required": ["targets"], "properties": {"targets": {"type": "array", "minItems": 2}}}, "then": {"required": ["strategy"]}},
    {"if": {"required": ["strategy"], "properties": {"strategy": {"required": ["mode"], "properties": {"mode": {"enum": ["fallback", "loadbalance", "conditional"]}}}}},
        "then": {"required": ["targets"]}},
    {"if": {"required": ["strategy"], "properties": {"strategy": {"required": ["mode"], "properties": {"mode": {"const": "loadbalance"}}}}},
        "then": {"properties": {"targets": {"contains": {"properties": {"weight": {"exclusiveMinimum": 0}}}}}}},
    {"if": {"required": ["strategy"], "properties": {"strategy": {"required": ["mode"], "properties": {"mode": {"const": "conditional"}}}}},
        "then": {"properties": {"strategy": {"required": ["default"]}}}},
    {"if": {"required": ["passthrough"], "properties": {"passthrough": {"const": true}}},
        "then": {"not": {"anyOf": [{"required": ["provider"]}, {"required": ["virtual_key"]}, {"required": ["targets"]}]}}}
]"#;

/// Keys that the root config must not combine with `passthrough`.
const ROOT_PASSTHROUGH_CONSTRAINT: &str = r#"{
    "if": {"required": ["passthrough"], "properties": {"passthrough": {"const": true}}},
    "then": {"not": {"anyOf": [{"required": ["targets"]}, {"required": ["strategy"]}, {"required": ["override_params"]}]}}
}"#;

/// Rejects a root config whose keys have no effect by themselves.
const ROOT_EFFECT_CONSTRAINT: &str = r#"{"not": {"propertyNames": {"enum": ["name", "on_status_codes", "weight"]}}}"#;

/// An example for each property, and descriptions of those that have none in the tables, by JSON pointer. They are in a
/// file of their own, so that the tables stay readable.
const EXAMPLES: &str = include_str!("schema_examples.json");

/// Number of providers that the description of an option names.
const MAX_NAMED_PROVIDERS: usize = 3;

/// Returns the JSON Schema of a saved config.
pub fn config_schema() -> Value {
    let read = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    let mut properties: Map<_, _> =
        CONFIG_KEYS.iter().map(|field| (field.key.to_owned(), read(field.schema))).collect();
    for (name, schema) in provider_options() {
        properties.entry(name).or_insert(schema);
    }
    let mut shared = read(SHARED_DEFS);
    let slugs: Vec<_> = catalog::all_providers().map(<dyn catalog::Provider>::slug).collect();
    shared["provider"] =
        json!({"anyOf": [{"enum": slugs}, {"type": "string", "pattern": "^@[^\\x00-\\x1f\\x7f-\\x9f]+$"}]});
    shared["config"] = json!({"type": "object", "additionalProperties": false, "properties": properties,
        "allOf": read(KEY_CONSTRAINTS)});
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:penstock:config",
        "title": "Config",
        "description": "A routing config of Penstock",
        "$ref": "#/$defs/config",
        "allOf": [read(ROOT_PASSTHROUGH_CONSTRAINT), read(ROOT_EFFECT_CONSTRAINT)],
        "$defs": shared,
    });
    let examples: Map<String, Value> = serde_json::from_str(EXAMPLES).unwrap_or_default();
    for (pointer, annotations) in examples {
        if let (Some(Value::Object(property)), Value::Object(annotations)) = (schema.pointer_mut(&pointer), annotations)
        {
            property.extend(annotations);
        }
    }
    schema
}

/// Returns the options of providers that a config may set, by key and by header name, with the providers that have them.
fn provider_options() -> Vec<(String, Value)> {
    let mut options: Vec<(String, ValueFormat, Vec<&str>)> = Vec::new();
    for provider in catalog::all_providers() {
        for option in provider.row().options {
            for name in [option.key.to_owned(), option.header.replace('-', "_")] {
                match options.iter_mut().find(|(known, ..)| *known == name) {
                    Some((.., slugs)) if slugs.last() == Some(&provider.slug()) => (),
                    Some((.., slugs)) => slugs.push(provider.slug()),
                    None => options.push((name, option.value_format(), vec![provider.slug()])),
                }
            }
        }
    }
    let describe = |(name, format, slugs): (String, ValueFormat, Vec<&str>)| {
        let kind = match format {
            ValueFormat::SingleLine => "#/$defs/text",
            ValueFormat::MultiLine => "#/$defs/lines",
            ValueFormat::JsonObject => "#/$defs/document",
            ValueFormat::Boolean => "#/$defs/flag",
        };
        let listed = slugs.iter().take(MAX_NAMED_PROVIDERS).copied().collect::<Vec<_>>().join(", ");
        let more = slugs.len().saturating_sub(MAX_NAMED_PROVIDERS);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        (name, json!({"$ref": kind, "description": format!("option of {listed}{rest}")}))
    };
    options.into_iter().map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Strictness};

    /// Returns the property names in a key's schema, directly or through its `$ref`.
    fn property_names(schema: &Value, properties: &Value) -> Vec<String> {
        let all = properties["properties"].as_object().or_else(|| {
            let name = properties["$ref"].as_str()?.strip_prefix("#/$defs/")?;
            schema["$defs"][name]["properties"].as_object()
        });
        all.into_iter().flatten().map(|(key, _)| key.clone()).collect()
    }

    #[test]
    fn parser_accepts_every_key_of_the_schema() {
        let schema = config_schema();
        assert!(schema["allOf"][0].is_object() && schema["$defs"]["config"]["allOf"].is_array());
        assert!(schema["$defs"]["config"]["properties"].as_object().unwrap().values().all(Value::is_object));
        for (key, value) in schema["$defs"]["config"]["properties"].as_object().unwrap() {
            let inner = property_names(&schema, value);
            let inner = if key == "targets" { Vec::new() } else { inner };
            let nested = inner.into_iter().map(|inner| json!({key: {inner: null}}));
            for config in nested.chain([json!({key: null})]) {
                let problems =
                    Config::parse(config.to_string().as_bytes(), Strictness::Strict).err().unwrap_or_default();
                assert!(
                    problems.iter().all(|problem| problem.message != "is not a known key"),
                    "{config}: {problems:?}"
                );
            }
        }
    }

    /// Returns the pointers of properties, without those of constraints such as `if` and `contains`.
    fn property_pointers(schema: &Value, pointer: &str, pointers: &mut Vec<String>) {
        let Some(fields) = schema.as_object() else { return };
        for name in fields.get("properties").and_then(Value::as_object).into_iter().flatten().map(|(name, _)| name) {
            let below = format!("{pointer}/properties/{name}");
            property_pointers(&schema["properties"][name], &below, pointers);
            pointers.push(below);
        }
        if schema["items"].is_object() {
            property_pointers(&schema["items"], &format!("{pointer}/items"), pointers);
        }
        for keyword in ["oneOf", "anyOf"] {
            for (index, item) in schema[keyword].as_array().into_iter().flatten().enumerate() {
                // Alternatives with a type describe values; those without one are constraints.
                if item["type"].is_string() {
                    property_pointers(item, &format!("{pointer}/{keyword}/{index}"), pointers);
                }
            }
        }
        for (name, item) in fields.get("patternProperties").and_then(Value::as_object).into_iter().flatten() {
            property_pointers(item, &format!("{pointer}/patternProperties/{name}"), pointers);
        }
    }

    #[test]
    fn every_property_has_an_example_and_a_description() {
        let schema = config_schema();
        let mut pointers = Vec::new();
        for (name, definition) in schema["$defs"].as_object().unwrap() {
            property_pointers(definition, &format!("/$defs/{name}"), &mut pointers);
        }
        let lacking: Vec<_> = pointers
            .iter()
            .filter(|pointer| {
                let property = schema.pointer(pointer).unwrap();
                !property["description"].is_string() || property["examples"].as_array().is_none_or(Vec::is_empty)
            })
            .collect();
        assert!(lacking.is_empty() && pointers.len() > 150, "add them to schema_examples.json: {lacking:?}");
        let examples: Map<String, Value> = serde_json::from_str(EXAMPLES).unwrap();
        let unknown: Vec<_> = examples.keys().filter(|pointer| !pointers.contains(pointer)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn schema_references_resolve() {
        let schema = config_schema();
        let text = schema.to_string();
        for reference in text.split("\"#/$defs/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!(schema["$defs"][reference].is_object(), "{reference}");
        }
    }
}
