//! The checks that guardrails can use: one table with their parameters, and their code by theme.

mod allowed_values;
pub mod classification;
mod code;
pub mod default_models;
mod expected_values;
mod forwarded_headers;
mod gibberish;
mod inline_images;
mod jwt;
mod language;
mod metadata;
mod model_questions;
mod models;
mod parameters;
mod partners;
mod personal_data;
pub mod plugins;
mod prefix;
mod profanity;
mod replacement;
mod request_tools;
mod request_types;
mod secrets;
mod text;
mod valid_urls;
mod webhook;

use std::{collections::HashMap, sync::LazyLock};

use jsonschema::error::ValidationErrorKind;
use serde_json::{Map, Value, json};

pub use super::check::{
    AwsSignature, Change, Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, ExternalCall,
    SelectedText, Stage, Stages,
};
use super::text_scope::SCOPE_NAMES;
use crate::{error::Problem, parse::document_reader::Strictness};

/// Schemas of parameters that many checks share.
fn shared_schema(name: &str) -> Value {
    match name {
        "not" => json!({"type": "boolean", "default": false, "description": "true inverts the verdict"}),
        "scope" => {
            json!({"enum": SCOPE_NAMES, "default": "last_message", "description": "texts that are checked; for responses, `last_message` means every choice"})
        }
        "model" => {
            json!({"type": "string", "pattern": "^@[^/ ]+/.+$", "description": "model of a saved provider that decides, such as `@my-openai/gpt-4o-mini`"})
        }
        "timeout" => {
            json!({"type": "integer", "minimum": 1, "maximum": 60_000, "description": "milliseconds that the other host may take"})
        }
        "credentials" => {
            json!({"type": "object", "required": ["apiKey"], "additionalProperties": false, "properties": {"apiKey": {"type": "string", "minLength": 1}}})
        }
        "baseURL" => {
            json!({"type": "string", "pattern": "^https?://", "description": "URL in place of the partner's host, such as a private endpoint"})
        }
        "forwardHeaders" => {
            json!({"type": "array", "maxItems": 50, "items": {"type": "string", "pattern": "^[a-z0-9-]+$"}, "description": "header fields of the request that are sent too"})
        }
        _ => Value::Null,
    }
}

impl CheckRow {
    /// Returns the complete JSON Schema of the parameters.
    pub fn parameters(&self) -> Value {
        complete_schema(serde_json::from_str(self.schema).unwrap_or_default(), self.shared)
    }
}

/// Adds the parameters that many checks share to the schema of a check's own parameters.
fn complete_schema(mut schema: Value, shared: &[&str]) -> Value {
    let mut properties: Map<String, Value> = schema["properties"].as_object().cloned().unwrap_or_default();
    for shared in shared {
        let (name, default) = shared.split_once('=').unwrap_or((shared, ""));
        let mut own = shared_schema(name);
        if let Ok(default) = default.parse::<u64>() {
            own["default"] = default.into();
        }
        properties.insert(name.to_owned(), own);
    }
    properties.insert(
        "failOnError".into(),
        json!({"type": "boolean", "default": false, "description": "true: a check that cannot decide counts as failed"}),
    );
    schema["type"] = json!("object");
    schema["properties"] = properties.into();
    schema["additionalProperties"] = json!(false);
    schema
}

/// All checks of the gateway itself.
pub fn rows() -> impl Iterator<Item = &'static CheckRow> {
    let themes = [
        text::ROWS,
        replacement::ROWS,
        code::ROWS,
        models::ROWS,
        request_types::ROWS,
        metadata::ROWS,
        parameters::ROWS,
        prefix::ROWS,
        webhook::ROWS,
        personal_data::ROWS,
        secrets::ROWS,
        language::ROWS,
        gibberish::ROWS,
        profanity::ROWS,
        valid_urls::ROWS,
        inline_images::ROWS,
        jwt::ROWS,
        model_questions::ROWS,
    ];
    themes.into_iter().flatten().chain(partners::rows())
}

/// Returns the catalogue of checks, with those of plug-ins, as a JSON array.
pub fn catalogue() -> Value {
    let own = rows().map(|row| {
        let aliases: Vec<_> = row.alias.into_iter().collect();
        json!({"id": row.id, "aliases": aliases, "name": row.name, "description": row.description, "hooks": row.stages.names(),
                "parameters": row.parameters(), "secrets": row.secrets})
    });
    own.chain(plugins::catalogue().iter().cloned()).collect()
}

/// A check that guardrails can name, with its compiled schema.
struct KnownCheck {
    stages: Stages,
    parameters: Value,
    schema: Option<jsonschema::Validator>,
    compile: Box<dyn Fn(Value) -> CompileResult + Send + Sync>,
}

impl KnownCheck {
    fn find(id: &str) -> Option<&'static Self> {
        CHECKS.get(id).or_else(|| plugins::find(id))
    }
}

static CHECKS: LazyLock<HashMap<&'static str, KnownCheck>> = LazyLock::new(|| {
    let mut known = HashMap::new();
    for row in rows() {
        for id in [Some(row.id), row.alias].into_iter().flatten() {
            let parameters = row.parameters();
            let schema = jsonschema::validator_for(&parameters).ok();
            known.insert(id, KnownCheck { stages: row.stages, parameters, schema, compile: Box::new(row.compile) });
        }
    }
    known
});

/// Adds the defaults of a schema to parameters that have no value, also within objects.
fn insert_defaults(parameters: &mut Value, schema: &Value) {
    let Some(fields) = parameters.as_object_mut() else { return };
    for (name, own) in schema["properties"].as_object().into_iter().flatten() {
        match (fields.get_mut(name), own.get("default")) {
            (Some(value), _) => insert_defaults(value, own),
            (None, Some(default)) => {
                fields.insert(name.clone(), default.clone());
            }
            (None, None) => (),
        }
    }
}

/// A check of a hook, ready to run.
#[derive(Debug)]
pub struct CompiledCheck {
    /// Id as the config spells it.
    pub id: String,
    pub stages: Stages,
    pub check: Box<dyn Check>,
    /// True if a check that cannot decide counts as failed.
    pub fails_on_error: bool,
    /// Approximate memory use in bytes.
    pub memory_bytes: usize,
}

/// Maximum memory of a compiled check in bytes per byte of its parameters, without patterns.
const BYTES_PER_SOURCE_BYTE: usize = 16;

/// Compiles a check. `path` is its JSON path in the document.
///
/// # Errors
/// All problems of its id and its parameters. Values are not shown, because they may be credentials.
pub fn compile_check(
    id: &str,
    parameters: &Value,
    path: &str,
    strictness: Strictness,
) -> Result<CompiledCheck, Vec<Problem>> {
    let Some(known) = KnownCheck::find(id) else {
        let message =
            format!("`{}` is no check; see docs/guardrail-checks.md", id.chars().take(80).collect::<String>());
        return Err(vec![Problem::new(format!("{path}.id"), message)]);
    };
    let mut parameters = if parameters.is_null() { json!({}) } else { parameters.clone() };
    let mut problems: Vec<_> = known
        .schema
        .iter()
        .flat_map(|schema| schema.iter_errors(&parameters))
        .filter(|error| {
            strictness != Strictness::Lenient
                || !matches!(error.kind(), ValidationErrorKind::AdditionalProperties { .. })
        })
        .map(|error| {
            let mut below = error.instance_path().as_str().replace('/', ".");
            if let ValidationErrorKind::Required { property: Value::String(name) } = error.kind() {
                below = format!("{below}.{name}");
            }
            Problem::new(format!("{path}.parameters{below}"), error.masked_with("the value").to_string())
        })
        .collect();
    if !problems.is_empty() {
        return Err(problems);
    }
    let fails_on_error = parameters["failOnError"].as_bool().unwrap_or_default();
    insert_defaults(&mut parameters, &known.parameters);
    let source_bytes = parameters.to_string().len();
    match (known.compile)(parameters) {
        Ok(check) => {
            let memory_bytes = check.memory_bytes() + source_bytes * BYTES_PER_SOURCE_BYTE;
            Ok(CompiledCheck { id: id.to_owned(), stages: known.stages, check, fails_on_error, memory_bytes })
        }
        Err((below, message)) => {
            problems.push(Problem::new(format!("{path}.parameters{below}"), message));
            Err(problems)
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use penstock_llm::operation::Operation;
    use penstock_net::headers::Headers;

    use super::*;

    /// Runs a check on a text. `stage` decides whether the text is the last message of a request or the response.
    pub fn run_on(id: &str, parameters: Value, stage: Stage, text: &str) -> Result<CheckOutcome, CheckError> {
        let request = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
        let response = json!({"choices": [{"message": {"role": "assistant", "content": text}}]});
        run_on_bodies(id, parameters, stage, &request, &response)
    }

    #[allow(clippy::needless_pass_by_value, reason = "the tests pass literals")]
    pub fn run_on_bodies(
        id: &str,
        parameters: Value,
        stage: Stage,
        request: &Value,
        response: &Value,
    ) -> Result<CheckOutcome, CheckError> {
        let compiled = compile_check(id, &parameters, "$", Strictness::StrictWithLints).unwrap();
        let texts = match stage {
            Stage::Input => penstock_llm::texts::request_texts(request),
            Stage::Output => penstock_llm::texts::response_texts(response),
        };
        let metadata = [("team".to_owned(), "red".to_owned()), ("_user".to_owned(), "ann".to_owned())];
        let model = request["model"].as_str().unwrap_or_default();
        compiled.check.run(&CheckInput { stage, model, metadata: &metadata, response, ..input_of(request, &texts) })
    }

    static NO_HEADERS: LazyLock<Headers> = LazyLock::new(Headers::default);

    /// Returns the input of a check of a request.
    pub fn input_of<'i>(request: &'i Value, texts: &'i [penstock_llm::texts::TextPart]) -> CheckInput<'i> {
        CheckInput {
            stage: Stage::Input,
            operation: Operation::ChatComplete,
            provider: "openai",
            model: "m",
            is_streaming: false,
            metadata: &[],
            headers: &NO_HEADERS,
            request,
            response: &Value::Null,
            texts,
        }
    }

    pub fn verdict(id: &str, parameters: Value, text: &str) -> bool {
        run_on(id, parameters, Stage::Output, text).unwrap().verdict
    }

    #[test]
    fn ids_are_unique_and_schemas_valid() {
        let mut ids: Vec<_> = rows().flat_map(|row| [Some(row.id), row.alias]).flatten().collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        for row in rows() {
            let schema = row.parameters();
            assert!(jsonschema::meta::is_valid(&schema), "{}", row.id);
            assert!(CHECKS[row.id].schema.is_some(), "{}", row.id);
            assert!(row.secrets.iter().all(|name| schema["properties"][name].is_object()), "{}", row.id);
            let is_known = |shared: &&str| !shared_schema(shared.split('=').next().unwrap()).is_null();
            assert!(row.shared.iter().all(is_known), "{}", row.id);
        }
    }

    #[test]
    fn problems_name_the_parameter_but_no_value() {
        let find_problems = |id: &str, parameters: Value| {
            compile_check(id, &parameters, "$.checks[0]", Strictness::StrictWithLints).unwrap_err()
        };
        let problems = find_problems("default.wordCount", json!({"minWords": "a-secret", "other": 1}));
        let paths: Vec<_> = problems.iter().map(|problem| problem.path.as_str()).collect();
        assert!(paths.contains(&"$.checks[0].parameters.minWords"), "{problems:?}");
        assert!(problems.iter().all(|problem| !problem.message.contains("a-secret")), "{problems:?}");
        assert_eq!(find_problems("default.none", json!({}))[0].path, "$.checks[0].id");
        assert_eq!(find_problems("default.regexMatch", json!({"rule": "("}))[0].path, "$.checks[0].parameters.rule");
        assert!(compile_check("default.wordCount", &json!({"other": 1}), "$", Strictness::Lenient).is_ok());
    }
}
