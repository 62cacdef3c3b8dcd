//! Parameter rules of each `OpenAI`-compatible provider, from its API reference.

use crate::chat::call_ids::{self, CallIdFormat};

/// Parameter mapping of one provider. If a body has a field under both names, the provider's name wins.
#[derive(Debug)]
pub struct ParamRules {
    /// Fields and their names at the provider; `outer.inner` names a field within an object.
    pub renames: &'static [(&'static str, &'static str)],
    /// Message roles and their replacements, both as JSON.
    pub role_map: &'static [(&'static str, &'static str)],
    /// Field, its value, and the value that replaces it; values as JSON.
    pub value_map: &'static [(&'static str, &'static str, &'static str)],
    /// Unsupported fields; they are removed and reported to the client.
    pub dropped_fields: &'static [&'static str],
    /// Unsupported fields whose value requests the provider's default behaviour. They are removed without a report.
    pub ignored_fields: &'static [&'static str],
    /// Unsupported fields of messages; they are removed and reported. The second value is a role, as JSON, whose
    /// messages may have the field; an empty string means no role.
    pub dropped_message_fields: &'static [(&'static str, &'static str)],
    /// Field that is removed from messages, their parts and tools, and reported.
    pub dropped_nested_field: Option<&'static str>,
    /// Fields whose neutral value is not 0 at the provider; a value of 0 is removed without a report, because it is the
    /// default.
    pub zero_is_default: &'static [&'static str],
    /// Numeric fields with their minimum and maximum, as JSON. Values outside are clamped and reported.
    pub ranges: &'static [NumberRange],
    /// Required format of tool call ids. Other ids are replaced, in calls and in tool results.
    pub call_id_format: Option<CallIdFormat>,
    /// Assistant message, as JSON, to insert between a tool result and a user message, for providers that reject that
    /// order. The insertion is reported.
    pub bridge_message: Option<&'static str>,
    /// True if thinking blocks without a signature are removed from messages in Anthropic's format, and reported.
    pub drops_unsigned_thinking: bool,
}

/// Name of a numeric field, its minimum and its maximum. Both limits are JSON.
pub type NumberRange = (&'static str, &'static str, &'static str);

/// Field whose value `false` differs from the default, so that dropping `false` must be reported.
pub(super) const PARALLEL_TOOL_CALLS: &str = "parallel_tool_calls";

/// Rules that change nothing, for `OpenAI`'s own names and ranges.
pub static IDENTITY: ParamRules = ParamRules {
    renames: &[],
    role_map: &[],
    value_map: &[],
    dropped_fields: &[],
    ignored_fields: &[],
    dropped_message_fields: &[],
    dropped_nested_field: None,
    zero_is_default: &[],
    ranges: &[],
    call_id_format: None,
    bridge_message: None,
    drops_unsigned_thinking: false,
};
/// Rules of Claude's own API. It rejects thinking that it did not sign, as in a conversation that another model began.
pub(crate) static CLAUDE_MESSAGES: ParamRules = ParamRules { drops_unsigned_thinking: true, ..IDENTITY };
/// Rules of `OpenAI`'s text completions, with the same ranges as chat completions.
pub(crate) static OPENAI_COMPLETIONS: ParamRules = ParamRules {
    ranges: &[TEMPERATURE_RANGE, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, FREQUENCY_PENALTY_RANGE, ("logprobs", "0", "5")],
    ..IDENTITY
};
/// Rules of most compatible providers: no `developer` role, and `OpenAI`'s ranges.
pub(crate) static OPENAI_COMPATIBLE: ParamRules =
    ParamRules { role_map: &[DEVELOPER_TO_SYSTEM], ranges: OPENAI_RANGES, ..IDENTITY };
/// `OPENAI_COMPATIBLE` with the older name `max_tokens` for the output limit.
pub(crate) static LEGACY_MAX_TOKENS: ParamRules = ParamRules { renames: &[RENAME_MAX_TOKENS], ..OPENAI_COMPATIBLE };

/// `LEGACY_MAX_TOKENS`, limited to one choice.
pub(crate) static SINGLE_CHOICE: ParamRules = ParamRules {
    ranges: &[TEMPERATURE_RANGE, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, FREQUENCY_PENALTY_RANGE, ONE_CHOICE],
    ..LEGACY_MAX_TOKENS
};
/// Rules of Predibase. Its provider format has already renamed the fields, so only ranges apply.
pub(crate) static PREDIBASE: ParamRules =
    ParamRules { ranges: &[TEMPERATURE_0_TO_1, TOP_P_RANGE, ONE_CHOICE], ..IDENTITY };
/// `LEGACY_MAX_TOKENS` with a maximum temperature of 1.
pub(crate) static TEMPERATURE_UP_TO_ONE: ParamRules = ParamRules {
    ranges: &[TEMPERATURE_0_TO_1, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, FREQUENCY_PENALTY_RANGE],
    ..LEGACY_MAX_TOKENS
};
pub(crate) static DEEPSEEK: ParamRules = ParamRules {
    ranges: &[
        TEMPERATURE_RANGE,
        TOP_P_RANGE,
        PRESENCE_PENALTY_RANGE,
        FREQUENCY_PENALTY_RANGE,
        ("top_logprobs", "0", "20"),
    ],
    ..LEGACY_MAX_TOKENS
};

pub(crate) static REPETITION_PENALTY: ParamRules = ParamRules {
    renames: &[RENAME_MAX_TOKENS, RENAME_FREQUENCY_PENALTY],
    zero_is_default: &[RENAME_FREQUENCY_PENALTY.0],
    ranges: &[TEMPERATURE_RANGE, TOP_P_RANGE, PRESENCE_PENALTY_RANGE],
    ..OPENAI_COMPATIBLE
};
pub(crate) static PERPLEXITY: ParamRules = ParamRules {
    ranges: &[TEMPERATURE_RANGE, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, ONE_CHOICE, ("top_k", "0", "2048")],
    ..REPETITION_PENALTY
};
/// `REPETITION_PENALTY` for text completions.
pub(crate) static REPETITION_PENALTY_COMPLETIONS: ParamRules =
    ParamRules { renames: &[RENAME_FREQUENCY_PENALTY], zero_is_default: &[RENAME_FREQUENCY_PENALTY.0], ..IDENTITY };

/// Rules of Mistral, which rejects unknown fields, in messages too.
pub(crate) static MISTRAL: ParamRules = ParamRules {
    renames: &[RENAME_MAX_TOKENS, ("seed", "random_seed"), ("safe_mode", "safe_prompt")],
    value_map: &[("tool_choice", r#""required""#, r#""any""#)],
    dropped_fields: &[
        "functions",
        "function_call",
        "user",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "service_tier",
        "store",
        MODALITIES,
        AUDIO,
        WEB_SEARCH_OPTIONS,
        SAFETY_IDENTIFIER,
        VERBOSITY,
    ],
    // Mistral's streams always end with their usage.
    ignored_fields: &[STREAM_OPTIONS],
    dropped_message_fields: &[
        ("name", r#""tool""#),
        (AUDIO, ""),
        ("annotations", ""),
        ("content_blocks", ""),
        ("extra_content", ""),
        ("function_call", ""),
        ("reasoning", ""),
        ("reasoning_content", ""),
        ("refusal", ""),
    ],
    dropped_nested_field: Some(CACHE_CONTROL),
    ranges: &[TEMPERATURE_0_TO_1, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, FREQUENCY_PENALTY_RANGE],
    call_id_format: Some(call_ids::MISTRAL),
    bridge_message: Some(r#"{"role":"assistant","content":"OK."}"#),
    ..OPENAI_COMPATIBLE
};
/// Rules of Mistral's models on other hosts, whose chat templates enforce call ids and message order.
pub(super) static MISTRAL_HOSTED: ParamRules =
    ParamRules { call_id_format: MISTRAL.call_id_format, bridge_message: MISTRAL.bridge_message, ..OPENAI_COMPATIBLE };
/// Rules of Mistral's embeddings.
pub(crate) static MISTRAL_EMBEDDINGS: ParamRules =
    ParamRules { renames: &[("dimensions", "output_dimension")], dropped_fields: &["user"], ..IDENTITY };
/// Rules of Voyage's embeddings: same as Mistral's, but the `float` encoding is requested with null.
pub(crate) static VOYAGE_EMBEDDINGS: ParamRules =
    ParamRules { value_map: &[("encoding_format", r#""float""#, "null")], ..MISTRAL_EMBEDDINGS };
/// Rules of Fireworks, which rejects unknown fields.
pub(crate) static FIREWORKS: ParamRules = ParamRules {
    dropped_fields: &["store", MODALITIES, AUDIO, WEB_SEARCH_OPTIONS, SAFETY_IDENTIFIER, VERBOSITY],
    ranges: &[
        TEMPERATURE_RANGE,
        TOP_P_RANGE,
        PRESENCE_PENALTY_RANGE,
        FREQUENCY_PENALTY_RANGE,
        ("n", "1", "128"),
        ("top_k", "1", "128"),
    ],
    ..LEGACY_MAX_TOKENS
};
/// `FIREWORKS` for text completions.
pub(crate) static FIREWORKS_COMPLETIONS: ParamRules = ParamRules {
    ranges: &[
        TEMPERATURE_RANGE,
        TOP_P_RANGE,
        PRESENCE_PENALTY_RANGE,
        FREQUENCY_PENALTY_RANGE,
        ("logprobs", "0", "5"),
        ("n", "1", "128"),
        ("top_k", "1", "128"),
    ],
    ..IDENTITY
};
pub(crate) static OLLAMA: ParamRules =
    ParamRules { renames: &[RENAME_MAX_TOKENS, ("thinking", "think")], ..OPENAI_COMPATIBLE };
pub(crate) static OPENROUTER: ParamRules =
    ParamRules { renames: &[RENAME_MAX_TOKENS, ("reasoning_effort", "reasoning.effort")], ..OPENAI_COMPATIBLE };

/// Rules of Groq, which rejects unknown fields, in messages too.
pub(crate) static GROQ: ParamRules = ParamRules {
    dropped_fields: &[
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "metadata",
        "prediction",
        "prompt_cache_key",
        "store",
        MODALITIES,
        AUDIO,
        WEB_SEARCH_OPTIONS,
        SAFETY_IDENTIFIER,
        VERBOSITY,
    ],
    dropped_message_fields: &[
        ("name", ""),
        ("metadata", ""),
        (AUDIO, ""),
        ("annotations", ""),
        ("content_blocks", ""),
        ("extra_content", ""),
        ("reasoning_content", ""),
        ("refusal", ""),
    ],
    dropped_nested_field: Some(CACHE_CONTROL),
    ..OPENAI_COMPATIBLE
};
/// Rules of Cerebras, which rejects unknown fields, in messages too.
pub(crate) static CEREBRAS: ParamRules = ParamRules {
    dropped_fields: &[
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "metadata",
        "prompt_cache_key",
        "service_tier",
        "store",
        PARALLEL_TOOL_CALLS,
        MODALITIES,
        AUDIO,
        WEB_SEARCH_OPTIONS,
        SAFETY_IDENTIFIER,
        VERBOSITY,
    ],
    dropped_message_fields: &[
        (AUDIO, ""),
        ("annotations", ""),
        ("content_blocks", ""),
        ("extra_content", ""),
        ("reasoning_content", ""),
        ("refusal", ""),
    ],
    dropped_nested_field: Some(CACHE_CONTROL),
    ranges: &[TEMPERATURE_RANGE, TOP_P_RANGE],
    ..OPENAI_COMPATIBLE
};
/// Rules of `SambaNova`, which supports tool calls and response formats.
pub(crate) static SAMBANOVA: ParamRules = ParamRules {
    dropped_fields: &[
        "functions",
        "function_call",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "user",
        "seed",
        "logprobs",
    ],
    ranges: &[TEMPERATURE_RANGE, TOP_P_RANGE],
    ..OPENAI_COMPATIBLE
};
pub(crate) static LEMONFOX: ParamRules = ParamRules {
    dropped_fields: &[
        "functions",
        "function_call",
        "n",
        "logit_bias",
        "user",
        "seed",
        "tools",
        "tool_choice",
        "response_format",
        "logprobs",
        STREAM_OPTIONS,
    ],
    ..OPENAI_COMPATIBLE
};
pub(crate) static NSCALE: ParamRules = ParamRules {
    dropped_fields: &["functions", "function_call", "user", "seed", "tools", "tool_choice", STREAM_OPTIONS],
    ..OPENAI_COMPATIBLE
};

const OPENAI_RANGES: &[NumberRange] =
    &[TEMPERATURE_RANGE, TOP_P_RANGE, PRESENCE_PENALTY_RANGE, FREQUENCY_PENALTY_RANGE];
const TEMPERATURE_RANGE: NumberRange = ("temperature", "0", "2");
const TEMPERATURE_0_TO_1: NumberRange = ("temperature", "0", "1");
const TOP_P_RANGE: NumberRange = ("top_p", "0", "1");
const PRESENCE_PENALTY_RANGE: NumberRange = ("presence_penalty", "-2", "2");
/// Range that allows exactly one choice.
const ONE_CHOICE: NumberRange = ("n", "1", "1");
const FREQUENCY_PENALTY_RANGE: NumberRange = ("frequency_penalty", "-2", "2");

const RENAME_MAX_TOKENS: (&str, &str) = ("max_completion_tokens", "max_tokens");
const RENAME_FREQUENCY_PENALTY: (&str, &str) = ("frequency_penalty", "repetition_penalty");
const DEVELOPER_TO_SYSTEM: (&str, &str) = (r#""developer""#, r#""system""#);
const STREAM_OPTIONS: &str = "stream_options";
const MODALITIES: &str = "modalities";
const AUDIO: &str = "audio";
const WEB_SEARCH_OPTIONS: &str = "web_search_options";
const SAFETY_IDENTIFIER: &str = "safety_identifier";
const CACHE_CONTROL: &str = "cache_control";
const VERBOSITY: &str = "verbosity";
