//! Reads what a stream cost from the bytes that pass by, whichever way they were cut.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::{choices::Choices, deltas::Deltas, sse};
use crate::{
    api_format::ApiFormat,
    json::scan::{for_each_field, unescape},
    operation::Operation,
    usage::{Counts, Usage, value_start},
};

/// An event that does not end within this many bytes keeps its second half only: usage stands at the end.
const MAX_CARRY: usize = 128 * 1024;

/// So many events at the start of a stream are read for the model's name.
const MODEL_LOOKS: u8 = 4;

static USAGE: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"usage\""));
static ERROR: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"error\""));
static DONE: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"[DONE]"));
static RESPONSE: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"response."));
static USAGE_METADATA: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"usageMetadata\""));
static FINISH_REASON: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"finishReason\""));
static BLOCKED: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"blockReason\""));
static STOP: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"message_stop\""));

/// The types of the events with which images, speech and transcripts end.
static MEDIA_ENDS: LazyLock<[Finder; 4]> = LazyLock::new(|| {
    [
        b"\"image_generation.completed\"".as_slice(),
        b"\"image_edit.completed\"",
        b"\"speech.audio.done\"",
        b"\"transcript.text.done\"",
    ]
    .map(Finder::new)
});

/// Reads a stream that passes by, in chunks of any size; ordinary deltas are looked at, not parsed.
#[derive(Debug)]
pub struct Meter {
    dialect: ApiFormat,
    /// The beginning of an event whose end has not come yet.
    carry: Vec<u8>,
    counts: Counts,
    /// Only where somebody will count, and until the provider has.
    deltas: Option<Deltas>,
    model: Option<String>,
    looks: u8,
    media: Media,
    /// The event whose end has not come is the last one, and the place that says so may be gone.
    ending: bool,
    choices: Choices,
    terminated: bool,
    error_event: bool,
    begun: Option<String>,
}

/// Whether a stream is one of images, of speech, or of a transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Media {
    None,
    Some,
}

/// What a stream turned out to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metered {
    pub usage: Option<Usage>,
    /// The event that ends a good stream was there.
    pub terminated: bool,
    /// Every choice said why it ended. Some providers send no event after that.
    pub finished: bool,
    /// The provider said within the stream that it failed.
    pub error_event: bool,
    /// The model as the provider names it.
    pub model: Option<String>,
    /// What there is to count where usage is none.
    pub deltas: Option<Deltas>,
    /// The id of a response that goes on in the background, wherever its stream ends.
    pub begun: Option<String>,
}

impl Meter {
    pub fn new(dialect: ApiFormat) -> Self {
        Self {
            dialect,
            carry: Vec::new(),
            counts: Counts::default(),
            deltas: None,
            model: None,
            looks: 0,
            media: Media::None,
            ending: false,
            choices: Choices::default(),
            terminated: false,
            error_event: false,
            begun: None,
        }
    }

    /// One that knows the ends of this operation's streams.
    pub fn of(dialect: ApiFormat, operation: Operation) -> Self {
        let media = if operation.ends_by_type() { Media::Some } else { Media::None };
        Self { media, ..Self::new(dialect) }
    }

    /// One that keeps the text of the answer until the provider says what it cost.
    pub fn counting(dialect: ApiFormat, operation: Operation) -> Self {
        Self { deltas: Some(Deltas::of(operation)), ..Self::of(dialect, operation) }
    }

    /// Takes the next bytes of the stream.
    pub fn feed(&mut self, chunk: &[u8]) {
        if self.carry.is_empty() && sse::ends_event(chunk) {
            return self.look(chunk);
        }
        let seam = self.carry.len().saturating_sub(3);
        self.carry.extend_from_slice(chunk);
        if let Some(end) = sse::last_end(&self.carry[seam..]) {
            let rest = self.carry.split_off(seam + end);
            let whole = std::mem::replace(&mut self.carry, rest);
            self.terminated |= self.ending;
            self.look(&whole);
        }
        if self.carry.len() > MAX_CARRY {
            let is_of_response = || self.dialect == ApiFormat::OpenAi && ends_response(&self.carry);
            self.ending |= self.ends_media(&self.carry) || is_of_response();
            let cut = self.carry.len() - MAX_CARRY / 2;
            self.carry.splice(..cut, *b"data:");
        }
    }

    /// Whether the provider has said what it cost.
    pub fn has_usage(&self) -> bool {
        self.counts.is_seen()
    }

    /// How many bytes have come of an event whose end has not; of a very long one, how many are kept.
    pub fn incomplete(&self) -> usize {
        self.carry.len()
    }

    /// Whether the event that ends a good stream has passed.
    pub fn terminated(&self) -> bool {
        self.terminated
    }

    /// Whether a stream that ends here broke off: with an error on its way, or well but too early.
    pub fn is_cut(&self, is_error: bool, ends_with_event: bool) -> bool {
        let is_told =
            self.terminated || self.error_event || (self.choices.have_ended() && !is_error && self.carry.is_empty());
        !is_told && (is_error || ends_with_event)
    }

    /// The stream is over. An event without its blank line counts too: some providers end so.
    pub fn finish(mut self) -> Metered {
        let rest = std::mem::take(&mut self.carry);
        let is_whole = rest.is_empty();
        self.look(&rest);
        Metered {
            usage: self.counts.settle(self.dialect),
            terminated: self.terminated,
            finished: self.choices.have_ended() && is_whole,
            error_event: self.error_event,
            model: self.model,
            deltas: self.deltas,
            begun: self.begun,
        }
    }

    fn look(&mut self, events: &[u8]) {
        if let Some(deltas) = &mut self.deltas {
            deltas.take(events);
        }
        if self.dialect == ApiFormat::OpenAi {
            self.choices.look(events);
        }
        if !self.wants_model() && !self.notable(events) {
            return;
        }
        for event in sse::split(events) {
            if let Some(data) = sse::data(event)
                && (self.notable(&data) || self.wants_model())
            {
                self.read(&data);
            }
        }
        if self.counts.is_seen() {
            self.deltas = None;
        }
    }

    fn wants_model(&self) -> bool {
        self.model.is_none() && self.looks < MODEL_LOOKS
    }

    /// Whether there may be anything but deltas. Quotes within JSON strings are escaped, so keys are not found in text.
    fn notable(&self, bytes: &[u8]) -> bool {
        let is_terminal = match self.dialect {
            ApiFormat::OpenAi => DONE.find(bytes).is_some() || tells_of_response(bytes) || self.ends_media(bytes),
            ApiFormat::Anthropic => STOP.find(bytes).is_some(),
            ApiFormat::Gemini => ends_content(bytes) || USAGE_METADATA.find(bytes).is_some(),
            ApiFormat::Bedrock => false,
        };
        is_terminal
            || USAGE.find_iter(bytes).any(|at| matches!(value_start(bytes, at + 7), Some((_, b'{'))))
            || ERROR.find_iter(bytes).any(|at| !matches!(value_start(bytes, at + 7), Some((_, b'n'))))
    }

    /// Whether there is one of the types with which a stream of images, of speech or of a transcript ends.
    fn ends_media(&self, bytes: &[u8]) -> bool {
        self.media == Media::Some && MEDIA_ENDS.iter().any(|end| end.find(bytes).is_some())
    }

    fn read(&mut self, data: &[u8]) {
        if data.trim_ascii() == b"[DONE]" {
            self.terminated = true;
            return;
        }
        self.looks = self.looks.saturating_add(1);
        let read = for_each_field(data, |key, at| {
            self.take(key, &data[at]);
            Ok(())
        });
        if read.is_err() {
            self.counts.serve_before_usage(data);
            self.counts.read_end(data);
            self.terminated |= self.dialect == ApiFormat::Gemini && ends_content(data);
        }
    }

    fn take(&mut self, key: &[u8], value: &[u8]) {
        match key {
            b"usage" | b"usageMetadata" => self.counts.read(value),
            b"candidates" => {
                self.terminated |= ends_content(value);
                self.counts.read_candidates(value);
            }
            b"promptFeedback" => self.terminated |= ends_content(value),
            b"model" | b"modelVersion" if self.model.is_none() => {
                self.model = unescape(value).filter(|model| !model.is_empty());
                self.counts.answers_as(value);
            }
            b"output" => self.counts.read_items(value),
            b"item" => self.counts.read_item(value),
            b"error" => self.error_event |= value != b"null",
            b"type" => self.take_kind(value),
            // Where Anthropic, OpenAI's responses, Groq and Cohere put the same fields one level down.
            b"message" | b"response" | b"x_groq" | b"delta" => {
                let (mut id, mut is_background) = (None, false);
                let _ = for_each_field(value, |key, at| {
                    match key {
                        b"id" => id = Some(&value[at.clone()]),
                        b"background" => is_background = &value[at.clone()] == b"true",
                        _ => (),
                    }
                    if matches!(key, b"usage" | b"model" | b"error" | b"service_tier" | b"output") {
                        self.take(key, &value[at]);
                    }
                    Ok(())
                });
                if is_background {
                    self.begun = id.and_then(unescape);
                }
            }
            b"service_tier" => self.counts.serve(key, value),
            _ => {}
        }
    }

    fn take_kind(&mut self, literal: &[u8]) {
        match literal {
            b"\"error\"" => self.error_event = true,
            b"\"message_stop\"" | b"\"message-end\"" => self.terminated = true,
            _ if ends_response(literal) || self.ends_media(literal) => self.terminated = true,
            _ => {}
        }
    }
}

/// Whether there is a reason why content ended, or was refused.
fn ends_content(bytes: &[u8]) -> bool {
    let is_said = |finder: &Finder, length: usize| {
        finder.find_iter(bytes).any(|at| matches!(value_start(bytes, at + length), Some((_, b'"'))))
    };
    is_said(&FINISH_REASON, 14) || is_said(&BLOCKED, 13)
}

/// The types with which a stream of responses ends, behind their first word.
const ENDS: [&[u8]; 4] = [b"completed\"", b"incomplete\"", b"failed\"", b"cancelled\""];
/// And of the events that tell of what it consists.
const ITEM: &[u8] = b"output_item.done\"";

/// Whether there is one of the types with which a stream of responses ends.
fn ends_response(bytes: &[u8]) -> bool {
    is_of_response(bytes, |rest| ENDS.iter().any(|end| rest.starts_with(end)))
}

/// Likewise, or one that tells an item.
fn tells_of_response(bytes: &[u8]) -> bool {
    is_of_response(bytes, |rest| rest.starts_with(ITEM) || ENDS.iter().any(|end| rest.starts_with(end)))
}

fn is_of_response(bytes: &[u8], is_it: impl Fn(&[u8]) -> bool) -> bool {
    RESPONSE.find_iter(bytes).any(|at| is_it(&bytes[at + RESPONSE.needle().len()..]))
}
