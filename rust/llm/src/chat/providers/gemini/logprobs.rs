//! How likely each token was, as Gemini says it, in the shape of chat completions.

use serde::Deserialize;
use serde_json::{Value, json};

/// Longer than any token, in bytes: of what is longer they are not told one by one, which takes hundreds of times their room.
const LONGEST: usize = 1024;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Result {
    #[serde(default)]
    top_candidates: Vec<Top>,
    #[serde(default)]
    chosen_candidates: Vec<Token>,
}

#[derive(Deserialize)]
struct Top {
    #[serde(default)]
    candidates: Vec<Token>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Token {
    #[serde(default)]
    token: String,
    #[serde(default)]
    log_probability: f64,
}

impl Token {
    fn told(&self) -> Value {
        let bytes = (self.token.len() <= LONGEST).then_some(self.token.as_bytes());
        json!({"token": self.token, "logprob": self.log_probability, "bytes": bytes})
    }
}

/// `None` where it is nothing of the kind.
pub fn told(json: &str) -> Option<String> {
    let Result { top_candidates, chosen_candidates } = serde_json::from_str(json).ok()?;
    let mut tops = top_candidates.iter();
    let content = chosen_candidates.iter().map(|chosen| {
        let top = tops.next().map(|top| top.candidates.iter().map(Token::told).collect::<Vec<_>>());
        let mut told = chosen.told();
        told["top_logprobs"] = top.unwrap_or_default().into();
        told
    });
    let content: Vec<_> = content.collect();
    Some(json!({"content": content, "refusal": null}).to_string())
}
