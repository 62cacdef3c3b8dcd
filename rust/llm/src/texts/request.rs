//! Texts of requests.

use serde_json::Value;

use super::{BodyStep, TextCollector, TextKind, TextPart, TextRole, content::role_of};

/// Returns the texts of a request body in their order. The last group is the last message. If a body has fields of
/// several formats, it has the last message of each, because only its provider decides which of them counts.
pub fn request_texts(body: &Value) -> Vec<TextPart> {
    let mut collector = TextCollector::new();
    collector.role = TextRole::System;
    for name in ["system", "instructions", "systemInstruction", "system_instruction"] {
        let before = collector.parts.len();
        collector.at_key(body, name, |inner, content| inner.collect_content(content, TextKind::Text));
        collector.group += usize::from(collector.parts.len() > before);
    }
    let mut last_groups = Vec::new();
    for (name, collect) in FIELDS {
        let before = collector.parts.len();
        collector.role = TextRole::User;
        collector.at_key(body, name, collect);
        if collector.parts.len() > before {
            last_groups.extend(collector.parts.last().map(|part| part.group));
            collector.group += 1;
        }
    }
    let last = last_groups.last().copied().unwrap_or_default();
    for part in &mut collector.parts {
        if last_groups.contains(&part.group) {
            part.group = last;
        }
    }
    collector.parts
}

/// Returns true if a body has token numbers instead of text, which cannot be checked.
pub fn has_token_numbers(body: &Value) -> bool {
    let has_numbers = |value: &Value| {
        let mut items = value.as_array().into_iter().flatten();
        items.any(|item| item.is_number() || item.as_array().is_some_and(|inner| inner.iter().any(Value::is_number)))
    };
    ["prompt", "input"].into_iter().any(|name| has_numbers(&body[name]))
}

/// Adds the texts of one field.
type CollectField = fn(&mut TextCollector, &Value);

/// Fields that contain the client's text, in all formats.
const FIELDS: [(&str, CollectField); 15] = [
    ("messages", TextCollector::collect_messages),
    ("chat_history", TextCollector::collect_messages),
    ("prompt", TextCollector::collect_prompt),
    ("suffix", TextCollector::collect_prompt),
    ("prediction", TextCollector::collect_contents),
    ("inputText", TextCollector::collect_prompt),
    ("message", TextCollector::collect_prompt),
    ("input", TextCollector::collect_input),
    ("items", TextCollector::collect_input),
    ("inputs", TextCollector::collect_prompt),
    ("text", TextCollector::collect_prompt),
    ("texts", TextCollector::collect_prompt),
    ("contents", TextCollector::collect_contents),
    ("content", TextCollector::collect_contents),
    ("requests", TextCollector::collect_embedding_requests),
];

impl TextCollector {
    fn collect_messages(&mut self, messages: &Value) {
        self.at_items(messages, |inner, _, message| {
            inner.role = role_of(message);
            inner.collect_message(message);
            inner.group += 1;
        });
    }

    /// Adds the prompts of a completion: a string, or an array of them, which are all new.
    fn collect_prompt(&mut self, prompt: &Value) {
        self.push_string(TextKind::Text, prompt);
        self.at_items(prompt, |inner, _, item| inner.push_string(TextKind::Text, item));
        // A prompt that the provider saved, with values for its variables.
        self.at_key(prompt, "variables", |inner, variables| {
            for (name, value) in variables.as_object().into_iter().flatten() {
                inner.path.push(BodyStep::Key(name.clone().into()));
                inner.collect_content(value, TextKind::Text);
                inner.path.pop();
            }
        });
    }

    /// Adds the contents of several embeddings, which are all new.
    fn collect_embedding_requests(&mut self, requests: &Value) {
        let group = self.group;
        self.at_items(requests, |inner, _, request| {
            inner.group = group;
            inner.at_key(request, "content", Self::collect_contents);
        });
        self.group = group;
    }

    /// Adds the input of an embedding or of the Responses API.
    fn collect_input(&mut self, input: &Value) {
        self.push_string(TextKind::Text, input);
        self.at_items(input, |inner, _, item| {
            if item.is_string() {
                // The texts of an embedding are all new.
                inner.role = TextRole::User;
                return inner.push_string(TextKind::Text, item);
            }
            inner.role = match item["type"].as_str() {
                Some(name) if name.ends_with("_output") => TextRole::Tool,
                Some(name) if name.ends_with("_call") || name == "reasoning" => TextRole::Assistant,
                _ => role_of(item),
            };
            inner.collect_item(item);
            inner.group += 1;
        });
    }

    /// Adds Gemini's contents: a string, an object or an array of them.
    fn collect_contents(&mut self, contents: &Value) {
        match contents {
            Value::Array(_) => self.at_items(contents, |inner, _, content| inner.collect_turn(content)),
            content => self.collect_turn(content),
        }
    }

    fn collect_turn(&mut self, content: &Value) {
        self.role = role_of(content);
        self.collect_content(content, TextKind::Text);
        self.group += 1;
    }
}
