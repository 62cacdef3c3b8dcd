//! Rules that recognise credentials: the rules of gitleaks, and own rules for forms that gitleaks lacks. A rule is
//! compiled when a text first has one of its keywords, because all rules together would take megabytes.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{LazyLock, OnceLock},
};

use aho_corasick::AhoCorasick;
use regex_automata::{Input, meta::Regex, util::syntax};
use serde::Deserialize;

/// Rules of gitleaks as data, so that a newer version needs no code.
const GITLEAKS: &str = include_str!("../../data/gitleaks.json");
/// Maximum compiled bytes of one rule.
const MAX_COMPILED_BYTES: usize = 2 * 1024 * 1024;
/// Maximum bytes of a match that a stream is held back for. It also applies to rules with matches of any length.
const LONGEST_SECRET_BYTES: usize = 8 * 1024;

/// Patterns that gitleaks has no rule for: keys of model providers, and secrets that a truncated text shows in part.
const ADDITIONAL_RULES: &[AdditionalRule] = &[
    rule(
        "private-key",
        "-----begin",
        r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----[A-Za-z0-9+/=\s,:.\\-]{20,}?(?:-----END [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----|$)",
    ),
    rule("anthropic-key", "sk-ant-", r"\bsk-ant-[A-Za-z0-9_-]{20,}"),
    rule("openai-project-key", "sk-proj-", r"\bsk-proj-[A-Za-z0-9_-]{20,}"),
    rule("openai-key", "t3blbkfj", r"\bsk-[A-Za-z0-9_-]*T3BlbkFJ[A-Za-z0-9_-]{20,}"),
    rule("openrouter-key", "sk-or-v1-", r"\bsk-or-v1-[a-f0-9]{64}\b"),
    rule("groq-key", "gsk_", r"\bgsk_[A-Za-z0-9]{40,}"),
    rule("xai-key", "xai-", r"\bxai-[A-Za-z0-9]{70,}"),
    rule("replicate-token", "r8_", r"\br8_[A-Za-z0-9]{37}\b"),
    rule("gitlab-token", "glpat-", r"\bglpat-[A-Za-z0-9_-]{20,}"),
    rule("slack-token", "xox", r"\bxox[abeprs]-[A-Za-z0-9-]{10,}"),
    rule("google-api-key", "aiza", r"\bAIza[A-Za-z0-9_-]{35}"),
    rule("stripe-live-key", "_live_", r"\b[sr]k_live_[A-Za-z0-9]{16,}"),
    rule("vault-token", "hvs.", r"\bhvs\.[A-Za-z0-9_-]{24,}"),
    rule("notion-token", "ntn_", r"\bntn_[A-Za-z0-9]{40,}"),
    rule("square-token", "eaaa", r"\bEAAA[A-Za-z0-9_-]{60}\b"),
    rule("azure-storage-key", "accountkey=", r"AccountKey=([A-Za-z0-9+/]{86}==)"),
    rule("jwt", "eyj", r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}"),
    rule("password-in-url", "://", r"\b[a-z][a-z0-9+.-]{1,20}://[^\s:/@]{1,80}:[^\s:/@]{3,80}@[A-Za-z0-9]"),
];

struct AdditionalRule {
    id: &'static str,
    keyword: &'static str,
    pattern: &'static str,
}

const fn rule(id: &'static str, keyword: &'static str, pattern: &'static str) -> AdditionalRule {
    AdditionalRule { id, keyword, pattern }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    allowed: AllowList,
    rules: Vec<RuleSource>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleSource {
    id: String,
    pattern: String,
    keywords: Vec<String>,
    /// Shannon entropy in bits per character that the secret must exceed.
    #[serde(default)]
    entropy: f64,
    /// Number of the group that holds the secret. 0: the first group that matched, or else the whole match.
    #[serde(default)]
    group: usize,
    #[serde(default)]
    allowed: Vec<AllowList>,
}

/// Part of a match that an allow-list is compared with.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AllowTarget {
    #[default]
    Secret,
    Match,
    Line,
}

/// Texts that are no secrets, such as placeholders.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowList {
    #[serde(default)]
    target: AllowTarget,
    #[serde(default)]
    patterns: Vec<String>,
    #[serde(default)]
    words: Vec<String>,
    #[serde(skip)]
    compiled: OnceLock<(Option<Regex>, Option<AhoCorasick>)>,
}

impl AllowList {
    fn allows(&self, secret: &str, whole: &str, line: &str) -> bool {
        let compile = || {
            let patterns = (!self.patterns.is_empty()).then(|| compile_patterns(&self.patterns)).flatten();
            let words = AhoCorasick::builder().ascii_case_insensitive(true).build(&self.words).ok();
            (patterns, words.filter(|_| !self.words.is_empty()))
        };
        let (patterns, words) = self.compiled.get_or_init(compile);
        let target = match self.target {
            AllowTarget::Secret => secret,
            AllowTarget::Match => whole,
            AllowTarget::Line => line,
        };
        patterns.as_ref().is_some_and(|patterns| patterns.is_match(target))
            || words.as_ref().is_some_and(|words| words.is_match(secret))
    }
}

/// A kind of credential.
pub(super) struct SecretRule {
    pub id: Box<str>,
    source: String,
    entropy: f64,
    group: usize,
    allowed: Vec<AllowList>,
    compiled: OnceLock<Option<Regex>>,
    longest: OnceLock<usize>,
}

/// A secret in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundSecret {
    pub range: Range<usize>,
    pub kind: &'static str,
}

pub(super) struct SecretRules {
    rules: Vec<SecretRule>,
    /// For each keyword, the indexes of its rules in `rules`.
    rules_by_keyword: Vec<Vec<usize>>,
    keywords: AhoCorasick,
    allowed: AllowList,
}

static RULES: LazyLock<Option<SecretRules>> = LazyLock::new(SecretRules::load);

/// Compiles patterns whose classes are ASCII, so that other text does not cost more and the patterns stay small.
fn compile_patterns(patterns: &[impl AsRef<str>]) -> Option<Regex> {
    let syntax = syntax::Config::new().unicode(false).utf8(false);
    let config = regex_automata::meta::Config::new().nfa_size_limit(Some(MAX_COMPILED_BYTES)).utf8_empty(false);
    let patterns: Vec<_> = patterns.iter().map(AsRef::as_ref).collect();
    regex_automata::meta::Builder::new().configure(config).syntax(syntax).build_many(&patterns).ok()
}

impl SecretRules {
    /// Returns all rules. `None` only if the built-in data is broken, which a test excludes.
    pub fn get() -> Option<&'static Self> {
        RULES.as_ref()
    }

    fn load() -> Option<Self> {
        let RuleFile { allowed, rules: sources } = serde_json::from_str(GITLEAKS).ok()?;
        let mut rules = Vec::new();
        let (mut keywords, mut rules_by_keyword): (Vec<String>, Vec<Vec<usize>>) = (Vec::new(), Vec::new());
        let mut indexes: HashMap<String, usize> = HashMap::new();
        let own = ADDITIONAL_RULES.iter().map(|form| RuleSource {
            id: form.id.to_owned(),
            pattern: form.pattern.to_owned(),
            keywords: vec![form.keyword.to_owned()],
            entropy: 0.0,
            group: 0,
            allowed: Vec::new(),
        });
        for source in sources.into_iter().chain(own) {
            for keyword in source.keywords {
                let index = *indexes.entry(keyword.clone()).or_insert_with(|| {
                    keywords.push(keyword);
                    rules_by_keyword.push(Vec::new());
                    keywords.len() - 1
                });
                rules_by_keyword[index].push(rules.len());
            }
            rules.push(SecretRule {
                id: source.id.into(),
                source: source.pattern,
                entropy: source.entropy,
                group: source.group,
                allowed: source.allowed,
                compiled: OnceLock::new(),
                longest: OnceLock::new(),
            });
        }
        let keywords = AhoCorasick::builder().ascii_case_insensitive(true).build(&keywords).ok()?;
        Some(Self { rules, rules_by_keyword, keywords, allowed })
    }

    /// Returns true if a rule has this id.
    pub fn has_rule(&self, id: &str) -> bool {
        self.rules.iter().any(|rule| &*rule.id == id)
    }

    /// Returns the rules that have a keyword in the text.
    pub fn find_possible(&'static self, text: &str) -> Vec<&'static SecretRule> {
        let mut is_possible = vec![false; self.rules.len()];
        for keyword in self.keywords.find_overlapping_iter(text) {
            for rule in &self.rules_by_keyword[keyword.pattern().as_usize()] {
                is_possible[*rule] = true;
            }
        }
        self.rules.iter().zip(is_possible).filter(|(_, is_possible)| *is_possible).map(|(rule, _)| rule).collect()
    }

    /// Returns the secrets that these rules find in a text, in order and without overlaps.
    pub fn find(&'static self, rules: &[&'static SecretRule], text: &str) -> Vec<FoundSecret> {
        let mut secrets: Vec<_> = rules.iter().flat_map(|rule| rule.find(text, &self.allowed)).collect();
        secrets.sort_by_key(|secret| (secret.range.start, usize::MAX - secret.range.end));
        let mut end = 0;
        secrets.retain(|secret| {
            let is_kept = secret.range.start >= end;
            if is_kept {
                end = secret.range.end;
            }
            is_kept
        });
        secrets
    }

    /// Returns the position up to which the text is settled: more text cannot complete a secret that begins before it.
    pub fn settled_end(&self, text: &str, overlap_bytes: usize) -> usize {
        let mut settled = text.len().saturating_sub(overlap_bytes);
        let begin = text.floor_char_boundary(text.len().saturating_sub(LONGEST_SECRET_BYTES));
        for keyword in self.keywords.find_overlapping_iter(&text[begin..]) {
            let at = begin + keyword.start();
            let rules = &self.rules_by_keyword[keyword.pattern().as_usize()];
            let longest = rules.iter().map(|rule| self.rules[*rule].longest()).max().unwrap_or_default();
            // More text cannot complete a match around a keyword that is further from the end than the longest match.
            if at + longest >= text.len() {
                settled = settled.min(at.saturating_sub(overlap_bytes));
            }
        }
        settled
    }

    /// Returns the maximum bytes of a match that a stream is held back for.
    pub fn longest() -> usize {
        LONGEST_SECRET_BYTES
    }
}

impl SecretRule {
    fn regex(&self) -> Option<&Regex> {
        self.compiled.get_or_init(|| compile_patterns(&[&self.source])).as_ref()
    }

    /// Returns the length of the longest match in bytes.
    fn longest(&self) -> usize {
        *self.longest.get_or_init(|| {
            let syntax = syntax::Config::new().unicode(false).utf8(false);
            let length = syntax::parse_with(&self.source, &syntax).ok().and_then(|hir| hir.properties().maximum_len());
            length.map_or(LONGEST_SECRET_BYTES, |length| length.min(LONGEST_SECRET_BYTES))
        })
    }

    fn find(&'static self, text: &str, global_allow_list: &AllowList) -> Vec<FoundSecret> {
        let Some(regex) = self.regex() else { return Vec::new() };
        let mut secrets = Vec::new();
        for captures in regex.captures_iter(Input::new(text)) {
            let Some(whole) = captures.get_match() else { continue };
            let first =
                || (1..captures.group_len()).find_map(|group| captures.get_group(group).filter(|it| !it.is_empty()));
            let group = if self.group > 0 { captures.get_group(self.group) } else { first() };
            let range = group.map_or(whole.range(), |span| span.range());
            // The patterns match bytes.
            let range = text.floor_char_boundary(range.start)..text.ceil_char_boundary(range.end);
            let whole = text.floor_char_boundary(whole.start())..text.ceil_char_boundary(whole.end());
            let secret = &text[range.clone()];
            if self.entropy > 0.0 && entropy(secret) <= self.entropy {
                continue;
            }
            let line_start = text[..whole.start].rfind('\n').map_or(0, |at| at + 1);
            let line_end = text[whole.end..].find('\n').map_or(text.len(), |at| whole.end + at);
            let line = &text[line_start..line_end];
            let lists = std::iter::once(global_allow_list).chain(&self.allowed);
            if !lists.into_iter().any(|list| list.allows(secret, &text[whole.clone()], line)) {
                secrets.push(FoundSecret { range, kind: &self.id });
            }
        }
        secrets
    }
}

/// Returns the Shannon entropy of a text in bits per character.
fn entropy(text: &str) -> f64 {
    let mut counts: HashMap<char, usize> = HashMap::new();
    for letter in text.chars() {
        *counts.entry(letter).or_default() += 1;
    }
    let length: usize = counts.values().sum();
    let share = |count: usize| count as f64 / length as f64;
    counts.into_values().map(|count| -share(count) * share(count).log2()).sum()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Examples of the authors of the rules, one line of JSON a rule.
    const VECTORS: &[u8] = include_bytes!("../../data/gitleaks_vectors.jsonl.gz");

    #[derive(Deserialize)]
    struct RuleVectors {
        rule: String,
        positives: Option<Vec<String>>,
        negatives: Option<Vec<String>>,
    }

    #[test]
    fn entropy_counts_characters_of_any_length() {
        for (text, bits) in [("", 0.0), ("aaaa", 0.0), ("éééé", 0.0), ("abcd", 2.0), ("aé", 1.0), ("äöüß日本語文", 3.0)]
        {
            assert!((entropy(text) - bits).abs() < 1e-9, "{text}: {}", entropy(text));
        }
    }

    #[test]
    fn every_rule_compiles_and_has_lower_case_keywords() {
        let rules = SecretRules::get().unwrap();
        assert!(rules.rules.len() > 220);
        for rule in &rules.rules {
            assert!(rule.regex().is_some(), "{}: {}", rule.id, rule.source);
            for list in &rule.allowed {
                list.allows("", "", "");
                assert_eq!(list.compiled.get().unwrap().0.is_some(), !list.patterns.is_empty(), "{}", rule.id);
            }
        }
        assert!(rules.rules_by_keyword.iter().all(|rules| !rules.is_empty()));
    }

    #[test]
    fn every_example_of_the_rules_is_decided_as_by_their_authors() {
        let rules = SecretRules::get().unwrap();
        let mut lines = String::new();
        flate2::read::GzDecoder::new(VECTORS).read_to_string(&mut lines).unwrap();
        let (mut count, mut wrong) = (0, Vec::new());
        for line in lines.lines() {
            let vectors: RuleVectors = serde_json::from_str(line).unwrap();
            let Some(rule) = rules.rules.iter().find(|rule| *rule.id == *vectors.rule) else { continue };
            let finds = |text: &str| {
                let is_possible = rules.find_possible(text).iter().any(|possible| possible.id == rule.id);
                is_possible && !rule.find(text, &rules.allowed).is_empty()
            };
            let positives = vectors.positives.unwrap_or_default().into_iter().map(|text| (text, true));
            let negatives = vectors.negatives.unwrap_or_default().into_iter().map(|text| (text, false));
            for (text, expected) in positives.chain(negatives) {
                count += 1;
                if finds(&text) != expected {
                    wrong.push(format!("{} {expected}: {text:?}", vectors.rule));
                }
            }
        }
        assert!(count > 6000, "{count}");
        assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    }
}
