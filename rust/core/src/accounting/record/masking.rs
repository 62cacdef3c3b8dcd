//! Masking of credentials in records. Decides by the name of the header or query parameter.

use std::borrow::Cow;

use crate::{
    accounting::record::json_writer::ObjectWriter,
    ingress::headers::{Headers, RequestHead},
};

const MASK: &str = "***";
/// Header whose subprotocols may include API keys.
const WEBSOCKET_PROTOCOL_HEADER: &[u8] = b"sec-websocket-protocol";

/// Writes headers. Masks those that may hold a secret and those in `listed`, which has lower-case names.
pub fn write_masked_headers(fields: &mut ObjectWriter<'_>, headers: &Headers, listed: &[&[String]]) {
    for (name, value) in headers.iter() {
        let is_listed = || listed.iter().any(|list| list.iter().any(|listed| listed.as_bytes() == name));
        // An inline config may hold a key, whatever the prefix of its header. So may a malformed one.
        let is_inline = || name.ends_with(b"-config") && !is_slug(value);
        if is_secret_name(name) || is_inline() || is_listed() {
            fields.bytes(name, MASK.as_bytes());
        } else if name.ends_with(b"-custom-host") || name == b"referer" {
            fields.bytes(name, strip_url_secrets(&String::from_utf8_lossy(value)).as_bytes());
        } else {
            fields.bytes(name, value);
        }
    }
}

/// Returns true if the text can be the slug of a saved object. Any other text may contain a secret.
pub fn is_slug(text: &[u8]) -> bool {
    text.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Returns true if fields with this name may hold credentials. Prefers false positives.
pub fn is_secret_name(name: impl AsRef<[u8]>) -> bool {
    let name = name.as_ref();
    // Dispatches on the first letter, because this runs for every header of every request.
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

/// Returns the URL without its user info, query and fragment, which may hold secrets.
fn strip_url_secrets(url: &str) -> &str {
    // Removes the user info first: it may contain unescaped `?` or `#`.
    let rest = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
    rest.split(['?', '#']).next().unwrap_or_default()
}

/// Returns path and query. Masks the values of parameters that may be secrets.
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

/// Returns true if the parameter may grant access: a secret, or the signature of a presigned URL.
fn is_secret_param(name: &str) -> bool {
    name == "sig" || is_secret_name(name)
}

/// Returns the parameter name percent-decoded and in lower case, as the server will see it.
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
            write_masked_headers(fields, &headers, &[&["x-user".into()], &["x-team".into()]]);
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
