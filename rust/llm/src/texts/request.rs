//! Texts of requests.

use serde_json::Value;

use super::{BodyStep, TextCollector, TextKind, TextPart, TextRole, content::parse_role};

/// Returns the texts of a request body in their order. The last group is the last message. If a body has fields of
/// several formats, the last group contains the last message of each. Only the provider decides which of them counts.
/// Names of fields are recognised in any case, because some providers do so too.
pub fn request_texts(body: &Value) -> Vec<TextPart> {
    let mut collector = TextCollector::new(TextRole::System);
    collector.collect_request(body);
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

/// Function that adds the texts of one field.
type CollectField = fn(&mut TextCollector, &Value);

/// Fields with instructions for the model.
const SYSTEM_FIELDS: [&str; 5] = ["system", "instructions", "systemInstruction", "system_instruction", "preamble"];

/// Fields that contain the client's text, in all formats.
const FIELDS: [(&str, CollectField); 26] = [
    ("messages", TextCollector::collect_messages),
    ("additional_messages", TextCollector::collect_messages),
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
    ("query", TextCollector::collect_document_texts),
    ("documents", TextCollector::collect_document_texts),
    ("promptVariables", TextCollector::collect_document_texts),
    ("singleEmbeddingParams", TextCollector::collect_document_texts),
    ("segmentedEmbeddingParams", TextCollector::collect_document_texts),
    // Requests within other requests: in token counts and batch lines, and at the beginning of a thread.
    ("generateContentRequest", TextCollector::collect_request),
    ("converse", TextCollector::collect_request),
    ("invokeModel", TextCollector::collect_model_body),
    ("modelInput", TextCollector::collect_request),
    ("thread", TextCollector::collect_request),
];

impl TextCollector {
    /// Adds the texts of a request: strings in unknown fields, instructions, and the client's texts.
    pub(super) fn collect_request(&mut self, body: &Value) {
        let begin = self.parts.len();
        let Value::Object(fields) = body else { return self.collect_unknown(body, TextKind::Text) };
        self.role = TextRole::System;
        self.in_own_group(|inner| {
            for (name, value) in fields.iter().filter(|(name, value)| !is_known(name, value)) {
                inner.collect_unknown_field(fields, name, value, TextKind::Other);
            }
        });
        for system_field in SYSTEM_FIELDS {
            for (name, content) in fields_named(body, system_field) {
                self.in_own_group(|inner| {
                    inner.at_field(name, content, |inner, content| inner.collect_content(content, TextKind::Text));
                });
            }
        }
        let mut last_groups = Vec::new();
        for (field, collect) in FIELDS {
            for (name, value) in fields_named(body, field).filter(|(name, value)| is_known(name, value)) {
                let before = self.parts.len();
                self.role = TextRole::User;
                self.at_field(name, value, collect);
                if self.parts.len() > before {
                    last_groups.extend(self.parts.last().map(|part| part.group));
                    self.group += 1;
                }
            }
        }
        let last = last_groups.last().copied().unwrap_or_default();
        for part in self.parts[begin..].iter_mut().filter(|part| last_groups.contains(&part.group)) {
            part.group = last;
        }
    }

    /// Puts the texts that `add` collects into a group of their own.
    fn in_own_group(&mut self, add: impl FnOnce(&mut Self)) {
        let before = self.parts.len();
        add(self);
        self.group += usize::from(self.parts.len() > before);
    }

    /// Visits a field, and then adds the strings in it that `visit` did not read.
    fn at_field(&mut self, name: &str, value: &Value, visit: impl FnOnce(&mut Self, &Value)) {
        self.path.push(BodyStep::Key(name.to_owned().into()));
        let before = self.parts.len();
        visit(self, value);
        if self.parts.len() > before {
            self.group = self.parts.last().map_or(self.group, |part| part.group);
        }
        self.collect_unknown(value, TextKind::Other);
        self.path.pop();
    }

    fn collect_messages(&mut self, messages: &Value) {
        self.at_items(messages, |inner, _, message| {
            inner.role = parse_role(message);
            inner.collect_message(message);
            inner.collect_unknown(message, TextKind::Other);
            inner.group += 1;
        });
    }

    /// Adds the inputs of a search or an embedding as one group: texts, or objects with texts.
    fn collect_document_texts(&mut self, documents: &Value) {
        self.collect_unknown(documents, TextKind::Text);
    }

    /// Adds the text of the `InvokeModel` body that a token count request contains in base64.
    fn collect_model_body(&mut self, request: &Value) {
        self.at_key(request, "body", |inner, body| inner.push_base64(TextKind::Text, body));
    }

    /// Adds the prompts of a completion as one group: a string, or an array of strings.
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

    /// Adds the contents of several embedding requests as one group.
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
        if input.is_object() {
            return self.collect_request(input);
        }
        self.push_string(TextKind::Text, input);
        self.at_items(input, |inner, _, item| {
            if item.is_string() {
                // The texts of an embedding are one group.
                inner.role = TextRole::User;
                return inner.push_string(TextKind::Text, item);
            }
            inner.role = match item["type"].as_str() {
                Some(name) if name.ends_with("_output") => TextRole::Tool,
                Some(name) if name.ends_with("_call") || name == "reasoning" => TextRole::Assistant,
                _ => parse_role(item),
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
        self.role = parse_role(content);
        self.collect_content(content, TextKind::Text);
        self.collect_unknown(content, TextKind::Other);
        self.group += 1;
    }
}

/// Returns the fields of an object with this name, in any case.
fn fields_named<'b>(body: &'b Value, field: &str) -> impl Iterator<Item = (&'b String, &'b Value)> {
    body.as_object().into_iter().flatten().filter(move |(name, _)| name.eq_ignore_ascii_case(field))
}

/// Returns true if a field contains texts in some format. An object named `text` does not: in the Responses API, it is
/// the format of the response.
fn is_known(name: &str, value: &Value) -> bool {
    !(value.is_object() && name.eq_ignore_ascii_case("text"))
        && SYSTEM_FIELDS.into_iter().chain(FIELDS.map(|(field, _)| field)).any(|field| field.eq_ignore_ascii_case(name))
}
