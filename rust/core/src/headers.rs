//! Header fields as they came: one buffer, a span for each name and value, order kept.

use bytes::Bytes;

#[derive(Debug, Clone, Copy)]
struct Span {
    name: u32,
    value: u32,
    end: u32,
}

/// A list of header fields. Names are lower-case. Look-ups are scans: lists are short.
#[derive(Debug, Clone, Default)]
pub struct Headers {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

impl Headers {
    pub fn with_capacity(fields: usize) -> Self {
        Self { bytes: Vec::with_capacity(fields * 40), spans: Vec::with_capacity(fields) }
    }

    /// Adds a field; the name is lowered.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.push_joined(name, b"", value);
    }

    /// Adds a field whose name is a prefix and a rest.
    pub fn push_joined(&mut self, prefix: &[u8], rest: &[u8], value: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(prefix);
        self.bytes.extend_from_slice(rest);
        self.bytes[start..].make_ascii_lowercase();
        let middle = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.spans.push(Span { name: start as u32, value: middle as u32, end: self.bytes.len() as u32 });
    }

    /// Forgets the fields whose name does not pass.
    pub fn retain(&mut self, mut passes: impl FnMut(&[u8]) -> bool) {
        let Self { bytes, spans } = self;
        spans.retain(|span| passes(&bytes[span.name as usize..span.value as usize]));
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.spans.iter().map(|span| (self.name(*span), self.value(*span)))
    }

    /// The first value of a (lower-case) name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let length = name.len() as u32;
        self.spans
            .iter()
            .find(|span| span.value - span.name == length && self.name(**span) == name.as_bytes())
            .map(|span| self.value(*span))
    }

    /// The first value of a name where it is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Whether a comma-separated field holds this token, in any case.
    pub fn has_token(&self, name: &str, token: &str) -> bool {
        self.iter().filter(|(field, _)| *field == name.as_bytes()).any(|(_, value)| {
            value.split(|byte| *byte == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
        })
    }

    fn name(&self, span: Span) -> &[u8] {
        &self.bytes[span.name as usize..span.value as usize]
    }

    fn value(&self, span: Span) -> &[u8] {
        &self.bytes[span.value as usize..span.end as usize]
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

/// Fields that belong to one connection and are never passed on (RFC 9110 §7.6.1).
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

/// The prefix of the gateway's own control headers.
pub const PREFIX: &[u8] = b"x-gateway-";

/// What the caller asks of the gateway, read from `x-gateway-*` (or an alias of that prefix) in one pass.
#[derive(Debug, Default, Clone, Copy)]
pub struct Control<'a> {
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
    /// The prefix that the caller used, to be answered with the same.
    pub prefix: Option<&'a [u8]>,
}

impl<'a> Control<'a> {
    /// Reads the control headers. `aliases` are further prefixes, lower-case, such as `x-portkey-`.
    pub fn read(headers: &'a Headers, aliases: &'a [String]) -> Self {
        let mut control = Self::default();
        for (name, value) in headers.iter() {
            let Some((prefix, rest)) = control_name(name, aliases) else { continue };
            let Ok(value) = std::str::from_utf8(value) else { continue };
            control.prefix = Some(prefix);
            control.set(rest, value.trim());
        }
        control
    }

    fn set(&mut self, name: &[u8], value: &'a str) {
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
            _ => return,
        };
        if !value.is_empty() {
            *field = Some(value);
        }
    }
}

/// Splits a control header's name into its prefix and the rest; `None` for any other header.
pub fn control_name<'n>(name: &'n [u8], aliases: &[String]) -> Option<(&'n [u8], &'n [u8])> {
    if name.first() != Some(&b'x') {
        return None;
    }
    std::iter::once(PREFIX)
        .chain(aliases.iter().map(String::as_bytes))
        .find(|prefix| name.starts_with(prefix))
        .map(|prefix| name.split_at(prefix.len()))
}

/// A request without its body, shared between the walk and the record.
#[derive(Debug, Default)]
pub struct Head {
    /// Upper-case, such as `POST`.
    pub method: String,
    /// As it came: percent-encoded, without query.
    pub path: String,
    pub query: String,
    pub headers: Headers,
}

impl Head {
    /// Methods whose requests have a body even when it is empty.
    pub fn takes_body(&self) -> bool {
        matches!(self.method.as_str(), "POST" | "PUT" | "PATCH")
    }

    /// Whether sending it twice does no harm.
    pub fn is_replayable(&self) -> bool {
        matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "TRACE")
            || self.headers.get("idempotency-key").is_some()
    }
}

/// What is wrong with a path that would mean something else to the next reader: dot segments, in clear or encoded.
pub fn odd_path(path: &str) -> Option<&'static str> {
    if !path.contains('.') && !path.contains('%') {
        return None;
    }
    // Whoever decodes it sees a separator where an encoded one stands.
    let plain = path.to_ascii_lowercase().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/");
    let mut segments = plain.split(['/', '\\']);
    segments.any(|segment| segment == "." || segment == "..").then_some("must not hold dot segments")
}

/// A response without its body.
#[derive(Debug, Default, Clone)]
pub struct Answered {
    pub status: u16,
    pub headers: Headers,
}

/// What is sent to the caller: the body is whole or comes in pieces.
#[derive(Debug, Default, Clone)]
pub struct Whole {
    pub answered: Answered,
    pub body: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Headers {
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
        assert_eq!(sample().text("x-gateway-provider"), Some("openai"));
        assert_eq!(sample().get("x-gateway"), None);
    }

    #[test]
    fn reads_control_headers_under_either_prefix() {
        let headers = sample();
        let aliases = vec!["x-portkey-".to_owned()];
        let control = Control::read(&headers, &aliases);
        assert_eq!((control.provider, control.trace_id), (Some("openai"), Some("t-1")));
        assert_eq!(Control::read(&headers, &[]).trace_id, None);
    }

    #[test]
    fn a_token_is_found_in_any_case() {
        assert!(sample().has_token("connection", "x-custom"));
        assert!(!sample().has_token("connection", "keep"));
    }
}
