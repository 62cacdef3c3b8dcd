//! Identity providers whose tokens are accepted.

use serde::Deserialize;
use serde_json::Value;

use super::signed_token::Claims;

/// Identity provider, and the organisations that it may issue tokens for.
#[derive(Debug, Deserialize)]
pub(super) struct Issuer {
    /// URL where its keys are published.
    #[serde(default)]
    pub(super) url: String,
    /// Required value of the `iss` claim; empty accepts any.
    #[serde(default, rename = "issuer")]
    name: String,
    /// Required value of the `aud` claim; empty accepts any.
    #[serde(default)]
    audience: String,
    #[serde(default)]
    pub(super) organisations: Vec<String>,
}

impl Issuer {
    /// Returns true if the claims name this issuer and the expected audience.
    pub(super) fn matches_claims(&self, claims: &Claims) -> bool {
        let claim_matches = |name: &str, expected: &str| match claims.get(name) {
            Some(Value::String(value)) => value == expected,
            Some(Value::Array(values)) => name == "aud" && values.iter().any(|audience| audience == expected),
            _ => false,
        };
        (self.name.is_empty() || claim_matches("iss", &self.name))
            && (self.audience.is_empty() || claim_matches("aud", &self.audience))
    }
}
