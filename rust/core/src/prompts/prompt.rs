//! A saved prompt: its versions, and the request that a version is rendered to.

use serde::Deserialize;
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};

use super::{
    messages::{MessagePart, compile_messages, push_json_string, read_messages},
    template::{Escape, PartialSource, RenderError, RenderLimits, Renderer, Template},
    unknown_variables::find_unknown_variables,
    variable_names::VariableNames,
};
use crate::{error::Problem, parse::json_fault::describe_json_fault};

/// Content of a version, as it is saved.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptContent {
    /// Template: the JSON array of the messages of a chat, or the text of a text completion.
    pub string: String,
    #[serde(default)]
    pub is_raw_template: bool,
    /// Fields of the request besides the messages.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// Slug of a saved provider.
    #[serde(default)]
    pub virtual_key: Option<String>,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub functions: Option<Value>,
    #[serde(default)]
    pub tools: Option<Value>,
    #[serde(default)]
    pub tool_choice: Option<Value>,
}

/// A version that can be rendered.
#[derive(Debug)]
pub struct CompiledPrompt {
    body: PromptBody,
    /// Fields of the request besides messages, text and model, as JSON.
    pub fields: Vec<(String, Box<RawValue>)>,
    pub virtual_key: Option<String>,
    pub model: Option<String>,
}

#[derive(Debug)]
enum PromptBody {
    /// Messages whose texts are templates.
    Messages(Vec<MessagePart>),
    /// Text of a text completion.
    Text(Template),
    /// Raw template: its output is the JSON of the messages or of the request's fields.
    Raw(Template),
}

/// Messages or text of a rendered prompt, as JSON.
#[derive(Debug)]
pub enum RenderedBody {
    Messages(String),
    Text(String),
    /// Fields of a request, rendered from a raw template.
    Fields(Vec<(String, Box<RawValue>)>),
}

impl RenderedBody {
    /// Returns true for a chat request. A raw template may also make a text completion request.
    pub fn is_chat(&self) -> bool {
        match self {
            Self::Messages(_) => true,
            Self::Text(_) => false,
            Self::Fields(fields) => {
                let has = |expected: &str| fields.iter().any(|(name, _)| name == expected);
                has("messages") || !has("prompt")
            }
        }
    }
}

/// Why a prompt cannot be rendered.
#[derive(Debug)]
pub enum PromptFault {
    /// The saved version is not valid.
    Invalid(String),
    Render(RenderError),
    /// The output of a raw template is not JSON, or is JSON other than an array or an object.
    NotJson(String),
}

impl CompiledPrompt {
    /// Parses and compiles the content of a version from JSON. Returns all problems at once.
    pub fn parse(json: &[u8]) -> Result<Self, Vec<Problem>> {
        let content: PromptContent =
            serde_json::from_slice(json).map_err(|error| vec![Problem::new("$", describe_json_fault(&error))])?;
        Self::compile(&content)
    }

    /// Compiles the content of a version. Returns all problems at once.
    pub fn compile(content: &PromptContent) -> Result<Self, Vec<Problem>> {
        let stored_model = read_stored_model(&content.parameters);
        let body = match (PromptBody::parse(content), &stored_model) {
            (Ok(body), Ok(_)) => body,
            (body, model) => {
                let mut problems = body.err().unwrap_or_default();
                problems.extend(model.as_ref().err().cloned());
                return Err(problems);
            }
        };
        let mut fields: Vec<(String, Box<RawValue>)> = content
            .parameters
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "messages" | "prompt" | "model"))
            .filter_map(|(name, value)| Some((name.clone(), to_raw_value(value).ok()?)))
            .collect();
        let lists =
            [("functions", &content.functions), ("tools", &content.tools), ("tool_choice", &content.tool_choice)];
        for (name, value) in lists {
            if let Some(value) = value.as_ref().filter(|value| !is_empty(value)) {
                fields.retain(|(known, _)| known != name);
                fields.extend(to_raw_value(value).ok().map(|value| (name.to_owned(), value)));
            }
        }
        let text = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Ok(Self {
            body,
            fields,
            virtual_key: text(&content.virtual_key),
            model: text(&content.model).or(stored_model.unwrap_or_default()),
        })
    }

    /// Returns the names of variables, sections and partials in the template.
    pub fn variable_names(&self) -> VariableNames {
        let mut names = VariableNames::default();
        self.templates().for_each(|template| names.add(template));
        names
    }

    pub(super) fn templates(&self) -> impl Iterator<Item = &Template> {
        let (parts, whole) = match &self.body {
            PromptBody::Messages(parts) => (&parts[..], None),
            PromptBody::Text(template) | PromptBody::Raw(template) => (&[][..], Some(template)),
        };
        let in_parts = parts.iter().filter_map(|part| match part {
            MessagePart::Text(template) | MessagePart::JsonText(template) => Some(template),
            MessagePart::Json(_) => None,
        });
        in_parts.chain(whole)
    }

    /// Renders the prompt. Also returns the names that had no value.
    pub fn render<'p>(
        &self,
        variables: &'p Value,
        limits: RenderLimits,
        find_partial: impl Fn(&str) -> Option<PartialSource<'p>>,
    ) -> Result<(RenderedBody, Vec<String>), PromptFault> {
        let escape = if matches!(self.body, PromptBody::Raw(_)) { Escape::Json } else { Escape::None };
        let mut renderer = Renderer::new(variables, escape, limits, find_partial);
        let body = match &self.body {
            PromptBody::Messages(parts) => {
                let (mut json, mut text) = (String::new(), String::new());
                for part in parts {
                    match part {
                        MessagePart::Json(part) => json.push_str(part),
                        MessagePart::Text(template) => {
                            text.clear();
                            renderer.render(template, &mut text).map_err(PromptFault::Render)?;
                            push_json_string(&mut json, &text);
                        }
                        MessagePart::JsonText(template) => {
                            text.clear();
                            renderer.render_json(template, &mut text).map_err(PromptFault::Render)?;
                            push_json_string(&mut json, &text);
                        }
                    }
                }
                RenderedBody::Messages(json)
            }
            PromptBody::Text(template) => {
                let (mut json, mut text) = (String::new(), String::new());
                renderer.render(template, &mut text).map_err(PromptFault::Render)?;
                push_json_string(&mut json, &text);
                RenderedBody::Text(json)
            }
            PromptBody::Raw(template) => {
                let mut json = String::new();
                renderer.render(template, &mut json).map_err(PromptFault::Render)?;
                parse_raw(json)?
            }
        };
        Ok((body, renderer.into_missing()))
    }
}

impl CompiledPrompt {
    /// Returns the names of the given variables that neither the prompt nor its partials read.
    ///
    /// # Errors
    /// If the prompt and its partials are larger than the limits allow.
    pub fn unknown_variables<'p>(
        &self,
        variables: &Value,
        limits: RenderLimits,
        find_partial: impl Fn(&str) -> Option<PartialSource<'p>>,
    ) -> Result<Vec<String>, PromptFault> {
        find_unknown_variables(self, variables, limits.steps, find_partial).map_err(PromptFault::Render)
    }
}

impl PromptBody {
    fn parse(content: &PromptContent) -> Result<Self, Vec<Problem>> {
        let template = |path: &str, source: &str| {
            Template::parse(source).map_err(|error| vec![Problem::new(path, error.to_string())])
        };
        if content.is_raw_template {
            return template("$.string", &content.string).map(Self::Raw);
        }
        match read_messages(&content.string)? {
            Some(messages) => compile_messages(&messages).map(Self::Messages),
            None => template("$.string", &content.string).map(Self::Text),
        }
    }
}

/// Returns the model in the parameters of a version.
fn read_stored_model(parameters: &Map<String, Value>) -> Result<Option<String>, Problem> {
    match parameters.get("model") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(model)) => Ok(Some(model.clone()).filter(|model| !model.is_empty())),
        Some(_) => Err(Problem::new("$.parameters.model", "must be a string with the name of a model")),
    }
}

/// Parses the output of a raw template: the array of the messages, or the fields of a request.
fn parse_raw(json: String) -> Result<RenderedBody, PromptFault> {
    let not_json = |error: serde_json::Error| PromptFault::NotJson(describe_json_fault(&error));
    match json.trim_start().bytes().next() {
        Some(b'[') => {
            check_raw_messages(&json).map_err(PromptFault::NotJson)?;
            Ok(RenderedBody::Messages(json))
        }
        Some(b'{') => {
            let mut fields: RequestFields = serde_json::from_str(&json).map_err(not_json)?;
            fields.keep_last();
            for (name, value) in &fields.0 {
                match name.as_str() {
                    "messages" => check_raw_messages(value.get()).map_err(PromptFault::NotJson)?,
                    "model" if !value.get().starts_with('"') => {
                        return Err(PromptFault::NotJson("`model` must be a string with the name of a model".into()));
                    }
                    _ => (),
                }
            }
            Ok(RenderedBody::Fields(fields.0))
        }
        _ => Err(PromptFault::NotJson("it must be an array of messages or an object".into())),
    }
}

/// Checks that JSON is a list of objects.
fn check_raw_messages(json: &str) -> Result<(), String> {
    if !json.trim_start().starts_with('[') {
        return Err("`messages` must be a list".into());
    }
    let messages: Vec<&RawValue> = serde_json::from_str(json).map_err(|error| describe_json_fault(&error))?;
    let is_object = |message: &&RawValue| message.get().starts_with('{');
    if messages.iter().all(is_object) { Ok(()) } else { Err("each message must be an object".into()) }
}

/// Fields of a JSON object in their order, with their values as JSON.
#[derive(Debug, Default)]
pub struct RequestFields(pub Vec<(String, Box<RawValue>)>);

impl RequestFields {
    /// Removes repeated fields: of several fields with the same name, the last one stays.
    pub fn keep_last(&mut self) {
        let mut names = std::collections::HashSet::new();
        self.0.reverse();
        self.0.retain(|(name, _)| names.insert(name.clone()));
        self.0.reverse();
    }
}

impl<'de> Deserialize<'de> for RequestFields {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = RequestFields;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields: Vec<(String, Box<RawValue>)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    fields.push((name, value));
                }
                Ok(RequestFields(fields))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
