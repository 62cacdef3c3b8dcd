//! Settings of the crate `penstock-net`, derived from the operator's.

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock},
    time::Duration,
};

use penstock_llm::catalog;
use penstock_net::{BaseUrl, KnownHosts, body::BodyLimits};

use crate::process::{secret::Secret, settings::Settings};

/// Returns the settings of the HTTP client.
pub fn client_settings(settings: &Settings) -> penstock_net::Settings {
    let expose = |url: &Option<Secret>| url.as_ref().map(|url| url.expose().to_owned());
    penstock_net::Settings {
        dns_timeout: Duration::from_millis(settings.dns_timeout_ms),
        connect_timeout: Duration::from_millis(settings.connect_timeout_ms),
        tls_timeout: Duration::from_millis(settings.tls_timeout_ms),
        idle_timeout: Duration::from_millis(settings.idle_timeout_ms),
        stream_timeout: Duration::from_millis(settings.stream_timeout_ms),
        http2: settings.http2,
        trusted_hosts: settings.trusted_custom_hosts.clone(),
        known_hosts: KnownHosts { is_provider: is_provider_host, is_cloud: catalog::is_cloud_host },
        mock_host: settings.mock_host.clone(),
        https_proxy: expose(&settings.https_proxy),
        http_proxy: expose(&settings.http_proxy),
        no_proxy: settings.no_proxy.clone(),
        tls_ca: settings.tls_ca.clone(),
    }
}

/// Returns the limits of a request's body.
pub fn body_limits(settings: &Settings) -> BodyLimits {
    BodyLimits {
        max_bytes: settings.max_body_bytes,
        idle_timeout: Duration::from_millis(settings.body_idle_ms),
        total_timeout: Duration::from_millis(settings.body_total_ms),
        grace_period: Duration::from_millis(settings.body_grace_ms),
        min_bytes_per_second: settings.body_rate,
    }
}

/// Returns true if a host is the default host of a provider.
fn is_provider_host(host: &str) -> bool {
    static PROVIDER_HOSTS: LazyLock<HashSet<Arc<str>>> = LazyLock::new(|| {
        catalog::all_providers()
            .filter_map(|provider| BaseUrl::parse(provider.row().base_url).ok()?.origin.host_name().cloned())
            .collect()
    });
    PROVIDER_HOSTS.contains(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_default_hosts_of_providers_but_no_addresses() {
        assert!(is_provider_host("api.openai.com") && !is_provider_host("api.openai.com.example"));
        assert!(!is_provider_host("127.0.0.1") && !is_provider_host("localhost.example"));
    }
}
