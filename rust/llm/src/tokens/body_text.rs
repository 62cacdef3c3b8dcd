//! Counts the text in bodies: of a request what a model reads, of an answer what it wrote.

use std::{borrow::Cow, fmt};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Encoding, count};
use crate::json::scan::for_each_field;

/// What a chat format adds to each message, and to the answer it waits for.
const PER_MESSAGE: usize = 3;
const FOR_ANSWER: usize = 3;

/// Roughly how many tokens a request body has for a model to read; `None` if it is not a JSON object.
/// Images, sounds and files count nothing.
pub fn count_messages(encoding: Encoding, body: &[u8]) -> Option<usize> {
    let mut tokens = 0;
    let read = for_each_field(body, |key, at| {
        let value = &body[at];
        tokens += match key {
            b"messages" => FOR_ANSWER + tally(encoding, value, PER_MESSAGE),
            b"system" | b"prompt" | b"input" | b"instructions" => tally(encoding, value, 0),
            b"contents" | b"content" | b"requests" | b"systemInstruction" | b"system_instruction" => {
                Tally::of(encoding, 0, is_silent_in_contents).read(value)
            }
            b"generateContentRequest" | b"generate_content_request" => {
                count_messages(encoding, value).unwrap_or_default()
            }
            b"tools" | b"functions" => count(encoding, &String::from_utf8_lossy(value)),
            _ => 0,
        };
        Ok(())
    });
    read.ok().map(|()| tokens)
}

/// How many tokens a model wrote into a whole answer; `None` if it is not a JSON object.
pub fn count_answer(encoding: Encoding, body: &[u8]) -> Option<usize> {
    let mut tokens = 0;
    let read = for_each_field(body, |key, at| {
        if matches!(key, b"choices" | b"content" | b"output") {
            tokens += Tally::of(encoding, 0, is_silent_in_answers).read(&body[at]);
        }
        Ok(())
    });
    read.ok().map(|()| tokens)
}

fn tally(encoding: Encoding, json: &[u8], per_item: usize) -> usize {
    Tally::of(encoding, per_item, is_silent).read(json)
}

/// Adds up the texts of a JSON value as they are read; keeps nothing.
struct Tally {
    encoding: Encoding,
    per_item: usize,
    is_silent: fn(&str) -> bool,
    tokens: usize,
}

impl Tally {
    fn of(encoding: Encoding, per_item: usize, is_silent: fn(&str) -> bool) -> Self {
        Self { encoding, per_item, is_silent, tokens: 0 }
    }

    fn read(mut self, json: &[u8]) -> usize {
        // Of a value that is broken deep inside, what stands before the fault counts.
        let _ = self.deserialize(&mut serde_json::Deserializer::from_slice(json));
        self.tokens
    }
}

impl<'de> DeserializeSeed<'de> for &mut Tally {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Tally {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.tokens += count(self.encoding, text);
        Ok(())
    }

    /// A number is a token already, where embeddings are asked for tokens.
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.tokens += 1;
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let per_item = std::mem::take(&mut self.per_item);
        while items.next_element_seed(&mut *self)?.is_some() {
            self.tokens += per_item;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(key) = members.next_key::<Cow<str>>()? {
            if (self.is_silent)(&key) {
                members.next_value::<IgnoredAny>()?;
                continue;
            }
            self.tokens += usize::from(key == "name");
            members.next_value_seed(&mut *self)?;
        }
        Ok(())
    }
}

/// Fields of messages and their parts that no model reads as text.
fn is_silent(key: &str) -> bool {
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

/// Fields of contents that no model reads.
fn is_silent_in_contents(key: &str) -> bool {
    const ABOUT: [&str; 12] = [
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
    is_silent(key) || ABOUT.contains(&key)
}

/// Fields of answers that say how something was written, not what.
fn is_silent_in_answers(key: &str) -> bool {
    const ABOUT: [&str; 11] = [
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
    is_silent(key) || ABOUT.contains(&key)
}
