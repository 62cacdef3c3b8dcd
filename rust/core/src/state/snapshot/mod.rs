//! Everything that Python decided, compiled, immutable, swapped at once; what did not change is shared with the one before.

mod published;
mod tables;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use penstock_llm::catalog::Options;
use sha2::{Digest, Sha256};

pub(crate) use self::published::read_defaults;
use self::tables::{Saved, Tables};
use crate::{
    accounting::prices::Prices,
    auth::jwt::{Passport, Tokens},
    config::Config,
    error::{Error, Problem},
    features::inspect_stream::InspectStream,
    process::secret::Secret,
    resolve::models::{Fields, Models},
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

/// Why a key that is known may do nothing on the data plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lack {
    /// It is an organisation's.
    Workspace,
    Scope,
}

impl Lack {
    pub fn why(self) -> &'static str {
        match self {
            Self::Workspace => "it is an organisation's, and only a workspace's may",
            Self::Scope => "it lacks the scope completions.write",
        }
    }
}

/// What requests with a key have unless they say otherwise; most keys say nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyDefaults {
    /// A slug or an id.
    config: Option<Box<str>>,
    /// Whether a request may bring no other config.
    is_bound: bool,
    metadata: Vec<(String, String)>,
}

impl Key {
    /// The slug or id of the config that is used where none is sent.
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
    /// Unix seconds.
    expires_at: Option<u64>,
}

impl SavedProvider {
    /// Whether header fields are stored with it: what stands in them may be its credential.
    pub fn keeps_fields(&self) -> bool {
        !self.fields.is_empty() || self.models.as_ref().is_some_and(|models| models.keep_fields)
    }
}

/// A workspace, as tokens name it.
#[derive(Debug)]
pub struct Workspace {
    pub id: Arc<str>,
    pub slug: Box<str>,
    pub organisation_id: Box<str>,
}

#[derive(Debug, Default)]
pub struct Snapshot {
    pub epoch: String,
    /// Of the settings file.
    own: Tables,
    /// Of the store, which may hold very many.
    stored: Tables,
    providers: Saved<SavedProvider>,
    /// What workspaces say of all requests made in them.
    metadata: HashMap<Box<str>, Vec<(String, String)>>,
    /// Those that refuse what a request chooses inline.
    blocking: HashSet<Box<str>>,
    /// Those of whose requests records keep figures alone.
    discreet: HashSet<Box<str>>,
    workspaces: Vec<Workspace>,
    tokens: Option<Tokens>,
    pub prices: Arc<Prices>,
    /// Whether the control process has a catalogue of models.
    pub has_catalogue: bool,
    /// Path prefixes that the control process serves.
    management: Vec<String>,
}

impl Snapshot {
    /// Compiles what was published; every problem at once, and nothing of it when there is one.
    pub fn compile(json: &[u8]) -> Result<Self, Vec<Problem>> {
        Self::default().after(json)
    }

    /// What comes of what is here and what was published since: only that is compiled. Where it says nothing of what was
    /// before, it stands for itself.
    pub fn after(&self, json: &[u8]) -> Result<Self, Vec<Problem>> {
        published::compile(self, json, false)
    }

    /// Finds every problem of what was published, whatever it was published after.
    pub fn check(json: &[u8]) -> Result<(), Vec<Problem>> {
        published::compile(&Self::default(), json, true).map(drop)
    }

    pub fn has_keys(&self) -> bool {
        self.tables().any(Tables::has_keys) || self.tokens.is_some()
    }

    /// Whether callers may show tokens in the place of keys.
    pub fn takes_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Who showed this text, where it is a token.
    pub fn passport(&self, text: &str) -> Option<Result<Arc<Passport>, Error>> {
        self.tokens.as_ref()?.read(text, &self.workspaces)
    }

    /// Whether a workspace is called so.
    pub fn is_called(&self, workspace: &str, name: &str) -> bool {
        workspace == name || self.workspaces.iter().any(|one| &*one.id == workspace && &*one.slug == name)
    }

    /// Whether a workspace, or its organisation, refuses what a request chooses inline.
    pub fn blocks_inline(&self, workspace: Option<&str>) -> bool {
        !self.blocking.is_empty() && workspace.is_some_and(|id| self.blocking.contains(id))
    }

    /// Whether records of a workspace's requests keep figures alone.
    pub fn is_discreet(&self, workspace: Option<&str>) -> bool {
        !self.discreet.is_empty() && workspace.is_some_and(|id| self.discreet.contains(id))
    }

    /// The key with this text.
    pub fn key(&self, text: &str) -> Option<&Key> {
        let digest = digest(text);
        self.tables().find_map(|tables| tables.key(&digest))
    }

    /// Why the key with this text may do nothing here, where it is one of those.
    pub fn lack(&self, text: &str) -> Option<Lack> {
        let mut refusing = self.tables().filter(|tables| tables.has_refused()).peekable();
        refusing.peek()?;
        let digest = digest(text);
        refusing.find_map(|tables| tables.lack(&digest))
    }

    /// Whether there is anything that must not reach a provider.
    pub fn has_own(&self) -> bool {
        self.has_keys() || self.tables().any(Tables::has_refused)
    }

    /// Whether a text is a key of the gateway's, whatever it may do, or a token of somebody whose tokens it takes.
    pub fn is_own(&self, text: &str) -> bool {
        let digest = digest(text);
        self.tables().any(|tables| tables.key(&digest).is_some() || tables.lack(&digest).is_some())
            || self.tokens.as_ref().is_some_and(|tokens| tokens.are_from(text))
    }

    /// One whose end has come is not there, also while nobody publishes that.
    pub fn provider(&self, workspace: Option<&str>, slug: &str) -> Option<&SavedProvider> {
        self.providers.get(workspace, slug).filter(|saved| !saved.expires_at.is_some_and(is_over))
    }

    /// The config of this slug or id.
    pub fn config(&self, workspace: Option<&str>, slug: &str) -> Option<&Config> {
        self.tables().find_map(|tables| tables.config(workspace, slug))
    }

    /// The slug of a config that may be named by its id. What is not active is there for nobody, and the id tells who
    /// misses it.
    pub fn config_slug<'s>(&'s self, named: &'s str) -> &'s str {
        self.tables().find_map(|tables| tables.config_slug(named)).unwrap_or(named)
    }

    /// The store's goes before the file's.
    fn tables(&self) -> impl Iterator<Item = &Tables> {
        [&self.stored, &self.own].into_iter()
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

/// Whether a moment has come, in Unix seconds.
pub(crate) fn is_over(end: u64) -> bool {
    end <= SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Lets go of a snapshot where nobody waits: to free a hundred thousand keys takes longer than a request may. The thread
/// gives way as the one does that compiled: it begins with the same place in the queue for a core.
pub fn bury(mut old: Arc<Snapshot>) {
    if old.stored.count() < MANY {
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
    fn a_provider_whose_end_has_come_is_not_there() {
        let json = br#"{"epoch":"1","providers":[{"slug":"past","provider":"openai","expires_at":1},
            {"slug":"to-come","provider":"openai","expires_at":4000000000}]}"#;
        let snapshot = Snapshot::compile(json).unwrap();
        assert!(snapshot.provider(None, "past").is_none() && snapshot.provider(None, "to-come").is_some());
    }

    #[test]
    fn metadata_as_deep_as_it_may_be_ends_nothing() {
        let deep = format!("{}1{}", "[".repeat(900), "]".repeat(900));
        let json = format!(
            r#"{{"epoch":"1","keys":[{{"id":"k","sha256":"{SHA256_OF_ABC}","defaults":{{"metadata":{{"a":{deep},"b":"\u00e9"}}}}}}]}}"#
        );
        let snapshot = Snapshot::compile(json.as_bytes()).unwrap();
        let told = [("a".to_owned(), deep), ("b".to_owned(), "\u{e9}".to_owned())];
        assert_eq!(snapshot.key("abc").unwrap().metadata(), told);
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
        assert_eq!((key.config().map(|id| snapshot.config_slug(id)), key.is_bound()), (Some("pc-1"), true));
        assert_eq!(snapshot.config_slug("c-2"), "c-2");
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
