//! Immutable snapshot of the configuration that the control process published: keys, providers, configs and prices.
//! Swapped atomically; unchanged parts are shared with the previous snapshot.

mod prompt_table;
mod published;
mod tables;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use penstock_llm::catalog::Options;
use sha2::{Digest, Sha256};

pub use self::tables::SavedConfig;
use self::tables::{LookupTables, WorkspaceScoped};
pub use crate::auth::gateway_key::{DefaultGuardrails, GatewayKey, Workspace};
use penstock_net::BaseUrl;

use crate::{
    accounting::{
        prices::Prices,
        record::details::{ProviderIdentity, RecordIdentity},
        saved_models::{HeaderFields, SavedModels},
    },
    auth::jwt::{TokenAuthenticator, TokenIdentity},
    error::{Error, KeyDenial, Problem, PromptError},
    features::inspect_stream::InspectStream,
    guardrails::saved::SavedGuardrail,
    limits::rule::WorkspaceLimits,
    process::secret::Secret,
    prompts::saved::{SavedPartial, SavedPrompt},
};

/// Minimum number of entries of a snapshot that is freed on a thread of its own, because that takes noticeable time.
const MIN_ENTRIES_FOR_BACKGROUND_DROP: usize = 1000;
/// Maximum number of polls, 100 ms apart, until all requests have released a snapshot. Together they take longer than a
/// request waits for its response.
const MAX_DROP_POLLS: u32 = 3000;

/// A saved provider: a slug for a provider and its credential.
#[derive(Debug, Clone)]
pub struct SavedProvider {
    /// Names under which records show the provider.
    pub identity: Arc<ProviderIdentity>,
    pub provider: String,
    pub api_key: Option<Secret>,
    pub custom_host: Option<BaseUrl>,
    pub inspect_stream: InspectStream,
    pub options: Options,
    pub header_fields: HeaderFields,
    pub models: Option<Arc<SavedModels>>,
    /// End of the provider's validity, in Unix seconds.
    expires_at: Option<u64>,
}

impl SavedProvider {
    /// Returns true if header fields are stored with the provider or a model. Their values may be the provider's
    /// credential.
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
    /// Guardrails of all requests of a workspace, by workspace id.
    default_guardrails: HashMap<Box<str>, DefaultGuardrails>,
    /// Workspaces that reject inline configs.
    inline_blocking_workspaces: HashSet<Box<str>>,
    /// Workspaces whose request log contains only figures such as usage and cost, no content.
    metrics_only_workspaces: HashSet<Box<str>>,
    workspaces: Vec<Workspace>,
    /// Index in `workspaces` by workspace id.
    workspace_indexes: HashMap<Arc<str>, usize>,
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
        workspace == name
            || self
                .workspaces
                .iter()
                .any(|workspace_row| &*workspace_row.id == workspace && &*workspace_row.slug == name)
    }

    /// Returns the fields of a record that identify the owner of a key.
    pub fn record_identity(&self, key: &GatewayKey) -> RecordIdentity {
        let workspace_id = key.workspace.clone();
        let workspace = workspace_id.as_ref().and_then(|id| self.find_workspace(id));
        let non_empty = |text: &Arc<str>| Some(Arc::clone(text)).filter(|text| !text.is_empty());
        RecordIdentity {
            organisation_id: workspace.and_then(|workspace| non_empty(&workspace.organisation_id)),
            workspace_slug: workspace.and_then(|workspace| non_empty(&workspace.slug)),
            workspace_id,
            api_key_name: Some(key.name.clone()).filter(|name| !name.is_empty()),
            user_id: key.user_id.clone(),
        }
    }

    /// Returns the limits of a workspace and its objects; `None` if it has none.
    pub fn find_limits(&self, workspace: &str) -> Option<&WorkspaceLimits> {
        self.stored_tables.find_limits(workspace)
    }

    /// Returns a prompt that a workspace may use, by id or slug: its own, or one that another workspace of its
    /// organisation shares with it. A slug of several shared prompts is rejected, because any of these workspaces could
    /// have chosen it.
    pub fn find_prompt(&self, workspace: &str, name: &str) -> Result<&Arc<SavedPrompt>, PromptError> {
        if let Some(own) = self.stored_tables.find_prompt(workspace, name) {
            return Ok(own);
        }
        let organisation = |id: &str| self.find_workspace(id).map(|workspace| &workspace.organisation_id);
        let own_organisation = organisation(workspace);
        let mut shared = self
            .stored_tables
            .find_shared_prompts(workspace, name)
            .filter(|prompt| organisation(&prompt.workspace) == own_organisation);
        match (shared.next(), shared.next()) {
            (Some(prompt), None) => Ok(prompt),
            (None, _) => Err(PromptError::UnknownPrompt { name: name.to_owned() }),
            (Some(_), Some(_)) => Err(PromptError::AmbiguousPrompt { name: name.to_owned() }),
        }
    }

    /// Returns a partial of a workspace, by id or slug.
    pub fn find_partial(&self, workspace: &str, name: &str) -> Option<&SavedPartial> {
        self.stored_tables.find_partial(workspace, name)
    }

    /// Returns a guardrail that a workspace may use, by id or slug: its own, or one of its organisation.
    pub fn find_guardrail(&self, workspace: Option<&str>, name: &str) -> Option<&Arc<SavedGuardrail>> {
        let organisation = &self.find_workspace(workspace?)?.organisation_id;
        let visible = |guardrail: &&Arc<SavedGuardrail>| match &guardrail.workspace {
            Some(owner) => Some(&**owner) == workspace,
            None => *guardrail.organisation == **organisation,
        };
        // A guardrail of the workspace hides one of the organisation with the same slug.
        let guardrails = self.stored_tables.find_guardrails(name).filter(visible);
        guardrails.max_by_key(|guardrail| guardrail.workspace.is_some())
    }

    /// Returns the guardrails of all requests of a workspace; `None` if there are none.
    pub fn default_guardrails(&self, workspace: Option<&str>) -> Option<&DefaultGuardrails> {
        if self.default_guardrails.is_empty() {
            return None;
        }
        self.default_guardrails.get(workspace?)
    }

    /// Returns the workspace with this id.
    pub fn find_workspace(&self, id: &str) -> Option<&Workspace> {
        self.workspace_indexes.get(id).and_then(|index| self.workspaces.get(*index))
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

    /// Returns the gateway key that the client sent as `text`.
    pub fn find_key(&self, text: &str) -> Option<&GatewayKey> {
        let digest = sha256_digest(text);
        self.tables_by_precedence().find_map(|tables| tables.find_key(&digest))
    }

    /// Returns the gateway key that the client sent as `text`, if it may only render prompts.
    pub fn find_render_key(&self, text: &str) -> Option<&GatewayKey> {
        let digest = sha256_digest(text);
        self.tables_by_precedence().find_map(|tables| tables.find_render_key(&digest))
    }

    /// Returns the key with this id. Looks at all keys, so it is only for rare requests.
    pub fn find_key_by_id(&self, id: &str) -> Option<&GatewayKey> {
        self.tables_by_precedence().find_map(|tables| tables.find_key_by_id(id))
    }

    /// Returns the SHA-256 digests of the valid keys with this id. After a rotation there are several, until the old
    /// key expires.
    pub fn key_digests<'s>(&'s self, id: &'s str) -> impl Iterator<Item = &'s [u8; 32]> {
        self.tables_by_precedence().flat_map(move |tables| tables.key_digests(id))
    }

    /// Returns why the data plane rejects the gateway key that the client sent as `text`. `None` if the key is unknown
    /// or allowed.
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

    /// Returns true if `text` is a gateway key, even a denied one, or a token from an accepted issuer.
    pub fn is_gateway_credential(&self, text: &str) -> bool {
        let digest = sha256_digest(text);
        self.tables_by_precedence()
            .any(|tables| tables.find_key(&digest).is_some() || tables.key_denial(&digest).is_some())
            || self.token_verifier.as_ref().is_some_and(|tokens| tokens.has_valid_signature(text))
    }

    /// Returns a saved provider, unless it has expired. The control process may not have published that it expired.
    pub fn find_provider(&self, workspace: Option<&str>, slug: &str) -> Option<&SavedProvider> {
        self.providers.get(workspace, slug).filter(|saved| !saved.expires_at.is_some_and(has_expired))
    }

    /// Returns the config with this slug or id.
    pub fn find_config(&self, workspace: Option<&str>, slug: &str) -> Option<&SavedConfig> {
        self.tables_by_precedence().find_map(|tables| tables.find_config(workspace, slug))
    }

    /// Returns the slug of the config whose slug or id is `name`. Returns `name` for an unknown or inactive config, so
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

pub(crate) fn sha256_digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Drops a large snapshot on a thread of its own: freeing a hundred thousand keys takes longer than a request may wait.
/// The thread inherits the low priority of the compiling thread.
pub fn drop_in_background(mut old: Arc<Snapshot>) {
    if old.stored_tables.entry_count() < MIN_ENTRIES_FOR_BACKGROUND_DROP {
        return;
    }
    let thread_builder = std::thread::Builder::new().name("snapshot-drop".into());
    // Waits until the last request has released the snapshot. If a request holds it longer, that request frees it.
    drop(thread_builder.spawn(move || {
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
        let provider_id =
            |workspace, slug| snapshot.find_provider(workspace, slug).map(|saved| saved.provider.as_str());
        assert_eq!(provider_id(Some("a"), "s"), Some("groq"));
        assert_eq!((provider_id(Some("b"), "s"), provider_id(None, "s")), (Some("openai"), Some("openai")));
        assert_eq!(provider_id(Some("b"), "own"), Some("openai"));
        assert_eq!((provider_id(Some("a"), "own"), provider_id(None, "own")), (None, None));
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
