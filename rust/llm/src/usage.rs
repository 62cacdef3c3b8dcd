//! What an answer cost in tokens, read from whole answers and from the bytes of a stream that pass by.

use std::{ops::Range, sync::LazyLock};

use memchr::memmem::{self, Finder};

use crate::{
    dialect::{
        Dialect,
        scan::{self, fields},
    },
    stream::sse,
};

/// Tokens in disjoint buckets: their sum is the provider's total, no token is in two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Text of the request that was neither read from a cache nor written to one.
    pub input: u64,
    /// Text of the answer without reasoning.
    pub output: u64,
    pub cache_read: u64,
    pub cache_write_5m: u64,
    pub cache_write_1h: u64,
    pub reasoning: u64,
    pub audio_in: u64,
    pub audio_out: u64,
    /// Counted here because the provider did not say.
    pub estimated: bool,
}

impl Usage {
    pub fn total(&self) -> u64 {
        self.total_in().saturating_add(self.total_out())
    }

    /// Everything that belongs to the request.
    pub fn total_in(&self) -> u64 {
        let cached = self.cache_read.saturating_add(self.cache_write_5m).saturating_add(self.cache_write_1h);
        self.input.saturating_add(cached).saturating_add(self.audio_in)
    }

    /// Everything that belongs to the answer.
    pub fn total_out(&self) -> u64 {
        self.output.saturating_add(self.reasoning).saturating_add(self.audio_out)
    }

    /// From a whole answer. Usage stands at its end as a rule, so that is where it is looked for.
    pub fn from_answer(dialect: Dialect, answer: &[u8]) -> Option<Self> {
        let mut counts = Counts::default();
        if let Some(at) = last_member(answer) {
            counts.read(&answer[at]);
            return counts.settle(dialect);
        }
        let read = fields(answer, |key, at| {
            if key == b"usage" {
                counts.read(&answer[at]);
            }
            Ok(())
        });
        read.ok().and_then(|()| counts.settle(dialect))
    }
}

/// The last `"usage": {…}` of an answer, if nothing but its siblings come behind it.
fn last_member(answer: &[u8]) -> Option<Range<usize>> {
    let key = memmem::rfind(answer, b"\"usage\"")?;
    let at = object_after(answer, key + 7)?;
    scan::fields_after(answer, at.end).ok().map(|()| at)
}

/// The object that follows a key, behind its colon.
fn object_after(json: &[u8], key_end: usize) -> Option<Range<usize>> {
    let (skipped, first) = value_start(json, key_end)?;
    if first != b'{' {
        return None;
    }
    scan::value(json, skipped).ok()
}

/// Offset and first byte of the value that follows a key; `None` where there is no colon.
fn value_start(json: &[u8], key_end: usize) -> Option<(usize, u8)> {
    let mut colon = false;
    for (offset, &byte) in json.get(key_end..)?.iter().enumerate() {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b':' if !colon => colon = true,
            _ => return colon.then_some((key_end + offset, byte)),
        }
    }
    None
}

/// The numbers as providers write them, the larger of two where a stream says them twice: they are cumulative.
#[derive(Debug, Default)]
struct Counts {
    seen: bool,
    input: u64,
    output: u64,
    total: u64,
    cache_read: u64,
    cache_write: u64,
    cache_write_5m: u64,
    cache_write_1h: u64,
    reasoning: u64,
    audio_in: u64,
    audio_out: u64,
}

impl Counts {
    /// Reads a `usage` object; of a broken one, what stands before the fault.
    fn read(&mut self, object: &[u8]) {
        let _ = fields(object, |key, at| {
            self.take(key, &object[at]);
            Ok(())
        });
    }

    fn take(&mut self, key: &[u8], value: &[u8]) {
        let slot = match key {
            b"prompt_tokens" | b"input_tokens" => &mut self.input,
            b"completion_tokens" | b"output_tokens" => &mut self.output,
            b"total_tokens" => &mut self.total,
            b"cache_read_input_tokens" | b"prompt_cache_hit_tokens" | b"cached_tokens" => &mut self.cache_read,
            b"cache_creation_input_tokens" => &mut self.cache_write,
            b"cache_creation" | b"prompt_tokens_details" | b"input_tokens_details" | b"input_token_details" => {
                return self.read_details(value, true);
            }
            b"completion_tokens_details" | b"output_tokens_details" | b"output_token_details" => {
                return self.read_details(value, false);
            }
            _ => return,
        };
        raise(slot, &mut self.seen, value);
    }

    fn read_details(&mut self, object: &[u8], of_input: bool) {
        let _ = fields(object, |key, at| {
            let slot = match key {
                b"cached_tokens" => &mut self.cache_read,
                b"cache_write_tokens" => &mut self.cache_write,
                b"ephemeral_5m_input_tokens" => &mut self.cache_write_5m,
                b"ephemeral_1h_input_tokens" => &mut self.cache_write_1h,
                b"audio_tokens" if of_input => &mut self.audio_in,
                b"audio_tokens" => &mut self.audio_out,
                b"reasoning_tokens" | b"thinking_tokens" => &mut self.reasoning,
                _ => return Ok(()),
            };
            raise(slot, &mut self.seen, &object[at]);
            Ok(())
        });
    }

    fn settle(&self, dialect: Dialect) -> Option<Usage> {
        if !self.seen {
            return None;
        }
        let mut usage = Usage { input: self.input, output: self.output, ..Usage::default() };
        let long = self.cache_write_1h;
        let short = self.cache_write_5m.max(self.cache_write.saturating_sub(long));
        match dialect {
            Dialect::OpenAi => {
                usage.cache_read = carve(&mut usage.input, self.cache_read);
                usage.cache_write_1h = carve(&mut usage.input, long);
                usage.cache_write_5m = carve(&mut usage.input, short);
                usage.audio_in = carve(&mut usage.input, self.audio_in);
            }
            Dialect::Anthropic => {
                usage.cache_read = self.cache_read;
                usage.cache_write_1h = long;
                usage.cache_write_5m = short;
            }
        }
        usage.reasoning = if self.reasoning_is_extra() {
            self.reasoning
        } else {
            carve(&mut usage.output, self.reasoning)
        };
        usage.audio_out = carve(&mut usage.output, self.audio_out);
        Some(usage)
    }

    /// Some providers leave reasoning out of the completion's tokens; their total gives them away.
    fn reasoning_is_extra(&self) -> bool {
        let sum = self.input.saturating_add(self.output).saturating_add(self.reasoning);
        self.reasoning > 0 && self.total == sum
    }
}

/// Moves up to `part` tokens out of `whole`.
fn carve(whole: &mut u64, part: u64) -> u64 {
    let part = part.min(*whole);
    *whole -= part;
    part
}

fn raise(slot: &mut u64, seen: &mut bool, value: &[u8]) {
    if let Some(count) = count(value) {
        *slot = count.max(*slot);
        *seen = true;
    }
}

/// A count from a JSON number of any form; negative ones are nothing.
fn count(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    if let Ok(count) = text.parse() {
        return Some(count);
    }
    #[allow(clippy::cast_sign_loss)] // The cast saturates: below zero is zero.
    text.parse::<f64>().ok().map(|number| number as u64)
}

/// An event that does not end within this many bytes keeps its second half only: usage stands at the end.
const MAX_CARRY: usize = 128 * 1024;

/// So many events at the start of a stream are read for the model's name.
const MODEL_LOOKS: u8 = 4;

static USAGE: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"usage\""));
static ERROR: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"error\""));
static DONE: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"[DONE]"));
static STOP: LazyLock<Finder> = LazyLock::new(|| Finder::new(b"\"message_stop\""));

/// Reads a stream that passes by, in chunks of any size; ordinary deltas are looked at, not parsed.
#[derive(Debug)]
pub struct Meter {
    dialect: Dialect,
    /// The beginning of an event whose end has not come yet.
    carry: Vec<u8>,
    counts: Counts,
    model: Option<String>,
    looks: u8,
    terminated: bool,
    error_event: bool,
}

/// What a stream turned out to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metered {
    pub usage: Option<Usage>,
    /// The event that ends a good stream was there.
    pub terminated: bool,
    /// The provider said within the stream that it failed.
    pub error_event: bool,
    /// The model as the provider names it.
    pub model: Option<String>,
}

impl Meter {
    pub fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            carry: Vec::new(),
            counts: Counts::default(),
            model: None,
            looks: 0,
            terminated: false,
            error_event: false,
        }
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
            self.look(&whole);
        }
        if self.carry.len() > MAX_CARRY {
            self.carry.drain(..self.carry.len() - MAX_CARRY / 2);
        }
    }

    /// Whether the event that ends a good stream has passed.
    pub fn terminated(&self) -> bool {
        self.terminated
    }

    /// The stream is over. An event without its blank line counts too: some providers end so.
    pub fn finish(mut self) -> Metered {
        let rest = std::mem::take(&mut self.carry);
        self.look(&rest);
        Metered {
            usage: self.counts.settle(self.dialect),
            terminated: self.terminated,
            error_event: self.error_event,
            model: self.model,
        }
    }

    fn look(&mut self, events: &[u8]) {
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
    }

    fn wants_model(&self) -> bool {
        self.model.is_none() && self.looks < MODEL_LOOKS
    }

    /// Whether there may be anything but deltas. Quotes within JSON strings are escaped, so keys are not found in text.
    fn notable(&self, bytes: &[u8]) -> bool {
        let terminal = match self.dialect {
            Dialect::OpenAi => &DONE,
            Dialect::Anthropic => &STOP,
        };
        terminal.find(bytes).is_some()
            || USAGE.find_iter(bytes).any(|at| matches!(value_start(bytes, at + 7), Some((_, b'{'))))
            || ERROR.find_iter(bytes).any(|at| !matches!(value_start(bytes, at + 7), Some((_, b'n'))))
    }

    fn read(&mut self, data: &[u8]) {
        if data.trim_ascii() == b"[DONE]" {
            self.terminated = true;
            return;
        }
        self.looks = self.looks.saturating_add(1);
        let read = fields(data, |key, at| {
            self.take(key, &data[at]);
            Ok(())
        });
        if read.is_err()
            && let Some(at) = memmem::rfind(data, b"\"usage\"")
            && let Some(object) = object_after(data, at + 7)
        {
            self.counts.read(&data[object]);
        }
    }

    fn take(&mut self, key: &[u8], value: &[u8]) {
        match key {
            b"usage" => self.counts.read(value),
            b"model" if self.model.is_none() => self.model = scan::unescape(value).filter(|model| !model.is_empty()),
            b"error" => self.error_event |= value != b"null",
            b"type" => self.take_kind(value),
            // Where Anthropic, OpenAI's responses and Groq put the same fields one level down.
            b"message" | b"response" | b"x_groq" => {
                let _ = fields(value, |key, at| {
                    if matches!(key, b"usage" | b"model" | b"error") {
                        self.take(key, &value[at]);
                    }
                    Ok(())
                });
            }
            _ => {}
        }
    }

    fn take_kind(&mut self, literal: &[u8]) {
        match literal {
            b"\"error\"" => self.error_event = true,
            b"\"message_stop\"" | b"\"response.completed\"" | b"\"response.incomplete\"" | b"\"response.failed\"" => {
                self.terminated = true;
            }
            _ => {}
        }
    }
}
