//! Repeated keys in JSON. Parsers differ in which value of a repeated key they take, so the other value could hide a
//! text from checks.

use memchr::memchr2;
use serde_json::Value;

/// Returns true if an object in the JSON that `value` was parsed from has a key twice.
pub fn has_repeated_keys(json: &[u8], value: &Value) -> bool {
    count_written_members(json) != count_members(value)
}

/// Counts the colons outside of strings: each is one member of an object.
fn count_written_members(json: &[u8]) -> usize {
    let (mut rest, mut count) = (json, 0);
    while let Some(at) = memchr2(b':', b'"', rest) {
        if rest[at] == b':' {
            count += 1;
            rest = &rest[at + 1..];
        } else {
            rest = skip_string(&rest[at + 1..]);
        }
    }
    count
}

/// Returns what follows a string, given the bytes after its first quote.
fn skip_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'\\', b'"', rest) {
        if rest[at] == b'"' {
            return &rest[at + 1..];
        }
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    &[]
}

fn count_members(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(count_members).sum(),
        Value::Object(fields) => fields.values().map(|value| 1 + count_members(value)).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeats(json: &str) -> bool {
        has_repeated_keys(json.as_bytes(), &serde_json::from_str(json).unwrap())
    }

    #[test]
    fn finds_keys_that_an_object_has_twice() {
        for json in [
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"[{"b":{"a" : "x:\"y", "a":[]}}]"#,
            r#"{"a":{"b":{"c":1}},"a":0}"#,
        ] {
            assert!(repeats(json), "{json}");
        }
        for json in [
            r#"{"a":1,"b":{"a":1},"A":2}"#,
            r#"{"a:b":"c:d\\","e":"\":"}"#,
            "[1.5e3,null,\"a:\",{}]",
            r#"{"":"","x":{"":[{"":1},{"":1}]}}"#,
            "12",
        ] {
            assert!(!repeats(json), "{json}");
        }
    }
}
