//! Everything that Python decided, compiled, immutable, swapped whole.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use penstock_llm::providers::{self, Options};
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};
use sha2::{Digest, Sha256};

use crate::{
    config::{Config, Unknown},
    error::{Error, Problem},
    features::inspect_stream::InspectStream,
    jwt::{self, Passport, Tokens},
    models::{self, Fields, Models, PublishedModels},
    prices::{self, Prices},
    secret::Secret,
    upstream::Base,
};

/// Keys that take noticeable time to be freed.
const MANY: usize = 1000;
/// Tenths of a second: longer than a request waits for its answer.
const PATIENCE: u32 = 3000;

/// A gateway key, found by the digest of what the caller sent.
#[derive(Debug, Clone)]
pub struct Key {
    pub id: Box<str>,
    pub name: Box<str>,
    /// Unix seconds.
    pub expires_at: Option<u64>,
    /// The one workspace whose saved providers and configs it may use; those of no workspace are everybody's.
    pub workspace: Option<Arc<str>>,
    pub(crate) defaults: Option<Box<KeyDefaults>>,
}

/// What requests with a key have unless they say otherwise; most keys say nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyDefaults {
    /// A slug.
    config: Option<Box<str>>,
    /// Whether a request may bring no other config.
    is_bound: bool,
    metadata: Vec<(String, String)>,
}

impl Key {
    /// The slug of the config that is used where none is sent.
    pub fn config(&self) -> Option<&str> {
        self.defaults.as_ref()?.config.as_deref()
    }

    /// What it says of all requests made with it.
    pub fn metadata(&self) -> &[(String, String)] {
        self.defaults.as_ref().map_or(&[], |defaults| &defaults.metadata)
    }

    /// Whether a request may bring no other config.
    pub fn is_bound(&self) -> bool {
        self.defaults.as_ref().is_some_and(|defaults| defaults.is_bound)
    }
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
    pub fields: Fields,
    pub models: Option<Arc<Models>>,
}

#[derive(Debug, Default)]
pub struct Snapshot {
    pub epoch: String,
    keys: HashMap<[u8; 32], Key>,
    providers: Saved<SavedProvider>,
    configs: Saved<Config>,
    /// The slugs of configs by their ids.
    config_ids: HashMap<Box<str>, Box<str>>,
    /// What workspaces say of all requests made in them.
    metadata: HashMap<Box<str>, Vec<(String, String)>>,
    /// Those that refuse what a request chooses inline.
    blocking: HashSet<Box<str>>,
    workspaces: Vec<Workspace>,
    tokens: Option<Tokens>,
    pub prices: Arc<Prices>,
    /// Whether the control process has a catalogue of models.
    pub has_catalogue: bool,
    /// Path prefixes that the control process serves.
    management: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Published<'a> {
    epoch: String,
    #[serde(default, borrow)]
    keys: Vec<PublishedKey<'a>>,
    #[serde(default)]
    providers: Vec<PublishedProvider>,
    #[serde(default)]
    models: Vec<PublishedModels>,
    #[serde(default)]
    workspaces: Vec<PublishedWorkspace>,
    #[serde(default)]
    jwt: Option<jwt::Published>,
    #[serde(default)]
    prices: prices::Published,
    #[serde(default)]
    catalogue: bool,
    #[serde(default, borrow)]
    configs: Vec<PublishedConfig<'a>>,
    #[serde(default)]
    management: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedKey<'a> {
    id: Box<str>,
    name: Box<str>,
    #[serde(borrow)]
    sha256: Cow<'a, str>,
    #[serde(default)]
    expires_at: Option<u64>,
    #[serde(default, borrow)]
    workspace: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    defaults: Option<PublishedDefaults<'a>>,
}

/// What a key is published with, and what a token says in `defaults`.
#[derive(Deserialize)]
pub(crate) struct PublishedDefaults<'a> {
    #[serde(default, borrow)]
    config_id: Option<Cow<'a, str>>,
    #[serde(default)]
    allow_config_override: Option<bool>,
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedWorkspace {
    id: Box<str>,
    #[serde(default)]
    slug: Box<str>,
    #[serde(default)]
    organisation_id: Box<str>,
    #[serde(default)]
    block_inline_config: bool,
    #[serde(default)]
    metadata: Map<String, Value>,
}

/// A workspace, as tokens name it.
#[derive(Debug)]
pub struct Workspace {
    pub id: Arc<str>,
    pub slug: Box<str>,
    pub organisation_id: Box<str>,
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
    headers: BTreeMap<String, String>,
    /// The id of what is said of its models.
    #[serde(default)]
    models: Option<String>,
    #[serde(default)]
    workspace: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedConfig<'a> {
    #[serde(default)]
    id: Option<Box<str>>,
    slug: String,
    #[serde(default)]
    workspace: Option<String>,
    #[serde(borrow)]
    config: &'a RawValue,
}

impl PublishedWorkspace {
    fn named(&self) -> Workspace {
        Workspace { id: Arc::from(&*self.id), slug: self.slug.clone(), organisation_id: self.organisation_id.clone() }
    }
}

impl Snapshot {
    /// Compiles what was published; every problem at once, and nothing of it when there is one.
    pub fn compile(json: &[u8]) -> Result<Self, Vec<Problem>> {
        let published: Published =
            serde_json::from_slice(json).map_err(|error| vec![Problem::new("$", error.to_string())])?;
        let mut problems = Vec::new();
        let models = compile_models(published.models, &mut problems);
        let config_ids = ids_of(&published.configs);
        let blocks = |row: &&PublishedWorkspace| row.block_inline_config;
        let blocking = published.workspaces.iter().filter(blocks).map(|row| row.id.clone()).collect();
        let workspaces = published.workspaces.iter().map(PublishedWorkspace::named).collect();
        let snapshot = Self {
            epoch: published.epoch,
            keys: compile_keys(published.keys, &config_ids, &mut problems),
            providers: compile_providers(published.providers, &models, &mut problems),
            configs: compile_configs(published.configs, &mut problems),
            config_ids,
            blocking,
            workspaces,
            prices: Arc::new(Prices::compile(published.prices, &mut problems)),
            tokens: published.jwt.map(|jwt| Tokens::compile(jwt, &mut problems)),
            metadata: published.workspaces.into_iter().map(|row| (row.id, texts(row.metadata))).collect(),
            has_catalogue: published.catalogue,
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
        self.tokens.as_ref()?.read(text, &self.workspaces, &self.config_ids)
    }

    /// Whether a workspace, or its organisation, refuses what a request chooses inline.
    pub fn blocks_inline(&self, workspace: Option<&str>) -> bool {
        !self.blocking.is_empty() && workspace.is_some_and(|id| self.blocking.contains(id))
    }

    /// The key with this text.
    pub fn key(&self, text: &str) -> Option<&Key> {
        self.keys.get(<[u8; 32]>::from(Sha256::digest(text.as_bytes())).as_slice())
    }

    pub fn provider(&self, workspace: Option<&str>, slug: &str) -> Option<&SavedProvider> {
        self.providers.get(workspace, slug)
    }

    /// The config of this slug or id.
    pub fn config(&self, workspace: Option<&str>, slug: &str) -> Option<&Config> {
        let by_id = || self.configs.get(workspace, self.config_ids.get(slug)?);
        self.configs.get(workspace, slug).or_else(by_id)
    }

    /// What a key says of all requests made with it, and its workspace of all made there; the latter goes first.
    pub fn metadata<'s>(&'s self, key: &'s Key) -> [&'s [(String, String)]; 2] {
        let own = key.metadata();
        let shared = key.workspace.as_ref().and_then(|workspace| self.metadata.get(&**workspace));
        [own, shared.map_or(&[], Vec::as_slice)]
    }

    /// Whether the control process serves this path: a prefix of it ends where a segment ends.
    pub fn is_management(&self, path: &str) -> bool {
        self.management.iter().any(|prefix| {
            path.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

/// Lets go of a snapshot where nobody waits: to free a hundred thousand keys takes longer than a request may. The thread
/// gives way as the one does that compiled: it begins with the same place in the queue for a core.
pub fn bury(mut old: Arc<Snapshot>) {
    if old.keys.len() < MANY {
        return;
    }
    let gravedigger = std::thread::Builder::new().name("bury".into());
    // Whoever holds it lets go of it in a moment; should one not, it frees it itself.
    drop(gravedigger.spawn(move || {
        for _ in 0..PATIENCE {
            match Arc::try_unwrap(old) {
                Ok(last) => return drop(last),
                Err(held) => old = held,
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }));
}

fn compile_keys(
    keys: Vec<PublishedKey>,
    configs: &HashMap<Box<str>, Box<str>>,
    problems: &mut Vec<Problem>,
) -> HashMap<[u8; 32], Key> {
    let mut compiled = HashMap::with_capacity(keys.len());
    // Many keys are of one workspace: its id is kept once.
    let mut workspaces: HashSet<Arc<str>> = HashSet::new();
    for (index, row) in keys.into_iter().enumerate() {
        let Some(digest) = digest(&row.sha256) else {
            problems.push(Problem::new(format!("$.keys[{index}].sha256"), "must be 64 hexadecimal digits"));
            continue;
        };
        let workspace = row.workspace.map(|id| shared(&mut workspaces, &id));
        let defaults = row.defaults.and_then(|defaults| compile_defaults(defaults, configs));
        compiled.insert(digest, Key { id: row.id, name: row.name, expires_at: row.expires_at, workspace, defaults });
    }
    compiled
}

pub(crate) fn compile_defaults(
    said: PublishedDefaults,
    configs: &HashMap<Box<str>, Box<str>>,
) -> Option<Box<KeyDefaults>> {
    // What is not active is there for nobody, and the id tells who misses it.
    let slug_of = |id: Cow<'_, str>| configs.get(&*id).cloned().unwrap_or_else(|| id.into());
    let config = said.config_id.map(slug_of);
    let is_bound = config.is_some() && said.allow_config_override == Some(false);
    let metadata = texts(said.metadata.unwrap_or_default());
    (config.is_some() || !metadata.is_empty()).then(|| Box::new(KeyDefaults { config, is_bound, metadata }))
}

/// The one copy of a text.
fn shared(known: &mut HashSet<Arc<str>>, text: &str) -> Arc<str> {
    if let Some(found) = known.get(text) {
        return Arc::clone(found);
    }
    let text: Arc<str> = text.into();
    known.insert(Arc::clone(&text));
    text
}

/// The values as texts.
fn texts(map: Map<String, Value>) -> Vec<(String, String)> {
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    map.into_iter().map(|(key, value)| (key, text(value))).collect()
}

fn ids_of(configs: &[PublishedConfig]) -> HashMap<Box<str>, Box<str>> {
    configs.iter().filter_map(|row| Some((row.id.clone()?, row.slug.as_str().into()))).collect()
}

fn compile_models(published: Vec<PublishedModels>, problems: &mut Vec<Problem>) -> HashMap<String, Arc<Models>> {
    let rows = published.into_iter().enumerate();
    rows.map(|(index, row)| (row.id.clone(), Arc::new(Models::compile(row, &format!("$.models[{index}]"), problems))))
        .collect()
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

fn compile_providers(
    saved: Vec<PublishedProvider>,
    models: &HashMap<String, Arc<Models>>,
    problems: &mut Vec<Problem>,
) -> Saved<SavedProvider> {
    let mut compiled = Saved::default();
    for (index, row) in saved.into_iter().enumerate() {
        let path = |field: &str| format!("$.providers[{index}].{field}");
        if providers::find(&row.provider).is_none() {
            problems.push(Problem::new(path("provider"), format!("`{}` is not known", row.provider)));
        }
        if row.api_key.as_ref().is_some_and(|key| key.expose().chars().any(char::is_control)) {
            problems.push(Problem::new(path("api_key"), "must not hold control characters"));
        }
        let own = format!("$.providers[{index}]");
        let custom_host = models::host(row.custom_host.as_deref(), &own, problems);
        let fields = models::fields(row.headers, &own, problems);
        let said = row.models.as_ref().and_then(|id| models.get(id)).map(Arc::clone);
        if row.models.is_some() && said.is_none() {
            problems.push(Problem::new(path("models"), "is not there"));
        }
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
        let provider = SavedProvider {
            provider: row.provider,
            api_key: row.api_key,
            custom_host,
            inspect_stream,
            options,
            fields,
            models: said,
        };
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
        assert_eq!(&*snapshot.key("abc").unwrap().id, "k");
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
    fn a_key_says_what_its_requests_have_and_its_workspace_more() {
        let json = format!(
            r#"{{"epoch":"1","configs":[{{"id":"c-1","slug":"pc-1","workspace":"w","config":{{"provider":"openai"}}}}],
            "workspaces":[{{"id":"w","metadata":{{"team":"blue"}}}}],
            "keys":[{{"id":"k","name":"dev","workspace":"w","sha256":"{SHA256_OF_ABC}","defaults":
                {{"config_id":"c-1","allow_config_override":false,"metadata":{{"team":"red","n":1}}}}}}]}}"#
        );
        let snapshot = Snapshot::compile(json.as_bytes()).unwrap();
        let key = snapshot.key("abc").unwrap();
        assert_eq!((key.config(), key.is_bound()), (Some("pc-1"), true));
        let [own, shared] = snapshot.metadata(key);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!((own, shared), (&[pair("team", "red"), pair("n", "1")][..], &[pair("team", "blue")][..]));
        assert!(snapshot.config(Some("w"), "c-1").is_some() && snapshot.config(None, "c-1").is_none());
    }

    #[test]
    fn a_management_prefix_ends_with_its_segment() {
        let snapshot = Snapshot::compile(br#"{"epoch":"1","management":["/v1/health"]}"#).unwrap();
        assert!(snapshot.is_management("/v1/health") && snapshot.is_management("/v1/health/x"));
        assert!(!snapshot.is_management("/v1/healthy"));
    }
}
