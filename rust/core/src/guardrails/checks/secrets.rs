//! Finds credentials by the forms that their issuers document, and replaces them.

use std::{collections::HashSet, ops::Range, sync::LazyLock};

use aho_corasick::AhoCorasick;
use regex::Regex;
use serde::Deserialize;
use serde_json::{Value, json};

use super::replacement::replace_ranges;
use crate::guardrails::{
    check::{Change, Check, CheckError, CheckInput, CheckOutcome, CheckRow, CompileResult, Stages, read_parameters},
    text_scope::TextScope,
    window::{OVERLAP_BYTES, PlaceholderNames, WindowCheck, WindowMatch},
};

pub(super) const ROWS: &[CheckRow] = &[CheckRow {
    id: "gateway.secrets",
    alias: None,
    name: "Secrets",
    description: "fails if the text has a credential, such as an API key or a private key, or replaces it",
    stages: Stages::Both,
    secrets: &[],
    schema: r#"{"properties":{"redact":{"type":"boolean","default":false,"description":"true: replaces what is found by `[SECRET]`, and passes"},"allowed":{"type":"array","maxItems":1000,"items":{"type":"string","minLength":1},"description":"texts that are no secrets, such as example keys"}}}"#,
    shared: &["not", "scope"],
    compile: Secrets::compile,
}];

/// Kind of credential: its name, a word without which it cannot occur, and its pattern.
struct SecretForm {
    name: &'static str,
    keyword: &'static str,
    pattern: &'static str,
}

const fn form(name: &'static str, keyword: &'static str, pattern: &'static str) -> SecretForm {
    SecretForm { name, keyword, pattern }
}

const FORMS: &[SecretForm] = &[
    form(
        "private key",
        "-----BEGIN",
        r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----[A-Za-z0-9+/=\s,:.\\-]{20,}?(?:-----END [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----|$)",
    ),
    form("AWS access key", "AKIA", r"\bAKIA[A-Z2-7]{16}\b"),
    form("AWS temporary access key", "ASIA", r"\bASIA[A-Z2-7]{16}\b"),
    form("GitHub token", "ghp_", r"\bghp_[A-Za-z0-9]{36}\b"),
    form("GitHub OAuth token", "gho_", r"\bgho_[A-Za-z0-9]{36}\b"),
    form("GitHub app token", "ghs_", r"\bghs_[A-Za-z0-9]{36}\b"),
    form("GitHub fine-grained token", "github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{82}\b"),
    form("GitLab token", "glpat-", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    form("Slack token", "xox", r"\bxox[abeprs]-[A-Za-z0-9-]{10,}"),
    form("Slack webhook", "hooks.slack.com", r"hooks\.slack\.com/services/T[A-Z0-9]+/B[A-Z0-9]+/[A-Za-z0-9]+"),
    form("Stripe key", "_live_", r"\b[sr]k_live_[A-Za-z0-9]{16,}"),
    form("Google API key", "AIza", r"\bAIza[A-Za-z0-9_-]{35}"),
    form("Anthropic key", "sk-ant-", r"\bsk-ant-[A-Za-z0-9_-]{20,}"),
    form("OpenAI project key", "sk-proj-", r"\bsk-proj-[A-Za-z0-9_-]{20,}"),
    form("OpenAI key", "T3BlbkFJ", r"\bsk-[A-Za-z0-9_-]*T3BlbkFJ[A-Za-z0-9_-]{20,}"),
    form("OpenRouter key", "sk-or-v1-", r"\bsk-or-v1-[a-f0-9]{64}\b"),
    form("Groq key", "gsk_", r"\bgsk_[A-Za-z0-9]{40,}"),
    form("xAI key", "xai-", r"\bxai-[A-Za-z0-9]{70,}"),
    form("Hugging Face token", "hf_", r"\bhf_[A-Za-z]{34}\b"),
    form("Replicate token", "r8_", r"\br8_[A-Za-z0-9]{37}\b"),
    form("npm token", "npm_", r"\bnpm_[A-Za-z0-9]{36}\b"),
    form("PyPI token", "pypi-", r"\bpypi-AgE[A-Za-z0-9_-]{50,}"),
    form("SendGrid key", "SG.", r"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    form("Twilio key", "SK", r"\bSK[a-f0-9]{32}\b"),
    form("Mailgun key", "key-", r"\bkey-[a-f0-9]{32}\b"),
    form("Telegram bot token", ":AA", r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}\b"),
    form("Databricks token", "dapi", r"\bdapi[a-f0-9]{32}\b"),
    form("HashiCorp Vault token", "hvs.", r"\bhvs\.[A-Za-z0-9_-]{24,}"),
    form("DigitalOcean token", "dop_v1_", r"\bdop_v1_[a-f0-9]{64}\b"),
    form("Shopify token", "shpat_", r"\bshpat_[a-fA-F0-9]{32}\b"),
    form("Square token", "EAAA", r"\bEAAA[A-Za-z0-9_-]{60}\b"),
    form("Doppler token", "dp.pt.", r"\bdp\.pt\.[A-Za-z0-9]{43}\b"),
    form("Linear key", "lin_api_", r"\blin_api_[A-Za-z0-9]{40}\b"),
    form("Notion token", "ntn_", r"\bntn_[A-Za-z0-9]{40,}"),
    form("New Relic key", "NRAK-", r"\bNRAK-[A-Z0-9]{27}\b"),
    form("Age secret key", "AGE-SECRET-KEY-", r"\bAGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}\b"),
    form("Azure storage key", "AccountKey=", r"AccountKey=[A-Za-z0-9+/]{86}=="),
    form("JSON web token", "eyJ", r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}"),
    form("password in a URL", "://", r"\b[a-z][a-z0-9+.-]{1,20}://[^\s:/@]{1,80}:[^\s:/@]{3,80}@[A-Za-z0-9]"),
];

struct SecretForms {
    keywords: AhoCorasick,
    patterns: Vec<Regex>,
}

static COMPILED: LazyLock<Option<SecretForms>> = LazyLock::new(|| {
    let keywords = AhoCorasick::new(FORMS.iter().map(|form| form.keyword)).ok()?;
    // Word boundaries of ASCII, so that other text does not cost more.
    let compile = |form: &SecretForm| Regex::new(&form.pattern.replace(r"\b", r"(?-u:\b)")).ok();
    Some(SecretForms { keywords, patterns: FORMS.iter().map(compile).collect::<Option<_>>()? })
});

#[derive(Debug, Deserialize)]
struct Secrets {
    #[serde(default)]
    redact: bool,
    #[serde(default)]
    allowed: HashSet<String>,
    #[serde(default)]
    not: bool,
    #[serde(default)]
    scope: TextScope,
}

impl Secrets {
    fn compile(parameters: Value) -> CompileResult {
        Ok(Box::new(read_parameters::<Self>(parameters)?))
    }

    /// Returns the secrets of a text in order, without overlaps.
    fn find(&self, forms: &SecretForms, text: &str) -> Vec<(Range<usize>, &'static str)> {
        let mut is_possible = [false; FORMS.len()];
        for found in forms.keywords.find_overlapping_iter(text) {
            is_possible[found.pattern().as_usize()] = true;
        }
        let possible = FORMS.iter().zip(&forms.patterns).zip(is_possible).filter(|(_, is_possible)| *is_possible);
        let mut found: Vec<(Range<usize>, &'static str)> = possible
            .flat_map(|((form, pattern), _)| pattern.find_iter(text).map(|found| (found.range(), form.name)))
            .filter(|(range, _)| !self.allowed.contains(&text[range.clone()]))
            .collect();
        found.sort_by_key(|(range, _)| (range.start, usize::MAX - range.end));
        let mut end = 0;
        found.retain(|(range, _)| {
            let is_kept = range.start >= end;
            if is_kept {
                end = range.end;
            }
            is_kept
        });
        found
    }
}

/// Longest private key or token.
const LONGEST_SECRET_BYTES: usize = 8 * 1024;

impl WindowCheck for Secrets {
    fn scope(&self) -> TextScope {
        self.scope
    }

    fn longest_match(&self) -> usize {
        LONGEST_SECRET_BYTES
    }

    /// A secret has a keyword near its begin, so a text without one is held only as long as any other.
    fn settled_end(&self, text: &str) -> usize {
        let settled = text.len().saturating_sub(OVERLAP_BYTES);
        let Some(forms) = COMPILED.as_ref() else { return 0 };
        let begin = text.floor_char_boundary(text.len().saturating_sub(LONGEST_SECRET_BYTES));
        let first = forms.keywords.find(&text[begin..]).map(|found| begin + found.start());
        first.map_or(settled, |keyword| keyword.saturating_sub(OVERLAP_BYTES).min(settled))
    }

    fn find(&self, text: &str, settled: usize, _names: &mut PlaceholderNames) -> Vec<WindowMatch> {
        let Some(forms) = COMPILED.as_ref() else { return Vec::new() };
        let replacement = self.redact.then(|| "[SECRET]".to_owned());
        let found = self.find(forms, text).into_iter().filter(|(range, _)| range.start < settled);
        found.map(|(range, kind)| WindowMatch { range, replacement: replacement.clone(), kind }).collect()
    }
}

impl Check for Secrets {
    fn window(&self) -> Option<&dyn WindowCheck> {
        (COMPILED.is_some() && (!self.not || self.redact)).then_some(self)
    }

    fn run(&self, input: &CheckInput<'_>) -> Result<CheckOutcome, CheckError> {
        let forms = COMPILED.as_ref().ok_or_else(|| CheckError::new("the patterns of secrets are not valid"))?;
        let (mut kinds, mut changes) = (Vec::new(), Vec::new());
        for index in self.scope.select(input.stage, input.texts, false) {
            let text = &input.texts[index].text;
            let found = self.find(forms, text);
            if self.redact && !found.is_empty() {
                changes.push((index, replace_ranges(text, found.iter().map(|(range, _)| (range.clone(), "[SECRET]")))));
            }
            kinds.extend(found.into_iter().map(|(_, kind)| kind));
        }
        kinds.sort_unstable();
        kinds.dedup();
        let verdict = self.redact || kinds.is_empty() != self.not;
        let explanation = if kinds.is_empty() { "no secret was found" } else { "secrets were found" };
        let data = json!({"verdict": verdict, "not": self.not, "explanation": explanation, "detectedKinds": kinds});
        let change = (!changes.is_empty()).then_some(Change::Texts(changes));
        Ok(CheckOutcome { change, ..CheckOutcome::new(verdict, data) })
    }

    fn may_change(&self) -> bool {
        self.redact
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Stage, tests::run_on},
        *,
    };

    fn kinds(text: &str) -> Value {
        run_on("gateway.secrets", json!({}), Stage::Input, text).unwrap().data["detectedKinds"].clone()
    }

    #[test]
    fn credentials_are_recognised() {
        assert_eq!(COMPILED.as_ref().unwrap().patterns.len(), FORMS.len());
        let letters = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8";
        for (text, kind) in [
            (format!("token ghp_{letters}"), "GitHub token"),
            ("AKIAIOSFODNN7EXAMPLE".to_owned(), "AWS access key"),
            (format!("sk-ant-api03-{letters}"), "Anthropic key"),
            ("postgres://user:hunter2@db.example/x".to_owned(), "password in a URL"),
            (format!("-----BEGIN RSA PRIVATE KEY-----\n{letters}\n-----END RSA PRIVATE KEY-----"), "private key"),
            (format!("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{letters}"), "JSON web token"),
        ] {
            assert_eq!(kinds(&text), json!([kind]), "{text}");
        }
        for text in ["ghp_short", "https://example.com/a@b", "the SK is a key", "-----BEGIN PUBLIC KEY-----"] {
            assert_eq!(kinds(text), json!([]), "{text}");
        }
    }

    #[test]
    fn credentials_are_replaced() {
        let outcome =
            run_on("gateway.secrets", json!({"redact": true}), Stage::Input, "use AKIAIOSFODNN7EXAMPLE now").unwrap();
        assert_eq!(
            (outcome.verdict, outcome.change),
            (true, Some(Change::Texts(vec![(0, "use [SECRET] now".into())])))
        );
        let allowed = json!({"allowed": ["AKIAIOSFODNN7EXAMPLE"]});
        assert!(run_on("gateway.secrets", allowed, Stage::Input, "AKIAIOSFODNN7EXAMPLE").unwrap().verdict);
    }
}
