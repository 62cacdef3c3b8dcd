//! Outgoing HTTP proxies: which requests use one, and what the proxy receives.

use std::net::IpAddr;

use url::Url;

use super::address::HostKind;
use super::origin::Origin;
use crate::{error::SettingError, settings::Settings};

/// One proxy. The operator chose its address, so it is not checked. Has no `Debug`, because it may contain a password.
pub struct Proxy {
    pub host: String,
    pub port: u16,
    /// The complete `proxy-authorization` field with its line end; empty if the proxy needs no credentials.
    authorization: String,
}

/// Entry of `NO_PROXY`: hosts that are reached without a proxy.
#[derive(Debug, PartialEq)]
enum DirectRule {
    All,
    Name(String, Option<u16>),
    Network(IpAddr, u8, Option<u16>),
}

/// Proxies that the operator set in `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`.
pub struct Proxies {
    https: Option<Proxy>,
    http: Option<Proxy>,
    direct_rules: Vec<DirectRule>,
}

impl Proxies {
    pub fn new(settings: &Settings) -> Result<Self, SettingError> {
        let proxy = |url: &Option<String>, setting| {
            let parsed = url.as_deref().map(Proxy::parse).transpose();
            parsed.map_err(|message| SettingError::new(setting, message))
        };
        Ok(Self {
            https: proxy(&settings.https_proxy, "https_proxy")?,
            http: proxy(&settings.http_proxy, "http_proxy")?,
            direct_rules: settings.no_proxy.iter().filter_map(|entry| DirectRule::parse(entry)).collect(),
        })
    }

    /// Returns the proxy for connections to an origin.
    pub fn select(&self, origin: &Origin) -> Option<&Proxy> {
        let Origin::Network { is_secure: secure, host, port } = origin else { return None };
        let proxy = if *secure { self.https.as_ref()? } else { self.http.as_ref()? };
        // A proxy cannot reach services on this machine's loopback addresses.
        let is_own = |address: IpAddr| address.is_loopback() || address.is_unspecified();
        let address = HostKind::classify(host).ok()?.address();
        let is_direct = &**host == "localhost"
            || address.is_some_and(is_own)
            || self.direct_rules.iter().any(|direct| direct.matches(host, address, *port));
        (!is_direct).then_some(proxy)
    }
}

impl Proxy {
    /// Parses a proxy URL; the scheme is optional. Errors do not repeat the URL, because it may contain a password.
    fn parse(text: &str) -> Result<Self, &'static str> {
        const EXPECTED: &str =
            "must be an address such as `http://proxy.example:3128`; only the http scheme is supported";
        let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let url = Url::parse(&text).map_err(|_| EXPECTED)?;
        let host = url.host_str().filter(|_| url.scheme() == "http").ok_or(EXPECTED)?;
        let authorization = if url.username().is_empty() && url.password().is_none() {
            String::new()
        } else {
            let decoded = |text: &str| percent_encoding::percent_decode_str(text).collect::<Vec<u8>>();
            let pair = [decoded(url.username()), decoded(url.password().unwrap_or_default())].join(&b':');
            format!("proxy-authorization: Basic {}\r\n", encode_base64(&pair))
        };
        let port = url.port_or_known_default().unwrap_or(80);
        Ok(Self { host: host.to_owned(), port, authorization })
    }

    /// Returns the CONNECT request for a tunnel to an origin.
    pub fn connect_request(&self, host: &str, port: u16) -> Vec<u8> {
        let authorization = &self.authorization;
        format!("CONNECT {host}:{port} HTTP/1.1\r\nhost: {host}:{port}\r\n{authorization}\r\n").into_bytes()
    }

    /// Converts the head of a request without TLS for a proxy: adds the absolute URL and the proxy's credentials.
    pub fn to_absolute_form(&self, head: &[u8], origin: &Origin) -> Vec<u8> {
        let method = head.iter().position(|byte| *byte == b' ').map_or(0, |space| space + 1);
        let line = head.windows(2).position(|two| two == b"\r\n").map_or(head.len(), |end| end + 2);
        let url = format!("http://{}", origin.authority());
        [&head[..method], url.as_bytes(), &head[method..line], self.authorization.as_bytes(), &head[line..]].concat()
    }
}

impl DirectRule {
    /// Parses one entry of `NO_PROXY`: a name (with its subdomains), an address or a network, each with an optional
    /// port; or `*`.
    fn parse(entry: &str) -> Option<Self> {
        let entry = entry.trim().to_ascii_lowercase();
        if entry == "*" {
            return Some(Self::All);
        }
        let address = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        if let Some((net, bits)) = entry.split_once('/')
            && let (Some(net), Ok(bits)) = (address(net), bits.parse())
        {
            return Some(Self::Network(net, bits, None));
        }
        let port =
            |text: &str| text.rsplit_once(':').and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
        let (host, port) = match address(&entry) {
            Some(_) => (entry, None),
            None => port(&entry).map_or((entry, None), |(host, port)| (host, Some(port))),
        };
        if let Some(address) = address(&host) {
            return Some(Self::Network(address, 128, port));
        }
        let name = host.trim_start_matches('*').trim_start_matches('.').to_owned();
        (!name.is_empty()).then_some(Self::Name(name, port))
    }

    fn matches(&self, host: &str, address: Option<IpAddr>, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Name(name, only) => {
                let is_below =
                    host.strip_suffix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
                address.is_none() && is_below && only.is_none_or(|only| only == port)
            }
            Self::Network(net, bits, only) => {
                address.is_some_and(|address| is_in_network(address, *net, *bits))
                    && only.is_none_or(|only| only == port)
            }
        }
    }
}

fn is_in_network(address: IpAddr, net: IpAddr, bits: u8) -> bool {
    let (address, net, width) = match (address, net) {
        (IpAddr::V4(address), IpAddr::V4(net)) => (u128::from(u32::from(address)), u128::from(u32::from(net)), 32),
        (IpAddr::V6(address), IpAddr::V6(net)) => (u128::from(address), u128::from(net), 128),
        _ => return false,
    };
    let rest = width - u32::from(bits).min(width);
    // A shift by 128 bits would overflow. A prefix of zero bits matches every address.
    rest == 128 || address >> rest == net >> rest
}

/// Encodes bytes as base64 (RFC 4648 §4).
fn encode_base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let group = three.iter().fold(0_u32, |value, byte| (value << 8) | u32::from(*byte)) << (8 * (3 - three.len()));
        for index in 0..4 {
            let letter = char::from(ALPHABET[(group >> (18 - 6 * index)) as usize & 63]);
            text.push(if index <= three.len() { letter } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::origin::BaseUrl;

    fn proxies(no_proxy: &[&str]) -> Proxies {
        let settings = Settings {
            https_proxy: Some("http://secure.example:3128".to_owned()),
            http_proxy: Some("plain.example:3129".to_owned()),
            no_proxy: no_proxy.iter().map(ToString::to_string).collect(),
            ..Settings::default()
        };
        Proxies::new(&settings).unwrap()
    }

    fn proxy_for(proxies: &Proxies, url: &str) -> Option<String> {
        let proxy = proxies.select(&BaseUrl::parse(url).unwrap().origin)?;
        Some(format!("{}:{}", proxy.host, proxy.port))
    }

    #[test]
    fn selects_the_proxy_by_the_scheme_of_the_destination() {
        let proxies = proxies(&[]);
        assert_eq!(proxy_for(&proxies, "https://api.example").as_deref(), Some("secure.example:3128"));
        assert_eq!(proxy_for(&proxies, "http://api.example").as_deref(), Some("plain.example:3129"));
        for local_url in ["http://localhost:8080", "http://127.0.0.1", "http://127.1", "https://[::1]:8443"] {
            assert_eq!(proxy_for(&proxies, local_url), None, "{local_url}");
        }
    }

    #[test]
    fn no_proxy_hosts_are_reached_directly() {
        let rows = [
            ("*", &["https://a.example", "http://1.1.1.1"][..], &[][..]),
            ("llm.example", &["https://llm.example", "https://eu.llm.example:8443"], &["https://xllm.example"]),
            (".LLM.example", &["https://llm.example", "https://eu.llm.example"], &["https://example"]),
            ("*.llm.example", &["https://eu.llm.example"], &["https://other.example"]),
            ("llm.example:8443", &["https://llm.example:8443"], &["https://llm.example"]),
            ("1.1.1.1", &["http://1.1.1.1"], &["http://1.1.1.2"]),
            ("1.1.0.0/16", &["http://1.1.9.9"], &["http://1.2.0.1"]),
            ("2606:4700::/32", &["https://[2606:4700::1]"], &["https://[2606:4701::1]", "http://1.1.1.1"]),
            ("[2606:4700::1]:8443", &["https://[2606:4700::1]:8443"], &["https://[2606:4700::1]"]),
            ("0.0.0.0/0", &["http://1.1.1.1"], &["https://a.example"]),
            (" ", &[], &["https://a.example"]),
        ];
        for (entry, direct, proxied) in rows {
            let proxies = proxies(&[entry]);
            for url in direct {
                assert_eq!(proxy_for(&proxies, url), None, "{entry}: {url}");
            }
            for url in proxied {
                assert!(proxy_for(&proxies, url).is_some(), "{entry}: {url}");
            }
        }
    }

    #[test]
    fn sends_credentials_only_to_the_proxy() {
        let proxy = Proxy::parse("http://al%40ice:open%20sesame@proxy.example").unwrap();
        let request = String::from_utf8(proxy.connect_request("api.example", 443)).unwrap();
        assert!(request.contains("\r\nproxy-authorization: Basic YWxAaWNlOm9wZW4gc2VzYW1l\r\n\r\n"), "{request}");
        assert_eq!(["", "a", "ab", "abc"].map(|text| encode_base64(text.as_bytes())), ["", "YQ==", "YWI=", "YWJj"]);
        for bad in ["https://u:sesame@proxy", "socks5://u:sesame@proxy", "http://", "http://u:sesame@:1:2"] {
            let message = Proxy::parse(bad).err().expect(bad);
            assert!(message.contains("3128") && !message.contains("sesame"), "{message}");
        }
    }

    #[test]
    fn plain_request_contains_the_absolute_url() {
        let proxy = Proxy::parse("http://u:p@proxy.example").unwrap();
        let origin = BaseUrl::parse("http://api.example:8080").unwrap().origin;
        let head = proxy.to_absolute_form(b"GET /v1/x?y HTTP/1.1\r\nhost: api.example:8080\r\n\r\n", &origin);
        assert_eq!(
            String::from_utf8(head).unwrap(),
            "GET http://api.example:8080/v1/x?y HTTP/1.1\r\nproxy-authorization: Basic dTpw\r\nhost: api.example:8080\r\n\r\n"
        );
    }
}
