//! Usage meter for SSE streams. Reads the usage that the provider reports, however the bytes are split into chunks.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::{choices::ChoiceTracker, deltas::DeltaText, opening::is_without_content, sse};
use crate::{
    api_format::format::ApiFormat,
    error_response,
    json::{keys::value_start, scan::for_each_field, string_literal::unescape},
    operation::Operation,
    usage::{Usage, UsageCounts},
};

/// Maximum number of buffered bytes of an incomplete event. Of a longer event, only the second half stays buffered,
/// because usage is at the end of an event.
const MAX_CARRY_BYTES: usize = 128 * 1024;

/// Number of events at the start of a stream that are searched for the model name.
const MAX_MODEL_EVENTS: u8 = 4;

static USAGE_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"usage\""));
static ERROR_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"error\""));
static ERROR_EVENT_NAMES: LazyLock<[Finder; 2]> =
    LazyLock::new(|| [b"event: error".as_slice(), b"event:error"].map(Finder::new));
static DONE_MARKER: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"[DONE]"));
static RESPONSE_TYPE_PREFIX: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"response."));
static USAGE_METADATA_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"usageMetadata\""));
static FINISH_REASON_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"finishReason\""));
static BLOCK_REASON_KEY: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"blockReason\""));
static MESSAGE_STOP_TYPE: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"message_stop\""));

/// Types of the events that end image, speech and transcript streams.
static MEDIA_END_TYPES: LazyLock<[Finder; 4]> = LazyLock::new(|| {
    [
        b"\"image_generation.completed\"".as_slice(),
        b"\"image_edit.completed\"",
        b"\"speech.audio.done\"",
        b"\"transcript.text.done\"",
    ]
    .map(Finder::new)
});

/// Reads usage, model and end markers from a stream that passes through, in chunks of any size. Ordinary deltas are
/// searched for keys but not parsed.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each flag is independent")]
pub struct SseMeter {
    api_format: ApiFormat,
    /// Start of an event whose end has not arrived yet.
    carry: Vec<u8>,
    counts: UsageCounts,
    /// Text of the deltas. Set only if tokens may have to be counted locally; dropped once the provider reports usage.
    deltas: Option<DeltaText>,
    model: Option<String>,
    searched_events: u8,
    stream_kind: StreamKind,
    /// True if the pending event is the last one of the stream. Remembered because trimming a long event may drop its
    /// type.
    is_last_event_pending: bool,
    choices: ChoiceTracker,
    /// True after the first event with content or a finish reason.
    has_content: bool,
    /// True if the final event arrived before any content.
    has_empty_end: bool,
    is_terminated: bool,
    has_error_event: bool,
    background_response_id: Option<String>,
}

/// Kind of a stream: text, or media (images, speech or a transcript).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamKind {
    Text,
    Media,
}

/// Summary of a stream that a meter has read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamSummary {
    pub usage: Option<Usage>,
    /// True if the event that ends a complete stream arrived.
    pub is_terminated: bool,
    /// True if every choice reported its finish reason. Some providers send no event after that.
    pub has_finish_reasons: bool,
    /// True if the provider reported a failure within the stream.
    pub has_error_event: bool,
    /// Model name that the provider reported.
    pub model: Option<String>,
    /// Text to count tokens from if `usage` is `None`.
    pub deltas: Option<DeltaText>,
    /// Id of a response that continues in the background after this stream ends.
    pub background_response_id: Option<String>,
}

impl SseMeter {
    pub fn new(api_format: ApiFormat) -> Self {
        Self {
            api_format,
            carry: Vec::new(),
            counts: UsageCounts::default(),
            deltas: None,
            model: None,
            searched_events: 0,
            stream_kind: StreamKind::Text,
            is_last_event_pending: false,
            choices: ChoiceTracker::default(),
            has_content: false,
            has_empty_end: false,
            is_terminated: false,
            has_error_event: false,
            background_response_id: None,
        }
    }

    /// Creates a meter that knows the end events of this operation's streams.
    pub fn for_operation(api_format: ApiFormat, operation: Operation) -> Self {
        let stream_kind = if operation.has_typed_terminal_event() { StreamKind::Media } else { StreamKind::Text };
        Self { stream_kind, ..Self::new(api_format) }
    }

    /// Creates a meter that buffers the response text until the provider reports usage.
    pub fn with_deltas(api_format: ApiFormat, operation: Operation) -> Self {
        Self { deltas: Some(DeltaText::for_operation(operation)), ..Self::for_operation(api_format, operation) }
    }

    /// Reads the next bytes of the stream.
    pub fn feed(&mut self, chunk: &[u8]) {
        if self.carry.is_empty() && sse::ends_with_blank_line(chunk) {
            return self.process_events(chunk);
        }
        let seam = self.carry.len().saturating_sub(3);
        self.carry.extend_from_slice(chunk);
        if let Some(end) = sse::last_event_end(&self.carry[seam..]) {
            let rest = self.carry.split_off(seam + end);
            let events = std::mem::replace(&mut self.carry, rest);
            self.is_terminated |= self.is_last_event_pending;
            self.process_events(&events);
        }
        if self.carry.len() > MAX_CARRY_BYTES {
            let is_of_response = || self.api_format == ApiFormat::OpenAi && has_response_end(&self.carry);
            self.is_last_event_pending |= self.has_media_end(&self.carry) || is_of_response();
            let cut = self.carry.len() - MAX_CARRY_BYTES / 2;
            self.carry.splice(..cut, *b"data:");
        }
    }

    /// Returns true if the provider has reported usage.
    pub fn has_usage(&self) -> bool {
        self.counts.has_counts()
    }

    /// Returns the number of buffered bytes of an event that has not ended. Of a very long event, only part is
    /// buffered.
    pub fn incomplete_bytes(&self) -> usize {
        self.carry.len()
    }

    /// Returns true if an event with content or a finish reason has passed.
    pub fn has_content(&self) -> bool {
        self.has_content
    }

    /// Returns true if the stream ended without content and without a finish reason. That is a failure of the provider.
    pub fn has_empty_end(&self) -> bool {
        self.has_empty_end
    }

    /// Returns true if the provider reported a failure within the stream.
    pub fn has_error_event(&self) -> bool {
        self.has_error_event
    }

    /// Returns true if the event that ends a complete stream has passed.
    pub fn is_terminated(&self) -> bool {
        self.is_terminated
    }

    /// Returns true if a stream that ends here is truncated: by a connection error, or by a clean end that came too
    /// early.
    pub fn is_truncated(&self, is_error: bool, ends_with_event: bool) -> bool {
        let is_reported = self.is_terminated
            || self.has_error_event
            || (self.choices.have_all_finished() && !is_error && self.carry.is_empty());
        !is_reported && (is_error || ends_with_event)
    }

    /// Ends the stream and returns its summary. A last event without its blank line counts, because some providers omit
    /// that line.
    pub fn finish(mut self) -> StreamSummary {
        let rest = std::mem::take(&mut self.carry);
        let is_whole = rest.is_empty();
        self.process_events(&rest);
        StreamSummary {
            usage: self.counts.to_usage(self.api_format),
            is_terminated: self.is_terminated,
            has_finish_reasons: self.choices.have_all_finished() && is_whole,
            has_error_event: self.has_error_event,
            model: self.model,
            deltas: self.deltas,
            background_response_id: self.background_response_id,
        }
    }

    fn process_events(&mut self, events: &[u8]) {
        if !self.has_content {
            let has_content = |event| sse::event_data(event).is_some_and(|data| !is_without_content(&data));
            self.has_content = sse::split_events(events).any(has_content);
        }
        if let Some(deltas) = &mut self.deltas {
            deltas.read_events(events);
        }
        if self.api_format == ApiFormat::OpenAi {
            self.choices.read_events(events);
        }
        let has_error_name = ERROR_EVENT_NAMES.iter().any(|name| name.find(events).is_some());
        if !has_error_name && !self.needs_model() && !self.may_have_metadata(events) {
            return;
        }
        for event in sse::split_events(events) {
            self.has_error_event |= has_error_name && sse::event_name(event) == Some(b"error");
            if let Some(data) = sse::event_data(event)
                && (self.may_have_metadata(&data) || self.needs_model())
            {
                self.read_event(&data);
            }
        }
        if self.counts.has_counts() {
            self.deltas = None;
        }
    }

    /// Records the final event. A text stream is complete only if it had content; a media stream always counts as
    /// complete.
    fn record_end(&mut self) {
        let is_complete = self.has_content || self.stream_kind == StreamKind::Media;
        self.is_terminated |= is_complete;
        self.has_empty_end |= !is_complete;
    }

    fn needs_model(&self) -> bool {
        self.model.is_none() && self.searched_events < MAX_MODEL_EVENTS
    }

    /// Returns true if the bytes may contain more than deltas. Quotes inside JSON strings are escaped, so text cannot
    /// match a key.
    fn may_have_metadata(&self, bytes: &[u8]) -> bool {
        let is_terminal = match self.api_format {
            ApiFormat::OpenAi => {
                DONE_MARKER.find(bytes).is_some() || has_response_end_or_item(bytes) || self.has_media_end(bytes)
            }
            ApiFormat::Anthropic => MESSAGE_STOP_TYPE.find(bytes).is_some(),
            ApiFormat::Gemini => has_finish_or_block_reason(bytes) || USAGE_METADATA_KEY.find(bytes).is_some(),
            ApiFormat::Bedrock => false,
        };
        is_terminal
            || USAGE_KEY.find_iter(bytes).any(|at| matches!(value_start(bytes, at + 7), Some((_, b'{'))))
            || ERROR_KEY.find_iter(bytes).any(|at| !matches!(value_start(bytes, at + 7), Some((_, b'n'))))
    }

    /// Returns true if the bytes contain the type of an event that ends an image, speech or transcript stream.
    fn has_media_end(&self, bytes: &[u8]) -> bool {
        self.stream_kind == StreamKind::Media && MEDIA_END_TYPES.iter().any(|end| end.find(bytes).is_some())
    }

    fn read_event(&mut self, data: &[u8]) {
        if data.trim_ascii() == b"[DONE]" {
            self.record_end();
            return;
        }
        self.searched_events = self.searched_events.saturating_add(1);
        let read = for_each_field(data, |key, at| {
            self.read_field(key, &data[at]);
            Ok(())
        });
        self.has_error_event |= error_response::is_error_event(data);
        if read.is_err() {
            self.counts.read_service_tier_before_usage(data);
            self.counts.read_event_tail(data);
            self.is_terminated |= self.api_format == ApiFormat::Gemini && has_finish_or_block_reason(data);
        }
    }

    fn read_field(&mut self, key: &[u8], value: &[u8]) {
        match key {
            b"usage" | b"usageMetadata" => self.counts.read_usage(value),
            b"candidates" => {
                self.is_terminated |= has_finish_or_block_reason(value);
                self.counts.read_candidates(value);
            }
            b"promptFeedback" => self.is_terminated |= has_finish_or_block_reason(value),
            b"model" | b"modelVersion" if self.model.is_none() => {
                self.model = unescape(value).filter(|model| !model.is_empty());
                self.counts.set_model(value);
            }
            b"output" => self.counts.read_output_items(value),
            b"item" => self.counts.read_output_item(value),
            // The `error` of a failed response may be an empty object.
            b"error" => self.has_error_event |= value == b"{}" || !error_response::is_empty_value(value),
            b"type" => self.read_type(value),
            // Anthropic, OpenAI's responses, Groq and Cohere nest the same fields one level deeper here.
            b"message" | b"response" | b"x_groq" | b"delta" => {
                let (mut id, mut is_background) = (None, false);
                let _ = for_each_field(value, |key, at| {
                    match key {
                        b"id" => id = Some(&value[at.clone()]),
                        b"background" => is_background = &value[at.clone()] == b"true",
                        _ => (),
                    }
                    if matches!(key, b"usage" | b"model" | b"error" | b"service_tier" | b"output") {
                        self.read_field(key, &value[at]);
                    }
                    Ok(())
                });
                if is_background {
                    self.background_response_id = id.and_then(unescape);
                }
            }
            b"service_tier" => self.counts.read_service_tier(key, value),
            _ => {}
        }
    }

    fn read_type(&mut self, literal: &[u8]) {
        match literal {
            b"\"error\"" => self.has_error_event = true,
            b"\"message_stop\"" | b"\"message-end\"" => self.record_end(),
            _ if has_response_end(literal) || self.has_media_end(literal) => self.is_terminated = true,
            _ => {}
        }
    }
}

/// Returns true if the bytes contain a finish reason or a block reason.
fn has_finish_or_block_reason(bytes: &[u8]) -> bool {
    let is_set = |finder: &Finder, length: usize| {
        finder.find_iter(bytes).any(|at| matches!(value_start(bytes, at + length), Some((_, b'"'))))
    };
    is_set(&FINISH_REASON_KEY, 14) || is_set(&BLOCK_REASON_KEY, 13)
}

/// Types of the events that end a stream of the responses API, without the `response.` prefix.
const END_TYPE_SUFFIXES: [&[u8]; 4] = [b"completed\"", b"incomplete\"", b"failed\"", b"cancelled\""];
/// Type of the event that completes an output item, without the `response.` prefix.
const ITEM_DONE_SUFFIX: &[u8] = b"output_item.done\"";

/// Returns true if the bytes contain the type of an event that ends a stream of the responses API.
fn has_response_end(bytes: &[u8]) -> bool {
    has_response_type(bytes, |rest| END_TYPE_SUFFIXES.iter().any(|end| rest.starts_with(end)))
}

/// Returns true if the bytes contain the type of an event that ends a stream of the responses API or completes an
/// output item.
fn has_response_end_or_item(bytes: &[u8]) -> bool {
    has_response_type(bytes, |rest| {
        rest.starts_with(ITEM_DONE_SUFFIX) || END_TYPE_SUFFIXES.iter().any(|end| rest.starts_with(end))
    })
}

fn has_response_type(bytes: &[u8], is_it: impl Fn(&[u8]) -> bool) -> bool {
    RESPONSE_TYPE_PREFIX.find_iter(bytes).any(|at| is_it(&bytes[at + RESPONSE_TYPE_PREFIX.needle().len()..]))
}
