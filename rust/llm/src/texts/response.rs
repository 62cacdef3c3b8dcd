//! Texts of complete responses.

use serde_json::Value;

use super::{TextCollector, TextKind, TextPart, TextRole};

/// Fields in which a response of the Responses API repeats the client's request.
const ECHOED_REQUEST_FIELDS: [&str; 6] = ["instructions", "metadata", "prompt", "text", "tools", "user"];

/// Returns the texts of a response body. Each choice is a group.
pub fn response_texts(body: &Value) -> Vec<TextPart> {
    let mut collector = TextCollector::new(TextRole::Assistant);
    collector.collect_response(body);
    collector.parts
}

impl TextCollector {
    pub(super) fn collect_response(&mut self, body: &Value) {
        self.collect_object(body);
        // A list of stored responses.
        self.at_key(body, "data", |inner, data| {
            inner.at_items(data, |inner, _, item| {
                inner.collect_object(item);
                inner.collect_other_fields(item);
            });
        });
        self.collect_other_fields(body);
    }

    /// Adds the strings in unknown fields of a response, except those that repeat the client's request.
    pub(super) fn collect_other_fields(&mut self, body: &Value) {
        self.group = 0;
        let Value::Object(fields) = body else { return self.collect_unknown(body, TextKind::Other) };
        let repeats_request = matches!(body["object"].as_str(), Some("response" | "thread.run" | "assistant"));
        for (name, value) in fields {
            if !(repeats_request && ECHOED_REQUEST_FIELDS.contains(&name.as_str())) {
                self.collect_unknown_field(fields, name, value, TextKind::Other);
            }
        }
        self.set_read(body);
    }

    pub(super) fn collect_object(&mut self, body: &Value) {
        self.at_key(body, "choices", |inner, choices| {
            inner.at_items(choices, |inner, index, choice| {
                inner.group = index;
                inner.at_key(choice, "message", Self::collect_message);
                inner.at_key(choice, "text", |inner, text| inner.push_string(TextKind::Text, text));
                inner.collect_unknown(choice, TextKind::Other);
            });
        });
        self.at_key(body, "candidates", |inner, candidates| {
            inner.at_items(candidates, |inner, index, candidate| {
                inner.group = index;
                inner.at_key(candidate, "content", |inner, content| inner.collect_content(content, TextKind::Text));
                inner.collect_unknown(candidate, TextKind::Other);
            });
        });
        self.group = 0;
        self.at_key(body, "content", |inner, content| inner.collect_content(content, TextKind::Text));
        self.at_key(body, "output", |inner, output| match output {
            Value::Array(_) => inner.at_items(output, |inner, _, item| inner.collect_item(item)),
            output => inner.at_key(output, "message", Self::collect_message),
        });
        // Cohere's message, and the bodies of models that Bedrock hosts.
        self.at_key(body, "message", Self::collect_message);
        for name in ["generation", "completion", "text"] {
            self.at_key(body, name, |inner, text| inner.push_string(TextKind::Text, text));
        }
        for (list, field) in [("outputs", "text"), ("generations", "text"), ("results", "outputText")] {
            self.at_key(body, list, |inner, outputs| {
                inner.at_items(outputs, |inner, index, item| {
                    inner.group = index;
                    inner.at_key(item, field, |inner, text| inner.push_string(TextKind::Text, text));
                });
            });
        }
        self.at_key(body, "completions", |inner, completions| {
            inner.at_items(completions, |inner, index, item| {
                inner.group = index;
                inner.at_key(item, "data", |inner, data| {
                    inner.at_key(data, "text", |inner, text| inner.push_string(TextKind::Text, text));
                });
            });
        });
    }
}
