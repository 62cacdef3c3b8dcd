//! Strings in fields that contain no texts in any format. A provider may still read them, and a client may show them.
//! So they are texts of the kind `Other`, except for identifiers, addresses, media and lists of tokens.

use serde_json::{Map, Value};

use super::{BodyStep, TOKEN_FIELDS, TextCollector, TextKind, content::is_text_type};

/// Fields with identifiers or words of a fixed list. A value with spaces still counts as a text.
const IDENTIFIER_FIELDS: [&str; 40] = [
    "anthropic_version",
    "authorization",
    "authorization_token",
    "blockReason",
    "cache_control",
    "category",
    "createTime",
    "detail",
    "effort",
    "encoding_format",
    "finishReason",
    "finish_reason",
    "format",
    "id",
    "language",
    "media_type",
    "mimeType",
    "mime_type",
    "modalities",
    "model",
    "modelVersion",
    "native_finish_reason",
    "object",
    "outcome",
    "probability",
    "prompt_cache_key",
    "provider",
    "reasoning_effort",
    "role",
    "safety_identifier",
    "service_tier",
    "severity",
    "status",
    "stopReason",
    "stop_reason",
    "system_fingerprint",
    "tool_choice",
    "truncation",
    "type",
    "user",
];
/// Endings of field names that are not listed above but contain identifiers.
const IDENTIFIER_ENDINGS: [&str; 5] = ["_id", "Id", "_ids", "_at", "_type"];
/// Maximum length of an identifier. A longer value counts as a text.
const MAX_IDENTIFIER_BYTES: usize = 256;
/// Fields with the address of a file, or with the file itself in base64.
const MEDIA_FIELDS: [&str; 14] = [
    "audio",
    "b64_json",
    "bytes",
    "data",
    "fileUri",
    "file_data",
    "file_uri",
    "file_url",
    "image_url",
    "partial_image_b64",
    "result",
    "server_url",
    "uri",
    "url",
];
/// Fields with the media type of data in the same object.
const MEDIA_TYPE_FIELDS: [&str; 3] = ["media_type", "mimeType", "mime_type"];
/// Minimum length of base64 data. A shorter text may be valid base64 by chance.
pub(super) const MIN_BASE64_BYTES: usize = 256;
/// Fields with data that only their provider can read, or that repeat texts in another form.
const OPAQUE_FIELDS: [&str; 6] =
    ["encrypted_content", "encrypted_index", "obfuscation", "signature", "thoughtSignature", "thought_signature"];
/// Google's HTML that shows the queries of a search. It is skipped, because the queries are read from another field.
const HTML_FIELD: &str = "renderedContent";
/// Fields with a JSON schema. A schema is one text, because models also read the names of its properties.
const SCHEMA_FIELDS: [&str; 9] = [
    "inputSchema",
    "input_schema",
    "parameters",
    "parametersJsonSchema",
    "responseJsonSchema",
    "responseSchema",
    "response_json_schema",
    "response_schema",
    "schema",
];

/// Maximum number of members of a list or object whose strings are separate texts. A larger one is a single text, which
/// takes less memory.
const MAX_ITEMS: usize = 256;
/// Number of texts in a body after which each further list or object is a single text.
const MAX_PARTS: usize = 4096;

impl TextCollector {
    /// Adds all strings of a value that have not been read.
    pub(super) fn collect_unknown(&mut self, value: &Value, kind: TextKind) {
        if matches!(value, Value::Null | Value::Bool(_) | Value::Number(_)) || self.has_read(value) {
            return;
        }
        let is_large = |items: usize| items > MAX_ITEMS || self.parts.len() > MAX_PARTS;
        match value {
            Value::Array(items) if is_large(items.len()) && !items.iter().all(Value::is_number) => {
                self.push_json(kind, value);
            }
            Value::Object(fields) if is_large(fields.len()) => self.push_json(kind, value),
            Value::String(text) if !text.is_empty() => self.push_string(kind, value),
            Value::Array(_) => self.at_items(value, |inner, _, item| inner.collect_unknown(item, kind)),
            Value::Object(fields) => {
                for (name, value) in fields {
                    self.collect_unknown_field(fields, name, value, kind);
                }
            }
            _ => (),
        }
        self.set_read(value);
    }

    /// Adds the strings of one field of an object.
    pub(super) fn collect_unknown_field(
        &mut self,
        object: &Map<String, Value>,
        name: &str,
        value: &Value,
        kind: TextKind,
    ) {
        let is_shown = is_citation(object, name);
        if self.has_read(value) || !is_shown && is_no_text(name, value) || is_explained(object, name, value) {
            return;
        }
        self.path.push(BodyStep::Key(name.to_owned().into()));
        match value {
            Value::String(text) if text.starts_with("data:") && text.contains(";base64,") => {
                self.push_data_url(kind, value);
            }
            Value::Object(_) if SCHEMA_FIELDS.contains(&name) => self.push_json(kind, value),
            value => self.collect_unknown(value, kind),
        }
        self.path.pop();
    }
}

/// Returns true if a field has no text, judged by its name and the form of its value.
fn is_no_text(name: &str, value: &Value) -> bool {
    if name == HTML_FIELD || TOKEN_FIELDS.contains(&name) {
        return true;
    }
    if IDENTIFIER_FIELDS.contains(&name) || IDENTIFIER_ENDINGS.iter().any(|ending| name.ends_with(ending)) {
        return match value {
            Value::Array(items) => items.iter().all(is_identifier),
            value => is_identifier(value),
        };
    }
    let Value::String(text) = value else { return false };
    if MEDIA_FIELDS.contains(&name) {
        return is_address(text) || text.len() >= MIN_BASE64_BYTES && is_base64(text);
    }
    OPAQUE_FIELDS.contains(&name) && is_base64(text)
}

/// Returns true if a field is the address of a source, which clients show beside its title.
fn is_citation(object: &Map<String, Value>, name: &str) -> bool {
    matches!(name, "url" | "uri") && object.contains_key("title")
}

/// Returns true if another field of the same object shows that this one has no text. That field is the media type of
/// data, or the server to which header fields are sent as credentials.
fn is_explained(object: &Map<String, Value>, name: &str, value: &Value) -> bool {
    match name {
        "headers" => object.contains_key("server_url"),
        "data" | "bytes" => {
            let mut types = MEDIA_TYPE_FIELDS.iter().filter_map(|field| object.get(*field).and_then(Value::as_str));
            types.next().is_some_and(|name| !is_text_type(Some(name))) && value.as_str().is_some_and(is_base64)
        }
        _ => false,
    }
}

fn is_identifier(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.len() <= MAX_IDENTIFIER_BYTES && !text.contains(char::is_whitespace))
}

/// Returns true for the address of a file, but not for one that contains the file.
fn is_address(text: &str) -> bool {
    let has_scheme = text.find("://").is_some_and(|at| at <= 16);
    has_scheme && !text.starts_with("data:") && !text.contains(char::is_whitespace)
}

fn is_base64(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'='))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{TextPart, request_texts},
        *,
    };

    fn read_unknown_fields(field: Value) -> Vec<TextPart> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        body["invented"] = field;
        request_texts(&body).into_iter().filter(|part| part.kind == TextKind::Other).collect()
    }

    #[test]
    fn identifiers_addresses_and_media_are_no_texts() {
        let base64 = "iVBORw0KGgo=".repeat(30);
        for no_text in [
            json!({"id": "call_4111111111111111", "type": "image", "model_id": "m-1", "status": "done"}),
            json!({"url": "https://x.example/a?b=c", "file_uri": "gs://bucket/a.pdf"}),
            json!({"image_url": format!("data:image/png;base64,{base64}"), "b64_json": base64}),
            json!({"mime_type": "image/png", "data": "iVBORw=="}),
            json!({"signature": "EqQBCgIYAg==", "encrypted_content": "gAAAAA==", "modalities": ["text", "audio"]}),
            json!({"logprobs": {"content": [{"token": "a"}]}, "count": 1, "is_set": true, "nothing": null, "empty": ""}),
            json!({"server_url": "https://x", "headers": {"x-key": "a b"}, "authorization": "abc"}),
        ] {
            assert!(read_unknown_fields(no_text.clone()).is_empty(), "{no_text}");
        }
        for text in [
            json!({"id": "two words"}),
            json!({"url": "two words"}),
            json!({"url": "https://x.example/a", "title": ""}),
            json!({"data": "short"}),
            json!({"headers": {"x-key": "a"}}),
            json!({"image_url": "data:text/plain;base64,c2VjcmV0"}),
        ] {
            assert_eq!(read_unknown_fields(text.clone()).len(), 1, "{text}");
        }
    }

    #[test]
    fn many_values_are_few_texts() {
        let words: Vec<_> = (0..1000).map(|number| format!("w{number}")).collect();
        let parts = read_unknown_fields(json!({"words": words, "lists": vec![vec!["a"; 200]; 200]}));
        assert!(parts.len() <= MAX_PARTS + 2 * MAX_ITEMS, "{}", parts.len());
        assert!(parts[0].text.contains("w999"));
        let mut body = json!({"invented": words});
        let parts = request_texts(&body);
        assert!(parts[0].replace(&mut body, r#"["***"]"#));
        assert_eq!(body, json!({"invented": ["***"]}));
    }
}
