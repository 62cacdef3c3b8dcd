//! Messages of a chat template. A list with a mistake is reported instead of being sent as a text. Each text in a valid
//! list becomes a template of its own.

use serde_json::{Map, Value};

use super::template::{Template, push_json_escaped};
use crate::{
    error::Problem,
    parse::{json_fault::describe_json_fault, similar_name::find_similar},
};

/// Keys of messages and content parts that are never templates. Otherwise a variable could change who a message is
/// from.
const LITERAL_KEYS: [&str; 2] = ["role", "type"];
const ROLES: [&str; 7] = ["system", "developer", "user", "assistant", "tool", "function", "model"];
/// Maximum depth of arrays and objects in the messages.
const MAX_MESSAGE_DEPTH: usize = 16;
/// Maximum number of messages whose problems are reported.
const MAX_REPORTED_MESSAGES: usize = 20;
/// Quotation marks around keys, including the curly ones that text editors insert.
const QUOTES: [char; 6] = ['"', '\'', '“', '”', '‘', '’'];

/// A part of the JSON of the messages.
#[derive(Debug)]
pub(super) enum MessagePart {
    Json(String),
    /// Template of a text. It is written as a JSON string.
    Text(Template),
    /// Template of a text that is JSON itself, such as the arguments of a tool call. It is written as a JSON string.
    JsonText(Template),
}

/// Name of the message field whose strings contain JSON (arguments of a tool call).
const JSON_TEXT_KEY: &str = "arguments";

/// Returns the messages in a template; `None` if it is the text of a text completion.
///
/// # Errors
/// All problems of a template that is or looks like a list of messages, but cannot be one.
pub(super) fn read_messages(source: &str) -> Result<Option<Vec<Value>>, Vec<Problem>> {
    let fault = |message: String| Err(vec![Problem::new("$.string", message)]);
    match serde_json::from_str(source) {
        Ok(Value::Array(messages)) if messages.is_empty() => fault("is an empty list; a chat needs a message".into()),
        Ok(Value::Array(messages)) => {
            let checked = messages.iter().enumerate().map(|(index, message)| check_message(index, message));
            let problems: Vec<_> =
                checked.filter(|listed| !listed.is_empty()).take(MAX_REPORTED_MESSAGES).flatten().collect();
            if problems.is_empty() { Ok(Some(messages)) } else { Err(problems) }
        }
        Ok(Value::Object(fields)) if ["role", "messages"].iter().any(|key| fields.contains_key(*key)) => fault(
            "is one JSON object; a chat needs a list of messages. With `is_raw_template` the object may have all fields \
             of the request"
                .into(),
        ),
        Err(error) if looks_like_messages(source) => fault(format!(
            "looks like a list of messages, but is no valid JSON: {}; use straight quotation marks, and no comma after \
             the last item",
            describe_json_fault(&error)
        )),
        Ok(_) | Err(_) => Ok(None),
    }
}

/// Compiles checked messages. Returns all problems of their templates at once.
pub(super) fn compile_messages(messages: &[Value]) -> Result<Vec<MessagePart>, Vec<Problem>> {
    let mut compiler = MessageCompiler::default();
    compiler.add_items(messages, "$.string", 0);
    compiler.finish()
}

/// Returns true for text that begins like a message or a list of them, such as `[{"role"`. A text may begin with
/// brackets, as in `[INST]` or `[{{name}}]`.
fn looks_like_messages(source: &str) -> bool {
    let rest = source.trim_start();
    let in_list = rest.strip_prefix('[').map_or(rest, str::trim_start);
    let in_object = in_list.strip_prefix('{').map_or(in_list, str::trim_start);
    let key = in_object.trim_start_matches(QUOTES);
    let (has_brackets, has_quote) = (key.len() < rest.len(), key.len() < in_object.len());
    let is_list_of_objects = in_list.len() < rest.len() && in_object.len() < in_list.len();
    let word: &str = key.split(|character: char| !character.is_alphanumeric()).next().unwrap_or_default();
    let is_key = find_similar(word, &["role", "content", "messages"]).is_some();
    let is_named = is_key && (has_quote || key[word.len()..].trim_start().starts_with(':'));
    has_brackets && (is_named || is_list_of_objects && has_quote)
}

/// Returns the problems of one message.
fn check_message(index: usize, message: &Value) -> Vec<Problem> {
    let path = format!("$.string[{index}]");
    let Value::Object(fields) = message else {
        return vec![Problem::new(path, "must be an object with `role` and `content`")];
    };
    let mut problems = Vec::new();
    match fields.get("role") {
        None => problems.push(missing_key(&path, "role", fields)),
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => (),
        Some(Value::String(role)) if role.contains("{{") => {
            let message = "must not have variables: a variable could change who a message is from";
            problems.push(Problem::new(format!("{path}.role"), message));
        }
        Some(Value::String(role)) => {
            let excerpt: String = role.chars().take(40).collect();
            let hint = match find_similar(role, &ROLES) {
                Some(similar) => format!("did you mean `{similar}`?"),
                None => format!("allowed are {}", ROLES.join(", ")),
            };
            problems.push(Problem::new(format!("{path}.role"), format!("`{excerpt}` is not known; {hint}")));
        }
        Some(_) => problems.push(Problem::new(format!("{path}.role"), "must be a string")),
    }
    match fields.get("content") {
        None if find_misspelt("content", fields).is_some() => problems.push(missing_key(&path, "content", fields)),
        None | Some(Value::Null | Value::String(_) | Value::Array(_)) => (),
        Some(_) => problems.push(Problem::new(format!("{path}.content"), "must be a string or a list of parts")),
    }
    problems
}

/// Returns the problem of a message that lacks this key. If the message has a misspelt form of it, the problem suggests
/// the key.
fn missing_key(path: &str, key: &str, fields: &Map<String, Value>) -> Problem {
    match find_misspelt(key, fields) {
        Some(name) => Problem::new(format!("{path}.{name}"), format!("is not known; did you mean `{key}`?")),
        None => Problem::new(format!("{path}.{key}"), "is missing"),
    }
}

fn find_misspelt<'f>(key: &str, fields: &'f Map<String, Value>) -> Option<&'f String> {
    fields.keys().take(MAX_REPORTED_MESSAGES).find(|name| find_similar(name, &[key]).is_some())
}

/// Splits messages into JSON and templates.
#[derive(Default)]
struct MessageCompiler {
    parts: Vec<MessagePart>,
    json: String,
    problems: Vec<Problem>,
}

impl MessageCompiler {
    fn finish(mut self) -> Result<Vec<MessagePart>, Vec<Problem>> {
        self.parts.push(MessagePart::Json(self.json));
        if self.problems.is_empty() { Ok(self.parts) } else { Err(self.problems) }
    }

    fn add(&mut self, value: &Value, path: &str, depth: usize) {
        if depth > MAX_MESSAGE_DEPTH {
            self.problems.push(Problem::new(path, format!("is nested deeper than {MAX_MESSAGE_DEPTH}")));
            return;
        }
        match value {
            Value::String(text) => self.add_text(text, path, MessagePart::Text),
            Value::Array(items) => self.add_items(items, path, depth),
            Value::Object(fields) => {
                self.json.push('{');
                for (index, (name, value)) in fields.iter().enumerate() {
                    self.json.push_str(if index == 0 { "" } else { "," });
                    push_json_string(&mut self.json, name);
                    self.json.push(':');
                    match value {
                        Value::String(text) if LITERAL_KEYS.contains(&name.as_str()) => {
                            push_json_string(&mut self.json, text);
                        }
                        Value::String(text) if name == JSON_TEXT_KEY => {
                            let make = if is_json_text(text) { MessagePart::JsonText } else { MessagePart::Text };
                            self.add_text(text, &format!("{path}.{name}"), make);
                        }
                        value => self.add(value, &format!("{path}.{name}"), depth + 1),
                    }
                }
                self.json.push('}');
            }
            scalar => self.json.push_str(&scalar.to_string()),
        }
    }

    fn add_items(&mut self, items: &[Value], path: &str, depth: usize) {
        self.json.push('[');
        for (index, item) in items.iter().enumerate() {
            self.json.push_str(if index == 0 { "" } else { "," });
            self.add(item, &format!("{path}[{index}]"), depth + 1);
        }
        self.json.push(']');
    }

    fn add_text(&mut self, text: &str, path: &str, make: fn(Template) -> MessagePart) {
        match Template::parse(text) {
            Ok(template) => {
                if let Some(plain) = template.as_plain_text() {
                    push_json_string(&mut self.json, plain);
                } else {
                    self.parts.push(MessagePart::Json(std::mem::take(&mut self.json)));
                    self.parts.push(make(template));
                }
            }
            Err(error) => self.problems.push(Problem::new(path, error.to_string())),
        }
    }
}

/// Returns true if the template itself contains the structure of JSON. In contrast, the variable contains it in
/// `{{arguments}}`.
fn is_json_text(text: &str) -> bool {
    let text = text.trim_start();
    text.starts_with(['[', '"']) || text.starts_with('{') && !text.starts_with("{{")
}

pub(super) fn push_json_string(json: &mut String, text: &str) {
    json.push('"');
    push_json_escaped(json, text);
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(source: &str) -> Vec<String> {
        let problems = read_messages(source).unwrap_err();
        problems.iter().map(|problem| format!("{} {}", problem.path, problem.message)).collect()
    }

    #[test]
    fn text_is_no_list_of_messages() {
        for source in [
            "Greet {{name}}",
            "[INST] Greet {{name}} [/INST]",
            "[{{name}}] says",
            "{{#items}}[x]{{/items}}",
            "",
            "{\"text\": \"{{a}}\"}",
            "12",
            "\"quoted\"",
            "[x](http://a)",
            "{name}: {age}",
            "[role] is unknown",
            "[{x}]",
            "role: user",
        ] {
            assert_eq!(read_messages(source).unwrap(), None, "{source}");
        }
        let messages =
            r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": null, "tool_calls": []}]"#;
        assert_eq!(read_messages(messages).unwrap().unwrap().len(), 2);
    }

    #[test]
    fn a_list_with_a_mistake_is_no_text() {
        for source in [
            r#"[{"role": "user", "content": "a"}"#,
            r#"[{"role": "user", "content": "a"},]"#,
            r#"[{"role": "user" "content": "a"}]"#,
            "[{'role': 'user', 'content': 'a'}]",
            "[{role: \"user\", content: \"a\"}]",
            "[{“role”: “user”}]",
            r#"{"role": "user", "content": "a"}]"#,
            r#" [ {"rol": "user", "content": "{{a}}" ]"#,
            r#"["role": "user"]"#,
            r#"{"messages": [{"role": "user", "content": "a"]}"#,
        ] {
            let messages = problems(source);
            assert!(messages[0].starts_with("$.string looks like a list of messages"), "{source}: {messages:?}");
        }
        assert!(problems(r#"{"role": "user", "content": "a"}"#)[0].contains("a chat needs a list of messages"));
        assert!(problems("[]")[0].contains("is an empty list"));
    }

    #[test]
    fn problems_of_all_messages_are_reported() {
        let messages = problems(
            r#"[{"roll": "user", "content": "a"}, {"role": "usr", "content": 1}, {"role": "{{a}}", "contents": "a"}, 3,
                {"role": 1}, {"role": "narrator", "content": [{"type": "text", "text": "a"}]}, {"content": "a"}]"#,
        );
        assert_eq!(
            messages,
            [
                "$.string[0].roll is not known; did you mean `role`?",
                "$.string[1].role `usr` is not known; did you mean `user`?",
                "$.string[1].content must be a string or a list of parts",
                "$.string[2].role must not have variables: a variable could change who a message is from",
                "$.string[2].contents is not known; did you mean `content`?",
                "$.string[3] must be an object with `role` and `content`",
                "$.string[4].role must be a string",
                "$.string[5].role `narrator` is not known; allowed are system, developer, user, assistant, tool, \
                 function, model",
                "$.string[6].role is missing",
            ]
        );
    }
}
