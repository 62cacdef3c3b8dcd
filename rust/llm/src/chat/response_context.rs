//! What must be known of a request to answer it in its caller's dialect.

use std::sync::Arc;

use serde_json::Value;

use super::signatures::ScopedSignatures;
use crate::{chat::request::Fields, citations::CitationSet, translation::dropped::DroppedFields};

#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each says yes or no to something of its own")]
pub struct ResponseContext {
    pub provider: &'static str,
    /// As the caller named it, for answers that do not say.
    pub model: String,
    /// In seconds since 1970.
    pub created: u64,
    /// What names an answer to which its provider gave no name: the moment in milliseconds, and what is its own.
    pub id_suffix: String,
    /// Nothing but what the dialect itself has.
    pub is_strict: bool,
    /// Blocks of thinking are shown: to who is not strict, or asked for them in so many words.
    pub should_show_thinking: bool,
    /// Images are shown: likewise.
    pub should_show_images: bool,
    /// What a response repeats of its request.
    pub echoed_fields: Fields,
    /// What the caller calls the documents that it gave to be cited.
    pub document_names: Arc<[String]>,
    /// What of the answer the caller could not be told.
    pub dropped_fields: DroppedFields,
    /// Where signatures of calls are kept, if this model signs them.
    pub signatures: Option<ScopedSignatures>,
}

impl ResponseContext {
    /// The name of an answer that has none.
    pub fn generate_id(&self) -> String {
        format!("{}-{}", self.provider, self.id_suffix)
    }

    /// Notes what the caller cannot be told.
    pub fn record_dropped(&self, name: &str) {
        self.dropped_fields.add(name);
    }

    /// Likewise, but for what chat completions have a place for, which is told in any case.
    pub fn parse_choice_extra(&self, name: &str, json: &str) -> Option<Value> {
        if is_chat_choice_field(name, json) { serde_json::from_str(json).ok() } else { self.parse_extra(name, json) }
    }

    /// Notes what of citations the caller is not told, where the rest of them is not shown; gives what is new of that.
    pub fn record_dropped_citations(&self, cites: &CitationSet<'_>, is_told: bool) -> Vec<String> {
        cites.dropped_names(is_told).filter(|name| self.dropped_fields.add(name)).map(ToOwned::to_owned).collect()
    }

    /// What stands beside the words, for who is not strict; to others it is lost.
    pub fn parse_extra(&self, name: &str, json: &str) -> Option<Value> {
        if self.is_strict {
            self.dropped_fields.add(name);
            return None;
        }
        serde_json::from_str(json).ok()
    }
}

/// Whether chat completions themselves have what stands beside a choice. Some say how likely tokens were in a list.
pub fn is_chat_choice_field(name: &str, json: &str) -> bool {
    name == "logprobs" && json.starts_with('{')
}

/// Adds a field; lists that come in parts become one.
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
