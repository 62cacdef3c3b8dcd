//! Route plan of a request: its config and the provider that it names, as far as they are known before the body is
//! read.

use std::{
    ops::Deref,
    sync::{Arc, LazyLock},
};

use penstock_llm::catalog::Provider;
use penstock_net::BaseUrl;

use crate::{
    accounting::record::details::ConfigIdentity,
    config::Config,
    state::snapshot::{SavedConfig, SavedProvider},
};

/// Provider that a request or config names: by the provider's own name, or by the slug of a saved provider.
#[derive(Clone, Copy)]
pub(crate) struct NamedProvider<'c> {
    pub provider: &'static dyn Provider,
    pub base_url: &'c Option<BaseUrl>,
    pub saved: Option<&'c SavedProvider>,
}

/// Routing of a request, as far as it is known before the body is read.
pub struct RoutePlan<'c> {
    pub config: ConfigSource<'c>,
    /// Slug of the saved config.
    pub config_slug: Option<&'c str>,
    pub(super) requested_provider: Option<NamedProvider<'c>>,
    /// Host from the custom host header of the request.
    pub(crate) custom_host: Option<BaseUrl>,
}

/// Source of a request's config.
pub enum ConfigSource<'c> {
    Saved(&'c SavedConfig),
    Inline(Arc<Config>),
    None,
}

static EMPTY_CONFIG: LazyLock<Config> = LazyLock::new(Config::default);

impl Deref for ConfigSource<'_> {
    type Target = Config;

    fn deref(&self) -> &Config {
        match self {
            Self::Saved(saved) => &saved.config,
            Self::Inline(config) => config,
            Self::None => &EMPTY_CONFIG,
        }
    }
}

impl ConfigSource<'_> {
    /// Returns the names under which records show a saved config.
    pub fn identity(&self) -> Option<Arc<ConfigIdentity>> {
        match self {
            Self::Saved(saved) => Some(Arc::clone(&saved.identity)),
            Self::Inline(_) | Self::None => None,
        }
    }
}

impl RoutePlan<'_> {
    /// Returns true if the provider is known without the body.
    pub fn has_provider(&self) -> bool {
        self.requested_provider.is_some() || self.config.root.provider.is_some()
    }
}
