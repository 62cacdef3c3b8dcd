//! Validation of a request head. Rejects what two servers could interpret differently: duplicate or ambiguous headers,
//! an invalid host, and dot segments in the path.

use crate::ingress::{control_headers::split_control_name, headers::Headers};

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
