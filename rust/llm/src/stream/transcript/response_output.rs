//! Output of a stream of the responses API so far: the completed items, and the message that is still open.

use serde_json::{Value, json};

#[derive(Debug, Clone, Default)]
pub struct ResponseOutput {
    /// Sequence number of the next event.
    pub next_sequence_number: u64,
    pub created_at: Value,
    /// Items as their `response.output_item.done` events reported them.
    pub completed_items: Vec<Value>,
    pub open_message: Option<OpenMessage>,
    buffered_bytes: usize,
}

/// Message that has started but not ended.
#[derive(Debug, Clone)]
pub struct OpenMessage {
    pub output_index: u64,
    /// The message item, with its completed content parts.
    pub item: Value,
    /// Text of the content part that has not ended; `None` if no part is open.
    pub open_text: Option<String>,
}

impl OpenMessage {
    /// Returns the index of the open content part, or of the next one if none is open.
    pub fn part_index(&self) -> u64 {
        self.item["content"].as_array().map_or(0, Vec::len) as u64
    }
}

impl ResponseOutput {
    /// Returns the number of buffered bytes.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.buffered_bytes
    }

    pub(crate) fn record_event(&mut self, kind: &str, event: &Value) {
        if let Some(number) = event["sequence_number"].as_u64() {
            self.next_sequence_number = number.saturating_add(1);
        }
        match kind {
            "response.created" => self.created_at = event["response"]["created_at"].clone(),
            "response.output_item.added" => {
                let index = event["output_index"].as_u64().unwrap_or_default();
                let mut item = self.clone_and_count(&event["item"]);
                if !item["content"].is_array() {
                    item["content"] = json!([]);
                }
                self.open_message = Some(OpenMessage { output_index: index, item, open_text: None });
            }
            "response.output_item.done" => {
                self.open_message = None;
                let item = self.clone_and_count(&event["item"]);
                self.completed_items.push(item);
            }
            "response.content_part.added" => self.begin_part(event["content_index"].as_u64().unwrap_or_default()),
            "response.output_text.delta" => self.append_text(event["delta"].as_str().unwrap_or_default()),
            "response.content_part.done" => self.end_part(&event["part"]),
            _ => (),
        }
    }

    fn clone_and_count(&mut self, value: &Value) -> Value {
        self.buffered_bytes += value.to_string().len();
        value.clone()
    }

    fn begin_part(&mut self, number: u64) {
        if let Some(open) = &mut self.open_message {
            open.open_text = Some(String::new());
            // Some providers list an empty part in the item before that part starts.
            if let Some(content) = open.item["content"].as_array_mut() {
                content.truncate(number as usize);
            }
        }
    }

    fn append_text(&mut self, text: &str) {
        if let Some(open) = &mut self.open_message {
            self.buffered_bytes += text.len();
            open.open_text.get_or_insert_default().push_str(text);
        }
    }

    fn end_part(&mut self, part: &Value) {
        let part = self.clone_and_count(part);
        if let Some(open) = &mut self.open_message
            && let Some(content) = open.item["content"].as_array_mut()
        {
            content.push(part);
            open.open_text = None;
        }
    }
}
