//! Checks for hosts and paths that two servers could interpret differently.

/// Returns true if the value is a host with an optional port (RFC 9110 §7.2).
pub fn is_valid_host(value: &[u8]) -> bool {
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
