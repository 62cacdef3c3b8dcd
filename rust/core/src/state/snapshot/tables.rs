//! Keys and saved configs, of which there may be very many: a change of some leaves the others where they are.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use super::{Key, Lack};
use crate::config::Config;

/// What was saved under slugs: of everybody, and of one workspace each.
#[derive(Debug, Clone)]
pub(super) struct Saved<T> {
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
    pub fn insert(&mut self, workspace: Option<String>, slug: String, value: T) -> Option<T> {
        match workspace {
            Some(workspace) => self.workspaces.entry(workspace).or_default().insert(slug, value),
            None => self.everybodys.insert(slug, value),
        }
    }

    /// A workspace's own goes before everybody's; another's is not there.
    pub fn get(&self, workspace: Option<&str>, slug: &str) -> Option<&T> {
        let own = workspace.and_then(|workspace| self.workspaces.get(workspace)?.get(slug));
        own.or_else(|| self.everybodys.get(slug))
    }

    fn retain(&mut self, is_kept: impl Fn(&T) -> bool) {
        self.everybodys.retain(|_, value| is_kept(value));
        self.workspaces.retain(|_, saved| {
            saved.retain(|_, value| is_kept(value));
            !saved.is_empty()
        });
    }
}

/// Something that a part says, shared by all tables that have it.
#[derive(Debug)]
pub(super) struct Row<T> {
    part: Arc<str>,
    what: Arc<T>,
}

impl<T> Row<T> {
    pub fn new(part: &Arc<str>, what: T) -> Self {
        Self { part: Arc::clone(part), what: Arc::new(what) }
    }
}

// Not derived: what it holds needs no copy.
impl<T> Clone for Row<T> {
    fn clone(&self) -> Self {
        Self { part: Arc::clone(&self.part), what: Arc::clone(&self.what) }
    }
}

/// Found by the digests of what callers send.
type ByDigest<T> = HashMap<[u8; 32], T, BuildHasherDefault<OfDigest>>;
type Keys = ByDigest<Row<Key>>;
/// Keys that may do nothing here, and the parts that say so.
type Refused = ByDigest<(Arc<str>, Lack)>;

/// A digest is as good a hash as any that would be made of it.
#[derive(Default)]
struct OfDigest(u64);

impl Hasher for OfDigest {
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
struct Configs {
    saved: Saved<Row<Config>>,
    /// Slugs by ids.
    slugs: HashMap<Box<str>, Row<Box<str>>>,
}

/// Copied as a whole where some of it changes: of a hundred thousand keys in three milliseconds.
#[derive(Debug, Default, Clone)]
pub(super) struct Tables {
    keys: Arc<Keys>,
    refused: Arc<Refused>,
    configs: Arc<Configs>,
}

impl Tables {
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    pub fn count(&self) -> usize {
        self.keys.len() + self.refused.len() + self.configs.slugs.len()
    }

    pub fn key(&self, digest: &[u8; 32]) -> Option<&Key> {
        self.keys.get(digest).map(|row| &*row.what)
    }

    pub fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    pub fn lack(&self, digest: &[u8; 32]) -> Option<Lack> {
        self.refused.get(digest).map(|(_, lack)| *lack)
    }

    pub fn config(&self, workspace: Option<&str>, named: &str) -> Option<&Config> {
        let saved = &self.configs.saved;
        let by_id = || saved.get(workspace, self.config_slug(named)?);
        saved.get(workspace, named).or_else(by_id).map(|row| &*row.what)
    }

    pub fn config_slug(&self, id: &str) -> Option<&str> {
        self.configs.slugs.get(id).map(|row| &**row.what)
    }

    /// Forgets the keys of these parts.
    pub fn forget_keys(&mut self, parts: &HashSet<&str>) {
        if !parts.is_empty() {
            Arc::make_mut(&mut self.keys).retain(|_, row| !parts.contains(&*row.part));
            if self.has_refused() {
                Arc::make_mut(&mut self.refused).retain(|_, (part, _)| !parts.contains(&**part));
            }
        }
    }

    /// Forgets the configs of these parts.
    pub fn forget_configs(&mut self, parts: &HashSet<&str>) {
        if !parts.is_empty() {
            let configs = Arc::make_mut(&mut self.configs);
            configs.saved.retain(|row| !parts.contains(&*row.part));
            configs.slugs.retain(|_, row| !parts.contains(&*row.part));
        }
    }

    /// Makes room for so many more.
    pub fn reserve_keys(&mut self, more: usize) {
        if more > 0 {
            Arc::make_mut(&mut self.keys).reserve(more);
        }
    }

    pub fn add_key(&mut self, part: &Arc<str>, digest: [u8; 32], key: Key) {
        Arc::make_mut(&mut self.keys).insert(digest, Row::new(part, key));
    }

    pub fn add_refused(&mut self, part: &Arc<str>, digest: [u8; 32], lack: Lack) {
        Arc::make_mut(&mut self.refused).insert(digest, (Arc::clone(part), lack));
    }

    pub fn add_config(&mut self, part: &Arc<str>, named: Named, config: Config) {
        let configs = Arc::make_mut(&mut self.configs);
        if let Some(id) = named.id {
            configs.slugs.insert(id, Row::new(part, named.slug.as_str().into()));
        }
        configs.saved.insert(named.workspace, named.slug, Row::new(part, config));
    }
}

/// How a saved config is found.
pub(super) struct Named {
    pub id: Option<Box<str>>,
    pub slug: String,
    pub workspace: Option<String>,
}
