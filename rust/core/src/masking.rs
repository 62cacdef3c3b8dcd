//! What is left out of records: everything that may be a credential, by the name of the field that holds it.

use std::borrow::Cow;

use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::headers::{Head, Headers};

const MASK: &str = "***";

/// Header fields with everything that may be a secret masked.
pub struct Masked<'a> {
    pub headers: &'a Headers,
    pub listed: &'a [String],
    pub always: &'a [String],
}

impl Serialize for Masked<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.headers.iter() {
            let name = String::from_utf8_lossy(name);
            let is_listed = |list: &[String]| list.iter().any(|listed| *listed == name);
            // An inline config may hold a key, whatever the prefix of its header; so may one that is broken.
            let is_inline = name.ends_with("-config") && !is_slug(value);
            if may_be_secret(&name) || is_inline || is_listed(self.listed) || is_listed(self.always) {
                map.serialize_entry(&*name, MASK)?;
            } else if name.ends_with("-custom-host") || name == "referer" {
                map.serialize_entry(&*name, bare_url(&String::from_utf8_lossy(value)))?;
            } else {
                map.serialize_entry(&*name, &*String::from_utf8_lossy(value))?;
            }
        }
        map.end()
    }
}

/// Whether a text can be the id of something saved. Whatever else stands in its place may hold anything.
pub fn is_slug(text: &[u8]) -> bool {
    text.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Names that hold credentials somewhere: rather one masked too many.
pub fn may_be_secret(name: &str) -> bool {
    const PARTS: [&str; 10] = [
        "auth",
        "key",
        "token",
        "secret",
        "cookie",
        "passw",
        "passphrase",
        "credential",
        "signature",
        "service-account",
    ];
    // Nearly every request has these: looking for parts of words in them is most of what a record's fields cost.
    match name {
        "host" | "content-type" | "content-length" | "accept" | "user-agent" | "x-gateway-provider"
        | "x-gateway-config" => return false,
        "authorization" | "x-gateway-api-key" | "sec-websocket-protocol" => return true,
        _ => (),
    }
    PARTS.iter().any(|part| memchr::memmem::find(name.as_bytes(), part.as_bytes()).is_some())
}

/// A URL without what may be a secret in it: its user and its query.
fn bare_url(url: &str) -> &str {
    // The user first: what it holds need not be escaped as it should be.
    let rest = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
    rest.split(['?', '#']).next().unwrap_or_default()
}

/// Path and query; the values of parameters that may be secrets are masked.
pub fn masked_url(head: &Head) -> Cow<'_, str> {
    if head.query.is_empty() {
        return Cow::Borrowed(&head.path);
    }
    let mut url = format!("{}?", head.path);
    for (index, pair) in head.query.split('&').enumerate() {
        if index > 0 {
            url.push('&');
        }
        match pair.split_once('=') {
            Some((name, _)) if opens(&plain(name)) => {
                url.push_str(name);
                url.push('=');
                url.push_str(MASK);
            }
            _ => url.push_str(pair),
        }
    }
    Cow::Owned(url)
}

/// Whether a parameter's value may open something: a secret, or the signature of an address that needs no other.
fn opens(name: &str) -> bool {
    name == "sig" || may_be_secret(name)
}

/// A parameter's name as its reader will see it: escapes undone, in lower case.
fn plain(name: &str) -> String {
    url::form_urlencoded::parse(name.as_bytes()).next().map_or_else(String::new, |(name, _)| name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(fields: &[(&str, &str)]) -> String {
        let headers: Headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        serde_json::to_string(&Masked { headers: &headers, listed: &["x-user".into()], always: &["x-team".into()] })
            .unwrap()
    }

    #[test]
    fn masks_what_may_be_a_secret_and_what_is_listed() {
        for (name, value) in [
            ("authorization", "Bearer sk-1"),
            ("sec-websocket-protocol", "openai-insecure-api-key.sk-1"),
            ("x-team", "sk-1"),
            ("x-user", "sk-1"),
            ("x-gateway-config", r#"{"api_key":"sk-1"}"#),
            ("x-portkey-config", r#"["sk-1"]"#),
            ("x-gateway-custom-host", "https://user:sk-1@host/"),
            ("x-gateway-custom-host", "https://user:a?sk-1#@host/"),
            ("x-gateway-custom-host", "https://host/?key=sk-1"),
            ("referer", "https://host/?key=sk-1"),
        ] {
            assert!(!masked(&[(name, value)]).contains("sk-1"), "{name}: {value}");
        }
        let plain = [("accept", "*/*"), ("x-gateway-config", "pc-1")];
        assert_eq!(masked(&plain), r#"{"accept":"*/*","x-gateway-config":"pc-1"}"#);
    }

    #[test]
    fn the_values_of_parameters_that_may_be_secrets_are_masked() {
        let head = |query: &str| Head { path: "/v1/x".into(), query: query.into(), ..Head::default() };
        assert_eq!(masked_url(&head("key=sk-3&page=2")), "/v1/x?key=***&page=2");
        assert_eq!(masked_url(&head("access%5Ftoken=sk-3")), "/v1/x?access%5Ftoken=***");
        assert_eq!(
            masked_url(&head("X-Goog-Signature=a&sig=b&signal=c")),
            "/v1/x?X-Goog-Signature=***&sig=***&signal=c"
        );
    }
}
