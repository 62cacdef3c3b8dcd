//! Checks of the operator's plug-ins. They run in a process of their own, which describes them when the gateway starts.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{KnownCheck, complete_schema, rows};
use crate::guardrails::{
    check::{Change, Check, CheckError, CheckInput, CheckOutcome, CompileResult, Stage, Stages, read_parameters},
    host_access::{CheckJob, PluginCall},
    text_scope::TextScope,
};

/// Maximum bytes of the texts that are sent to a plug-in.
const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;
/// Maximum bytes of a plug-in's reply, beyond those of changed texts.
const MAX_REPLY_BYTES: usize = 256 * 1024;
/// Shared parameters of every check of a plug-in, with defaults (see `CheckRow::shared`).
const SHARED: [&str; 2] = ["scope", "timeout=1000"];
/// Names that a plug-in cannot use for its own parameters.
const SHARED_NAMES: [&str; 3] = ["scope", "timeout", "failOnError"];

static PLUGINS: OnceLock<Plugins> = OnceLock::new();
static SOCKET: OnceLock<PathBuf> = OnceLock::new();

/// Checks of all plug-ins.
struct Plugins {
    checks: HashMap<String, KnownCheck>,
    catalogue: Vec<Value>,
}

/// A check, as the process of plug-ins describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginRow {
    id: String,
    name: String,
    description: String,
    /// `input`, `output` or both.
    stages: Vec<String>,
    /// JSON Schema of the check's own parameters.
    parameters: Value,
    /// True if the check may replace texts.
    changes: bool,
}

/// Returns the checks of plug-ins, for the catalogue.
pub(super) fn catalogue() -> &'static [Value] {
    PLUGINS.get().map_or(&[], |plugins| plugins.catalogue.as_slice())
}

pub(super) fn find(id: &str) -> Option<&'static KnownCheck> {
    PLUGINS.get()?.checks.get(id)
}

/// Returns the Unix socket of the process of plug-ins.
pub fn socket() -> Option<&'static Path> {
    SOCKET.get().map(PathBuf::as_path)
}

/// Sets the Unix socket of the process of plug-ins.
pub fn set_socket(path: PathBuf) {
    let _ = SOCKET.set(path);
}

/// Adds the checks of plug-ins, given as a JSON array.
///
/// # Errors
/// If a check cannot be used, or checks of plug-ins are already registered.
pub fn register(json: &[u8]) -> Result<(), String> {
    let rows: Vec<PluginRow> =
        serde_json::from_slice(json).map_err(|error| format!("the checks are invalid: {error}"))?;
    let mut plugins = Plugins { checks: HashMap::new(), catalogue: Vec::new() };
    for row in rows {
        let known = compile_plugin_check(&row)?;
        let hooks = known.stages.names();
        plugins.catalogue.push(json!({"id": row.id, "aliases": [], "name": row.name,
            "description": row.description, "hooks": hooks, "parameters": known.parameters, "secrets": []}));
        if plugins.checks.insert(row.id.clone(), known).is_some() {
            return Err(format!("{}: two plug-ins have this check; rename one of the files", row.id));
        }
    }
    PLUGINS.set(plugins).map_err(|_| "the checks of plug-ins are set already".to_owned())
}

/// Compiles the description of a check.
fn compile_plugin_check(row: &PluginRow) -> Result<KnownCheck, String> {
    let id = &row.id;
    let owner = |id: &str| id.split('.').next().unwrap_or_default().to_owned();
    if rows().any(|own| owner(own.id) == owner(id)) {
        return Err(format!("{id}: `{}` is a name of the gateway's own checks; rename the file", owner(id)));
    }
    let has = |stage: &str| row.stages.iter().any(|own| own == stage);
    let stages = match (has("input"), has("output")) {
        (true, true) => Stages::Both,
        (true, false) => Stages::Input,
        (false, true) => Stages::Output,
        (false, false) => return Err(format!("{id}: `stages` must have `input`, `output` or both")),
    };
    if let Some(name) = SHARED_NAMES.iter().find(|name| !row.parameters["properties"][**name].is_null()) {
        return Err(format!("{id}: rename the parameter `{name}`, which every check has"));
    }
    let parameters = complete_schema(row.parameters.clone(), &SHARED);
    let schema = jsonschema::validator_for(&parameters)
        .map_err(|error| format!("{id}: the JSON Schema of its parameters is invalid: {error}"))?;
    let (id, changes): (Arc<str>, bool) = (id.as_str().into(), row.changes);
    let compile = Box::new(move |parameters| PluginCheck::compile(&id, changes, parameters));
    Ok(KnownCheck { stages, parameters, schema: Some(schema), compile })
}

/// A check of a plug-in with its parameters.
#[derive(Debug)]
struct PluginCheck {
    id: Arc<str>,
    changes: bool,
    /// The check's own parameters.
    parameters: Value,
    scope: TextScope,
    timeout: Duration,
}

impl PluginCheck {
    fn compile(id: &Arc<str>, changes: bool, mut parameters: Value) -> CompileResult {
        let scope: TextScope = read_parameters(parameters["scope"].clone())?;
        let timeout = Duration::from_millis(parameters["timeout"].as_u64().unwrap_or_default());
        if let Some(fields) = parameters.as_object_mut() {
            fields.retain(|name, _| !SHARED_NAMES.contains(&name.as_str()));
        }
        Ok(Box::new(Self { id: Arc::clone(id), changes, parameters, scope, timeout }))
    }

    fn frame(&self, input: &CheckInput<'_>, texts: &[&str]) -> Vec<u8> {
        let metadata: HashMap<&str, &str> =
            input.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let is_output = input.stage == Stage::Output;
        let frame = json!({"check": &*self.id, "parameters": self.parameters, "texts": texts,
            "stage": if is_output { "output" } else { "input" }, "provider": input.provider, "model": input.model,
            "request_type": input.operation.id(), "metadata": metadata, "is_streaming": input.is_streaming,
            "timeout_ms": self.timeout.as_millis() as u64});
        frame.to_string().into_bytes()
    }
}

impl Check for PluginCheck {
    /// Runs if there is no text to check.
    fn run(&self, _input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        Ok(CheckOutcome::new(true, json!({"verdict": true, "explanation": "there is no text to check"})))
    }

    fn job(&self, input: &CheckInput<'_>) -> Option<CheckJob> {
        let indexes = self.scope.select(input.stage, input.texts, false);
        if indexes.is_empty() {
            return None;
        }
        let texts: Vec<&str> = indexes.iter().map(|index| input.texts[*index].text.as_str()).collect();
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        let (check, timeout, changes) = (Arc::clone(&self.id), self.timeout, self.changes);
        if bytes > MAX_FRAME_BYTES {
            let message = format!("{check} takes at most {MAX_FRAME_BYTES} bytes of text, not {bytes}");
            // A text that is too long must not avoid the check: `not_replaced` denies the request, `limited` fails it.
            let error = if changes { CheckError::not_replaced(message) } else { CheckError::limited(message) };
            return Some(Box::new(|_| Box::pin(async { Err(error) })));
        }
        let frame = self.frame(input, &texts);
        let max_reply_bytes = MAX_REPLY_BYTES + if changes { 2 * MAX_FRAME_BYTES } else { 0 };
        Some(Box::new(move |hosts| {
            Box::pin(async move {
                let call = PluginCall { check: Arc::clone(&check), frame, timeout, max_reply_bytes };
                let reply = hosts.call_plugin(call).await?;
                read_reply(&reply, changes.then_some(indexes.as_slice()))
                    .map_err(|problem| CheckError::new(format!("{check} {problem}")))
            })
        }))
    }

    fn may_change(&self) -> bool {
        self.changes
    }
}

/// Reply of the process of plug-ins.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginReply {
    #[serde(default)]
    passed: Option<bool>,
    #[serde(default)]
    data: Value,
    /// All texts of the call, with changes.
    #[serde(default)]
    texts: Option<Vec<String>>,
    #[serde(default)]
    error: Option<String>,
}

/// Reads a reply. `indexes` are the indexes of the call's texts; `None` if the check may not change texts.
///
/// # Errors
/// What is wrong with the reply, as the end of a sentence that begins with the id of the check.
fn read_reply(reply: &[u8], indexes: Option<&[usize]>) -> Result<CheckOutcome, String> {
    let reply: PluginReply = serde_json::from_slice(reply).map_err(|_| "returned no valid JSON".to_owned())?;
    if let Some(error) = reply.error {
        return Err(format!("failed: {error}"));
    }
    let verdict = reply.passed.ok_or("returned no verdict")?;
    let change = match (reply.texts, indexes) {
        (None, _) => None,
        (Some(_), None) => return Err("changed texts without `changes=True`".to_owned()),
        (Some(texts), Some(indexes)) if texts.len() != indexes.len() => {
            return Err(format!("returned {} texts in place of {}", texts.len(), indexes.len()));
        }
        (Some(texts), Some(indexes)) => Some(Change::Texts(indexes.iter().copied().zip(texts).collect())),
    };
    let mut data = if reply.data.is_object() { reply.data } else { json!({}) };
    data["verdict"] = verdict.into();
    Ok(CheckOutcome { change, ..CheckOutcome::new(verdict, data) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(changes: &Value) -> Result<KnownCheck, String> {
        let mut row = json!({"id": "acme.tickets", "name": "Tickets", "description": "fails on tickets", "stages": ["input"],
            "parameters": {"properties": {"prefix": {"type": "string", "default": "T-"}}}, "changes": false});
        for (name, value) in changes.as_object().unwrap() {
            row[name] = value.clone();
        }
        compile_plugin_check(&serde_json::from_value(row).unwrap())
    }

    #[test]
    fn descriptions_become_checks_or_name_what_is_wrong() {
        let known = describe(&json!({})).unwrap();
        assert_eq!(known.parameters["properties"]["timeout"]["default"], 1000);
        let check =
            (known.compile)(json!({"prefix": "T-", "scope": "all", "timeout": 5, "failOnError": true})).unwrap();
        assert!(format!("{check:?}").contains(r#"parameters: Object {"prefix": String("T-")}"#), "{check:?}");
        for (changes, word) in [
            (json!({"id": "default.tickets"}), "rename the file"),
            (json!({"id": "lakera.tickets"}), "rename the file"),
            (json!({"stages": []}), "stages"),
            (json!({"parameters": {"properties": {"timeout": {"type": "integer"}}}}), "`timeout`"),
            (json!({"parameters": {"properties": {"a": {"type": "text"}}}}), "JSON Schema"),
        ] {
            let problem = describe(&changes).err().unwrap();
            assert!(problem.contains(word), "{changes}: {problem}");
        }
    }

    #[test]
    fn replies_decide_and_replace_texts() {
        let read = |reply: &str, indexes: Option<&[usize]>| read_reply(reply.as_bytes(), indexes);
        let outcome = read(r#"{"passed": false, "data": {"found": 1}}"#, None).unwrap();
        assert_eq!((outcome.verdict, outcome.data), (false, json!({"found": 1, "verdict": false})));
        let outcome = read(r#"{"passed": true, "texts": ["a", "b"]}"#, Some(&[2, 5])).unwrap();
        assert_eq!(outcome.change, Some(Change::Texts(vec![(2, "a".into()), (5, "b".into())])));
        for (reply, indexes) in [
            ("{}", None),
            ("garbage", None),
            ("[]", None),
            (r#"{"passed": "yes"}"#, None),
            (r#"{"passed": null}"#, None),
            (r#"{"passed": true, "other": 1}"#, None),
            (r#"{"error": "ValueError", "passed": true}"#, None),
            (r#"{"passed": true, "texts": ["a"]}"#, None),
            (r#"{"passed": true, "texts": ["a"]}"#, Some(&[1, 2][..])),
            (r#"{"passed": true, "texts": [1]}"#, Some(&[1][..])),
        ] {
            assert!(read(reply, indexes).is_err(), "{reply}");
        }
    }
}
