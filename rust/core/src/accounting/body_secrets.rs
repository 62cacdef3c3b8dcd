//! Secrets in recorded bodies: credentials that a client sends for tools and data sources, and those that a provider
//! issues. Records mask them. Texts of conversations and schemas of tools stay as they are.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use penstock_llm::{
    api_format::ScanError,
    json::edit::{FieldChange, map_fields},
};
use serde_json::{Map, Value};

use crate::{
    accounting::{
        cut_json::{CutObject, TextPart, split_objects},
        malformed_secrets::mask_malformed,
    },
    process::secret::{MASK, is_secret_field, mask_named_secrets},
};

/// Texts of which one, in any letter case, is in each body with secrets: parts of the names that `is_secret_field` knows.
/// They are searched for first, because most bodies have none. A part that is a common word includes the end of a name.
const MARKS: [&str; 27] = [
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
    // The beginnings of tools with URLs that may have a password.
    "mcp\"",
    "mcp\\\"",
    "transport\"",
    "passw",
    "passphrase",
    "secret",
    "service_account",
    "service-account",
    "signature",
];
/// The same for parameters of URLs.
const URL_MARKS: [&str; 5] = ["code=", "key=", "pwd=", "sig=", "token="];
static MARK_SEARCH: LazyLock<Option<AhoCorasick>> =
    LazyLock::new(|| AhoCorasick::builder().ascii_case_insensitive(true).build(MARKS.iter().chain(&URL_MARKS)).ok());
/// Text with a secret that is masked wherever URLs are masked.
const PROBE: &[u8] = b"https://u:password@h";
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

/// Returns the body with its secrets masked, and `None` if it has none. It is a JSON object, a stream of SSE events with
/// JSON objects, or several JSON objects. Its end may have been cut off.
pub fn mask_body_secrets(body: &[u8]) -> Option<Vec<u8>> {
    mask_recorded_part(body, body.len())
}

/// Does the same for a body of which at most this many bytes are recorded. A secret that only the rest may hold stays,
/// and the rest may be missing from the result.
pub fn mask_recorded_part(body: &[u8], recorded_bytes: usize) -> Option<Vec<u8>> {
    let searched = &body[..recorded_bytes.saturating_add(MARGIN_BYTES).min(body.len())];
    if !may_hold_secrets(searched) {
        return None;
    }
    match body.trim_ascii_start().first() {
        // The beginning of a line of SSE: `data`, `event`, `id`, `retry`, or a comment.
        Some(b'd' | b'e' | b'i' | b'r' | b':') => mask_events(searched),
        _ => mask_document(body).unwrap_or_else(|_| mask_objects(searched)),
    }
}

/// Masks the secrets in the JSON objects of SSE events. Returns `None` if they have none.
fn mask_events(stream: &[u8]) -> Option<Vec<u8>> {
    let lines = stream.split_inclusive(|byte| *byte == b'\n').map(|line| {
        let name_bytes = if line.starts_with(b"data:") { b"data:".len() } else { 0 };
        let (name, data) = line.split_at(name_bytes);
        let masked =
            may_hold_secrets(data).then(|| mask_document(data).unwrap_or_else(|_| mask_objects(data))).flatten();
        (line.len(), masked.map(|data| [name, &data].concat()))
    });
    replace_parts(stream, lines)
}

/// Masks the secrets in a text with several JSON objects, or one that was cut. Returns `None` if it has none.
fn mask_objects(text: &[u8]) -> Option<Vec<u8>> {
    let parts = split_objects(text).map(|part| {
        let text = part.text();
        (text.len(), may_hold_secrets(text).then(|| mask_part(&part)).flatten())
    });
    replace_parts(text, parts)
}

fn mask_part(part: &TextPart<'_>) -> Option<Vec<u8>> {
    let masked = match part {
        TextPart::Between(text) => return mask_malformed(text),
        TextPart::Object(text) => mask_document(text),
        TextPart::CutObject(object) => mask_cut_object(object),
    };
    masked.unwrap_or_else(|_| mask_malformed(part.text()))
}

/// Replaces parts of a text. Each part has a length, and what replaces it. Returns `None` if nothing is replaced.
fn replace_parts(text: &[u8], parts: impl Iterator<Item = (usize, Option<Vec<u8>>)>) -> Option<Vec<u8>> {
    let mut replaced = Vec::new();
    let (mut copied, mut end) = (0, 0);
    for (length, replacement) in parts {
        end += length;
        if let Some(replacement) = replacement {
            replaced.extend_from_slice(&text[copied..end - length]);
            replaced.extend_from_slice(&replacement);
            copied = end;
        }
    }
    if copied == 0 {
        return None;
    }
    replaced.extend_from_slice(&text[copied..]);
    Some(replaced)
}

/// Masks the secrets in an object whose end was cut off.
fn mask_cut_object(object: &CutObject<'_>) -> Result<Option<Vec<u8>>, ScanError> {
    let mut completed = object.complete();
    let cut_string = object.cut_string.filter(|_| object.ends_in_structured_string());
    let mut is_masked = false;
    if let Some(start) = cut_string {
        // The mask of a URL with a password shows whether secrets are masked at this place.
        let probe = object.complete_with(start, PROBE);
        if mask_document(&probe)?.is_some_and(|masked| !masked.ends_with(&probe[start..])) {
            completed = object.complete_with(start, MASK.as_bytes());
            is_masked = true;
        }
    }
    let masked = mask_document(&completed)?;
    is_masked |= masked.is_some();
    Ok(is_masked.then(|| object.cut_again(masked.unwrap_or(completed))))
}

/// Masks the secrets in a JSON object. Returns `None` if it has none, and an error if it is not a JSON object.
fn mask_document(body: &[u8]) -> Result<Option<Vec<u8>>, ScanError> {
    let mut is_masked = false;
    let masked = map_fields(body, |key, json| match mask_field_json(key, json) {
        Some(value) => {
            is_masked = true;
            FieldChange::Replaced { key: None, value: Some(value) }
        }
        None => FieldChange::Unchanged,
    })?;
    Ok(is_masked.then_some(masked))
}

/// Returns true if the response to a request with this path is a new credential, so that no bodies are recorded.
pub fn issues_credential(path: &str) -> bool {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    path.trim_end_matches('/').ends_with("/realtime/sessions")
        || segments.any(|segment| ISSUING_SEGMENTS.contains(&segment))
}

/// Returns true if the JSON may have a field or a URL with a secret. In a string that is longer than a name, only
/// parameters of URLs are searched for. So a long conversation costs no more than the search for its quotes.
fn may_hold_secrets(json: &[u8]) -> bool {
    let Some(search) = MARK_SEARCH.as_ref() else { return true };
    let mut start = 0;
    for quote in memchr::memchr_iter(b'"', json) {
        // Some marks include the quote after a name.
        let text = &json[start..=quote];
        // What comes before the first quote and after the last one is in no string, or the string was cut.
        let is_long_string = start > 0 && text.len() > MAX_NAME_BYTES;
        start = quote + 1;
        let is_marked =
            if is_long_string { is_name(&json[start..]) || has_secret_parameter(text) } else { search.is_match(text) };
        if is_marked {
            return true;
        }
    }
    search.is_match(&json[start..])
}

fn has_secret_parameter(text: &[u8]) -> bool {
    let ends_in_mark = |before: &[u8]| {
        URL_MARKS.iter().any(|mark| {
            before.len().checked_sub(mark.len()).is_some_and(|at| before[at..].eq_ignore_ascii_case(mark.as_bytes()))
        })
    };
    memchr::memchr_iter(b'=', text).any(|at| ends_in_mark(&text[..=at]))
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
        for text in ["authorization", "[{\"api_key\":1}]", "{\"a\":\"{\\\"api_key\\\":\\\"x", "the secret", ""] {
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
        for text in [stream("***"), delta.to_owned(), "data: {\"authorization".to_owned()] {
            assert_eq!(mask_body_secrets(text.as_bytes()), None, "{text}");
        }
    }

    const SECRET_TOOL: &str =
        r#""tools":[{"type":"mcp","authorization":"C-1","headers":{"X-Key":"C-2"},"server_url":"https://u:C-3@h"}]"#;

    #[test]
    fn masks_bodies_that_were_cut() {
        let tool = SECRET_TOOL;
        for (body, expected) in [
            (
                format!("event: x\r\ndata: {{\"response\":{{{tool}}}}}\r\n\r\ndata: [DONE]\r\n\r\n"),
                "data: [DONE]\r\n\r\n",
            ),
            (format!("data: {{\"text\":\"a\"}}\n\ndata: {{\"response\":{{{tool},\"id\":\"cut"), r#""id":"cut"#),
            (format!("data: {{{tool}}}\n\ndata: {{\"response\":{{{tool},\"id\":\"cut"), r#""id":"cut"#),
            (format!(r#"{{{tool},"input":"cut"#), r#""input":"cut"#),
            (format!(r#"{{{tool},"input"#), r#","input"#),
            (format!(r#"{{"input":"first",{}"#, &tool[..tool.len() - 30]), r#""headers":{"X-Key":"***"},"s"#),
            (r#"{"input":"first","mcp_servers":[{"authorization_token":"C-1\"#.into(), r#""authorization_token":"***"#),
            (r#"{"data_sources":[{"authentication":{"type":"key","key":"C-1"#.into(), r#""key":"***"#),
            (r#"{"client_secret":{"value":"C-1","expires_at":1},"text":"cut"#.into(), r#""expires_at":1},"text":"cut"#),
            (
                format!("{{\"id\":1,\"body\":{{{tool}}}}}\n{{\"id\":2,\"body\":{{{tool}}}}}"),
                r#""server_url":"***"}]}}"#,
            ),
            (format!(r#"[{{{tool}}},{{{tool},"input":"cut"#), r#""input":"cut"#),
            // The client's JSON is malformed.
            (format!(r"{{{tool},}}"), r#""headers":{},"server_url":"***"}],}"#),
        ] {
            let masked = String::from_utf8(mask_body_secrets(body.as_bytes()).expect(&body)).unwrap();
            assert!(!masked.contains("C-") && masked.ends_with(expected), "{masked}");
        }
    }

    #[test]
    fn masks_credentials_in_urls_of_tools() {
        for url in [
            "https://h/mcp?token=C-1",
            "https://u:C-1@h/mcp",
            "https:\\/\\/u:C-1@h/mcp",
            "https://h/?page=2&key=C-1-secret",
        ] {
            let tool = format!(r#"{{"input":"https://u:text@h","tools":[{{"type":"mcp","url":"{url}"#);
            let secret_at = tool.find("C-1").unwrap();
            for length in secret_at + 1..=tool.len() {
                let masked =
                    mask_body_secrets(&tool.as_bytes()[..length]).map(|masked| String::from_utf8(masked).unwrap());
                let masked = masked.unwrap_or_else(|| panic!("{}", &tool[..length]));
                assert!(!masked.contains("C-") && masked.contains("https://u:text@h"), "{masked}");
            }
            let masked = mask_body_secrets(format!("{tool}\"}}]}}").as_bytes()).unwrap();
            assert!(!String::from_utf8(masked).unwrap().contains("C-"));
        }
        let embedded = br#"{"tools":[{"config":"{\"password\":\"C-1"#;
        assert_eq!(mask_body_secrets(embedded).unwrap(), br#"{"tools":[{"config":"***"#);
    }

    #[test]
    fn cost_is_linear() {
        // With quadratic cost, each of these would take minutes.
        for part in [
            r#"{"api_key":"#,
            r#"[{"api_key":"C"},"#,
            r#""api_key":"#,
            "\"",
            "data: {\"api_key\":\"\n",
            "\\\"token\"",
            "{[",
        ] {
            for start in ["", "{\"tools\":\"token\"", "{\"a\":\"token\"", "data: token\""] {
                let body = format!("{start}{}", part.repeat(500_000 / part.len()));
                drop(mask_body_secrets(body.as_bytes()));
            }
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
        let url = format!("https://h/{}", "path/".repeat(30));
        assert!(may_hold_secrets(json!({"text": "t", "url": format!("{url}?Token=C")}).to_string().as_bytes()));
        assert!(!may_hold_secrets(json!({"text": "t", "url": format!("{url}?page=1")}).to_string().as_bytes()));
        assert!(may_hold_secrets(text.as_bytes()), "it may be a string that was cut");
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
