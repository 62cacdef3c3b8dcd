//! Checks of the model that a request names.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::guardrails::check::{
    Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages, read_parameters,
};

pub(super) const ROWS: &[CheckRow] = &[
    CheckRow {
        id: "default.modelWhitelist",
        alias: Some("default.modelwhitelist"),
        name: "Allowed models",
        description: "passes if the request names one of some models",
        stages: Stages::Input,
        secrets: &[],
        schema: r#"{"required":["models"],"properties":{"models":{"type":"array","items":{"type":"string"}}}}"#,
        shared: &["not"],
        compile: AllowedModels::compile,
    },
    CheckRow {
        id: "default.modelRules",
        alias: None,
        name: "Models by metadata",
        description: "passes if the metadata of the request allows its model; `*` allows every model",
        stages: Stages::Input,
        secrets: &[],
        schema: r#"{"required":["rules"],"properties":{"rules":{"type":"object","additionalProperties":false,"properties":{"defaults":{"type":"array","items":{"type":"string"},"description":"models that are allowed if no metadata applies"},"metadata":{"type":"object","description":"models by value, by metadata key","additionalProperties":{"type":"object","additionalProperties":{"type":"array","items":{"type":"string"}}}}}}}}"#,
        shared: &["not"],
        compile: ModelRules::compile,
    },
];

/// Returns the error for a request without a model. The check then counts as failed, because the provider may choose a
/// model that is not allowed.
fn no_model() -> CheckError {
    CheckError { is_failure: true, ..CheckError::new("the request names no model") }
}

#[derive(Debug, Deserialize)]
struct AllowedModels {
    models: Vec<String>,
    #[serde(default)]
    not: bool,
}

impl AllowedModels {
    fn compile(parameters: Value) -> CompileResult {
        Ok(Box::new(read_parameters::<Self>(parameters)?))
    }
}

impl Check for AllowedModels {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        if input.model.is_empty() {
            return Err(no_model());
        }
        let is_listed = self.models.iter().any(|model| model == input.model);
        let verdict = is_listed != self.not;
        let explanation = format!("the model is {}in the list", if is_listed { "" } else { "not " });
        Ok(CheckOutcome::new(
            verdict,
            json!({"verdict": verdict, "not": self.not, "explanation": explanation, "requestedModel": input.model,
                "allowedModels": self.models}),
        ))
    }
}

#[derive(Debug, Deserialize)]
struct ModelRules {
    rules: Rules,
    #[serde(default)]
    not: bool,
}

#[derive(Debug, Deserialize)]
struct Rules {
    #[serde(default)]
    defaults: Vec<String>,
    #[serde(default)]
    metadata: BTreeMap<String, BTreeMap<String, Vec<String>>>,
}

impl ModelRules {
    fn compile(parameters: Value) -> CompileResult {
        Ok(Box::new(read_parameters::<Self>(parameters)?))
    }

    fn allowed_models(&self, metadata: &[(String, String)]) -> Vec<&String> {
        let mut allowed: Vec<&String> = Vec::new();
        for (key, value) in metadata {
            let Some(by_value) = self.rules.metadata.get(key) else { continue };
            // A value of the metadata may be a JSON array of several strings.
            let several = serde_json::from_str::<Vec<String>>(value).unwrap_or_else(|_| vec![value.clone()]);
            allowed.extend(several.iter().filter_map(|value| by_value.get(value)).flatten());
        }
        if allowed.is_empty() { self.rules.defaults.iter().collect() } else { allowed }
    }
}

impl Check for ModelRules {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        if input.model.is_empty() {
            return Err(no_model());
        }
        let allowed = self.allowed_models(input.metadata);
        if allowed.is_empty() {
            return Err(CheckError::new("no rule applies to the metadata of the request, and there are no defaults"));
        }
        let is_allowed = allowed.iter().any(|model| *model == "*" || *model == input.model);
        let verdict = is_allowed != self.not;
        let explanation = format!("the rules {} the model", if is_allowed { "allow" } else { "do not allow" });
        let data = json!({"verdict": verdict, "not": self.not, "explanation": explanation, "requestedModel": input.model,
            "allowedModels": allowed});
        Ok(CheckOutcome::new(verdict, data))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Stage, compile_check,
            tests::{input_of, run_on},
        },
        *,
    };
    use crate::parse::document_reader::Strictness;

    fn allows(id: &str, parameters: Value) -> bool {
        run_on(id, parameters, Stage::Input, "x").unwrap().verdict
    }

    #[test]
    fn models_are_listed() {
        assert!(
            allows("default.modelWhitelist", json!({"models": ["m"]}))
                && !allows("default.modelwhitelist", json!({"models": []}))
        );
        assert!(allows("default.modelWhitelist", json!({"models": ["x"], "not": true})));
    }

    #[test]
    fn a_request_without_a_model_fails() {
        for (id, parameters) in [
            ("default.modelWhitelist", json!({"models": ["m"]})),
            ("default.modelWhitelist", json!({"models": ["m"], "not": true})),
            ("default.modelRules", json!({"rules": {"defaults": ["*"]}})),
        ] {
            let compiled = compile_check(id, &parameters, "", Strictness::StrictWithLints).unwrap();
            let request = json!({});
            let input = CheckInput { model: "", ..input_of(&request, &[]) };
            assert!(compiled.check.run(&input).unwrap_err().is_failure, "{id}");
        }
    }

    #[test]
    fn metadata_decides() {
        let rules =
            |team: &str, defaults: Value| json!({"rules": {"defaults": defaults, "metadata": {"team": {team: ["m"]}}}});
        assert!(allows("default.modelRules", rules("red", json!([]))));
        assert!(
            allows("default.modelRules", rules("blue", json!(["*"])))
                && !allows("default.modelRules", rules("blue", json!(["x"])))
        );
        assert!(run_on("default.modelRules", rules("blue", json!([])), Stage::Input, "x").is_err());
    }
}
