//! Descriptions of JSON faults for clients, who do not know the terms of the parser, and the depth of JSON.

use serde_json::error::Category;

/// Maximum depth of objects and lists that the JSON parser reads.
pub const MAX_PARSED_DEPTH: usize = 127;

/// Describes why JSON cannot be parsed, and where.
pub fn describe_json_fault(error: &serde_json::Error) -> String {
    let (text, line, column) = (error.to_string(), error.line(), error.column());
    if text.starts_with("recursion limit exceeded") {
        return format!(
            "nests deeper than {MAX_PARSED_DEPTH} levels of objects and lists (line {line}, column {column})"
        );
    }
    let reason = text.split(" at line ").next().unwrap_or_default();
    match error.classify() {
        Category::Eof => format!("the JSON ends too early (line {line}, column {column})"),
        Category::Data => reason
            .replace("invalid type: sequence", "invalid type: list")
            .replace("invalid type: map", "invalid type: object")
            .replace("expected a map", "expected an object")
            .replace("expected a sequence", "expected a list"),
        Category::Syntax | Category::Io => format!("{reason} (line {line}, column {column})"),
    }
}

/// Returns true if JSON has more than `levels` levels of objects and lists. Reads each byte once, and allocates
/// nothing.
pub fn nests_deeper(json: &str, levels: usize) -> bool {
    let (mut depth, mut is_in_string, mut is_escaped) = (0_usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_in_string,
            b'"' => is_in_string = !is_in_string,
            b'[' | b'{' if !is_in_string => {
                depth += 1;
                if depth > levels {
                    return true;
                }
            }
            b']' | b'}' if !is_in_string => depth = depth.saturating_sub(1),
            _ => (),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn depth_is_that_of_containers_outside_of_strings() {
        for (json, depth) in [("1", 0), (r#"["[[\"[["]"#, 1), (r#"{"a": [1], "b": [[2]]}"#, 3), ("[[],[],{}]", 2)] {
            assert!(nests_deeper(json, depth.max(1) - 1) == (depth > 0), "{json}");
            assert!(!nests_deeper(json, depth), "{json}");
        }
    }

    #[test]
    fn faults_are_described_without_names_of_the_parser() {
        let fault = |json: &str| describe_json_fault(&serde_json::from_str::<Value>(json).unwrap_err());
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(serde_json::from_str::<Value>(&nested(MAX_PARSED_DEPTH)).is_ok());
        let too_deep = fault(&nested(MAX_PARSED_DEPTH + 1));
        assert_eq!(too_deep, "nests deeper than 127 levels of objects and lists (line 1, column 128)");
        assert_eq!(fault("[1"), "the JSON ends too early (line 1, column 2)");
        assert_eq!(fault("[1,\n]"), "trailing comma (line 2, column 1)");
        let no_object = serde_json::from_str::<serde_json::Map<String, Value>>("[1]").unwrap_err();
        assert_eq!(describe_json_fault(&no_object), "invalid type: list, expected an object");
    }
}
