//! Values that the claims of a token must have.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::guardrails::checks::expected_values::{ExpectedValues, MatchType};

/// Expected values of a claim.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClaimRule {
    values: Value,
    #[serde(default)]
    match_type: MatchType,
}

#[derive(Debug)]
pub(super) struct ClaimRules(Vec<(String, ExpectedValues)>);

impl ClaimRules {
    /// Compiles the rules.
    ///
    /// # Errors
    /// If a pattern is not valid: its parameter and a message.
    pub fn compile(rules: BTreeMap<String, ClaimRule>) -> Result<Self, (String, String)> {
        let compile = |(name, ClaimRule { values, match_type }): (String, ClaimRule)| {
            let values = match values {
                Value::Array(values) => values.iter().map(text_of_claim).collect(),
                value => vec![text_of_claim(&value)],
            };
            let expected = ExpectedValues::compile(values, match_type);
            let expected = expected.map_err(|message| (format!(".claimValues.{name}.values"), message))?;
            Ok((name, expected))
        };
        rules.into_iter().map(compile).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the names of the claims that are missing or do not have the expected values.
    pub fn find_failed(&self, claims: &Map<String, Value>) -> Vec<String> {
        let is_failed = |name: &str, expected: &ExpectedValues| match claims.get(name) {
            None | Some(Value::Null) => true,
            Some(Value::Array(actual)) => {
                let actual: Vec<_> = actual.iter().map(text_of_claim).collect();
                !expected.match_list(&actual)
            }
            Some(actual) => !expected.match_one(&text_of_claim(actual)),
        };
        self.0.iter().filter(|(name, expected)| is_failed(name, expected)).map(|(name, _)| name.clone()).collect()
    }
}

/// Returns a claim as the text of a header field: arrays are joined by commas, and control characters are removed.
pub(super) fn text_of_claim(claim: &Value) -> String {
    let text = match claim {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text_of_claim).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    };
    text.chars().filter(|letter| !letter.is_control()).collect()
}
