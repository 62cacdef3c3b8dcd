//! Body of a request that compares two versions of a prompt.

use serde_json::{Value, value::RawValue};

use super::{
    prompt::RequestFields,
    prompt_request::{PromptRequest, depth_problem, model_problem, not_an_object, parse_object},
};
use crate::{
    error::{Problem, PromptError},
    parse::similar_name::find_similar,
};

/// Maximum number of sets of variables in one request.
pub const MAX_SETS: usize = 20;

const FIELDS: [&str; 3] = ["versions", "variables", "hyperparameters"];

/// Two versions, and the sets of variables that both run with.
#[derive(Debug)]
pub struct ComparisonRequest {
    /// Selectors such as `latest`, `3` or the name of a label, without `@`.
    pub versions: [String; 2],
    /// One request for each set of variables.
    pub requests: Vec<PromptRequest>,
}

impl ComparisonRequest {
    /// Parses a body. Reports all problems at once.
    pub fn parse(body: &[u8]) -> Result<Self, PromptError> {
        let fields: RequestFields =
            serde_json::from_slice(body).map_err(|error| PromptError::invalid_body(&[not_an_object(&error)]))?;
        let mut problems = Vec::new();
        fields.0.iter().for_each(|(name, value)| problems.extend(depth_problem(name, value)));
        let (mut versions, mut sets, mut overrides) = (None, None, RequestFields::default());
        for (name, value) in &fields.0 {
            match name.as_str() {
                "versions" => versions = parse_versions(value),
                "variables" => sets = Some(parse_sets(value, &mut problems)),
                "hyperparameters" => match serde_json::from_str::<Option<RequestFields>>(value.get()) {
                    Ok(fields) => {
                        overrides = fields.unwrap_or_default();
                        problems.extend(model_problem("$.hyperparameters.", &overrides.0));
                    }
                    Err(_) => problems.push(Problem::new(
                        "$.hyperparameters",
                        "must be an object with fields of the requests to the provider",
                    )),
                },
                other => {
                    let hint = match find_similar(other, &FIELDS) {
                        Some(similar) => format!("did you mean `{similar}`?"),
                        None => "allowed are `versions`, `variables` and `hyperparameters`".to_owned(),
                    };
                    let path = format!("$.{}", other.chars().take(100).collect::<String>());
                    problems.push(Problem::new(path, format!("is not known; {hint}")));
                }
            }
        }
        if versions.is_none() {
            let message = "must be a list of two versions, each a number, `latest`, `default` or the name of a label";
            problems.push(Problem::new("$.versions", message));
        }
        if sets.is_none() {
            problems.push(Problem::new("$.variables", "is missing; it must be a list of objects with variables"));
        }
        match (versions, sets) {
            (Some(versions), Some(sets)) if problems.is_empty() => {
                let requests = sets.into_iter().map(|set| {
                    let fields = overrides.0.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
                    PromptRequest::for_comparison(set, RequestFields(fields))
                });
                Ok(Self { versions, requests: requests.collect() })
            }
            _ => Err(PromptError::invalid_body(&problems)),
        }
    }
}

/// Returns two selectors without their `@`; `None` if the value is something else.
fn parse_versions(value: &RawValue) -> Option<[String; 2]> {
    let listed: Vec<Value> = serde_json::from_str(value.get()).ok()?;
    let selectors: Option<Vec<String>> = listed
        .iter()
        .map(|version| match version {
            Value::String(text) => {
                Some(text.strip_prefix('@').unwrap_or(text)).filter(|text| !text.is_empty()).map(Into::into)
            }
            Value::Number(number) => number.as_u64().map(|number| number.to_string()),
            _ => None,
        })
        .collect();
    selectors?.try_into().ok()
}

fn parse_sets(value: &RawValue, problems: &mut Vec<Problem>) -> Vec<Value> {
    let listed: Vec<&RawValue> = serde_json::from_str(value.get()).unwrap_or_default();
    if listed.is_empty() || listed.len() > MAX_SETS {
        let message = format!("must be a list of 1 to {MAX_SETS} objects, each with a value for each variable");
        problems.push(Problem::new("$.variables", message));
        return Vec::new();
    }
    let sets = listed.iter().enumerate().filter_map(|(index, set)| {
        let object = parse_object(set);
        if object.is_none() {
            let message = "must be an object with a value for each variable";
            problems.push(Problem::new(format!("$.variables[{index}]"), message));
        }
        object
    });
    sets.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(body: &str) -> String {
        ComparisonRequest::parse(body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn selectors_are_numbers_and_names() {
        let parse = |body: &str| ComparisonRequest::parse(body.as_bytes()).unwrap();
        let request = parse(r#"{"versions": ["@latest", 3], "variables": [{"a": 1}, null]}"#);
        assert_eq!(request.versions, ["latest", "3"]);
        let sets: Vec<_> = request.requests.iter().map(|request_of_set| request_of_set.variables.clone()).collect();
        assert_eq!(sets, [serde_json::json!({"a": 1}), serde_json::json!({})]);
        let streamed = r#"{"versions": ["a", "b"], "variables": [{}], "hyperparameters": {"stream": true, "n": 1}}"#;
        let request = &parse(streamed).requests[0];
        assert!(request.overrides("n") && !request.overrides("stream"));
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let message = problem(r#"{"versions": ["a"], "variables": [1, {}, []], "hyperparameters": 1, "model": "m"}"#);
        let misspelt = problem(r#"{"version": [1, 2], "variables": [{}], "hyperparameters": {"model": 1}}"#);
        assert!(misspelt.contains("$.version is not known; did you mean `versions`?"), "{misspelt}");
        assert!(misspelt.contains("$.hyperparameters.model must be a string"), "{misspelt}");
        for path in ["$.versions", "$.variables[0]", "$.variables[2]", "$.hyperparameters", "$.model"] {
            assert!(message.contains(&format!("{path} ")), "{path}: {message}");
        }
        assert!(problem("{}").contains("$.variables is missing"));
        assert!(problem("[]").contains("must be a JSON object"));
        let many = format!(r#"{{"versions": [1, 2], "variables": [{}]}}"#, vec!["{}"; MAX_SETS + 1].join(","));
        for body in [r#"{"versions": [1, 2], "variables": []}"#, r#"{"versions": [1, 2], "variables": {}}"#, &many] {
            assert!(problem(body).contains("$.variables must be a list of 1 to 20 objects"), "{body}");
        }
        for versions in ["[1, 2, 3]", "\"a\"", "[1, -1]", "[1, \"@\"]", "[1, null]"] {
            assert!(
                problem(&format!(r#"{{"versions": {versions}, "variables": [{{}}]}}"#)).contains("$.versions must be")
            );
        }
    }
}
