//! Finish reasons: maps the value of any provider to the value of each API format.

/// Maps a provider's finish reason to `OpenAI`'s. An unknown reason becomes `stop`.
pub fn to_openai(reason: &str) -> &'static str {
    match reason {
        "max_tokens"
        | "MAX_TOKENS"
        | "LENGTH"
        | "length"
        | "model_length"
        | "model_context_window_exceeded"
        | "ERROR_LIMIT" => "length",
        "tool_use" | "tool_calls" | "TOOL_CALL" => "tool_calls",
        "function_call" => "function_call",
        "guardrail_intervened"
        | "content_filtered"
        | "SAFETY"
        | "PROHIBITED_CONTENT"
        | "BLOCKLIST"
        | "SPII"
        | "LANGUAGE"
        | "RECITATION"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "IMAGE_RECITATION"
        | "MODEL_ARMOR"
        | "ERROR_TOXIC"
        | "CONTENT_FILTERED"
        | "content_filter"
        | "sensitive"
        | "refusal" => "content_filter",
        _ => "stop",
    }
}

/// Returns true if the generation failed, so that the response must not count as complete. `has_calls` is true if the
/// response calls a tool.
pub fn is_failure(reason: &str, has_calls: bool) -> bool {
    match reason {
        // `error` and `ERROR`: Cohere, Mistral, OpenRouter and others. The others, in this order: Cohere, Zhipu,
        // DeepSeek, inference servers.
        "error" | "ERROR" | "TIMEOUT" | "network_error" | "insufficient_system_resource" | "abort" => true,
        // Gemini and Bedrock: the model tried to write a call or an image, but the output is not valid.
        "MALFORMED_FUNCTION_CALL"
        | "UNEXPECTED_TOOL_CALL"
        | "TOO_MANY_TOOL_CALLS"
        | "MALFORMED_RESPONSE"
        | "MISSING_THOUGHT_SIGNATURE"
        | "NO_IMAGE"
        | "malformed_model_output"
        | "malformed_tool_use" => !has_calls,
        _ => false,
    }
}

/// Returns the finish reason that matches the content: `tool_calls` instead of `stop` if there are tool calls, and the
/// reverse if there are none. Some servers report `stop` for forced calls, or report calls that they made themselves.
pub fn match_calls(reason: &str, has_calls: bool) -> &str {
    match to_openai(reason) {
        "stop" if has_calls && reason != "pause_turn" => "tool_calls",
        "tool_calls" | "function_call" if !has_calls => "stop",
        _ => reason,
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
            ("RECITATION", "content_filter", "refusal"),
            ("never heard of", "stop", "end_turn"),
        ] {
            assert_eq!((to_openai(reason), to_anthropic(reason)), (openai, anthropic), "{reason}");
        }
        for (reason, gemini, bedrock) in [
            ("stop", "STOP", "end_turn"),
            ("tool_calls", "STOP", "tool_use"),
            ("max_tokens", "MAX_TOKENS", "max_tokens"),
            ("RECITATION", "RECITATION", "content_filtered"),
            ("refusal", "SAFETY", "content_filtered"),
            ("guardrail_intervened", "SAFETY", "guardrail_intervened"),
            ("stop_sequence", "STOP", "stop_sequence"),
        ] {
            assert_eq!((to_gemini(reason), to_bedrock(reason)), (gemini, bedrock), "{reason}");
        }
    }

    #[test]
    fn the_finish_reason_matches_the_tool_calls() {
        for (reason, with_calls, without_calls) in [
            ("stop", "tool_calls", "stop"),
            ("", "tool_calls", ""),
            ("tool_use", "tool_use", "stop"),
            ("function_call", "function_call", "stop"),
            ("pause_turn", "pause_turn", "pause_turn"),
            ("max_tokens", "max_tokens", "max_tokens"),
            ("SAFETY", "SAFETY", "SAFETY"),
        ] {
            assert_eq!(
                (match_calls(reason, true), match_calls(reason, false)),
                (with_calls, without_calls),
                "{reason}"
            );
        }
    }

    #[test]
    fn a_failed_generation_is_no_regular_end() {
        for reason in ["error", "ERROR", "TIMEOUT", "network_error", "insufficient_system_resource"] {
            assert!(is_failure(reason, true) && is_failure(reason, false), "{reason}");
        }
        assert!(is_failure("malformed_tool_use", false) && !is_failure("UNEXPECTED_TOOL_CALL", true));
        assert!(!is_failure("stop", false) && !is_failure("OTHER", false));
    }
}
