//! Pretty-printed JSON responses for `?pretty`. Strings and numbers keep their original text.

use bytes::Bytes;

use penstock_llm::operation::Operation;

use crate::resolve::target_resolver::ClientRequest;

const INDENT: &[u8] = b"  ";
/// Maximum nesting depth. Indentation grows with the square of the depth, so deeper JSON is returned unchanged.
const MAX_DEPTH: usize = 64;
/// The output may have this many bytes per byte of input, plus `MAX_EXTRA_BYTES`. JSON that would exceed this limit is
/// returned unchanged.
const MAX_GROWTH_FACTOR: usize = 4;
/// Bytes that the output may have in addition to those that `MAX_GROWTH_FACTOR` allows.
const MAX_EXTRA_BYTES: usize = 64 * 1024;

/// Returns true if the query contains `pretty` with any value. On proxied paths the parameter belongs to the provider.
pub fn is_requested(client_request: &ClientRequest<'_>) -> bool {
    let query = &client_request.head.query;
    !query.is_empty()
        && client_request.route.operation != Operation::Proxy
        && query.split('&').any(|pair| pair.split('=').next() == Some("pretty"))
}

/// Returns the JSON with line breaks and indentation. Returns it unchanged if it is nested too deeply, grows too much
/// or is unbalanced.
pub fn pretty_print(json: Bytes) -> Bytes {
    try_pretty_print(&json).map_or(json, Bytes::from)
}

fn try_pretty_print(json: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(json.len() * 2);
    let max_bytes = json.len() * MAX_GROWTH_FACTOR + MAX_EXTRA_BYTES;
    let (mut depth, mut at) = (0usize, 0);
    while let Some(byte) = json.get(at) {
        if out.len() > max_bytes {
            return None;
        }
        let next = at + 1;
        match byte {
            b'"' => {
                let end = find_string_end(json, at)?;
                out.extend_from_slice(&json[at..end]);
                at = end;
                continue;
            }
            b'{' | b'[' => {
                out.push(*byte);
                let after = json[next..].iter().position(|byte| !byte.is_ascii_whitespace())? + next;
                if matches!(json[after], b'}' | b']') {
                    out.push(json[after]);
                    at = after + 1;
                    continue;
                }
                depth += 1;
                push_newline(&mut out, depth)?;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                push_newline(&mut out, depth)?;
                out.push(*byte);
            }
            b',' => {
                out.push(b',');
                push_newline(&mut out, depth)?;
            }
            b':' => out.extend_from_slice(b": "),
            byte if byte.is_ascii_whitespace() => (),
            byte => out.push(*byte),
        }
        at = next;
    }
    (depth == 0).then_some(out)
}

fn push_newline(out: &mut Vec<u8>, depth: usize) -> Option<()> {
    out.push(b'\n');
    (0..depth).for_each(|_| out.extend_from_slice(INDENT));
    (depth <= MAX_DEPTH).then_some(())
}

/// Returns the index after the closing quote of the string that begins at `begin`.
fn find_string_end(json: &[u8], begin: usize) -> Option<usize> {
    let mut at = begin + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', json.get(at..)?)?;
        if json[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn matches_the_pretty_format_of_serde_json() {
        for value in [
            json!({"a": [1, {"b": "x, {y}: \"z\\\\"}, [], {}, null], "c": {}, "d": {"e": true}}),
            json!([]),
            json!("{"),
            json!([[[1.5]], "é\u{1F600}"]),
        ] {
            for text in [value.to_string(), format!(" {value:#} \n")] {
                let printed = pretty_print(text.into());
                assert_eq!(std::str::from_utf8(&printed).unwrap(), serde_json::to_string_pretty(&value).unwrap());
            }
        }
    }

    #[test]
    fn returns_json_unchanged_if_it_would_grow_too_much() {
        let nested = |count: usize| format!("{}{}1{}", "[".repeat(60), "1,".repeat(count), "]".repeat(60));
        assert!(pretty_print(Bytes::from(nested(100))).len() > 100 * 120);
        let long = nested(100_000);
        assert_eq!(pretty_print(Bytes::from(long.clone())), long);
    }

    #[test]
    fn keeps_numbers_and_escapes_and_returns_malformed_json_unchanged() {
        assert_eq!(
            &pretty_print(Bytes::from(r#"{"n":1.50,"n":1e400,"s":"\u00e9\/"}"#))[..],
            b"{\n  \"n\": 1.50,\n  \"n\": 1e400,\n  \"s\": \"\\u00e9\\/\"\n}"
        );
        let deep = "[".repeat(70) + "1" + &"]".repeat(70);
        for malformed in ["", "{\"a\"", "{\"a", "[1", "]", &deep] {
            assert_eq!(pretty_print(Bytes::from(malformed.to_owned())), malformed, "{malformed}");
        }
        assert!(serde_json::from_slice::<Value>(&pretty_print(Bytes::from_static(b"[[1],[2]]"))).is_ok());
    }
}
