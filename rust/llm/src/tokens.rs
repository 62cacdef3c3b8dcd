//! Counts tokens where a provider did not say; vocabularies come with the binary and are unpacked at first use.
//!
//! The first count in an encoding takes tens of milliseconds and long texts take their time: not for an event loop.

use std::{borrow::Cow, fmt, ops::Range};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::dialect::scan::fields;

/// A vocabulary and its way of cutting text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Encoding(&'static str);

impl Encoding {
    pub const O200K_BASE: Self = Self("o200k_base");
    pub const CL100K_BASE: Self = Self("cl100k_base");
    pub const P50K_BASE: Self = Self("p50k_base");
    pub const R50K_BASE: Self = Self("r50k_base");

    /// The encoding of this name, such as `cl100k_base`, if its vocabulary is on board.
    pub fn named(name: &str) -> Option<Self> {
        tiktoken::list_encodings().iter().find(|known| **known == name).map(|known| Self(known))
    }

    pub fn name(self) -> &'static str {
        self.0
    }
}

/// The encoding of a model; `o200k_base` where its own is not known or not public.
pub fn encoding_for(model: &str) -> Encoding {
    let name = model.rsplit('/').next().unwrap_or(model);
    tiktoken::model_to_encoding(name).and_then(Encoding::named).unwrap_or(Encoding::O200K_BASE)
}

/// How many tokens a text has; marks such as `<|endoftext|>` are text like any other.
/// Exact but for runs of over a thousand letters, spaces or symbols without a break, which are counted in slices.
pub fn count(encoding: Encoding, text: &str) -> usize {
    let Some(vocabulary) = tiktoken::get_encoding(encoding.0) else {
        return text.len().div_ceil(4);
    };
    let mut tokens = 0;
    let mut counted = 0;
    let mut seen = 0;
    while let Some((run, width)) = next_run(text, seen) {
        seen = run.end;
        let mut cut = text.floor_char_boundary(run.start + width);
        while cut < run.end {
            tokens += vocabulary.count(&text[counted..cut]);
            counted = cut;
            cut = text.floor_char_boundary(cut + width);
        }
    }
    tokens + vocabulary.count(&text[counted..])
}

/// Merging a piece costs more than its length is worth, and nobody writes words as long as this.
const LONG_RUN: usize = 1024;

/// A run that long cannot lie between two places that are this far apart.
const STRIDE: usize = LONG_RUN / 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Digit,
    Space,
    Symbol,
}

impl Class {
    fn of(character: char) -> Self {
        if character.is_alphabetic() {
            Self::Letter
        } else if character.is_numeric() {
            Self::Digit
        } else if character.is_whitespace() {
            Self::Space
        } else {
            Self::Symbol
        }
    }

    /// Into slices of how many bytes a run is cut: of those that the vocabularies know, and short enough to be cheap.
    fn width(self) -> usize {
        match self {
            Self::Letter | Self::Symbol => 64,
            Self::Digit => 48,
            Self::Space => 128,
        }
    }
}

/// The next run of one class that is too long, and the width to cut it in.
fn next_run(text: &str, from: usize) -> Option<(Range<usize>, usize)> {
    let mut probe = from + STRIDE;
    while probe < text.len() {
        let at = text.floor_char_boundary(probe);
        let class = Class::of(text[at..].chars().next()?);
        let length = |same: &mut dyn Iterator<Item = char>| -> usize {
            same.take_while(|other| Class::of(*other) == class).map(char::len_utf8).sum()
        };
        let start = at - length(&mut text[from..at].chars().rev());
        let end = at + length(&mut text[at..].chars());
        if end - start >= LONG_RUN {
            return Some((start..end, class.width()));
        }
        probe = end.max(probe) + STRIDE;
    }
    None
}

/// What a chat format adds to each message, and to the answer it waits for.
const PER_MESSAGE: usize = 3;
const FOR_ANSWER: usize = 3;

/// Roughly how many tokens a request body has for a model to read; `None` if it is not a JSON object.
/// Images, sounds and files count nothing.
pub fn count_messages(encoding: Encoding, body: &[u8]) -> Option<usize> {
    let mut tokens = 0;
    let read = fields(body, |key, at| {
        let value = &body[at];
        tokens += match key {
            b"messages" => FOR_ANSWER + tally(encoding, value, PER_MESSAGE),
            b"system" | b"prompt" | b"input" | b"instructions" => tally(encoding, value, 0),
            b"tools" | b"functions" => count(encoding, &String::from_utf8_lossy(value)),
            _ => 0,
        };
        Ok(())
    });
    read.ok().map(|()| tokens)
}

fn tally(encoding: Encoding, json: &[u8], per_item: usize) -> usize {
    let mut tally = Tally { encoding, per_item, tokens: 0 };
    // Of a value that is broken deep inside, what stands before the fault counts.
    let _ = tally.deserialize(&mut serde_json::Deserializer::from_slice(json));
    tally.tokens
}

/// Adds up the texts of a JSON value as they are read; keeps nothing.
struct Tally {
    encoding: Encoding,
    per_item: usize,
    tokens: usize,
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
            if is_silent(&key) {
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
