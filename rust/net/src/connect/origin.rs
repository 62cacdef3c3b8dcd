//! Base URLs of provider APIs: an origin and a path prefix. Ambiguous URLs are rejected here, before any other parser
//! reads them.

use std::{path::PathBuf, sync::Arc};

use super::address;
use crate::uri;

/// Maximum length of a custom host URL, in bytes.
const MAX_URL_BYTES: usize = 2048;
const MAX_LABELS: usize = 10;
const MAX_LABEL_BYTES: usize = 63;

/// An endpoint that connections are opened to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A TCP endpoint. The host is in lower case, an IPv6 address in brackets.
    Network {
        is_secure: bool,
        host: Arc<str>,
        port: u16,
    },
    Unix(Arc<PathBuf>),
}

impl Origin {
    /// Returns the value of the `host` header. It contains the port only if that is not the default of the scheme.
    pub fn authority(&self) -> String {
        let mut out = Vec::new();
        self.write_authority(&mut out);
        String::from_utf8(out).unwrap_or_default()
    }

    /// Returns the host if it is a name, not an address.
    pub fn host_name(&self) -> Option<&Arc<str>> {
        let Self::Network { host, .. } = self else { return None };
        address::HostKind::classify(host).is_ok_and(|kind| kind.address().is_none()).then_some(host)
    }

    /// Appends the authority to a request head.
    pub fn write_authority(&self, out: &mut Vec<u8>) {
        let Self::Network { is_secure: secure, host, port } = self else { return out.extend_from_slice(b"control") };
        out.extend_from_slice(host.as_bytes());
        if *port != default_port(*secure) {
            out.push(b':');
            out.extend_from_slice(itoa::Buffer::new().format(*port).as_bytes());
        }
    }
}

/// An origin and the path prefix of all requests to it.
#[derive(Debug, Clone, PartialEq)]
pub struct BaseUrl {
    pub origin: Origin,
    /// Path prefix without a trailing slash.
    pub prefix: Arc<str>,
}

impl BaseUrl {
    /// Parses an http or https URL that every parser reads alike and whose host is not blocked. Trust in private hosts
    /// is checked later.
    pub fn parse(url: &str) -> Result<Self, String> {
        if url.len() > MAX_URL_BYTES {
            return Err(format!("must be at most {MAX_URL_BYTES} characters"));
        }
        if let Some(invalid) = url.chars().find(|character| !is_allowed_character(*character)) {
            return Err(match invalid {
                '?' | '#' => "must not have a query or a fragment".into(),
                invalid => format!("must not contain {invalid:?}"),
            });
        }
        let (scheme, rest) = url.split_once("://").ok_or("must be a URL such as `https://llm.example/v1`")?;
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            other => return Err(format!("must be http or https, not `{other}`")),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("must not contain credentials".into());
        }
        if let Some(path_error) = uri::find_path_error(path) {
            return Err(path_error.into());
        }
        let (host, port) = split_port(authority)?;
        let port = port.unwrap_or(default_port(secure));
        let host = host.to_ascii_lowercase();
        if !host.starts_with('[') {
            check_host_name(&host)?;
        }
        address::HostKind::classify(&host).map_err(|reason| format!("`{host}` {reason}"))?;
        address::reject_blocked(&host, port).map_err(|reason| format!("`{host}` may not be called: {reason}"))?;
        let origin = Origin::Network { is_secure: secure, host: host.into(), port };
        Ok(Self { origin, prefix: path.trim_end_matches('/').into() })
    }
}

/// Returns true for characters that a base URL may contain: all that RFC 3986 allows in a URL, except `?` and `#`, which
/// begin a query or a fragment.
fn is_allowed_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-._~:/[]@!$&'()*+,;=%".contains(character)
}

/// Splits an authority into the host and, if present, the port.
fn split_port(authority: &str) -> Result<(&str, Option<u16>), String> {
    // Skips the colons inside the brackets of an IPv6 address.
    let after_host = authority.rfind(']').map_or(0, |end| end + 1);
    let Some(colon) = authority[after_host..].find(':') else { return Ok((authority, None)) };
    let (host, port) = authority.split_at(after_host + colon);
    let digits = &port[1..];
    let is_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse::<u16>() {
        Ok(port) if is_digits && port > 0 => Ok((host, Some(port))),
        _ => Err("must have a port between 1 and 65535, or none".into()),
    }
}

fn check_host_name(host: &str) -> Result<(), String> {
    if host.is_empty() {
        return Err("must name a host".into());
    }
    if let Some(invalid) =
        host.chars().find(|character| !(character.is_ascii_alphanumeric() || "-._".contains(*character)))
    {
        return Err(format!("must not contain {invalid:?} in its host"));
    }
    if host.ends_with('.') {
        return Err("must not end its host with a dot".into());
    }
    let labels = || host.split('.');
    if labels().count() > MAX_LABELS {
        return Err(format!("must have at most {MAX_LABELS} labels in its host"));
    }
    if labels().any(|label| label.starts_with("xn--")) {
        return Err("must not be in punycode".into());
    }
    let is_odd = |label: &str| {
        label.is_empty() || label.len() > MAX_LABEL_BYTES || label.starts_with('-') || label.ends_with('-')
    };
    if labels().any(is_odd) {
        return Err(format!(
            "must have labels of 1 to {MAX_LABEL_BYTES} characters in its host, with no hyphen at an end"
        ));
    }
    Ok(())
}

fn default_port(secure: bool) -> u16 {
    if secure { 443 } else { 80 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_a_url_into_origin_and_prefix() {
        let base = BaseUrl::parse("https://api.example.com/v1/").unwrap();
        assert_eq!((base.origin.authority().as_str(), &*base.prefix), ("api.example.com", "/v1"));
        assert_eq!(BaseUrl::parse("http://127.0.0.1:9000/").unwrap().origin.authority(), "127.0.0.1:9000");
        let base = BaseUrl::parse("HTTP://[2606:4700::1]:8080/a@b/c").unwrap();
        assert_eq!((base.origin.authority().as_str(), &*base.prefix), ("[2606:4700::1]:8080", "/a@b/c"));
        assert_eq!(BaseUrl::parse("https://A_b.Example.:443").ok(), None);
        assert_eq!(BaseUrl::parse("https://A_b.Example:443").unwrap().origin.authority(), "a_b.example");
    }

    #[test]
    fn reports_what_is_wrong_with_a_url() {
        for (url, expected) in [
            ("ftp://a", "http or https"),
            ("a", "must be a URL"),
            ("http:/a", "must be a URL"),
            ("https://", "must name a host"),
            ("https:///v1", "must name a host"),
            ("https://:443", "must name a host"),
            ("https://u:p@a", "credentials"),
            ("https://a?x", "query or a fragment"),
            ("https://a#x", "query or a fragment"),
            ("https://a\\b", r"'\\'"),
            ("https://a b", "' '"),
            ("https://a\tb", r"'\t'"),
            ("https://ä.example", "'ä'"),
            ("https://a<b", "'<'"),
            ("https://%61.example", "'%' in its host"),
            ("https://a,b", "',' in its host"),
            ("https://a]", "']' in its host"),
            ("https://[::1", "port"),
            ("https://[::1%25eth0]", "IPv6 address"),
            ("https://[::1]a", "IPv6 address"),
            ("https://a.example.", "dot"),
            ("https://a..example", "labels of 1 to 63"),
            ("https://-a.example", "hyphen"),
            ("https://xn--80ak6aa92e.com", "punycode"),
            ("https://a.b.c.d.e.f.g.h.i.j.k", "at most 10 labels"),
            ("https://a:0", "port"),
            ("https://a:", "port"),
            ("https://a:+1", "port"),
            ("https://a:65536", "port"),
            ("https://a:1:2", "port"),
            ("https://a:6379", "without an HTTP API"),
            ("https://1.2.3.4.5", "is not an IPv4 address"),
            ("https://300.1.1.1", "is not an IPv4 address"),
            ("https://169.254.169.254", "metadata"),
            ("https://0xa9fea9fe", "metadata"),
            ("https://kubernetes.default.svc", "Kubernetes"),
            ("https://127.0.0.1.nip.io", "resolve to any address"),
            ("https://a/v1/../x", "dot segments"),
        ] {
            let message = BaseUrl::parse(url).unwrap_err();
            assert!(message.contains(expected), "{url}: {message}");
        }
        assert!(BaseUrl::parse(&format!("https://a/{}", "x".repeat(2048))).unwrap_err().contains("2048"));
    }
}
