//! Events of a second response: its first message goes on in the one that is open, numbers and ids are those of the first.

use serde_json::{Value, json};

use super::{Joint, Overlap, Said, Spent, add, characters, written};
use crate::stream::transcript::{Open, Output};

#[derive(Debug)]
pub(super) struct Responses {
    spent: Spent,
    /// Of the first stream.
    id: String,
    has_begun: bool,
    overlap: Overlap,
    /// What the caller knows of, and the number of the next event.
    output: Output,
    /// Whether the second stream's first item is the open message.
    is_joined: bool,
    /// How far the second stream's items are moved.
    offset: u64,
}

impl Responses {
    pub fn after(said: &Said, spent: Spent, overlap: Overlap) -> Self {
        let output = said.output().clone();
        let offset = output.open.as_ref().map_or(output.done.len() as u64, |open| open.index);
        Self { spent, id: said.id().to_owned(), has_begun: said.has_begun(), overlap, output, is_joined: false, offset }
    }

    /// The open message, where an event of the second stream speaks of it.
    fn joined(&self, event: &Value) -> Option<&Open> {
        self.output.open.as_ref().filter(|_| self.is_joined && event["output_index"] == 0)
    }

    /// The text that stands before that of a part of the second stream.
    fn before(&self, event: &Value) -> Option<&str> {
        self.joined(event).filter(|_| event["content_index"] == 0)?.text.as_deref()
    }

    /// The whole of a text of which the second stream said the rest.
    fn whole(&self, before: &str, rest: &Value) -> Value {
        let rest = self.overlap.rest(rest.as_str().unwrap_or_default());
        json!(format!("{before}{rest}"))
    }

    /// A part of the second stream, whose text is the rest of one that began so.
    fn continued(&self, before: &str, part: &mut Value) {
        part["text"] = self.whole(before, &part["text"]);
        if let Some(annotations) = part.get_mut("annotations") {
            self.overlap.place(annotations, characters(before));
        }
    }

    /// The whole of the message of which the second stream said the rest.
    fn complete(&self, open: &Open, item: &mut Value) {
        item["id"] = open.item["id"].clone();
        let mut content = open.item["content"].as_array().cloned().unwrap_or_default();
        if let Value::Array(mut parts) = item["content"].take() {
            if let (Some(before), Some(part)) = (&open.text, parts.first_mut()) {
                self.continued(before, part);
            }
            content.append(&mut parts);
        }
        item["content"] = content.into();
    }

    /// Ends the part of the open message in which text was said.
    fn close_part(&mut self) -> Vec<u8> {
        let Some(open) = &mut self.output.open else { return Vec::new() };
        let Some(text) = open.text.take() else { return Vec::new() };
        let place = |data: &mut Value| {
            data["item_id"] = open.item["id"].clone();
            (data["output_index"], data["content_index"]) = (open.index.into(), open.part().into());
        };
        let part = json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
        let mut said = json!({"type": "response.output_text.done", "text": text, "logprobs": []});
        let mut over = json!({"type": "response.content_part.done", "part": part});
        place(&mut said);
        place(&mut over);
        if let Some(content) = open.item["content"].as_array_mut() {
            content.push(part);
        }
        [self.told(said), self.told(over)].concat()
    }

    /// Ends the open message, with which the second stream does not go on.
    fn close(&mut self) -> Vec<u8> {
        let mut before = self.close_part();
        if let Some(Open { index, mut item, .. }) = self.output.open.take() {
            item["status"] = json!("completed");
            let over = json!({"type": "response.output_item.done", "output_index": index, "item": item});
            before.extend(self.told(over));
            self.output.done.push(item);
            self.offset = index.saturating_add(1);
        }
        before
    }

    /// The whole of the answer.
    fn end(&self, response: &mut Value) {
        if let Value::Array(mut items) = response["output"].take() {
            if let (Some(open), Some(first)) = (self.output.open.as_ref().filter(|_| self.is_joined), items.first_mut())
            {
                self.complete(open, first);
            }
            let mut all = self.output.done.clone();
            all.append(&mut items);
            response["output"] = all.into();
        }
        if !self.id.is_empty() {
            (response["id"], response["created_at"]) = (json!(self.id), self.output.created_at.clone());
        }
        if response["usage"].is_object() {
            self.spent.add_to(&mut response["usage"], ["input_tokens", "output_tokens"]);
            add(&mut response["usage"]["total_tokens"], self.spent.total());
        }
    }

    /// In the place that its item has in the whole.
    fn moved(&self, mut event: Value) -> Value {
        if let Some(open) = self.joined(&event) {
            if event["item_id"].is_string() {
                event["item_id"] = open.item["id"].clone();
            }
            if event["content_index"].is_u64() {
                add(&mut event["content_index"], open.part());
            }
        }
        if event["output_index"].is_u64() {
            add(&mut event["output_index"], self.offset);
        }
        event
    }

    /// With the next number.
    fn told(&mut self, mut event: Value) -> Vec<u8> {
        event["sequence_number"] = self.output.sequence.into();
        self.output.sequence = self.output.sequence.saturating_add(1);
        written(event["type"].as_str().unwrap_or_default(), &event)
    }
}

impl Joint for Responses {
    fn pass(&mut self, mut event: Value) -> Vec<u8> {
        let kind = event["type"].as_str().unwrap_or_default().to_owned();
        let mut before = Vec::new();
        match &*kind {
            "response.created" | "response.in_progress" | "response.queued" if self.has_begun => return before,
            "response.output_item.added" if !self.is_joined && self.output.open.is_some() => {
                if event["item"]["type"] == "message" {
                    self.is_joined = true;
                    return before;
                }
                before = self.close();
            }
            "response.content_part.added" if self.before(&event).is_some() => {
                if event["part"]["type"] == "output_text" {
                    return before;
                }
                before = self.close_part();
            }
            "response.output_text.delta" => {
                if let Value::String(text) = &mut event["delta"] {
                    self.overlap.strip(text);
                }
            }
            "response.output_text.done" => {
                if let Some(text) = self.before(&event) {
                    event["text"] = self.whole(text, &event["text"]);
                }
            }
            "response.content_part.done" => {
                let mut part = event["part"].take();
                if let Some(text) = self.before(&event) {
                    self.continued(text, &mut part);
                }
                event["part"] = part;
            }
            "response.output_text.annotation.added" => {
                let mut annotation = event["annotation"].take();
                if let Some(text) = self.before(&event) {
                    self.overlap.place_one(&mut annotation, characters(text));
                }
                event["annotation"] = annotation;
            }
            "response.output_item.done" => {
                if let Some(open) = self.joined(&event) {
                    let mut item = event["item"].take();
                    self.complete(open, &mut item);
                    event["item"] = item;
                }
            }
            "response.completed" | "response.incomplete" | "response.failed" => {
                if !self.is_joined {
                    before = self.close();
                }
                self.end(&mut event["response"]);
            }
            _ => (),
        }
        let event = self.moved(event);
        before.extend(self.told(event));
        before
    }
}
