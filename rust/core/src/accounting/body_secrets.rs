//! Secrets in recorded bodies: credentials that a client sends for tools and data sources, and those that a provider
//! issues. Records mask them. Texts of conversations and schemas of tools stay as they are.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use penstock_llm::json::edit::{FieldChange, map_fields};
use serde_json::{Map, Value};

use crate::process::secret::{MASK, is_secret_field, mask_named_secrets};

/// Texts of which one, in any letter case, is in each body with secrets: parts of the names that `is_secret_field` knows.
/// They are searched for first, because most bodies have none. A part that is a common word includes the end of a name.
const MARKS: [&str; 24] = [
    "auth\"",
    "auth_",
    "auth-",
    "authoriz",
    "authent",
    "cookie",
    "credential",
    "headers\"",
    "server_url",
    "serverurl",
    "mcp_servers",
    "mcpservers",
    "data_sources",
    "datasources",
    "key\"",
    "key_",
    "keys\"",
    "token\"",
    "passw",
    "passphrase",
    "secret",
    "service_account",
    "service-account",
    "signature",
];
static MARK_SEARCH: LazyLock<Option<AhoCorasick>> =
    LazyLock::new(|| AhoCorasick::builder().ascii_case_insensitive(true).build(MARKS).ok());
/// Maximum length of a text in which marks are searched for. A longer name counts as marked.
const MAX_NAME_BYTES: usize = 128;
/// Bytes after the recorded part of a body in which marks are searched for, too. A name may follow the secret.
const MARGIN_BYTES: usize = 64 * 1024;
/// Fields with definitions of tools and their servers.
const TOOL_FIELDS: [&str; 4] = ["tools", "mcp_servers", "mcpServers", "connectors"];
/// Fields with data sources, which have credentials at any depth.
const SOURCE_FIELDS: [&str; 2] = ["data_sources", "dataSources"];
/// Fields that hold a further request or session, or a list of them.
const NESTED_FIELDS: [&str; 6] = ["session", "response", "request", "requests", "params", "body"];
/// Fields of a tool that describe its arguments. They may have the name of a secret, but hold none.
const SCHEMA_FIELDS: [&str; 11] = [
    "parameters",
    "input_schema",
    "output_schema",
    "inputSchema",
    "function",
    "functions",
    "function_declarations",
    "functionDeclarations",
    "toolSpec",
    "custom",
    "description",
];
/// Names in paths of requests to which the provider responds with a new credential.
const ISSUING_SEGMENTS: [&str; 11] = [
    "client_secrets",
    "auth_tokens",
    "transcription_sessions",
    "api_keys",
    "api-keys",
    "admin_api_keys",
    "service_accounts",
    "single-use-token",
    "oauth",
    "token",
    "tokens",
];

/// Returns the body with its secrets masked, and `None` if it has none. It is a JSON object, or a stream of SSE events
/// with JSON objects.
pub fn mask_body_secrets(body: &[u8]) -> Option<Vec<u8>> {
    mask_recorded_part(body, body.len())
}

/// Does the same for a body of which at most this many bytes are recorded. A secret that only the rest may hold stays.
pub fn mask_recorded_part(body: &[u8], recorded_bytes: usize) -> Option<Vec<u8>> {
    let searched_bytes = recorded_bytes.saturating_add(MARGIN_BYTES).min(body.len());
    if !may_hold_secrets(&body[..searched_bytes]) {
        return None;
    }
    match body.trim_ascii_start().first() {
        Some(b'{') => mask_document(body),
        // The beginning of a line of SSE: `data`, `event`, `id`, `retry`, or a comment.
        Some(b'd' | b'e' | b'i' | b'r' | b':') => mask_events(body),
        _ => None,
    }
}

/// Masks the secrets in the JSON objects of SSE events. Returns `None` if they have none.
fn mask_events(stream: &[u8]) -> Option<Vec<u8>> {
    let mut masked = Vec::new();
    let mut copied = 0;
    let mut end = 0;
    for line in stream.split_inclusive(|byte| *byte == b'\n') {
        end += line.len();
        let Some(data) = line.strip_prefix(b"data:").filter(|data| may_hold_secrets(data)) else { continue };
        if let Some(data) = mask_document(data) {
            masked.extend_from_slice(&stream[copied..end - line.len()]);
            masked.extend_from_slice(b"data:");
            masked.extend_from_slice(&data);
            copied = end;
        }
    }
    if copied == 0 {
        return None;
    }
    masked.extend_from_slice(&stream[copied..]);
    Some(masked)
}

/// Masks the secrets in a JSON object. Returns `None` if it has none, or is not a JSON object.
fn mask_document(body: &[u8]) -> Option<Vec<u8>> {
    let mut is_masked = false;
    let masked = map_fields(body, |key, json| match mask_field_json(key, json) {
        Some(value) => {
            is_masked = true;
            FieldChange::Replaced { key: None, value: Some(value) }
        }
        None => FieldChange::Unchanged,
    });
    masked.ok().filter(|_| is_masked)
}

/// Returns true if the response to a request with this path is a new credential, so that no bodies are recorded.
pub fn issues_credential(path: &str) -> bool {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    path.trim_end_matches('/').ends_with("/realtime/sessions")
        || segments.any(|segment| ISSUING_SEGMENTS.contains(&segment))
}

/// Returns true if a name in the JSON may be that of a secret. Texts longer than a name are only skipped, so the cost of
/// a long conversation is that of finding its quotes.
fn may_hold_secrets(json: &[u8]) -> bool {
    let Some(search) = MARK_SEARCH.as_ref() else { return true };
    let mut start = 0;
    for quote in memchr::memchr_iter(b'"', json) {
        // Some marks include the quote after a name.
        let text = &json[start..=quote];
        start = quote + 1;
        let is_marked = if text.len() > MAX_NAME_BYTES { is_name(&json[start..]) } else { search.is_match(text) };
        if is_marked {
            return true;
        }
    }
    let rest = &json[start..];
    rest.len() <= MAX_NAME_BYTES && search.is_match(rest)
}

/// Returns true if these bytes follow the name of a field.
fn is_name(following: &[u8]) -> bool {
    following.trim_ascii_start().first() == Some(&b':')
}

/// Returns the JSON of a top-level field with its secrets masked, and `None` if it has none.
fn mask_field_json(key: &[u8], json: &[u8]) -> Option<Vec<u8>> {
    let name = std::str::from_utf8(key).ok()?;
    let is_read = if name == "tools" || NESTED_FIELDS.contains(&name) {
        may_hold_secrets(json)
    } else {
        TOOL_FIELDS.contains(&name) || SOURCE_FIELDS.contains(&name) || may_be_secret(name)
    };
    if !is_read {
        return None;
    }
    match serde_json::from_slice(json) {
        Ok(mut value) => mask_field(name, &mut value).then(|| value.to_string().into_bytes()),
        // It is nested too deep.
        Err(_) => Some(format!("\"{MASK}\"").into_bytes()),
    }
}

fn may_be_secret(name: &str) -> bool {
    is_secret_field(name) || name.to_ascii_lowercase().ends_with("headers")
}

/// Masks the secrets in a field of a request. Returns true if there are any.
fn mask_field(name: &str, value: &mut Value) -> bool {
    if NESTED_FIELDS.contains(&name) {
        mask_each(value, |fields| mask_each_field(fields, mask_field))
    } else if TOOL_FIELDS.contains(&name) {
        mask_each(value, |fields| mask_each_field(fields, mask_tool_field))
    } else if SOURCE_FIELDS.contains(&name) {
        mask_named_secrets(name, value)
    } else {
        // Lists hold names and numbers of tokens, for example.
        may_be_secret(name) && !value.is_array() && mask_named_secrets(name, value)
    }
}

fn mask_tool_field(name: &str, value: &mut Value) -> bool {
    // A namespace holds further tools.
    if name == "tools" {
        return mask_each(value, |fields| mask_each_field(fields, mask_tool_field));
    }
    !SCHEMA_FIELDS.contains(&name) && mask_named_secrets(name, value)
}

/// Masks the fields of an object, or of each object in a list.
fn mask_each(value: &mut Value, mask: fn(&mut Map<String, Value>) -> bool) -> bool {
    match value {
        Value::Object(fields) => mask(fields),
        // Every item is masked, not only the first with a secret.
        Value::Array(items) => items.iter_mut().map(|item| usize::from(mask_each(item, mask))).sum::<usize>() > 0,
        _ => false,
    }
}

fn mask_each_field(fields: &mut Map<String, Value>, mask: fn(&str, &mut Value) -> bool) -> bool {
    fields.iter_mut().map(|(name, value)| usize::from(mask(name, value))).sum::<usize>() > 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mask(body: &Value) -> Option<Value> {
        mask_body_secrets(body.to_string().as_bytes()).map(|masked| serde_json::from_slice(&masked).unwrap())
    }

    #[test]
    fn masks_credentials_of_tools_and_data_sources() {
        let tool = |token: &str, header: &str, url: &str| {
            json!({"type": "mcp", "server_label": "crm", "authorization": token, "allowed_tools": ["find_key"],
                "headers": {"X-Team": header}, "server_url": url})
        };
        let sent = tool("C-1", "C-2", "https://u:C-password@h/mcp?page=2&sig=C-signature");
        let masked = tool("***", "***", "https://u:***@h/mcp?page=2&sig=***");
        let server = |token: &str| json!({"url": "https://h/mcp", "name": "crm", "authorization_token": token});
        let transport =
            |header: &str| json!({"mcpServers": [{"transport": {"url": "https://h", "headers": {"a": header}}}]});
        let source = |kind: &str, key: &str| {
            let authentication = json!({"type": kind, "key": key});
            json!({"type": "azure_search", "parameters": {"index": "i", "authentication": authentication}})
        };
        let namespace = |tool: &Value| json!({"type": "namespace", "name": "crm", "tools": [tool]});
        let top = |key: &str, header: &str, value: &str| {
            let secret = json!({"value": value, "expires_at": 1});
            json!({"api_key": key, "extra_headers": {"X-A": header}, "client_secret": secret})
        };
        for (body, expected) in [
            (json!({"model": "m", "tools": [sent]}), json!({"model": "m", "tools": [masked]})),
            (json!({"session": {"tools": [sent]}}), json!({"session": {"tools": [masked]}})),
            (
                json!({"requests": [{"params": {"tools": [sent]}}]}),
                json!({"requests": [{"params": {"tools": [masked]}}]}),
            ),
            (json!({"mcp_servers": [server("C-4")]}), json!({"mcp_servers": [server("***")]})),
            (
                json!({"mcp_servers": [{"url": "https://h/mcp?token=C-token-of-a-server"}]}),
                json!({"mcp_servers": [{"url": "https://h/mcp?token=***"}]}),
            ),
            (json!({"tools": [transport("C-5")]}), json!({"tools": [transport("***")]})),
            (json!({"data_sources": [source("api_key", "C-6")]}), json!({"data_sources": [source("***", "***")]})),
            (json!({"data_sources": [source("key", "C-6")]}), json!({"data_sources": [source("***", "***")]})),
            (top("C-7", "C-8", "C-9"), top("***", "***", "***")),
            (json!({"password": "C"}), json!({"password": "***"})),
            (json!({"token": "C"}), json!({"token": "***"})),
            (json!({"apikey": "C"}), json!({"apikey": "***"})),
            (json!({"APIKEY": "C", "Auth": "C"}), json!({"APIKEY": "***", "Auth": "***"})),
            (json!({"credentials": {"user": "C"}}), json!({"credentials": {"user": "***"}})),
            (json!({"extraHeaders": {"X": "C"}}), json!({"extraHeaders": {"X": "***"}})),
            (json!({"tools": [{"type": "x", "token": "C"}]}), json!({"tools": [{"type": "x", "token": "***"}]})),
            (json!({"tools": [namespace(&sent)]}), json!({"tools": [namespace(&masked)]})),
            (
                json!({"tools": [{"config": "{\"url\":\"https://u:longpassword@h/\",\"password\":\"hunter22\"}"}]}),
                json!({"tools": [{"config": "{\"url\":\"https://u:***@h/\",\"password\":\"***\"}"}]}),
            ),
        ] {
            assert_eq!(mask(&body).as_ref(), Some(&expected), "{body}");
            assert_eq!(mask(&expected), None, "{expected}");
        }
    }

    #[test]
    fn leaves_texts_and_schemas_as_they_are() {
        let schema = json!({"type": "object", "properties": {"api_key": {"type": "string", "default": "none"},
            "headers": {"type": "object"}, "authorization": {"type": "string"}}});
        let text = "my authorization is sk-12345678901234567890";
        for body in [
            json!({"messages": [{"role": "user", "content": text, "secret": "x"}]}),
            json!({"tools": [{"type": "function", "function": {"name": "call", "parameters": schema}}]}),
            json!({"tools": [{"name": "secret", "description": "headers\"", "parameters": schema}]}),
            json!({"tools": [{"name": "api_key", "input_schema": schema}], "max_tokens": 5}),
            json!({"tools": [{"type": "namespace", "name": "n", "tools": [
                {"type": "function", "name": "f", "parameters": schema}]}]}),
            json!({"stop_token_ids": [1_234_567_890], "prompt_cache_key": "k", "secret": []}),
            json!({"tools": [{"functionDeclarations": [{"name": "api_key", "parameters": schema}]}]}),
            json!({"input": [{"type": "function_call", "arguments": "{\"api_key\":\"x\"}"}]}),
            json!({"tools": [{"type": "mcp", "server_url": "https://host/mcp?page=2"}]}),
        ] {
            assert_eq!(mask(&body), None, "{body}");
        }
        for text in ["authorization", "{\"tools\":[{\"authorization\":\"x\"}", "[{\"api_key\":1}]", ""] {
            assert_eq!(mask_body_secrets(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn masks_events_of_streams() {
        let event = |token: &str| {
            let tools = json!([{"type": "mcp", "server_label": "crm", "authorization": token}]);
            let response = json!({"type": "response.created", "response": {"tools": tools}});
            format!("event: response.created\r\ndata: {response}\r\n\r\n")
        };
        let delta = "event: response.output_text.delta\ndata: {\"delta\":\"my authorization\"}\n\n";
        let stream = |token: &str| format!("{}{delta}{}{delta}data: [DONE]\n\n", event(token), event(token));
        let masked = mask_body_secrets(stream("C-1").as_bytes()).unwrap();
        assert_eq!(String::from_utf8(masked).unwrap(), stream("***"));
        for text in [stream("***"), delta.to_owned(), "data: {\"authorization\":\"C".to_owned()] {
            assert_eq!(mask_body_secrets(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn searches_little_more_than_the_recorded_part() {
        let text = "x".repeat(MARGIN_BYTES);
        let body = format!(r#"{{"model":"m","text":"{text}","api_key":"C"}}"#);
        assert_eq!(mask_recorded_part(body.as_bytes(), 10), None);
        for recorded_bytes in [body.len() - 1, usize::MAX] {
            assert!(mask_recorded_part(body.as_bytes(), recorded_bytes).unwrap().ends_with(br#""api_key":"***"}"#));
        }
    }

    #[test]
    fn finds_names_beside_long_texts() {
        let text = "my authorization is a long text, ".repeat(10);
        let name = format!("{text}key");
        for body in [
            json!({"text": text, "api_key": "C"}),
            json!({"api_key": "C", "text": text}),
            json!({ name.as_str(): "C" }),
            json!({"tools": [{"config": json!({"text": text, "password": "hunter22"}).to_string()}]}),
        ] {
            assert!(mask(&body).is_some(), "{body}");
        }
        assert!(!may_hold_secrets(json!({"messages": [{"content": text}]}).to_string().as_bytes()));
        assert!(!may_hold_secrets(text.as_bytes()));
        // The space before the colon is JSON, too.
        assert!(may_hold_secrets(format!(r#"{{"{text}" : 1}}"#).as_bytes()));
    }

    #[test]
    fn keeps_the_bytes_of_other_fields() {
        let body = br#"{ "seed":1.50, "api_key" : "C", "tools":[], "a":"\u0041"}"#;
        assert_eq!(mask_body_secrets(body).unwrap(), br#"{ "seed":1.50, "api_key" : "***", "tools":[], "a":"\u0041"}"#);
    }

    #[test]
    fn recognises_paths_that_issue_credentials() {
        for path in
            ["/v1/realtime/client_secrets", "/v1/realtime/sessions/", "/v1alpha/auth_tokens", "/v1/proxy/oauth/token"]
        {
            assert!(issues_credential(path), "{path}");
        }
        for path in ["/v1/chat/completions", "/v1/messages/count_tokens", "/v1/sessions", "/v1/tokenize"] {
            assert!(!issues_credential(path), "{path}");
        }
    }
}
