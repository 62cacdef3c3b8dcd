//! Guardrails of workspaces and organisations, as the control process publishes them.

use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::hook::{Hook, parse_saved};
use crate::{
    error::Problem,
    parse::{
        document_reader::{ConfigReader, Strictness},
        json_fault::describe_json_fault,
    },
};

/// A saved guardrail. It is compiled once.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedGuardrail {
    pub id: Box<str>,
    pub slug: Box<str>,
    /// Id of the workspace that it belongs to. `None`: all workspaces of the organisation may use it.
    #[serde(default)]
    pub workspace: Option<Box<str>>,
    pub organisation: Box<str>,
    /// Id of the version.
    pub version: Box<str>,
    checks: Box<RawValue>,
    actions: Box<RawValue>,
    #[serde(skip)]
    hook: OnceLock<Option<Arc<Hook>>>,
}

impl SavedGuardrail {
    /// Returns the compiled hook; `None` if the checks are not valid. Then no request may pass.
    pub fn hook(&self) -> Option<&Arc<Hook>> {
        let compile = || {
            let parse = |json: &RawValue| serde_json::from_str::<Value>(json.get()).ok();
            let content = serde_json::json!({"checks": parse(&self.checks)?, "actions": parse(&self.actions)?});
            let mut hook = compile_content(&content, Strictness::Lenient).ok()?;
            hook.id = self.slug.to_string();
            hook.version = Some(self.version.clone());
            hook.is_saved = true;
            Some(Arc::new(hook))
        };
        self.hook.get_or_init(compile).as_ref()
    }
}

/// Compiles the checks and actions of a guardrail.
///
/// # Errors
/// All problems of the checks and actions.
pub fn compile_content(content: &Value, strictness: Strictness) -> Result<Hook, Vec<Problem>> {
    let mut reading = ConfigReader::new(strictness);
    let hook = parse_saved(content, &mut reading);
    reading.finish().map(|_| hook)
}

/// Validates the JSON of checks and actions before they are saved.
///
/// # Errors
/// All problems of the checks and actions.
pub fn validate(json: &[u8]) -> Result<(), Vec<Problem>> {
    let content: Value = serde_json::from_slice(json)
        .map_err(|error| vec![Problem::new("$", format!("must be valid JSON: {}", describe_json_fault(&error)))])?;
    compile_content(&content, Strictness::StrictWithLints).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_guardrail_is_a_hook() {
        let json = r#"{"id": "g", "slug": "pg-a", "organisation": "o", "version": "v", "checks": [{"id": "default.contains", "parameters": {"words": ["a"]}}],
            "actions": {"deny": true, "async": false, "on_fail": {"feedback": {"value": -5, "weight": 1, "metadata": ""}}}}"#;
        let saved: SavedGuardrail = serde_json::from_str(json).unwrap();
        let hook = saved.hook().unwrap();
        assert_eq!((hook.id.as_str(), hook.denies, hook.checks.len()), ("pg-a", true, 1));
        assert_eq!(hook.version.as_deref(), Some("v"));
        let broken: SavedGuardrail = serde_json::from_str(&json.replace("default.contains", "none")).unwrap();
        assert!(broken.hook().is_none());
    }

    #[test]
    fn problems_have_the_paths_of_the_body() {
        let problems = validate(
            br#"{"checks": [{"id": "default.wordCount", "parameters": {"minWords": "x"}}], "actions": {"deny": 1}}"#,
        );
        let paths: Vec<_> = problems.unwrap_err().into_iter().map(|problem| problem.path).collect();
        assert_eq!(paths, ["$.checks[0].parameters.minWords", "$.actions.deny"]);
        let problems = validate(br#"{"checks": [{"id": "default.wordCount"}], "actions": {"stream": "window"}}"#);
        assert_eq!(problems.unwrap_err()[0].path, "$.actions.stream");
    }
}
