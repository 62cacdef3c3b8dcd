//! Token counts of a provider's usage object. Reads every provider's field names and converts the counts to disjoint
//! buckets.

use memchr::memmem;

use super::{
    SERVICE_TIER_KEY, ServiceTier, Usage,
    count_values::{
        audio_and_image_tokens, parse_count, raise_count, raise_counts, split_off_tokens, sum_counts_by_kind,
    },
    find_last_usage_key,
    iterations::IterationCounts,
};
use crate::{
    api_format::{ScanError, format::ApiFormat},
    json::{
        keys::value_start,
        scan::{
            NestedReader, for_each_element_from, for_each_field, for_each_field_from, read_nested_from,
            scan_rest_of_object, string_literal_at,
        },
    },
    usage::tool_uses::{self, Grounding, ToolUses},
};

/// Counts as the provider reports them. If a stream reports a count again, the last value wins, because providers
/// correct their first estimate. A later zero means that the count is not repeated.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each flag is independent of the others")]
pub(crate) struct UsageCounts {
    pub(crate) has_counts: bool,
    pub(crate) input: u64,
    pub(crate) output: u64,
    total: u64,
    /// Tokens that Gemini's built-in tools add to the prompt. They are not part of the prompt token count.
    tool_use_input: u64,
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
    tools: ToolUses,
    /// Tool uses counted from output items that a stream sends one at a time.
    item_tools: ToolUses,
    pub(crate) grounding: Grounding,
    /// Perplexity's citation tokens, which its total does not include.
    citation_tokens: u64,
    perplexity_reasoning: u64,
    /// True if the usage has the field names of `OpenAI`'s Responses API.
    pub(crate) has_responses_fields: bool,
    /// True for image generation. Its usage splits the input by modality but not the output, so all output tokens are
    /// image tokens.
    is_image_generation: bool,
    has_output_details: bool,
    service: ServiceTier,
    /// True if the usage object that was read last has fields of cached tokens.
    has_cache_fields: bool,
    /// True if the usage object that was read last has a field of input tokens.
    has_input_field: bool,
    /// Sums of all iterations in the usage object that was read last.
    iterations: Option<IterationCounts>,
    /// True if the request contains audio whose tokens are only in the total.
    has_unreported_audio: bool,
    /// Anthropic reports the speed in a field separate from the service tier.
    speed: ServiceTier,
}

/// Number of token counts in `count_slots`.
const COUNT_SLOTS: usize = 17;
/// Number of input counts, which come first in `count_slots`. They are replaced when a provider restates the input.
const INPUT_SLOTS: usize = 6;

impl UsageCounts {
    /// Returns true if the provider reported usage. A provider that reports only zeros does not know the usage.
    pub(crate) fn has_counts(&self) -> bool {
        let tokens = [self.input, self.output, self.total, self.cache_read, self.cache_write, self.cache_write_1h];
        let others = [self.reasoning, self.audio_in, self.audio_out, self.image_in, self.image_out];
        self.has_counts
            && (tokens.into_iter().chain(others).any(|count| count > 0)
                || self.tools != ToolUses::default()
                || self.item_tools != ToolUses::default())
    }

    /// Reads a `usage` object. If the JSON is malformed, the fields before the error count.
    pub(crate) fn read_usage(&mut self, object: &[u8]) {
        self.replace_counts(|counts| {
            let _ = read_nested_from(object, 0, counts);
        });
    }

    /// Calls `read` with cleared counts. Then restores each earlier count that `read` did not find. If the provider
    /// restated the input, the earlier input counts are not restored.
    fn replace_counts(&mut self, read: impl FnOnce(&mut Self)) {
        let cached =
            |counts: &Self| [counts.cache_read, counts.cache_write, counts.cache_write_5m, counts.cache_write_1h];
        let cached_before = cached(self);
        let earlier = self.count_slots().map(std::mem::take);
        (self.has_cache_fields, self.has_input_field) = (false, false);
        read(self);
        // Input and cache counts belong together: a corrected input may move tokens from one to the other, even all
        // tokens.
        let has_moved = self.has_input_field && cached(self) != cached_before && cached(self) != [0; 4];
        let is_restated = self.has_cache_fields && (self.input > 0 || has_moved);
        for (at, (slot, count)) in self.count_slots().into_iter().zip(earlier).enumerate() {
            if *slot == 0 && !(is_restated && at < INPUT_SLOTS) {
                *slot = count;
            }
        }
        // Anthropic's own counts leave out the iterations that compacted the conversation, but it bills all of them.
        if let Some(sum) = self.iterations.take() {
            self.input = sum.input;
            self.output = sum.output;
            self.cache_read = sum.cache_read;
            self.cache_write = sum.cache_write;
            self.cache_write_5m = sum.cache_write_5m;
            self.cache_write_1h = sum.cache_write_1h;
        }
    }

    /// Returns all token counts; the input counts come first.
    fn count_slots(&mut self) -> [&mut u64; COUNT_SLOTS] {
        [
            &mut self.input,
            &mut self.total,
            &mut self.cache_read,
            &mut self.cache_write,
            &mut self.cache_write_5m,
            &mut self.cache_write_1h,
            &mut self.output,
            &mut self.tool_use_input,
            &mut self.reasoning,
            &mut self.audio_in,
            &mut self.audio_out,
            &mut self.image_in,
            &mut self.image_out,
            &mut self.cached_audio,
            &mut self.cached_image,
            &mut self.citation_tokens,
            &mut self.perplexity_reasoning,
        ]
    }

    pub(crate) fn read_tail(mut self, tail: &[u8]) -> Option<Self> {
        self.read_last_usage_and_later_fields(tail).map(|()| self)
    }

    /// Reads usage and grounding data from the last bytes of a large event.
    pub(crate) fn read_event_tail(&mut self, tail: &[u8]) {
        self.grounding.read_tail(tail);
        // If the JSON is malformed, the fields before the error count.
        self.read_last_usage_and_later_fields(tail);
    }

    fn read_last_usage_and_later_fields(&mut self, tail: &[u8]) -> Option<()> {
        let end = self.read_last_usage(tail).or_else(|| self.read_last_cohere_meta(tail))?;
        let rest = scan_rest_of_object(tail, end, |key, at| {
            match key {
                b"modelVersion" => self.set_model(&tail[at]),
                _ => self.read_service_tier(key, &tail[at]),
            }
            Ok(())
        });
        rest.ok()
    }

    /// Reads a complete response, or Gemini's JSON array that contains all chunks of one.
    pub(crate) fn read_response(&mut self, api_format: ApiFormat, response: &[u8]) -> Result<(), ScanError> {
        if api_format == ApiFormat::Gemini && response.trim_ascii_start().starts_with(b"[") {
            return for_each_element_from(response, 0, |at| self.read_response_fields(&response[at])).map(drop);
        }
        self.read_response_fields(response)
    }

    /// Reads the usage-related fields of one response object.
    pub(crate) fn read_response_fields(&mut self, response: &[u8]) -> Result<(), ScanError> {
        for_each_field(response, |key, at| {
            match key {
                b"usage" | b"usageMetadata" => self.read_usage(&response[at]),
                b"meta" => self.read_cohere_meta(&response[at]),
                b"output" => self.read_output_items(&response[at]),
                b"candidates" => self.read_candidates(&response[at]),
                b"modelVersion" => self.set_model(&response[at]),
                _ => self.read_service_tier(key, &response[at]),
            }
            Ok(())
        })
    }

    /// Counts the provider-side tool calls among the output items of a response.
    pub(crate) fn read_output_items(&mut self, output: &[u8]) {
        self.tools = self.tools.max_of_each(&tool_uses::count_in_items(output));
    }

    /// Counts the tool calls of one streamed output item. The final response event may repeat all items, so these are
    /// counted separately.
    pub(crate) fn read_output_item(&mut self, item: &[u8]) {
        self.item_tools = self.item_tools.saturating_add(&tool_uses::count_in_item(item));
    }

    /// Reads the grounding metadata (web searches, maps) of Gemini's candidates.
    pub(crate) fn read_candidates(&mut self, candidates: &[u8]) {
        self.grounding.read_candidates(candidates);
    }

    /// Reads the `groundingMetadata` object of one candidate.
    pub(crate) fn read_grounding(&mut self, metadata: &[u8]) {
        self.grounding.read_metadata(metadata);
    }

    /// Sets the model that responds. It determines whether grounding is billed per query or per prompt.
    pub(crate) fn set_model(&mut self, model: &[u8]) {
        self.grounding.set_model(model);
    }

    /// Sets the service tier if this field contains one; ignores other fields.
    pub(crate) fn read_service_tier(&mut self, key: &[u8], value: &[u8]) {
        let Some(tier) = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) else { return };
        match key {
            b"service_tier" | b"serviceTier" | b"trafficType" => {
                self.service = ServiceTier::parse(tier).unwrap_or_default();
            }
            b"speed" => self.speed = ServiceTier::parse(tier).unwrap_or_default(),
            _ => (),
        }
    }

    /// Reads Cohere's `meta` object, which rerank responses have too.
    fn read_cohere_meta(&mut self, object: &[u8]) {
        self.replace_counts(|counts| {
            let _ = for_each_field(object, |key, at| {
                if matches!(key, b"tokens" | b"billed_units") {
                    let _ = read_nested_from(&object[at], 0, counts);
                }
                Ok(())
            });
        });
    }

    fn read_last_cohere_meta(&mut self, json: &[u8]) -> Option<usize> {
        let key = memmem::rfind(json, b"\"meta\"")?;
        let (start, _) = value_start(json, key + 6)?;
        let end = for_each_field_from(json, start, |_, _| Ok(())).ok()?;
        self.read_cohere_meta(&json[start..end]);
        Some(end)
    }

    /// Reads the service tier from truncated JSON whose beginning is missing. Accepts only a tier that precedes `usage`
    /// in the same object.
    pub(crate) fn read_service_tier_before_usage(&mut self, json: &[u8]) {
        // Checks at most 8 occurrences; text that contains more is not a tier field of the response.
        for at in memmem::rfind_iter(json, SERVICE_TIER_KEY).take(8) {
            let Some((open, b'"')) = value_start(json, at + SERVICE_TIER_KEY.len()) else { continue };
            let literal = string_literal_at(json, open);
            let mut has_usage_sibling = false;
            // The search ends where the enclosing object ends.
            let _ = scan_rest_of_object(json, open + literal.len(), |key, _| {
                has_usage_sibling |= key == b"usage";
                Ok(())
            });
            if has_usage_sibling {
                return self.read_service_tier(b"service_tier", literal);
            }
        }
    }

    /// Reads the last `"usage": {…}` object, at any depth. Returns the offset of its end.
    pub(crate) fn read_last_usage(&mut self, json: &[u8]) -> Option<usize> {
        let (start, _) = value_start(json, find_last_usage_key(json)?)?;
        let mut end = None;
        self.replace_counts(|counts| end = read_nested_from(json, start, counts).ok());
        end
    }

    fn read_usage_field(&mut self, key: &[u8], value: &[u8]) {
        self.has_responses_fields |= key == b"input_tokens";
        self.has_cache_fields |= key.starts_with(b"cache");
        self.has_input_field |= key == b"input_tokens";
        let slot = match key {
            b"prompt_tokens" | b"input_tokens" | b"promptTokenCount" | b"inputTokens" | b"inputTokenCount" => {
                &mut self.input
            }
            b"toolUsePromptTokenCount" => &mut self.tool_use_input,
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
            | b"num_cached_tokens"
            | b"cachedContentTokenCount"
            | b"cacheReadInputTokens"
            | b"cacheReadInputTokenCount" => &mut self.cache_read,
            b"cache_creation_input_tokens" | b"cacheWriteInputTokens" | b"cacheWriteInputTokenCount" => {
                &mut self.cache_write
            }
            b"promptTokensDetails" => {
                return raise_counts([&mut self.audio_in, &mut self.image_in], audio_and_image_tokens(value));
            }
            b"cacheTokensDetails" => {
                return raise_counts([&mut self.cached_audio, &mut self.cached_image], audio_and_image_tokens(value));
            }
            b"candidatesTokensDetails" => {
                return raise_counts([&mut self.audio_out, &mut self.image_out], audio_and_image_tokens(value));
            }
            // Mistral counts the audio in seconds; its tokens are in the total only.
            b"prompt_audio_seconds" => {
                self.has_unreported_audio |= parse_count(value).is_some_and(|seconds| seconds > 0);
                return;
            }
            b"iterations" => {
                self.iterations = IterationCounts::parse_sum(value);
                return;
            }
            b"search_units" => &mut self.tools.rankings,
            b"num_search_queries" => &mut self.tools.web_searches,
            b"citation_tokens" => &mut self.citation_tokens,
            b"reasoning_tokens" => &mut self.perplexity_reasoning,
            b"tool_calls_details" => {
                self.tools = self.tools.max_of_each(&tool_uses::count_invocations(value));
                return;
            }
            b"cacheDetails" => {
                let written = sum_counts_by_kind(value, b"ttl", [b"\"5m\"", b"\"1h\""], b"inputTokens");
                return raise_counts([&mut self.cache_write_5m, &mut self.cache_write_1h], written);
            }
            _ => return self.read_service_tier(key, value),
        };
        raise_count(slot, &mut self.has_counts, value);
    }

    fn read_detail_field(&mut self, is_input: bool, key: &[u8], value: &[u8]) {
        let slot = match key {
            b"cached_tokens_details" => return self.read_cached_details(value),
            b"cached_tokens" => &mut self.cache_read,
            b"cache_write_tokens" => &mut self.cache_write,
            b"ephemeral_5m_input_tokens" => &mut self.cache_write_5m,
            b"ephemeral_1h_input_tokens" => &mut self.cache_write_1h,
            b"audio_tokens" if is_input => &mut self.audio_in,
            b"audio_tokens" => &mut self.audio_out,
            b"image_tokens" if is_input => &mut self.image_in,
            b"image_tokens" => &mut self.image_out,
            b"reasoning_tokens" | b"thinking_tokens" => &mut self.reasoning,
            _ => return,
        };
        raise_count(slot, &mut self.has_counts, value);
    }

    /// Reads the audio and image shares of the cached tokens, as realtime sessions report them.
    fn read_cached_details(&mut self, object: &[u8]) {
        let _ = for_each_field(object, |key, at| {
            match key {
                b"audio_tokens" => raise_count(&mut self.cached_audio, &mut self.has_counts, &object[at]),
                b"image_tokens" => raise_count(&mut self.cached_image, &mut self.has_counts, &object[at]),
                _ => (),
            }
            Ok(())
        });
    }

    pub(crate) fn to_usage(&self, api_format: ApiFormat) -> Option<Usage> {
        if !self.has_counts() {
            return None;
        }
        let mut usage = Usage {
            input: self.input.saturating_add(self.tool_use_input),
            output: self.output,
            tool_uses: self.tools.max_of_each(&self.item_tools).max_of_each(&self.grounding.billed_uses()),
            ..Usage::default()
        };
        let has_cache_counts = matches!(api_format, ApiFormat::Anthropic | ApiFormat::Bedrock)
            && self.cache_read.saturating_add(self.cache_write).saturating_add(self.cache_write_1h) > 0;
        if self.input == 0 && self.output == 0 && !has_cache_counts {
            // Some rerank and embedding APIs report only the total.
            usage.input = self.total;
        }
        let long = self.cache_write_1h;
        let short = self.cache_write_5m.max(self.cache_write.saturating_sub(long));
        let is_summed = matches!(api_format, ApiFormat::OpenAi | ApiFormat::Gemini);
        match api_format {
            ApiFormat::OpenAi | ApiFormat::Gemini => {
                usage.input = usage.input.saturating_add(self.cached_outside_input());
                usage.cache_read = split_off_tokens(&mut usage.input, self.cache_read);
                usage.cache_read_audio = split_off_tokens(&mut usage.cache_read, self.cached_audio);
                usage.cache_read_image = split_off_tokens(&mut usage.cache_read, self.cached_image);
                usage.cache_write_1h = split_off_tokens(&mut usage.input, long);
                usage.cache_write_5m = split_off_tokens(&mut usage.input, short);
                // Audio and image tokens of the request include the cached ones, so those are subtracted first.
                usage.audio_in =
                    split_off_tokens(&mut usage.input, self.audio_in.saturating_sub(usage.cache_read_audio));
                usage.image_in =
                    split_off_tokens(&mut usage.input, self.image_in.saturating_sub(usage.cache_read_image));
            }
            ApiFormat::Anthropic | ApiFormat::Bedrock => {
                usage.cache_read = self.cache_read;
                usage.cache_write_1h = long;
                usage.cache_write_5m = short;
            }
        }
        if api_format == ApiFormat::Gemini {
            usage.output = usage.output.saturating_add(self.reasoning);
        }
        // Some providers leave reasoning out of the completion tokens. The difference to the total reveals it, and may
        // be the only sign of it.
        let mut unreported_tokens = if is_summed { self.total.saturating_sub(usage.total()) } else { 0 };
        if self.has_unreported_audio {
            usage.audio_in = usage.audio_in.saturating_add(std::mem::take(&mut unreported_tokens));
        }
        usage.output = usage.output.saturating_add(unreported_tokens);
        usage.reasoning =
            split_off_tokens(&mut usage.output, if self.reasoning == 0 { unreported_tokens } else { self.reasoning });
        usage.audio_out = split_off_tokens(&mut usage.output, self.audio_out);
        let is_image_output = self.is_image_generation && !self.has_output_details;
        usage.image_out = split_off_tokens(&mut usage.output, if is_image_output { u64::MAX } else { self.image_out });
        usage.service_tier = if self.speed == ServiceTier::Standard { self.service } else { self.speed };
        // Perplexity bills citation tokens and the reasoning about them, but does not include them in its total.
        if self.citation_tokens > 0 {
            usage.input = usage.input.saturating_add(self.citation_tokens);
            usage.reasoning = usage.reasoning.saturating_add(self.perplexity_reasoning);
        }
        Some(usage)
    }

    /// Returns the cached tokens if the provider reports them in addition to the prompt tokens. The total reveals that.
    fn cached_outside_input(&self) -> u64 {
        let cached = [self.cache_read, self.cache_write.max(self.cache_write_5m.saturating_add(self.cache_write_1h))];
        let cached = cached.into_iter().fold(0, u64::saturating_add);
        let sum = self.input.saturating_add(self.output).saturating_add(cached);
        if self.total == sum { cached } else { 0 }
    }
}

/// Kind of a nested object within a usage object.
#[derive(Debug, Clone, Copy)]
pub(crate) enum UsageObject {
    /// Cohere's `tokens` (all tokens) or `billed_units` (the billed ones).
    CohereTokens,
    /// Breakdown of the input tokens.
    InputDetails,
    /// Breakdown of the input tokens in which image tokens indicate image generation.
    InputDetailsWithImages,
    /// Breakdown of the output tokens.
    OutputDetails,
    /// Number of uses of each provider-side tool.
    ServerToolUse,
}

impl NestedReader for UsageCounts {
    type NestedObject = UsageObject;

    fn nested_object(&mut self, key: &[u8]) -> Option<UsageObject> {
        Some(match key {
            b"tokens" | b"billed_units" => UsageObject::CohereTokens,
            b"cache_creation" | b"prompt_tokens_details" | b"input_token_details" => UsageObject::InputDetails,
            b"input_tokens_details" => UsageObject::InputDetailsWithImages,
            b"completion_tokens_details" | b"output_tokens_details" | b"output_token_details" => {
                self.has_output_details = true;
                UsageObject::OutputDetails
            }
            b"server_tool_use" | b"server_side_tool_usage_details" => UsageObject::ServerToolUse,
            _ => return None,
        })
    }

    fn visit_field(&mut self, within: Option<UsageObject>, key: &[u8], value: &[u8]) {
        match (within, key) {
            (None, _) => self.read_usage_field(key, value),
            (Some(UsageObject::CohereTokens), b"input_tokens") => {
                raise_count(&mut self.input, &mut self.has_counts, value);
            }
            (Some(UsageObject::CohereTokens), b"output_tokens") => {
                raise_count(&mut self.output, &mut self.has_counts, value);
            }
            (Some(UsageObject::CohereTokens), b"search_units") => {
                raise_count(&mut self.tools.rankings, &mut self.has_counts, value);
            }
            (Some(UsageObject::ServerToolUse), _) => {
                if let Some(slot) = self.tools.counter_mut(key) {
                    raise_count(slot, &mut self.has_counts, value);
                }
            }
            (Some(UsageObject::CohereTokens), _) => (),
            (Some(UsageObject::InputDetailsWithImages), _) => {
                self.is_image_generation |= key == b"image_tokens";
                self.read_detail_field(true, key, value);
            }
            (Some(UsageObject::InputDetails), _) => self.read_detail_field(true, key, value),
            (Some(UsageObject::OutputDetails), _) => self.read_detail_field(false, key, value),
        }
    }
}
