//! Texts of one stream event, with their positions.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::{BodyStep, JsonForm, TextCollector, TextKind, TextPart, TextRole};

/// Position of a text in a stream. Texts with the same position in several events are parts of one text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SlotKey {
    pub kind: TextKind,
    /// Index of the choice.
    pub group: usize,
    /// Index of the output item or content block.
    pub item: u64,
    /// Number that identifies the part or the tool call within the item.
    pub part: u64,
}

/// Texts of one event.
#[derive(Debug, Default)]
pub struct EventTexts {
    /// Parts of texts that continue over several events, each with its position in the stream.
    pub deltas: Vec<(SlotKey, TextPart)>,
    /// Complete texts. Most of them repeat earlier deltas.
    pub copies: Vec<TextPart>,
    pub ended: EndedTexts,
}

/// Texts that are complete after an event.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum EndedTexts {
    #[default]
    None,
    /// Texts of the choice with this index.
    Group(usize),
    /// Texts of the item with this index.
    Item(u64),
    All,
}

impl EndedTexts {
    pub fn includes(self, key: &SlotKey) -> bool {
        match self {
            Self::None => false,
            Self::Group(group) => key.group == group,
            Self::Item(item) => key.item == item,
            Self::All => true,
        }
    }
}

/// Fields of an Anthropic delta with a text.
const BLOCK_DELTAS: [(&str, TextKind); 3] =
    [("text", TextKind::Text), ("thinking", TextKind::Reasoning), ("partial_json", TextKind::ToolArguments)];

impl EventTexts {
    /// Reads the JSON of an event.
    pub fn read(event: &Value) -> Self {
        let mut reader =
            EventReader { event, collector: TextCollector::new(TextRole::Assistant), texts: Self::default() };
        reader.read();
        reader.texts
    }
}

/// Reads one event.
struct EventReader<'e> {
    event: &'e Value,
    collector: TextCollector,
    texts: EventTexts,
}

impl EventReader<'_> {
    fn read(&mut self) {
        let event = self.event;
        let index = |name: &str| event[name].as_u64().unwrap_or_default();
        match event["type"].as_str() {
            Some("content_block_delta") => {
                for (name, kind) in BLOCK_DELTAS {
                    self.add_delta(&["delta", name], kind, index("index"), 0);
                }
                self.add_unknown(0, index("index"));
            }
            Some("content_block_start") => {
                self.read_block_start(index("index"));
                self.add_unknown(0, index("index"));
            }
            Some("content_block_stop") => self.texts.ended = EndedTexts::Item(index("index")),
            Some(name) if name.starts_with("response.") && name.ends_with("delta") => {
                let mut hasher = DefaultHasher::new();
                (name, index("content_index"), index("summary_index")).hash(&mut hasher);
                let part = hasher.finish();
                self.add_delta(&["delta"], response_kind(name), index("output_index"), part);
            }
            Some(name) if name.starts_with("response.") => {
                self.add_copies(name);
                self.texts.ended = match name {
                    "response.completed" | "response.incomplete" | "response.failed" => EndedTexts::All,
                    name if name.ends_with("done") => EndedTexts::Item(index("output_index")),
                    _ => EndedTexts::None,
                };
            }
            _ if event["choices"].is_array() => self.read_choices(),
            _ if event["candidates"].is_array() => self.read_candidates(),
            _ => self.read_converse(),
        }
        self.add_unknown(0, index("index") + index("output_index") + index("contentBlockIndex"));
    }

    fn read_block_start(&mut self, index: u64) {
        for (name, kind) in BLOCK_DELTAS {
            self.add_delta(&["content_block", name], kind, index, 0);
        }
        // The results of the provider's own tools are sent complete. Some servers also send complete arguments.
        let block = &self.event["content_block"];
        let is_result = block["type"].as_str().is_some_and(|name| name.ends_with("tool_result"));
        self.collector.at_key(self.event, "content_block", |inner, block| {
            if is_result {
                inner.collect_content(block, TextKind::ToolResult);
            }
            inner.at_key(block, "input", |inner, input| {
                if input.as_object().is_some_and(|fields| !fields.is_empty()) {
                    inner.push_json(TextKind::ToolArguments, input);
                }
            });
        });
        self.texts.copies.append(&mut self.collector.parts);
    }

    fn read_choices(&mut self) {
        for (at, choice) in self.event["choices"].as_array().into_iter().flatten().enumerate() {
            let group = choice["index"].as_u64().map_or(at, |index| index as usize);
            let collector = &mut self.collector;
            (collector.group, collector.has_deltas) = (group, true);
            collector.path = vec![BodyStep::Key("choices".into()), BodyStep::Index(at)];
            collector.at_key(choice, "text", |inner, text| inner.push_string(TextKind::Text, text));
            for name in ["delta", "message"] {
                collector.at_key(choice, name, TextCollector::collect_message);
            }
            let collected = std::mem::take(&mut collector.parts);
            for text_part in collected {
                let part = find_position(choice, &text_part.path[2..]);
                self.texts.deltas.push((SlotKey { kind: text_part.kind, group, item: 0, part }, text_part));
            }
            self.collector.has_deltas = false;
            self.collector.collect_unknown(choice, TextKind::Other);
            self.collector.path.clear();
            self.sort_unknown(group, 0);
            if choice["finish_reason"].is_string() {
                self.texts.ended = EndedTexts::Group(group);
            }
        }
    }

    /// Reads the candidates of a Gemini event. Gemini repeats no text: each event contains the next part of it.
    fn read_candidates(&mut self) {
        for (at, candidate) in self.event["candidates"].as_array().into_iter().flatten().enumerate() {
            let group = candidate["index"].as_u64().map_or(at, |index| index as usize);
            let collector = &mut self.collector;
            (collector.group, collector.has_deltas) = (group, true);
            collector.path = vec![BodyStep::Key("candidates".into()), BodyStep::Index(at)];
            collector.at_key(candidate, "content", |inner, content| inner.collect_content(content, TextKind::Text));
            let collected = std::mem::take(&mut collector.parts);
            for text_part in collected {
                if text_part.json_form == JsonForm::Complete {
                    self.texts.copies.push(text_part);
                    continue;
                }
                // The index of a text's part may differ between events, so it only distinguishes tool calls.
                let is_argument = text_part.kind == TextKind::ToolArguments;
                let part = if is_argument { find_position(candidate, &text_part.path[2..]) } else { 0 };
                self.texts.deltas.push((SlotKey { kind: text_part.kind, group, item: 0, part }, text_part));
            }
            self.collector.has_deltas = false;
            self.collector.collect_unknown(candidate, TextKind::Other);
            self.collector.path.clear();
            self.sort_unknown(group, 0);
            if candidate["finishReason"].is_string() {
                self.texts.ended = EndedTexts::Group(group);
            }
        }
    }

    /// Reads an event of Bedrock. Some models wrap an event in an object whose key is the name of the event.
    fn read_converse(&mut self) {
        let event = self.event;
        let wrapped = event["contentBlockDelta"].is_object();
        let inner = if wrapped { &event["contentBlockDelta"] } else { event };
        let item = inner["contentBlockIndex"].as_u64().unwrap_or_default();
        for (path, kind) in [
            (&["delta", "text"][..], TextKind::Text),
            (&["delta", "toolUse", "input"], TextKind::ToolArguments),
            (&["delta", "reasoningContent", "text"], TextKind::Reasoning),
        ] {
            let outer: &[&'static str] = if wrapped { &["contentBlockDelta"] } else { &[] };
            self.add_delta(&[outer, path].concat(), kind, item, 0);
        }
        // Models with a format of their own send the next part of their response body.
        if self.texts.deltas.is_empty() && inner.get("contentBlockIndex").is_none() {
            let collector = &mut self.collector;
            collector.has_deltas = true;
            collector.at_key(event, "outputText", |inner, text| inner.push_string(TextKind::Text, text));
            collector.collect_object(event);
            collector.has_deltas = false;
            for place in std::mem::take(&mut self.collector.parts) {
                self.texts.deltas.push((SlotKey { kind: place.kind, group: place.group, item: 0, part: 0 }, place));
            }
        } else if self.texts.deltas.is_empty() && inner.get("delta").is_none() {
            self.texts.ended = EndedTexts::Item(item);
        }
    }

    /// Adds the whole texts that the Responses API repeats when a part, an item or the response is complete.
    fn add_copies(&mut self, name: &str) {
        let (event, collector) = (self.event, &mut self.collector);
        let kind = response_kind(name);
        if name.ends_with("done") {
            for field in ["text", "refusal", "arguments", "input", "code"] {
                collector.at_key(event, field, |inner, text| match field {
                    "arguments" => inner.push_json(kind, text),
                    _ => inner.push_string(kind, text),
                });
            }
        }
        collector.at_key(event, "part", |inner, part| inner.collect_content(part, TextKind::Text));
        collector.at_key(event, "item", TextCollector::collect_item);
        collector.at_key(event, "response", |inner, response| {
            inner.at_key(response, "output", |inner, output| {
                inner.at_items(output, |inner, _, item| inner.collect_item(item));
            });
            inner.collect_other_fields(response);
        });
        let copies = std::mem::take(&mut self.collector.parts);
        self.texts.copies.extend(copies.into_iter().filter(|part| !part.text.is_empty()));
    }

    fn add_delta(&mut self, path: &[&'static str], kind: TextKind, item: u64, part: u64) {
        let Some(value) = path.iter().try_fold(self.event, |value, key| value.get(*key)) else { return };
        let Some(text) = value.as_str().filter(|text| !text.is_empty()) else { return };
        self.collector.set_read(value);
        let is_named = self.event["type"].as_str().is_some_and(|name| name.contains("arguments"));
        let is_json = kind == TextKind::ToolArguments && (is_named || path.len() > 1);
        let json_form = if is_json { JsonForm::Delta } else { JsonForm::None };
        let path = path.iter().map(|key| BodyStep::Key((*key).into())).collect();
        let (role, text) = (TextRole::Assistant, text.to_owned());
        let text_part = TextPart { kind, role, group: 0, text, path, encoding: None, json_form };
        self.texts.deltas.push((SlotKey { kind, group: 0, item, part }, text_part));
    }

    /// Adds all other strings of the event.
    fn add_unknown(&mut self, group: usize, item: u64) {
        self.collector.collect_other_fields(self.event);
        self.sort_unknown(group, item);
    }

    /// Adds the collected strings to the event: those within a `delta` continue strings of other events, the others are
    /// complete.
    fn sort_unknown(&mut self, group: usize, item: u64) {
        for text_part in std::mem::take(&mut self.collector.parts) {
            let is_delta = text_part.path.iter().any(|step| matches!(step, BodyStep::Key(name) if name == "delta"));
            if is_delta {
                let part = find_position(self.event, &text_part.path);
                self.texts.deltas.push((SlotKey { kind: text_part.kind, group, item, part }, text_part));
            } else {
                self.texts.copies.push(text_part);
            }
        }
    }
}

/// Returns a number that identifies the text of a field. It is the same in all events that continue the text. List
/// items are distinguished by their own `index` or `jsonPath`, and tool calls without an index by their position.
fn find_position(value: &Value, path: &[BodyStep]) -> u64 {
    let mut hasher = DefaultHasher::new();
    value["type"].as_str().hash(&mut hasher);
    let (mut value, mut is_call) = (Some(value), false);
    for step in path {
        match step {
            BodyStep::Key(name) => {
                value = value.and_then(|value| value.get(name.as_ref()));
                is_call = name == "tool_calls";
                name.hash(&mut hasher);
            }
            BodyStep::Index(index) => {
                value = value.and_then(|value| value.get(*index));
                let field = |name: &str| value.and_then(|value| value.get(name));
                let position = if is_call { *index as u64 } else { 0 };
                field("index").and_then(Value::as_u64).unwrap_or(position).hash(&mut hasher);
                field("jsonPath").and_then(Value::as_str).hash(&mut hasher);
            }
        }
    }
    hasher.finish()
}

/// Returns the kind of the text in an event of the Responses API with this name.
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
