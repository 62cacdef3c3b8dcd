//! Token usage in Anthropic's format, where cached tokens are not part of the input tokens.

use serde_json::{Value, json};

use crate::usage::Usage;

pub fn encode_usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input.saturating_add(usage.audio_in).saturating_add(usage.image_in),
        "cache_creation_input_tokens": usage.cache_write_5m.saturating_add(usage.cache_write_1h),
        "cache_read_input_tokens": usage.total_cache_read(),
        "cache_creation":
            {"ephemeral_5m_input_tokens": usage.cache_write_5m, "ephemeral_1h_input_tokens": usage.cache_write_1h},
        "output_tokens": usage.total_output(),
    })
}
