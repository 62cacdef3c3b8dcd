//! Finds credentials by the forms that their issuers document, and replaces them.

mod rules;

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::{Value, json};

use self::rules::{FoundSecret, SecretRules};
use super::{allowed_values::AllowedValues, replacement::replace_ranges};
use crate::guardrails::{
    check::{Change, Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages, read_parameters},
    text_scope::TextScope,
    window::{OVERLAP_BYTES, PlaceholderNames, WindowCheck, WindowMatch},
};

/// Replacement of a secret.
const REPLACEMENT: &str = "[SECRET]";

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "gateway.secrets",
    alias: None,
    name: "Secrets",
    description: "fails if the text has a credential, such as an API key or a private key, or replaces it",
    stages: Stages::Both,
    secrets: &[],
    schema: r#"{"properties":{"redact":{"type":"boolean","default":false,"description":"true: replaces what is found by `[SECRET]`, and passes"},"allowed":{"type":"array","maxItems":1000,"items":{"type":"string","minLength":1},"description":"texts that are no secrets, such as example keys"},"allowedPatterns":{"type":"array","maxItems":100,"items":{"type":"string","minLength":1},"description":"regular expressions for whole texts that are no secrets"},"ignoredRules":{"type":"array","maxItems":300,"items":{"type":"string"},"description":"rules that do not apply, such as `generic-api-key`"}}}"#,
    shared: &["not", "scope"],
    compile: Secrets::compile,
}];

/// Maximum number of bytes for a search on a thread that serves requests, as the sum over all possible rules. A rule
/// searches a kilobyte in about five microseconds.
const MAX_INLINE_SEARCH_BYTES: usize = 256 * 1024;

#[derive(Debug)]
struct Secrets {
    redacts: bool,
    allowed: AllowedValues,
    ignored_rules: HashSet<String>,
    not: bool,
    scope: TextScope,
}

impl Secrets {
    fn compile(parameters: Value) -> CompileResult {
        #[derive(Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        #[derive(Default)]
        struct SecretsParameters {
            redact: bool,
            allowed: HashSet<String>,
            allowed_patterns: Vec<String>,
            ignored_rules: HashSet<String>,
            not: bool,
            scope: TextScope,
        }
        let SecretsParameters { redact: redacts, allowed, allowed_patterns, ignored_rules, not, scope } =
            read_parameters(parameters)?;
        let rules = SecretRules::get();
        if let Some(unknown) = ignored_rules.iter().find(|id| rules.is_some_and(|rules| !rules.has_rule(id))) {
            let message = format!("has no rule `{unknown}`; `detectedKinds` of a result names rules");
            return Err((".ignoredRules".to_owned(), message));
        }
        let allowed = AllowedValues::compile(allowed, &allowed_patterns)?;
        Ok(Box::new(Self { redacts, allowed, ignored_rules, not, scope }))
    }

    /// Returns the secrets of a text in order, without overlaps.
    fn find(&self, text: &str) -> Vec<FoundSecret> {
        let Some(rules) = SecretRules::get() else { return Vec::new() };
        let mut possible = rules.find_possible(text);
        possible.retain(|rule| !self.ignored_rules.contains(&*rule.id));
        let mut secrets = rules.find(&possible, text);
        secrets.retain(|secret| !self.allowed.includes(&text[secret.range.clone()]));
        secrets
    }
}

impl WindowCheck for Secrets {
    fn scope(&self) -> TextScope {
        self.scope
    }

    fn longest_match(&self) -> usize {
        SecretRules::longest()
    }

    /// Every secret has a keyword near its beginning. So text without a keyword is held back no longer than other
    /// checks hold text back.
    fn settled_end(&self, text: &str) -> usize {
        SecretRules::get().map_or(0, |rules| rules.settled_end(text, OVERLAP_BYTES))
    }

    fn find(&self, text: &str, settled: usize, _names: &mut PlaceholderNames) -> Vec<WindowMatch> {
        let replacement = self.redacts.then(|| REPLACEMENT.to_owned());
        let secrets = self.find(text).into_iter().filter(|secret| secret.range.start < settled);
        secrets
            .map(|secret| WindowMatch { range: secret.range, replacement: replacement.clone(), kind: secret.kind })
            .collect()
    }
}

impl Check for Secrets {
    fn window(&self) -> Option<&dyn WindowCheck> {
        (SecretRules::get().is_some() && (!self.not || self.redacts)).then_some(self)
    }

    fn memory_bytes(&self) -> usize {
        self.allowed.memory_bytes()
    }

    fn is_costly(&self, input: &CheckInput<'_>) -> bool {
        let Some(rules) = SecretRules::get() else { return false };
        let indexes = self.scope.select(input.stage, input.texts, false);
        let texts = indexes.iter().map(|index| &input.texts[*index].text);
        let bytes: usize = texts.map(|text| text.len() * rules.find_possible(text).len()).sum();
        bytes > MAX_INLINE_SEARCH_BYTES
    }

    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        if SecretRules::get().is_none() {
            return Err(CheckError::new("the rules of secrets are not valid"));
        }
        let (mut kinds, mut changes) = (Vec::new(), Vec::new());
        for index in self.scope.select(input.stage, input.texts, false) {
            let text = &input.texts[index].text;
            let secrets = self.find(text);
            if self.redacts && !secrets.is_empty() {
                let replacements = secrets.iter().map(|secret| (secret.range.clone(), REPLACEMENT));
                changes.push((index, replace_ranges(text, replacements)));
            }
            kinds.extend(secrets.into_iter().map(|secret| secret.kind));
        }
        kinds.sort_unstable();
        kinds.dedup();
        let verdict = self.redacts || kinds.is_empty() != self.not;
        let explanation = if kinds.is_empty() { "no secret was found" } else { "secrets were found" };
        let data = json!({"verdict": verdict, "not": self.not, "explanation": explanation, "detectedKinds": kinds});
        let change = (!changes.is_empty()).then_some(Change::Texts(changes));
        Ok(CheckOutcome { change, ..CheckOutcome::new(verdict, data) })
    }

    fn may_change(&self) -> bool {
        self.redacts
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Stage, compile_check,
            tests::{input_of, run_on},
        },
        *,
    };
    use crate::parse::document_reader::Strictness;

    /// Invented key that is not in use anywhere.
    const AWS_KEY: &str = "AKIALALEMEL33243OLIA";

    fn kinds(text: &str) -> Value {
        run_on("gateway.secrets", json!({}), Stage::Input, text).unwrap().data["detectedKinds"].clone()
    }

    #[test]
    fn credentials_are_recognised() {
        let letters = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8";
        for (text, kind) in [
            (format!("token ghp_{letters}"), "github-pat"),
            (AWS_KEY.to_owned(), "aws-access-token"),
            (format!("sk-ant-api03-{letters}"), "anthropic-key"),
            ("postgres://user:hunter2@db.example/x".to_owned(), "password-in-url"),
            (format!("-----BEGIN RSA PRIVATE KEY-----\n{letters}\n"), "private-key"),
            (format!("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{letters}"), "jwt"),
        ] {
            assert_eq!(kinds(&text), json!([kind]), "{text}");
        }
        for text in ["ghp_short", "https://example.com/a@b", "the SK is a key", "-----BEGIN PUBLIC KEY-----"] {
            assert_eq!(kinds(text), json!([]), "{text}");
        }
    }

    #[test]
    fn credentials_are_replaced() {
        let text = format!("use {AWS_KEY} now, größer");
        let run = |parameters: Value| run_on("gateway.secrets", parameters, Stage::Input, &text).unwrap();
        let outcome = run(json!({"redact": true}));
        let expected = Some(Change::Texts(vec![(0, "use [SECRET] now, größer".into())]));
        assert_eq!((outcome.verdict, outcome.change), (true, expected));
        for parameters in [
            json!({"allowed": [AWS_KEY]}),
            json!({"allowedPatterns": ["AKIA[A-Z2-7]+"]}),
            json!({"ignoredRules": ["aws-access-token"]}),
        ] {
            assert!(run(parameters.clone()).verdict, "{parameters}");
        }
        assert!(!run(json!({"allowedPatterns": ["AKIA"]})).verdict);
    }

    #[test]
    fn parameters_are_validated() {
        for (name, value) in [("ignoredRules", "none"), ("allowedPatterns", "("), ("allowedPatterns", "(?=a)b")] {
            let parameters = json!({name: [value]});
            let problems = compile_check("gateway.secrets", &parameters, "$", Strictness::StrictWithLints).unwrap_err();
            assert_eq!(problems[0].path, format!("$.parameters.{name}"));
        }
    }

    #[test]
    fn work_for_many_rules_is_costly() {
        let all = "key token secret auth access password adafruit adobe airtable algolia asana ghp_ sk_live_ xoxb eyj ";
        let is_costly = |text: &str| {
            let compiled = compile_check("gateway.secrets", &json!({}), "$", Strictness::StrictWithLints).unwrap();
            let request = json!({"messages": [{"role": "user", "content": text}]});
            compiled.check.is_costly(&input_of(&request, &penstock_llm::texts::request_texts(&request)))
        };
        assert!(!is_costly(&"lorem ipsum ".repeat(2000)) && is_costly(&all.repeat(300)));
    }
}
