//! Lookup tables of keys and saved configs. They may be very large, so an update copies only references to unchanged
//! entries.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use super::GatewayKey;
use crate::{config::Config, error::KeyDenial};

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

/// Map keyed by the SHA-256 digest of what the client sent.
type DigestMap<T> = HashMap<[u8; 32], T, BuildHasherDefault<DigestHasher>>;
type KeyTable = DigestMap<Row<GatewayKey>>;
/// Keys that may not be used here, each with the part that published it.
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
    by_slug: WorkspaceScoped<Row<Config>>,
    /// Config slugs by id.
    slug_by_id: HashMap<Box<str>, Row<Box<str>>>,
}

/// Lookup tables of one source. A table is copied when it changes; a hundred thousand keys take three milliseconds.
#[derive(Debug, Default, Clone)]
pub(super) struct LookupTables {
    keys: Arc<KeyTable>,
    denied: Arc<DeniedKeyTable>,
    configs: Arc<ConfigTable>,
}

impl LookupTables {
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    pub fn entry_count(&self) -> usize {
        self.keys.len() + self.denied.len() + self.configs.slug_by_id.len()
    }

    pub fn find_key(&self, digest: &[u8; 32]) -> Option<&GatewayKey> {
        self.keys.get(digest).map(|row| &*row.value)
    }

    pub fn has_denied_keys(&self) -> bool {
        !self.denied.is_empty()
    }

    pub fn key_denial(&self, digest: &[u8; 32]) -> Option<KeyDenial> {
        self.denied.get(digest).map(|(_, denial)| *denial)
    }

    pub fn find_config(&self, workspace: Option<&str>, name: &str) -> Option<&Config> {
        let saved = &self.configs.by_slug;
        let by_id = || saved.get(workspace, self.find_config_slug(name)?);
        saved.get(workspace, name).or_else(by_id).map(|row| &*row.value)
    }

    pub fn find_config_slug(&self, id: &str) -> Option<&str> {
        self.configs.slug_by_id.get(id).map(|row| &**row.value)
    }

    /// Removes the keys of these parts.
    pub fn remove_keys(&mut self, parts: &HashSet<&str>) {
        if !parts.is_empty() {
            Arc::make_mut(&mut self.keys).retain(|_, row| !parts.contains(&*row.part));
            if self.has_denied_keys() {
                Arc::make_mut(&mut self.denied).retain(|_, (part, _)| !parts.contains(&**part));
            }
        }
    }

    /// Removes the configs of these parts.
    pub fn remove_configs(&mut self, parts: &HashSet<&str>) {
        if !parts.is_empty() {
            let configs = Arc::make_mut(&mut self.configs);
            configs.by_slug.retain(|row| !parts.contains(&*row.part));
            configs.slug_by_id.retain(|_, row| !parts.contains(&*row.part));
        }
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

    pub fn add_config(&mut self, part: &Arc<str>, names: ConfigNames, config: Config) {
        let configs = Arc::make_mut(&mut self.configs);
        if let Some(id) = names.id {
            configs.slug_by_id.insert(id, Row::new(part, names.slug.as_str().into()));
        }
        configs.by_slug.insert(names.workspace, names.slug, Row::new(part, config));
    }
}

/// Names under which a saved config is stored.
pub(super) struct ConfigNames {
    pub id: Option<Box<str>>,
    pub slug: String,
    pub workspace: Option<String>,
}
