//! Tokens that are not verified yet: their parts, and the claims in them. The rules are those of the management API;
//! `tests/vectors/tokens.json` contains cases for both.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::jose::{strict_json, verifier::decode_base64url};

pub(super) type Claims = Map<String, Value>;

/// Parts of a token that is not verified yet.
pub(super) struct SignedToken {
    pub(super) algorithm: String,
    pub(super) key_id: String,
    pub(super) claims: Claims,
    pub(super) signed_text: String,
    pub(super) signature: Vec<u8>,
}

impl SignedToken {
    /// Parses a token. Returns `None` if a part is malformed, or if the header lacks `alg`, `kid` or `typ`, or has
    /// `crit`: no extension is supported (RFC 7515 section 4.1.11).
    pub(super) fn parse(head: &str, claims: &str, signature: &str) -> Option<Self> {
        let header = strict_json::parse_object(&decode_base64url(head)?)?;
        let text = |name: &str| header.get(name)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let (algorithm, key_id, _) = (text("alg")?, text("kid")?, text("typ")?);
        (!header.contains_key("crit")).then_some(())?;
        Some(Self {
            algorithm,
            key_id,
            claims: strict_json::parse_object(&decode_base64url(claims)?)?,
            signed_text: format!("{head}.{claims}"),
            signature: decode_base64url(signature)?,
        })
    }
}

/// Returns the user that the claims name: the first claim in the list below that is set and not empty. It must be a
/// string.
pub(super) fn user_claim(claims: &Claims) -> Option<&str> {
    let is_given = |value: &&Value| !value.is_null() && value.as_str() != Some("");
    ["email_id", "sub", "uid"].into_iter().filter_map(|name| claims.get(name)).find(is_given)?.as_str()
}

/// Parses Unix seconds from 0 to 2^64 - 1, which may have a fraction. Returns `None` for other values.
pub(super) fn parse_unix_seconds(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| Duration::try_from_secs_f64(value.as_f64()?).ok().map(|since| since.as_secs()))
}
