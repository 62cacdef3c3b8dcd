//! Token usage in Bedrock's format, where cached tokens are not part of the input tokens.

use serde_json::{Value, json};

use crate::usage::Usage;

pub fn encode_usage(of: &Usage) -> Value {
    let written = of.cache_write_5m.saturating_add(of.cache_write_1h);
    let mut usage = json!({
        "inputTokens": of.input.saturating_add(of.audio_in).saturating_add(of.image_in), "outputTokens": of.total_output(), "totalTokens": of.total(),
    });
    for (key, count) in [("cacheReadInputTokens", of.total_cache_read()), ("cacheWriteInputTokens", written)] {
        if count > 0 {
            usage[key] = count.into();
        }
    }
    if of.cache_write_1h > 0 {
        let lifetimes =
            [("5m", of.cache_write_5m), ("1h", of.cache_write_1h)].into_iter().filter(|(_, count)| *count > 0);
        usage["cacheDetails"] = lifetimes.map(|(ttl, count)| json!({"ttl": ttl, "inputTokens": count})).collect();
    }
    usage
}
