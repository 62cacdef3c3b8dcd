//! Finish reasons: maps the value of any provider to the value of each API format.

/// Maps a provider's finish reason to `OpenAI`'s. An unknown reason becomes `stop`.
pub fn to_openai(reason: &str) -> &'static str {
    match reason {
        "max_tokens" | "MAX_TOKENS" | "LENGTH" | "length" | "model_length" | "model_context_window_exceeded" => {
            "length"
        }
        "tool_use" | "tool_calls" | "TOOL_CALL" => "tool_calls",
        "function_call" => "function_call",
        "guardrail_intervened"
        | "content_filtered"
        | "SAFETY"
        | "PROHIBITED_CONTENT"
        | "BLOCKLIST"
        | "SPII"
        | "LANGUAGE"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "MODEL_ARMOR"
        | "ERROR_TOXIC"
        | "CONTENT_FILTERED"
        | "content_filter"
        | "sensitive"
        | "refusal" => "content_filter",
        _ => "stop",
    }
}

/// Returns true if the finish reason is one of `OpenAI`'s.
pub fn is_openai_reason(reason: &str) -> bool {
    matches!(reason, "stop" | "length" | "tool_calls" | "function_call" | "content_filter")
}

/// Maps a provider's finish reason to Anthropic's.
pub fn to_anthropic(reason: &str) -> &str {
    match reason {
        "end_turn"
        | "max_tokens"
        | "stop_sequence"
        | "tool_use"
        | "pause_turn"
        | "refusal"
        | "model_context_window_exceeded" => reason,
        "STOP_SEQUENCE" => "stop_sequence",
        // The reference implementation uses the same mapping for Bedrock.
        "guardrail_intervened" | "content_filtered" => "end_turn",
        other => match to_openai(other) {
            "length" => "max_tokens",
            "tool_calls" | "function_call" => "tool_use",
            "content_filter" => "refusal",
            _ => "end_turn",
        },
    }
}

/// Maps a provider's finish reason to Gemini's.
pub fn to_gemini(reason: &str) -> &str {
    match reason {
        "STOP"
        | "MAX_TOKENS"
        | "SAFETY"
        | "RECITATION"
        | "LANGUAGE"
        | "OTHER"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "MALFORMED_FUNCTION_CALL"
        | "IMAGE_SAFETY" => reason,
        other => match to_openai(other) {
            "length" => "MAX_TOKENS",
            "content_filter" => "SAFETY",
            _ => "STOP",
        },
    }
}

/// Maps a provider's finish reason to Bedrock's.
pub fn to_bedrock(reason: &str) -> &str {
    match reason {
        "guardrail_intervened" | "content_filtered" | "model_context_window_exceeded" => reason,
        other => match to_anthropic(other) {
            "refusal" => "content_filtered",
            "pause_turn" => "end_turn",
            mapped => mapped,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_every_finish_reason_to_each_api_format() {
        for (reason, openai, anthropic) in [
            ("stop", "stop", "end_turn"),
            ("end_turn", "stop", "end_turn"),
            ("pause_turn", "stop", "pause_turn"),
            ("MAX_TOKENS", "length", "max_tokens"),
            ("TOOL_CALL", "tool_calls", "tool_use"),
            ("SAFETY", "content_filter", "refusal"),
            ("IMAGE_PROHIBITED_CONTENT", "content_filter", "refusal"),
            ("content_filtered", "content_filter", "end_turn"),
            ("stop_sequence", "stop", "stop_sequence"),
            ("never heard of", "stop", "end_turn"),
        ] {
            assert_eq!((to_openai(reason), to_anthropic(reason)), (openai, anthropic), "{reason}");
        }
        for (reason, gemini, bedrock) in [
            ("stop", "STOP", "end_turn"),
            ("tool_calls", "STOP", "tool_use"),
            ("max_tokens", "MAX_TOKENS", "max_tokens"),
            ("RECITATION", "RECITATION", "end_turn"),
            ("refusal", "SAFETY", "content_filtered"),
            ("guardrail_intervened", "SAFETY", "guardrail_intervened"),
            ("stop_sequence", "STOP", "stop_sequence"),
        ] {
            assert_eq!((to_gemini(reason), to_bedrock(reason)), (gemini, bedrock), "{reason}");
        }
    }
}
