//! Lifetime of a token: when it expires, when it begins, and how old it may be.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

/// Bounds of the lifetime of tokens, in seconds.
#[derive(Debug)]
pub(super) struct Lifetime {
    tolerance: u64,
    max_age: u64,
}

impl Lifetime {
    pub fn compile(parameters: &Value) -> Result<Self, (String, String)> {
        let text = parameters["maxTokenAge"].as_str().unwrap_or("1d");
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "d" => 86_400,
            "h" => 3_600,
            "m" => 60,
            _ => 1,
        };
        let number: u64 =
            digits.parse().map_err(|_| (".maxTokenAge".to_owned(), "must be such as `12h`".to_owned()))?;
        Ok(Self { tolerance: parameters["clockTolerance"].as_u64().unwrap_or_default(), max_age: number * unit })
    }

    /// Returns why a token is not valid now; `None` if it is valid. A token that an introspection endpoint has verified
    /// (`is_introspected`) may lack `iat`, because the endpoint knows its age.
    pub fn find_problem(&self, claims: &Map<String, Value>, is_introspected: bool) -> Option<&'static str> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let seconds = |name: &str| claims.get(name).map(to_unix_seconds);
        match (seconds("exp"), seconds("nbf"), seconds("iat")) {
            (Some(None), ..) | (_, Some(None), _) | (.., Some(None)) => Some("a time of the token is no number"),
            (Some(Some(end)), ..) if end.saturating_add(self.tolerance) <= now => Some("the token has expired"),
            (_, Some(Some(begin)), _) if begin > now.saturating_add(self.tolerance) => {
                Some("the token is not valid yet")
            }
            (.., None) if !is_introspected => Some("the token has no `iat`, so its age is not known"),
            (.., Some(Some(issued))) if issued > now.saturating_add(self.tolerance) => {
                Some("the token was issued in the future")
            }
            (.., Some(Some(issued))) if issued.saturating_add(self.max_age).saturating_add(self.tolerance) < now => {
                Some("the token is too old")
            }
            _ => None,
        }
    }
}

/// Reads Unix seconds, and drops a fraction. `None` if the value is no valid time.
fn to_unix_seconds(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| Duration::try_from_secs_f64(value.as_f64()?).ok().map(|since| since.as_secs()))
}
