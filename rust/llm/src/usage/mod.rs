//! Token usage of a response, as the provider reports it. `SseMeter` reads the same from a stream.

mod count_values;
mod counts;
mod iterations;
pub(crate) mod tool_uses;

use std::sync::LazyLock;

use memchr::memmem;

use self::count_values::raise_count;

pub(crate) use self::{count_values::parse_count, counts::UsageCounts};
pub(crate) use crate::usage::tool_uses::SearchCallScanner;
pub use crate::usage::tool_uses::{ToolUses, always_searches};
use crate::{
    api_format::format::ApiFormat,
    json::{keys::value_start, scan::for_each_field},
    usage::tool_uses::may_have_search_calls,
};

/// Service tier of a response. Faster tiers, and tiers that wait for free capacity, have their own prices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ServiceTier {
    #[default]
    Standard,
    Flex,
    Priority,
    Fast,
    /// Provisioned throughput, which is paid for by the hour in advance.
    Provisioned,
}

impl ServiceTier {
    /// Parses a provider's name of a tier; `None` if it is unknown or means standard.
    pub fn parse(tier: &[u8]) -> Option<Self> {
        let is = |names: [&str; 2]| names.iter().any(|name| tier.eq_ignore_ascii_case(name.as_bytes()));
        if is(["flex", "on_demand_flex"]) {
            Some(Self::Flex)
        } else if is(["priority", "on_demand_priority"]) {
            Some(Self::Priority)
        } else if tier.eq_ignore_ascii_case(b"provisioned_throughput") {
            Some(Self::Provisioned)
        } else {
            tier.eq_ignore_ascii_case(b"fast").then_some(Self::Fast)
        }
    }

    /// Name of the tier in records and prices.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Flex => "flex",
            Self::Priority => "priority",
            Self::Fast => "fast",
            Self::Provisioned => "provisioned",
        }
    }
}

/// Tokens in disjoint buckets: their sum is the provider's total, and no token is in two of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Text tokens of the request that were neither read from a cache nor written to one.
    pub input: u64,
    /// Text tokens of the response without reasoning.
    pub output: u64,
    pub cache_read: u64,
    pub cache_write_5m: u64,
    pub cache_write_1h: u64,
    pub reasoning: u64,
    pub audio_in: u64,
    pub audio_out: u64,
    /// Audio tokens that were read from a cache.
    pub cache_read_audio: u64,
    /// Image tokens that were read from a cache.
    pub cache_read_image: u64,
    pub image_in: u64,
    pub image_out: u64,
    /// Billed uses of the provider's own tools, such as web searches. They are not tokens.
    pub tool_uses: ToolUses,
    /// True if the gateway counted the tokens because the provider did not report them.
    pub is_estimated: bool,
    pub service_tier: ServiceTier,
}

impl Usage {
    pub fn total(&self) -> u64 {
        self.total_input().saturating_add(self.total_output())
    }

    /// Returns all tokens of the request.
    pub fn total_input(&self) -> u64 {
        [self.input, self.total_cache_read(), self.cache_write_5m, self.cache_write_1h, self.audio_in, self.image_in]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Returns all tokens that were read from a cache.
    pub fn total_cache_read(&self) -> u64 {
        self.cache_read.saturating_add(self.cache_read_audio).saturating_add(self.cache_read_image)
    }

    /// Returns all tokens of the response.
    pub fn total_output(&self) -> u64 {
        [self.output, self.reasoning, self.audio_out, self.image_out].into_iter().fold(0, u64::saturating_add)
    }

    /// Returns the sum of this usage and `other`.
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
            tool_uses: self.tool_uses.saturating_add(&other.tool_uses),
            is_estimated: self.is_estimated || other.is_estimated,
            service_tier: if other.service_tier == ServiceTier::Standard {
                self.service_tier
            } else {
                other.service_tier
            },
        }
    }

    /// Reads the usage of a complete response. Searches its end first, because most providers report usage there.
    pub fn from_response(api_format: ApiFormat, response: &[u8]) -> Option<Self> {
        // Gemini reports its searches before the usage, so its responses are read from the start.
        let tail = if api_format == ApiFormat::Gemini { None } else { counts_from_tail(response) };
        let may_search = |counts: &UsageCounts| {
            api_format == ApiFormat::OpenAi && counts.has_responses_fields && may_have_search_calls(response)
        };
        if let Some(counts) = tail.as_ref().filter(|counts| !has_other_service_tier(response) && !may_search(counts)) {
            return counts.to_usage(api_format);
        }
        let mut counts = UsageCounts::default();
        let read = counts.read_response(api_format, response);
        read.ok()
            .and_then(|()| counts.to_usage(api_format))
            .or_else(|| tail.and_then(|counts| counts.to_usage(api_format)))
            .or_else(|| if api_format == ApiFormat::Bedrock { read_invoke_usage(response) } else { None })
    }

    /// Reads usage from the headers of a Bedrock response: the numbers of input and output tokens.
    pub fn from_headers(input_header: Option<&str>, output_header: Option<&str>) -> Option<Self> {
        let count = |header: Option<&str>| header.and_then(|text| text.trim().parse().ok());
        let (input, output): (Option<u64>, Option<u64>) = (count(input_header), count(output_header));
        (input.is_some() || output.is_some()).then(|| Self {
            input: input.unwrap_or_default(),
            output: output.unwrap_or_default(),
            ..Self::default()
        })
    }
}

/// Reads usage that Bedrock models report in their vendor's format. Llama reports it at the top level, Titan there and
/// in each result.
fn read_invoke_usage(response: &[u8]) -> Option<Usage> {
    let mut counts = UsageCounts::default();
    let mut result_tokens = 0_u64;
    let read = for_each_field(response, |key, at| {
        let value = &response[at];
        match key {
            b"prompt_token_count" | b"inputTextTokenCount" => {
                raise_count(&mut counts.input, &mut counts.has_counts, value);
            }
            b"generation_token_count" => raise_count(&mut counts.output, &mut counts.has_counts, value),
            b"results" => result_tokens = sum_result_tokens(value),
            _ => (),
        }
        Ok(())
    });
    counts.output = counts.output.max(result_tokens);
    counts.has_counts |= result_tokens > 0;
    read.ok().and_then(|()| counts.to_usage(ApiFormat::Bedrock))
}

/// Returns the sum of the tokens of all results in a list.
fn sum_result_tokens(list: &[u8]) -> u64 {
    let results: Vec<serde_json::Value> = serde_json::from_slice(list).unwrap_or_default();
    results.iter().filter_map(|item| item["tokenCount"].as_u64()).fold(0, u64::saturating_add)
}

/// Reads usage from the last bytes of a large response, the rest of which was not buffered.
pub(crate) fn from_response_tail(api_format: ApiFormat, tail: &[u8]) -> Option<Usage> {
    let mut counts = UsageCounts::default();
    counts.read_service_tier_before_usage(tail);
    if api_format != ApiFormat::Gemini {
        return counts.read_tail(tail)?.to_usage(api_format);
    }
    // In an array of responses, the last one reports the total of all.
    let tail = tail.trim_ascii_end();
    let tail = tail.strip_suffix(b"]").unwrap_or(tail).trim_ascii_end();
    counts.grounding.read_tail(tail);
    counts.read_tail(tail)?.to_usage(api_format)
}

/// Reads the last usage object, if it is a field of the outermost object.
fn counts_from_tail(tail: &[u8]) -> Option<UsageCounts> {
    UsageCounts::default().read_tail(tail)
}

const USAGE_KEY: &[u8] = b"\"usage\"";
const SERVICE_TIER_KEY: &[u8] = b"\"service_tier\"";
/// Number of bytes at the end that are searched for usage first. Within them, a forward search for every occurrence is
/// faster than a reverse search for the last one.
const TAIL_SEARCH_BYTES: usize = 1024;

/// Returns the offset directly after the key of the last usage object.
fn find_last_usage_key(json: &[u8]) -> Option<usize> {
    static USAGE_FINDER: LazyLock<memmem::Finder> = LazyLock::new(|| memmem::Finder::new(USAGE_KEY));
    let near = json.len().saturating_sub(TAIL_SEARCH_BYTES);
    let last = |name: &[u8]| memmem::rfind(json, name).map(|at| at + name.len());
    let near_end = USAGE_FINDER.find_iter(&json[near..]).last().map(|at| near + at + USAGE_KEY.len());
    near_end.or_else(|| last(USAGE_KEY)).or_else(|| last(b"\"usageMetadata\""))
}

/// Returns true if a `service_tier` field names another tier than the standard one. Quotes within strings are escaped,
/// so text of the response cannot match.
fn has_other_service_tier(response: &[u8]) -> bool {
    static TIER_FINDER: LazyLock<memmem::Finder> = LazyLock::new(|| memmem::Finder::new(SERVICE_TIER_KEY));
    let is_other =
        |tier: &[u8]| ["flex\"", "priority\"", "fast\""].iter().any(|other| tier.starts_with(other.as_bytes()));
    TIER_FINDER.find_iter(response).any(|at| {
        matches!(value_start(response, at + TIER_FINDER.needle().len()), Some((open, b'"')) if is_other(&response[open + 1..]))
    })
}

/// Reads usage from the first bytes of a response. Uses the top-level fields that are complete.
pub(crate) fn from_response_head(api_format: ApiFormat, head: &[u8]) -> Option<Usage> {
    let mut counts = UsageCounts::default();
    // The bytes always break off somewhere, so an error is expected.
    let _ = counts.read_response_fields(head);
    counts.to_usage(api_format)
}
