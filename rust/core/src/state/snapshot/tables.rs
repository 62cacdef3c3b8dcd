//! Lookup tables of keys, saved configs, limits and guardrails. They may be very large, so an update copies only
//! references to unchanged entries.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use super::{GatewayKey, has_expired, prompt_table::PromptTable};
use crate::{
    accounting::record::details::ConfigIdentity,
    config::Config,
    error::KeyDenial,
    guardrails::saved::SavedGuardrail,
    limits::rule::WorkspaceLimits,
    prompts::saved::{SavedPartial, SavedPrompt},
};

/// Values by slug: global ones and those of single workspaces.
#[derive(Debug, Clone)]
pub(super) struct WorkspaceScoped<T> {
    global: HashMap<String, T>,
    by_workspace: HashMap<String, HashMap<String, T>>,
}

impl<T> Default for WorkspaceScoped<T> {
    fn default() -> Self {
        Self { global: HashMap::new(), by_workspace: HashMap::new() }
    }
}

impl<T> WorkspaceScoped<T> {
    /// Inserts a value and returns the one that it replaces.
    pub fn insert(&mut self, workspace: Option<String>, slug: String, value: T) -> Option<T> {
        match workspace {
            Some(workspace) => self.by_workspace.entry(workspace).or_default().insert(slug, value),
            None => self.global.insert(slug, value),
        }
    }

    /// Returns the value of the workspace, else the global one. Values of other workspaces are invisible.
    pub fn get(&self, workspace: Option<&str>, slug: &str) -> Option<&T> {
        let scoped = workspace.and_then(|workspace| self.by_workspace.get(workspace)?.get(slug));
        scoped.or_else(|| self.global.get(slug))
    }

    fn retain(&mut self, is_kept: impl Fn(&T) -> bool) {
        self.global.retain(|_, value| is_kept(value));
        self.by_workspace.retain(|_, saved| {
            saved.retain(|_, value| is_kept(value));
            !saved.is_empty()
        });
    }
}

/// An entry from one published part, shared by all snapshots that contain it.
#[derive(Debug)]
pub(super) struct Row<T> {
    part: Arc<str>,
    value: Arc<T>,
}

impl<T> Row<T> {
    pub fn new(part: &Arc<str>, value: T) -> Self {
        Self { part: Arc::clone(part), value: Arc::new(value) }
    }
}

// Not derived, so that `T` need not be `Clone`.
impl<T> Clone for Row<T> {
    fn clone(&self) -> Self {
        Self { part: Arc::clone(&self.part), value: Arc::clone(&self.value) }
    }
}

/// Map keyed by the SHA-256 digest of the key that the client sent.
type DigestMap<T> = HashMap<[u8; 32], T, BuildHasherDefault<DigestHasher>>;
type KeyTable = DigestMap<Row<GatewayKey>>;
/// Keys that the data plane rejects. Each has the name of the part of the snapshot that contains it, and the reason.
type DeniedKeyTable = DigestMap<(Arc<str>, KeyDenial)>;

/// Uses the first eight bytes of a digest as its hash. A digest is already uniformly distributed.
#[derive(Default)]
struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let (Some(first), 32) = (bytes.first_chunk(), bytes.len()) {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug, Default, Clone)]
struct ConfigTable {
    by_slug: WorkspaceScoped<Row<SavedConfig>>,
    /// Config slugs by id.
    slug_by_id: HashMap<Box<str>, Row<Box<str>>>,
}

/// Lookup tables of one source. A table is copied when it changes; a hundred thousand keys take three milliseconds.
#[derive(Debug, Default, Clone)]
pub(super) struct LookupTables {
    keys: Arc<KeyTable>,
    denied: Arc<DeniedKeyTable>,
    /// Keys that may only render prompts. They are in `denied`, too.
    render_keys: Arc<KeyTable>,
    configs: Arc<ConfigTable>,
    /// Limits by workspace id.
    limits: Arc<HashMap<Box<str>, Row<WorkspaceLimits>>>,
    prompts: Arc<PromptTable>,
    /// Guardrails by id and slug. Several workspaces may have the same slug.
    guardrails: Arc<HashMap<Arc<str>, Vec<Row<SavedGuardrail>>>>,
}

impl LookupTables {
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty() || !self.render_keys.is_empty()
    }

    pub fn entry_count(&self) -> usize {
        self.keys.len() + self.denied.len() + self.configs.slug_by_id.len() + self.prompts.len()
    }

    pub fn find_key(&self, digest: &[u8; 32]) -> Option<&GatewayKey> {
        self.keys.get(digest).map(|row| &*row.value)
    }

    /// Returns a key that may only render prompts.
    pub fn find_render_key(&self, digest: &[u8; 32]) -> Option<&GatewayKey> {
        self.render_keys.get(digest).map(|row| &*row.value)
    }

    /// Returns the key with this id, by looking at all keys.
    pub fn find_key_by_id(&self, id: &str) -> Option<&GatewayKey> {
        self.keys.values().map(|row| &*row.value).find(|key| &*key.id == id)
    }

    pub fn key_digests<'t>(&'t self, id: &'t str) -> impl Iterator<Item = &'t [u8; 32]> {
        let is_valid = move |key: &GatewayKey| &*key.id == id && !key.expires_at.is_some_and(has_expired);
        self.keys.iter().filter(move |(_, row)| is_valid(&row.value)).map(|(digest, _)| digest)
    }

    pub fn has_denied_keys(&self) -> bool {
        !self.denied.is_empty()
    }

    pub fn key_denial(&self, digest: &[u8; 32]) -> Option<KeyDenial> {
        self.denied.get(digest).map(|(_, denial)| *denial)
    }

    pub fn find_config(&self, workspace: Option<&str>, name: &str) -> Option<&SavedConfig> {
        let saved = &self.configs.by_slug;
        let by_id = || saved.get(workspace, self.find_config_slug(name)?);
        saved.get(workspace, name).or_else(by_id).map(|row| &*row.value)
    }

    pub fn find_config_slug(&self, id: &str) -> Option<&str> {
        self.configs.slug_by_id.get(id).map(|row| &**row.value)
    }

    /// Removes the keys of these published parts.
    pub fn remove_keys(&mut self, parts: &HashSet<&str>) {
        if !parts.is_empty() {
            Arc::make_mut(&mut self.keys).retain(|_, row| !parts.contains(&*row.part));
            if self.has_denied_keys() {
                Arc::make_mut(&mut self.denied).retain(|_, (part, _)| !parts.contains(&**part));
            }
            if !self.render_keys.is_empty() {
                Arc::make_mut(&mut self.render_keys).retain(|_, row| !parts.contains(&*row.part));
            }
        }
    }

    /// Removes the configs of these published parts.
    pub fn remove_configs(&mut self, parts: &HashSet<&str>) {
        if !parts.is_empty() {
            let configs = Arc::make_mut(&mut self.configs);
            configs.by_slug.retain(|row| !parts.contains(&*row.part));
            configs.slug_by_id.retain(|_, row| !parts.contains(&*row.part));
        }
    }

    /// Removes the limits of these published parts.
    pub fn remove_limits(&mut self, parts: &HashSet<&str>) {
        if !parts.is_empty() && !self.limits.is_empty() {
            Arc::make_mut(&mut self.limits).retain(|_, row| !parts.contains(&*row.part));
        }
    }

    pub fn add_limits(&mut self, part: &Arc<str>, workspace: Box<str>, limits: WorkspaceLimits) {
        Arc::make_mut(&mut self.limits).insert(workspace, Row::new(part, limits));
    }

    pub fn find_limits(&self, workspace: &str) -> Option<&WorkspaceLimits> {
        if self.limits.is_empty() {
            return None;
        }
        self.limits.get(workspace).map(|row| &*row.value)
    }

    /// Replaces the prompts of a published part.
    pub fn replace_prompts(&mut self, part: &Arc<str>, prompts: Vec<SavedPrompt>) {
        Arc::make_mut(&mut self.prompts).replace_prompts(part, prompts);
    }

    /// Replaces the partials of a published part.
    pub fn replace_partials(&mut self, part: &Arc<str>, partials: Vec<SavedPartial>) {
        Arc::make_mut(&mut self.prompts).replace_partials(part, partials);
    }

    /// Returns a prompt of a workspace, by id or slug.
    pub fn find_prompt(&self, workspace: &str, name: &str) -> Option<&Arc<SavedPrompt>> {
        self.prompts.find_prompt(workspace, name)
    }

    /// Returns the prompts with this id or slug that other workspaces share with this one.
    pub fn find_shared_prompts(&self, workspace: &str, name: &str) -> impl Iterator<Item = &Arc<SavedPrompt>> {
        self.prompts.find_shared_prompts(workspace, name)
    }

    /// Returns a partial of a workspace, by id or slug.
    pub fn find_partial(&self, workspace: &str, name: &str) -> Option<&SavedPartial> {
        self.prompts.find_partial(workspace, name)
    }

    /// Removes the guardrails of these published parts.
    pub fn remove_guardrails(&mut self, parts: &HashSet<&str>) {
        if !parts.is_empty() && !self.guardrails.is_empty() {
            Arc::make_mut(&mut self.guardrails).retain(|_, rows| {
                rows.retain(|row| !parts.contains(&*row.part));
                !rows.is_empty()
            });
        }
    }

    pub fn add_guardrail(&mut self, part: &Arc<str>, guardrail: SavedGuardrail) {
        let names = [Arc::from(&*guardrail.id), Arc::from(&*guardrail.slug)];
        let row = Row::new(part, guardrail);
        let table = Arc::make_mut(&mut self.guardrails);
        for name in names {
            table.entry(name).or_default().push(row.clone());
        }
    }

    /// Returns the guardrails with this id or slug.
    pub fn find_guardrails(&self, name: &str) -> impl Iterator<Item = &Arc<SavedGuardrail>> {
        self.guardrails.get(name).into_iter().flatten().map(|row| &row.value)
    }

    /// Reserves capacity for this many additional keys.
    pub fn reserve_keys(&mut self, more: usize) {
        if more > 0 {
            Arc::make_mut(&mut self.keys).reserve(more);
        }
    }

    pub fn add_key(&mut self, part: &Arc<str>, digest: [u8; 32], key: GatewayKey) {
        Arc::make_mut(&mut self.keys).insert(digest, Row::new(part, key));
    }

    pub fn add_denied_key(&mut self, part: &Arc<str>, digest: [u8; 32], denial: KeyDenial) {
        Arc::make_mut(&mut self.denied).insert(digest, (Arc::clone(part), denial));
    }

    pub fn add_render_key(&mut self, part: &Arc<str>, digest: [u8; 32], key: GatewayKey) {
        self.add_denied_key(part, digest, KeyDenial::Completions);
        Arc::make_mut(&mut self.render_keys).insert(digest, Row::new(part, key));
    }

    pub fn add_config(&mut self, part: &Arc<str>, names: ConfigNames, config: Config) {
        let configs = Arc::make_mut(&mut self.configs);
        let ConfigNames { id, version_id, slug, workspace } = names;
        if let Some(id) = id.clone() {
            configs.slug_by_id.insert(id, Row::new(part, slug.as_str().into()));
        }
        let identity = Arc::new(ConfigIdentity { slug: slug.as_str().into(), id, version_id });
        configs.by_slug.insert(workspace, slug, Row::new(part, SavedConfig { config, identity }));
    }
}

/// Names under which a saved config is stored.
pub(super) struct ConfigNames {
    pub id: Option<Box<str>>,
    pub version_id: Option<Box<str>>,
    pub slug: String,
    pub workspace: Option<String>,
}

/// A saved config with the names under which records show it.
#[derive(Debug)]
pub struct SavedConfig {
    pub config: Config,
    pub identity: Arc<ConfigIdentity>,
}
