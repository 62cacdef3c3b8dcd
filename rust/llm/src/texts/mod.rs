//! Texts in the bodies and streams of all API formats, with role, kind and position, so that guardrails can check and
//! replace them. Texts are recognised by their fields, not by the request path, so a body in an unexpected format is
//! read too.

mod content;
pub mod event;
pub mod frames;
pub mod json_text;
pub mod repeated_keys;
mod request;
mod response;
pub mod stream;
mod unknown_fields;

use std::{borrow::Cow, collections::HashSet};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use self::json_text::{begins_like_json, decode_json_text, encode_changed_text};
pub use request::{has_token_numbers, request_texts};
pub use response::response_texts;

/// Kind of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextKind {
    Text,
    Reasoning,
    Refusal,
    /// Arguments of a tool call, as JSON.
    ToolArguments,
    ToolResult,
    /// String in a field that contains no text in any format, or whose value has another shape than the format defines.
    Other,
}

/// Author of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextRole {
    System,
    User,
    Assistant,
    Tool,
}

/// One text of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextPart {
    pub kind: TextKind,
    pub role: TextRole,
    /// Index of the message in a request, or of the choice in a response.
    pub group: usize,
    pub text: String,
    path: Vec<BodyStep>,
    /// Prefix of the string in the body if that string contains this text in base64. `None` if the string is the text
    /// itself.
    encoding: Option<Box<str>>,
    json_form: JsonForm,
}

/// JSON form of a text. Checks read the strings in JSON without escapes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JsonForm {
    /// The text is not JSON.
    #[default]
    None,
    /// The text is complete JSON, which is decoded.
    Complete,
    /// The text is a part of JSON, as it arrived.
    Delta,
}

/// Step from a JSON value to one of its members.
#[derive(Debug, Clone, PartialEq, Eq)]
enum BodyStep {
    Key(Cow<'static, str>),
    Index(usize),
}

impl TextPart {
    pub fn json_form(&self) -> JsonForm {
        self.json_form
    }

    /// Replaces this text in the body that it was read from. Returns false if the body has no such text.
    pub fn replace(&self, body: &mut Value, text: &str) -> bool {
        let mut value = body;
        for step in &self.path {
            let next = match step {
                BodyStep::Key(key) => value.get_mut(key.as_ref()),
                BodyStep::Index(index) => value.get_mut(*index),
            };
            let Some(next) = next else { return false };
            value = next;
        }
        let text: Cow<'_, str> = match self.json_form {
            JsonForm::Complete => encode_changed_text(&self.text, text).into(),
            JsonForm::None | JsonForm::Delta => text.into(),
        };
        // Arguments may be an object. A replacement that is no JSON would be invalid there.
        *value = match (&*value, &self.encoding) {
            (Value::String(_), Some(prefix)) => Value::String(format!("{prefix}{}", STANDARD.encode(&*text))),
            (Value::String(_), None) => Value::String(text.into_owned()),
            _ => serde_json::from_str(&text).unwrap_or_else(|_| serde_json::json!({ "text": text })),
        };
        true
    }
}

/// Fields that list the tokens of a text. They would still show a text that was replaced.
const TOKEN_FIELDS: [&str; 2] = ["logprobs", "logprobsResult"];

/// Removes the lists of tokens from a response or an event.
pub fn remove_token_lists(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !TOKEN_FIELDS.contains(&name.as_str()));
            fields.values_mut().for_each(remove_token_lists);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_token_lists),
        _ => (),
    }
}

/// Collects the texts of a body.
struct TextCollector {
    parts: Vec<TextPart>,
    path: Vec<BodyStep>,
    group: usize,
    role: TextRole,
    /// True for the events of a stream, whose JSON texts are not complete.
    has_deltas: bool,
    /// Addresses of the JSON values whose texts have all been collected.
    read: HashSet<*const Value>,
}

impl TextCollector {
    fn new(role: TextRole) -> Self {
        let (parts, path, read) = (Vec::new(), Vec::new(), HashSet::new());
        Self { parts, path, group: 0, role, has_deltas: false, read }
    }

    /// Marks a value as read, with everything in it.
    fn set_read(&mut self, value: &Value) {
        self.read.insert(std::ptr::from_ref(value));
    }

    fn has_read(&self, value: &Value) -> bool {
        self.read.contains(&std::ptr::from_ref(value))
    }

    /// Visits a member of an object, if it has one of this name.
    fn at_key(&mut self, object: &Value, key: &'static str, visit: impl FnOnce(&mut Self, &Value)) {
        if let Some(value) = object.get(key) {
            self.path.push(BodyStep::Key(Cow::Borrowed(key)));
            visit(self, value);
            self.path.pop();
        }
    }

    /// Visits each item of an array.
    fn at_items(&mut self, array: &Value, mut visit: impl FnMut(&mut Self, usize, &Value)) {
        for (index, item) in array.as_array().into_iter().flatten().enumerate() {
            self.path.push(BodyStep::Index(index));
            visit(self, index, item);
            self.path.pop();
        }
    }

    fn push(&mut self, kind: TextKind, text: String) {
        self.parts.push(TextPart {
            kind,
            role: self.role,
            group: self.group,
            text,
            path: self.path.clone(),
            encoding: None,
            json_form: JsonForm::None,
        });
    }

    /// Adds a text that is JSON: a string, or any other value as its source text.
    fn push_json(&mut self, kind: TextKind, value: &Value) {
        let (source, is_delta) = match value {
            Value::Null => return,
            Value::String(text) => (Cow::Borrowed(text.as_str()), self.has_deltas),
            other => (Cow::Owned(other.to_string()), false),
        };
        self.set_read(value);
        if is_delta {
            self.push(kind, source.into_owned());
            return self.set_json_form(JsonForm::Delta);
        }
        self.push(kind, decode_json_text(&source).into_owned());
        if begins_like_json(&source) {
            self.set_json_form(JsonForm::Complete);
        }
    }

    fn set_json_form(&mut self, form: JsonForm) {
        if let Some(part) = self.parts.last_mut() {
            part.json_form = form;
        }
    }

    /// Adds a string, or any other JSON value as its source text.
    fn push_value(&mut self, kind: TextKind, value: &Value) {
        match value {
            Value::String(_) => self.push_string(kind, value),
            other => self.push_json(kind, other),
        }
    }

    fn push_string(&mut self, kind: TextKind, value: &Value) {
        let Value::String(text) = value else { return };
        self.set_read(value);
        if !self.has_deltas && has_json_escapes(kind, text) {
            return self.push_json(kind, value);
        }
        self.push(kind, text.clone());
    }
}

/// Returns true if a text is JSON whose escapes hide what its reader sees. In a model's own texts, only `\u` escapes
/// count. The other escapes stay, because every JSON needs them and checks may parse the text.
fn has_json_escapes(kind: TextKind, text: &str) -> bool {
    let escape = match kind {
        TextKind::ToolArguments => return false,
        TextKind::ToolResult => "\\",
        _ => "\\u",
    };
    begins_like_json(text) && text.contains(escape) && json_text::is_json(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the parts whose kind is known (all but `Other`), as tuples.
    fn texts(parts: &[TextPart]) -> Vec<(usize, TextRole, TextKind, &str)> {
        let known = parts.iter().filter(|part| part.kind != TextKind::Other);
        known.map(|part| (part.group, part.role, part.kind, part.text.as_str())).collect()
    }

    #[test]
    fn reads_chat_requests() {
        let body = json!({"messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]},
            {"role": "assistant", "content": null, "refusal": "no",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "42"},
        ]});
        let parts = request_texts(&body);
        assert_eq!(
            texts(&parts),
            [
                (0, TextRole::System, TextKind::Text, "be kind"),
                (1, TextRole::User, TextKind::Text, "a"),
                (2, TextRole::Assistant, TextKind::Refusal, "no"),
                (2, TextRole::Assistant, TextKind::ToolArguments, "{\"x\":1}"),
                (3, TextRole::Tool, TextKind::ToolResult, "42"),
            ]
        );
    }

    #[test]
    fn reads_requests_of_other_formats() {
        let messages = json!({"system": [{"type": "text", "text": "s"}], "messages": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"q": "x"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r"}]}]},
        ]});
        assert_eq!(
            texts(&request_texts(&messages)),
            [
                (0, TextRole::System, TextKind::Text, "s"),
                (1, TextRole::Assistant, TextKind::ToolArguments, r#"{"q":"x"}"#),
                (2, TextRole::User, TextKind::ToolResult, "r"),
            ]
        );
        let responses = json!({"instructions": "s", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "r"},
        ]});
        assert_eq!(
            texts(&request_texts(&responses)),
            [
                (0, TextRole::System, TextKind::Text, "s"),
                (1, TextRole::User, TextKind::Text, "a"),
                (2, TextRole::Assistant, TextKind::ToolArguments, "{}"),
                (3, TextRole::Tool, TextKind::ToolResult, "r"),
            ]
        );
    }

    #[test]
    fn reads_requests_of_google_and_amazon() {
        let gemini = json!({"systemInstruction": {"parts": [{"text": "s"}]}, "contents": [
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"q": 1}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"r": 2}}}, {"text": "a"}]},
        ]});
        assert_eq!(
            texts(&request_texts(&gemini)),
            [
                (0, TextRole::System, TextKind::Text, "s"),
                (1, TextRole::Assistant, TextKind::ToolArguments, r#"{"q":1}"#),
                (2, TextRole::User, TextKind::ToolResult, r#"{"r":2}"#),
                (2, TextRole::User, TextKind::Text, "a"),
            ]
        );
        let converse = json!({"system": [{"text": "s"}], "messages": [
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "f", "input": {"q": 1}}}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": [{"json": {"r": 2}}, {"text": "x"}]}}, {"text": "a"}]},
        ]});
        assert_eq!(
            texts(&request_texts(&converse)),
            [
                (0, TextRole::System, TextKind::Text, "s"),
                (1, TextRole::Assistant, TextKind::ToolArguments, r#"{"q":1}"#),
                (2, TextRole::User, TextKind::ToolResult, r#"{"r":2}"#),
                (2, TextRole::User, TextKind::ToolResult, "x"),
                (2, TextRole::User, TextKind::Text, "a"),
            ]
        );
        for body in [
            json!({"prompt": "a"}),
            json!({"prompt": ["a"]}),
            json!({"input": "a"}),
            json!({"input": ["a"]}),
            json!({"contents": "a"}),
            json!({"content": {"parts": [{"text": "a"}]}}),
            json!({"inputText": "a"}),
            json!({"requests": [{"content": {"parts": [{"text": "a"}]}}]}),
        ] {
            assert_eq!(texts(&request_texts(&body)), [(0, TextRole::User, TextKind::Text, "a")], "{body}");
        }
    }

    #[test]
    fn the_last_message_of_every_format_is_the_last_group() {
        let last = |body: &Value| -> Vec<String> {
            let parts = request_texts(body);
            let last = parts.iter().map(|part| part.group).max().unwrap();
            parts.into_iter().filter(|part| part.group == last).map(|part| part.text).collect()
        };
        let messages = json!([{"role": "user", "content": "old"}, {"role": "user", "content": "new"}]);
        assert_eq!(last(&json!({"system": "s", "messages": messages})), ["new"]);
        // A field of another format does not hide the last message.
        assert_eq!(
            last(&json!({"messages": messages, "prompt": "fine", "input": [{"role": "user", "content": "x"}]})),
            ["new", "fine", "x"]
        );
        assert_eq!(last(&json!({"prompt": ["a", "b"]})), ["a", "b"]);
        assert_eq!(last(&json!({"input": ["a", "b"]})), ["a", "b"]);
        let content = |text: &str| json!({"content": {"parts": [{"text": text}]}});
        assert_eq!(last(&json!({"requests": [content("a"), content("b")]})), ["a", "b"]);
    }

    #[test]
    fn reads_every_choice_of_responses() {
        let chat = json!({"choices": [{"index": 0, "message": {"content": "a", "reasoning_content": "t"}}, {"index": 1, "message":
            {"content": null, "refusal": "b", "tool_calls": [{"function": {"arguments": "{}"}}]}}, {"index": 2, "text": "c"}]});
        assert_eq!(
            texts(&response_texts(&chat)),
            [
                (0, TextRole::Assistant, TextKind::Text, "a"),
                (0, TextRole::Assistant, TextKind::Reasoning, "t"),
                (1, TextRole::Assistant, TextKind::Refusal, "b"),
                (1, TextRole::Assistant, TextKind::ToolArguments, "{}"),
                (2, TextRole::Assistant, TextKind::Text, "c"),
            ]
        );
        let others = [
            json!({"type": "message", "content": [{"type": "text", "text": "a"}]}),
            json!({"output": [{"type": "message", "content": [{"type": "output_text", "text": "a"}]}]}),
            json!({"candidates": [{"content": {"parts": [{"text": "a"}], "role": "model"}}]}),
            json!({"output": {"message": {"role": "assistant", "content": [{"text": "a"}]}}}),
            json!({"results": [{"outputText": "a"}]}),
            json!({"generation": "a"}),
        ];
        for body in others {
            assert_eq!(texts(&response_texts(&body)), [(0, TextRole::Assistant, TextKind::Text, "a")], "{body}");
        }
    }

    #[test]
    fn reads_documents_and_files() {
        let encoded = STANDARD.encode("secret");
        let parts = [
            json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "secret"}}),
            json!({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "secret"}]}}),
            json!({"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": encoded}}),
            json!({"type": "search_result", "source": "u", "content": [{"type": "text", "text": "secret"}]}),
            json!({"document": {"name": "n", "format": "txt", "source": {"bytes": encoded}}}),
            json!({"inlineData": {"mimeType": "text/plain", "data": encoded}}),
            json!({"type": "input_file", "file_data": format!("data:text/plain;base64,{encoded}")}),
            json!({"type": "file", "file": {"file_data": format!("data:text/plain;base64,{encoded}")}}),
        ];
        for part in parts {
            let mut body = json!({"messages": [{"role": "user", "content": [part]}]});
            let parts = request_texts(&body);
            let texts: Vec<_> = parts.iter().filter(|part| part.kind != TextKind::Other).collect();
            assert_eq!(texts.iter().map(|part| part.text.as_str()).collect::<Vec<_>>(), ["secret"], "{body}");
            assert!(texts[0].replace(&mut body, "***"), "{body}");
            assert_eq!(request_texts(&body)[0].text, "***", "{body}");
        }
        // An image is no text.
        let image = json!({"messages": [{"content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}]}]});
        assert!(request_texts(&image).is_empty());
    }

    #[test]
    fn token_numbers_cannot_be_read() {
        assert!(has_token_numbers(&json!({"prompt": [1, 2]})) && has_token_numbers(&json!({"input": [[1], [2]]})));
        assert!(!has_token_numbers(&json!({"prompt": ["a"], "input": "b", "max_tokens": 1})));
    }

    #[test]
    fn reads_everything_else_that_a_prompt_may_have() {
        let all = |body: &Value| -> Vec<String> { request_texts(body).into_iter().map(|part| part.text).collect() };
        assert_eq!(all(&json!({"prompt": "a", "suffix": "b"})), ["a", "b"]);
        assert_eq!(
            all(&json!({"prompt": {"id": "p", "variables": {"x": "a", "y": {"type": "input_text", "text": "b"}}}})),
            ["a", "b"]
        );
        assert_eq!(all(&json!({"messages": [], "prediction": {"type": "content", "content": "a"}})), ["a"]);
    }

    #[test]
    fn replaces_texts_where_they_stand() {
        let mut body = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "input": {"q": "secret"}}]}]});
        let parts = request_texts(&body);
        assert!(parts[0].replace(&mut body, "b") && parts[1].replace(&mut body, r#"{"q":"***"}"#));
        assert_eq!(body["messages"][0]["content"][0]["text"], "b");
        assert_eq!(body["messages"][1]["content"][0]["input"], json!({"q": "***"}));
    }
}
