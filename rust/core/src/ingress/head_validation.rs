//! Validation of header fields. Rejects headers that two servers could interpret differently: duplicate or ambiguous
//! headers, and an invalid host.

use penstock_net::{headers::Headers, uri::is_valid_host};

use crate::ingress::control_headers::{ControlHeaders, split_control_name};

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
    let display_name = || String::from_utf8_lossy(name).into_owned();
    if name.contains(&b'_') {
        // Some servers treat an underscore as a hyphen, so the name would be ambiguous. Names that are no control header
        // either way are ignored, because SDKs send any option as a header.
        let plain = name.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect::<Vec<_>>();
        return split_control_name(&plain, aliases)
            .filter(|(_, field)| ControlHeaders::is_field(field))
            .map(|_| format!("`{}` is written with hyphens: `{}`", display_name(), String::from_utf8_lossy(&plain)));
    }
    let (prefix, rest) = split_control_name(name, aliases)?;
    headers.iter().skip(index + 1).find_map(|(other, other_value)| {
        let (other_prefix, _) =
            other.ends_with(rest).then(|| split_control_name(other, aliases))?.filter(|(_, r)| *r == rest)?;
        match (prefix == other_prefix, value == other_value) {
            (true, _) => Some(format!("`{}` is sent twice", display_name())),
            (false, false) => Some(format!("`{}` and `{}` differ", display_name(), String::from_utf8_lossy(other))),
            (false, true) => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_options_of_sdks_that_are_no_control_headers() {
        let headers = [("x-portkey-ai_service", "openai"), ("x-portkey-workspace_id", "w")];
        let headers = headers.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        assert_eq!(find_header_error(&headers, &["x-portkey-".to_owned()]), None);
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
            (&[("x-portkey-trace_id", "a")], "`x-portkey-trace_id` is written"),
            (&[("x_gateway_api_key", "a")], "`x_gateway_api_key` is written with hyphens"),
            (&[("X-Gateway_Config", "a")], "`x-gateway_config` is written"),
            (&[("x-portkey-api_key", "a")], "`x-portkey-api_key` is written"),
            (&[("x-gateway-provider", "a"), ("x-gateway-provider", "a")], "`x-gateway-provider` is sent twice"),
            (
                &[("x-portkey-config", "a"), ("x-gateway-config", "b")],
                "`x-portkey-config` and `x-gateway-config` differ",
            ),
        ] {
            let problem = faults(fields).unwrap();
            assert!(problem.contains(expected), "{problem}");
        }
        for fields in [
            &[("host", "a:80"), ("x_other", "1"), ("x-other", "1"), ("x-other", "2")][..],
            &[("x-gateway-config", "a"), ("x-portkey-config", "a"), ("x-gateway-provider", "p")],
            &[("x-gateway-span-id", "1"), ("x-gateway-parent-span-id", "2")],
        ] {
            assert_eq!(faults(fields), None);
        }
    }
}
