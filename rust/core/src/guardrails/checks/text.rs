//! Checks of a text itself: patterns, lengths, words and case.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::guardrails::{
    check::{Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages, excerpt, read_parameters},
    javascript_pattern::{JavaScriptFlags, JavaScriptPattern},
    text_scope::TextScope,
    window::{PlaceholderNames, WindowCheck, WindowMatch},
};

pub(super) const ROWS: &[CheckRow] = &[
    CheckRow {
        id: "default.regexMatch",
        alias: None,
        name: "Regex match",
        description: "passes if the text matches a regular expression in JavaScript's syntax",
        stages: Stages::Both,
        secrets: &[],
        schema: r#"{"required":["rule"],"properties":{"rule":{"type":"string","minLength":1,"description":"pattern without slashes and flags"}}}"#,
        shared: &["not", "scope"],
        compile: RegexMatch::compile,
    },
    CheckRow {
        id: "default.sentenceCount",
        alias: None,
        name: "Sentence count",
        description: "passes if the number of sentences, counted by their final marks, is in a range",
        stages: Stages::Both,
        secrets: &[],
        schema: r#"{"properties":{"minSentences":{"type":"integer","minimum":0,"default":0},"maxSentences":{"type":"integer","minimum":0,"default":99999}}}"#,
        shared: &["not", "scope"],
        compile: |parameters| TextCount::compile(parameters, Unit::Sentences),
    },
    CheckRow {
        id: "default.wordCount",
        alias: None,
        name: "Word count",
        description: "passes if the number of words is in a range",
        stages: Stages::Both,
        secrets: &[],
        schema: r#"{"properties":{"minWords":{"type":"integer","minimum":0,"default":0},"maxWords":{"type":"integer","minimum":0,"default":99999}}}"#,
        shared: &["not", "scope"],
        compile: |parameters| TextCount::compile(parameters, Unit::Words),
    },
    CheckRow {
        id: "default.characterCount",
        alias: None,
        name: "Character count",
        description: "passes if the number of characters (UTF-16 code units) is in a range",
        stages: Stages::Both,
        secrets: &[],
        schema: r#"{"properties":{"minCharacters":{"type":"integer","minimum":0,"default":0},"maxCharacters":{"type":"integer","minimum":0,"default":9999999}}}"#,
        shared: &["not", "scope"],
        compile: |parameters| TextCount::compile(parameters, Unit::Characters),
    },
    CheckRow {
        id: "default.contains",
        alias: None,
        name: "Contains",
        description: "passes if the text contains any, all or none of some words; upper and lower case differ",
        stages: Stages::Both,
        secrets: &[],
        schema: r#"{"required":["words"],"properties":{"words":{"type":"array","minItems":1,"maxItems":10000,"items":{"type":"string","minLength":1}},"operator":{"enum":["any","all","none"],"default":"any"}}}"#,
        shared: &["scope"],
        compile: Contains::compile,
    },
    CheckRow {
        id: "default.endsWith",
        alias: None,
        name: "Ends with",
        description: "passes if the text ends with a suffix, with or without a full stop after it",
        stages: Stages::Both,
        secrets: &[],
        schema: r#"{"required":["suffix"],"properties":{"suffix":{"type":"string","minLength":1}}}"#,
        shared: &["not", "scope"],
        compile: EndsWith::compile,
    },
    CheckRow {
        id: "default.alluppercase",
        alias: None,
        name: "Upper case",
        description: "passes if all letters from A to Z are in upper case",
        stages: Stages::Both,
        secrets: &[],
        schema: "{}",
        shared: &["not", "scope"],
        compile: |parameters| LetterCase::compile(parameters, true),
    },
    CheckRow {
        id: "default.alllowercase",
        alias: Some("default.isAllLowerCase"),
        name: "Lower case",
        description: "passes if all letters from a to z are in lower case",
        stages: Stages::Both,
        secrets: &[],
        schema: "{}",
        shared: &["not", "scope"],
        compile: |parameters| LetterCase::compile(parameters, false),
    },
    CheckRow {
        id: "default.notNull",
        alias: None,
        name: "Not empty",
        description: "passes if the response has content; a response with tool calls passes too",
        stages: Stages::Output,
        secrets: &[],
        schema: "{}",
        shared: &["not"],
        compile: NotNull::compile,
    },
];

/// Maximum number of matches of words that are read in one text.
const MAX_MATCHES: usize = 1_000_000;

/// Parameters that all checks of texts have.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TextParameters {
    pub not: bool,
    pub scope: TextScope,
}

fn missing_text() -> CheckError {
    CheckError::new("there is no text to check")
}

/// Returns the outcome for a text that a pattern cannot search in bounded time. It fails, so that a client cannot avoid
/// the check with a long text.
fn too_costly(rule: &str) -> CheckOutcome {
    CheckOutcome::new(false, json!({"regexPattern": rule, "verdict": false, "explanation": TOO_COSTLY}))
}

/// Explanation of a result if a pattern did not search the text.
pub(super) const TOO_COSTLY: &str = "the text is too long for a regular expression with look-around or back references";

#[derive(Debug)]
struct RegexMatch {
    rule: String,
    pattern: JavaScriptPattern,
    common: TextParameters,
}

impl RegexMatch {
    fn compile(parameters: Value) -> CompileResult {
        #[derive(Deserialize)]
        struct RegexMatchParameters {
            rule: String,
            #[serde(flatten)]
            common: TextParameters,
        }
        let RegexMatchParameters { rule, common } = read_parameters(parameters)?;
        let pattern = JavaScriptPattern::compile(&rule, JavaScriptFlags::default())
            .map_err(|message| (".rule".to_owned(), message))?;
        Ok(Box::new(Self { rule, pattern, common }))
    }
}

impl WindowCheck for RegexMatch {
    fn scope(&self) -> TextScope {
        self.common.scope
    }

    fn longest_match(&self) -> usize {
        self.pattern.longest_match().unwrap_or_default()
    }

    fn find(&self, text: &str, settled: usize, _names: &mut PlaceholderNames) -> Vec<WindowMatch> {
        let ranges = self.pattern.find_all(text).unwrap_or_default().into_iter();
        ranges
            .filter(|range| range.start < settled)
            .map(|range| WindowMatch { range, replacement: None, kind: "match" })
            .collect()
    }
}

impl Check for RegexMatch {
    fn window(&self) -> Option<&dyn WindowCheck> {
        (self.common.not && self.pattern.longest_match().is_some()).then_some(self)
    }

    fn memory_bytes(&self) -> usize {
        self.pattern.memory_bytes()
    }

    fn is_costly(&self, _input: &CheckInput<'_>) -> bool {
        self.pattern.is_costly()
    }

    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let scope = self.common.scope;
        let selected = if self.common.not { input.select(scope, false) } else { input.select_known_fields(scope) };
        let text = &*selected.text;
        if text.is_empty() {
            return Err(missing_text());
        }
        let Ok(matched) = self.pattern.find(text) else { return Ok(too_costly(&self.rule)) };
        let verdict = matched.is_some() != self.common.not;
        let details = matched.map(|matched| {
            let groups: serde_json::Map<_, _> =
                matched.groups.iter().map(|(name, text)| (name.clone(), json!(text))).collect();
            json!({"matchedText": &text[matched.range.clone()], "index": text[..matched.range.start].encode_utf16().count(),
                "groups": groups, "captures": matched.captures})
        });
        let verb = if details.is_some() { "matches" } else { "does not match" };
        let explanation = format!("the text {verb} the pattern");
        Ok(CheckOutcome::new(
            verdict,
            json!({"regexPattern": self.rule, "not": self.common.not, "verdict": verdict, "explanation": explanation,
                "matchDetails": details, "textExcerpt": excerpt(text)}),
        ))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Sentences,
    Words,
    Characters,
}

impl Unit {
    /// Returns the names of the parameters with the bounds, and of the fields with the bounds and the count.
    fn names(self) -> [&'static str; 5] {
        match self {
            Self::Sentences => ["minSentences", "maxSentences", "minCount", "maxCount", "sentenceCount"],
            Self::Words => ["minWords", "maxWords", "minWords", "maxWords", "wordCount"],
            Self::Characters => ["minCharacters", "maxCharacters", "minCharacters", "maxCharacters", "characterCount"],
        }
    }

    fn default_max(self) -> u64 {
        if self == Self::Characters { 9_999_999 } else { 99_999 }
    }

    fn count(self, text: &str) -> u64 {
        let count = match self {
            Self::Sentences => memchr::memchr3_iter(b'.', b'!', b'?', text.as_bytes()).count(),
            Self::Words if text.is_ascii() => count_ascii_words(text.as_bytes()),
            Self::Words => text.split_whitespace().count(),
            // One code unit per character, and a second one for those of four bytes.
            Self::Characters => {
                text.bytes().map(|byte| usize::from(byte & 0xC0 != 0x80) + usize::from(byte >= 0xF0)).sum()
            }
        };
        count as u64
    }
}

/// Counts words in ASCII text like `str::split_whitespace`, in a third of its time.
fn count_ascii_words(text: &[u8]) -> usize {
    let is_space = |byte: u8| matches!(byte, b'\t'..=b'\r' | b' ');
    let ends = text.windows(2).filter(|pair| !is_space(pair[0]) && is_space(pair[1])).count();
    ends + usize::from(text.last().is_some_and(|byte| !is_space(*byte)))
}

#[derive(Debug)]
struct TextCount {
    unit: Unit,
    min_count: u64,
    max_count: u64,
    common: TextParameters,
}

impl TextCount {
    fn compile(parameters: Value, unit: Unit) -> CompileResult {
        let [min_name, max_name, ..] = unit.names();
        let bound = |name: &str, default| parameters[name].as_u64().unwrap_or(default);
        let (min_count, max_count) = (bound(min_name, 0), bound(max_name, unit.default_max()));
        Ok(Box::new(Self { unit, min_count, max_count, common: read_parameters(parameters)? }))
    }
}

impl Check for TextCount {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let selected = input.select(self.common.scope, true);
        let text = &*selected.text;
        if text.is_empty() && self.unit != Unit::Sentences {
            return Err(missing_text());
        }
        let count = self.unit.count(text);
        let verdict = (self.min_count..=self.max_count).contains(&count) != self.common.not;
        let [.., min_key, max_key, count_key] = self.unit.names();
        let explanation = format!("the text has {count}; allowed are {} to {}", self.min_count, self.max_count);
        Ok(CheckOutcome::new(
            verdict,
            json!({count_key: count, min_key: self.min_count, max_key: self.max_count, "not": self.common.not, "verdict": verdict,
                "explanation": explanation, "textExcerpt": excerpt(text)}),
        ))
    }
}

/// How many of several words or keys must be present.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Operator {
    #[default]
    Any,
    All,
    None,
}

impl Operator {
    pub fn accepts(self, present_count: usize, missing_count: usize) -> bool {
        match self {
            Self::Any => present_count > 0,
            Self::All => missing_count == 0,
            Self::None => present_count == 0,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::All => "all",
            Self::None => "none",
        }
    }
}

#[derive(Debug)]
struct Contains {
    words: Vec<String>,
    searcher: aho_corasick::AhoCorasick,
    operator: Operator,
    scope: TextScope,
}

impl Contains {
    fn compile(parameters: Value) -> CompileResult {
        #[derive(Deserialize)]
        struct ContainsParameters {
            words: Vec<String>,
            #[serde(default)]
            operator: Operator,
            #[serde(default)]
            scope: TextScope,
        }
        let ContainsParameters { words, operator, scope } = read_parameters(parameters)?;
        let searcher =
            aho_corasick::AhoCorasick::new(&words).map_err(|error| (".words".to_owned(), error.to_string()))?;
        Ok(Box::new(Self { words, searcher, operator, scope }))
    }
}

impl WindowCheck for Contains {
    fn scope(&self) -> TextScope {
        self.scope
    }

    fn longest_match(&self) -> usize {
        self.words.iter().map(String::len).max().unwrap_or_default()
    }

    fn find(&self, text: &str, settled: usize, _names: &mut PlaceholderNames) -> Vec<WindowMatch> {
        let word = self.searcher.find_iter(text).filter(|word| word.start() < settled);
        word.map(|word| WindowMatch { range: word.range(), replacement: None, kind: "word" }).collect()
    }
}

impl Check for Contains {
    fn window(&self) -> Option<&dyn WindowCheck> {
        (matches!(self.operator, Operator::None)).then_some(self)
    }

    fn memory_bytes(&self) -> usize {
        self.searcher.memory_usage()
    }

    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let selected = input.select(self.scope, false);
        let mut is_found = vec![false; self.words.len()];
        let mut missing_count = self.words.len();
        // Words inside each other may match at every letter. A word that is not among the first `MAX_MATCHES` matches
        // counts as missing.
        for word in self.searcher.find_overlapping_iter(&*selected.text).take(MAX_MATCHES) {
            if !std::mem::replace(&mut is_found[word.pattern().as_usize()], true) {
                missing_count -= 1;
                if missing_count == 0 {
                    break;
                }
            }
        }
        let words_that = |is_present: bool| -> Vec<&str> {
            self.words
                .iter()
                .zip(&is_found)
                .filter(|(_, is)| **is == is_present)
                .map(|(word, _)| word.as_str())
                .collect()
        };
        let (present, missing) = (words_that(true), words_that(false));
        let verdict = self.operator.accepts(present.len(), missing.len());
        let explanation = format!("{} of {} words are in the text", present.len(), self.words.len());
        Ok(CheckOutcome::new(
            verdict,
            json!({"explanation": explanation, "foundWords": present, "missingWords": missing,
                "operator": self.operator.name()}),
        ))
    }
}

#[derive(Debug)]
struct EndsWith {
    suffix: String,
    common: TextParameters,
}

impl EndsWith {
    fn compile(parameters: Value) -> CompileResult {
        #[derive(Deserialize)]
        struct EndsWithParameters {
            suffix: String,
            #[serde(flatten)]
            common: TextParameters,
        }
        let EndsWithParameters { suffix, common } = read_parameters(parameters)?;
        Ok(Box::new(Self { suffix, common }))
    }
}

impl Check for EndsWith {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let selected = input.select(self.common.scope, true);
        let text = &*selected.text;
        if text.is_empty() {
            return Err(missing_text());
        }
        let ends = |text: &str| text.ends_with(&self.suffix);
        let is_ended = ends(text) || text.strip_suffix('.').is_some_and(ends);
        let verdict = is_ended != self.common.not;
        let explanation = if is_ended { "the text ends with the suffix" } else { "the text ends otherwise" };
        Ok(CheckOutcome::new(
            verdict,
            json!({"suffix": self.suffix, "not": self.common.not, "verdict": verdict, "explanation": explanation,
                "textExcerpt": excerpt(text)}),
        ))
    }
}

#[derive(Debug)]
struct LetterCase {
    is_upper: bool,
    common: TextParameters,
}

impl LetterCase {
    fn compile(parameters: Value, is_upper: bool) -> CompileResult {
        Ok(Box::new(Self { is_upper, common: read_parameters(parameters)? }))
    }
}

impl Check for LetterCase {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let selected = input.select(self.common.scope, true);
        let text = &*selected.text;
        if text.is_empty() {
            return Err(missing_text());
        }
        let is_other = if self.is_upper { u8::is_ascii_lowercase } else { u8::is_ascii_uppercase };
        let is_so = !text.bytes().any(|byte| is_other(&byte));
        let verdict = is_so != self.common.not;
        let case = if self.is_upper { "upper" } else { "lower" };
        let explanation = format!("the letters are {}all in {case} case", if is_so { "" } else { "not " });
        Ok(CheckOutcome::new(
            verdict,
            json!({"verdict": verdict, "not": self.common.not, "explanation": explanation, "textExcerpt": excerpt(text)}),
        ))
    }
}

#[derive(Debug)]
struct NotNull {
    common: TextParameters,
}

impl NotNull {
    fn compile(parameters: Value) -> CompileResult {
        Ok(Box::new(Self { common: read_parameters(parameters)? }))
    }
}

impl Check for NotNull {
    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let is_null = input.texts.iter().all(|part| part.text.trim().is_empty());
        let verdict = is_null == self.common.not;
        let explanation = if is_null { "the response has no content" } else { "the response has content" };
        let word = if verdict { "passed" } else { "failed" };
        Ok(CheckOutcome::new(
            verdict,
            json!({"isNull": is_null, "contentType": if input.texts.is_empty() { "none" } else { "text" },
                "textArrayLength": input.texts.len(), "explanation": explanation, "verdict": word}),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Stage,
            tests::{run_on, run_on_bodies, verdict},
        },
        *,
    };

    #[test]
    fn patterns_match_or_must_not_match() {
        let rule = |not: bool| json!({"rule": r"\bsk-[a-z]+", "not": not});
        assert!(verdict("default.regexMatch", rule(false), "the key sk-abc"));
        assert!(!verdict("default.regexMatch", rule(true), "the key sk-abc"));
        let outcome = run_on("default.regexMatch", json!({"rule": "(?<n>b)(c)?"}), Stage::Input, "\u{1f6b0}b").unwrap();
        assert_eq!(
            outcome.data["matchDetails"],
            json!({"matchedText": "b", "index": 2, "groups": {"n": "b"}, "captures": ["b", null]})
        );
        assert!(run_on("default.regexMatch", json!({"rule": "a"}), Stage::Input, "").is_err());
    }

    #[test]
    fn a_text_that_cannot_be_searched_fails() {
        let rule = json!({"rule": "(?=(a+))\\1+b", "not": true});
        let outcome = run_on("default.regexMatch", rule, Stage::Input, &"a".repeat(40_000)).unwrap();
        assert_eq!((outcome.verdict, outcome.error), (false, None));
    }

    #[test]
    fn counts_are_inclusive() {
        assert!(verdict("default.wordCount", json!({"minWords": 2, "maxWords": 2}), " two  words\n"));
        assert!(!verdict("default.wordCount", json!({"maxWords": 1}), "two words"));
        assert!(verdict("default.sentenceCount", json!({"minSentences": 2, "maxSentences": 2}), "One. Two?"));
        assert!(verdict("default.sentenceCount", json!({"maxSentences": 0}), ""));
        assert!(verdict("default.wordCount", json!({"minWords": 3, "maxWords": 3}), "\u{b}one\u{c}two\rthree"));
        assert!(verdict("default.wordCount", json!({"minWords": 3, "maxWords": 3}), "\u{a0}à\u{2003}b\u{1f}c d"));
        // A character beyond the basic plane counts as two.
        assert!(verdict("default.characterCount", json!({"minCharacters": 3, "maxCharacters": 3}), "a\u{1f6b0}"));
        assert!(run_on("default.characterCount", json!({}), Stage::Input, "").is_err());
    }

    #[test]
    fn words_are_found_even_inside_each_other() {
        let contains = |operator: &str, text: &str| {
            run_on("default.contains", json!({"words": ["cat", "concat"], "operator": operator}), Stage::Output, text)
                .unwrap()
        };
        assert!(
            contains("all", "concat").verdict && contains("any", "a cat").verdict && !contains("none", "a cat").verdict
        );
        let outcome = contains("all", "a cat");
        assert_eq!((outcome.verdict, &outcome.data["missingWords"]), (false, &json!(["concat"])));
        assert!(contains("none", "CAT").verdict);
    }

    #[test]
    fn suffixes_and_case() {
        assert!(
            verdict("default.endsWith", json!({"suffix": "done"}), "all done.")
                && !verdict("default.endsWith", json!({"suffix": "x"}), "y")
        );
        assert!(
            verdict("default.alluppercase", json!({}), "A 1 Ü") && !verdict("default.alluppercase", json!({}), "Ab")
        );
        assert!(
            verdict("default.alllowercase", json!({}), "ab!")
                && verdict("default.isAllLowerCase", json!({"not": true}), "Ab")
        );
    }

    #[test]
    fn empty_responses_are_found() {
        assert!(verdict("default.notNull", json!({}), "x") && !verdict("default.notNull", json!({}), " \n"));
        let calls =
            json!({"choices": [{"message": {"content": null, "tool_calls": [{"function": {"arguments": "{}"}}]}}]});
        assert!(run_on_bodies("default.notNull", json!({}), Stage::Output, &json!({}), &calls).unwrap().verdict);
    }

    #[test]
    fn the_last_message_and_every_choice_are_checked() {
        let request =
            json!({"messages": [{"role": "user", "content": "secret"}, {"role": "user", "content": "hello"}]});
        let finds = |scope: &str| {
            let parameters = json!({"words": ["secret"], "scope": scope});
            run_on_bodies("default.contains", parameters, Stage::Input, &request, &Value::Null).unwrap().verdict
        };
        assert!(!finds("last_message") && finds("user") && finds("all") && !finds("system"));
        let choices = json!({"choices": [{"message": {"content": "a"}}, {"message": {"content": "secret"}}]});
        let outcome =
            run_on_bodies("default.contains", json!({"words": ["secret"]}), Stage::Output, &Value::Null, &choices);
        assert!(outcome.unwrap().verdict);
    }
}
