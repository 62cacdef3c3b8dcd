//! A document as it is being read: where one stands in it, what was wrong so far, and whether unknown keys matter.

use std::{fmt::Write, ops::RangeInclusive};

use serde_json::{Map, Value};

use crate::{error::Problem, routing::pattern::Patterns};

/// Whether keys that no feature knows are refused (saved configs) or ignored (inline ones).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// And so is what would do nothing: somebody is saving it now, and can mend it.
    Told,
    Refused,
    Ignored,
}

/// So much of a text is shown to whoever wrote it.
const SHOWN: usize = 40;

/// A document being read. Problems are gathered, none of them ends the reading.
#[derive(Debug)]
pub struct Reading {
    unknown: Unknown,
    path: String,
    problems: Vec<Problem>,
    /// Top-level fields of requests that the document asks about, each once.
    params: Vec<String>,
    /// What its regular expressions hold.
    pub patterns: Patterns,
}

impl Reading {
    pub fn new(unknown: Unknown) -> Self {
        Self { unknown, path: "$".into(), problems: Vec::new(), params: Vec::new(), patterns: Patterns::default() }
    }

    /// What was found wrong, and the fields of requests that are asked about.
    pub fn end(self) -> Result<Vec<String>, Vec<Problem>> {
        if self.problems.is_empty() { Ok(self.params) } else { Err(self.problems) }
    }

    /// Whether what can mean nothing is refused: it is to be saved.
    pub fn is_strict(&self) -> bool {
        self.unknown != Unknown::Ignored
    }

    /// Whether it is being saved now: what would do nothing is told.
    pub fn tells(&self) -> bool {
        self.unknown == Unknown::Told
    }

    pub fn refuse(&mut self, message: impl Into<String>) {
        self.problems.push(Problem::new(self.path.clone(), message));
    }

    /// Says what is allowed here and what was found.
    pub fn expected(&mut self, allowed: &str, found: &Value) {
        self.refuse(format!("must be {allowed}, not {}", shown(found)));
    }

    pub fn within<T>(&mut self, key: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        self.path.push('.');
        self.path.push_str(key);
        let read = read(self);
        self.path.truncate(length);
        read
    }

    fn at<T>(&mut self, index: usize, read: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        // A String takes every write.
        let _ = write!(self.path, "[{index}]");
        let read = read(self);
        self.path.truncate(length);
        read
    }

    /// Where a field of requests stands among those that are asked about.
    pub fn param(&mut self, name: &str) -> usize {
        self.params.iter().position(|known| known == name).unwrap_or_else(|| {
            self.params.push(name.to_owned());
            self.params.len() - 1
        })
    }

    pub fn object<'v>(&mut self, value: &'v Value) -> Option<&'v Map<String, Value>> {
        if value.as_object().is_none() {
            self.expected("an object", value);
        }
        value.as_object()
    }

    /// Reads the keys of an object one by one; `known` says whether it knows the key. Inline, a key may be spelled in camelCase.
    pub fn keys(&mut self, value: &Value, mut known: impl FnMut(&mut Self, &str, &Value) -> bool) {
        for (key, value) in self.object(value).into_iter().flatten() {
            let snake = if self.unknown == Unknown::Ignored { in_snake_case(key) } else { key.clone() };
            let unknown = self.unknown;
            self.within(key, |reading| {
                if !known(reading, &snake, value) && unknown != Unknown::Ignored {
                    reading.refuse("is not a known key");
                }
            });
        }
    }

    pub fn items<'v, T>(
        &mut self,
        value: &'v Value,
        allowed: &str,
        mut read: impl FnMut(&mut Self, &'v Value) -> Option<T>,
    ) -> Vec<T> {
        let Some(items) = value.as_array() else {
            self.expected(allowed, value);
            return Vec::new();
        };
        let read = items.iter().enumerate().map(|(index, item)| self.at(index, |reading| read(reading, item)));
        read.collect::<Vec<_>>().into_iter().flatten().collect()
    }

    pub fn boolean(&mut self, value: &Value) -> Option<bool> {
        if !value.is_boolean() {
            self.expected("true or false", value);
        }
        value.as_bool()
    }

    pub fn whole(&mut self, value: &Value, range: &RangeInclusive<u64>) -> Option<u64> {
        let found = whole(value).filter(|number| range.contains(number));
        if found.is_none() {
            self.expected(&spelled(range), value);
        }
        found
    }

    /// A number that is not negative.
    pub fn number(&mut self, value: &Value) -> Option<f64> {
        let found = value.as_f64().filter(|number| *number >= 0.0);
        if found.is_none() {
            self.expected("a number, at least 0", value);
        }
        found
    }

    /// A non-empty text without control characters: it may become a header field. What it is instead is not shown: it may be a credential.
    pub fn text(&mut self, value: &Value) -> Option<String> {
        self.text_without(char::is_control, value)
    }

    /// Likewise, but it may have several lines.
    pub fn lines(&mut self, value: &Value) -> Option<String> {
        self.text_without(|letter| letter.is_control() && !matches!(letter, '\n' | '\r'), value)
    }

    fn text_without(&mut self, odd: fn(char) -> bool, value: &Value) -> Option<String> {
        let problem = match value {
            Value::String(text) if text.is_empty() => "must not be empty".to_owned(),
            Value::String(text) if text.chars().any(odd) => "must not hold control characters".to_owned(),
            Value::String(text) => return Some(text.clone()),
            other => format!("must be a string, not {}", kind(other)),
        };
        self.refuse(problem);
        None
    }

    /// A document of JSON: as it is, or as a text that may have several lines.
    pub fn document(&mut self, value: &Value) -> Option<String> {
        match value {
            Value::Object(_) => Some(value.to_string()),
            Value::String(text) if serde_json::from_str::<Map<String, Value>>(text).is_ok() => Some(text.clone()),
            other => {
                self.refuse(format!("must be an object, or one as a string, not {}", kind(other)));
                None
            }
        }
    }

    /// Yes or no, as it is or as a text, as header fields have it.
    pub fn flag(&mut self, value: &Value) -> Option<String> {
        match value {
            Value::Bool(_) => Some(value.to_string()),
            Value::String(text) if matches!(text.as_str(), "true" | "false") => Some(text.clone()),
            other => {
                self.refuse(format!("must be true or false, not {}", kind(other)));
                None
            }
        }
    }

    pub fn texts(&mut self, value: &Value) -> Vec<String> {
        self.items(value, "an array of strings", Self::text)
    }

    /// Statuses of HTTP.
    pub fn statuses(&mut self, value: &Value) -> Vec<u16> {
        let status = |reading: &mut Self, value: &Value| reading.whole(value, &(100..=599)).map(|status| status as u16);
        self.items(value, "an array of statuses", status)
    }
}

/// A whole number is one with `.0` as well: to JSON it is the same.
fn whole(value: &Value) -> Option<u64> {
    let exact = |number: &f64| number.fract() == 0.0 && (0.0..=9e15).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(exact).and_then(|number| format!("{number:.0}").parse().ok()))
}

fn spelled(range: &RangeInclusive<u64>) -> String {
    match (*range.start(), *range.end()) {
        (least, u64::MAX) => format!("a whole number, at least {least}"),
        (least, most) => format!("a whole number from {least} to {most}"),
    }
}

/// A value as it is told to whoever wrote it.
fn shown(value: &Value) -> String {
    match value {
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => format!("`{}`", text.chars().take(SHOWN).collect::<String>()),
        other => kind(other).to_owned(),
    }
}

/// The JSON type of a value, for messages.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn in_snake_case(key: &str) -> String {
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
    fn a_problem_says_where_it_is_what_was_found_and_what_is_allowed() {
        let mut reading = Reading::new(Unknown::Refused);
        reading.keys(&json!({"a": [5, 700, "x"], "b": 0, "c": true}), |reading, key, value| {
            match key {
                "a" => drop(reading.statuses(value)),
                "b" => drop(reading.whole(value, &(1..=5))),
                _ => return false,
            }
            true
        });
        let told: Vec<_> =
            reading.end().unwrap_err().into_iter().map(|one| format!("{} {}", one.path, one.message)).collect();
        let status = "must be a whole number from 100 to 599, not";
        assert_eq!(
            told,
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
    fn camel_case_is_read_inline_alone() {
        let mut seen = Vec::new();
        let mut look = |unknown| {
            let mut reading = Reading::new(unknown);
            reading.keys(&json!({"onStatusCodes": 1}), |_, key, _| {
                seen.push(key.to_owned());
                true
            });
        };
        look(Unknown::Ignored);
        look(Unknown::Refused);
        assert_eq!(seen, ["on_status_codes", "onStatusCodes"]);
    }

    #[test]
    fn keys_have_several_lines_and_documents_are_objects_too() {
        let mut reading = Reading::new(Unknown::Refused);
        let lines = "{\n  \"private_key\": \"a\"\n}\n";
        assert_eq!(reading.document(&json!(lines)).as_deref(), Some(lines));
        assert_eq!(reading.document(&json!({"private_key": "a"})).as_deref(), Some(r#"{"private_key":"a"}"#));
        assert!([json!(""), json!("[]"), json!(1)].iter().all(|odd| reading.document(odd).is_none()));
        assert_eq!(reading.lines(&json!("a\nb")).as_deref(), Some("a\nb"));
        assert!([json!("a\0"), json!(""), json!({})].iter().all(|odd| reading.lines(odd).is_none()));
    }

    #[test]
    fn what_may_be_a_credential_is_not_shown() {
        let mut reading = Reading::new(Unknown::Ignored);
        assert_eq!(reading.text(&json!("sk-1\n")), None);
        assert_eq!(reading.text(&json!({"key": "sk-2"})), None);
        assert_eq!(reading.document(&json!("sk-3")), None);
        assert!(!format!("{:?}", reading.end()).contains("sk-"));
    }
}
