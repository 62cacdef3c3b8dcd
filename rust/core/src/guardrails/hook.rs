//! Hooks: groups of checks that run together, as configs and saved guardrails define them.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use serde_json::{Map, Value};

use super::{
    checks::{CompiledCheck, compile_check},
    results::{Feedback, redacts},
};
use crate::parse::document_reader::{ConfigReader, to_snake_case};

/// Maximum number of checks of one hook.
const MAX_CHECKS: usize = 50;
/// Maximum bytes of memory of all compiled checks of a document.
const MAX_CHECK_BYTES: usize = 8 * 1024 * 1024;
/// Bytes that a rejected check adds to the sum that `MAX_CHECK_BYTES` limits.
const REJECTED_CHECK_BYTES: usize = 256 * 1024;
/// Maximum number of hooks in one list of a config.
const MAX_HOOKS: usize = 50;
/// Keys of a hook. Every other key of a hook in the short form is a check.
const HOOK_KEYS: [&str; 12] = [
    "deny",
    "on_fail",
    "on_success",
    "async",
    "id",
    "type",
    "guardrail_version_id",
    "sequential",
    "soft_deny_200",
    "stream",
    "dry_run",
    "name",
];

/// Kind of a hook: guardrail or mutator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HookKind {
    #[default]
    Guardrail,
    /// Changes bodies. Its checks run in sequence.
    Mutator,
}

impl HookKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Guardrail => "guardrail",
            Self::Mutator => "mutator",
        }
    }
}

/// How a hook handles a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamMode {
    /// The client gets nothing until the checks have passed.
    Hold,
    /// The client gets portions after they were checked.
    Window,
    /// The client gets everything; the results follow after the end.
    End,
}

impl StreamMode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Window => "window",
            Self::End => "end",
        }
    }
}

/// A hook, ready to run.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each flag is independent")]
pub struct Hook {
    pub id: String,
    pub kind: HookKind,
    pub checks: Vec<HookCheck>,
    pub denies: bool,
    pub is_async: bool,
    pub is_sequential: bool,
    pub on_success: Option<Feedback>,
    pub on_fail: Option<Feedback>,
    /// Version of the saved guardrail.
    pub version: Option<Box<str>>,
    /// True if the hook is a saved guardrail, false if a config defines it. A config may claim any `version`.
    pub is_saved: bool,
    /// True if the hook only reports: it neither denies nor changes anything, and clients do not see its results.
    pub is_dry_run: bool,
    /// Handling of streams in the config. `None`: `stream_mode` chooses it by the abilities of the hook.
    pub stream: Option<StreamMode>,
    /// Hash of the definition of the hook. It is the same in all processes.
    pub fingerprint: u64,
}

/// A check of a hook.
#[derive(Debug)]
pub struct HookCheck {
    pub check: CompiledCheck,
    /// True if the hook delivers a denial because of this check with status 200.
    pub is_soft: bool,
}

impl Hook {
    /// Returns how the hook handles streams: it holds them if it may deny or change them.
    pub fn stream_mode(&self) -> StreamMode {
        let default = if !self.is_async && (self.denies || self.kind == HookKind::Mutator || self.may_change()) {
            StreamMode::Hold
        } else {
            StreamMode::End
        };
        match self.stream.filter(|_| !self.is_dry_run) {
            // In a document that is read leniently, a hook with `window` may have checks that need the whole text.
            Some(StreamMode::Window) if !self.can_window() => StreamMode::Hold,
            mode => mode.unwrap_or(default),
        }
    }

    /// Applies settings of the whole hook to its checks. A dry run is always asynchronous.
    fn settle(&mut self, is_soft: bool) {
        for check in &mut self.checks {
            check.is_soft |= is_soft;
        }
        self.is_async |= self.is_dry_run;
    }

    /// Returns the approximate memory use in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.checks.iter().map(|check| size_of::<HookCheck>() + check.check.memory_bytes).sum::<usize>()
    }

    /// Returns true if the hook is synchronous and all its checks can examine portions of a stream.
    fn can_window(&self) -> bool {
        !self.is_async && self.checks.iter().all(|check| check.check.check.window().is_some())
    }

    /// Reports checks that need the whole text, although the hook's `stream` is `window`.
    fn report_whole_text_checks(&self, reading: &mut ConfigReader) {
        if self.stream != Some(StreamMode::Window) || self.is_dry_run {
            return;
        }
        if self.is_async {
            reading.report_problem("`stream` is `window`, but the guardrail is `async`; remove one of the two");
        }
        for check in self.checks.iter().filter(|check| check.check.check.window().is_none()) {
            let id = &check.check.id;
            reading.report_problem(format!(
                "`stream` is `window`, but `{id}` with these parameters needs the whole text; use `hold`"
            ));
        }
    }

    /// Returns true if a check can change texts or bodies.
    pub fn may_change(&self) -> bool {
        self.checks.iter().any(|check| check.check.check.may_change())
    }

    /// Returns true if a check returns replaced values to the client.
    pub fn restores(&self) -> bool {
        self.checks.iter().any(|check| check.check.check.effects().restoring_tag.is_some())
    }

    /// Returns true if a check can remove parts of texts. Then the log must not show the original texts.
    pub fn may_redact(&self) -> bool {
        self.checks.iter().any(|check| check.check.check.may_change() && redacts(&check.check.id))
    }
}

/// A hook of a config: defined in the config, or the id or slug of a saved guardrail.
#[derive(Debug, Clone)]
pub enum HookReference {
    Inline(Arc<Hook>),
    Saved(Arc<str>),
}

impl PartialEq for HookReference {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Inline(one), Self::Inline(other)) => Arc::ptr_eq(one, other),
            (Self::Saved(one), Self::Saved(other)) => one == other,
            _ => false,
        }
    }
}

/// Form of the hooks in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookForm {
    /// `checks` is a list.
    Full,
    /// Each check is a key of the hook, next to the keys in `HOOK_KEYS`.
    Short(HookKind),
}

/// Parses a list of hooks of a config.
pub fn parse_hooks(value: &Value, form: HookForm, reading: &mut ConfigReader) -> Vec<HookReference> {
    let mut number = 0;
    let hooks = reading.read_items(value, "an array of guardrails", |reading, item| {
        number += 1;
        match item {
            Value::String(name) if !name.is_empty() => Some(HookReference::Saved(name.as_str().into())),
            Value::Object(fields) => Some(HookReference::Inline(Arc::new(parse_hook(fields, form, number, reading)))),
            other => {
                reading.report_expected("an object, or the id or slug of a guardrail", other);
                None
            }
        }
    });
    if hooks.len() > MAX_HOOKS {
        reading.report_problem(format!("must have at most {MAX_HOOKS} guardrails, not {}", hooks.len()));
    }
    hooks
}

fn parse_hook(fields: &Map<String, Value>, form: HookForm, number: usize, reading: &mut ConfigReader) -> Hook {
    let mut hook = Hook::default();
    if let HookForm::Short(kind) = form {
        hook.kind = kind;
    }
    let (mut is_soft, problems_before) = (false, reading.problem_count());
    hook.fingerprint = fingerprint(&Value::Object(fields.clone()));
    for (key, value) in fields {
        let name = to_snake_case(key);
        match name.as_str() {
            "checks" if form == HookForm::Full => {
                hook.checks = reading.within_key(key, |reading| parse_checks(value, reading));
            }
            "event_type" => (),
            name if HOOK_KEYS.contains(&name) => {
                reading.within_key(key, |reading| parse_hook_key(&mut hook, &mut is_soft, name, value, reading));
            }
            _ if matches!(form, HookForm::Short(_)) => {
                hook.checks.extend(reading.within_key(key, |reading| parse_short_check(key, value, reading)));
            }
            _ if reading.is_strict() => reading.within_key(key, |reading| reading.report_problem("is not a known key")),
            _ => (),
        }
    }
    if hook.id.is_empty() {
        hook.id = format!("guardrail_{number}");
    }
    hook.settle(is_soft);
    if hook.checks.len() > MAX_CHECKS {
        reading.report_problem(format!("must have at most {MAX_CHECKS} checks, not {}", hook.checks.len()));
    }
    if reading.is_strict() {
        hook.report_whole_text_checks(reading);
    }
    if reading.should_lint() && hook.checks.is_empty() && reading.problem_count() == problems_before {
        reading.report_problem("has no check");
    }
    hook
}

fn parse_hook_key(hook: &mut Hook, is_soft: &mut bool, name: &str, value: &Value, reading: &mut ConfigReader) {
    match name {
        "deny" => hook.denies = reading.read_boolean(value).unwrap_or_default(),
        "async" => hook.is_async = reading.read_boolean(value).unwrap_or_default(),
        "dry_run" => hook.is_dry_run = reading.read_boolean(value).unwrap_or_default(),
        "sequential" => hook.is_sequential = reading.read_boolean(value).unwrap_or_default(),
        "soft_deny_200" => *is_soft = reading.read_boolean(value).unwrap_or_default(),
        "id" => hook.id = reading.read_string(value).unwrap_or_default(),
        "type" => match value.as_str() {
            Some("guardrail") => hook.kind = HookKind::Guardrail,
            Some("mutator") => hook.kind = HookKind::Mutator,
            _ => reading.report_expected("`guardrail` or `mutator`", value),
        },
        "stream" => match value.as_str() {
            Some("hold") => hook.stream = Some(StreamMode::Hold),
            Some("window") => hook.stream = Some(StreamMode::Window),
            Some("end") => hook.stream = Some(StreamMode::End),
            _ => reading.report_expected("`hold`, `window` or `end`", value),
        },
        "on_success" => hook.on_success = parse_feedback(value),
        "on_fail" => hook.on_fail = parse_feedback(value),
        "guardrail_version_id" => hook.version = value.as_str().map(Into::into),
        _ => (),
    }
}

/// Returns the feedback of an action such as `{"feedback": {"value": 5}}`.
fn parse_feedback(action: &Value) -> Option<Feedback> {
    let feedback = action.get("feedback").filter(|feedback| feedback.is_object())?;
    let number = |name: &str, default: f64| feedback[name].as_f64().unwrap_or(default);
    let metadata = match &feedback["metadata"] {
        Value::Object(fields) => fields.clone(),
        Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
        _ => Map::new(),
    };
    Some(Feedback { value: number("value", 0.0), weight: number("weight", 1.0), metadata })
}

fn parse_checks(value: &Value, reading: &mut ConfigReader) -> Vec<HookCheck> {
    let checks = reading.read_items(value, "an array of checks", |reading, item| {
        let Some(fields) = reading.read_object(item) else { return Some(None) };
        let field = |name: &str| fields.iter().find(|(key, _)| to_snake_case(key) == name).map(|(_, value)| value);
        let Some(id) = field("id").and_then(Value::as_str) else {
            reading.report_problem("needs `id`, such as `default.contains`");
            return Some(None);
        };
        if field("is_enabled") == Some(&Value::Bool(false)) {
            return Some(None);
        }
        let parameters = field("parameters").unwrap_or(&Value::Null);
        let is_soft = field("soft_deny_200") == Some(&Value::Bool(true));
        Some(read_check(id, parameters, is_soft, reading))
    });
    checks.into_iter().flatten().collect()
}

/// Parses a check whose key is its id. An id without a prefix, such as `regexMatch`, gets the prefix `default.`.
fn parse_short_check(key: &str, value: &Value, reading: &mut ConfigReader) -> Option<HookCheck> {
    let flag = |names: [&str; 2]| names.into_iter().find_map(|name| value.get(name)).and_then(Value::as_bool);
    if flag(["is_enabled", "isEnabled"]) == Some(false) {
        return None;
    }
    let id = value.get("id").and_then(Value::as_str).unwrap_or(key);
    let id = if id.contains('.') { id.to_owned() } else { format!("default.{id}") };
    let is_soft = flag(["soft_deny_200", "softDeny200"]).unwrap_or_default();
    let mut parameters = value.clone();
    if let Some(fields) = parameters.as_object_mut() {
        for name in ["id", "is_enabled", "isEnabled", "soft_deny_200", "softDeny200"] {
            fields.shift_remove(name);
        }
    }
    read_check(&id, &parameters, is_soft, reading)
}

fn read_check(id: &str, parameters: &Value, is_soft: bool, reading: &mut ConfigReader) -> Option<HookCheck> {
    if reading.check_bytes > MAX_CHECK_BYTES {
        reading
            .report_problem(format!("makes all checks hold more than {MAX_CHECK_BYTES} bytes when they are compiled"));
        return None;
    }
    match compile_check(id, parameters, "", reading.strictness()) {
        Ok(check) => {
            reading.check_bytes += check.memory_bytes;
            Some(HookCheck { check, is_soft })
        }
        Err(problems) => {
            // To compile the check may have cost as much as the largest valid check.
            reading.check_bytes += REJECTED_CHECK_BYTES;
            reading.report_all(problems);
            None
        }
    }
}

/// Returns the hash of a definition. It is the same in all processes.
fn fingerprint(definition: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    definition.to_string().hash(&mut hasher);
    hasher.finish()
}

/// Parses the checks and actions of a saved guardrail.
pub fn parse_saved(content: &Value, reading: &mut ConfigReader) -> Hook {
    let mut hook = Hook { fingerprint: fingerprint(content), ..Hook::default() };
    if let Some(checks) = content.get("checks") {
        hook.checks = reading.within_key("checks", |reading| parse_checks(checks, reading));
    }
    let mut is_soft = false;
    for (key, value) in content.get("actions").and_then(Value::as_object).into_iter().flatten() {
        let name = to_snake_case(key);
        if HOOK_KEYS.contains(&name.as_str()) {
            let read = |reading: &mut ConfigReader| parse_hook_key(&mut hook, &mut is_soft, &name, value, reading);
            reading.within_key("actions", |reading| reading.within_key(key, read));
        }
    }
    hook.settle(is_soft);
    if reading.is_strict() {
        let report = |reading: &mut ConfigReader| hook.report_whole_text_checks(reading);
        reading.within_key("actions", |reading| reading.within_key("stream", report));
    }
    hook
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{error::Problem, parse::document_reader::Strictness};

    fn parse(value: &Value, form: HookForm) -> Result<Vec<HookReference>, Vec<Problem>> {
        let mut reading = ConfigReader::new(Strictness::StrictWithLints);
        let hooks = parse_hooks(value, form, &mut reading);
        reading.finish().map(|_| hooks)
    }

    fn single(value: &Value, form: HookForm) -> Arc<Hook> {
        match &parse(&json!([value]), form).unwrap()[..] {
            [HookReference::Inline(hook)] => Arc::clone(hook),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_short_form_has_checks_as_keys() {
        let value = json!({"contains": {"words": ["a"]}, "gateway.secrets": {}, "off": {"is_enabled": false},
            "mine": {"id": "default.wordCount", "maxWords": 5, "soft_deny_200": true}, "deny": true, "id": "h",
            "on_fail": {"feedback": {"value": -5, "metadata": {"a": "b"}}}});
        let hook = single(&value, HookForm::Short(HookKind::Guardrail));
        let ids: Vec<_> = hook.checks.iter().map(|check| check.check.id.as_str()).collect();
        assert_eq!(ids, ["default.contains", "gateway.secrets", "default.wordCount"]);
        assert_eq!((hook.denies, hook.is_async, hook.id.as_str()), (true, false, "h"));
        assert!(hook.checks[2].is_soft && !hook.checks[0].is_soft);
        assert!((hook.on_fail.as_ref().unwrap().value + 5.0).abs() < f64::EPSILON);
        assert_eq!(hook.stream_mode(), StreamMode::Hold);
    }

    #[test]
    fn the_full_form_lists_checks() {
        let value = json!({"type": "mutator", "id": "h", "async": true, "sequential": true,
            "checks": [{"id": "default.regexReplace", "parameters": {"rule": "a"}}, {"id": "x", "is_enabled": false}]});
        let hook = single(&value, HookForm::Full);
        assert_eq!((hook.kind, hook.checks.len(), hook.is_sequential), (HookKind::Mutator, 1, true));
        assert_eq!(hook.stream_mode(), StreamMode::End);
    }

    #[test]
    fn names_refer_to_saved_guardrails() {
        let hooks = parse(&json!(["pg-x"]), HookForm::Short(HookKind::Guardrail)).unwrap();
        assert_eq!(hooks, [HookReference::Saved("pg-x".into())]);
    }

    #[test]
    fn problems_are_reported_where_they_are() {
        let paths = |value: &Value, form| -> Vec<String> {
            parse(value, form).unwrap_err().into_iter().map(|problem| problem.path).collect()
        };
        let short = json!([{"contains": {"words": "a"}, "unknown": {}, "deny": 1}, 5, {"deny": true}]);
        assert_eq!(
            paths(&short, HookForm::Short(HookKind::Guardrail)),
            ["$[0].contains.parameters.words", "$[0].unknown.id", "$[0].deny", "$[1]", "$[2]"]
        );
        let full = json!([{"checks": [{"id": "default.wordCount", "parameters": {"minWords": -1}}, {}], "other": 1}]);
        assert_eq!(
            paths(&full, HookForm::Full),
            ["$[0].checks[0].parameters.minWords", "$[0].checks[1]", "$[0].other"]
        );
    }
}
