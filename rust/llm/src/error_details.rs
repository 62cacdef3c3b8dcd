//! Parser of providers' error responses. One parser reads the formats of all providers, which differ in where they put
//! the fields.

use serde_json::Value;

/// Details of a provider's error response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorDetails {
    pub message: Option<String>,
    pub kind: Option<String>,
    /// Request parameter that the error is about.
    pub param: Option<String>,
    pub code: Option<String>,
}

/// Parses the error body of any `OpenAI`-compatible provider; these differ in where they put the fields.
pub fn parse_error(response: &[u8]) -> ErrorDetails {
    // Some providers wrap the error in an array.
    let body = match serde_json::from_slice(response) {
        Ok(Value::Array(mut items)) if !items.is_empty() => items.swap_remove(0),
        Ok(Value::String(message)) => return ErrorDetails { message: Some(message), ..ErrorDetails::default() },
        Ok(body) => body,
        Err(_) => return ErrorDetails::default(),
    };
    match &body["error"] {
        // The other fields are next to the message, not below it.
        Value::String(message) => ErrorDetails { message: Some(message.clone()), ..parse_error_fields(&body) },
        Value::Object(_) => parse_error_fields(&body["error"]),
        _ => parse_error_fields(&body),
    }
}

/// Parses the error in an event of a stream.
pub fn parse_stream_error(error: &[u8]) -> ErrorDetails {
    match serde_json::from_slice::<Value>(error) {
        Ok(Value::String(message)) => ErrorDetails { message: Some(message), ..ErrorDetails::default() },
        Ok(error) => parse_error_fields(&error),
        Err(_) => ErrorDetails::default(),
    }
}

fn parse_error_fields(error: &Value) -> ErrorDetails {
    let fault = &error["fault"];
    let detail = match &error["detail"] {
        Value::Array(items) => items.first().map(describe_validation_error),
        detail => string_or_number(detail),
    };
    ErrorDetails {
        message: string_or_number(&error["message"])
            .or(detail)
            .or_else(|| string_or_number(&fault["faultstring"]))
            .or_else(|| string_or_number(&error["err_msg"]))
            .or_else(|| string_or_number(&error["msg"]))
            .or_else(|| string_or_number(&error["Message"]))
            .or_else(|| string_or_number(&error["base_resp"]["status_msg"]))
            .or_else(|| join_errors(&error["errors"])),
        kind: string_or_number(&error["type"])
            // A numeric status is not an error type.
            .or_else(|| error["status"].as_str().map(ToOwned::to_owned))
            .or_else(|| string_or_number(&error["detail"][0]["type"]))
            .or_else(|| string_or_number(&error["__type"]))
            .or_else(|| string_or_number(&error["name"])),
        // Stability sends the error type as `name`, next to the `id` of this occurrence of the error.
        param: string_or_number(&error["param"]).or_else(|| {
            let is_stabilitys = error["errors"].is_array() && error["name"].is_string();
            string_or_number(&error["id"]).filter(|_| is_stabilitys)
        }),
        code: string_or_number(&error["code"])
            .or_else(|| string_or_number(&fault["detail"]["errorcode"]))
            .or_else(|| string_or_number(&error["err_code"]))
            .or_else(|| string_or_number(&error["base_resp"]["status_code"])),
    }
}

/// Joins a list of errors, which are strings or objects with a code and a message.
fn join_errors(errors: &Value) -> Option<String> {
    let item = |error: &Value| match (error, string_or_number(&error["code"]), string_or_number(&error["message"])) {
        (Value::String(text), ..) => Some(text.clone()),
        (_, Some(code), Some(message)) => Some(format!("Error {code}:{message}")),
        (_, _, message) => message,
    };
    let all: Vec<_> = errors.as_array()?.iter().filter_map(item).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn string_or_number(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Formats a validation error with its location in the request.
fn describe_validation_error(item: &Value) -> String {
    let location: Vec<_> = item["loc"].as_array().into_iter().flatten().filter_map(string_or_number).collect();
    let message = item["msg"].as_str().unwrap_or_default();
    if location.is_empty() { message.to_owned() } else { format!("{}: {message}", location.join(".")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parses_errors_of_every_compatible_format() {
        for (body, message, kind, code) in [
            (json!({"error": {"message": "m", "type": "t", "code": "c"}}), "m", Some("t"), Some("c")),
            (json!({"object": "error", "message": "m", "type": "t", "code": 3051}), "m", Some("t"), Some("3051")),
            (json!({"error": {"code": 400, "message": "m", "status": "S"}}), "m", Some("S"), Some("400")),
            (json!([{"error": {"code": 400, "message": "m", "status": "S"}}]), "m", Some("S"), Some("400")),
            (json!({"error": "m"}), "m", None, None),
            (json!({"code": "c", "error": "m"}), "m", None, Some("c")),
            (json!("m"), "m", None, None),
            (json!({"message": "m"}), "m", None, None),
            (json!({"detail": "m"}), "m", None, None),
            (json!({"detail": [{"loc": ["body", 0], "msg": "m", "type": "t"}]}), "body.0: m", Some("t"), None),
            (json!({"success": false, "errors": [{"code": 7003, "message": "m"}]}), "Error 7003:m", None, None),
            (json!({"id": "e1", "name": "bad_request", "errors": ["a", "b"]}), "a; b", Some("bad_request"), None),
            (json!({"code": 1211, "msg": "m", "success": false}), "m", None, Some("1211")),
            (json!({"__type": "T", "Message": "m"}), "m", Some("T"), None),
            (json!({"choices": null, "base_resp": {"status_code": 1004, "status_msg": "m"}}), "m", None, Some("1004")),
            (json!({"fault": {"faultstring": "m", "detail": {"errorcode": "c"}}}), "m", None, Some("c")),
        ] {
            let details = parse_error(body.to_string().as_bytes());
            assert_eq!(details.message.as_deref(), Some(message), "{body}");
            assert_eq!((details.kind.as_deref(), details.code.as_deref()), (kind, code), "{body}");
        }
        assert_eq!(parse_error(b"<html>"), ErrorDetails::default());
        assert_eq!(parse_error(b"{\"unknown\":1}").message, None);
    }
}
