//! Request body scanning: the fields that are read, and the byte at which an invalid body is rejected.

use penstock_llm::api_format::{MAX_DEPTH, Peek, ScanError, is_complete_json, peek};
use proptest::prelude::*;

fn scan_error(body: &str) -> (usize, &'static str) {
    let ScanError { offset: at, message } = peek(body.as_bytes()).unwrap_err();
    (at, message)
}

#[test]
fn reads_routing_fields_and_their_positions() {
    let body = br#"{"messages":[{"role":"user","content":"\"model\":\"no\" }"}],"model" : "gpt-4o", "stream": true,
        "user":"u-1","stream_options":{"x":{"include_usage":false},"include_usage":true},"tools":[{"model":"inner"}]}"#;
    let peeked = peek(body).unwrap();
    assert_eq!(peeked.model.as_deref(), Some("gpt-4o"));
    assert_eq!(&body[peeked.model_range.clone().unwrap()], b"\"gpt-4o\"");
    assert_eq!(&body[peeked.stream_range.clone().unwrap()], b"true");
    assert!(peeked.is_streaming());
    assert_eq!(peeked.user.as_deref(), Some("u-1"));
    assert_eq!(peeked.include_usage, Some(true));
    assert!(body[peeked.stream_options_range.unwrap()].ends_with(b"\"include_usage\":true}"));
}

#[test]
fn decodes_escapes_in_keys_and_values() {
    let peeked = peek(br#"{"mod\u0065l":"a\/b\ud83d\ude42\"c"}"#).unwrap();
    assert_eq!(peeked.model.as_deref(), Some("a/b🙂\"c"));
}

#[test]
fn values_of_another_type_count_as_absent() {
    let peeked = peek(br#"{"model":7,"stream":"true","user":null,"stream_options":[1]}"#).unwrap();
    let Peek { model, stream, user, include_usage, .. } = peeked;
    assert_eq!((model, stream, user, include_usage), (None, None, None, None));
}

#[test]
fn rejects_non_objects_at_their_byte() {
    assert_eq!(scan_error(""), (0, "unexpected end of JSON"));
    assert_eq!(scan_error("  [1]"), (2, "expected an object"));
    assert_eq!(scan_error("\u{feff}{}"), (0, "expected an object"));
    assert_eq!(scan_error("{} x"), (3, "unexpected bytes after the object"));
    assert_eq!(scan_error("{}{}"), (2, "unexpected bytes after the object"));
}

#[test]
fn rejects_malformed_json_at_its_byte() {
    assert_eq!(scan_error(r#"{"a":[1,2}"#), (9, "expected ',' or ']'"));
    assert_eq!(scan_error(r#"{"a":{"b":1]"#), (11, "expected ',' or '}'"));
    assert_eq!(scan_error(r#"{"a":1,}"#), (7, "expected a string as key"));
    assert_eq!(scan_error(r#"{"a":[1,]}"#), (8, "expected a value"));
    assert_eq!(scan_error(r#"{"a" 1}"#), (5, "expected ':'"));
    assert_eq!(scan_error("{'a':1}"), (1, "expected a string as key"));
    assert_eq!(scan_error(r#"{"a":-}"#), (6, "expected a digit"));
    assert_eq!(scan_error(r#"{"a":01}"#), (6, "expected ',' or '}'"));
    assert_eq!(scan_error(r#"{"a":nul}"#), (5, "expected a value"));
    assert_eq!(scan_error(r#"{"model":"\x"}"#), (10, "invalid escape"));
}

#[test]
fn rejects_duplicate_fields() {
    assert_eq!(scan_error(r#"{"model":"a","mod\u0065l":"b"}"#).1, "\"model\" appears twice");
    assert_eq!(scan_error(r#"{"stream":true,"stream":false}"#).1, "\"stream\" appears twice");
}

#[test]
fn limits_nesting_depth() {
    let nested = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    assert!(peek(nested(MAX_DEPTH as usize - 1).as_bytes()).is_ok());
    assert_eq!(scan_error(&nested(MAX_DEPTH as usize)).1, "nested too deeply");
    assert_eq!(scan_error(&"{\"a\":".repeat(100_000)).1, "nested too deeply");
}

#[test]
fn rejects_every_truncation() {
    let body = r#"{"model":"gpt\"4","n":[1,-2.5e+3,{"a":[]},true,null],"stream_options":{"include_usage":false}}"#;
    for end in 0..body.len() {
        assert!(peek(&body.as_bytes()[..end]).is_err(), "{}", &body[..end]);
    }
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::{Value, json};
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        any::<String>().prop_map(Value::from),
        "\\PC{0,80}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn agrees_with_a_real_parser(model in any::<String>(), stream in any::<bool>(), rest in any_json(), pretty in any::<bool>()) {
        let body = serde_json::json!({"rest": rest, "model": model, "more": rest, "stream": stream});
        let bytes = if pretty { serde_json::to_vec_pretty(&body) } else { serde_json::to_vec(&body) }.unwrap();
        let peeked = peek(&bytes).unwrap();
        prop_assert_eq!(peeked.model, Some(model));
        prop_assert_eq!(peeked.stream, Some(stream));
        prop_assert!(is_complete_json(&bytes));
        prop_assert!((0..bytes.len()).all(|end| !is_complete_json(&bytes[..end])), "what is cut off is not closed");
    }

    /// Accepts the same input as a full parser, except that it does not check the range of numbers and lone surrogates.
    #[test]
    fn accepts_nothing_that_is_not_json(bytes in "[\\[\\]{}:,\"a1 0.e\\-tn\\\\u\n]{0,24}") {
        let body = format!("{{\"a\":{bytes}}}");
        let real = serde_json::from_str::<serde_json::Value>(&body);
        let mine = peek(body.as_bytes());
        if real.is_ok() {
            prop_assert!(mine.is_ok());
        } else if !body.contains("\\u") && !body.contains('e') {
            prop_assert!(mine.is_err(), "{}", body);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = peek(&bytes);
        let _ = peek(&[b"{\"model\":", &bytes[..]].concat());
    }
}

/// Returns the parsing cases of `JSONTestSuite` (MIT, licence beside them). Each line is a name and hexadecimal bytes,
/// some of them repeated.
fn json_test_suite() -> Vec<(&'static str, Vec<u8>)> {
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    };
    let part = |part: &str| match part.split_once('*') {
        Some((hex, times)) => bytes(hex).repeat(times.parse().unwrap()),
        None => bytes(part),
    };
    let case = |line: &'static str| {
        let mut parts = line.split(' ');
        (parts.next().unwrap(), parts.flat_map(part).collect())
    };
    include_str!("../../../../tests/vectors/json_test_suite.txt").lines().map(case).collect()
}

#[test]
fn agrees_with_the_public_json_test_suite() {
    let suite = json_test_suite();
    assert_eq!(suite.len(), 318);
    for (name, text) in suite {
        let within = [br#"{"model":"m","x":"#, &text[..], b"}"].concat();
        // A body must be an object, so other values are tested inside one.
        let is_object = text.trim_ascii_start().first() == Some(&b'{');
        match name.as_bytes()[0] {
            b'y' => {
                assert!(peek(&within).is_ok(), "{name}: {:?}", peek(&within));
                assert_eq!(peek(&text).is_ok(), is_object, "{name}");
            }
            b'n' => assert!(peek(&within).is_err() && peek(&text).is_err(), "{name}"),
            _ => assert!(is_object || peek(&text).is_err(), "{name}"),
        }
    }
}

#[test]
fn only_complete_json_counts_as_closed() {
    for (name, text) in json_test_suite().into_iter().filter(|(name, _)| name.starts_with('y')) {
        assert!(is_complete_json(&text), "{name}");
    }
    for text in [
        "",
        " ",
        "{",
        "[",
        "}",
        "]",
        "{\"a",
        "{\"a\":\"}",
        "{\"a\":\"\\\"}",
        "{\"a\":{}",
        "[[]",
        "{}}",
        "{}{",
        "[1],",
        "{not json}",
        "[{x}]",
        "<html>",
        "nul",
        "\"a",
        "oops",
    ] {
        assert!(!is_complete_json(text.as_bytes()), "{text}");
    }
    // `is_complete_json` has no limit of the nesting depth.
    let deep = "[".repeat(1_000) + &"]".repeat(1_000);
    assert!(is_complete_json(deep.as_bytes()) && !is_complete_json(&deep.as_bytes()[..1_999]));
}

#[test]
fn rejects_invalid_strings_at_their_byte() {
    assert_eq!(scan_error("{\"a\":\"b\nc\"}"), (7, "control character in a string"));
    assert_eq!(scan_error(&format!("{{\"a\":\"{}\u{1}\"}}", "x".repeat(100))), (106, "control character in a string"));
    assert_eq!(scan_error(r#"{"a":"bc\q"}"#), (8, "invalid escape"));
    assert_eq!(scan_error(r#"{"a":"\u12G4"}"#), (6, "invalid escape"));
    assert_eq!(scan_error(r#"{"a":"\u12"}"#), (6, "invalid escape"));
    let ScanError { offset: at, message } = peek(b"{\"a\":\"\xff\"}").unwrap_err();
    assert_eq!((at, message), (6, "invalid UTF-8"));
    for length in 0..40 {
        let text = "x".repeat(length);
        assert!(peek(format!("{{\"a\":\"{text}\\\\\",\"b\":\"{text}é\\\"\"}}").as_bytes()).is_ok());
        assert!(peek(format!("{{\"a\":\"{text}\t\"}}").as_bytes()).is_err());
    }
}

#[test]
fn checks_long_strings_across_part_boundaries() {
    // Strings are checked in parts of 16 KiB. Characters of one to four bytes are placed across each boundary.
    for sign in ["é", "€", "😀", r#"\""#, r"\u00e9"] {
        for before in 16_370..16_390 {
            let text = format!("{}{sign}{}", "x".repeat(before), "y".repeat(40_000));
            let body = format!(r#"{{"a":["{text}","{text}"],"b":"{text}","model":"m"}}"#);
            assert_eq!(peek(body.as_bytes()).unwrap().model.as_deref(), Some("m"), "{sign} at {before}");
            for fault in [before + 7 + sign.len(), body.len() - 20_000] {
                let mut broken = body.clone().into_bytes();
                broken[fault] = 0xff;
                let fault_found = peek(&broken).unwrap_err();
                assert_eq!((fault_found.offset, fault_found.message), (fault, "invalid UTF-8"), "{sign} at {before}");
                broken[fault] = b'\n';
                let error = peek(&broken).unwrap_err();
                assert_eq!(
                    (error.offset, error.message),
                    (fault, "control character in a string"),
                    "{sign} at {before}"
                );
            }
        }
    }
}

#[test]
fn reports_the_first_fault_among_many_short_strings() {
    let items = r#""some words","#.repeat(10_000);
    let mut body = format!(r#"{{"a":[{items}""],"b":"é"}}"#).into_bytes();
    let last = body.len() - 1;
    assert!(peek(&body).is_ok());
    body[last] = b'!';
    assert_eq!(peek(&body).unwrap_err().offset, last);
    for fault in [100_001, 20, last - 3] {
        body[fault] = 0xff;
        assert_eq!((peek(&body).unwrap_err().offset, peek(&body).unwrap_err().message), (fault, "invalid UTF-8"));
        body[fault] = b'x';
    }
}
