//! Replaces the matches of a pattern.

use serde::Deserialize;
use serde_json::{Value, json};

use super::text::TOO_COSTLY;
use crate::guardrails::{
    check::{Change, Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages, read_parameters},
    javascript_pattern::JavaScriptPattern,
    text_scope::TextScope,
    window::{PlaceholderNames, WindowCheck, WindowMatch},
};

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "default.regexReplace",
    alias: None,
    name: "Regex replace",
    description: "replaces every match of a regular expression, and passes",
    stages: Stages::Both,
    secrets: &[],
    schema: r#"{"required":["rule"],"properties":{"rule":{"type":"string","minLength":1,"description":"a pattern, or `/pattern/flags`"},"redactText":{"type":"string","default":"[REDACTED]"},"failOnDetection":{"type":"boolean","default":false,"description":"true: fails if something was replaced"}}}"#,
    shared: &["scope"],
    compile: RegexReplace::compile,
}];

#[derive(Debug)]
struct RegexReplace {
    rule: String,
    pattern: JavaScriptPattern,
    replacement: String,
    fails_on_detection: bool,
    scope: TextScope,
}

impl RegexReplace {
    fn compile(parameters: Value) -> CompileResult {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct RegexReplaceParameters {
            rule: String,
            #[serde(default = "default_replacement")]
            redact_text: String,
            #[serde(default)]
            fail_on_detection: bool,
            #[serde(default)]
            scope: TextScope,
        }
        let RegexReplaceParameters { rule, redact_text: replacement, fail_on_detection: fails_on_detection, scope } =
            read_parameters(parameters)?;
        let pattern = JavaScriptPattern::compile_literal(&rule).map_err(|message| (".rule".to_owned(), message))?;
        Ok(Box::new(Self { rule, pattern, replacement, fails_on_detection, scope }))
    }
}

fn default_replacement() -> String {
    "[REDACTED]".to_owned()
}

impl WindowCheck for RegexReplace {
    fn scope(&self) -> TextScope {
        self.scope
    }

    fn longest_match(&self) -> usize {
        self.pattern.longest_match().unwrap_or_default()
    }

    fn find(&self, text: &str, settled: usize, _names: &mut PlaceholderNames) -> Vec<WindowMatch> {
        let ranges = self.pattern.find_all(text).unwrap_or_default().into_iter();
        let ranges = ranges.filter(|range| range.start < settled);
        let replacement = (!self.fails_on_detection).then(|| self.replacement.clone());
        ranges.map(|range| WindowMatch { range, replacement: replacement.clone(), kind: "match" }).collect()
    }
}

impl Check for RegexReplace {
    fn window(&self) -> Option<&dyn WindowCheck> {
        self.pattern.longest_match().is_some().then_some(self)
    }

    fn memory_bytes(&self) -> usize {
        self.pattern.memory_bytes()
    }

    fn is_costly(&self, _input: &CheckInput<'_>) -> bool {
        self.pattern.is_costly()
    }

    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let mut changes = Vec::new();
        for index in self.scope.select(input.stage, input.texts, false) {
            let text = &input.texts[index].text;
            let Ok(ranges) = self.pattern.find_all(text) else { return Err(CheckError::not_replaced(TOO_COSTLY)) };
            if !ranges.is_empty() {
                changes.push((
                    index,
                    replace_ranges(text, ranges.iter().map(|range| (range.clone(), self.replacement.as_str()))),
                ));
            }
        }
        let verdict = changes.is_empty() || !self.fails_on_detection;
        let explanation = format!("{} texts contain matches", changes.len());
        let data = json!({"regexPattern": self.rule, "verdict": verdict, "explanation": explanation});
        let change = (!changes.is_empty()).then_some(Change::Texts(changes));
        Ok(CheckOutcome { change, ..CheckOutcome::new(verdict, data) })
    }

    fn may_change(&self) -> bool {
        true
    }
}

/// Returns a text with some ranges replaced. The ranges are in order and do not overlap.
pub(super) fn replace_ranges<'r>(
    text: &str,
    replacements: impl IntoIterator<Item = (std::ops::Range<usize>, &'r str)>,
) -> String {
    let mut output = String::with_capacity(text.len());
    let mut end = 0;
    for (range, replacement) in replacements {
        output.push_str(&text[end..range.start]);
        output.push_str(replacement);
        end = range.end;
    }
    output.push_str(&text[end..]);
    output
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Stage, tests::run_on_bodies},
        *,
    };

    #[test]
    fn a_text_that_cannot_be_searched_is_denied() {
        let request = |text: &str| json!({"messages": [{"role": "user", "content": text}]});
        let run = |text: &str| {
            let parameters = json!({"rule": "(?=(a+))\\1+b"});
            run_on_bodies("default.regexReplace", parameters, Stage::Input, &request(text), &Value::Null)
        };
        assert!(run("aab and more").unwrap().verdict);
        assert!(run(&"a".repeat(40_000)).unwrap_err().must_deny);
    }

    #[test]
    fn replaces_matches_in_every_text_of_the_scope() {
        let request = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "call 123 and 45"}, {"type": "text", "text": "x"}]}]});
        let run = |more: Value| {
            let mut parameters = json!({"rule": "/[0-9]+/g", "redactText": "#"});
            parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            run_on_bodies("default.regexReplace", parameters, Stage::Input, &request, &Value::Null).unwrap()
        };
        let outcome = run(json!({}));
        assert_eq!((outcome.verdict, outcome.change), (true, Some(Change::Texts(vec![(0, "call # and #".into())]))));
        assert!(!run(json!({"failOnDetection": true})).verdict);
        assert_eq!(run(json!({"scope": "system"})).change, None);
    }
}
