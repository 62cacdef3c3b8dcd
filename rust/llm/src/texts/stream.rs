//! Texts of a complete event stream. Joins the deltas of each text, and rewrites the stream with changed texts.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use memchr::memmem;

use super::{
    JsonForm, TextPart,
    event::EventTexts,
    frames::{
        StreamEncoding, UnreadableEvent, event_json, join_events, rewrite_event, split_stream, without_repeated_keys,
    },
    json_text::{begins_like_json, decode_json_text, encode_changed_text},
};

/// A delta of a text, in one event.
#[derive(Debug)]
struct Delta {
    event: usize,
    slot: usize,
    /// Position of the delta in the event's JSON.
    place: TextPart,
}

/// Texts of a stream, with the events that hold them.
#[derive(Debug)]
pub struct StreamTexts {
    encoding: StreamEncoding,
    events: Vec<Bytes>,
    /// Texts of the stream, each joined from its deltas.
    slots: Vec<TextPart>,
    deltas: Vec<Delta>,
    /// Complete texts that repeat their deltas, such as those of `response.output_text.done`, each with the index of
    /// its event.
    copies: Vec<(usize, TextPart)>,
    /// True if an event had a repeated key, so that the stream must be rewritten.
    has_repeated_keys: bool,
}

impl StreamTexts {
    /// Reads the events of a stream.
    ///
    /// # Errors
    /// If some of them are not JSON, so that texts may be hidden in them.
    pub fn read(encoding: StreamEncoding, stream: &Bytes) -> Result<Self, UnreadableEvent> {
        let mut events = split_stream(encoding, stream)?;
        let mut has_repeated_keys = false;
        for raw in &mut events {
            if let Some(read) = without_repeated_keys(encoding, raw) {
                (*raw, has_repeated_keys) = (read, true);
            }
        }
        let (slots, deltas, copies) = (Vec::new(), Vec::new(), Vec::new());
        let mut texts = Self { encoding, events, slots, deltas, copies, has_repeated_keys };
        let mut slot_indexes = HashMap::new();
        for (index, raw) in texts.events.iter().enumerate() {
            let Some(value) = event_json(encoding, raw)? else { continue };
            let read = EventTexts::read(&value);
            for (key, place) in read.deltas {
                let slot = *slot_indexes.entry(key).or_insert_with(|| {
                    texts.slots.push(TextPart { text: String::new(), path: Vec::new(), ..place.clone() });
                    texts.slots.len() - 1
                });
                texts.slots[slot].text += &place.text;
                texts.deltas.push(Delta { event: index, slot, place });
            }
            texts.copies.extend(read.copies.into_iter().map(|copy| (index, copy)));
        }
        for slot in texts.slots.iter_mut().filter(|slot| slot.json_form == JsonForm::Delta) {
            if !begins_like_json(&slot.text) {
                slot.json_form = JsonForm::None;
            }
            slot.text = decode_json_text(&slot.text).into_owned();
        }
        texts.add_copies_without_deltas();
        Ok(texts)
    }

    /// Returns true if an event had a repeated key. A client that takes another value of that key would read an
    /// unchecked text.
    pub fn has_repeated_keys(&self) -> bool {
        self.has_repeated_keys
    }

    /// Returns the texts of all choices in the order in which they began.
    pub fn parts(&self) -> &[TextPart] {
        &self.slots
    }

    /// Returns the stream with replaced texts; `texts` has one text for each of `parts`. The first delta of a text gets
    /// all of the new text, later deltas become empty.
    pub fn with_texts(&self, texts: &[String]) -> Vec<u8> {
        let mut changes: HashMap<usize, Vec<(&TextPart, &str)>> = HashMap::new();
        let mut has_begun = vec![false; self.slots.len()];
        let encoded = |slot: &TextPart, new: &str| match slot.json_form {
            JsonForm::Delta => encode_changed_text(&slot.text, new),
            JsonForm::None | JsonForm::Complete => new.to_owned(),
        };
        let new_texts: Vec<_> = self.slots.iter().zip(texts).map(|(slot, new)| encoded(slot, new)).collect();
        let is_new = |slot: usize| self.slots[slot].text != texts[slot];
        for delta in self.deltas.iter().filter(|delta| is_new(delta.slot)) {
            let has_begun = std::mem::replace(&mut has_begun[delta.slot], true);
            let text = if has_begun { "" } else { new_texts[delta.slot].as_str() };
            changes.entry(delta.event).or_default().push((&delta.place, text));
        }
        let slots_by_text: HashMap<_, _> =
            self.slots.iter().enumerate().rev().map(|(index, slot)| ((slot.kind, slot.text.as_str()), index)).collect();
        for (event, copy) in &self.copies {
            let same = slots_by_text.get(&(copy.kind, copy.text.as_str()));
            if let Some(slot) = same.filter(|slot| is_new(**slot)) {
                changes.entry(*event).or_default().push((copy, &texts[*slot]));
            }
        }
        let is_changed = !changes.is_empty();
        // Binary frames may hide a list of tokens in base64.
        let may_have_tokens =
            |raw: &[u8]| self.encoding == StreamEncoding::AwsFrames || memmem::find(raw, b"logprobs").is_some();
        let rewritten: Vec<Bytes> = self
            .events
            .iter()
            .enumerate()
            .map(|(index, raw)| match changes.get(&index) {
                Some(changes) => rewrite_event(self.encoding, raw, changes),
                None if is_changed && may_have_tokens(raw) => rewrite_event(self.encoding, raw, &[]),
                None => raw.clone(),
            })
            .collect();
        join_events(self.encoding, &rewritten)
    }

    /// Adds the complete texts that repeat no deltas to `slots`, such as items for which the stream has no deltas.
    fn add_copies_without_deltas(&mut self) {
        let mut known: HashSet<_> = self.slots.iter().map(|slot| (slot.kind, slot.text.clone())).collect();
        for (_, copy) in &self.copies {
            if known.insert((copy.kind, copy.text.clone())) {
                self.slots.push(TextPart { path: Vec::new(), ..copy.clone() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use serde_json::json;

    use super::{super::TextKind, *};
    use crate::stream::aws_event_stream::encode_frame;

    #[test]
    fn reads_and_changes_the_frames_of_bedrock() {
        let converse = |text: &str| {
            let payload = json!({"contentBlockIndex": 0, "delta": {"text": text}}).to_string();
            encode_frame("event", "contentBlockDelta", payload.as_bytes())
        };
        let invoke = |text: &str| {
            let inner =
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}});
            let payload = json!({"bytes": STANDARD.encode(inner.to_string()), "p": "abc"}).to_string();
            encode_frame("event", "chunk", payload.as_bytes())
        };
        let parse = |bytes: Vec<u8>| StreamTexts::read(StreamEncoding::AwsFrames, &bytes.into());
        for stream in [[converse("sec"), converse("ret")].concat(), [invoke("sec"), invoke("ret")].concat()] {
            let read = parse(stream.clone()).unwrap();
            assert_eq!(texts(&read), [(0, TextKind::Text, "secret")]);
            let again = parse(read.with_texts(&["***".into()])).unwrap();
            assert_eq!(texts(&again), [(0, TextKind::Text, "***")]);
            assert!(parse(stream[1..].to_vec()).is_err());
        }
    }

    #[test]
    fn reads_and_changes_an_array_of_items() {
        let stream = Bytes::from_static(
            br#"[{"candidates":[{"content":{"parts":[{"text":"sec"}]}}]},
            {"candidates":[{"content":{"parts":[{"text":"ret"}]}}]}]"#,
        );
        let read = StreamTexts::read(StreamEncoding::JsonArrayItems, &stream).unwrap();
        assert_eq!(texts(&read), [(0, TextKind::Text, "secret")]);
        let changed = read.with_texts(&["***".into()]);
        let again = StreamTexts::read(StreamEncoding::JsonArrayItems, &changed.into()).unwrap();
        assert_eq!(texts(&again), [(0, TextKind::Text, "***")]);
    }

    fn read(stream: &str) -> StreamTexts {
        StreamTexts::read(StreamEncoding::SseEvents, &Bytes::copy_from_slice(stream.as_bytes())).unwrap()
    }

    fn texts(read: &StreamTexts) -> Vec<(usize, TextKind, &str)> {
        let known = read.parts().iter().filter(|part| part.kind != TextKind::Other);
        known.map(|part| (part.group, part.kind, part.text.as_str())).collect()
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
    fn the_first_delta_carries_the_replacement() {
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
        let stream_texts = texts(&stream);
        assert_eq!(
            stream_texts,
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
        assert!(StreamTexts::read(StreamEncoding::SseEvents, &Bytes::from_static(b"data: <xml>\n\n")).is_err());
    }
}
