//! Header fields in the order in which they were received. One buffer contains all names and values, and each field is
//! a span of this buffer.

#[derive(Debug, Clone, Copy)]
struct FieldSpan {
    name_start: u32,
    value_start: u32,
    end: u32,
}

/// Maximum number of header fields that the gateway adds to a response. Used to reserve capacity.
pub const MAX_ADDED_FIELDS: usize = 11;

/// List of header fields with lower-case names. Lookups scan linearly, because the lists are short.
#[derive(Debug, Clone, Default)]
pub struct Headers {
    bytes: Vec<u8>,
    spans: Vec<FieldSpan>,
}

impl Headers {
    pub fn with_capacity(fields: usize) -> Self {
        Self { bytes: Vec::with_capacity(fields * 40), spans: Vec::with_capacity(fields) }
    }

    /// Reserves capacity for a response with this many fields and bytes, plus the fields that the gateway adds.
    pub fn with_response_capacity(fields: usize, bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes + MAX_ADDED_FIELDS * 64),
            spans: Vec::with_capacity(fields + MAX_ADDED_FIELDS),
        }
    }

    /// Adds a field; lower-cases the name.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.push_joined(name, b"", value);
    }

    /// Adds a field whose name is `prefix` followed by `rest`; lower-cases the name.
    pub fn push_joined(&mut self, prefix: &[u8], rest: &[u8], value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(prefix);
        self.bytes.extend_from_slice(rest);
        self.bytes[start..].make_ascii_lowercase();
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.spans.push(FieldSpan {
            name_start: start as u32,
            value_start: middle as u32,
            end: self.bytes.len() as u32,
        });
    }

    /// Removes the fields whose name the predicate rejects.
    pub fn retain(&mut self, mut passes: impl FnMut(&[u8]) -> bool) {
        let Self { bytes, spans } = self;
        spans.retain(|span| passes(&bytes[span.name_start as usize..span.value_start as usize]));
    }

    /// Reserves capacity for this many more fields with this many bytes in total.
    pub fn reserve(&mut self, fields: usize, bytes: usize) {
        self.spans.reserve(fields);
        self.bytes.reserve(bytes);
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns the size in bytes if each field is written as an HTTP/1 header line.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len() + self.spans.len() * ": \r\n".len()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.spans.iter().map(|span| (self.name_at(*span), self.value_at(*span)))
    }

    /// Returns the first value of a lower-case name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let length = name.len() as u32;
        self.spans
            .iter()
            .find(|span| span.value_start - span.name_start == length && self.name_at(**span) == name.as_bytes())
            .map(|span| self.value_at(*span))
    }

    /// Returns the first value of a lower-case name; `None` if it is not UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Returns true if `content-type` is this media type.
    pub fn has_media_type(&self, kind: &str) -> bool {
        self.get("content-type").is_some_and(|value| is_media_type(value, kind))
    }

    /// Returns true if `content-type` is a JSON media type.
    pub fn is_json(&self) -> bool {
        self.get("content-type").is_some_and(is_json_media_type)
    }

    /// Returns true if `content-type` is an image.
    pub fn is_image(&self) -> bool {
        self.get("content-type").is_some_and(|value| {
            media_type_essence(value)
                .split_at_checked(6)
                .is_some_and(|(family, _)| family.eq_ignore_ascii_case(b"image/"))
        })
    }

    /// Returns true if a comma-separated field contains this token, in any case.
    pub fn has_token(&self, name: &str, token: &str) -> bool {
        self.iter().filter(|(field, _)| *field == name.as_bytes()).any(|(_, value)| {
            value.split(|byte| *byte == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
        })
    }

    /// Returns the names that `connection` fields list as hop-by-hop, in lower case. Skips fields that are just
    /// `keep-alive` or `close`, so the list is nearly always empty.
    pub fn connection_options(&self) -> Vec<Vec<u8>> {
        let values = self.iter().filter(|(name, _)| *name == b"connection").map(|(_, value)| value);
        let unusual =
            values.filter(|value| !value.eq_ignore_ascii_case(b"keep-alive") && !value.eq_ignore_ascii_case(b"close"));
        unusual
            .flat_map(|value| value.split(|byte| *byte == b','))
            .map(|part| part.trim_ascii().to_ascii_lowercase())
            .collect()
    }

    fn name_at(&self, span: FieldSpan) -> &[u8] {
        &self.bytes[span.name_start as usize..span.value_start as usize]
    }

    fn value_at(&self, span: FieldSpan) -> &[u8] {
        &self.bytes[span.value_start as usize..span.end as usize]
    }
}

impl<'a> FromIterator<(&'a [u8], &'a [u8])> for Headers {
    fn from_iter<I: IntoIterator<Item = (&'a [u8], &'a [u8])>>(fields: I) -> Self {
        let mut headers = Self::default();
        for (name, value) in fields {
            headers.push(name, value);
        }
        headers
    }
}

/// Returns true if an operator may set this header field. The name must be a token and the value one line. Fields that
/// the gateway manages itself are not allowed.
pub fn is_allowed_field(name: &str, value: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty()
        && name.bytes().all(is_token)
        && !value.chars().any(char::is_control)
        && !is_hop_by_hop(name.as_bytes())
        && !matches!(name, "host" | "content-length" | "expect")
}

/// Returns true for fields that belong to one connection and are never forwarded (RFC 9110 §7.6.1).
pub fn is_hop_by_hop(name: &[u8]) -> bool {
    matches!(
        name,
        b"connection"
            | b"keep-alive"
            | b"proxy-authenticate"
            | b"proxy-authorization"
            | b"proxy-connection"
            | b"te"
            | b"trailer"
            | b"transfer-encoding"
            | b"upgrade"
    )
}

/// Returns true for response fields that change how a browser treats the origin of the response. A provider must not
/// decide that for the gateway's origin, so these fields are never passed on.
///
/// They set state (cookies, storage, HSTS, key pins, reporting) or move requests elsewhere (`alt-svc`, `refresh`).
/// Others widen the scope of a service worker, or grant other origins access (CORS). Fields that only restrict a single
/// document, such as `content-security-policy`, are passed on.
pub fn acts_on_origin(name: &[u8]) -> bool {
    matches!(
        name,
        b"accept-ch"
            | b"activate-storage-access"
            | b"alt-svc"
            | b"clear-site-data"
            | b"critical-ch"
            | b"expect-ct"
            | b"nel"
            | b"origin-trial"
            | b"public-key-pins"
            | b"public-key-pins-report-only"
            | b"refresh"
            | b"report-to"
            | b"reporting-endpoints"
            | b"service-worker-allowed"
            | b"set-cookie"
            | b"set-cookie2"
            | b"set-login"
            | b"speculation-rules"
            | b"strict-transport-security"
            | b"supports-loading-mode"
            | b"timing-allow-origin"
            | b"cross-origin-resource-policy"
    ) || name.starts_with(b"access-control-")
}

/// Returns true for request fields that cloud metadata services require as protection against forged requests. The
/// gateway never forwards them.
pub fn is_cloud_metadata(name: &[u8]) -> bool {
    matches!(
        name,
        b"metadata"
            | b"metadata-flavor"
            | b"x-aliyun-ecs-metadata-token"
            | b"x-aliyun-ecs-metadata-token-ttl-seconds"
            | b"x-aws-ec2-metadata-token"
            | b"x-aws-ec2-metadata-token-ttl-seconds"
            | b"x-google-metadata-request"
    )
}

/// Returns true for the media type of JSON and of formats based on JSON, except `application/stream+json`, which is
/// JSON lines.
pub fn is_json_media_type(kind: &[u8]) -> bool {
    if is_media_type(kind, "application/json") || is_media_type(kind, "text/json") {
        return true;
    }
    let kind = media_type_essence(kind).to_ascii_lowercase();
    kind.starts_with(b"application/") && kind.ends_with(b"+json") && kind != b"application/stream+json"
}

/// Returns true if a `content-type` is this media type; ignores case and parameters (RFC 9110 §8.3.1).
pub fn is_media_type(value: &[u8], kind: &str) -> bool {
    media_type_essence(value).eq_ignore_ascii_case(kind.as_bytes())
}

/// Returns the media type without its parameters.
fn media_type_essence(value: &[u8]) -> &[u8] {
    value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_headers() -> Headers {
        [
            (&b"X-Gateway-Provider"[..], &b"openai"[..]),
            (b"x-portkey-trace-id", b"t-1"),
            (b"connection", b"keep-alive, X-Custom"),
        ]
        .into_iter()
        .collect()
    }

    #[test]
    fn finds_values_by_lower_case_name() {
        assert_eq!(sample_headers().get_str("x-gateway-provider"), Some("openai"));
        assert_eq!(sample_headers().get("x-gateway"), None);
    }

    #[test]
    fn recognises_json_media_types() {
        for kind in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json", "text/json"] {
            assert!(is_json_media_type(kind.as_bytes()), "{kind}");
        }
        for kind in [
            "text/plain",
            "application/jsonl",
            "application/json-seq",
            "application/stream+json",
            "Application/Stream+JSON; charset=utf-8",
            "application/x-ndjson",
            "text/html; a=json",
            "",
        ] {
            assert!(!is_json_media_type(kind.as_bytes()), "{kind}");
        }
    }

    #[test]
    fn matches_token_case_insensitively() {
        assert!(sample_headers().has_token("connection", "x-custom"));
        assert!(!sample_headers().has_token("connection", "keep"));
    }

    #[test]
    fn lists_connection_options_except_usual_ones() {
        assert_eq!(sample_headers().connection_options(), [&b"keep-alive"[..], b"x-custom"]);
        let usual: Headers = [(&b"connection"[..], &b"Keep-Alive"[..])].into_iter().collect();
        assert!(usual.connection_options().is_empty());
    }
}
