//! Everything that Python decided, compiled, immutable, swapped whole.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use penstock_llm::providers::{self, Options};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::{
    config::{Config, Unknown},
    error::{Error, Problem},
    features::inspect_stream::InspectStream,
    jwt::{self, Passport, Tokens},
    secret::Secret,
    upstream::Base,
};

/// A gateway key, found by the digest of what the caller sent.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    pub id: String,
    pub name: String,
    sha256: String,
    /// Unix seconds.
    #[serde(default)]
    pub expires_at: Option<u64>,
    /// The one workspace whose saved providers and configs it may use; those of no workspace are everybody's.
    #[serde(default)]
    pub workspace: Option<String>,
    /// Its workspace or organisation refuses what a request chooses inline.
    #[serde(default)]
    pub block_inline_config: bool,
}

impl Key {
    /// What a token stands for.
    pub(crate) fn of_token(user: &str, expires_at: u64, workspace: &Workspace) -> Self {
        Self {
            id: user.to_owned(),
            name: user.to_owned(),
            sha256: String::new(),
            expires_at: Some(expires_at),
            workspace: Some(workspace.id.clone()),
            block_inline_config: workspace.block_inline_config,
        }
    }
}

/// A workspace, as tokens name it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workspace {
    pub id: String,
    pub slug: String,
    pub organisation_id: String,
    pub block_inline_config: bool,
}

/// What was saved under slugs: of everybody, and of one workspace each.
#[derive(Debug)]
struct Saved<T> {
    everybodys: HashMap<String, T>,
    workspaces: HashMap<String, HashMap<String, T>>,
}

impl<T> Default for Saved<T> {
    fn default() -> Self {
        Self { everybodys: HashMap::new(), workspaces: HashMap::new() }
    }
}

impl<T> Saved<T> {
    /// What stood there before, as with a map.
    fn insert(&mut self, workspace: Option<String>, slug: String, value: T) -> Option<T> {
        match workspace {
            Some(workspace) => self.workspaces.entry(workspace).or_default().insert(slug, value),
            None => self.everybodys.insert(slug, value),
        }
    }

    /// A workspace's own goes before everybody's; another's is not there.
    fn get(&self, workspace: Option<&str>, slug: &str) -> Option<&T> {
        let own = workspace.and_then(|workspace| self.workspaces.get(workspace)?.get(slug));
        own.or_else(|| self.everybodys.get(slug))
    }
}

/// A saved provider: a slug that stands for a provider and its credential.
#[derive(Debug, Clone)]
pub struct SavedProvider {
    pub provider: String,
    pub api_key: Option<Secret>,
    pub custom_host: Option<Base>,
    pub inspect_stream: InspectStream,
    pub options: Options,
}

#[derive(Debug, Default)]
pub struct Snapshot {
    pub epoch: String,
    keys: HashMap<[u8; 32], Key>,
    providers: Saved<SavedProvider>,
    configs: Saved<Config>,
    workspaces: Vec<Workspace>,
    tokens: Option<Tokens>,
    /// Path prefixes that the control process serves.
    management: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Published<'a> {
    epoch: String,
    #[serde(default)]
    keys: Vec<Key>,
    #[serde(default)]
    providers: Vec<PublishedProvider>,
    #[serde(default, borrow)]
    configs: Vec<PublishedConfig<'a>>,
    #[serde(default)]
    workspaces: Vec<Workspace>,
    #[serde(default)]
    jwt: Option<jwt::Published>,
    #[serde(default)]
    management: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedProvider {
    slug: String,
    provider: String,
    #[serde(default)]
    api_key: Option<Secret>,
    #[serde(default)]
    custom_host: Option<String>,
    #[serde(default)]
    anthropic_inspect_stream_for_overloaded_error: Option<bool>,
    #[serde(default)]
    options: BTreeMap<String, String>,
    #[serde(default)]
    workspace: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedConfig<'a> {
    slug: String,
    #[serde(default)]
    workspace: Option<String>,
    #[serde(borrow)]
    config: &'a RawValue,
}

impl Snapshot {
    /// Compiles what was published; every problem at once, and nothing of it when there is one.
    pub fn compile(json: &[u8]) -> Result<Self, Vec<Problem>> {
        let published: Published =
            serde_json::from_slice(json).map_err(|error| vec![Problem::new("$", error.to_string())])?;
        let mut problems = Vec::new();
        let snapshot = Self {
            epoch: published.epoch,
            keys: compile_keys(published.keys, &mut problems),
            providers: compile_providers(published.providers, &mut problems),
            configs: compile_configs(published.configs, &mut problems),
            workspaces: published.workspaces,
            tokens: published.jwt.map(|jwt| Tokens::compile(jwt, &mut problems)),
            management: compile_management(published.management, &mut problems),
        };
        if problems.is_empty() { Ok(snapshot) } else { Err(problems) }
    }

    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty() || self.tokens.is_some()
    }

    /// Whether callers may show tokens in the place of keys.
    pub fn takes_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Who showed this text, where it is a token.
    pub fn passport(&self, text: &str) -> Option<Result<Arc<Passport>, Error>> {
        self.tokens.as_ref()?.read(text, &self.workspaces)
    }

    /// The key with this text.
    pub fn key(&self, text: &str) -> Option<&Key> {
        self.keys.get(<[u8; 32]>::from(Sha256::digest(text.as_bytes())).as_slice())
    }

    pub fn provider(&self, workspace: Option<&str>, slug: &str) -> Option<&SavedProvider> {
        self.providers.get(workspace, slug)
    }

    pub fn config(&self, workspace: Option<&str>, slug: &str) -> Option<&Config> {
        self.configs.get(workspace, slug)
    }

    /// Whether the control process serves this path: a prefix of it ends where a segment ends.
    pub fn is_management(&self, path: &str) -> bool {
        self.management.iter().any(|prefix| {
            path.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

fn compile_keys(keys: Vec<Key>, problems: &mut Vec<Problem>) -> HashMap<[u8; 32], Key> {
    let mut compiled = HashMap::with_capacity(keys.len());
    for (index, key) in keys.into_iter().enumerate() {
        match digest(&key.sha256) {
            Some(digest) => drop(compiled.insert(digest, key)),
            None => problems.push(Problem::new(format!("$.keys[{index}].sha256"), "must be 64 hexadecimal digits")),
        }
    }
    compiled
}

fn digest(hex: &str) -> Option<[u8; 32]> {
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, index) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&hex[index..index + 2], 16).ok()?;
    }
    Some(digest)
}

fn compile_providers(saved: Vec<PublishedProvider>, problems: &mut Vec<Problem>) -> Saved<SavedProvider> {
    let mut compiled = Saved::default();
    for (index, row) in saved.into_iter().enumerate() {
        let path = |field: &str| format!("$.providers[{index}].{field}");
        if providers::find(&row.provider).is_none() {
            problems.push(Problem::new(path("provider"), format!("`{}` is not known", row.provider)));
        }
        if row.api_key.as_ref().is_some_and(|key| key.expose().chars().any(char::is_control)) {
            problems.push(Problem::new(path("api_key"), "must not hold control characters"));
        }
        let custom_host = match row.custom_host.as_deref().map(Base::parse).transpose() {
            Ok(base) => base,
            Err(message) => {
                problems.push(Problem::new(path("custom_host"), message));
                None
            }
        };
        let inspect_stream = row.anthropic_inspect_stream_for_overloaded_error.into();
        let mut options = Options::default();
        for (key, value) in row.options {
            match providers::option(&key) {
                Some(_) if value.is_empty() || value.chars().any(char::is_control) => {
                    problems
                        .push(Problem::new(path(&format!("options.{key}")), "must be text without control characters"));
                }
                Some(option) => options.put(option, value),
                None => problems.push(Problem::new(path(&format!("options.{key}")), "is not a known option")),
            }
        }
        let provider =
            SavedProvider { provider: row.provider, api_key: row.api_key, custom_host, inspect_stream, options };
        if compiled.insert(row.workspace, row.slug, provider).is_some() {
            problems.push(Problem::new(path("slug"), "is there twice"));
        }
    }
    compiled
}

fn compile_configs(saved: Vec<PublishedConfig>, problems: &mut Vec<Problem>) -> Saved<Config> {
    let mut compiled = Saved::default();
    for (index, row) in saved.into_iter().enumerate() {
        match Config::parse(row.config.get().as_bytes(), Unknown::Refused) {
            Ok(config) => drop(compiled.insert(row.workspace, row.slug, config)),
            Err(found) => problems.extend(found.into_iter().map(|problem| {
                let rest = problem.path.trim_start_matches('$');
                Problem::new(format!("$.configs[{index}].config{rest}"), problem.message)
            })),
        }
    }
    compiled
}

/// What the control process serves to the engine alone stays out of everybody else's reach, whatever was published.
fn compile_management(prefixes: Vec<String>, problems: &mut Vec<Problem>) -> Vec<String> {
    for (index, prefix) in prefixes.iter().enumerate() {
        let first = prefix.strip_prefix('/').and_then(|rest| rest.split('/').next());
        if matches!(first, None | Some("" | "internal")) {
            problems.push(Problem::new(format!("$.management[{index}]"), "must be a path, and not below `/internal`"));
        }
    }
    prefixes
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA256_OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn finds_a_key_by_its_text() {
        let json = format!(r#"{{"epoch":"1","keys":[{{"id":"k","name":"dev","sha256":"{SHA256_OF_ABC}"}}]}}"#);
        let snapshot = Snapshot::compile(json.as_bytes()).unwrap();
        assert_eq!(snapshot.key("abc").unwrap().id, "k");
        assert!(snapshot.key("abd").is_none());
    }

    #[test]
    fn tells_every_problem() {
        let json = br#"{"epoch":"1","keys":[{"id":"k","name":"n","sha256":"xx"}],
            "providers":[{"slug":"s","provider":"nobody"}],
            "configs":[{"slug":"pc-1","config":{"provider":1}}]}"#;
        let paths: Vec<_> = Snapshot::compile(json).unwrap_err().into_iter().map(|problem| problem.path).collect();
        assert_eq!(paths, ["$.keys[0].sha256", "$.providers[0].provider", "$.configs[0].config.provider"]);
    }

    #[test]
    fn what_a_workspace_saved_is_there_for_its_keys_alone() {
        let json = br#"{"epoch":"1","providers":[{"slug":"s","provider":"openai"},
            {"slug":"s","provider":"groq","workspace":"a"},{"slug":"own","provider":"openai","workspace":"b"}]}"#;
        let snapshot = Snapshot::compile(json).unwrap();
        let found = |workspace, slug| snapshot.provider(workspace, slug).map(|saved| saved.provider.as_str());
        assert_eq!(found(Some("a"), "s"), Some("groq"));
        assert_eq!((found(Some("b"), "s"), found(None, "s")), (Some("openai"), Some("openai")));
        assert_eq!(found(Some("b"), "own"), Some("openai"));
        assert_eq!((found(Some("a"), "own"), found(None, "own")), (None, None));
    }

    #[test]
    fn a_management_prefix_ends_with_its_segment() {
        let snapshot = Snapshot::compile(br#"{"epoch":"1","management":["/v1/health"]}"#).unwrap();
        assert!(snapshot.is_management("/v1/health") && snapshot.is_management("/v1/health/x"));
        assert!(!snapshot.is_management("/v1/healthy"));
    }
}
