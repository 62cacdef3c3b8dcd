//! Canonical chat request: messages, tools, and parameters under their chat completions names.

use std::{ops::RangeInclusive, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::signatures::ScopedSignatures;
use crate::{json::lines::LineTooLong, translation::dropped::DroppedParams};

pub type Fields = Map<String, Value>;

/// Reason why a request cannot be translated for a provider, and the path of the field in the client's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestError {
    pub path: String,
    pub message: String,
}

impl RequestError {
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}: {}", self.path, self.message)
    }
}

impl From<LineTooLong> for RequestError {
    fn from(fault: LineTooLong) -> Self {
        Self::new("file", fault.to_string())
    }
}

/// Canonical request: parsed from the client format, then written in the provider format.
#[derive(Debug, Default)]
pub struct ChatRequest {
    pub model: String,
    pub stream: bool,
    pub messages: Vec<Message>,
    pub tools: Vec<Tool>,
    pub tool_choice: Option<ToolChoice>,
    /// All other parameters. The writer takes those that the provider supports; the rest is reported as dropped.
    pub fields: Fields,
    pub dropped_params: DroppedParams,
    /// Anthropic beta features that the body enables, for providers that expect them in a header.
    pub betas: Option<String>,
    /// Anthropic API version that the body names, for providers that expect it in a header.
    pub api_version: Option<String>,
    /// Store for tool call signatures that the client did not send back.
    pub signatures: Option<ScopedSignatures>,
}

impl ChatRequest {
    /// Removes a parameter and returns it; null counts as absent.
    pub fn take_param(&mut self, key: &str) -> Option<Value> {
        self.fields.shift_remove(key).filter(|value| !value.is_null())
    }

    /// Records a parameter that the provider does not support.
    pub fn record_dropped(&mut self, name: &str) {
        self.dropped_params.add(name);
    }

    /// Moves a parameter unchanged to the provider's request, if present.
    pub fn move_param(&mut self, key: &str, to: &mut Fields, name: &str) {
        if let Some(value) = self.take_param(key) {
            to.insert(name.to_owned(), value);
        }
    }

    /// Clamps a number to the provider's range, and records the parameter as dropped if it changed.
    pub fn clamp_param(&mut self, key: &str, within: &RangeInclusive<i32>) {
        let Some(value) = self.fields.get(key).and_then(Value::as_f64) else { return };
        let bound = if value < f64::from(*within.start()) {
            within.start()
        } else if value > f64::from(*within.end()) {
            within.end()
        } else {
            return;
        };
        self.fields.insert(key.to_owned(), (*bound).into());
        self.dropped_params.add(key);
    }

    /// Records a parameter that the provider does not support, if the client set it.
    pub fn record_dropped_if_set<T>(&mut self, name: &str, value: Option<&T>) {
        if value.is_some() {
            self.dropped_params.add(name);
        }
    }

    /// Records the fields of a nested object that the writer did not take.
    pub fn record_dropped_fields(&mut self, parent: &str, rest: &Fields) {
        self.dropped_params.add_remaining_fields(parent, rest);
    }

    /// Rejects a request for more than one choice.
    pub fn reject_several_choices(&mut self) -> Result<(), RequestError> {
        match self.take_param("n") {
            Some(n) if n != 1 => Err(RequestError::new("n", "must be 1; this provider returns one choice")),
            _ => Ok(()),
        }
    }

    /// Rejects messages of which none has content left, because providers reject an empty list. A request that had no
    /// messages at all passes.
    pub fn reject_empty_messages(were: usize, are: usize) -> Result<(), RequestError> {
        if were == 0 || are > 0 {
            return Ok(());
        }
        Err(RequestError::new(
            "messages",
            "have no content; at least one message of the user or the assistant must have content",
        ))
    }

    /// Returns true if the request explicitly asks for images.
    pub fn has_image_modality(&self) -> bool {
        let kinds = self.fields.get("modalities").and_then(Value::as_array);
        kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind == "image"))
    }

    /// Returns the names of the documents that are sent next to the messages; documents without a name are numbered.
    pub fn document_names(&self) -> Arc<[String]> {
        let given = self.fields.get("documents").and_then(Value::as_array).into_iter().flatten();
        let name =
            |(at, one): (usize, &Value)| one["id"].as_str().map_or_else(|| format!("doc:{at}"), ToOwned::to_owned);
        given.enumerate().map(name).collect()
    }

    /// Returns the dropped parameters, including those that the writer did not take.
    pub fn into_dropped_params(mut self) -> DroppedParams {
        for (key, value) in &self.fields {
            if !is_default_value(value) {
                self.dropped_params.add(key);
            }
        }
        self.dropped_params
    }
}

/// Returns true for values that mean the default, so that dropping them changes nothing.
pub(crate) fn is_default_value(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

#[derive(Debug)]
pub struct Message {
    pub role: Role,
    pub parts: Vec<Part>,
}

#[derive(Debug)]
pub enum Part {
    Text {
        text: String,
        cache: Option<Value>,
        /// Citations of the text, in the format of the provider that wrote it.
        citations: Option<Value>,
    },
    Image {
        source: Source,
        detail: Option<Value>,
        cache: Option<Value>,
    },
    Document {
        source: Source,
        name: Option<String>,
        cache: Option<Value>,
        /// Fields that few providers support: the context of the document, and if it is to be cited.
        extra: Box<Fields>,
    },
    Audio {
        data: String,
        format: String,
    },
    Thinking {
        text: String,
        signature: Option<String>,
    },
    RedactedThinking {
        data: String,
    },
    ToolCall(ToolCall),
    /// Signature of the text before it, valid only for the provider that issued it.
    Signature(String),
    /// Block that only its own provider understands.
    ProviderBlock {
        kind: String,
        fields: Fields,
    },
    /// Result that a tool returned.
    ToolResult {
        id: String,
        parts: Vec<Part>,
        is_error: bool,
        cache: Option<Value>,
    },
}

impl Part {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), cache: None, citations: None }
    }
}

/// Removes and returns the `citations` list; `None` if it is missing or empty.
pub fn take_citations(fields: &mut Fields) -> Option<Value> {
    fields.get("citations").filter(|value| value.is_array())?;
    fields.shift_remove("citations").filter(|value| !is_default_value(value))
}

/// Removes and returns the document fields that few providers support. Anthropic and Converse use the same names for
/// them.
pub fn take_document_extra(fields: &mut Fields) -> Fields {
    let entries =
        ["context", "citations"].into_iter().filter_map(|key| Some((key.to_owned(), fields.shift_remove(key)?)));
    let is_enabled = |(_, value): &(String, Value)| !value.is_null() && value["enabled"] != false;
    entries.filter(is_enabled).collect()
}

/// Joins the text parts with newlines.
pub fn join_text(parts: Vec<Part>) -> String {
    let text = |part| if let Part::Text { text, .. } = part { Some(text) } else { None };
    parts.into_iter().filter_map(text).collect::<Vec<_>>().join("\n")
}

/// Tool call that the model made.
#[derive(Debug)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// As JSON.
    pub arguments: String,
    /// Opaque signature that the provider expects back with the tool call.
    pub signature: Option<String>,
    pub cache: Option<Value>,
}

impl ToolCall {
    /// Parses the arguments as an object; empty arguments are an empty object.
    pub fn parse_arguments(&self) -> Option<Value> {
        if self.arguments.trim().is_empty() {
            return Some(Value::Object(Fields::new()));
        }
        serde_json::from_str(&self.arguments).ok().filter(Value::is_object)
    }
}

/// Content of an image or a document, or its location.
#[derive(Debug, PartialEq, Eq)]
pub enum Source {
    Data { mime: String, data: String },
    Url { url: String, mime: Option<String> },
    Text(String),
    File(String),
}

impl Source {
    /// Creates a source from a URL; a base64 `data:` URL becomes inline data.
    pub fn from_url(url: String, mime: Option<String>) -> Self {
        let Some((head, data)) = url.strip_prefix("data:").and_then(|rest| rest.split_once(',')) else {
            return Self::Url { url, mime };
        };
        let Some(kind) = head.strip_suffix(";base64") else { return Self::Url { url, mime } };
        let kind = kind.split(';').next().unwrap_or_default();
        Self::Data { mime: mime.unwrap_or_else(|| kind.to_owned()), data: data.to_owned() }
    }

    /// Returns the source as a URL; `None` for text and file ids.
    pub fn to_url(&self) -> Option<String> {
        match self {
            Self::Data { mime, data } => Some(format!("data:{mime};base64,{data}")),
            Self::Url { url, .. } => Some(url.clone()),
            Self::Text(_) | Self::File(_) => None,
        }
    }
}

/// Decodes base64 to text; `None` if the data is not base64 or not UTF-8.
pub fn decode_base64_text(data: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(data).ok()?).ok()
}

#[derive(Debug)]
pub enum Tool {
    Function {
        name: String,
        description: Option<String>,
        schema: Value,
        strict: Option<Value>,
        cache: Option<Value>,
        /// Fields that few providers support: deferred loading, allowed callers, examples.
        extra: Box<Fields>,
    },
    /// Tool that is built into a provider, in the client format.
    BuiltIn { kind: String, fields: Fields },
}

/// Returns the JSON schema that the response must match. The description of the format is added if the schema has none.
pub fn response_schema(format: &Value) -> Option<Value> {
    let json_schema = format.get("json_schema")?;
    let mut schema = json_schema.get("schema")?.clone();
    if let (Some(fields), Some(text)) =
        (schema.as_object_mut(), json_schema.get("description").filter(|text| text.is_string()))
        && !fields.contains_key("description")
    {
        fields.insert("description".into(), text.clone());
    }
    Some(schema)
}

/// Tool that the model must or may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    Auto,
    None,
    Any,
    Tool(String),
}

/// Removes and returns a string field. A value of another type stays, so that it is reported as dropped.
pub fn take_string(fields: &mut Fields, key: &str) -> Option<String> {
    fields.get(key).filter(|value| value.is_string())?;
    match fields.shift_remove(key)? {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// Removes and returns a required string field.
pub fn take_required_string(fields: &mut Fields, key: &str, path: &str) -> Result<String, RequestError> {
    take_string(fields, key).ok_or_else(|| RequestError::new(format!("{path}.{key}"), "must be a string"))
}

pub fn into_object(value: Value, path: &str) -> Result<Fields, RequestError> {
    match value {
        Value::Object(fields) => Ok(fields),
        _ => Err(RequestError::new(path, "must be an object")),
    }
}

/// Removes and returns an optional object field. A value of another type stays, so that it is reported as dropped.
pub fn take_object(fields: &mut Fields, key: &str) -> Option<Fields> {
    fields.get(key).filter(|value| value.is_object())?;
    match fields.shift_remove(key)? {
        Value::Object(inner) => Some(inner),
        _ => None,
    }
}

/// Removes and returns the parameter schema of a function: an object, or null if it is absent.
pub fn take_schema(fields: &mut Fields, key: &str, path: &str) -> Result<Value, RequestError> {
    match fields.shift_remove(key) {
        None | Some(Value::Null) => Ok(Value::Null),
        Some(schema @ Value::Object(_)) => Ok(schema),
        Some(_) => Err(RequestError::new(format!("{path}.{key}"), "must be an object")),
    }
}

pub fn into_array(value: Option<Value>, path: &str) -> Result<Vec<Value>, RequestError> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(RequestError::new(path, "must be an array")),
    }
}

/// Parses a complete body as a JSON object.
pub fn parse_body(json: &[u8]) -> Result<Fields, RequestError> {
    serde_json::from_slice(json).map_err(|error| RequestError::new("$", error.to_string()))
}
