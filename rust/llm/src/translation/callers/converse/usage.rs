//! What an answer cost, as Bedrock says it: what was cached is not part of the input.

use serde_json::{Value, json};

use crate::usage::Usage;

pub fn usage(of: &Usage) -> Value {
    let written = of.cache_write_5m.saturating_add(of.cache_write_1h);
    let mut usage = json!({
        "inputTokens": of.input.saturating_add(of.audio_in), "outputTokens": of.total_out(), "totalTokens": of.total(),
    });
    for (key, count) in [("cacheReadInputTokens", of.cache_read), ("cacheWriteInputTokens", written)] {
        if count > 0 {
            usage[key] = count.into();
        }
    }
    usage
}
