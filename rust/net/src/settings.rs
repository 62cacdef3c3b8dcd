//! Settings of the client. The gateway derives them from its own.

use std::{path::PathBuf, time::Duration};

/// Has no `Debug`, because the URLs of proxies may contain passwords.
#[derive(Clone)]
pub struct Settings {
    pub dns_timeout: Duration,
    pub connect_timeout: Duration,
    pub tls_timeout: Duration,
    /// Maximum silence within a response.
    pub idle_timeout: Duration,
    /// Maximum total duration of a response.
    pub stream_timeout: Duration,
    /// True to use HTTP/2 with providers that offer it.
    pub http2: bool,
    /// Hosts that may have private addresses, with their subdomains.
    pub trusted_hosts: Vec<String>,
    pub known_hosts: KnownHosts,
    /// Address where the mock provider listens. It may be private.
    pub mock_host: Option<String>,
    pub https_proxy: Option<String>,
    pub http_proxy: Option<String>,
    pub no_proxy: Vec<String>,
    /// PEM file with additional certificate authorities.
    pub tls_ca: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            dns_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(3),
            tls_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_mins(1),
            stream_timeout: Duration::from_hours(1),
            http2: true,
            trusted_hosts: Vec::new(),
            known_hosts: KnownHosts::default(),
            mock_host: None,
            https_proxy: None,
            http_proxy: None,
            no_proxy: Vec::new(),
            tls_ca: None,
        }
    }
}

/// Hosts whose addresses a client of the gateway cannot choose. Hosts are in lower case.
#[derive(Debug, Clone, Copy)]
pub struct KnownHosts {
    /// Returns true for the default host of a provider.
    pub is_provider: fn(&str) -> bool,
    /// Returns true for a host that a cloud provider assigns to a customer.
    pub is_cloud: fn(&str) -> bool,
}

impl Default for KnownHosts {
    fn default() -> Self {
        Self { is_provider: |_| false, is_cloud: |_| false }
    }
}
