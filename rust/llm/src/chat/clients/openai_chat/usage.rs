//! Token usage in the format of chat completions.

use serde_json::{Value, json};

use crate::usage::Usage;

/// Encodes token usage as JSON. Cached tokens are part of the prompt tokens. They are also listed separately, under
/// Anthropic's field names too.
pub fn encode_usage(token_usage: &Usage) -> Value {
    let written = token_usage.cache_write_5m.saturating_add(token_usage.cache_write_1h);
    let mut usage = json!({
        "prompt_tokens": token_usage.total_input(), "completion_tokens": token_usage.total_output(), "total_tokens": token_usage.total(),
        "prompt_tokens_details": {"cached_tokens": token_usage.total_cache_read(), "audio_tokens": token_usage.audio_in},
        "completion_tokens_details": {"reasoning_tokens": token_usage.reasoning, "audio_tokens": token_usage.audio_out},
    });
    for (side, pictures) in
        [("prompt_tokens_details", token_usage.image_in), ("completion_tokens_details", token_usage.image_out)]
    {
        if pictures > 0 {
            usage[side]["image_tokens"] = pictures.into();
        }
    }
    if token_usage.cache_read > 0 {
        usage["cache_read_input_tokens"] = token_usage.cache_read.into();
    }
    if written > 0 {
        usage["cache_creation_input_tokens"] = written.into();
        usage["cache_creation"] = json!({"ephemeral_5m_input_tokens": token_usage.cache_write_5m, "ephemeral_1h_input_tokens": token_usage.cache_write_1h});
    }
    usage
}
