//! Where a provider's API starts: an origin and a path.

use std::{path::PathBuf, sync::Arc};

use url::{Host, Url};

/// Longest custom host URL and longest hostname.
const LIMIT: usize = 2048;

/// One place to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Origin {
    Network { secure: bool, host: Arc<str>, port: u16 },
    Unix(Arc<PathBuf>),
}

impl Origin {
    /// The `host` header: the port only where it is not the scheme's own.
    pub fn authority(&self) -> String {
        match self {
            Self::Network { secure, host, port } if *port == default_port(*secure) => host.to_string(),
            Self::Network { host, port, .. } => format!("{host}:{port}"),
            Self::Unix(_) => "control".to_owned(),
        }
    }
}

/// An origin and the path that stands before every request's own.
#[derive(Debug, Clone, PartialEq)]
pub struct Base {
    pub origin: Origin,
    /// Without a trailing slash.
    pub prefix: Arc<str>,
}

impl Base {
    /// From an http or https URL: no credentials, query or fragment, at most 2048 characters.
    pub fn parse(url: &str) -> Result<Self, String> {
        if url.len() > LIMIT {
            return Err(format!("must be at most {LIMIT} characters"));
        }
        let parsed = Url::parse(url).map_err(|error| format!("must be a URL: {error}"))?;
        let secure = match parsed.scheme() {
            "https" => true,
            "http" => false,
            other => return Err(format!("must be http or https, not `{other}`")),
        };
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err("must not hold credentials".into());
        }
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err("must not have a query or a fragment".into());
        }
        let host = match parsed.host() {
            Some(Host::Ipv6(address)) => format!("[{address}]"),
            Some(host) => host.to_string(),
            None => return Err("must name a host".into()),
        };
        let port = parsed.port().unwrap_or(default_port(secure));
        let origin = Origin::Network { secure, host: host.into(), port };
        Ok(Self { origin, prefix: parsed.path().trim_end_matches('/').into() })
    }
}

fn default_port(secure: bool) -> u16 {
    if secure { 443 } else { 80 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_origin_and_prefix() {
        let base = Base::parse("https://api.example.com/v1/").unwrap();
        assert_eq!(base.origin.authority(), "api.example.com");
        assert_eq!(&*base.prefix, "/v1");
        assert_eq!(Base::parse("http://127.0.0.1:9/").unwrap().origin.authority(), "127.0.0.1:9");
    }

    #[test]
    fn refuses_what_is_no_plain_http_url() {
        for url in ["ftp://a", "https://u:p@a", "https://a?x", "https://a#x", "a", "https://"] {
            assert!(Base::parse(url).is_err(), "{url}");
        }
    }
}
