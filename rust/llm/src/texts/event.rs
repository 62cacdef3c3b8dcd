//! Texts of one stream event, with their positions.

use serde_json::Value;

use super::{BodyStep, TextCollector, TextKind, TextPart, TextRole};

/// Position of a text in a stream. Texts of events with the same position belong together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SlotKey {
    pub kind: TextKind,
    /// Index of the choice.
    pub group: usize,
    /// Index of the output item or content block, and of the part or tool call in it.
    pub item: u64,
    pub part: u64,
}

/// Texts of one event.
#[derive(Debug, Default)]
pub struct EventTexts {
    /// Texts that continue those of other events.
    pub deltas: Vec<(SlotKey, TextPart)>,
    /// Complete texts that repeat the preceding deltas.
    pub copies: Vec<TextPart>,
    pub ending: Ending,
}

/// Texts that an event ends.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    #[default]
    None,
    /// Those of one choice.
    Group(usize),
    /// Those of one item.
    Item(u64),
    All,
}

impl Ending {
    pub fn includes(self, key: &SlotKey) -> bool {
        match self {
            Self::None => false,
            Self::Group(group) => key.group == group,
            Self::Item(item) => key.item == item,
            Self::All => true,
        }
    }
}

impl EventTexts {
    /// Reads the JSON of an event.
    pub fn read(event: &Value) -> Self {
        let mut texts = Self::default();
        let index = |name: &str| event[name].as_u64().unwrap_or_default();
        match event["type"].as_str() {
            Some("content_block_delta") => {
                for (name, kind) in [
                    ("text", TextKind::Text),
                    ("thinking", TextKind::Reasoning),
                    ("partial_json", TextKind::ToolArguments),
                ] {
                    texts.add_delta(event, &["delta", name], kind, index("index"), 0);
                }
            }
            Some("content_block_start") => texts.read_block_start(event, index("index")),
            Some("content_block_stop") => texts.ending = Ending::Item(index("index")),
            Some(name) if name.starts_with("response.") && name.ends_with("delta") => {
                let kind = response_kind(name);
                let part = index("content_index") + index("summary_index");
                texts.add_delta(event, &["delta"], kind, index("output_index"), part);
            }
            Some(name) if name.starts_with("response.") => {
                texts.add_copies(event, name);
                if !texts.copies.is_empty() {
                    texts.ending = Ending::All;
                }
            }
            _ if event["choices"].is_array() => texts.read_choices(event),
            _ if event["candidates"].is_array() => texts.read_candidates(event),
            _ => texts.read_converse(event),
        }
        texts
    }

    fn read_block_start(&mut self, event: &Value, index: u64) {
        for (name, kind) in [("text", TextKind::Text), ("thinking", TextKind::Reasoning)] {
            self.add_delta(event, &["content_block", name], kind, index, 0);
        }
        // Results of the provider's own tools come whole.
        let block = &event["content_block"];
        if block["type"].as_str().is_some_and(|name| name.ends_with("tool_result")) {
            let mut collector = TextCollector::new();
            collector.role = TextRole::Assistant;
            collector.at_key(event, "content_block", |inner, block| inner.collect_content(block, TextKind::ToolResult));
            self.copies.extend(collector.parts);
        }
    }

    fn read_choices(&mut self, event: &Value) {
        for (at, choice) in event["choices"].as_array().into_iter().flatten().enumerate() {
            let group = choice["index"].as_u64().map_or(at, |index| index as usize);
            let mut collector = TextCollector::new();
            (collector.role, collector.group) = (TextRole::Assistant, group);
            collector.path = vec![BodyStep::Key("choices".into()), BodyStep::Index(at)];
            collector.at_key(choice, "text", |inner, text| inner.push_string(TextKind::Text, text));
            for name in ["delta", "message"] {
                collector.at_key(choice, name, |inner, delta| {
                    // Tool calls have their own index, which connects their deltas.
                    inner.collect_message(delta);
                });
            }
            let calls = choice["delta"]["tool_calls"].as_array();
            for place in collector.parts {
                let call = place.path.iter().rev().find_map(|step| match step {
                    BodyStep::Index(index) => Some(*index),
                    BodyStep::Key(_) => None,
                });
                let part = match (place.kind, calls, call) {
                    (TextKind::ToolArguments, Some(calls), Some(call)) => {
                        calls.get(call).and_then(|call| call["index"].as_u64()).unwrap_or(call as u64)
                    }
                    _ => 0,
                };
                self.deltas.push((SlotKey { kind: place.kind, group, item: 0, part }, place));
            }
            if choice["finish_reason"].is_string() {
                self.ending = Ending::Group(group);
            }
        }
    }

    /// Gemini repeats no text: each event holds the next part of it.
    fn read_candidates(&mut self, event: &Value) {
        for (at, candidate) in event["candidates"].as_array().into_iter().flatten().enumerate() {
            let group = candidate["index"].as_u64().map_or(at, |index| index as usize);
            let mut collector = TextCollector::new();
            (collector.role, collector.group) = (TextRole::Assistant, group);
            collector.path = vec![BodyStep::Key("candidates".into()), BodyStep::Index(at)];
            collector.at_key(candidate, "content", |inner, content| inner.collect_content(content, TextKind::Text));
            for place in collector.parts {
                if place.kind == TextKind::ToolArguments {
                    self.copies.push(place);
                } else {
                    self.deltas.push((SlotKey { kind: place.kind, group, item: 0, part: 0 }, place));
                }
            }
            if candidate["finishReason"].is_string() {
                self.ending = Ending::Group(group);
            }
        }
    }

    /// Reads an event of Bedrock. Names of events are keys of models that wrap them once more.
    fn read_converse(&mut self, event: &Value) {
        let wrapped = event["contentBlockDelta"].is_object();
        let inner = if wrapped { &event["contentBlockDelta"] } else { event };
        let item = inner["contentBlockIndex"].as_u64().unwrap_or_default();
        let before = self.deltas.len();
        for (path, kind) in [
            (&["delta", "text"][..], TextKind::Text),
            (&["delta", "toolUse", "input"], TextKind::ToolArguments),
            (&["delta", "reasoningContent", "text"], TextKind::Reasoning),
        ] {
            let outer: &[&'static str] = if wrapped { &["contentBlockDelta"] } else { &[] };
            self.add_delta(event, &[outer, path].concat(), kind, item, 0);
        }
        // Models of other vendors send the next part of their response.
        if self.deltas.len() == before && event.get("contentBlockIndex").is_none() {
            let mut collector = TextCollector::new();
            collector.role = TextRole::Assistant;
            collector.at_key(event, "outputText", |inner, text| inner.push_string(TextKind::Text, text));
            collector.collect_response(event);
            for place in collector.parts {
                self.deltas.push((SlotKey { kind: place.kind, group: place.group, item: 0, part: 0 }, place));
            }
        } else if self.deltas.len() == before {
            self.ending = Ending::Item(item);
        }
    }

    /// Adds the whole texts that the Responses API repeats when a part, an item or the response is complete.
    fn add_copies(&mut self, event: &Value, name: &str) {
        let mut collector = TextCollector::new();
        collector.role = TextRole::Assistant;
        let kind = response_kind(name);
        if name.ends_with("done") {
            for field in ["text", "refusal", "arguments", "input", "code"] {
                collector.at_key(event, field, |inner, text| inner.push_string(kind, text));
            }
            collector.at_key(event, "part", |inner, part| inner.collect_content(part, TextKind::Text));
        }
        collector.at_key(event, "item", TextCollector::collect_item);
        collector.at_key(event, "response", |inner, response| {
            inner.at_key(response, "output", |inner, output| {
                inner.at_items(output, |inner, _, item| inner.collect_item(item));
            });
        });
        self.copies.extend(collector.parts.into_iter().filter(|part| !part.text.is_empty()));
    }

    fn add_delta(&mut self, event: &Value, path: &[&'static str], kind: TextKind, item: u64, part: u64) {
        let text = path.iter().try_fold(event, |value, key| value.get(*key)).and_then(Value::as_str);
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            let path = path.iter().map(|key| BodyStep::Key((*key).into())).collect();
            let text = text.to_owned();
            let place = TextPart { kind, role: TextRole::Assistant, group: 0, text, path, encoding: None };
            self.deltas.push((SlotKey { kind, group: 0, item, part }, place));
        }
    }
}

/// Returns what the text in an event of the Responses API is.
fn response_kind(name: &str) -> TextKind {
    if name.contains("refusal") {
        TextKind::Refusal
    } else if name.contains("reasoning") {
        TextKind::Reasoning
    } else if name.contains("arguments") || name.contains("call_input") || name.contains("code") {
        TextKind::ToolArguments
    } else {
        TextKind::Text
    }
}
