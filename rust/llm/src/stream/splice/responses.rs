//! Splicing of streams of the responses API. The first message of the second stream continues the open message. The
//! response id is that of the first stream, and sequence numbers continue.

use serde_json::{Value, json};

use super::{EventRewriter, OverlapFilter, PriorUsage, Transcript, add_to_count, count_chars, format_event};
use crate::stream::transcript::{OpenMessage, ResponseOutput};

#[derive(Debug)]
pub(super) struct ResponseRewriter {
    prior_usage: PriorUsage,
    /// Id of the first response.
    id: String,
    has_started: bool,
    overlap: OverlapFilter,
    /// Output that the client has received, and the next sequence number.
    output: ResponseOutput,
    /// True if the first item of the second stream continues the open message.
    is_message_continued: bool,
    /// Number added to the output indexes of the second stream.
    index_offset: u64,
}

impl ResponseRewriter {
    pub fn new(transcript: &Transcript, prior_usage: PriorUsage, overlap: OverlapFilter) -> Self {
        let output = transcript.output().clone();
        let index_offset =
            output.open_message.as_ref().map_or(output.completed_items.len() as u64, |open| open.output_index);
        Self {
            prior_usage,
            id: transcript.id().to_owned(),
            has_started: transcript.has_started(),
            overlap,
            output,
            is_message_continued: false,
            index_offset,
        }
    }

    /// Returns the open message if this event of the second stream belongs to it.
    fn continued_message(&self, event: &Value) -> Option<&OpenMessage> {
        self.output.open_message.as_ref().filter(|_| self.is_message_continued && event["output_index"] == 0)
    }

    /// Returns the text that precedes this event's content part in the complete message.
    fn prior_text(&self, event: &Value) -> Option<&str> {
        self.continued_message(event).filter(|_| event["content_index"] == 0)?.open_text.as_deref()
    }

    /// Returns the complete text: the earlier text, and the rest from the second stream.
    fn complete_text(&self, before: &str, rest: &Value) -> Value {
        let rest = self.overlap.strip_complete(rest.as_str().unwrap_or_default());
        json!(format!("{before}{rest}"))
    }

    /// Completes a content part of the second stream with the text before it.
    fn complete_part(&self, before: &str, part: &mut Value) {
        part["text"] = self.complete_text(before, &part["text"]);
        if let Some(annotations) = part.get_mut("annotations") {
            self.overlap.shift_annotations(annotations, count_chars(before));
        }
    }

    /// Completes a message of the second stream with the id and the content of the open message.
    fn complete_message(&self, open: &OpenMessage, item: &mut Value) {
        item["id"] = open.item["id"].clone();
        let mut content = open.item["content"].as_array().cloned().unwrap_or_default();
        if let Value::Array(mut parts) = item["content"].take() {
            if let (Some(before), Some(part)) = (&open.open_text, parts.first_mut()) {
                self.complete_part(before, part);
            }
            content.append(&mut parts);
        }
        item["content"] = content.into();
    }

    /// Returns the events that end the open text part.
    fn close_part(&mut self) -> Vec<u8> {
        let Some(open) = &mut self.output.open_message else { return Vec::new() };
        let Some(text) = open.open_text.take() else { return Vec::new() };
        let set_position = |data: &mut Value| {
            data["item_id"] = open.item["id"].clone();
            (data["output_index"], data["content_index"]) = (open.output_index.into(), open.part_index().into());
        };
        let part = json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
        let mut text_done = json!({"type": "response.output_text.done", "text": text, "logprobs": []});
        let mut over = json!({"type": "response.content_part.done", "part": part});
        set_position(&mut text_done);
        set_position(&mut over);
        if let Some(content) = open.item["content"].as_array_mut() {
            content.push(part);
        }
        [self.serialize_event(text_done), self.serialize_event(over)].concat()
    }

    /// Returns the events that end the open message if the second stream does not continue it.
    fn close_message(&mut self) -> Vec<u8> {
        let mut before = self.close_part();
        if let Some(OpenMessage { output_index: index, mut item, .. }) = self.output.open_message.take() {
            item["status"] = json!("completed");
            let over = json!({"type": "response.output_item.done", "output_index": index, "item": item});
            before.extend(self.serialize_event(over));
            self.output.completed_items.push(item);
            self.index_offset = index.saturating_add(1);
        }
        before
    }

    /// Completes the final response object with the earlier items, the first id, and the usage of all streams.
    fn complete_response(&self, response: &mut Value) {
        if let Value::Array(mut items) = response["output"].take() {
            if let (Some(open), Some(first)) =
                (self.output.open_message.as_ref().filter(|_| self.is_message_continued), items.first_mut())
            {
                self.complete_message(open, first);
            }
            let mut all = self.output.completed_items.clone();
            all.append(&mut items);
            response["output"] = all.into();
        }
        if !self.id.is_empty() {
            (response["id"], response["created_at"]) = (json!(self.id), self.output.created_at.clone());
        }
        if response["usage"].is_object() {
            self.prior_usage.add_to_usage(&mut response["usage"], ["input_tokens", "output_tokens"]);
            add_to_count(&mut response["usage"]["total_tokens"], self.prior_usage.total());
        }
    }

    /// Shifts the indexes of an event to its item's position in the complete output.
    fn shift_indexes(&self, mut event: Value) -> Value {
        if let Some(open) = self.continued_message(&event) {
            if event["item_id"].is_string() {
                event["item_id"] = open.item["id"].clone();
            }
            if event["content_index"].is_u64() {
                add_to_count(&mut event["content_index"], open.part_index());
            }
        }
        if event["output_index"].is_u64() {
            add_to_count(&mut event["output_index"], self.index_offset);
        }
        event
    }

    /// Serializes an event with the next sequence number.
    fn serialize_event(&mut self, mut event: Value) -> Vec<u8> {
        event["sequence_number"] = self.output.next_sequence_number.into();
        self.output.next_sequence_number = self.output.next_sequence_number.saturating_add(1);
        format_event(event["type"].as_str().unwrap_or_default(), &event)
    }
}

impl EventRewriter for ResponseRewriter {
    fn rewrite(&mut self, mut event: Value) -> Vec<u8> {
        let kind = event["type"].as_str().unwrap_or_default().to_owned();
        let mut before = Vec::new();
        match &*kind {
            "response.created" | "response.in_progress" | "response.queued" if self.has_started => return before,
            "response.output_item.added" if !self.is_message_continued && self.output.open_message.is_some() => {
                if event["item"]["type"] == "message" {
                    self.is_message_continued = true;
                    return before;
                }
                before = self.close_message();
            }
            "response.content_part.added" if self.prior_text(&event).is_some() => {
                if event["part"]["type"] == "output_text" {
                    return before;
                }
                before = self.close_part();
            }
            "response.output_text.delta" => {
                if let Value::String(text) = &mut event["delta"] {
                    self.overlap.strip_chunk(text);
                }
            }
            "response.output_text.done" => {
                if let Some(text) = self.prior_text(&event) {
                    event["text"] = self.complete_text(text, &event["text"]);
                }
            }
            "response.content_part.done" => {
                let mut part = event["part"].take();
                if let Some(text) = self.prior_text(&event) {
                    self.complete_part(text, &mut part);
                }
                event["part"] = part;
            }
            "response.output_text.annotation.added" => {
                let mut annotation = event["annotation"].take();
                if let Some(text) = self.prior_text(&event) {
                    self.overlap.shift_annotation(&mut annotation, count_chars(text));
                }
                event["annotation"] = annotation;
            }
            "response.output_item.done" => {
                if let Some(open) = self.continued_message(&event) {
                    let mut item = event["item"].take();
                    self.complete_message(open, &mut item);
                    event["item"] = item;
                }
            }
            "response.completed" | "response.incomplete" | "response.failed" => {
                if !self.is_message_continued {
                    before = self.close_message();
                }
                self.complete_response(&mut event["response"]);
            }
            _ => (),
        }
        let event = self.shift_indexes(event);
        before.extend(self.serialize_event(event));
        before
    }
}
