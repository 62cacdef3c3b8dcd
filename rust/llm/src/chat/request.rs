//! A request to a model, whoever wrote it: messages, tools, and parameters under the names of chat completions.

use std::{ops::RangeInclusive, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::signatures::ScopedSignatures;
use crate::translation::dropped::DroppedParams;

pub type Fields = Map<String, Value>;

/// Why a request cannot be said to a provider, and where in the caller's body that is.
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

/// A request between the dialect it came in and the one it leaves in.
#[derive(Debug, Default)]
pub struct ChatRequest {
    pub model: String,
    pub stream: bool,
    pub messages: Vec<Message>,
    pub tools: Vec<Tool>,
    pub tool_choice: Option<ToolChoice>,
    /// Everything else. Who writes the request takes what the provider knows; what is left was lost.
    pub fields: Fields,
    pub dropped_params: DroppedParams,
    /// What of Anthropic's betas the body asks for, where they are asked for in a header.
    pub betas: Option<String>,
    /// Which version of Anthropic's API it asks for, likewise.
    pub api_version: Option<String>,
    /// Where signatures are that the caller's client did not keep.
    pub signatures: Option<ScopedSignatures>,
}

impl ChatRequest {
    /// Takes a parameter; null counts as absent.
    pub fn take_param(&mut self, key: &str) -> Option<Value> {
        self.fields.shift_remove(key).filter(|value| !value.is_null())
    }

    /// Notes what the provider cannot be told.
    pub fn record_dropped(&mut self, name: &str) {
        self.dropped_params.add(name);
    }

    /// Moves a parameter as it is, if there is one.
    pub fn move_param(&mut self, key: &str, to: &mut Fields, name: &str) {
        if let Some(value) = self.take_param(key) {
            to.insert(name.to_owned(), value);
        }
    }

    /// Keeps a number within what the provider takes; that it was changed is named.
    pub fn clamp_param(&mut self, key: &str, within: &RangeInclusive<i32>) {
        let Some(said) = self.fields.get(key).and_then(Value::as_f64) else { return };
        let bound = if said < f64::from(*within.start()) {
            within.start()
        } else if said > f64::from(*within.end()) {
            within.end()
        } else {
            return;
        };
        self.fields.insert(key.to_owned(), (*bound).into());
        self.dropped_params.add(key);
    }

    /// Likewise, where it was said at all.
    pub fn record_dropped_if_set<T>(&mut self, name: &str, said: Option<&T>) {
        if said.is_some() {
            self.dropped_params.add(name);
        }
    }

    /// Notes what nobody took of an object within the request.
    pub fn record_dropped_fields(&mut self, of: &str, rest: &Fields) {
        self.dropped_params.add_remaining_fields(of, rest);
    }

    /// Refuses more than one answer to one question.
    pub fn reject_several_choices(&mut self) -> Result<(), RequestError> {
        match self.take_param("n") {
            Some(n) if n != 1 => Err(RequestError::new("n", "this provider gives one answer: it must be 1")),
            _ => Ok(()),
        }
    }

    /// Refuses messages of which nothing is left to say: an empty list of them is nobody's question.
    pub fn reject_empty_messages(were: usize, are: usize) -> Result<(), RequestError> {
        if were == 0 || are > 0 {
            return Ok(());
        }
        Err(RequestError::new(
            "messages",
            "nothing is said in them: a message of the user or the assistant must have content",
        ))
    }

    /// Whether images are wanted in so many words.
    pub fn has_image_modality(&self) -> bool {
        let kinds = self.fields.get("modalities").and_then(Value::as_array);
        kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind == "image"))
    }

    /// What the documents are called that are given beside the messages: who gives them no names has them numbered.
    pub fn document_names(&self) -> Arc<[String]> {
        let given = self.fields.get("documents").and_then(Value::as_array).into_iter().flatten();
        let name =
            |(at, one): (usize, &Value)| one["id"].as_str().map_or_else(|| format!("doc:{at}"), ToOwned::to_owned);
        given.enumerate().map(name).collect()
    }

    /// What nobody took.
    pub fn into_dropped_params(mut self) -> DroppedParams {
        for (key, value) in &self.fields {
            if !is_default_value(value) {
                self.dropped_params.add(key);
            }
        }
        self.dropped_params
    }
}

/// What says the default loses nothing.
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
        /// Where it is from, in the words of who answered it.
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
        /// What few are told of it: what it is about, and whether it is to be cited.
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
    /// What seals the text before it: for the provider that gave it, and nobody else.
    Signature(String),
    /// A block that only its provider knows.
    ProviderBlock {
        kind: String,
        fields: Fields,
    },
    /// What a tool gave back.
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

/// What is said of where a text is from: a list that names something.
pub fn take_citations(fields: &mut Fields) -> Option<Value> {
    fields.get("citations").filter(|value| value.is_array())?;
    fields.shift_remove("citations").filter(|value| !is_default_value(value))
}

/// What few are told of a document, in Anthropic's words, which are Converse's.
pub fn take_document_extra(fields: &mut Fields) -> Fields {
    let told = ["context", "citations"].into_iter().filter_map(|key| Some((key.to_owned(), fields.shift_remove(key)?)));
    let says = |(_, value): &(String, Value)| !value.is_null() && value["enabled"] != false;
    told.filter(says).collect()
}

/// The texts among parts, a line each.
pub fn join_text(parts: Vec<Part>) -> String {
    let text = |part| if let Part::Text { text, .. } = part { Some(text) } else { None };
    parts.into_iter().filter_map(text).collect::<Vec<_>>().join("\n")
}

/// A tool that the model called.
#[derive(Debug)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// As JSON.
    pub arguments: String,
    /// What the provider wants back with it, unread.
    pub signature: Option<String>,
    pub cache: Option<Value>,
}

impl ToolCall {
    /// The arguments as an object; none at all are an empty one.
    pub fn parse_arguments(&self) -> Option<Value> {
        if self.arguments.trim().is_empty() {
            return Some(Value::Object(Fields::new()));
        }
        serde_json::from_str(&self.arguments).ok().filter(Value::is_object)
    }
}

/// Where the bytes of an image or a document are.
#[derive(Debug, PartialEq, Eq)]
pub enum Source {
    Data { mime: String, data: String },
    Url { url: String, mime: Option<String> },
    Text(String),
    File(String),
}

impl Source {
    /// From a URL, which may hold the bytes itself.
    pub fn from_url(url: String, mime: Option<String>) -> Self {
        let Some((head, data)) = url.strip_prefix("data:").and_then(|rest| rest.split_once(',')) else {
            return Self::Url { url, mime };
        };
        let Some(kind) = head.strip_suffix(";base64") else { return Self::Url { url, mime } };
        let kind = kind.split(';').next().unwrap_or_default();
        Self::Data { mime: mime.unwrap_or_else(|| kind.to_owned()), data: data.to_owned() }
    }

    /// As a URL, where it can be one.
    pub fn to_url(&self) -> Option<String> {
        match self {
            Self::Data { mime, data } => Some(format!("data:{mime};base64,{data}")),
            Self::Url { url, .. } => Some(url.clone()),
            Self::Text(_) | Self::File(_) => None,
        }
    }
}

/// The text behind base64, if it is that.
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
        /// What few know: when it is loaded, who may call it, examples.
        extra: Box<Fields>,
    },
    /// One that a provider has itself, in the caller's words.
    BuiltIn { kind: String, fields: Fields },
}

/// The schema that an answer is to keep to; what describes the format stands in the schema where that has nothing of its own.
pub fn response_schema(format: &Value) -> Option<Value> {
    let told = format.get("json_schema")?;
    let mut schema = told.get("schema")?.clone();
    if let (Some(fields), Some(text)) =
        (schema.as_object_mut(), told.get("description").filter(|text| text.is_string()))
        && !fields.contains_key("description")
    {
        fields.insert("description".into(), text.clone());
    }
    Some(schema)
}

/// Which tool is to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    Auto,
    None,
    Any,
    Tool(String),
}

/// A string behind a key. What is none stays where it is, to be named with what else nobody took.
pub fn take_string(fields: &mut Fields, key: &str) -> Option<String> {
    fields.get(key).filter(|value| value.is_string())?;
    match fields.shift_remove(key)? {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// A string that must be there.
pub fn take_required_string(fields: &mut Fields, key: &str, path: &str) -> Result<String, RequestError> {
    take_string(fields, key).ok_or_else(|| RequestError::new(format!("{path}.{key}"), "must be a string"))
}

pub fn into_object(value: Value, path: &str) -> Result<Fields, RequestError> {
    match value {
        Value::Object(fields) => Ok(fields),
        _ => Err(RequestError::new(path, "must be an object")),
    }
}

/// An object that may be missing. What is none stays, likewise.
pub fn take_object(fields: &mut Fields, key: &str) -> Option<Fields> {
    fields.get(key).filter(|value| value.is_object())?;
    match fields.shift_remove(key)? {
        Value::Object(inner) => Some(inner),
        _ => None,
    }
}

/// What describes the arguments of a function: an object, or nothing.
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

/// The object of a whole body.
pub fn parse_body(json: &[u8]) -> Result<Fields, RequestError> {
    serde_json::from_slice(json).map_err(|error| RequestError::new("$", error.to_string()))
}
