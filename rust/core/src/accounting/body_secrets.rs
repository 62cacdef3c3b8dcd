//! Secrets in recorded bodies: credentials that a client sends for tools and data sources, and those that a provider
//! issues. Records mask them. Texts of conversations and schemas of tools stay as they are.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use penstock_llm::json::edit::{FieldChange, map_fields};
use serde_json::{Map, Value};

use crate::process::secret::{MASK, is_secret_field, mask_named_secrets};

/// Texts of which one is in each body with secrets. They are searched for first, because most bodies have none.
const MARKS: [&str; 12] = [
    "authorization",
    "headers\"",
    "server_url",
    "serverUrl",
    "mcp_servers",
    "mcpServers",
    "data_sources",
    "dataSources",
    "api_key",
    "apiKey",
    "_token\"",
    "secret",
];
static MARK_SEARCH: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| AhoCorasick::new(MARKS).ok());
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

/// Returns the JSON body with its secrets masked, and `None` if it has none or is not a JSON object.
pub fn mask_body_secrets(body: &[u8]) -> Option<Vec<u8>> {
    if !may_hold_secrets(body) {
        return None;
    }
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

fn may_hold_secrets(json: &[u8]) -> bool {
    MARK_SEARCH.as_ref().is_none_or(|search| search.is_match(json))
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
