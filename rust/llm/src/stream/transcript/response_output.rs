//! The output of a response as far as it was told: items that are over, and the message that is not.

use serde_json::{Value, json};

#[derive(Debug, Clone, Default)]
pub struct Output {
    /// The number of the next event.
    pub sequence: u64,
    pub created_at: Value,
    /// As they were told in the end.
    pub done: Vec<Value>,
    pub open: Option<Open>,
    held: usize,
}

/// A message that has begun and not ended.
#[derive(Debug, Clone)]
pub struct Open {
    pub index: u64,
    /// With the parts of its content that are over.
    pub item: Value,
    /// The text of the part that is not.
    pub text: Option<String>,
}

impl Open {
    /// The number of the part that is open, or comes next.
    pub fn part(&self) -> u64 {
        self.item["content"].as_array().map_or(0, Vec::len) as u64
    }
}

impl Output {
    /// How many bytes are remembered.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    pub(crate) fn take(&mut self, kind: &str, event: &Value) {
        if let Some(number) = event["sequence_number"].as_u64() {
            self.sequence = number.saturating_add(1);
        }
        match kind {
            "response.created" => self.created_at = event["response"]["created_at"].clone(),
            "response.output_item.added" => {
                let index = event["output_index"].as_u64().unwrap_or_default();
                let mut item = self.kept(&event["item"]);
                if !item["content"].is_array() {
                    item["content"] = json!([]);
                }
                self.open = Some(Open { index, item, text: None });
            }
            "response.output_item.done" => {
                self.open = None;
                let item = self.kept(&event["item"]);
                self.done.push(item);
            }
            "response.content_part.added" => self.begin_part(event["content_index"].as_u64().unwrap_or_default()),
            "response.output_text.delta" => self.add(event["delta"].as_str().unwrap_or_default()),
            "response.content_part.done" => self.end_part(&event["part"]),
            _ => (),
        }
    }

    fn kept(&mut self, value: &Value) -> Value {
        self.held += value.to_string().len();
        value.clone()
    }

    fn begin_part(&mut self, number: u64) {
        if let Some(open) = &mut self.open {
            open.text = Some(String::new());
            // Some tell an item with an empty part before that begins.
            if let Some(content) = open.item["content"].as_array_mut() {
                content.truncate(number as usize);
            }
        }
    }

    fn add(&mut self, text: &str) {
        if let Some(open) = &mut self.open {
            self.held += text.len();
            open.text.get_or_insert_default().push_str(text);
        }
    }

    fn end_part(&mut self, part: &Value) {
        let part = self.kept(part);
        if let Some(open) = &mut self.open
            && let Some(content) = open.item["content"].as_array_mut()
        {
            content.push(part);
            open.text = None;
        }
    }
}
