//! Header fields in received order, stored in one buffer with a span per name and value. Also parses the gateway's
//! control headers.

use std::{net::IpAddr, time::Duration};

use bytes::Bytes;

use crate::ingress::trace_context::TraceContext;

#[derive(Debug, Clone, Copy)]
struct FieldSpan {
    name_start: u32,
    value_start: u32,
    end: u32,
}

/// Location of a batch's output, as the batch object reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchOutput {
    /// The output is in the customer's own storage at this URL.
    Blob(String),
    /// The output is a file at the provider, with response lines for this endpoint and model.
    ProviderFile { endpoint: String, model: String },
}

/// Number of header fields that the gateway adds to a response at most; used to reserve capacity.
pub const MAX_ADDED_FIELDS: usize = 10;

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

    /// Allocates for a response with this many fields and bytes, plus the fields that the gateway adds.
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

    /// Returns the lower-case fields that `connection` lists as hop-by-hop, except the usual `keep-alive` and `close`.
    /// The list is nearly always empty.
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

/// Returns true if an operator may set this header field. The name must be a token, the value one line, and the field
/// not one that the gateway manages.
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

/// Returns true for fields that protect cloud metadata services against forged requests. They are never forwarded.
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

/// Prefix of the gateway's control headers.
pub const CONTROL_PREFIX: &[u8] = b"x-gateway-";

/// Control headers of a request, parsed in one pass from `x-gateway-*` or an alias of that prefix.
#[derive(Debug, Default, Clone, Copy)]
pub struct ControlHeaders<'a> {
    pub api_key: Option<&'a str>,
    pub provider: Option<&'a str>,
    pub virtual_key: Option<&'a str>,
    pub config: Option<&'a str>,
    pub custom_host: Option<&'a str>,
    pub trace_id: Option<&'a str>,
    pub span_id: Option<&'a str>,
    pub span_name: Option<&'a str>,
    pub parent_span_id: Option<&'a str>,
    pub metadata: Option<&'a str>,
    pub request_timeout: Option<&'a str>,
    pub forward_headers: Option<&'a str>,
    pub sensitive_headers: Option<&'a str>,
    pub cache_force_refresh: Option<&'a str>,
    pub cache_namespace: Option<&'a str>,
    pub strict_openai_compliance: Option<&'a str>,
    pub explain: Option<&'a str>,
    pub nitro_mode: Option<&'a str>,
    /// `false` if only metrics of the request may be logged, not its content.
    pub debug: Option<&'a str>,
    /// Workspace that a caller with a token expects to act in.
    pub workspace: Option<&'a str>,
    /// Duration of an uploaded recording in milliseconds, as measured by the client.
    pub audio_file_duration: Option<&'a str>,
    /// Guardrails to run on the request; `output_guardrails` lists those for the response.
    pub input_guardrails: Option<&'a str>,
    pub output_guardrails: Option<&'a str>,
    /// True if there are further control headers, which may be provider options.
    pub has_other_fields: bool,
    /// Prefix that the client used; response headers use the same one.
    pub prefix: Option<&'a [u8]>,
    /// Trace context from `traceparent`.
    pub trace: Option<TraceContext<'a>>,
    pub has_baggage: bool,
    /// Client's id of the session that groups several requests.
    pub session_id: Option<&'a str>,
    /// Timeout after which the client gives up, as it reports it.
    pub client_timeout: Option<Duration>,
}

/// Session header of a coding assistant. Gateways use it to group requests; it is not sent to providers.
pub const SESSION_HEADER: &[u8] = b"x-claude-code-session-id";

/// Placeholder for a value that is not UTF-8: the header counts as present but matches no valid value.
const NON_UTF8_VALUE: &str = "\u{fffd}";

impl<'a> ControlHeaders<'a> {
    /// Parses the control headers. `aliases` are further lower-case prefixes, such as `x-portkey-`.
    pub fn parse(headers: &'a Headers, aliases: &'a [String]) -> Self {
        let mut control = Self::default();
        let mut traceparent: Option<&[u8]> = None;
        for (name, value) in headers.iter() {
            if let Some((prefix, rest)) = split_control_name(name, aliases) {
                // An alias takes precedence: clients that use it read only aliased headers of the response.
                if control.prefix.is_none_or(|current| current == CONTROL_PREFIX) {
                    control.prefix = Some(prefix);
                }
                control.set_field(rest, std::str::from_utf8(value).unwrap_or(NON_UTF8_VALUE).trim());
            } else if name == b"traceparent" {
                // Duplicate `traceparent` fields count as none.
                traceparent = Some(if traceparent.is_none() { value } else { b"" });
            } else if name == b"baggage" {
                control.has_baggage = true;
            } else if name == SESSION_HEADER {
                control.session_id = std::str::from_utf8(value).ok().map(str::trim);
            } else if matches!(name, b"x-stainless-timeout" | b"x-stainless-read-timeout") {
                control.client_timeout = control.client_timeout.into_iter().chain(parse_seconds(value)).min();
            }
        }
        control.trace = traceparent.and_then(TraceContext::parse);
        control
    }

    /// Returns true if the response must explain the routing decision.
    pub fn should_explain(&self) -> bool {
        self.explain == Some("true")
    }

    /// Returns true if the request must be sent unchanged and once: no parameter overrides, no translation, no retry.
    pub fn is_nitro_mode(&self) -> bool {
        self.nitro_mode == Some("true")
    }

    /// Returns true if only metrics of the request may be logged, not its content.
    pub fn is_content_logging_disabled(&self) -> bool {
        self.debug.is_some_and(|value| value.eq_ignore_ascii_case("false"))
    }

    fn set_field(&mut self, name: &[u8], value: &'a str) {
        let field = match name {
            b"api-key" => &mut self.api_key,
            b"provider" => &mut self.provider,
            b"virtual-key" => &mut self.virtual_key,
            b"config" => &mut self.config,
            b"custom-host" => &mut self.custom_host,
            b"trace-id" => &mut self.trace_id,
            b"span-id" => &mut self.span_id,
            b"span-name" => &mut self.span_name,
            b"parent-span-id" => &mut self.parent_span_id,
            b"metadata" => &mut self.metadata,
            b"request-timeout" => &mut self.request_timeout,
            b"forward-headers" => &mut self.forward_headers,
            b"sensitive-headers" => &mut self.sensitive_headers,
            b"cache-force-refresh" => &mut self.cache_force_refresh,
            b"cache-namespace" => &mut self.cache_namespace,
            b"explain" => &mut self.explain,
            b"nitro-mode" => &mut self.nitro_mode,
            b"debug" => &mut self.debug,
            b"workspace" => &mut self.workspace,
            b"audio-file-duration" => &mut self.audio_file_duration,
            b"default-input-guardrails" => &mut self.input_guardrails,
            b"default-output-guardrails" => &mut self.output_guardrails,
            b"strict-open-ai-compliance" | b"strict-openai-compliance" => &mut self.strict_openai_compliance,
            _ => {
                self.has_other_fields = true;
                return;
            }
        };
        if !value.is_empty() {
            *field = Some(value);
        }
    }
}

/// Parses a duration in seconds. Returns `None` for zero and for text, which some clients send.
fn parse_seconds(value: &[u8]) -> Option<Duration> {
    let seconds = std::str::from_utf8(value).ok()?.trim().parse::<f64>().ok()?;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero())
}

/// Splits a control header's name into its prefix and the rest; `None` for any other header.
pub fn split_control_name<'n>(name: &'n [u8], aliases: &[String]) -> Option<(&'n [u8], &'n [u8])> {
    if name.first() != Some(&b'x') {
        return None;
    }
    std::iter::once(CONTROL_PREFIX)
        .chain(aliases.iter().map(String::as_bytes))
        .find(|prefix| name.starts_with(prefix))
        .map(|prefix| name.split_at(prefix.len()))
}

/// Returns the first error in the fields that decide identity and routing; each of them must be unambiguous.
pub fn find_header_error(headers: &Headers, aliases: &[String]) -> Option<(&'static str, String)> {
    let mut once = [false; 2];
    for (index, (name, value)) in headers.iter().enumerate() {
        let single = match name {
            b"host" if !is_valid_host(value) => {
                return Some(("host", format!("`{}` is not a valid host", value.escape_ascii())));
            }
            b"host" => 0,
            b"authorization" => 1,
            [b'x', ..] => {
                if let Some(message) = find_control_header_error(headers, index, aliases) {
                    return Some(("header", message));
                }
                continue;
            }
            _ => continue,
        };
        if std::mem::replace(&mut once[single], true) {
            let name = ["host", "authorization"][single];
            return Some((name, "is sent twice".to_owned()));
        }
    }
    None
}

/// Returns the error in a field whose name begins with `x`, if it is a control header.
fn find_control_header_error(headers: &Headers, index: usize, aliases: &[String]) -> Option<String> {
    let (name, value) = headers.iter().nth(index)?;
    let shown = || String::from_utf8_lossy(name).into_owned();
    if name.contains(&b'_') {
        // Some servers treat an underscore as a hyphen, so the name would be ambiguous.
        let plain = name.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect::<Vec<_>>();
        return split_control_name(&plain, aliases)
            .map(|_| format!("`{}` is written with hyphens: `{}`", shown(), String::from_utf8_lossy(&plain)));
    }
    let (prefix, rest) = split_control_name(name, aliases)?;
    headers.iter().skip(index + 1).find_map(|(other, other_value)| {
        let (other_prefix, _) =
            other.ends_with(rest).then(|| split_control_name(other, aliases))?.filter(|(_, r)| *r == rest)?;
        match (prefix == other_prefix, value == other_value) {
            (true, _) => Some(format!("`{}` is sent twice", shown())),
            (false, false) => Some(format!("`{}` and `{}` differ", shown(), String::from_utf8_lossy(other))),
            (false, true) => None,
        }
    })
}

/// Returns true if the value is a host with an optional port (RFC 9110 §7.2).
fn is_valid_host(value: &[u8]) -> bool {
    let (host, port) = match value.iter().rposition(|byte| matches!(byte, b':' | b']')) {
        Some(at) if value[at] == b':' => value.split_at(at),
        _ => (value, &b""[..]),
    };
    let is_port = port.is_empty() || port.len() <= 6 && port[1..].iter().all(u8::is_ascii_digit);
    let is_name = match host {
        [b'[', inner @ .., b']'] => {
            inner.contains(&b':') && inner.iter().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'))
        }
        name => {
            !name.is_empty()
                && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(byte))
        }
    };
    is_port && is_name
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

/// Request without its body, shared by the request pipeline and the record.
#[derive(Debug, Clone, Default)]
pub struct RequestHead {
    /// Upper-case method, such as `POST`.
    pub method: String,
    /// Path as received: percent-encoded, without the query.
    pub path: String,
    pub query: String,
    pub headers: Headers,
    /// Address of the connection's peer. Set for management requests only.
    pub peer_ip: Option<IpAddr>,
    /// Location of the batch output that the gateway fetches for the caller, as the provider reported it.
    pub batch_output: Option<Box<BatchOutput>>,
}

impl RequestHead {
    /// Returns the size in bytes of the request head, without the HTTP version.
    pub fn size_bytes(&self) -> usize {
        self.method.len() + self.path.len() + self.query.len() + self.headers.size_bytes()
    }

    /// Returns true for methods whose requests have a body even when it is empty.
    pub fn expects_body(&self) -> bool {
        matches!(self.method.as_str(), "POST" | "PUT" | "PATCH")
    }

    /// Returns true if sending the request twice does no harm.
    pub fn is_replayable(&self) -> bool {
        matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "TRACE")
            || self.headers.get("idempotency-key").is_some()
    }
}

/// Returns an error if the path contains dot segments, plain or encoded, because other servers would resolve them
/// differently.
pub fn find_path_error(path: &str) -> Option<&'static str> {
    if !path.contains('.') && !path.contains('%') {
        return None;
    }
    // A server that decodes the path treats encoded separators as separators.
    let plain = path.to_ascii_lowercase().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/");
    let mut segments = plain.split(['/', '\\']);
    segments.any(|segment| segment == "." || segment == "..").then_some("must not contain dot segments")
}

/// Response without its body.
#[derive(Debug, Default, Clone)]
pub struct ResponseHead {
    pub status: u16,
    pub headers: Headers,
}

/// Response with its complete body, as opposed to a stream.
#[derive(Debug, Default, Clone)]
pub struct CompleteResponse {
    pub head: ResponseHead,
    pub body: Bytes,
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
    fn reads_control_headers_under_either_prefix() {
        let headers = sample_headers();
        let aliases = vec!["x-portkey-".to_owned()];
        let control = ControlHeaders::parse(&headers, &aliases);
        assert_eq!((control.provider, control.trace_id), (Some("openai"), Some("t-1")));
        assert_eq!(ControlHeaders::parse(&headers, &[]).trace_id, None);
    }

    #[test]
    fn response_prefix_prefers_alias_over_x_gateway() {
        let aliases = vec!["x-portkey-".to_owned()];
        for names in [["x-gateway-a", "x-portkey-b"], ["x-portkey-b", "x-gateway-a"]] {
            let headers: Headers = names.iter().map(|name| (name.as_bytes(), &b"1"[..])).collect();
            assert_eq!(ControlHeaders::parse(&headers, &aliases).prefix, Some(&b"x-portkey-"[..]));
            assert_eq!(ControlHeaders::parse(&headers, &[]).prefix, Some(CONTROL_PREFIX));
        }
    }

    #[test]
    fn rejects_ambiguous_headers_and_names_them() {
        let aliases = ["x-portkey-".to_owned()];
        let faults = |fields: &[(&str, &str)]| {
            let headers = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
            find_header_error(&headers, &aliases).map(|(name, message)| format!("{name} {message}"))
        };
        for (fields, expected) in [
            (&[("host", "a"), ("Host", "a")][..], "host is sent twice"),
            (&[("authorization", "a"), ("Authorization", "a")], "authorization is sent twice"),
            (&[("x_gateway_api_key", "a")], "`x_gateway_api_key` is written with hyphens"),
            (&[("X-Gateway_Config", "a")], "`x-gateway_config` is written"),
            (&[("x-portkey-api_key", "a")], "`x-portkey-api_key` is written"),
            (&[("x-gateway-provider", "a"), ("x-gateway-provider", "a")], "`x-gateway-provider` is sent twice"),
            (
                &[("x-portkey-config", "a"), ("x-gateway-config", "b")],
                "`x-portkey-config` and `x-gateway-config` differ",
            ),
        ] {
            let found = faults(fields).unwrap();
            assert!(found.contains(expected), "{found}");
        }
        for fields in [
            &[("host", "a:80"), ("x_other", "1"), ("x-other", "1"), ("x-other", "2")][..],
            &[("x-gateway-config", "a"), ("x-portkey-config", "a"), ("x-gateway-provider", "p")],
            &[("x-gateway-span-id", "1"), ("x-gateway-parent-span-id", "2")],
        ] {
            assert_eq!(faults(fields), None);
        }
    }

    #[test]
    fn ignores_duplicate_traceparent() {
        let parent = (&b"TraceParent"[..], &b"00-12345678901234567890123456789012-1234567890123456-01"[..]);
        let read =
            |fields: &[(&[u8], &[u8])]| ControlHeaders::parse(&fields.iter().copied().collect(), &[]).trace.is_some();
        assert!(read(&[parent]));
        assert!(!read(&[parent, parent]) && !read(&[(b"trace-parent", parent.1)]));
    }

    #[test]
    fn validates_host_with_optional_port() {
        for host in ["a", "a.example:8787", "127.0.0.1:80", "[::1]", "[::ffff:1.2.3.4]:443", "my_host", "a."] {
            assert!(is_valid_host(host.as_bytes()), "{host}");
        }
        for host in [
            "", " ", "a b", "a/b", "u@a", "a:x", "a:123456", "a,b", "a?", "a#", ":80", "[::1", "::1", "[]", "a\\b",
            "[a]b",
        ] {
            assert!(!is_valid_host(host.as_bytes()), "{host}");
        }
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
