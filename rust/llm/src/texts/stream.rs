//! Texts of a complete event stream: what its deltas say together, and the same stream with other texts.

use std::collections::HashMap;

use bytes::Bytes;
use memchr::memmem;
use serde_json::Value;

use super::{BodyStep, TextCollector, TextKind, TextPart, TextRole, remove_token_lists};
use crate::stream::sse::{event_data, split_events};

/// Place of a text in a stream: events with the same place add to one text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SlotKey {
    kind: TextKind,
    /// Index of the choice.
    group: usize,
    /// Index of the output item or content block, and of the part or tool call in it.
    item: u64,
    part: u64,
}

/// A delta of a text, in one event.
#[derive(Debug)]
struct Delta {
    event: usize,
    slot: usize,
    /// Where the event's JSON has the delta.
    place: TextPart,
}

/// Texts of a stream, with the events that hold them.
#[derive(Debug)]
pub struct StreamTexts {
    events: Vec<Bytes>,
    slots: Vec<TextPart>,
    deltas: Vec<Delta>,
    /// Copies of whole texts in events that repeat what deltas said.
    copies: Vec<(usize, TextPart)>,
}

impl StreamTexts {
    /// Reads the events of a stream. Returns `None` if some of them are not JSON, so that texts may be hidden in them.
    pub fn read(stream: &Bytes) -> Option<Self> {
        let mut texts = Self { events: Vec::new(), slots: Vec::new(), deltas: Vec::new(), copies: Vec::new() };
        let mut slot_indexes = HashMap::new();
        for raw in split_events(stream) {
            let index = texts.events.len();
            texts.events.push(stream.slice_ref(raw));
            let Some(data) = event_data(raw) else { continue };
            if data.trim_ascii() == b"[DONE]" || data.trim_ascii().is_empty() {
                continue;
            }
            let value: Value = serde_json::from_slice(&data).ok()?;
            let mut reader = EventReader::default();
            reader.read(&value);
            for (key, position) in reader.deltas {
                let slot = *slot_indexes.entry(key).or_insert_with(|| {
                    texts.slots.push(TextPart { text: String::new(), path: Vec::new(), ..position.clone() });
                    texts.slots.len() - 1
                });
                texts.slots[slot].text += &position.text;
                texts.deltas.push(Delta { event: index, slot, place: position });
            }
            texts.copies.extend(reader.copies.into_iter().map(|copy| (index, copy)));
        }
        texts.add_copies_without_deltas();
        Some(texts)
    }

    /// Returns the texts of all choices in the order in which they began.
    pub fn parts(&self) -> &[TextPart] {
        &self.slots
    }

    /// Returns the stream with other texts; `texts` has one for each part. The first delta of a text says all of the new
    /// one, and those after it nothing.
    pub fn with_texts(&self, texts: &[String]) -> Vec<u8> {
        let mut changes: HashMap<usize, Vec<(&TextPart, &str)>> = HashMap::new();
        let mut has_begun = vec![false; self.slots.len()];
        for delta in &self.deltas {
            let (slot, new) = (&self.slots[delta.slot], &texts[delta.slot]);
            if slot.text != *new {
                let content = if std::mem::replace(&mut has_begun[delta.slot], true) { "" } else { new.as_str() };
                changes.entry(delta.event).or_default().push((&delta.place, content));
            }
        }
        for (event, copy) in &self.copies {
            let same = self.slots.iter().position(|slot| slot.kind == copy.kind && slot.text == copy.text);
            if let Some(new) = same.map(|slot| texts[slot].as_str()).filter(|new| *new != copy.text) {
                changes.entry(*event).or_default().push((copy, new));
            }
        }
        let mut stream = Vec::new();
        let is_changed = !changes.is_empty();
        for (index, raw) in self.events.iter().enumerate() {
            match changes.get(&index) {
                Some(changes) => stream.extend(rewrite_event(raw, changes)),
                None if is_changed && memmem::find(raw, b"logprobs").is_some() => {
                    stream.extend(rewrite_event(raw, &[]));
                }
                None => stream.extend_from_slice(raw),
            }
        }
        stream
    }

    /// Makes parts of copies that repeat no delta, such as the items of a stream that has no deltas for them.
    fn add_copies_without_deltas(&mut self) {
        for (_, copy) in &self.copies {
            if !self.slots.iter().any(|slot| slot.kind == copy.kind && slot.text == copy.text) {
                self.slots.push(TextPart { path: Vec::new(), ..copy.clone() });
            }
        }
    }
}

/// Returns an event with other texts in its JSON.
fn rewrite_event(raw: &[u8], changes: &[(&TextPart, &str)]) -> Vec<u8> {
    let parsed = event_data(raw).and_then(|data| serde_json::from_slice::<Value>(&data).ok());
    let Some(mut value) = parsed else { return raw.to_vec() };
    for (location, text) in changes {
        location.replace(&mut value, text);
    }
    remove_token_lists(&mut value);
    let mut event = Vec::with_capacity(raw.len());
    // Other fields of the event, such as its name, stay.
    for line in raw.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.is_empty()) {
        if !line.starts_with(b"data") {
            event.extend_from_slice(line);
            event.push(b'\n');
        }
    }
    event.extend_from_slice(b"data: ");
    event.extend_from_slice(value.to_string().as_bytes());
    event.extend_from_slice(b"\n\n");
    event
}

/// Texts of one event.
#[derive(Default)]
struct EventReader {
    deltas: Vec<(SlotKey, TextPart)>,
    copies: Vec<TextPart>,
}

impl EventReader {
    fn read(&mut self, event: &Value) {
        let index = |name: &str| event[name].as_u64().unwrap_or_default();
        match event["type"].as_str() {
            Some("content_block_delta") => {
                for (name, kind) in [
                    ("text", TextKind::Text),
                    ("thinking", TextKind::Reasoning),
                    ("partial_json", TextKind::ToolArguments),
                ] {
                    self.add_delta(event, &["delta", name], kind, index("index"), 0);
                }
            }
            Some("content_block_start") => {
                for (name, kind) in [("text", TextKind::Text), ("thinking", TextKind::Reasoning)] {
                    self.add_delta(event, &["content_block", name], kind, index("index"), 0);
                }
            }
            Some(name) if name.starts_with("response.") && name.ends_with("delta") => {
                let kind = response_kind(name);
                let part = index("content_index") + index("summary_index");
                self.add_delta(event, &["delta"], kind, index("output_index"), part);
            }
            Some(name) if name.starts_with("response.") => self.add_copies(event, name),
            _ => {
                self.read_choices(event);
                self.read_candidates(event);
            }
        }
    }

    fn read_choices(&mut self, event: &Value) {
        for (at, choice) in event["choices"].as_array().into_iter().flatten().enumerate() {
            let group = choice["index"].as_u64().map_or(at, |index| index as usize);
            let mut collector = TextCollector::new();
            (collector.role, collector.group) = (TextRole::Assistant, group);
            collector.path = vec![BodyStep::Key("choices".into()), BodyStep::Index(at)];
            collector.at_key(choice, "text", |inner, text| inner.push_string(TextKind::Text, text));
            collector.at_key(choice, "delta", |inner, delta| {
                // Tool calls have an index of their own, by which their deltas belong together.
                inner.collect_message(delta);
            });
            let calls = choice["delta"]["tool_calls"].as_array();
            for position in collector.parts {
                let call = position.path.iter().rev().find_map(|step| match step {
                    BodyStep::Index(index) => Some(*index),
                    BodyStep::Key(_) => None,
                });
                let part = match (position.kind, calls, call) {
                    (TextKind::ToolArguments, Some(calls), Some(call)) => {
                        calls.get(call).and_then(|call| call["index"].as_u64()).unwrap_or(call as u64)
                    }
                    _ => 0,
                };
                self.deltas.push((SlotKey { kind: position.kind, group, item: 0, part }, position));
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
            for location in collector.parts {
                if location.kind == TextKind::ToolArguments {
                    self.copies.push(location);
                } else {
                    self.deltas.push((SlotKey { kind: location.kind, group, item: 0, part: 0 }, location));
                }
            }
        }
    }

    /// Adds the whole texts that the Responses API repeats when a part, an item or the response is complete.
    fn add_copies(&mut self, event: &Value, name: &str) {
        let mut collector = TextCollector::new();
        collector.role = TextRole::Assistant;
        let kind = response_kind(name);
        if name.ends_with("done") {
            for field in ["text", "refusal", "arguments", "input"] {
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
            let text_part = TextPart { kind, role: TextRole::Assistant, group: 0, text: text.to_owned(), path };
            self.deltas.push((SlotKey { kind, group: 0, item, part }, text_part));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stream: &str) -> StreamTexts {
        StreamTexts::read(&Bytes::copy_from_slice(stream.as_bytes())).unwrap()
    }

    fn texts(read: &StreamTexts) -> Vec<(usize, TextKind, &str)> {
        read.parts().iter().map(|part| (part.group, part.kind, part.text.as_str())).collect()
    }

    const CHAT: &str = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}

data: {"choices":[{"index":0,"delta":{"content":"my sec"}}]}

data: {"choices":[{"index":1,"delta":{"content":"two"}},{"index":0,"delta":{"content":"ret"}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{\"a\""}},{"index":1,"function":{"name":"g","arguments":"{}"}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}}]}

data: [DONE]

"#;

    #[test]
    fn joins_the_deltas_of_each_choice_and_tool_call() {
        assert_eq!(
            texts(&read(CHAT)),
            [
                (0, TextKind::Text, "my secret"),
                (1, TextKind::Text, "two"),
                (0, TextKind::ToolArguments, "{\"a\":1}"),
                (0, TextKind::ToolArguments, "{}"),
            ]
        );
    }

    #[test]
    fn a_changed_text_is_said_by_its_first_delta() {
        let stream = read(CHAT);
        let mut new: Vec<String> = stream.parts().iter().map(|part| part.text.clone()).collect();
        assert_eq!(stream.with_texts(&new), CHAT.as_bytes());
        new[0] = "my ***".into();
        let changed = stream.with_texts(&new);
        let again = read(std::str::from_utf8(&changed).unwrap());
        assert_eq!(texts(&again)[0], (0, TextKind::Text, "my ***"));
        assert_eq!(texts(&again)[1..], texts(&stream)[1..]);
        assert!(changed.ends_with(b"data: [DONE]\n\n"));
    }

    #[test]
    fn reads_and_changes_messages() {
        let messages = "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{}\"}}\n\n";
        let stream = read(messages);
        assert_eq!(texts(&stream), [(0, TextKind::Text, "a"), (0, TextKind::ToolArguments, "{}")]);
        let changed = String::from_utf8(stream.with_texts(&["b".into(), "{}".into()])).unwrap();
        assert!(
            changed.contains("event: content_block_delta\ndata: {") && changed.contains("\"text\":\"b\""),
            "{changed}"
        );
        assert_eq!(texts(&read(&changed))[0], (0, TextKind::Text, "b"));
    }

    #[test]
    fn reads_and_changes_the_copies_of_responses() {
        let responses = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"content_index\":0,\"delta\":\"se\"}\n\nevent: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"content_index\":0,\"delta\":\"cret\"}\n\nevent: response.output_text.done\ndata: {\"type\":\"response.output_text.done\",\"text\":\"secret\"}\n\nevent: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"type\":\"message\",\"content\":[{\"type\":\"output_text\",\"text\":\"secret\"}]},{\"type\":\"mcp_call\",\"arguments\":\"{}\",\"output\":\"x\"}]}}\n\n";
        let stream = read(responses);
        let found = texts(&stream);
        assert_eq!(
            found,
            [(0, TextKind::Text, "secret"), (0, TextKind::ToolArguments, "{}"), (0, TextKind::ToolResult, "x")]
        );
        let changed = String::from_utf8(stream.with_texts(&["***".into(), "{}".into(), "y".into()])).unwrap();
        assert!(!changed.contains("cret") && !changed.contains("\"x\""), "{changed}");
        assert_eq!(changed.matches("***").count(), 3);
    }

    #[test]
    fn reads_candidates_of_gemini() {
        let gemini = "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"a\"}]}}]}\r\n\r\ndata: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"b\"},{\"functionCall\":{\"name\":\"f\",\"args\":{\"q\":1}}}]}}]}\r\n\r\n";
        assert_eq!(texts(&read(gemini)), [(0, TextKind::Text, "ab"), (0, TextKind::ToolArguments, r#"{"q":1}"#)]);
    }

    #[test]
    fn a_stream_with_other_data_cannot_be_read() {
        assert!(StreamTexts::read(&Bytes::from_static(b"data: <xml>\n\n")).is_none());
    }
}
