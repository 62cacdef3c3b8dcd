//! A saved prompt: its versions, and the request that each version makes.

use serde::Deserialize;
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};

use super::{
    template::{Escape, PartialSource, RenderError, RenderLimits, Renderer, Template, push_json_escaped},
    variable_names::VariableNames,
};
use crate::error::Problem;

/// Keys of messages and content parts that are never templates. Otherwise a variable could change who a message is from.
const LITERAL_KEYS: [&str; 2] = ["role", "type"];
/// Maximum depth of arrays and objects in the messages.
const MAX_MESSAGE_DEPTH: usize = 16;

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
    /// A template of JSON.
    Raw(Template),
}

/// A part of the JSON of the messages.
#[derive(Debug)]
enum MessagePart {
    Json(String),
    /// Template of a text. It is written as a JSON string.
    Text(Template),
}

/// Messages or text of a rendered prompt, as JSON.
#[derive(Debug)]
pub enum RenderedBody {
    Messages(String),
    Text(String),
    /// Fields of a request that a raw template made.
    Fields(Vec<(String, Box<RawValue>)>),
}

impl RenderedBody {
    /// Returns true for a chat request. A raw template may also make a text completion request.
    pub fn is_chat(&self) -> bool {
        match self {
            Self::Messages(_) => true,
            Self::Text(_) => false,
            Self::Fields(fields) => {
                let has = |wanted: &str| fields.iter().any(|(name, _)| name == wanted);
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
    /// What a raw template made is no JSON, or neither an array nor an object.
    NotJson(String),
}

impl CompiledPrompt {
    /// Parses and compiles the content of a version from JSON. Returns all problems at once.
    pub fn parse(json: &[u8]) -> Result<Self, Vec<Problem>> {
        let content: PromptContent =
            serde_json::from_slice(json).map_err(|error| vec![Problem::new("$", error.to_string())])?;
        Self::compile(&content)
    }

    /// Compiles the content of a version. Returns all problems at once.
    pub fn compile(content: &PromptContent) -> Result<Self, Vec<Problem>> {
        let body = PromptBody::parse(content)?;
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
        let in_parameters = || content.parameters.get("model")?.as_str().map(ToOwned::to_owned);
        Ok(Self {
            body,
            fields,
            virtual_key: text(&content.virtual_key),
            model: text(&content.model).or_else(in_parameters),
        })
    }

    /// Returns the names of variables, sections and partials in the template.
    pub fn variable_names(&self) -> VariableNames {
        let mut names = VariableNames::default();
        self.templates().for_each(|template| names.add(template));
        names
    }

    fn templates(&self) -> impl Iterator<Item = &Template> {
        let (parts, whole) = match &self.body {
            PromptBody::Messages(parts) => (&parts[..], None),
            PromptBody::Text(template) | PromptBody::Raw(template) => (&[][..], Some(template)),
        };
        let in_parts = parts.iter().filter_map(|part| match part {
            MessagePart::Text(template) => Some(template),
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

impl PromptBody {
    fn parse(content: &PromptContent) -> Result<Self, Vec<Problem>> {
        let template = |path: &str, source: &str| {
            Template::parse(source).map_err(|error| vec![Problem::new(path, error.to_string())])
        };
        if content.is_raw_template {
            return template("$.string", &content.string).map(Self::Raw);
        }
        match serde_json::from_str(&content.string) {
            Ok(Value::Array(messages)) if !messages.is_empty() && messages.iter().all(Value::is_object) => {
                let mut compiler = MessageCompiler::default();
                compiler.add(&Value::Array(messages), "$.string", 0);
                compiler.finish()
            }
            _ => template("$.string", &content.string).map(Self::Text),
        }
    }
}

/// Splits messages into JSON and templates.
#[derive(Default)]
struct MessageCompiler {
    parts: Vec<MessagePart>,
    json: String,
    problems: Vec<Problem>,
}

impl MessageCompiler {
    fn finish(mut self) -> Result<PromptBody, Vec<Problem>> {
        self.parts.push(MessagePart::Json(self.json));
        if self.problems.is_empty() { Ok(PromptBody::Messages(self.parts)) } else { Err(self.problems) }
    }

    fn add(&mut self, value: &Value, path: &str, depth: usize) {
        if depth > MAX_MESSAGE_DEPTH {
            self.problems.push(Problem::new(path, format!("is nested deeper than {MAX_MESSAGE_DEPTH}")));
            return;
        }
        match value {
            Value::String(text) => self.add_text(text, path),
            Value::Array(items) => {
                self.json.push('[');
                for (index, item) in items.iter().enumerate() {
                    self.json.push_str(if index == 0 { "" } else { "," });
                    self.add(item, &format!("{path}[{index}]"), depth + 1);
                }
                self.json.push(']');
            }
            Value::Object(fields) => {
                self.json.push('{');
                for (index, (name, value)) in fields.iter().enumerate() {
                    self.json.push_str(if index == 0 { "" } else { "," });
                    push_json_string(&mut self.json, name);
                    self.json.push(':');
                    match value {
                        Value::String(text) if LITERAL_KEYS.contains(&name.as_str()) => {
                            push_json_string(&mut self.json, text);
                        }
                        value => self.add(value, &format!("{path}.{name}"), depth + 1),
                    }
                }
                self.json.push('}');
            }
            scalar => self.json.push_str(&scalar.to_string()),
        }
    }

    fn add_text(&mut self, text: &str, path: &str) {
        match Template::parse(text) {
            Ok(template) => {
                if let Some(plain) = template.as_plain_text() {
                    push_json_string(&mut self.json, plain);
                } else {
                    self.parts.push(MessagePart::Json(std::mem::take(&mut self.json)));
                    self.parts.push(MessagePart::Text(template));
                }
            }
            Err(error) => self.problems.push(Problem::new(path, error.to_string())),
        }
    }
}

/// Parses what a raw template made: the array of the messages, or the fields of a request.
fn parse_raw(json: String) -> Result<RenderedBody, PromptFault> {
    let not_json = |error: serde_json::Error| PromptFault::NotJson(error.to_string());
    match json.trim_start().bytes().next() {
        Some(b'[') => {
            let messages: Vec<&RawValue> = serde_json::from_str(&json).map_err(not_json)?;
            if messages.iter().all(|message| message.get().starts_with('{')) {
                return Ok(RenderedBody::Messages(json));
            }
            Err(PromptFault::NotJson("each message must be an object".into()))
        }
        Some(b'{') => {
            let mut fields: RequestFields = serde_json::from_str(&json).map_err(not_json)?;
            fields.keep_last();
            Ok(RenderedBody::Fields(fields.0))
        }
        _ => Err(PromptFault::NotJson("it must be an array of messages or an object".into())),
    }
}

/// Fields of a JSON object in their order, with their values as JSON.
#[derive(Debug, Default)]
pub struct RequestFields(pub Vec<(String, Box<RawValue>)>);

impl RequestFields {
    /// Keeps the last of the fields with the same name.
    pub fn keep_last(&mut self) {
        let mut seen = std::collections::HashSet::new();
        self.0.reverse();
        self.0.retain(|(name, _)| seen.insert(name.clone()));
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

pub(super) fn push_json_string(json: &mut String, text: &str) {
    json.push('"');
    push_json_escaped(json, text);
    json.push('"');
}
