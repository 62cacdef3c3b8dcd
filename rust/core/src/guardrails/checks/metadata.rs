//! Checks of the metadata of a request.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    expected_values::{ExpectedValues, MatchType},
    text::Operator,
};
use crate::guardrails::check::{
    Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages, read_parameters,
};

pub(super) const ROWS: &[CheckRow] = &[
    CheckRow {
        id: "default.requiredMetadataKeys",
        alias: None,
        name: "Required metadata keys",
        description: "passes if the metadata of the request has all, any or none of some keys",
        stages: Stages::Input,
        secrets: &[],
        schema: r#"{"required":["metadataKeys"],"properties":{"metadataKeys":{"type":"array","minItems":1,"items":{"type":"string"}},"operator":{"enum":["all","any","none"],"default":"all"}}}"#,
        shared: &[],
        compile: RequiredKeys::compile,
    },
    CheckRow {
        id: "default.requiredMetadataKeyPairs",
        alias: None,
        name: "Required metadata pairs",
        description: "passes if the metadata of the request has all, any or none of some pairs",
        stages: Stages::Input,
        secrets: &[],
        schema: r#"{"required":["metadataPairs"],"properties":{"metadataPairs":{"type":"object","minProperties":1,"description":"expected value, or values, by key","additionalProperties":{"oneOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"type":"string"}}]}},"operator":{"enum":["all","any","none"],"default":"all"},"matchType":{"enum":["exact","contains","containsAll","regex"],"default":"exact","description":"`contains`: at least one of the expected values, `containsAll`: every one, `regex`: they are patterns"}}}"#,
        shared: &[],
        compile: RequiredPairs::compile,
    },
];

fn all() -> Operator {
    Operator::All
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RequiredKeys {
    metadata_keys: Vec<String>,
    #[serde(default = "all")]
    operator: Operator,
}

impl RequiredKeys {
    fn compile(parameters: Value) -> CompileResult {
        Ok(Box::new(read_parameters::<Self>(parameters)?))
    }
}

impl Check for RequiredKeys {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let (present, missing): (Vec<_>, Vec<_>) =
            self.metadata_keys.iter().partition(|key| input.metadata.iter().any(|(name, _)| name == *key));
        let verdict = self.operator.accepts(present.len(), missing.len());
        let explanation = format!("{} of {} keys are there", present.len(), self.metadata_keys.len());
        let data = json!({"verdict": verdict, "explanation": explanation, "missing_metadata_keys": missing,
            "found_metadata_keys": present, "operator": self.operator.name()});
        Ok(CheckOutcome::new(verdict, data))
    }
}

#[derive(Debug)]
struct RequiredPairs {
    pairs: Vec<(String, ExpectedValues)>,
    operator: Operator,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrSeveral {
    One(String),
    Several(Vec<String>),
}

impl RequiredPairs {
    fn compile(parameters: Value) -> CompileResult {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct RequiredPairsParameters {
            metadata_pairs: BTreeMap<String, OneOrSeveral>,
            #[serde(default = "all")]
            operator: Operator,
            #[serde(default)]
            match_type: MatchType,
        }
        let RequiredPairsParameters { metadata_pairs, operator, match_type } = read_parameters(parameters)?;
        let mut pairs = Vec::new();
        for (key, values) in metadata_pairs {
            let values = match values {
                OneOrSeveral::One(value) => vec![value],
                OneOrSeveral::Several(values) => values,
            };
            let expected = ExpectedValues::compile(values, match_type)
                .map_err(|message| (format!(".metadataPairs.{key}"), message))?;
            pairs.push((key, expected));
        }
        Ok(Box::new(Self { pairs, operator }))
    }
}

/// Returns true if a value of the metadata is as expected. It may be a JSON array of several strings.
fn matches(expected: &ExpectedValues, value: &str) -> bool {
    let several = serde_json::from_str::<Vec<String>>(value);
    expected.match_list(&several.unwrap_or_else(|_| vec![value.to_owned()]))
}

impl Check for RequiredPairs {
    fn memory_bytes(&self) -> usize {
        self.pairs.iter().map(|(_, expected)| expected.memory_bytes()).sum()
    }

    fn is_costly(&self, _input: &CheckInput<'_>) -> bool {
        self.pairs.iter().any(|(_, expected)| expected.is_costly())
    }

    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let is_found = |key: &str, expected: &ExpectedValues| {
            input.metadata.iter().any(|(name, value)| name == key && matches(expected, value))
        };
        let (present, missing): (Vec<_>, Vec<_>) =
            self.pairs.iter().partition(|(key, expected)| is_found(key, expected));
        let verdict = self.operator.accepts(present.len(), missing.len());
        let keys =
            |pairs: &[&(String, ExpectedValues)]| -> Vec<String> { pairs.iter().map(|(key, _)| key.clone()).collect() };
        let explanation = format!("{} of {} pairs are there", present.len(), self.pairs.len());
        let data = json!({"verdict": verdict, "explanation": explanation, "missing_metadata_keys": keys(&missing),
            "found_metadata_keys": keys(&present), "operator": self.operator.name()});
        Ok(CheckOutcome::new(verdict, data))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Stage, tests::run_on},
        *,
    };

    fn passes(id: &str, parameters: Value) -> bool {
        run_on(id, parameters, Stage::Input, "x").unwrap().verdict
    }

    #[test]
    fn keys_are_required() {
        let keys = |keys: Value, operator: &str| json!({"metadataKeys": keys, "operator": operator});
        assert!(passes("default.requiredMetadataKeys", keys(json!(["team", "_user"]), "all")));
        assert!(!passes("default.requiredMetadataKeys", keys(json!(["team", "x"]), "all")));
        assert!(passes("default.requiredMetadataKeys", keys(json!(["team", "x"]), "any")));
        assert!(passes("default.requiredMetadataKeys", keys(json!(["x"]), "none")));
    }

    #[test]
    fn pairs_are_required() {
        let pairs = |pairs: Value, kind: &str| json!({"metadataPairs": pairs, "matchType": kind});
        assert!(passes("default.requiredMetadataKeyPairs", pairs(json!({"team": "red"}), "exact")));
        assert!(!passes("default.requiredMetadataKeyPairs", pairs(json!({"team": ["red", "blue"]}), "exact")));
        assert!(passes("default.requiredMetadataKeyPairs", pairs(json!({"team": ["red", "blue"]}), "contains")));
        assert!(!passes("default.requiredMetadataKeyPairs", pairs(json!({"team": ["red", "blue"]}), "containsAll")));
        assert!(passes("default.requiredMetadataKeyPairs", pairs(json!({"team": "^r.d$"}), "regex")));
    }
}
