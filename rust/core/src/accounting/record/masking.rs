//! Masking of headers and URLs in records. Only headers from a list are shown, because nobody knows the names of all
//! headers that carry credentials.

use std::borrow::Cow;

use bytes::Bytes;
use memchr::memchr;
use penstock_net::Origin;

use crate::{
    accounting::record::json_writer::{ObjectWriter, write_object},
    ingress::message::RequestHead,
    process::secret::{MASK, is_secret_name, looks_like_token},
};

/// Headers whose values are shown, unless they look like a token.
const SHOWN_HEADERS: [&str; 58] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "anthropic-version",
    "cache-control",
    "connection",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-type",
    "date",
    "dnt",
    "expect",
    "forwarded",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "keep-alive",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "origin",
    "pragma",
    "priority",
    "range",
    "referer",
    "sec-fetch-dest",
    "sec-fetch-mode",
    "sec-fetch-site",
    "sec-websocket-extensions",
    "sec-websocket-version",
    "te",
    "traceparent",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-app",
    "x-correlation-id",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
    "x-request-id",
    "x-stainless-arch",
    "x-stainless-async",
    "x-stainless-helper-method",
    "x-stainless-lang",
    "x-stainless-os",
    "x-stainless-package-version",
    "x-stainless-retry-count",
    "x-stainless-runtime",
];
/// Names, without their prefix, of control headers whose values are shown.
const SHOWN_CONTROL_HEADERS: [&str; 22] = [
    "cache-force-refresh",
    "cache-namespace",
    "config",
    "custom-host",
    "debug",
    "explain",
    "fetch-integrated-models",
    "forward-headers",
    "metadata",
    "models-endpoint",
    "nitro-mode",
    "parent-span-id",
    "provider",
    "request-timeout",
    "retry-count",
    "sensitive-headers",
    "span-id",
    "span-name",
    "strict-open-ai-compliance",
    "trace-id",
    "virtual-key",
    "pretty",
];
/// Headers that hold identifiers, which may look like tokens.
const IDENTIFIER_HEADERS: [&str; 7] = [
    "content-type",
    "host",
    "openai-organization",
    "openai-project",
    "traceparent",
    "x-correlation-id",
    "x-request-id",
];
/// Maximum length of a value that is shown. The rest of a longer value is cut off.
const MAX_SHOWN_VALUE_BYTES: usize = 2048;

/// Writes headers. Masks the values of headers that are not known to be harmless, and of those in `listed` (lower-case
/// names). `prefixes` are the prefixes of control headers.
pub fn write_masked_headers<'h>(
    fields: &mut ObjectWriter<'_>,
    headers: impl Iterator<Item = (&'h [u8], &'h [u8])>,
    listed: &[&[String]],
    prefixes: &[String],
) {
    for (name, value) in headers {
        let is_listed = || listed.iter().any(|list| list.iter().any(|listed| listed.as_bytes() == name));
        match shown_value(name, value, prefixes).filter(|_| !is_listed()) {
            Some(value) => fields.bytes(name, value),
            None => fields.bytes(name, MASK.as_bytes()),
        }
    }
}

/// Encodes the head of a request to a provider for its record, as JSON: URL, method and headers. Secrets are masked as in
/// the client's request.
pub fn encode_upstream_head(origin: &Origin, head: &[u8], listed: &[&[String]]) -> Bytes {
    let mut lines = head_lines(head);
    let mut words = lines.next().unwrap_or_default().split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut url = Vec::with_capacity(target.len() + 64);
    url.extend_from_slice(if matches!(origin, Origin::Network { is_secure: true, .. }) {
        b"https://"
    } else {
        b"http://"
    });
    origin.write_authority(&mut url);
    match memchr(b'?', target) {
        Some(at) => {
            url.extend_from_slice(&target[..=at]);
            url.extend_from_slice(mask_query(&String::from_utf8_lossy(&target[at + 1..])).as_bytes());
        }
        None => url.extend_from_slice(target),
    }
    let mut out = Vec::with_capacity(head.len() + 128);
    write_object(&mut out, |fields| {
        fields.bytes(b"url", &url);
        fields.bytes(b"method", method);
        fields.object("headers", |fields| {
            let headers = lines.filter_map(|line| {
                let (name, value) = line.split_at(memchr(b':', line)?);
                Some((name, value[1..].trim_ascii()))
            });
            write_masked_headers(fields, headers, listed, &[]);
        });
    });
    out.into()
}

/// Returns the lines of the head of a request.
fn head_lines(mut head: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (line, rest) = head.split_at_checked(memchr(b'\n', head)? + 1)?;
        head = rest;
        Some(line.trim_ascii_end())
    })
}

/// Returns the part of a header's value that may be shown.
fn shown_value<'v>(name: &[u8], value: &'v [u8], prefixes: &[String]) -> Option<&'v [u8]> {
    let name = std::str::from_utf8(name).ok()?;
    let control = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix.as_str()));
    let (is_shown, name) = match control {
        Some(rest) => (SHOWN_CONTROL_HEADERS.contains(&rest), rest),
        None => (SHOWN_HEADERS.binary_search(&name).is_ok(), name),
    };
    if !is_shown {
        return None;
    }
    let mut text = std::str::from_utf8(value).ok()?;
    match name {
        // An inline config may contain a key, even if it is malformed.
        "config" if !is_slug(value) => return None,
        "custom-host" | "referer" => text = strip_url_secrets(text),
        _ => (),
    }
    let is_identifier = IDENTIFIER_HEADERS.contains(&name) || control.is_some() && name.ends_with("-id");
    let cut = &text.as_bytes()[..text.len().min(MAX_SHOWN_VALUE_BYTES)];
    (is_identifier || !looks_like_token(text)).then_some(cut)
}

/// Returns true if the text can be the slug of a saved object. Any other text may contain a secret.
pub fn is_slug(text: &[u8]) -> bool {
    text.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Returns the URL without its user info, query and fragment, which may hold secrets.
fn strip_url_secrets(url: &str) -> &str {
    // Removes the user info first: it may contain unescaped `?` or `#`.
    let rest = url.rsplit_once('@').map_or(url, |(_, rest)| rest);
    rest.split(['?', '#']).next().unwrap_or_default()
}

/// Returns the path and query of a request. Masks the values of parameters that may be secrets.
pub fn mask_url(head: &RequestHead) -> Cow<'_, str> {
    if head.query.is_empty() {
        return Cow::Borrowed(&head.path);
    }
    Cow::Owned(format!("{}?{}", head.path, mask_query(&head.query)))
}

/// Returns a query with the values of parameters that may be secrets masked.
pub fn mask_query(query: &str) -> String {
    let mut masked = String::with_capacity(query.len());
    for (index, pair) in query.split('&').enumerate() {
        if index > 0 {
            masked.push('&');
        }
        match pair.split_once('=') {
            Some((name, value)) if is_secret_param(&decode_param_name(name)) || looks_like_token(value) => {
                masked.push_str(name);
                masked.push('=');
                masked.push_str(MASK);
            }
            _ => masked.push_str(pair),
        }
    }
    masked
}

/// Returns the part of a header's value that may be shown, and `None` if it may be a secret. The name is in lower case.
pub fn shown_header<'v>(name: &str, value: &'v str) -> Option<&'v str> {
    shown_value(name.as_bytes(), value.as_bytes(), &[]).and_then(|bytes| std::str::from_utf8(bytes).ok())
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
    use std::sync::Arc;

    use penstock_net::headers::Headers;

    use super::*;

    fn mask_to_json(fields: &[(&str, &str)]) -> String {
        let headers: Headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        let mut out = Vec::new();
        write_object(&mut out, |fields| {
            let prefixes = ["x-gateway-".to_owned(), "x-portkey-".to_owned()];
            write_masked_headers(fields, headers.iter(), &[&["x-user".into()], &["user-agent".into()]], &prefixes);
        });
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn masks_possible_secrets_and_listed_headers() {
        for (name, value) in [
            ("authorization", "Bearer sk-1"),
            ("sec-websocket-protocol", "openai-insecure-api-key.sk-1"),
            ("x-unknown", "sk-1"),
            ("x-user", "sk-1"),
            ("user-agent", "sk-1"),
            ("x-amzn-oidc-data", "sk-1"),
            ("cf-access-jwt-assertion", "sk-1"),
            ("x-gateway-aws-external-id", "sk-1"),
            ("accept", "sk-1-0123456789"),
            ("x-gateway-provider", "Bearer sk-1"),
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
        assert!(SHOWN_HEADERS.is_sorted());
    }

    #[test]
    fn encodes_the_head_of_an_upstream_request() {
        let head = b"POST /v1/x?key=sk-1&alt=sse HTTP/1.1\r\nhost: h:8443\r\nauthorization: Bearer sk-2\r\n\
            x-api-key: sk-3\r\nuser-agent: a \"b\"\r\nx-custom: sk-4\r\naccept: text\r\ncontent-length: 3\r\n\r\n";
        let origin = Origin::Network { is_secure: true, host: Arc::from("h"), port: 8443 };
        let encode = |origin, head: &[u8]| {
            String::from_utf8(encode_upstream_head(origin, head, &[&["accept".to_owned()]]).to_vec()).unwrap()
        };
        let expected = concat!(
            r#"{"url":"https://h:8443/v1/x?key=***&alt=sse","method":"POST","headers":{"host":"h:8443","#,
            r#""authorization":"***","x-api-key":"***","user-agent":"a \"b\"","x-custom":"***","accept":"***","#,
            r#""content-length":"3"}}"#
        );
        assert_eq!(encode(&origin, head), expected);
        let origin = Origin::Network { is_secure: false, host: Arc::from("h"), port: 80 };
        assert_eq!(encode(&origin, b"GET / HTTP/1.1\r\n\r\n"), r#"{"url":"http://h/","method":"GET","headers":{}}"#);
    }

    #[test]
    fn masks_query_parameters_that_may_be_secrets() {
        let head = |query: &str| RequestHead { path: "/v1/x".into(), query: query.into(), ..RequestHead::default() };
        assert_eq!(mask_url(&head("key=sk-3&page=2")), "/v1/x?key=***&page=2");
        assert_eq!(mask_url(&head("access%5Ftoken=sk-3")), "/v1/x?access%5Ftoken=***");
        assert_eq!(mask_url(&head("X-Goog-Signature=a&sig=b&signal=c")), "/v1/x?X-Goog-Signature=***&sig=***&signal=c");
    }
}
