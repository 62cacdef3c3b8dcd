//! Token usage in the format of chat completions.

use serde_json::{Value, json};

use crate::usage::Usage;

/// Encodes token usage as JSON. Cached tokens are part of the prompt tokens. They are also listed separately, under
/// Anthropic's field names too.
pub fn encode_usage(of: &Usage) -> Value {
    let written = of.cache_write_5m.saturating_add(of.cache_write_1h);
    let mut usage = json!({
        "prompt_tokens": of.total_input(), "completion_tokens": of.total_output(), "total_tokens": of.total(),
        "prompt_tokens_details": {"cached_tokens": of.total_cache_read(), "audio_tokens": of.audio_in},
        "completion_tokens_details": {"reasoning_tokens": of.reasoning, "audio_tokens": of.audio_out},
    });
    for (side, pictures) in [("prompt_tokens_details", of.image_in), ("completion_tokens_details", of.image_out)] {
        if pictures > 0 {
            usage[side]["image_tokens"] = pictures.into();
        }
    }
    if of.cache_read > 0 {
        usage["cache_read_input_tokens"] = of.cache_read.into();
    }
    if written > 0 {
        usage["cache_creation_input_tokens"] = written.into();
        usage["cache_creation"] =
            json!({"ephemeral_5m_input_tokens": of.cache_write_5m, "ephemeral_1h_input_tokens": of.cache_write_1h});
    }
    usage
}
