//! Token usage in Bedrock's format, where cached tokens are not part of the input tokens.

use serde_json::{Value, json};

use crate::usage::Usage;

pub fn encode_usage(token_usage: &Usage) -> Value {
    let written = token_usage.cache_write_5m.saturating_add(token_usage.cache_write_1h);
    let mut usage = json!({
        "inputTokens": token_usage.input.saturating_add(token_usage.audio_in).saturating_add(token_usage.image_in), "outputTokens": token_usage.total_output(), "totalTokens": token_usage.total(),
    });
    for (key, count) in [("cacheReadInputTokens", token_usage.total_cache_read()), ("cacheWriteInputTokens", written)] {
        if count > 0 {
            usage[key] = count.into();
        }
    }
    if token_usage.cache_write_1h > 0 {
        let lifetimes = [("5m", token_usage.cache_write_5m), ("1h", token_usage.cache_write_1h)]
            .into_iter()
            .filter(|(_, count)| *count > 0);
        usage["cacheDetails"] = lifetimes.map(|(ttl, count)| json!({"ttl": ttl, "inputTokens": count})).collect();
    }
    usage
}
