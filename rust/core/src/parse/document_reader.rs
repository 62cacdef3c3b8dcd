//! Validating reader of config documents. Tracks the current JSON path, collects all problems, and decides how to treat
//! unknown keys.

use std::{fmt::Write, ops::RangeInclusive};

use serde_json::{Map, Value};

use crate::{error::Problem, parse::bounded_regex::PatternCache};

/// How strictly a config is validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// For configs that a user is saving now. Rejects unknown keys and also settings without effect, because the user
    /// can still fix them.
    StrictWithLints,
    Strict,
    Lenient,
}

/// Maximum number of characters of a string value that an error message shows.
const MAX_SHOWN_CHARS: usize = 40;

/// Reader of a config document. Collects problems instead of stopping at the first one.
#[derive(Debug)]
pub struct ConfigReader {
    strictness: Strictness,
    path: String,
    problems: Vec<Problem>,
    /// Distinct top-level request fields that the document's conditions refer to.
    params: Vec<String>,
    /// Regular expressions of the document, compiled.
    pub patterns: PatternCache,
    /// Memory in bytes of the checks of guardrails that were compiled so far.
    pub check_bytes: usize,
}

impl ConfigReader {
    pub fn new(strictness: Strictness) -> Self {
        Self {
            strictness,
            path: "$".into(),
            problems: Vec::new(),
            params: Vec::new(),
            patterns: PatternCache::default(),
            check_bytes: 0,
        }
    }

    /// Returns the request fields that the document refers to, or all problems found.
    pub fn finish(self) -> Result<Vec<String>, Vec<Problem>> {
        if self.problems.is_empty() { Ok(self.params) } else { Err(self.problems) }
    }

    /// Returns true if the document is a saved config, in which meaningless settings are rejected.
    pub fn is_strict(&self) -> bool {
        self.strictness != Strictness::Lenient
    }

    /// Returns true if the document is being saved now, so that settings without effect are reported.
    pub fn should_lint(&self) -> bool {
        self.strictness == Strictness::StrictWithLints
    }

    pub fn strictness(&self) -> Strictness {
        self.strictness
    }

    /// Returns the number of problems that were found so far.
    pub fn problem_count(&self) -> usize {
        self.problems.len()
    }

    /// Reports problems with paths below the current one.
    pub fn report_all(&mut self, problems: Vec<Problem>) {
        for problem in problems {
            self.problems.push(Problem::new(format!("{}{}", self.path, problem.path), problem.message));
        }
    }

    pub fn report_problem(&mut self, message: impl Into<String>) {
        self.problems.push(Problem::new(self.path.clone(), message));
    }

    /// Reports a disallowed value, with the allowed ones.
    pub fn report_expected(&mut self, allowed: &str, actual: &Value) {
        self.report_problem(format!("must be {allowed}, not {}", describe_value(actual)));
    }

    pub fn within_key<T>(&mut self, key: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.push('.');
        self.path.push_str(key);
        let read = read(self);
        self.path.truncate(length);
        read
    }

    fn within_index<T>(&mut self, index: usize, read: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        // Writing to a `String` cannot fail.
        let _ = write!(self.path, "[{index}]");
        let read = read(self);
        self.path.truncate(length);
        read
    }

    /// Returns the index of a request field in `params`; adds the field if it is new.
    pub fn param_index(&mut self, name: &str) -> usize {
        self.params.iter().position(|param| param == name).unwrap_or_else(|| {
            self.params.push(name.to_owned());
            self.params.len() - 1
        })
    }

    pub fn read_object<'v>(&mut self, value: &'v Value) -> Option<&'v Map<String, Value>> {
        if value.as_object().is_none() {
            self.report_expected("an object", value);
        }
        value.as_object()
    }

    /// Reads the keys of an object one by one. `handle_key` returns false for an unknown key. Inline configs may spell
    /// keys in camelCase.
    pub fn read_keys(&mut self, value: &Value, mut handle_key: impl FnMut(&mut Self, &str, &Value) -> bool) {
        for (key, value) in self.read_object(value).into_iter().flatten() {
            let snake = if self.strictness == Strictness::Lenient { to_snake_case(key) } else { key.clone() };
            let unknown = self.strictness;
            self.within_key(key, |reading| {
                if !handle_key(reading, &snake, value) && unknown != Strictness::Lenient {
                    reading.report_problem("is not a known key");
                }
            });
        }
    }

    pub fn read_items<'v, T>(
        &mut self,
        value: &'v Value,
        allowed: &str,
        mut read: impl FnMut(&mut Self, &'v Value) -> Option<T>,
    ) -> Vec<T> {
        let Some(items) = value.as_array() else {
            self.report_expected(allowed, value);
            return Vec::new();
        };
        let read =
            items.iter().enumerate().map(|(index, item)| self.within_index(index, |reading| read(reading, item)));
        read.collect::<Vec<_>>().into_iter().flatten().collect()
    }

    pub fn read_boolean(&mut self, value: &Value) -> Option<bool> {
        if !value.is_boolean() {
            self.report_expected("true or false", value);
        }
        value.as_bool()
    }

    pub fn read_integer(&mut self, value: &Value, range: &RangeInclusive<u64>) -> Option<u64> {
        let parsed = as_integer(value).filter(|number| range.contains(number));
        if parsed.is_none() {
            self.report_expected(&describe_range(range), value);
        }
        parsed
    }

    /// Reads a non-negative number.
    pub fn read_number(&mut self, value: &Value) -> Option<f64> {
        let parsed = value.as_f64().filter(|number| *number >= 0.0);
        if parsed.is_none() {
            self.report_expected("a number, at least 0", value);
        }
        parsed
    }

    /// Reads a non-empty string without control characters, because it may become a header field. Error messages never
    /// show the value, because it may be a credential.
    pub fn read_string(&mut self, value: &Value) -> Option<String> {
        self.read_string_without(char::is_control, value)
    }

    /// Reads a non-empty string that may contain line breaks but no other control characters.
    pub fn read_multiline_string(&mut self, value: &Value) -> Option<String> {
        self.read_string_without(|letter| letter.is_control() && !matches!(letter, '\n' | '\r'), value)
    }

    fn read_string_without(&mut self, is_forbidden: fn(char) -> bool, value: &Value) -> Option<String> {
        let problem = match value {
            Value::String(text) if text.is_empty() => "must not be empty".to_owned(),
            Value::String(text) if text.chars().any(is_forbidden) => "must not hold control characters".to_owned(),
            Value::String(text) => return Some(text.clone()),
            other => format!("must be a string, not {}", json_type_name(other)),
        };
        self.report_problem(problem);
        None
    }

    /// Reads a JSON object, given as an object or as a string that encodes one.
    pub fn read_json_document(&mut self, value: &Value) -> Option<String> {
        match value {
            Value::Object(_) => Some(value.to_string()),
            Value::String(text) if serde_json::from_str::<Map<String, Value>>(text).is_ok() => Some(text.clone()),
            other => {
                self.report_problem(format!(
                    "must be an object or a string that encodes one, not {}",
                    json_type_name(other)
                ));
                None
            }
        }
    }

    /// Reads a boolean, given as a boolean or as the string of a header field.
    pub fn read_flag(&mut self, value: &Value) -> Option<String> {
        match value {
            Value::Bool(_) => Some(value.to_string()),
            Value::String(text) if matches!(text.as_str(), "true" | "false") => Some(text.clone()),
            other => {
                self.report_problem(format!("must be true or false, not {}", json_type_name(other)));
                None
            }
        }
    }

    pub fn read_strings(&mut self, value: &Value) -> Vec<String> {
        self.read_items(value, "an array of strings", Self::read_string)
    }

    /// Reads an array of HTTP status codes.
    pub fn read_statuses(&mut self, value: &Value) -> Vec<u16> {
        let status =
            |reading: &mut Self, value: &Value| reading.read_integer(value, &(100..=599)).map(|status| status as u16);
        self.read_items(value, "an array of statuses", status)
    }
}

/// Converts a JSON number to an integer. Accepts a zero fraction such as `5.0`, because JSON does not distinguish it
/// from `5`.
fn as_integer(value: &Value) -> Option<u64> {
    let exact = |number: &f64| number.fract() == 0.0 && (0.0..=9e15).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(exact).and_then(|number| format!("{number:.0}").parse().ok()))
}

fn describe_range(range: &RangeInclusive<u64>) -> String {
    match (*range.start(), *range.end()) {
        (least, u64::MAX) => format!("a whole number, at least {least}"),
        (least, maximum) => format!("a whole number from {least} to {maximum}"),
    }
}

/// Describes a value for an error message to the config's author.
fn describe_value(value: &Value) -> String {
    match value {
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("`{}`", text.chars().take(MAX_SHOWN_CHARS).collect::<String>()),
        other => json_type_name(other).to_owned(),
    }
}

/// Returns the JSON type of a value, for error messages.
pub fn json_type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

pub(crate) fn to_snake_case(key: &str) -> String {
    let mut snake = String::with_capacity(key.len() + 4);
    for letter in key.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn problem_reports_path_found_value_and_allowed_values() {
        let mut reading = ConfigReader::new(Strictness::Strict);
        reading.read_keys(&json!({"a": [5, 700, "x"], "b": 0, "c": true}), |reading, key, value| {
            match key {
                "a" => drop(reading.read_statuses(value)),
                "b" => drop(reading.read_integer(value, &(1..=5))),
                _ => return false,
            }
            true
        });
        let messages: Vec<_> = reading
            .finish()
            .unwrap_err()
            .into_iter()
            .map(|problem| format!("{} {}", problem.path, problem.message))
            .collect();
        let status = "must be a whole number from 100 to 599, not";
        assert_eq!(
            messages,
            [
                format!("$.a[0] {status} 5"),
                format!("$.a[1] {status} 700"),
                format!("$.a[2] {status} `x`"),
                "$.b must be a whole number from 1 to 5, not 0".to_owned(),
                "$.c is not a known key".to_owned(),
            ]
        );
    }

    #[test]
    fn accepts_camel_case_keys_only_in_inline_configs() {
        let mut visited = Vec::new();
        let mut read = |unknown| {
            let mut reading = ConfigReader::new(unknown);
            reading.read_keys(&json!({"onStatusCodes": 1}), |_, key, _| {
                visited.push(key.to_owned());
                true
            });
        };
        read(Strictness::Lenient);
        read(Strictness::Strict);
        assert_eq!(visited, ["on_status_codes", "onStatusCodes"]);
    }

    #[test]
    fn accepts_multiline_strings_and_json_documents() {
        let mut reading = ConfigReader::new(Strictness::Strict);
        let lines = "{\n  \"private_key\": \"a\"\n}\n";
        assert_eq!(reading.read_json_document(&json!(lines)).as_deref(), Some(lines));
        assert_eq!(reading.read_json_document(&json!({"private_key": "a"})).as_deref(), Some(r#"{"private_key":"a"}"#));
        assert!([json!(""), json!("[]"), json!(1)].iter().all(|odd| reading.read_json_document(odd).is_none()));
        assert_eq!(reading.read_multiline_string(&json!("a\nb")).as_deref(), Some("a\nb"));
        assert!([json!("a\0"), json!(""), json!({})].iter().all(|odd| reading.read_multiline_string(odd).is_none()));
    }

    #[test]
    fn does_not_show_possible_credentials_in_problems() {
        let mut reading = ConfigReader::new(Strictness::Lenient);
        assert_eq!(reading.read_string(&json!("sk-1\n")), None);
        assert_eq!(reading.read_string(&json!({"key": "sk-2"})), None);
        assert_eq!(reading.read_json_document(&json!("sk-3")), None);
        assert!(!format!("{:?}", reading.finish()).contains("sk-"));
    }
}
