//! Token counting of JSON bodies: the text that a model reads in a request, or wrote in a response.

use std::{borrow::Cow, fmt};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Encoding, count_text};
use crate::json::{NUMBER_KEY, scan::for_each_field};

/// Tokens that a chat format adds to each message.
const TOKENS_PER_MESSAGE: usize = 3;
/// Tokens that a chat format adds for the start of the response.
const RESPONSE_START_TOKENS: usize = 3;

/// Estimates the tokens that a model reads in a request body; `None` if the body is not a JSON object. Images, audio
/// and files are not counted.
pub fn count_request_body(encoding: Encoding, body: &[u8]) -> Option<usize> {
    let mut tokens = 0;
    let read = for_each_field(body, |key, at| {
        let value = &body[at];
        tokens += match key {
            b"messages" => RESPONSE_START_TOKENS + count_json_text(encoding, value, TOKENS_PER_MESSAGE),
            b"system" | b"prompt" | b"input" | b"instructions" => count_json_text(encoding, value, 0),
            b"contents" | b"content" | b"requests" | b"systemInstruction" | b"system_instruction" => {
                JsonTextCounter::new(encoding, 0, is_skipped_contents_key).count_json(value)
            }
            b"generateContentRequest" | b"generate_content_request" => {
                count_request_body(encoding, value).unwrap_or_default()
            }
            b"tools" | b"functions" => count_text(encoding, &String::from_utf8_lossy(value)),
            _ => 0,
        };
        Ok(())
    });
    read.ok().map(|()| tokens)
}

/// Counts the tokens that a model wrote in a complete response; `None` if the body is not a JSON object.
pub fn count_response_body(encoding: Encoding, body: &[u8]) -> Option<usize> {
    let mut tokens = 0;
    let read = for_each_field(body, |key, at| {
        if matches!(key, b"choices" | b"content" | b"output") {
            tokens += JsonTextCounter::new(encoding, 0, is_skipped_response_key).count_json(&body[at]);
        }
        Ok(())
    });
    read.ok().map(|()| tokens)
}

fn count_json_text(encoding: Encoding, json: &[u8], per_item: usize) -> usize {
    JsonTextCounter::new(encoding, per_item, is_skipped_key).count_json(json)
}

/// Counts the tokens of the strings in a JSON value while it is parsed. Stores no text.
struct JsonTextCounter {
    encoding: Encoding,
    tokens_per_item: usize,
    is_skipped_key: fn(&str) -> bool,
    tokens: usize,
}

impl JsonTextCounter {
    fn new(encoding: Encoding, tokens_per_item: usize, is_skipped_key: fn(&str) -> bool) -> Self {
        Self { encoding, tokens_per_item, is_skipped_key, tokens: 0 }
    }

    fn count_json(mut self, json: &[u8]) -> usize {
        // If the JSON is invalid deep inside, the text before the error counts.
        let _ = self.deserialize(&mut serde_json::Deserializer::from_slice(json));
        self.tokens
    }
}

impl<'de> DeserializeSeed<'de> for &mut JsonTextCounter {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut JsonTextCounter {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.tokens += count_text(self.encoding, text);
        Ok(())
    }

    /// A number counts as one token, because an embeddings request may contain token ids.
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.tokens += 1;
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let per_item = std::mem::take(&mut self.tokens_per_item);
        while items.next_element_seed(&mut *self)?.is_some() {
            self.tokens += per_item;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(key) = members.next_key::<Cow<str>>()? {
            if key == NUMBER_KEY || (self.is_skipped_key)(&key) {
                members.next_value::<IgnoredAny>()?;
                continue;
            }
            self.tokens += usize::from(key == "name");
            members.next_value_seed(&mut *self)?;
        }
        Ok(())
    }
}

/// Returns true for fields of messages and their parts that no model reads as text.
fn is_skipped_key(key: &str) -> bool {
    matches!(
        key,
        "type"
            | "id"
            | "tool_call_id"
            | "tool_use_id"
            | "call_id"
            | "image_url"
            | "source"
            | "input_audio"
            | "file"
            | "file_data"
            | "file_id"
            | "cache_control"
            | "signature"
            | "encrypted_content"
    )
}

/// Returns true for fields of Gemini contents that no model reads as text.
fn is_skipped_contents_key(key: &str) -> bool {
    const METADATA_KEYS: [&str; 12] = [
        "role",
        "model",
        "taskType",
        "task_type",
        "mimeType",
        "mime_type",
        "inlineData",
        "inline_data",
        "fileData",
        "thoughtSignature",
        "thought_signature",
        "videoMetadata",
    ];
    is_skipped_key(key) || METADATA_KEYS.contains(&key)
}

/// Returns true for response fields that hold metadata instead of generated text.
fn is_skipped_response_key(key: &str) -> bool {
    const METADATA_KEYS: [&str; 11] = [
        "role",
        "index",
        "finish_reason",
        "stop_reason",
        "status",
        "logprobs",
        "annotations",
        "citations",
        "object",
        "audio",
        "content_filter_results",
    ];
    is_skipped_key(key) || METADATA_KEYS.contains(&key)
}
