//! Token usage in Anthropic's format, where cached tokens are not part of the input tokens.

use serde_json::{Value, json};

use crate::usage::Usage;

pub fn encode_usage(of: &Usage) -> Value {
    json!({
        "input_tokens": of.input.saturating_add(of.audio_in).saturating_add(of.image_in),
        "cache_creation_input_tokens": of.cache_write_5m.saturating_add(of.cache_write_1h),
        "cache_read_input_tokens": of.total_cache_read(),
        "cache_creation":
            {"ephemeral_5m_input_tokens": of.cache_write_5m, "ephemeral_1h_input_tokens": of.cache_write_1h},
        "output_tokens": of.total_output(),
    })
}
