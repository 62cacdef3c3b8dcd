//! Writer of streamed responses: typed, numbered events, of which the last holds the complete response.

use std::io::Write;

use serde_json::{Value, json};

use crate::chat::clients::openai_responses::response::{ItemKind, OutputItem, ResponseBuilder, has_annotation_for_all};
use crate::chat::{
    event::{EventSink, ResponseEvent},
    response_context::ResponseContext,
    response_writer::ResponseWriter,
};

#[derive(Debug)]
pub struct StreamWriter {
    output: Vec<u8>,
    builder: ResponseBuilder,
    next_sequence_number: u64,
    has_started: bool,
    /// Number of items started so far; `is_item_closed` has one entry for each of them.
    started_item_count: usize,
    is_item_closed: Vec<bool>,
    is_finished: bool,
}

impl StreamWriter {
    pub fn new(context: ResponseContext) -> Self {
        Self {
            output: Vec::new(),
            builder: ResponseBuilder::new(context),
            next_sequence_number: 0,
            has_started: false,
            started_item_count: 0,
            is_item_closed: Vec::new(),
            is_finished: false,
        }
    }

    fn write_sse_event(&mut self, name: &str, fields: Value) {
        let mut data = json!({"type": name, "sequence_number": self.next_sequence_number});
        self.next_sequence_number += 1;
        if let (Some(data), Value::Object(fields)) = (data.as_object_mut(), fields) {
            data.extend(fields);
        }
        // Writing to a `Vec` cannot fail.
        let _ = write!(self.output, "event: {name}\ndata: {data}\n\n");
    }

    fn write_response_start(&mut self) {
        if std::mem::replace(&mut self.has_started, true) {
            return;
        }
        let response = self.builder.response_json("in_progress");
        self.write_sse_event("response.created", json!({"response": response}));
        self.write_sse_event("response.in_progress", json!({"response": response}));
    }

    /// Writes the start of a new item, if the builder has one.
    fn write_item_start(&mut self) {
        if self.builder.items.len() == self.started_item_count {
            return;
        }
        self.write_response_start();
        // Only tool calls may be open at the same time, so all other items are closed first.
        for at in 0..self.started_item_count {
            if !self.builder.items[at].kind.is_tool_call() {
                self.close_item(at);
            }
        }
        let at = self.started_item_count;
        self.started_item_count += 1;
        self.is_item_closed.push(false);
        let item = &self.builder.items[at];
        let (kind, id) = (item.kind, item.id.clone());
        let mut item_json = item.to_json("in_progress");
        match kind {
            ItemKind::FunctionCall => item_json["arguments"] = "".into(),
            ItemKind::CustomCall => item_json["input"] = "".into(),
            ItemKind::Reasoning => item_json["summary"] = json!([]),
            ItemKind::Text | ItemKind::Refusal | ItemKind::Image => (),
        }
        self.write_sse_event("response.output_item.added", json!({"output_index": at, "item": item_json}));
        let part = match kind {
            ItemKind::FunctionCall | ItemKind::CustomCall | ItemKind::Image => return,
            // Encrypted reasoning has no text to show.
            ItemKind::Reasoning if self.builder.items[at].text.is_empty() => return,
            ItemKind::Reasoning => json!({"type": "summary_text", "text": ""}),
            ItemKind::Refusal => json!({"type": "refusal", "refusal": ""}),
            ItemKind::Text => json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []}),
        };
        let (name, index) = part_event_and_index_key(kind);
        self.write_sse_event(
            &format!("{name}.added"),
            json!({"item_id": id, "output_index": at, index: 0, "part": part}),
        );
    }

    fn write_delta(&mut self, at: usize, text: &str) {
        let Some(item) = self.builder.items.get(at) else { return };
        let (kind, id) = (item.kind, item.id.clone());
        let mut fields = json!({"item_id": id, "output_index": at, "delta": text});
        if !kind.is_tool_call() {
            fields[part_event_and_index_key(kind).1] = 0.into();
        }
        if kind == ItemKind::Text {
            fields["logprobs"] = json!([]);
        }
        self.write_sse_event(&format!("{}.delta", text_event_and_key(kind).0), fields);
    }

    /// Writes the new annotations of the items that are still open. `previous_counts` holds the number of annotations
    /// that were already sent for each item.
    fn write_annotations(&mut self, previous_counts: &[usize]) {
        for (at, previous_count) in previous_counts.iter().enumerate().take(self.started_item_count) {
            if self.is_item_closed[at] {
                continue;
            }
            let OutputItem { id, annotations, .. } = &self.builder.items[at];
            let event = |(index, annotation)| {
                json!({"item_id": id, "output_index": at, "content_index": 0, "annotation_index": index,
                    "annotation": annotation})
            };
            let events: Vec<_> = annotations.iter().enumerate().skip(*previous_count).map(event).collect();
            for event in events {
                self.write_sse_event("response.output_text.annotation.added", event);
            }
        }
    }

    /// Reports a dropped field in an SSE comment, because the response headers are already sent.
    fn report_dropped(&mut self, event: &ResponseEvent<'_>) {
        let ResponseContext { is_strict: true, report, .. } = &self.builder.context else { return };
        let names = match event {
            ResponseEvent::ExtraField { name, .. } | ResponseEvent::NativeBlock { kind: name, .. } => vec![*name],
            ResponseEvent::Citations(cites) => cites.dropped_names(has_annotation_for_all(cites)).collect(),
            _ => return,
        };
        for name in names.into_iter().filter(|name| report.add(name)) {
            let _ = write!(self.output, ": not translated: {name}\n\n");
        }
    }

    fn close_item(&mut self, at: usize) {
        if std::mem::replace(&mut self.is_item_closed[at], true) {
            return;
        }
        let item = &self.builder.items[at];
        let (kind, id, part, item_json) = (item.kind, item.id.clone(), item.content_part(), item.to_json("completed"));
        if kind == ItemKind::Image || kind == ItemKind::Reasoning && item.text.is_empty() {
            return self.write_sse_event("response.output_item.done", json!({"output_index": at, "item": item_json}));
        }
        let (name, key) = text_event_and_key(kind);
        let mut fields = json!({"item_id": id, "output_index": at, key: item.text});
        if !kind.is_tool_call() {
            fields[part_event_and_index_key(kind).1] = 0.into();
        }
        if kind == ItemKind::Text {
            fields["logprobs"] = json!([]);
        }
        self.write_sse_event(&format!("{name}.done"), fields);
        if !kind.is_tool_call() {
            let (name, index) = part_event_and_index_key(kind);
            self.write_sse_event(
                &format!("{name}.done"),
                json!({"item_id": id, "output_index": at, index: 0, "part": part}),
            );
        }
        self.write_sse_event("response.output_item.done", json!({"output_index": at, "item": item_json}));
    }

    fn write_end(&mut self) {
        self.write_response_start();
        self.is_finished = true;
        let status = self.builder.status();
        if status != "failed" {
            (0..self.started_item_count).for_each(|at| self.close_item(at));
        }
        let response = self.builder.response_json(status);
        self.write_sse_event(&format!("response.{status}"), json!({"response": response}));
    }
}

/// Returns the prefix of the event names for an item's text, and the key of that text.
fn text_event_and_key(kind: ItemKind) -> (&'static str, &'static str) {
    match kind {
        ItemKind::Text => ("response.output_text", "text"),
        ItemKind::Refusal => ("response.refusal", "refusal"),
        ItemKind::Reasoning => ("response.reasoning_summary_text", "text"),
        ItemKind::FunctionCall => ("response.function_call_arguments", "arguments"),
        ItemKind::CustomCall => ("response.custom_tool_call_input", "input"),
        // Images are sent complete, never as deltas.
        ItemKind::Image => ("response.image_generation_call", "result"),
    }
}

/// Returns the prefix of the event names for the part around an item's text, and the key of the part's index.
fn part_event_and_index_key(kind: ItemKind) -> (&'static str, &'static str) {
    if kind == ItemKind::Reasoning {
        return ("response.reasoning_summary_part", "summary_index");
    }
    ("response.content_part", "content_index")
}

impl EventSink for StreamWriter {
    fn push_event(&mut self, event: ResponseEvent<'_>) {
        if self.is_finished {
            return;
        }
        self.report_dropped(&event);
        if let ResponseEvent::Citations(_) = event {
            let annotation_counts: Vec<_> = self.builder.items.iter().map(|item| item.annotations.len()).collect();
            self.builder.push_event(event);
            return self.write_annotations(&annotation_counts);
        }
        self.builder.push_event(event);
        match event {
            ResponseEvent::Start { .. } => self.write_response_start(),
            ResponseEvent::Text("")
            | ResponseEvent::TextBlockStart
            | ResponseEvent::Refusal("")
            | ResponseEvent::Thinking("")
            | ResponseEvent::Usage(_)
            | ResponseEvent::Finish { .. }
            | ResponseEvent::ExtraField { .. }
            | ResponseEvent::Citations(_)
            | ResponseEvent::NativeBlock { .. } => (),
            ResponseEvent::Text(text) | ResponseEvent::Refusal(text) | ResponseEvent::Thinking(text) => {
                self.write_item_start();
                self.write_delta(self.started_item_count - 1, text);
            }
            ResponseEvent::ToolCall { .. }
            | ResponseEvent::ThinkingSignature(_)
            | ResponseEvent::RedactedThinking(_)
            | ResponseEvent::TextSignature(_) => self.write_item_start(),
            ResponseEvent::Image { .. } => {
                self.write_item_start();
                self.close_item(self.started_item_count - 1);
            }
            ResponseEvent::ToolCallArguments { call_index: call, json } => {
                if let Some(at) = self.builder.tool_call_index(call) {
                    self.write_delta(at, json);
                }
            }
            ResponseEvent::End | ResponseEvent::Failed { .. } => self.write_end(),
        }
    }
}

impl ResponseWriter for StreamWriter {
    fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }
}
