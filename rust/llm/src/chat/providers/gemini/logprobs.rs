//! Converts Gemini's log probabilities to the chat completions format.

use serde::Deserialize;
use serde_json::{Value, json};

/// Maximum token length for which single bytes are listed. No real token is longer, and the list takes hundreds of
/// times the token's memory.
const MAX_TOKEN_BYTES: usize = 1024;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogprobsResult {
    #[serde(default)]
    top_candidates: Vec<TopCandidates>,
    #[serde(default)]
    chosen_candidates: Vec<TokenLogprob>,
}

#[derive(Deserialize)]
struct TopCandidates {
    #[serde(default)]
    candidates: Vec<TokenLogprob>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenLogprob {
    #[serde(default)]
    token: String,
    #[serde(default)]
    log_probability: f64,
}

impl TokenLogprob {
    fn to_json(&self) -> Value {
        let bytes = (self.token.len() <= MAX_TOKEN_BYTES).then_some(self.token.as_bytes());
        json!({"token": self.token, "logprob": self.log_probability, "bytes": bytes})
    }
}

/// Converts `logprobsResult`; `None` if the JSON has another shape.
pub fn convert_logprobs(json: &str) -> Option<String> {
    let LogprobsResult { top_candidates, chosen_candidates } = serde_json::from_str(json).ok()?;
    let mut tops = top_candidates.iter();
    let content = chosen_candidates.iter().map(|candidate| {
        let top = tops.next().map(|top| top.candidates.iter().map(TokenLogprob::to_json).collect::<Vec<_>>());
        let mut entry = candidate.to_json();
        entry["top_logprobs"] = top.unwrap_or_default().into();
        entry
    });
    let content: Vec<_> = content.collect();
    Some(json!({"content": content, "refusal": null}).to_string())
}
