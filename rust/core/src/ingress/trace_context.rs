//! W3C trace context: parses the client's `traceparent` and `tracestate`, and builds those for the provider.

use penstock_net::headers::Headers;

/// Trace context of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext<'t> {
    pub trace_id: &'t str,
    /// Span id of the client.
    pub parent_id: &'t str,
    flags: u8,
    /// Span id of the gateway, new for each request.
    span: u64,
}

/// Flags that the specification defines: sampled, and random trace id.
const KNOWN_FLAGS: u8 = 0b11;
/// Length of a version 00 `traceparent`.
const TRACEPARENT_BYTES: usize = 55;
/// Maximum number of members of a `tracestate`.
const MAX_TRACESTATE_MEMBERS: usize = 32;

impl<'t> TraceContext<'t> {
    /// Parses a `traceparent`. `None` if it is invalid, which is treated as absent.
    pub fn parse(traceparent: &'t [u8]) -> Option<Self> {
        let text = std::str::from_utf8(traceparent).ok()?.trim_matches([' ', '\t']);
        let (prefix, rest) = text.split_at_checked(TRACEPARENT_BYTES)?;
        let mut parts = prefix.split('-');
        let mut part = |length| parts.next().filter(|part| part.len() == length && is_lower_hex(part));
        let (version, trace_id, parent_id, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        // Later versions may append more fields after another dash.
        let is_readable = match version {
            "ff" => false,
            "00" => rest.is_empty(),
            _ => rest.is_empty() || rest.starts_with('-'),
        };
        if !is_readable || is_all_zeros(trace_id) || is_all_zeros(parent_id) {
            return None;
        }
        let flags = u8::from_str_radix(flags, 16).ok()? & KNOWN_FLAGS;
        Some(Self { trace_id, parent_id, flags, span: fastrand::u64(1..) })
    }

    pub fn span_id(&self) -> String {
        format!("{:016x}", self.span)
    }

    /// Returns the `traceparent` for the provider, with the gateway's span as parent.
    pub fn to_traceparent(&self) -> String {
        format!("00-{}-{:016x}-{:02x}", self.trace_id, self.span, self.flags)
    }
}

/// Merges the members of all `tracestate` fields. `None` if there are none or one of them is invalid.
pub fn merge_tracestate(headers: &Headers) -> Option<String> {
    let mut members: Vec<(&str, &str)> = Vec::new();
    for (_, value) in headers.iter().filter(|(name, _)| *name == b"tracestate") {
        for member in std::str::from_utf8(value).ok()?.split(',') {
            let member = member.trim_matches([' ', '\t']);
            if member.is_empty() {
                continue;
            }
            let (key, value) = member.split_once('=')?;
            let is_new = !members.iter().any(|(existing, _)| *existing == key);
            if !is_new
                || !is_tracestate_key(key)
                || !is_tracestate_value(value)
                || members.len() == MAX_TRACESTATE_MEMBERS
            {
                return None;
            }
            members.push((key, value));
        }
    }
    let joined: Vec<_> = members.iter().map(|(key, value)| format!("{key}={value}")).collect();
    (!joined.is_empty()).then(|| joined.join(","))
}

fn is_tracestate_key(key: &str) -> bool {
    match key.split_once('@') {
        None => is_key_segment(key, 256, false),
        Some((tenant, system)) => is_key_segment(tenant, 241, true) && is_key_segment(system, 14, false),
    }
}

fn is_key_segment(name: &str, longest: usize, digit_first: bool) -> bool {
    let starts =
        name.bytes().next().is_some_and(|first| first.is_ascii_lowercase() || digit_first && first.is_ascii_digit());
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'*' | b'/');
    starts && name.len() <= longest && name.bytes().all(allowed)
}

fn is_tracestate_value(value: &str) -> bool {
    let allowed = |byte| matches!(byte, 0x20..=0x7e) && byte != b'=';
    (1..=256).contains(&value.len()) && value.bytes().all(allowed)
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_all_zeros(id: &str) -> bool {
    id.bytes().all(|byte| byte == b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE_ID: &str = "12345678901234567890123456789012";
    const PARENT_ID: &str = "1234567890123456";

    /// Cases of the W3C test suite for `traceparent`, each with whether it is valid.
    const TRACEPARENT_CASES: &[(&str, bool)] = &[
        ("00-12345678901234567890123456789012-1234567890123456-01", true),
        ("00-12345678901234567890123456789012-1234567890123456-00", true),
        ("00-12345678901234567890123456789012-1234567890123456-01.", false),
        ("00-12345678901234567890123456789012-1234567890123456-01-what-the-future-will-be-like", false),
        ("cc-12345678901234567890123456789012-1234567890123456-01", true),
        ("cc-12345678901234567890123456789012-1234567890123456-01-what-the-future-will-be-like", true),
        ("cc-12345678901234567890123456789012-1234567890123456-01.what-the-future-will-be-like", false),
        ("ff-12345678901234567890123456789012-1234567890123456-01", false),
        (".0-12345678901234567890123456789012-1234567890123456-01", false),
        ("0.-12345678901234567890123456789012-1234567890123456-01", false),
        ("000-12345678901234567890123456789012-1234567890123456-01", false),
        ("0000-12345678901234567890123456789012-1234567890123456-01", false),
        ("0-12345678901234567890123456789012-1234567890123456-01", false),
        ("00-00000000000000000000000000000000-1234567890123456-01", false),
        ("00-.2345678901234567890123456789012-1234567890123456-01", false),
        ("00-1234567890123456789012345678901.-1234567890123456-01", false),
        ("00-123456789012345678901234567890123-1234567890123456-01", false),
        ("00-1234567890123456789012345678901-1234567890123456-01", false),
        ("00-12345678901234567890123456789012-0000000000000000-01", false),
        ("00-12345678901234567890123456789012-.234567890123456-01", false),
        ("00-12345678901234567890123456789012-123456789012345.-01", false),
        ("00-12345678901234567890123456789012-12345678901234567-01", false),
        ("00-12345678901234567890123456789012-123456789012345-01", false),
        ("00-12345678901234567890123456789012-1234567890123456-.0", false),
        ("00-12345678901234567890123456789012-1234567890123456-0.", false),
        ("00-12345678901234567890123456789012-1234567890123456-001", false),
        ("00-12345678901234567890123456789012-1234567890123456-1", false),
        (" 00-12345678901234567890123456789012-1234567890123456-01", true),
        ("\t00-12345678901234567890123456789012-1234567890123456-01", true),
        ("00-12345678901234567890123456789012-1234567890123456-01 ", true),
        ("\t 00-12345678901234567890123456789012-1234567890123456-01 \t", true),
        // Cases that the W3C suite does not contain.
        ("00-ABCDEF78901234567890123456789012-1234567890123456-01", false),
        ("00_12345678901234567890123456789012_1234567890123456_01", false),
        ("", false),
    ];

    #[test]
    fn parses_traceparent_as_the_w3c_suite_expects() {
        for (text, is_good) in TRACEPARENT_CASES {
            let parsed = TraceContext::parse(text.as_bytes()).map(|trace| (trace.trace_id, trace.parent_id));
            assert_eq!(parsed, is_good.then_some((TRACE_ID, PARENT_ID)), "{text:?}");
        }
        assert_eq!(TraceContext::parse(b"00-\xff"), None);
    }

    #[test]
    fn sends_a_new_span_of_the_same_trace() {
        let trace = || TraceContext::parse(b"cc-12345678901234567890123456789012-1234567890123456-ff").unwrap();
        let (first, other) = (trace(), trace());
        assert_eq!(first.to_traceparent(), format!("00-{TRACE_ID}-{}-03", first.span_id()));
        assert_ne!(first.span_id(), other.span_id());
        assert_eq!(
            TraceContext::parse(first.to_traceparent().as_bytes()).map(|onward| onward.parent_id.len()),
            Some(16)
        );
    }

    fn merge_fields(fields: &[&str]) -> Option<String> {
        merge_tracestate(&fields.iter().map(|value| (&b"tracestate"[..], value.as_bytes())).collect())
    }

    #[test]
    fn merges_tracestate_as_the_w3c_suite_expects() {
        let every = "abcdefghijklmnopqrstuvwxyz0123456789_-*/";
        let value: String =
            (0x20..=0x7e_u8).map(char::from).filter(|character| !matches!(character, ',' | '=')).collect();
        let allowed = format!("{every}={value}");
        assert_eq!(merge_fields(&[&allowed]), Some(allowed));
        let allowed = format!("{every}@a-z0-9_-*/={value}");
        assert_eq!(merge_fields(&[&allowed]), Some(allowed));
        for fields in
            [&["foo=1 \t , \t bar=2, \t baz=3"][..], &["", "foo=1,bar=2", "baz=3"], &["\t foo=1", "bar=2\t", ",baz=3 "]]
        {
            assert_eq!(merge_fields(fields).as_deref(), Some("foo=1,bar=2,baz=3"), "{fields:?}");
        }
    }

    #[test]
    fn drops_an_invalid_tracestate_as_the_w3c_suite_expects() {
        for fields in [
            &[""][..],
            &["foo=1,foo=1"],
            &["foo=1,foo=2"],
            &["foo=1", "foo=2"],
            &["foo =1"],
            &["FOO=1"],
            &["foo.bar=1"],
            &["foo@=1,bar=2"],
            &["@foo=1,bar=2"],
            &["foo@@bar=1,bar=2"],
            &["foo@bar@baz=1,bar=2"],
            &["foo=bar=baz"],
            &["foo=,bar=3"],
            &["foo"],
        ] {
            assert_eq!(merge_fields(fields), None, "{fields:?}");
        }
    }

    #[test]
    fn enforces_the_tracestate_limits_of_the_w3c_suite() {
        let members =
            |count: usize| (1..=count).map(|number| format!("bar{number:02}=1")).collect::<Vec<_>>().join(",");
        assert!(merge_fields(&[&members(32)]).is_some() && merge_fields(&[&members(33)]).is_none());
        let keys = [("z".repeat(256), true), ("z".repeat(257), false)];
        let tenants = [(241, 14, true), (242, 1, false), (1, 15, false)];
        let tenants = tenants.map(|(tenant, system, good)| (format!("{:t<tenant$}@{:v<system$}", "", ""), good));
        for (key, is_good) in keys.into_iter().chain(tenants) {
            assert_eq!(merge_fields(&["foo=1", &format!("{key}=1")]).is_some(), is_good, "{}", key.len());
        }
    }
}
