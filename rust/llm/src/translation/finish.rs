//! Why an answer ended: every provider's word for it, in the words of each dialect.

/// A provider's word in `OpenAI`'s; what is not known is an ordinary end.
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
        | "CONTENT_FILTERED"
        | "content_filter"
        | "refusal" => "content_filter",
        _ => "stop",
    }
}

/// A provider's word in Anthropic's.
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
        // As the reference has it for Bedrock.
        "guardrail_intervened" | "content_filtered" => "end_turn",
        other => match to_openai(other) {
            "length" => "max_tokens",
            "tool_calls" | "function_call" => "tool_use",
            "content_filter" => "refusal",
            _ => "end_turn",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_providers_word_has_one_of_each_dialect() {
        for (word, openai, anthropic) in [
            ("stop", "stop", "end_turn"),
            ("end_turn", "stop", "end_turn"),
            ("pause_turn", "stop", "pause_turn"),
            ("MAX_TOKENS", "length", "max_tokens"),
            ("TOOL_CALL", "tool_calls", "tool_use"),
            ("SAFETY", "content_filter", "refusal"),
            ("content_filtered", "content_filter", "end_turn"),
            ("stop_sequence", "stop", "stop_sequence"),
            ("never heard of", "stop", "end_turn"),
        ] {
            assert_eq!((to_openai(word), to_anthropic(word)), (openai, anthropic), "{word}");
        }
    }
}
