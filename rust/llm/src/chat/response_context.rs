//! Response context: the properties of a request that are needed to translate its response to the client format.

use std::sync::Arc;

use serde_json::Value;

use super::{client_tools::ClientTools, tool_call_signatures::ScopedSignatures, tool_names::RenamedTool};
use crate::{citations::CitationSet, fields::Fields, reports::ResponseReport};

#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each flag is independent")]
pub struct ResponseContext {
    pub provider: &'static str,
    /// Model name that the client sent, for responses that name no model.
    pub model: String,
    /// Unix time in seconds.
    pub created: u64,
    /// Suffix of generated response ids: the time in milliseconds, and a part that is unique to the request.
    pub id_suffix: String,
    /// True if the response may contain only fields that the client's API defines.
    pub is_strict: bool,
    /// True if thinking blocks are returned: when images are returned, or when the client explicitly requests
    /// thinking.
    pub should_show_thinking: bool,
    /// True if images are returned: if not strict, or if the client explicitly requests them.
    pub should_show_images: bool,
    /// Request fields that the response repeats.
    pub echoed_fields: Fields,
    /// Client's names for the documents that it sent for citation.
    pub document_names: Arc<[String]>,
    /// Response fields that the client format cannot express.
    pub report: ResponseReport,
    /// Tools whose names the provider would reject, with the names that were sent instead.
    pub renamed_tools: Arc<[RenamedTool]>,
    /// Tools of the client that the provider gets as plain functions.
    pub client_tools: Arc<ClientTools>,
    /// Store for tool call signatures, if this model signs its tool calls.
    pub tool_call_signatures: Option<ScopedSignatures>,
}

impl ResponseContext {
    /// Parses the arguments of a tool call as an object. Records arguments that are not an object as dropped: the
    /// provider's token limit cut them off, or the model wrote another value.
    pub fn parse_arguments(&self, arguments: &str) -> Fields {
        let parsed = serde_json::from_str(arguments);
        if parsed.is_err() && !arguments.trim().is_empty() {
            self.record_dropped("arguments");
        }
        parsed.unwrap_or_default()
    }

    /// Returns an id for a response without an id.
    pub fn generate_id(&self) -> String {
        format!("{}-{}", self.provider, self.id_suffix)
    }

    /// Records a response field that the client format cannot express.
    pub fn record_dropped(&self, name: &str) {
        self.report.add(name);
    }

    /// Parses an extra field of a choice. Fields that chat completions define are always returned; others only if the
    /// client is not strict.
    pub fn parse_choice_extra(&self, name: &str, json: &str) -> Option<Value> {
        if is_chat_choice_field(name, json) { serde_json::from_str(json).ok() } else { self.parse_extra(name, json) }
    }

    /// Records the citation fields that the client does not receive. Returns the names that are recorded for the first
    /// time.
    pub fn record_dropped_citations(&self, cites: &CitationSet<'_>, is_translated: bool) -> Vec<String> {
        cites.dropped_names(is_translated).filter(|name| self.report.add(name)).map(ToOwned::to_owned).collect()
    }

    /// Parses an extra field if the client is not strict; otherwise records it as dropped.
    pub fn parse_extra(&self, name: &str, json: &str) -> Option<Value> {
        if self.is_strict {
            self.report.add(name);
            return None;
        }
        serde_json::from_str(json).ok()
    }
}

/// Returns true if chat completions define this field of a choice. Some providers send `logprobs` as a list, which does
/// not conform.
pub fn is_chat_choice_field(name: &str, json: &str) -> bool {
    name == "logprobs" && json.starts_with('{')
}

/// Adds a field; a list is appended to an existing list.
pub fn merge_field(fields: &mut Fields, name: &str, value: Value) {
    match (fields.get_mut(name), value) {
        (Some(Value::Array(items)), Value::Array(more)) => items.extend(more),
        (_, value) => drop(fields.insert(name.to_owned(), value)),
    }
}

/// Moves fields into an object.
pub fn move_fields(object: &mut Value, fields: &mut Fields) {
    if let Some(object) = object.as_object_mut() {
        object.extend(std::mem::take(fields));
    }
}
