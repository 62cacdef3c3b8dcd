//! What a request must have for its tokens to be counted: what cannot be read is refused, not counted as nothing.

use serde_json::Value;

use crate::{api_format::ApiFormat, json::scan, translation::Refusal};

type Check = Result<(), Refusal>;

/// Fails with the first field that is missing, or that nobody could read.
pub fn check(dialect: ApiFormat, body: &[u8]) -> Check {
    match dialect {
        ApiFormat::Gemini => contents(body),
        _ => messages(body),
    }
}

fn messages(body: &[u8]) -> Check {
    if let Some(system) = field(body, &["system"], "")? {
        blocks(&system, "system")?;
    }
    let wanted = "must be an array of at least one message";
    let messages = field(body, &["messages"], "")?;
    let messages = messages.as_ref().and_then(Value::as_array).filter(|messages| !messages.is_empty());
    let messages = messages.ok_or_else(|| Refusal::new("messages", wanted))?;
    each(messages, "messages", |message, path| {
        if !matches!(message["role"].as_str(), Some("user" | "assistant" | "system")) {
            return refuse(format!("{path}.role"), "must be `user` or `assistant`");
        }
        blocks(&message["content"], &format!("{path}.content"))
    })
}

fn blocks(content: &Value, path: &str) -> Check {
    match content {
        Value::String(_) => Ok(()),
        Value::Array(blocks) => each(blocks, path, |block, path| match block["type"].as_str() {
            Some("text") if !block["text"].is_string() => refuse(format!("{path}.text"), "must be a string"),
            Some(_) => Ok(()),
            None => refuse(format!("{path}.type"), "must be the name of a kind of block, such as `text`"),
        }),
        _ => refuse(path, "must be a string, or an array of blocks"),
    }
}

fn contents(body: &[u8]) -> Check {
    const REQUEST: &str = "generateContentRequest";
    match field(body, &[REQUEST, "generate_content_request"], "")? {
        None => contents_of(body, ""),
        Some(request @ Value::Object(_)) => contents_of(request.to_string().as_bytes(), &format!("{REQUEST}.")),
        Some(_) => refuse(REQUEST, "must be an object"),
    }
}

fn contents_of(body: &[u8], prefix: &str) -> Check {
    if let Some(system) = field(body, &["systemInstruction", "system_instruction"], prefix)? {
        content(&system, &format!("{prefix}systemInstruction"))?;
    }
    let path = format!("{prefix}contents");
    match field(body, &["contents"], prefix)? {
        Some(one @ Value::Object(_)) => content(&one, &path),
        Some(Value::Array(contents)) if !contents.is_empty() => each(&contents, &path, content),
        _ => refuse(path, "must be an array of at least one content"),
    }
}

fn content(content: &Value, path: &str) -> Check {
    match &content["parts"] {
        _ if content.is_string() => Ok(()),
        Value::Object(_) => Ok(()),
        Value::Array(parts) if !parts.is_empty() => each(parts, &format!("{path}.parts"), |part, path| {
            let is_text = part.get("text").is_none_or(Value::is_string);
            if is_text { Ok(()) } else { refuse(format!("{path}.text"), "must be a string") }
        }),
        _ => refuse(format!("{path}.parts"), "must be an array of at least one part"),
    }
}

fn each(items: &[Value], path: &str, check: impl Fn(&Value, &str) -> Check) -> Check {
    items.iter().enumerate().try_for_each(|(at, item)| {
        let path = format!("{path}[{at}]");
        if item.is_object() { check(item, &path) } else { refuse(path, "must be an object") }
    })
}

/// The field of the first of these names that is there; null counts as absent.
fn field(body: &[u8], names: &[&'static str], prefix: &str) -> Result<Option<Value>, Refusal> {
    let mut found = None;
    let read = scan::for_each_field(body, |key, at| {
        if let Some(name) = names.iter().find(|name| name.as_bytes() == key) {
            found = Some((*name, at));
        }
        Ok(())
    });
    read.map_err(|error| Refusal::new("$", error.to_string()))?;
    let Some((name, at)) = found else { return Ok(None) };
    let value: Value = serde_json::from_slice(&body[at])
        .map_err(|error| Refusal::new(format!("{prefix}{name}"), format!("cannot be read: {error}")))?;
    Ok(Some(value).filter(|value| !value.is_null()))
}

fn refuse(path: impl Into<String>, message: &str) -> Check {
    Err(Refusal::new(path, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(dialect: ApiFormat, body: &str) -> String {
        check(dialect, body.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn messages_that_are_missing_or_none_are_named() {
        for (body, said) in [
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
            let refused = refused(ApiFormat::Anthropic, body);
            assert!(refused.starts_with(said), "{body}: {refused}");
        }
    }

    #[test]
    fn contents_that_are_missing_or_none_are_named() {
        let within = |inner: &str| format!("{{\"generateContentRequest\":{inner}}}");
        for (inner, said) in [
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
            let found = refused(ApiFormat::Gemini, inner);
            assert!(found.starts_with(said), "{inner}: {found}");
            let found = refused(ApiFormat::Gemini, &within(inner));
            assert!(found.starts_with(&format!("generateContentRequest.{said}")), "{inner}: {found}");
        }
        assert_eq!(refused(ApiFormat::Gemini, &within("[]")), "generateContentRequest: must be an object");
    }

    #[test]
    fn whatever_a_provider_would_read_is_counted() {
        for body in [
            r#"{"messages":[{"role":"user","content":"hi"}],"system":null}"#,
            r#"{"messages":[{"role":"user","content":[{"type":"search_result","source":"x"}]}],"system":[{"type":"text","text":"s"}]}"#,
            r#"{"messages":[{"role":"assistant","content":[]},{"role":"system","content":""}]}"#,
        ] {
            assert_eq!(check(ApiFormat::Anthropic, body.as_bytes()), Ok(()), "{body}");
        }
        for body in [
            r#"{"contents":{"role":"user","parts":{"text":"hi"}}}"#,
            r#"{"contents":[{"parts":[{"functionResponse":{"name":"f"}}]}],"system_instruction":{"parts":[{"text":"s"}]}}"#,
            r#"{"generate_content_request":{"contents":[{"parts":[{"text":"hi"}]}]}}"#,
        ] {
            assert_eq!(check(ApiFormat::Gemini, body.as_bytes()), Ok(()), "{body}");
        }
    }
}
