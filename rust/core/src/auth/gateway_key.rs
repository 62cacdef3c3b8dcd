//! Gateway keys and workspaces, as the snapshot holds them, and the defaults that a key or token sets for its requests.

use std::{borrow::Cow, fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::limits::rule::LimitRule;

/// A gateway key. Found by the digest of the key that the client sent.
#[derive(Debug, Clone)]
pub struct GatewayKey {
    pub id: Box<str>,
    pub name: Box<str>,
    /// End of the key's validity, in Unix seconds.
    pub expires_at: Option<u64>,
    /// The workspace whose saved providers and configs the key may use, besides the global ones.
    pub workspace: Option<Arc<str>>,
    /// User who owns the key. For a token, the user that its claims name.
    pub user_id: Option<Arc<str>>,
    pub(crate) defaults: Option<Box<KeyDefaults>>,
    /// Limits from the claims of a token. The limits of a key are in those of its workspace.
    pub limits: Option<Arc<[LimitRule]>>,
    /// True if the key may read prompts by rendering them.
    pub may_render: bool,
}

/// Defaults that a key sets for its requests. Most keys set none.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyDefaults {
    /// Slug or id of the default config.
    pub(crate) config: Option<Box<str>>,
    /// True if a request may not send another config.
    pub(crate) is_config_locked: bool,
    pub(crate) metadata: Vec<(String, String)>,
    pub(crate) guardrails: DefaultGuardrails,
}

/// Ids or slugs of the guardrails that a key or workspace adds to all its requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DefaultGuardrails {
    pub input: Vec<Box<str>>,
    pub output: Vec<Box<str>>,
}

impl DefaultGuardrails {
    pub fn is_empty(&self) -> bool {
        self.input.is_empty() && self.output.is_empty()
    }
}

impl GatewayKey {
    /// Returns the slug or id of the config that applies if the request sends none.
    pub fn default_config(&self) -> Option<&str> {
        self.defaults.as_ref()?.config.as_deref()
    }

    /// Returns the metadata that the key adds to all its requests.
    pub fn metadata(&self) -> &[(String, String)] {
        self.defaults.as_ref().map_or(&[], |defaults| &defaults.metadata)
    }

    /// Returns the guardrails that the key adds to all its requests; `None` if there are none.
    pub fn guardrails(&self) -> Option<&DefaultGuardrails> {
        self.defaults.as_ref().map(|defaults| &defaults.guardrails).filter(|guardrails| !guardrails.is_empty())
    }

    /// Returns true if a request may not send another config.
    pub fn is_config_locked(&self) -> bool {
        self.defaults.as_ref().is_some_and(|defaults| defaults.is_config_locked)
    }
}

/// A workspace, with the names by which tokens refer to it.
#[derive(Debug)]
pub struct Workspace {
    pub id: Arc<str>,
    pub slug: Arc<str>,
    pub organisation_id: Arc<str>,
}

/// Defaults that a key, or the `defaults` claim of a token, sets for its requests.
#[derive(Deserialize)]
pub(crate) struct PublishedDefaults<'a> {
    #[serde(default, borrow)]
    config_id: Option<Cow<'a, str>>,
    #[serde(default)]
    allow_config_override: Option<bool>,
    #[serde(default)]
    metadata: Option<StringMap>,
    #[serde(default)]
    input_guardrails: Vec<Box<str>>,
    #[serde(default)]
    output_guardrails: Vec<Box<str>>,
}

pub(crate) fn compile_defaults(defaults: PublishedDefaults) -> Option<Box<KeyDefaults>> {
    let config = defaults.config_id.map(Into::into);
    let is_bound = config.is_some() && defaults.allow_config_override == Some(false);
    let metadata = defaults.metadata.unwrap_or_default().0;
    let guardrails = DefaultGuardrails { input: defaults.input_guardrails, output: defaults.output_guardrails };
    (config.is_some() || !metadata.is_empty() || !guardrails.is_empty())
        .then(|| Box::new(KeyDefaults { config, is_config_locked: is_bound, metadata, guardrails }))
}

/// Parses the `defaults` claim of a token.
pub(crate) fn parse_defaults(json: &str) -> serde_json::Result<Option<Box<KeyDefaults>>> {
    serde_json::from_str(json).map(compile_defaults)
}

/// A JSON object whose values are stored as strings. Other values keep their JSON text at any nesting depth: a row that
/// predates the depth limit must not block publishing.
#[derive(Default)]
pub(crate) struct StringMap(pub(crate) Vec<(String, String)>);

impl<'de> Deserialize<'de> for StringMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StringMapVisitor;

        impl<'de> Visitor<'de> for StringMapVisitor {
            type Value = StringMap;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<StringMap, A::Error> {
                let mut texts = Vec::new();
                while let Some((key, value)) = table.next_entry::<String, &RawValue>()? {
                    let text = serde_json::from_str(value.get()).unwrap_or_else(|_| value.get().to_owned());
                    texts.push((key, text));
                }
                Ok(StringMap(texts))
            }
        }

        deserializer.deserialize_map(StringMapVisitor)
    }
}
