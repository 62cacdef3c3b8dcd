//! Validation of requests before their tokens are counted. Unreadable content is rejected instead of being counted as
//! zero tokens.

use serde_json::Value;

use crate::{api_format::format::ApiFormat, errors::RequestError, json::scan};

type CheckResult = Result<(), RequestError>;

/// Returns an error for the first field that is missing or unreadable.
pub fn check_request(api_format: ApiFormat, body: &[u8]) -> CheckResult {
    match api_format {
        ApiFormat::Gemini => check_gemini_request(body),
        _ => check_messages(body),
    }
}

fn check_messages(body: &[u8]) -> CheckResult {
    if let Some(system) = parse_field(body, &["system"], "")? {
        check_blocks(&system, "system")?;
    }
    let expected = "must be an array of at least one message";
    let messages = parse_field(body, &["messages"], "")?;
    let messages = messages.as_ref().and_then(Value::as_array).filter(|messages| !messages.is_empty());
    let messages = messages.ok_or_else(|| RequestError::new("messages", expected))?;
    check_each_object(messages, "messages", |message, path| {
        if !matches!(message["role"].as_str(), Some("user" | "assistant" | "system")) {
            return reject(format!("{path}.role"), "must be `user` or `assistant`");
        }
        check_blocks(&message["content"], &format!("{path}.content"))
    })
}

fn check_blocks(content: &Value, path: &str) -> CheckResult {
    match content {
        Value::String(_) => Ok(()),
        Value::Array(blocks) => check_each_object(blocks, path, |block, path| match block["type"].as_str() {
            Some("text") if !block["text"].is_string() => reject(format!("{path}.text"), "must be a string"),
            Some(_) => Ok(()),
            None => reject(format!("{path}.type"), "must be the name of a kind of block, such as `text`"),
        }),
        _ => reject(path, "must be a string, or an array of blocks"),
    }
}

fn check_gemini_request(body: &[u8]) -> CheckResult {
    const REQUEST_FIELD: &str = "generateContentRequest";
    match parse_field(body, &[REQUEST_FIELD, "generate_content_request"], "")? {
        None => check_contents(body, ""),
        Some(request @ Value::Object(_)) => {
            check_contents(request.to_string().as_bytes(), &format!("{REQUEST_FIELD}."))
        }
        Some(_) => reject(REQUEST_FIELD, "must be an object"),
    }
}

fn check_contents(body: &[u8], prefix: &str) -> CheckResult {
    if let Some(system) = parse_field(body, &["systemInstruction", "system_instruction"], prefix)? {
        check_content(&system, &format!("{prefix}systemInstruction"))?;
    }
    let path = format!("{prefix}contents");
    match parse_field(body, &["contents"], prefix)? {
        Some(item @ Value::Object(_)) => check_content(&item, &path),
        Some(Value::Array(contents)) if !contents.is_empty() => check_each_object(&contents, &path, check_content),
        _ => reject(path, "must be an array of at least one content"),
    }
}

fn check_content(content: &Value, path: &str) -> CheckResult {
    match &content["parts"] {
        _ if content.is_string() => Ok(()),
        Value::Object(_) => Ok(()),
        Value::Array(parts) if !parts.is_empty() => check_each_object(parts, &format!("{path}.parts"), |part, path| {
            let is_text = part.get("text").is_none_or(Value::is_string);
            if is_text { Ok(()) } else { reject(format!("{path}.text"), "must be a string") }
        }),
        _ => reject(format!("{path}.parts"), "must be an array of at least one part"),
    }
}

fn check_each_object(items: &[Value], path: &str, check: impl Fn(&Value, &str) -> CheckResult) -> CheckResult {
    items.iter().enumerate().try_for_each(|(at, item)| {
        let path = format!("{path}[{at}]");
        if item.is_object() { check(item, &path) } else { reject(path, "must be an object") }
    })
}

/// Returns the value of the field with one of these names; null counts as absent.
fn parse_field(body: &[u8], names: &[&'static str], prefix: &str) -> Result<Option<Value>, RequestError> {
    let mut problem = None;
    let read = scan::for_each_field(body, |key, at| {
        if let Some(name) = names.iter().find(|name| name.as_bytes() == key) {
            problem = Some((*name, at));
        }
        Ok(())
    });
    read.map_err(|error| RequestError::new("$", error.to_string()))?;
    let Some((name, at)) = problem else { return Ok(None) };
    let value: Value = serde_json::from_slice(&body[at])
        .map_err(|error| RequestError::new(format!("{prefix}{name}"), format!("cannot be read: {error}")))?;
    Ok(Some(value).filter(|value| !value.is_null()))
}

fn reject(path: impl Into<String>, message: &str) -> CheckResult {
    Err(RequestError::new(path, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_error(api_format: ApiFormat, body: &str) -> String {
        check_request(api_format, body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn rejects_missing_or_invalid_messages() {
        for (body, expected) in [
            ("{}", "messages: must be an array of at least one message"),
            (r#"{"messages":null}"#, "messages: must be an array of at least one message"),
            (r#"{"messages":[]}"#, "messages: must be an array of at least one message"),
            (r#"{"messages":"hi"}"#, "messages: must be an array of at least one message"),
            (r#"{"messages":["hi"]}"#, "messages[0]: must be an object"),
            (r#"{"messages":[{"content":"hi"}]}"#, "messages[0].role: must be `user` or `assistant`"),
            (r#"{"messages":[{"role":"tool","content":"hi"}]}"#, "messages[0].role: must be `user` or `assistant`"),
            (r#"{"messages":[{"role":"user"}]}"#, "messages[0].content: must be a string, or an array of blocks"),
            (r#"{"messages":[{"role":"user","content":5}]}"#, "messages[0].content: must be a string, or an array"),
            (r#"{"messages":[{"role":"user","content":["hi"]}]}"#, "messages[0].content[0]: must be an object"),
            (r#"{"messages":[{"role":"user","content":[{"text":"hi"}]}]}"#, "messages[0].content[0].type: must be the"),
            (r#"{"messages":[{"role":"user","content":[{"type":"text"}]}]}"#, "messages[0].content[0].text: must be a"),
            (r#"{"messages":[{"role":"user","content":"\ud800"}]}"#, "messages: cannot be read: "),
            (r#"{"system":7,"messages":[{"role":"user","content":"hi"}]}"#, "system: must be a string, or an array"),
            ("[]", "$: expected an object at byte 0"),
        ] {
            let refused = check_error(ApiFormat::Anthropic, body);
            assert!(refused.starts_with(expected), "{body}: {refused}");
        }
    }

    #[test]
    fn rejects_missing_or_invalid_contents() {
        let within = |inner: &str| format!("{{\"generateContentRequest\":{inner}}}");
        for (inner, expected) in [
            ("{}", "contents: must be an array of at least one content"),
            (r#"{"contents":[]}"#, "contents: must be an array of at least one content"),
            (r#"{"contents":"hi"}"#, "contents: must be an array of at least one content"),
            (r#"{"contents":[5]}"#, "contents[0]: must be an object"),
            (r#"{"contents":[{"role":"user"}]}"#, "contents[0].parts: must be an array of at least one part"),
            (r#"{"contents":[{"parts":[]}]}"#, "contents[0].parts: must be an array of at least one part"),
            (r#"{"contents":[{"parts":["hi"]}]}"#, "contents[0].parts[0]: must be an object"),
            (r#"{"contents":[{"parts":[{"text":5}]}]}"#, "contents[0].parts[0].text: must be a string"),
            (r#"{"systemInstruction":{},"contents":{"parts":{}}}"#, "systemInstruction.parts: must be an array"),
        ] {
            let message = check_error(ApiFormat::Gemini, inner);
            assert!(message.starts_with(expected), "{inner}: {message}");
            let error = check_error(ApiFormat::Gemini, &within(inner));
            assert!(error.starts_with(&format!("generateContentRequest.{expected}")), "{inner}: {error}");
        }
        assert_eq!(check_error(ApiFormat::Gemini, &within("[]")), "generateContentRequest: must be an object");
    }

    #[test]
    fn accepts_requests_that_a_provider_would_accept() {
        for body in [
            r#"{"messages":[{"role":"user","content":"hi"}],"system":null}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"search_result","source":"x"}]}],"system":[{"type":"text","text":"s"}]}"#,
            r#"{"messages":[{"role":"assistant","content":[]},{"role":"system","content":""}]}"#,
        ] {
            assert_eq!(check_request(ApiFormat::Anthropic, body.as_bytes()), Ok(()), "{body}");
        }
        for body in [
            r#"{"contents":{"role":"user","parts":{"text":"hi"}}}"#,
            r#"{"contents":[{"parts":[{"functionResponse":{"name":"f"}}]}],"system_instruction":{"parts":[{"text":"s"}]}}"#,
            r#"{"generate_content_request":{"contents":[{"parts":[{"text":"hi"}]}]}}"#,
        ] {
            assert_eq!(check_request(ApiFormat::Gemini, body.as_bytes()), Ok(()), "{body}");
        }
    }
}
