//! What is left out of records: everything that may be a credential, by the name of the field that holds it.

use std::borrow::Cow;

use crate::{
    accounting::record::json_writer::ObjectWriter,
    ingress::headers::{Headers, RequestHead},
};

const MASK: &str = "***";
/// Keys may be among them.
const WEBSOCKET_PROTOCOL_HEADER: &[u8] = b"sec-websocket-protocol";

/// Writes header fields with everything masked that may be a secret, or is listed by its lower-case name.
pub fn write_masked_headers(fields: &mut ObjectWriter<'_>, headers: &Headers, listed: &[&[String]]) {
    for (name, value) in headers.iter() {
        let is_listed = || listed.iter().any(|list| list.iter().any(|listed| listed.as_bytes() == name));
        // An inline config may hold a key, whatever the prefix of its header; so may one that is broken.
        let is_inline = || name.ends_with(b"-config") && !is_slug(value);
        if may_be_secret(name) || is_inline() || is_listed() {
            fields.bytes(name, MASK.as_bytes());
        } else if name.ends_with(b"-custom-host") || name == b"referer" {
            fields.bytes(name, strip_url_secrets(&String::from_utf8_lossy(value)).as_bytes());
        } else {
            fields.bytes(name, value);
        }
    }
}

/// Whether a text can be the id of something saved. Whatever else stands in its place may hold anything.
pub fn is_slug(text: &[u8]) -> bool {
    text.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Names that hold credentials somewhere: rather one masked too many.
pub fn may_be_secret(name: impl AsRef<[u8]>) -> bool {
    let name = name.as_ref();
    // By their first letter: each request's names are looked through.
    name == WEBSOCKET_PROTOCOL_HEADER
        || name.iter().enumerate().any(|(at, first)| {
            let parts: &[&[u8]] = match first {
                b'a' => &[b"auth"],
                b'c' => &[b"cookie", b"credential"],
                b'k' => &[b"key"],
                b'p' => &[b"passw", b"passphrase"],
                b's' => &[b"secret", b"service-account", b"signature"],
                b't' => &[b"token"],
                _ => return false,
            };
            parts.iter().any(|part| name[at..].starts_with(part))
        })
}

/// A URL without what may be a secret in it: its user and its query.
fn strip_url_secrets(url: &str) -> &str {
    // The user first: what it holds need not be escaped as it should be.
    let rest = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
    rest.split(['?', '#']).next().unwrap_or_default()
}

/// Path and query; the values of parameters that may be secrets are masked.
pub fn mask_url(head: &RequestHead) -> Cow<'_, str> {
    if head.query.is_empty() {
        return Cow::Borrowed(&head.path);
    }
    let mut url = format!("{}?", head.path);
    for (index, pair) in head.query.split('&').enumerate() {
        if index > 0 {
            url.push('&');
        }
        match pair.split_once('=') {
            Some((name, _)) if is_secret_param(&decode_param_name(name)) => {
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
fn is_secret_param(name: &str) -> bool {
    name == "sig" || may_be_secret(name)
}

/// A parameter's name as its reader will see it: escapes undone, in lower case.
fn decode_param_name(name: &str) -> String {
    url::form_urlencoded::parse(name.as_bytes()).next().map_or_else(String::new, |(name, _)| name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounting::record::json_writer::write_object;

    fn mask_to_json(fields: &[(&str, &str)]) -> String {
        let headers: Headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        let mut out = Vec::new();
        write_object(&mut out, |fields| {
            write_masked_headers(fields, &headers, &[&["x-user".into()], &["x-team".into()]])
        });
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn masks_possible_secrets_and_listed_headers() {
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
            assert!(!mask_to_json(&[(name, value)]).contains("sk-1"), "{name}: {value}");
        }
        let plain = [("accept", "*/*"), ("x-gateway-config", "pc-1")];
        assert_eq!(mask_to_json(&plain), r#"{"accept":"*/*","x-gateway-config":"pc-1"}"#);
    }

    #[test]
    fn masks_query_parameters_that_may_be_secrets() {
        let head = |query: &str| RequestHead { path: "/v1/x".into(), query: query.into(), ..RequestHead::default() };
        assert_eq!(mask_url(&head("key=sk-3&page=2")), "/v1/x?key=***&page=2");
        assert_eq!(mask_url(&head("access%5Ftoken=sk-3")), "/v1/x?access%5Ftoken=***");
        assert_eq!(mask_url(&head("X-Goog-Signature=a&sig=b&signal=c")), "/v1/x?X-Goog-Signature=***&sig=***&signal=c");
    }
}
