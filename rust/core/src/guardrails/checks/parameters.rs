//! Check of the parameters and tools of a request.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::request_tools::{RequestTool, find_tools};
use crate::{
    guardrails::check::{
        Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages, read_parameters,
    },
    parse::document_reader::to_snake_case,
};

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "default.requestParametersCheck",
    alias: None,
    name: "Request parameters",
    description: "passes if the request has no parameter, value or tool that is blocked or not allowed",
    stages: Stages::Input,
    secrets: &[],
    schema: r##"{"properties":{"tools":{"type":"object","additionalProperties":false,"properties":{"blockedTypes":{"$ref":"#/$defs/names"},"allowedTypes":{"$ref":"#/$defs/names"},"blockedFunctionNames":{"$ref":"#/$defs/names"},"allowedFunctionNames":{"$ref":"#/$defs/names"}}},"params":{"type":"object","additionalProperties":false,"properties":{"blockedKeys":{"$ref":"#/$defs/names"},"allowedKeys":{"$ref":"#/$defs/names"},"values":{"type":"object","additionalProperties":{"type":"object","additionalProperties":false,"properties":{"blockedValues":{"$ref":"#/$defs/values"},"allowedValues":{"$ref":"#/$defs/values"}}}}}}},"$defs":{"names":{"type":"array","items":{"type":"string"}},"values":{"type":"array","items":{"type":["string","number","boolean","null"]}}}}"##,
    shared: &[],
    compile: RequestParameters::compile,
}];

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RequestParameters {
    tools: ToolRules,
    params: ParamRules,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ToolRules {
    blocked_types: Vec<String>,
    allowed_types: Vec<String>,
    blocked_function_names: Vec<String>,
    allowed_function_names: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ParamRules {
    blocked_keys: Vec<String>,
    allowed_keys: Vec<String>,
    values: BTreeMap<String, ValueRules>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ValueRules {
    blocked_values: Vec<Value>,
    allowed_values: Vec<Value>,
}

/// Returns the first blocked entry that is also allowed.
fn find_common<'l, T: PartialEq>(blocked: &'l [T], allowed: &[T]) -> Option<&'l T> {
    blocked.iter().find(|value| allowed.contains(value))
}

/// Returns the reasons against an entry: it is blocked, or an allow list lacks it.
fn reasons_against<'r, T: PartialEq<U>, U: ?Sized>(
    blocked: &[T],
    allowed: &[T],
    actual: &U,
    names: [&'r str; 2],
) -> Option<&'r str> {
    if blocked.iter().any(|value| value == actual) {
        Some(names[0])
    } else if !allowed.is_empty() && !allowed.iter().any(|value| value == actual) {
        Some(names[1])
    } else {
        None
    }
}

impl ToolRules {
    /// Returns the reasons against a tool.
    fn reasons_against(&self, tool: &RequestTool<'_>) -> Vec<&'static str> {
        let kind = to_snake_case(tool.kind);
        let by_type =
            reasons_against(&self.blocked_types, &self.allowed_types, &kind, ["type_blocked", "type_not_allowed"]);
        let (blocked, allowed) = (&self.blocked_function_names, &self.allowed_function_names);
        let reasons = ["name_blocked", "name_not_allowed"];
        let by_name = if tool.is_built_in() {
            let in_snake_case = |names: &[String]| names.iter().map(|name| to_snake_case(name)).collect::<Vec<_>>();
            reasons_against(&in_snake_case(blocked), &in_snake_case(allowed), &kind, reasons)
        } else {
            reasons_against(blocked, allowed, tool.name, reasons)
        };
        by_type.into_iter().chain(by_name).collect()
    }
}

impl RequestParameters {
    fn compile(parameters: Value) -> CompileResult {
        let mut rules: Self = read_parameters(parameters)?;
        // Types of built-in tools are written in two ways, such as `googleSearch` and `google_search`.
        for kind in rules.tools.blocked_types.iter_mut().chain(&mut rules.tools.allowed_types) {
            *kind = to_snake_case(kind);
        }
        let Self { tools, params } = &rules;
        let both = [
            (".tools.blockedTypes", find_common(&tools.blocked_types, &tools.allowed_types)),
            (".tools.blockedFunctionNames", find_common(&tools.blocked_function_names, &tools.allowed_function_names)),
            (".params.blockedKeys", find_common(&params.blocked_keys, &params.allowed_keys)),
        ];
        if let Some((path, name)) = both.into_iter().find_map(|(path, name)| Some((path, name?))) {
            return Err((path.to_owned(), format!("must not name `{name}`, which is allowed too")));
        }
        let is_ambiguous = |rule: &ValueRules| find_common(&rule.blocked_values, &rule.allowed_values).is_some();
        if let Some((name, _)) = params.values.iter().find(|(_, rule)| is_ambiguous(rule)) {
            let message = "must not hold a value that is allowed too".to_owned();
            return Err((format!(".params.values.{name}.blockedValues"), message));
        }
        Ok(Box::new(rules))
    }

    fn blocked_tools(&self, request: &Value) -> Vec<Value> {
        let blocked = find_tools(request).into_iter().filter_map(|tool| {
            let reasons = self.tools.reasons_against(&tool);
            (!reasons.is_empty()).then(|| json!({"type": tool.kind, "name": tool.name, "reasons": reasons}))
        });
        blocked.collect()
    }

    fn blocked_params(&self, request: &Value) -> Vec<Value> {
        let rules = &self.params;
        let params = request.as_object().into_iter().flatten();
        let blocked = params.filter_map(|(name, value)| {
            let by_key = reasons_against(
                &rules.blocked_keys,
                &rules.allowed_keys,
                name.as_str(),
                ["key_blocked", "key_not_allowed"],
            );
            let by_value = rules.values.get(name).and_then(|rule| {
                reasons_against(
                    &rule.blocked_values,
                    &rule.allowed_values,
                    value,
                    ["value_blocked", "value_not_allowed"],
                )
            });
            let reasons: Vec<_> = [by_key, by_value].into_iter().flatten().collect();
            // The result shows only values that the rules contain, because others may be whole conversations.
            let actual_value = by_value.map(|_| value);
            (!reasons.is_empty()).then(|| json!({"param": name, "value": actual_value, "reasons": reasons}))
        });
        blocked.collect()
    }
}

impl Check for RequestParameters {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        if !input.request.is_object() {
            return Err(CheckError::new("the request body is not a JSON object"));
        }
        let (tools, params) = (self.blocked_tools(input.request), self.blocked_params(input.request));
        let verdict = tools.is_empty() && params.is_empty();
        let explanation = format!("{} tools and {} parameters are not allowed", tools.len(), params.len());
        Ok(CheckOutcome::new(
            verdict,
            json!({"verdict": verdict, "explanation": explanation, "blockedToolsFound": tools,
                "blockedParamsFound": params}),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Stage, compile_check, tests::run_on_bodies},
        *,
    };
    use crate::parse::document_reader::Strictness;

    #[test]
    fn tools_and_parameters_are_checked() {
        let request = json!({"model": "m", "temperature": 1.5, "tools": [
            {"type": "function", "function": {"name": "delete"}}, {"type": "web_search"}, {"name": "read", "input_schema": {}}]});
        let run = |parameters: Value| {
            run_on_bodies("default.requestParametersCheck", parameters, Stage::Input, &request, &Value::Null).unwrap()
        };
        assert!(run(json!({})).verdict);
        let outcome =
            run(json!({"tools": {"blockedTypes": ["web_search"], "allowedFunctionNames": ["read", "web_search"]}}));
        assert_eq!(
            outcome.data["blockedToolsFound"],
            json!([{"type": "function", "name": "delete", "reasons": ["name_not_allowed"]},
                {"type": "web_search", "name": "web_search", "reasons": ["type_blocked"]}])
        );
        let outcome =
            run(json!({"params": {"blockedKeys": ["tools"], "values": {"temperature": {"allowedValues": [0, 1]}}}}));
        assert_eq!(
            outcome.data["blockedParamsFound"],
            json!([{"param": "temperature", "value": 1.5, "reasons": ["value_not_allowed"]},
                {"param": "tools", "value": null, "reasons": ["key_blocked"]}])
        );
    }

    #[test]
    fn the_same_entry_cannot_be_blocked_and_allowed() {
        let both = json!({"params": {"blockedKeys": ["a"], "allowedKeys": ["a"]}});
        let problems = compile_check("default.requestParametersCheck", &both, "$", Strictness::Lenient).unwrap_err();
        assert_eq!(problems[0].path, "$.parameters.params.blockedKeys");
    }
}
