//! Base URLs of the providers' APIs.

use penstock_llm::catalog::{self, Provider};
use penstock_net::BaseUrl;

/// Base URL of each provider's API, parsed once.
pub struct BaseUrls(Vec<(&'static str, &'static dyn Provider, Option<BaseUrl>)>);

impl BaseUrls {
    /// Parses all base URLs. `mock` is the address of the mock provider.
    pub fn new(mock: Option<&str>) -> std::result::Result<Self, String> {
        let base_of = |provider: &'static dyn Provider| match mock {
            Some(host) if provider.row().has_mock_address => {
                BaseUrl::parse(&format!("{}/v1", host.trim_end_matches('/'))).map(Some)
            }
            _ if provider.row().base_url.is_empty() => Ok(None),
            _ => BaseUrl::parse(provider.row().base_url).map(Some),
        };
        catalog::all_providers()
            .map(|provider| Ok((provider.slug(), provider, base_of(provider)?)))
            .collect::<std::result::Result<_, _>>()
            .map(Self)
    }

    /// Returns a provider and its base URL. The URL is missing if the provider has no address of its own.
    pub(crate) fn find(&self, slug: &str) -> Option<(&'static dyn Provider, &Option<BaseUrl>)> {
        self.0.iter().find(|(candidate, ..)| *candidate == slug).map(|(_, provider, base)| (*provider, base))
    }
}
