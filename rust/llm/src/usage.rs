//! What an answer cost in tokens, as its provider says it; `Meter` reads the same from a stream.

use std::sync::LazyLock;

use memchr::memmem;

use crate::dialect::{
    Dialect, PeekError,
    scan::{Nested, closes_after, elements_from, fields, fields_from, nested_from, string_at},
};
pub use crate::stream::{
    deltas::Deltas,
    frame_meter::FrameMeter,
    item_meter::ItemMeter,
    meter::{Meter, Metered},
    session::{Session, Share},
    skim::Skim,
};

/// In which way it was served: faster or when there is time costs otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Service {
    #[default]
    Standard,
    Flex,
    Priority,
    Fast,
}

impl Service {
    /// By one of the words that providers have for it.
    pub fn of(word: &[u8]) -> Option<Self> {
        let is = |names: [&str; 2]| names.iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes()));
        if is(["flex", "on_demand_flex"]) {
            Some(Self::Flex)
        } else if is(["priority", "on_demand_priority"]) {
            Some(Self::Priority)
        } else {
            word.eq_ignore_ascii_case(b"fast").then_some(Self::Fast)
        }
    }
}

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
    /// Sound and pictures that were read from a cache.
    pub cache_read_audio: u64,
    pub cache_read_image: u64,
    pub image_in: u64,
    pub image_out: u64,
    /// No tokens: how often its provider looked something up on the web, where that is paid for.
    pub web_searches: u64,
    /// Counted here because the provider did not say.
    pub estimated: bool,
    pub service: Service,
}

impl Usage {
    pub fn total(&self) -> u64 {
        self.total_in().saturating_add(self.total_out())
    }

    /// Everything that belongs to the request.
    pub fn total_in(&self) -> u64 {
        [self.input, self.total_cache_read(), self.cache_write_5m, self.cache_write_1h, self.audio_in, self.image_in]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Everything that was read from a cache.
    pub fn total_cache_read(&self) -> u64 {
        self.cache_read.saturating_add(self.cache_read_audio).saturating_add(self.cache_read_image)
    }

    /// Everything that belongs to the answer.
    pub fn total_out(&self) -> u64 {
        [self.output, self.reasoning, self.audio_out, self.image_out].into_iter().fold(0, u64::saturating_add)
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            output: self.output.saturating_add(other.output),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write_5m: self.cache_write_5m.saturating_add(other.cache_write_5m),
            cache_write_1h: self.cache_write_1h.saturating_add(other.cache_write_1h),
            reasoning: self.reasoning.saturating_add(other.reasoning),
            audio_in: self.audio_in.saturating_add(other.audio_in),
            audio_out: self.audio_out.saturating_add(other.audio_out),
            cache_read_audio: self.cache_read_audio.saturating_add(other.cache_read_audio),
            cache_read_image: self.cache_read_image.saturating_add(other.cache_read_image),
            image_in: self.image_in.saturating_add(other.image_in),
            image_out: self.image_out.saturating_add(other.image_out),
            web_searches: self.web_searches.saturating_add(other.web_searches),
            estimated: self.estimated || other.estimated,
            service: if other.service == Service::Standard { self.service } else { other.service },
        }
    }

    /// From a whole answer. Usage stands at its end as a rule, so that is where it is looked for.
    pub fn from_answer(dialect: Dialect, answer: &[u8]) -> Option<Self> {
        let tail = from_tail(dialect, answer);
        tail.filter(|_| !says_service(answer))
            .or_else(|| {
                let mut counts = Counts::default();
                let read = counts.read_fields(answer);
                read.ok().and_then(|()| counts.settle(dialect))
            })
            .or(tail)
            .or_else(|| if dialect == Dialect::Bedrock { invoked(answer) } else { None })
    }

    /// From the header fields of an answer of Bedrock's: what went into the model and what came out of it, as numbers.
    pub fn from_header_fields(asked: Option<&str>, answered: Option<&str>) -> Option<Self> {
        let count = |said: Option<&str>| said.and_then(|said| said.trim().parse().ok());
        let (input, output): (Option<u64>, Option<u64>) = (count(asked), count(answered));
        (input.is_some() || output.is_some()).then(|| Self {
            input: input.unwrap_or_default(),
            output: output.unwrap_or_default(),
            ..Self::default()
        })
    }
}

/// As models that Bedrock runs say it in words of their own: Llama beside the answer, Titan beside it and in each result.
fn invoked(answer: &[u8]) -> Option<Usage> {
    let mut counts = Counts::default();
    let mut said = 0_u64;
    let read = fields(answer, |key, at| {
        let value = &answer[at];
        match key {
            b"prompt_token_count" | b"inputTextTokenCount" => raise(&mut counts.input, &mut counts.seen, value),
            b"generation_token_count" => raise(&mut counts.output, &mut counts.seen, value),
            b"results" => said = of_results(value),
            _ => (),
        }
        Ok(())
    });
    counts.output = counts.output.max(said);
    counts.seen |= said > 0;
    read.ok().and_then(|()| counts.settle(Dialect::Bedrock))
}

/// The tokens of all results of a list.
fn of_results(list: &[u8]) -> u64 {
    let results: Vec<serde_json::Value> = serde_json::from_slice(list).unwrap_or_default();
    results.iter().filter_map(|one| one["tokenCount"].as_u64()).fold(0, u64::saturating_add)
}

/// From bytes with which a large answer ends, of which no more is left.
pub(crate) fn from_end(dialect: Dialect, tail: &[u8]) -> Option<Usage> {
    let mut counts = Counts::default();
    counts.serve_before_usage(tail);
    counts.read_tail(dialect, tail)
}

/// From bytes with which an answer ends: the last usage, where nothing but the answer itself is open around it.
fn from_tail(dialect: Dialect, tail: &[u8]) -> Option<Usage> {
    Counts::default().read_tail(dialect, tail)
}

const USAGE: &[u8] = b"\"usage\"";
const SERVICE_TIER: &[u8] = b"\"service_tier\"";
/// Usage is looked for in so many bytes of the end first: a search for the last one is slow, and one for all of them is not.
const NEAR_END: usize = 1024;

/// Where this stands last.
fn last_usage(json: &[u8]) -> Option<usize> {
    static NAMED: LazyLock<memmem::Finder> = LazyLock::new(|| memmem::Finder::new(USAGE));
    let near = json.len().saturating_sub(NEAR_END);
    let last = NAMED.find_iter(&json[near..]).last().map(|at| near + at);
    last.or_else(|| memmem::rfind(json, USAGE))
}

/// Whether it may have been served otherwise than usual, as it says somewhere beside what it cost. Quotes within strings are
/// escaped, so no text is taken for that.
fn says_service(answer: &[u8]) -> bool {
    static NAMED: LazyLock<memmem::Finder> = LazyLock::new(|| memmem::Finder::new(SERVICE_TIER));
    let is_other =
        |word: &[u8]| ["flex\"", "priority\"", "fast\""].iter().any(|other| word.starts_with(other.as_bytes()));
    NAMED.find_iter(answer).any(|at| {
        matches!(value_start(answer, at + NAMED.needle().len()), Some((open, b'"')) if is_other(&answer[open + 1..]))
    })
}

/// From bytes with which an answer begins: of its own fields, those that are whole.
pub(crate) fn from_head(dialect: Dialect, head: &[u8]) -> Option<Usage> {
    let mut counts = Counts::default();
    // It breaks off somewhere, always.
    let _ = counts.read_fields(head);
    counts.settle(dialect)
}

/// Offset and first byte of the value that follows a key; `None` where there is no colon.
pub(crate) fn value_start(json: &[u8], key_end: usize) -> Option<(usize, u8)> {
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
pub(crate) struct Counts {
    seen: bool,
    input: u64,
    output: u64,
    total: u64,
    /// Gemini's own tools put this into the prompt beside what was counted of it.
    tool_use: u64,
    cache_read: u64,
    cache_write: u64,
    cache_write_5m: u64,
    cache_write_1h: u64,
    reasoning: u64,
    audio_in: u64,
    audio_out: u64,
    image_in: u64,
    image_out: u64,
    cached_audio: u64,
    cached_image: u64,
    web_searches: u64,
    /// Where images are made, pictures of the request are told apart and what came of it is not: that is pictures.
    draws: bool,
    tells_output_apart: bool,
    service: Service,
    /// In Anthropic's words that is another thing.
    speed: Service,
}

impl Counts {
    pub(crate) fn is_seen(&self) -> bool {
        self.seen
    }

    /// Reads a `usage` object; of a broken one, what stands before the fault.
    pub(crate) fn read(&mut self, object: &[u8]) {
        let _ = nested_from(object, 0, self);
    }

    fn read_tail(mut self, dialect: Dialect, tail: &[u8]) -> Option<Usage> {
        let end = self.read_last(tail).or_else(|| self.read_last_meta(tail))?;
        let rest = closes_after(tail, end, |key, at| {
            self.serve(key, &tail[at]);
            Ok(())
        });
        rest.ok().and_then(|()| self.settle(dialect))
    }

    /// Reads what stands of usage among the fields of an answer.
    fn read_fields(&mut self, answer: &[u8]) -> Result<(), PeekError> {
        fields(answer, |key, at| {
            match key {
                b"usage" | b"usageMetadata" => self.read(&answer[at]),
                b"meta" => self.read_meta(&answer[at]),
                _ => self.serve(key, &answer[at]),
            }
            Ok(())
        })
    }

    /// Reads in which way it was served, where this field says that.
    pub(crate) fn serve(&mut self, key: &[u8], value: &[u8]) {
        let Some(word) = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) else { return };
        match key {
            b"service_tier" | b"serviceTier" | b"trafficType" => {
                self.service = Service::of(word).unwrap_or_default();
            }
            b"speed" => self.speed = Service::of(word).unwrap_or_default(),
            _ => (),
        }
    }

    /// Cohere's way, for rerank too.
    fn read_meta(&mut self, object: &[u8]) {
        let _ = fields(object, |key, at| {
            if matches!(key, b"tokens" | b"billed_units") {
                self.read(&object[at]);
            }
            Ok(())
        });
    }

    fn read_last_meta(&mut self, json: &[u8]) -> Option<usize> {
        let key = memmem::rfind(json, b"\"meta\"")?;
        let (start, _) = value_start(json, key + 6)?;
        let end = fields_from(json, start, |_, _| Ok(())).ok()?;
        self.read_meta(&json[start..end]);
        Some(end)
    }

    /// Reads in which way it was served, of bytes whose beginning is gone: where that stands before usage, among the same fields.
    pub(crate) fn serve_before_usage(&mut self, json: &[u8]) {
        // Whoever says it more often says it elsewhere.
        for at in memmem::rfind_iter(json, SERVICE_TIER).take(8) {
            let Some((open, b'"')) = value_start(json, at + SERVICE_TIER.len()) else { continue };
            let word = string_at(json, open);
            let mut is_beside = false;
            // What stands around it ends the search.
            let _ = closes_after(json, open + word.len(), |key, _| {
                is_beside |= key == b"usage";
                Ok(())
            });
            if is_beside {
                return self.serve(b"service_tier", word);
            }
        }
    }

    /// Reads the last `"usage": {…}`, wherever it is. Returns where it ends.
    pub(crate) fn read_last(&mut self, json: &[u8]) -> Option<usize> {
        let (start, _) = value_start(json, last_usage(json)? + USAGE.len())?;
        nested_from(json, start, self).ok()
    }

    fn take_own(&mut self, key: &[u8], value: &[u8]) {
        let slot = match key {
            b"prompt_tokens" | b"input_tokens" | b"promptTokenCount" | b"inputTokens" | b"inputTokenCount" => {
                &mut self.input
            }
            b"toolUsePromptTokenCount" => &mut self.tool_use,
            b"completion_tokens"
            | b"output_tokens"
            | b"candidatesTokenCount"
            | b"outputTokens"
            | b"outputTokenCount" => &mut self.output,
            b"thoughtsTokenCount" => &mut self.reasoning,
            b"total_tokens" | b"totalTokenCount" | b"totalTokens" => &mut self.total,
            b"cache_read_input_tokens"
            | b"prompt_cache_hit_tokens"
            | b"cached_tokens"
            | b"cachedContentTokenCount"
            | b"cacheReadInputTokens"
            | b"cacheReadInputTokenCount" => &mut self.cache_read,
            b"cache_creation_input_tokens" | b"cacheWriteInputTokens" | b"cacheWriteInputTokenCount" => {
                &mut self.cache_write
            }
            b"promptTokensDetails" => return raise_both([&mut self.audio_in, &mut self.image_in], modalities(value)),
            b"cacheTokensDetails" => {
                return raise_both([&mut self.cached_audio, &mut self.cached_image], modalities(value));
            }
            b"candidatesTokensDetails" => {
                return raise_both([&mut self.audio_out, &mut self.image_out], modalities(value));
            }
            b"cacheDetails" => {
                let written = of_kinds(value, (b"ttl", [b"\"5m\"", b"\"1h\""]), b"inputTokens");
                return raise_both([&mut self.cache_write_5m, &mut self.cache_write_1h], written);
            }
            _ => return self.serve(key, value),
        };
        raise(slot, &mut self.seen, value);
    }

    fn take_detail(&mut self, is_asked: bool, key: &[u8], value: &[u8]) {
        let slot = match key {
            b"cached_tokens_details" => return self.read_cached(value),
            b"cached_tokens" => &mut self.cache_read,
            b"cache_write_tokens" => &mut self.cache_write,
            b"ephemeral_5m_input_tokens" => &mut self.cache_write_5m,
            b"ephemeral_1h_input_tokens" => &mut self.cache_write_1h,
            b"audio_tokens" if is_asked => &mut self.audio_in,
            b"audio_tokens" => &mut self.audio_out,
            b"image_tokens" if is_asked => &mut self.image_in,
            b"image_tokens" => &mut self.image_out,
            b"reasoning_tokens" | b"thinking_tokens" => &mut self.reasoning,
            _ => return,
        };
        raise(slot, &mut self.seen, value);
    }

    /// What of the cached tokens was no text, as realtime sessions say it.
    fn read_cached(&mut self, object: &[u8]) {
        let _ = fields(object, |key, at| {
            match key {
                b"audio_tokens" => raise(&mut self.cached_audio, &mut self.seen, &object[at]),
                b"image_tokens" => raise(&mut self.cached_image, &mut self.seen, &object[at]),
                _ => (),
            }
            Ok(())
        });
    }

    pub(crate) fn settle(&self, dialect: Dialect) -> Option<Usage> {
        if !self.seen {
            return None;
        }
        let mut usage = Usage {
            input: self.input.saturating_add(self.tool_use),
            output: self.output,
            web_searches: self.web_searches,
            ..Usage::default()
        };
        let is_told_apart = matches!(dialect, Dialect::Anthropic | Dialect::Bedrock)
            && self.cache_read.saturating_add(self.cache_write).saturating_add(self.cache_write_1h) > 0;
        if self.input == 0 && self.output == 0 && !is_told_apart {
            // Some that rerank or embed give the sum alone.
            usage.input = self.total;
        }
        let long = self.cache_write_1h;
        let short = self.cache_write_5m.max(self.cache_write.saturating_sub(long));
        let is_summed = matches!(dialect, Dialect::OpenAi | Dialect::Gemini);
        match dialect {
            Dialect::OpenAi | Dialect::Gemini => {
                usage.input = usage.input.saturating_add(self.cached_beside());
                usage.cache_read = carve(&mut usage.input, self.cache_read);
                usage.cache_read_audio = carve(&mut usage.cache_read, self.cached_audio);
                usage.cache_read_image = carve(&mut usage.cache_read, self.cached_image);
                usage.cache_write_1h = carve(&mut usage.input, long);
                usage.cache_write_5m = carve(&mut usage.input, short);
                // Sound and pictures of the request, those of the cache among them.
                usage.audio_in = carve(&mut usage.input, self.audio_in.saturating_sub(usage.cache_read_audio));
                usage.image_in = carve(&mut usage.input, self.image_in.saturating_sub(usage.cache_read_image));
            }
            Dialect::Anthropic | Dialect::Bedrock => {
                usage.cache_read = self.cache_read;
                usage.cache_write_1h = long;
                usage.cache_write_5m = short;
            }
        }
        if dialect == Dialect::Gemini {
            usage.output = usage.output.saturating_add(self.reasoning);
        }
        // Some leave reasoning out of the completion's tokens; the total gives it away, and may be all that says so.
        let untold = if is_summed { self.total.saturating_sub(usage.total()) } else { 0 };
        usage.output = usage.output.saturating_add(untold);
        usage.reasoning = carve(&mut usage.output, if self.reasoning == 0 { untold } else { self.reasoning });
        usage.audio_out = carve(&mut usage.output, self.audio_out);
        let is_drawn = self.draws && !self.tells_output_apart;
        usage.image_out = carve(&mut usage.output, if is_drawn { u64::MAX } else { self.image_out });
        usage.service = if self.speed == Service::Standard { self.service } else { self.speed };
        Some(usage)
    }

    /// What was cached, where it stands beside the prompt and not in it: the total gives that away.
    fn cached_beside(&self) -> u64 {
        let cached = [self.cache_read, self.cache_write.max(self.cache_write_5m.saturating_add(self.cache_write_1h))];
        let cached = cached.into_iter().fold(0, u64::saturating_add);
        let sum = self.input.saturating_add(self.output).saturating_add(cached);
        if self.total == sum { cached } else { 0 }
    }
}

/// An object of counts among those of a usage.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Within {
    /// Cohere's two: all tokens, and those of them that are paid for.
    Both,
    /// Parts of what was asked.
    Asked,
    /// The same, where pictures among them may say that pictures were made.
    AskedOrDrawn,
    /// Parts of what was answered.
    Answered,
    /// Of tools that the provider has itself, how often each was used.
    Used,
}

impl Nested for Counts {
    type Within = Within;

    fn within(&mut self, key: &[u8]) -> Option<Within> {
        Some(match key {
            b"tokens" | b"billed_units" => Within::Both,
            b"cache_creation" | b"prompt_tokens_details" | b"input_token_details" => Within::Asked,
            b"input_tokens_details" => Within::AskedOrDrawn,
            b"completion_tokens_details" | b"output_tokens_details" | b"output_token_details" => {
                self.tells_output_apart = true;
                Within::Answered
            }
            b"server_tool_use" => Within::Used,
            _ => return None,
        })
    }

    fn take(&mut self, within: Option<Within>, key: &[u8], value: &[u8]) {
        match (within, key) {
            (None, _) => self.take_own(key, value),
            (Some(Within::Both), b"input_tokens") => raise(&mut self.input, &mut self.seen, value),
            (Some(Within::Both), b"output_tokens") => raise(&mut self.output, &mut self.seen, value),
            (Some(Within::Used), b"web_search_requests") => raise(&mut self.web_searches, &mut self.seen, value),
            (Some(Within::Both | Within::Used), _) => (),
            (Some(Within::AskedOrDrawn), _) => {
                self.draws |= key == b"image_tokens";
                self.take_detail(true, key, value);
            }
            (Some(Within::Asked), _) => self.take_detail(true, key, value),
            (Some(Within::Answered), _) => self.take_detail(false, key, value),
        }
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

fn raise_both(slots: [&mut u64; 2], counts: [u64; 2]) {
    for (slot, count) in slots.into_iter().zip(counts) {
        *slot = count.max(*slot);
    }
}

/// Gemini's tokens of sound and of pictures. Video and documents cost what text does.
fn modalities(array: &[u8]) -> [u64; 2] {
    of_kinds(array, (b"modality", [b"\"AUDIO\"", b"\"IMAGE\""]), b"tokenCount")
}

/// Of an array with a count for each kind of something: those of two kinds.
fn of_kinds(array: &[u8], (name, kinds): (&[u8], [&[u8]; 2]), counted: &[u8]) -> [u64; 2] {
    let mut found = [0_u64; 2];
    // Of a broken one, what stands before the fault.
    let _ = elements_from(array, 0, |at| {
        let (mut kind, mut tokens) = (None, 0);
        let item = &array[at];
        fields(item, |key, at| {
            let value = &item[at];
            if key == name {
                kind = kinds.iter().position(|known| *known == value);
            } else if key == counted {
                tokens = count(value).unwrap_or_default();
            }
            Ok(())
        })?;
        if let Some(kind) = kind {
            found[kind] = found[kind].saturating_add(tokens);
        }
        Ok(())
    });
    found
}

/// A count from a JSON number of any form; negative ones are nothing.
fn count(value: &[u8]) -> Option<u64> {
    // Fewer digits than the largest has.
    if (1..20).contains(&value.len()) && value.iter().all(u8::is_ascii_digit) {
        return Some(value.iter().fold(0, |count, digit| count * 10 + u64::from(digit - b'0')));
    }
    let text = std::str::from_utf8(value).ok()?;
    if let Ok(count) = text.parse() {
        return Some(count);
    }
    #[allow(clippy::cast_sign_loss)] // The cast saturates: below zero is zero.
    text.parse::<f64>().ok().map(|number| number as u64)
}
