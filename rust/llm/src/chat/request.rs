//! Canonical chat request: messages, tools, and parameters under their chat completions names.

use std::{collections::HashSet, ops::RangeInclusive, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    call_ids,
    client_tools::ClientTools,
    file_types::{mime_of_base64, mime_of_file},
    tool_call_signatures::ScopedSignatures,
    tool_names::{RenamedTool, ToolNameFormat},
};
use crate::{
    errors::RequestError,
    fields::{Fields, is_default_value},
    reports::DroppedParams,
};

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
    /// Tools of the client that the provider gets as plain functions.
    pub client_tools: ClientTools,
    /// Tools whose names the provider would reject, with the names that are sent instead.
    pub renamed_tools: Vec<RenamedTool>,
    /// Maximum number of stop sequences that the provider accepts; `None` if it has no limit.
    pub max_stop_sequences: Option<usize>,
    /// Store for tool call signatures that the client did not send back.
    pub tool_call_signatures: Option<ScopedSignatures>,
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

    /// Replaces the tool names that the provider rejects, everywhere in the request.
    pub fn normalise_tool_names(&mut self, format: ToolNameFormat) {
        let mut names = Vec::new();
        for tool in &mut self.tools {
            if let Tool::Function { name, .. } = tool {
                names.push(name);
            }
        }
        for part in self.messages.iter_mut().flat_map(|message| &mut message.parts) {
            if let Part::ToolCall(call) = part {
                names.push(&mut call.name);
            }
        }
        if let Some(ToolChoice::Tool(name)) = &mut self.tool_choice {
            names.push(name);
        }
        let mut recorded: HashSet<String> = self.renamed_tools.iter().map(|tool| tool.sent.clone()).collect();
        for name in names {
            let sent = format.normalise_name(name).into_owned();
            if sent == *name {
                continue;
            }
            let original = std::mem::replace(name, sent.clone());
            if recorded.insert(sent.clone()) {
                self.renamed_tools.push(RenamedTool { sent, original });
            }
        }
        if !self.renamed_tools.is_empty() {
            self.dropped_params.add("tools.name");
        }
    }

    /// Shortens the id of the user to what the provider accepts, and records that.
    pub fn shorten_user_id(&mut self, max_chars: usize) {
        let shortened = self.fields.get("user").and_then(Value::as_str).and_then(|id| call_ids::shorten(id, max_chars));
        if let Some(id) = shortened {
            self.fields.insert("user".into(), id.into());
            self.dropped_params.add("user");
        }
    }

    /// Removes all tools but the named functions. Rejects a list that names none of them.
    pub fn retain_tools(&mut self, names: &[String]) -> Result<(), RequestError> {
        let names: HashSet<&String> = names.iter().collect();
        self.tools.retain(|tool| matches!(tool, Tool::Function { name, .. } if names.contains(name)));
        if self.tools.is_empty() {
            return Err(RequestError::new("tool_choice", "none of the allowed tools is among `tools`"));
        }
        Ok(())
    }

    /// Removes a tool choice that means the default because there are no tools. Providers reject one without tools.
    pub fn drop_choice_without_tools(&mut self) {
        if self.tools.is_empty() && matches!(self.tool_choice, Some(ToolChoice::Auto | ToolChoice::None)) {
            self.tool_choice = None;
        }
    }

    /// Removes the built-in tools that the provider does not run, and a tool choice that only they could fulfil. The
    /// rest of the request makes sense without them; they are reported as dropped.
    pub fn drop_built_in_tools(&mut self, is_supported: impl Fn(&str, &Fields) -> bool) {
        let (mut is_dropping, mut is_chosen) = (false, false);
        for tool in std::mem::take(&mut self.tools) {
            match tool {
                Tool::BuiltIn { kind, fields } if !is_supported(&kind, &fields) => {
                    let name = fields.get("name").and_then(Value::as_str).unwrap_or(&kind);
                    is_chosen |= matches!(&self.tool_choice, Some(ToolChoice::Tool(chosen)) if chosen == name);
                    self.record_dropped(&format!("tools.{kind}"));
                    is_dropping = true;
                }
                tool => self.tools.push(tool),
            }
        }
        let is_forced = matches!(self.tool_choice, Some(ToolChoice::Any | ToolChoice::Tool(_)));
        if is_chosen || is_forced && is_dropping && self.tools.is_empty() {
            self.tool_choice = None;
            self.record_dropped("tool_choice");
        }
        self.drop_choice_without_tools();
    }

    /// Moves the stop sequences to the provider's request. Removes those that it rejects, and those beyond `max_count`.
    pub fn move_stop_sequences(
        &mut self,
        to: &mut Fields,
        name: &str,
        max_count: usize,
        is_accepted: impl Fn(&str) -> bool,
    ) {
        let stops = match self.take_param("stop") {
            Some(Value::Array(stops)) => stops,
            Some(stop) => vec![stop],
            None => return,
        };
        let count = stops.len();
        let accepted = stops.into_iter().filter(|stop| stop.as_str().is_none_or(&is_accepted));
        let accepted: Vec<_> = accepted.take(max_count).collect();
        self.record_dropped_if_set("stop", (accepted.len() < count).then_some(&()));
        if !accepted.is_empty() {
            to.insert(name.to_owned(), accepted.into());
        }
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
        let documents = self.fields.get("documents").and_then(Value::as_array).into_iter().flatten();
        let name =
            |(at, item): (usize, &Value)| item["id"].as_str().map_or_else(|| format!("doc:{at}"), ToOwned::to_owned);
        documents.enumerate().map(name).collect()
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

/// Returns true if a block belongs to one of Anthropic's server tools.
pub fn is_server_tool_block(kind: &str) -> bool {
    kind.ends_with("_tool_use") || kind.ends_with("_tool_result")
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
    /// Arguments as JSON.
    pub arguments: String,
    /// Opaque signature that the provider expects back with the tool call.
    pub signature: Option<String>,
    pub cache: Option<Value>,
}

impl ToolCall {
    /// Parses the arguments as an object; empty arguments are an empty object. Other arguments, such as truncated ones,
    /// become one field of an object and are reported as dropped. They are not an error, because the conversation
    /// continues after a failed call.
    pub fn parse_arguments(&self, dropped_params: &mut DroppedParams) -> Value {
        if self.arguments.trim().is_empty() {
            return Value::Object(Fields::new());
        }
        let parsed = serde_json::from_str(&self.arguments).ok().filter(Value::is_object);
        parsed.unwrap_or_else(|| {
            dropped_params.add("tool_calls.arguments");
            json!({"arguments": self.arguments})
        })
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

    /// Derives the MIME type of a file from its name, if the declared type is generic. Browsers and many clients
    /// declare `application/octet-stream`, or no type.
    #[must_use]
    pub fn with_type_of_file(self, name: Option<&str>) -> Self {
        let is_unknown = |mime: &str| matches!(mime, "" | "application/octet-stream" | "binary/octet-stream");
        match self {
            Self::Data { mime, data } if is_unknown(&mime) => {
                let media_type = name.and_then(mime_of_file).or_else(|| mime_of_base64(&data));
                // A file of an unknown type is not declared as another one; the provider decides about it.
                let mime_type = media_type.unwrap_or("application/octet-stream");
                // Some clients send plain text here instead of base64.
                if mime_type == "text/plain" && decode_base64_text(&data).is_none() {
                    return Self::Text(data);
                }
                Self::Data { mime: mime_type.to_owned(), data }
            }
            Self::Url { url, mime } if mime.as_deref().is_none_or(is_unknown) => {
                let path = url.split(['?', '#']).next().unwrap_or_default();
                let mime = mime_of_file(path).or_else(|| name.and_then(mime_of_file)).map(ToOwned::to_owned);
                Self::Url { url, mime }
            }
            other => other,
        }
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

/// Returns true if the kind of a built-in tool ends with a date, as the kinds of Anthropic's tools do. Kinds of other
/// tools have no date, or one with hyphens.
pub fn has_date_suffix(kind: &str) -> bool {
    let date = kind.rsplit('_').next().unwrap_or_default();
    date.len() == "20250305".len() && date.bytes().all(|byte| byte.is_ascii_digit())
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
