//! Texts of complete responses.

use serde_json::Value;

use super::{TextCollector, TextKind, TextPart, TextRole};

/// Returns the texts of a response body. Each choice is a group.
pub fn response_texts(body: &Value) -> Vec<TextPart> {
    let mut collector = TextCollector::new();
    collector.role = TextRole::Assistant;
    collector.collect_response(body);
    collector.parts
}

impl TextCollector {
    pub(super) fn collect_response(&mut self, body: &Value) {
        self.collect_object(body);
        // A list of what models wrote earlier.
        self.at_key(body, "data", |inner, data| {
            inner.at_items(data, |inner, _, item| inner.collect_object(item));
        });
    }

    fn collect_object(&mut self, body: &Value) {
        self.at_key(body, "choices", |inner, choices| {
            inner.at_items(choices, |inner, index, choice| {
                inner.group = index;
                inner.at_key(choice, "message", Self::collect_message);
                inner.at_key(choice, "text", |inner, text| inner.push_string(TextKind::Text, text));
            });
        });
        self.at_key(body, "candidates", |inner, candidates| {
            inner.at_items(candidates, |inner, index, candidate| {
                inner.group = index;
                inner.at_key(candidate, "content", |inner, content| inner.collect_content(content, TextKind::Text));
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
        self.at_key(body, "outputs", |inner, outputs| {
            inner.at_items(outputs, |inner, index, item| {
                inner.group = index;
                inner.at_key(item, "text", |inner, text| inner.push_string(TextKind::Text, text));
            });
        });
        self.at_key(body, "results", |inner, results| {
            inner.at_items(results, |inner, index, item| {
                inner.group = index;
                inner.at_key(item, "outputText", |inner, text| inner.push_string(TextKind::Text, text));
            });
        });
    }
}
