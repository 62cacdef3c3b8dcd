//! Requests that run or render a prompt: their path and body, and the provider request that they become.

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, value::RawValue};

use super::{
    messages::push_json_string,
    prompt::{CompiledPrompt, RenderedBody, RequestFields},
};
use crate::{
    error::{Problem, PromptError},
    parse::{
        json_fault::{describe_json_fault, nests_deeper},
        similar_name::find_similar,
    },
};

/// Prefixes of the paths of prompts.
const PROMPTS_PREFIXES: [&str; 2] = ["/v1/prompts/", "/v2/prompts/"];
/// Path of clients that name the prompt in the body.
const LEGACY_PATH: &str = "/v1/prompt/complete";
/// Fields that make the response a stream.
const STREAM_FIELDS: [&str; 2] = ["stream", "stream_options"];
/// Fields of the body that are not part of the provider request.
const OWN_FIELDS: [&str; 5] = ["variables", "hyperparameters", "promptID", "promptId", "prompt_id"];

/// Maximum depth of objects and lists in a field. The JSON parser reads more, because requests wrap fields in others.
const MAX_FIELD_DEPTH: usize = 100;

/// Action of a request for a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptAction {
    /// Sends it to the provider.
    Complete,
    /// Returns the request that would be sent.
    Render,
    /// Runs two versions with several sets of variables.
    Compare,
}

/// Path of a request for a prompt.
#[derive(Debug, PartialEq, Eq)]
pub struct PromptPath {
    /// Id or slug, with the version. `None` if the body names the prompt.
    pub reference: Option<String>,
    pub action: PromptAction,
}

impl PromptPath {
    /// Parses the path. `None` if it does not run or render a prompt.
    pub fn parse(method: &str, path: &str) -> Option<Self> {
        if method != "POST" {
            return None;
        }
        // In some calls, SDKs add a version to a base URL that already ends with one.
        let has_version = |rest: &&str| rest.starts_with("/v1/") || rest.starts_with("/v2/");
        let path = path.strip_prefix("/v1").filter(has_version).unwrap_or(path);
        if path == LEGACY_PATH {
            return Some(Self { reference: None, action: PromptAction::Complete });
        }
        let rest = PROMPTS_PREFIXES.into_iter().find_map(|prefix| path.strip_prefix(prefix))?;
        let (name, action) = rest.split_once('/')?;
        let action = match action {
            "completions" | "generate" => PromptAction::Complete,
            "render" => PromptAction::Render,
            "compare" => PromptAction::Compare,
            _ => return None,
        };
        (!name.is_empty())
            .then(|| Self { reference: Some(percent_decode_str(name).decode_utf8_lossy().into_owned()), action })
    }
}

/// Body of a request for a prompt.
#[derive(Debug, Clone)]
pub struct PromptRequest {
    /// Variables for the prompt: a JSON object.
    pub variables: Value,
    /// Name of the prompt, from clients that send it in the body.
    pub reference: Option<String>,
    /// Fields of the provider request that replace those of the prompt. Each name occurs once.
    overrides: Vec<(String, Box<RawValue>)>,
    /// True if the response must not be a stream.
    is_whole: bool,
}

impl Default for PromptRequest {
    fn default() -> Self {
        Self { variables: Value::Object(Map::new()), reference: None, overrides: Vec::new(), is_whole: false }
    }
}

impl PromptRequest {
    /// Parses a body. An empty one has no variables.
    ///
    /// # Errors
    /// All problems of the body.
    pub fn parse(body: &[u8]) -> Result<Self, PromptError> {
        if body.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        let fields: RequestFields =
            serde_json::from_slice(body).map_err(|error| PromptError::invalid_body(&[not_an_object(&error)]))?;
        let mut request = Self::default();
        let (mut problems, mut top_level) = (Vec::new(), Vec::new());
        for (name, value) in fields.0 {
            if let Some(problem) = depth_problem(&name, &value) {
                problems.push(problem);
            } else {
                request.read_field(name, value, &mut top_level, &mut problems);
            }
        }
        problems.extend(model_problem("$.hyperparameters.", &request.overrides));
        problems.extend(model_problem("$.", &top_level));
        if !problems.is_empty() {
            return Err(PromptError::invalid_body(&problems));
        }
        let mut overrides = std::mem::take(&mut request.overrides);
        overrides.append(&mut top_level);
        request.set_overrides(RequestFields(overrides));
        Ok(request)
    }

    fn read_field(
        &mut self,
        name: String,
        value: Box<RawValue>,
        top_level: &mut Vec<(String, Box<RawValue>)>,
        problems: &mut Vec<Problem>,
    ) {
        match name.as_str() {
            "variables" => match parse_object(&value) {
                Some(variables) => self.variables = variables,
                None => {
                    problems.push(Problem::new("$.variables", "must be an object with a value for each variable"));
                }
            },
            "hyperparameters" => {
                if let Ok(fields) = serde_json::from_str::<Option<RequestFields>>(value.get()) {
                    self.overrides = fields.unwrap_or_default().0;
                } else {
                    let message = "must be an object with fields of the request to the provider";
                    problems.push(Problem::new("$.hyperparameters", message));
                }
            }
            known if OWN_FIELDS.contains(&known) => match serde_json::from_str(value.get()) {
                Ok(reference) => self.reference = Some(reference),
                Err(_) => problems.push(Problem::new(format!("$.{name}"), "must be the id or slug of a prompt")),
            },
            // A misspelt field would be sent to the provider, and the prompt would lack its variables.
            other => match find_similar(other, &["variables", "hyperparameters"]) {
                Some(similar) => {
                    let path = format!("$.{}", other.chars().take(100).collect::<String>());
                    problems.push(Problem::new(path, format!("is not known; did you mean `{similar}`?")));
                }
                None => top_level.push((name, value)),
            },
        }
    }

    /// Returns the request of a comparison, whose response is never a stream. `variables` is an object.
    pub fn for_comparison(variables: Value, overrides: RequestFields) -> Self {
        let mut request = Self { variables, is_whole: true, ..Self::default() };
        request.set_overrides(overrides);
        request
    }

    fn set_overrides(&mut self, mut fields: RequestFields) {
        fields.0.retain(|(name, _)| !OWN_FIELDS.contains(&name.as_str()) && !self.drops(name));
        fields.keep_last();
        self.overrides = fields.0;
    }

    /// Returns true for a field that requests a stream, if the response of this request must not be a stream. The
    /// provider request does not contain it.
    fn drops(&self, name: &str) -> bool {
        self.is_whole && STREAM_FIELDS.contains(&name)
    }

    /// Returns true if the caller replaces this field of the prompt.
    pub fn overrides(&self, name: &str) -> bool {
        self.overrides.iter().any(|(known, _)| known == name)
    }

    /// Returns the names of the fields that the caller replaces.
    pub fn overridden_fields(&self) -> impl Iterator<Item = &str> {
        self.overrides.iter().map(|(name, _)| name.as_str())
    }

    /// Returns true if the caller replaces a number of the prompt by a larger one, or by something else.
    pub fn raises(&self, prompt: &CompiledPrompt, name: &str) -> bool {
        let find = |fields: &[(String, Box<RawValue>)]| {
            let (_, value) = fields.iter().find(|(known, _)| known == name)?;
            Some(serde_json::from_str::<f64>(value.get()).unwrap_or(f64::INFINITY))
        };
        match (find(&self.overrides), find(&prompt.fields)) {
            (Some(wanted), Some(stored)) => wanted > stored,
            _ => false,
        }
    }

    /// Returns true if the caller chose a saved provider, as in `@slug/model`.
    pub fn chooses_provider(&self) -> bool {
        self.model_override().is_some_and(|model| model.starts_with('@'))
    }

    /// Returns the body of the provider request, and the model in it. With `provider_prefix` the model names the saved
    /// provider of the prompt, as in `@slug/model`, unless the caller chose one.
    pub fn compose_body(
        &self,
        prompt: &CompiledPrompt,
        rendered: &RenderedBody,
        provider_prefix: bool,
    ) -> (String, Option<String>) {
        let mut body = String::from("{");
        let overridden = |name: &str| self.overrides(name);
        let own_model = self.model_override();
        let raw_fields = match rendered {
            RenderedBody::Fields(fields) => &fields[..],
            _ => &[],
        };
        let is_raw = |name: &str| raw_fields.iter().any(|(known, _)| known == name);
        let raw_model = raw_fields.iter().rev().find(|(name, _)| name == "model");
        let raw_model = raw_model.and_then(|(_, value)| serde_json::from_str(value.get()).ok());
        let model = own_model.or(raw_model).or_else(|| prompt.model.clone());
        let model = model.map(|model| {
            let prefix = prompt.virtual_key.as_ref().filter(|_| provider_prefix && !model.starts_with('@'));
            prefix.map_or_else(|| model.clone(), |slug| format!("@{}/{model}", slug.trim_start_matches('@')))
        });
        if let Some(model) = &model {
            push_field(&mut body, "model", |body| push_json_string(body, model));
        }
        let stored = prompt.fields.iter().filter(|(name, _)| !is_raw(name)).chain(raw_fields);
        for (name, value) in stored.filter(|(name, _)| name != "model" && !overridden(name) && !self.drops(name)) {
            push_field(&mut body, name, |body| body.push_str(value.get()));
        }
        match rendered {
            RenderedBody::Messages(json) if !overridden("messages") => {
                push_field(&mut body, "messages", |body| body.push_str(json));
            }
            RenderedBody::Text(json) if !overridden("prompt") => {
                push_field(&mut body, "prompt", |body| body.push_str(json));
            }
            _ => (),
        }
        for (name, value) in self.overrides.iter().filter(|(name, _)| name != "model") {
            push_field(&mut body, name, |body| body.push_str(value.get()));
        }
        body.push('}');
        (body, model)
    }

    /// Returns the model that the caller chose.
    fn model_override(&self) -> Option<String> {
        let (_, value) = self.overrides.iter().find(|(name, _)| name == "model")?;
        serde_json::from_str(value.get()).ok()
    }
}

/// Returns the problem of a body that is no JSON object.
pub(super) fn not_an_object(error: &serde_json::Error) -> Problem {
    Problem::new("$", format!("must be a JSON object: {}", describe_json_fault(error)))
}

/// Returns the problem of a field that nests too deep.
pub(super) fn depth_problem(name: &str, value: &RawValue) -> Option<Problem> {
    nests_deeper(value.get(), MAX_FIELD_DEPTH).then(|| {
        let path = format!("$.{}", name.chars().take(100).collect::<String>());
        Problem::new(path, format!("nests deeper than {MAX_FIELD_DEPTH} levels of objects and lists"))
    })
}

/// Returns the problem of a model that is not a name. `prefix` is the JSON path of the object with the model.
pub(super) fn model_problem(prefix: &str, fields: &[(String, Box<RawValue>)]) -> Option<Problem> {
    let (_, value) = fields.iter().rev().find(|(name, _)| name == "model")?;
    let model: Result<Option<String>, _> = serde_json::from_str(value.get());
    let is_name = model.is_ok_and(|model| model.is_none_or(|name| !name.trim().is_empty()));
    (!is_name).then(|| Problem::new(format!("{prefix}model"), "must be a string with the name of a model"))
}

/// Parses an object; `null` is an empty one.
pub(super) fn parse_object(value: &RawValue) -> Option<Value> {
    let fields: Option<Map<String, Value>> = serde_json::from_str(value.get()).ok()?;
    Some(Value::Object(fields.unwrap_or_default()))
}

fn push_field(body: &mut String, name: &str, push_value: impl FnOnce(&mut String)) {
    body.push_str(if body.len() > 1 { "," } else { "" });
    push_json_string(body, name);
    body.push(':');
    push_value(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_the_prompt_and_what_to_do() {
        let parse = |path| PromptPath::parse("POST", path).map(|path| (path.reference, path.action));
        let expected_path = |name: &str, action| Some((Some(name.to_owned()), action));
        assert_eq!(parse("/v1/prompts/a%40prod/completions"), expected_path("a@prod", PromptAction::Complete));
        assert_eq!(parse("/v1/prompts/a@2/render"), expected_path("a@2", PromptAction::Render));
        assert_eq!(parse("/v1/v1/prompts/a/generate"), expected_path("a", PromptAction::Complete));
        assert_eq!(parse("/v2/prompts/a/completions"), expected_path("a", PromptAction::Complete));
        assert_eq!(parse("/v1/v2/prompts/a/compare"), expected_path("a", PromptAction::Compare));
        assert_eq!(parse("/v1/prompt/complete"), Some((None, PromptAction::Complete)));
        for path in
            ["/v1/prompts", "/v1/prompts/a", "/v1/prompts/a/versions", "/v1/prompts//render", "/v1/prompts/a/render/b"]
        {
            assert_eq!(parse(path), None, "{path}");
        }
        assert_eq!(PromptPath::parse("GET", "/v1/prompts/a/render"), None);
    }

    #[test]
    fn fields_of_the_body_override_each_other() {
        let body =
            br#"{"variables": null, "a": 1, "hyperparameters": {"a": 2, "b": 3, "variables": {}}, "b": 4, "b": 5}"#;
        let request = PromptRequest::parse(body).unwrap();
        let fields: Vec<_> = request.overrides.iter().map(|(name, value)| (name.as_str(), value.get())).collect();
        assert_eq!((fields, request.variables), (vec![("a", "1"), ("b", "5")], serde_json::json!({})));
        assert_eq!(PromptRequest::parse(b" \n").unwrap().variables, serde_json::json!({}));
    }

    #[test]
    fn all_problems_of_a_body_are_reported() {
        let nested = "[".repeat(MAX_FIELD_DEPTH + 1) + &"]".repeat(MAX_FIELD_DEPTH + 1);
        let body = format!(
            r#"{{"variabels": {{}}, "variables": [], "hyperparameters": {{"model": 1}}, "promptID": 1, "model": "",
                "stop": {nested}}}"#
        );
        let message = PromptRequest::parse(body.as_bytes()).unwrap_err().to_string();
        assert_eq!(
            message,
            "invalid body of a prompt request: $.variabels is not known; did you mean `variables`?; also $.variables \
             must be an object with a value for each variable; also $.promptID must be the id or slug of a prompt; also \
             $.stop nests deeper than 100 levels of objects and lists; also $.hyperparameters.model must be a string \
             with the name of a model; also $.model must be a string with the name of a model"
        );
        let deep = format!(r#"{{"variables": {{"a": {}}}}}"#, &nested[2..2 * MAX_FIELD_DEPTH]);
        assert!(PromptRequest::parse(deep.as_bytes()).is_ok(), "{deep}");
        let list = PromptRequest::parse(b"[]").unwrap_err().to_string();
        assert!(list.ends_with("$ must be a JSON object: invalid type: list, expected an object"), "{list}");
    }
}
