//! Immutable snapshot of the configuration that the control process published: keys, providers, configs and prices.
//! Swapped atomically; unchanged parts are shared with the previous snapshot.

mod published;
mod tables;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use penstock_llm::catalog::Options;
use sha2::{Digest, Sha256};

use self::tables::{LookupTables, WorkspaceScoped};
pub use crate::auth::gateway_key::{GatewayKey, Workspace};
use crate::{
    accounting::{
        prices::Prices,
        saved_models::{HeaderFields, SavedModels},
    },
    auth::jwt::{TokenAuthenticator, TokenIdentity},
    config::Config,
    error::{Error, KeyDenial, Problem},
    features::inspect_stream::InspectStream,
    process::secret::Secret,
    upstream::BaseUrl,
};

/// Number of entries from which a snapshot is freed on a thread of its own, because that takes noticeable time.
const MIN_ENTRIES_FOR_BACKGROUND_DROP: usize = 1000;
/// Number of polls, 100 ms apart, for the last reference to a snapshot: together longer than a request waits for its
/// response.
const MAX_DROP_POLLS: u32 = 3000;

/// A saved provider: a slug that stands for a provider and its credential.
#[derive(Debug, Clone)]
pub struct SavedProvider {
    pub provider: String,
    pub api_key: Option<Secret>,
    pub custom_host: Option<BaseUrl>,
    pub inspect_stream: InspectStream,
    pub options: Options,
    pub header_fields: HeaderFields,
    pub models: Option<Arc<SavedModels>>,
    /// Unix seconds.
    expires_at: Option<u64>,
}

impl SavedProvider {
    /// Returns true if header fields are stored with it. Their values may be its credential.
    pub fn has_header_fields(&self) -> bool {
        !self.header_fields.is_empty() || self.models.as_ref().is_some_and(|models| models.has_stored_fields)
    }
}

#[derive(Debug, Default)]
pub struct Snapshot {
    pub epoch: String,
    /// Tables from the settings file.
    settings_tables: LookupTables,
    /// Tables from the database. They may be very large.
    stored_tables: LookupTables,
    providers: WorkspaceScoped<SavedProvider>,
    /// Metadata that workspaces add to all their requests, by workspace id.
    workspace_metadata: HashMap<Box<str>, Vec<(String, String)>>,
    /// Workspaces that reject inline configs.
    inline_blocking_workspaces: HashSet<Box<str>>,
    /// Workspaces whose request log contains only figures such as usage and cost, no content.
    metrics_only_workspaces: HashSet<Box<str>>,
    workspaces: Vec<Workspace>,
    token_verifier: Option<TokenAuthenticator>,
    pub prices: Arc<Prices>,
    /// True if the control process has a model catalogue.
    pub has_model_catalogue: bool,
    /// Path prefixes that the control process serves.
    management_prefixes: Vec<String>,
}

impl Snapshot {
    /// Compiles a full snapshot. Returns all problems at once; a snapshot with a problem is not used.
    pub fn compile(json: &[u8]) -> Result<Self, Vec<Problem>> {
        Self::default().apply_update(json)
    }

    /// Returns a new snapshot with the published changes applied. Only the changes are compiled. Published JSON without
    /// `since` replaces the snapshot completely.
    pub fn apply_update(&self, json: &[u8]) -> Result<Self, Vec<Problem>> {
        published::compile(self, json, false)
    }

    /// Returns all problems of published JSON, whatever snapshot it is based on.
    pub fn validate(json: &[u8]) -> Result<(), Vec<Problem>> {
        published::compile(&Self::default(), json, true).map(drop)
    }

    pub fn has_keys(&self) -> bool {
        self.tables_by_precedence().any(LookupTables::has_keys) || self.token_verifier.is_some()
    }

    /// Returns true if callers may authenticate with tokens instead of keys.
    pub fn accepts_tokens(&self) -> bool {
        self.token_verifier.is_some()
    }

    /// Verifies a token and returns the identity in it. `None` if the text is not a token.
    pub fn authenticate_token(&self, text: &str) -> Option<Result<Arc<TokenIdentity>, Error>> {
        self.token_verifier.as_ref()?.authenticate(text, &self.workspaces)
    }

    /// Returns true if a workspace has this id or slug.
    pub fn is_workspace_name(&self, workspace: &str, name: &str) -> bool {
        workspace == name || self.workspaces.iter().any(|one| &*one.id == workspace && &*one.slug == name)
    }

    /// Returns true if the workspace or its organisation rejects inline configs.
    pub fn blocks_inline_config(&self, workspace: Option<&str>) -> bool {
        !self.inline_blocking_workspaces.is_empty()
            && workspace.is_some_and(|id| self.inline_blocking_workspaces.contains(id))
    }

    /// Returns true if the request log of this workspace contains only figures, no content.
    pub fn is_metrics_only(&self, workspace: Option<&str>) -> bool {
        !self.metrics_only_workspaces.is_empty()
            && workspace.is_some_and(|id| self.metrics_only_workspaces.contains(id))
    }

    /// Returns the key with this text.
    pub fn find_key(&self, text: &str) -> Option<&GatewayKey> {
        let digest = sha256_digest(text);
        self.tables_by_precedence().find_map(|tables| tables.find_key(&digest))
    }

    /// Returns why the key with this text may not be used here; `None` if it is unknown or allowed.
    pub fn key_denial(&self, text: &str) -> Option<KeyDenial> {
        let mut refusing = self.tables_by_precedence().filter(|tables| tables.has_denied_keys()).peekable();
        refusing.peek()?;
        let digest = sha256_digest(text);
        refusing.find_map(|tables| tables.key_denial(&digest))
    }

    /// Returns true if there are keys or tokens that must not be forwarded to a provider.
    pub fn has_gateway_credentials(&self) -> bool {
        self.has_keys() || self.tables_by_precedence().any(LookupTables::has_denied_keys)
    }

    /// Returns true if a text is a gateway key, denied ones included, or a token from an accepted issuer.
    pub fn is_gateway_credential(&self, text: &str) -> bool {
        let digest = sha256_digest(text);
        self.tables_by_precedence()
            .any(|tables| tables.find_key(&digest).is_some() || tables.key_denial(&digest).is_some())
            || self.token_verifier.as_ref().is_some_and(|tokens| tokens.has_valid_signature(text))
    }

    /// Returns a saved provider that has not expired, even if its expiry was not published yet.
    pub fn find_provider(&self, workspace: Option<&str>, slug: &str) -> Option<&SavedProvider> {
        self.providers.get(workspace, slug).filter(|saved| !saved.expires_at.is_some_and(has_expired))
    }

    /// Returns the config with this slug or id.
    pub fn find_config(&self, workspace: Option<&str>, slug: &str) -> Option<&Config> {
        self.tables_by_precedence().find_map(|tables| tables.find_config(workspace, slug))
    }

    /// Returns the slug of a config that may be given by id. An unknown or inactive config yields `name` unchanged, so
    /// that the error message contains it.
    pub fn resolve_config_slug<'s>(&'s self, name: &'s str) -> &'s str {
        self.tables_by_precedence().find_map(|tables| tables.find_config_slug(name)).unwrap_or(name)
    }

    /// Returns the tables in lookup order: stored entries take precedence over the settings file.
    fn tables_by_precedence(&self) -> impl Iterator<Item = &LookupTables> {
        [&self.stored_tables, &self.settings_tables].into_iter()
    }

    /// Returns the metadata that the key and its workspace add to a request. The workspace's values take precedence.
    pub fn default_metadata<'s>(&'s self, key: &'s GatewayKey) -> [&'s [(String, String)]; 2] {
        let key_metadata = key.metadata();
        let shared = key.workspace.as_ref().and_then(|workspace| self.workspace_metadata.get(&**workspace));
        [key_metadata, shared.map_or(&[], Vec::as_slice)]
    }

    /// Returns true if the control process serves this path. Prefixes match whole path segments.
    pub fn is_management_path(&self, path: &str) -> bool {
        self.management_prefixes.iter().any(|prefix| {
            path.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

/// Returns true if a time, in Unix seconds, has passed.
pub(crate) fn has_expired(end: u64) -> bool {
    end <= SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn sha256_digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Drops a large snapshot on a thread of its own: freeing a hundred thousand keys takes longer than a request may wait.
/// The thread inherits the low priority of the compiling thread.
pub fn drop_in_background(mut old: Arc<Snapshot>) {
    if old.stored_tables.entry_count() < MIN_ENTRIES_FOR_BACKGROUND_DROP {
        return;
    }
    let gravedigger = std::thread::Builder::new().name("bury".into());
    // Waits until the last request has released the snapshot. If one keeps it longer, that request frees it.
    drop(gravedigger.spawn(move || {
        for _ in 0..MAX_DROP_POLLS {
            match Arc::try_unwrap(old) {
                Ok(last) => return drop(last),
                Err(returned) => old = returned,
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
        assert_eq!(&*snapshot.find_key("abc").unwrap().id, "k");
        assert!(snapshot.find_key("abd").is_none());
    }

    #[test]
    fn reports_every_problem() {
        let json = br#"{"epoch":"1","keys":[{"id":"k","name":"n","sha256":"xx"}],
            "providers":[{"slug":"s","provider":"nobody"}],
            "configs":[{"slug":"pc-1","config":{"provider":1}}]}"#;
        let paths: Vec<_> = Snapshot::compile(json).unwrap_err().into_iter().map(|problem| problem.path).collect();
        assert_eq!(paths, ["$.keys[0].sha256", "$.providers[0].provider", "$.configs[0].config.provider"]);
    }

    #[test]
    fn saved_providers_are_visible_only_to_keys_of_their_workspace() {
        let json = br#"{"epoch":"1","providers":[{"slug":"s","provider":"openai"},
            {"slug":"s","provider":"groq","workspace":"a"},{"slug":"own","provider":"openai","workspace":"b"}]}"#;
        let snapshot = Snapshot::compile(json).unwrap();
        let found = |workspace, slug| snapshot.find_provider(workspace, slug).map(|saved| saved.provider.as_str());
        assert_eq!(found(Some("a"), "s"), Some("groq"));
        assert_eq!((found(Some("b"), "s"), found(None, "s")), (Some("openai"), Some("openai")));
        assert_eq!(found(Some("b"), "own"), Some("openai"));
        assert_eq!((found(Some("a"), "own"), found(None, "own")), (None, None));
    }

    #[test]
    fn ignores_an_expired_provider() {
        let json = br#"{"epoch":"1","providers":[{"slug":"past","provider":"openai","expires_at":1},
            {"slug":"to-come","provider":"openai","expires_at":4000000000}]}"#;
        let snapshot = Snapshot::compile(json).unwrap();
        assert!(snapshot.find_provider(None, "past").is_none() && snapshot.find_provider(None, "to-come").is_some());
    }

    #[test]
    fn deeply_nested_metadata_is_accepted() {
        let deep = format!("{}1{}", "[".repeat(900), "]".repeat(900));
        let json = format!(
            r#"{{"epoch":"1","keys":[{{"id":"k","sha256":"{SHA256_OF_ABC}","defaults":{{"metadata":{{"a":{deep},"b":"\u00e9"}}}}}}]}}"#
        );
        let snapshot = Snapshot::compile(json.as_bytes()).unwrap();
        let expected = [("a".to_owned(), deep), ("b".to_owned(), "\u{e9}".to_owned())];
        assert_eq!(snapshot.find_key("abc").unwrap().metadata(), expected);
    }

    #[test]
    fn returns_defaults_of_key_and_workspace() {
        let json = format!(
            r#"{{"epoch":"1","configs":[{{"id":"c-1","slug":"pc-1","workspace":"w","config":{{"provider":"openai"}}}}],
            "workspaces":[{{"id":"w","metadata":{{"team":"blue"}}}}],
            "keys":[{{"id":"k","name":"dev","workspace":"w","sha256":"{SHA256_OF_ABC}","defaults":
                {{"config_id":"c-1","allow_config_override":false,"metadata":{{"team":"red","n":1}}}}}}]}}"#
        );
        let snapshot = Snapshot::compile(json.as_bytes()).unwrap();
        let key = snapshot.find_key("abc").unwrap();
        assert_eq!(
            (key.default_config().map(|id| snapshot.resolve_config_slug(id)), key.is_config_locked()),
            (Some("pc-1"), true)
        );
        assert_eq!(snapshot.resolve_config_slug("c-2"), "c-2");
        let [key_metadata, shared] = snapshot.default_metadata(key);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!((key_metadata, shared), (&[pair("team", "red"), pair("n", "1")][..], &[pair("team", "blue")][..]));
        assert!(snapshot.find_config(Some("w"), "c-1").is_some() && snapshot.find_config(None, "c-1").is_none());
    }

    #[test]
    fn management_prefixes_match_whole_segments() {
        let snapshot = Snapshot::compile(br#"{"epoch":"1","management":["/v1/health"]}"#).unwrap();
        assert!(snapshot.is_management_path("/v1/health") && snapshot.is_management_path("/v1/health/x"));
        assert!(!snapshot.is_management_path("/v1/healthy"));
    }
}
