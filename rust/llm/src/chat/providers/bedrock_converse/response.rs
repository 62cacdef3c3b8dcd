//! Reads what Converse answers, whole and streamed.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    api_format::ApiFormat,
    chat::{
        event::{Piece, Place, Taker},
        providers::{Broken, Listener, anthropic_messages::compact},
    },
    usage::Counts,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    #[serde(borrow)]
    output: Output<'a>,
    #[serde(default, borrow)]
    stop_reason: Cow<'a, str>,
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
    #[serde(default, borrow)]
    trace: Option<&'a RawValue>,
    #[serde(default, borrow)]
    additional_model_response_fields: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Output<'a> {
    #[serde(borrow)]
    message: Message<'a>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    content: Vec<Block<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Block<'a> {
    #[serde(default, borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    tool_use: Option<ToolUse<'a>>,
    #[serde(default, borrow)]
    reasoning_content: Option<Reasoning<'a>>,
    #[serde(default, borrow)]
    citations_content: Option<Cited<'a>>,
    /// Of a stream.
    #[serde(default, borrow)]
    citation: Option<&'a RawValue>,
    #[serde(default, borrow)]
    image: Option<Image<'a>>,
}

/// Text, and where it is from.
#[derive(Deserialize)]
struct Cited<'a> {
    #[serde(default, borrow)]
    content: Vec<Words<'a>>,
    #[serde(default, borrow)]
    citations: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Words<'a> {
    #[serde(default, borrow)]
    text: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Image<'a> {
    #[serde(default, borrow)]
    format: Cow<'a, str>,
    #[serde(borrow)]
    source: Bytes<'a>,
}

#[derive(Deserialize)]
struct Bytes<'a> {
    #[serde(default, borrow)]
    bytes: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolUse<'a> {
    #[serde(rename = "toolUseId", default, borrow)]
    id: Cow<'a, str>,
    #[serde(default, borrow)]
    name: Cow<'a, str>,
    /// An object in a whole answer, a piece of JSON as a string in a stream.
    #[serde(default, borrow)]
    input: Option<&'a RawValue>,
}

/// In a whole answer the text is one level down.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reasoning<'a> {
    #[serde(rename = "reasoningText", default, borrow)]
    thought: Option<Thought<'a>>,
    #[serde(default, borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    signature: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    redacted_content: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Thought<'a> {
    #[serde(default, borrow)]
    text: Cow<'a, str>,
    #[serde(default, borrow)]
    signature: Option<Cow<'a, str>>,
}

fn cost(usage: &RawValue, taker: &mut dyn Taker) {
    let mut counts = Counts::default();
    counts.read(usage.get().as_bytes());
    if let Some(usage) = counts.settle(ApiFormat::Bedrock) {
        taker.take(Piece::Usage(usage));
    }
}

pub fn read(answer: &[u8], taker: &mut dyn Taker) -> Result<(), Broken> {
    let answer: Answer<'_> = serde_json::from_slice(answer)?;
    taker.take(Piece::Start { id: "", model: "" });
    let mut calls = 0;
    for block in &answer.output.message.content {
        if let Some(text) = block.text.as_deref().filter(|text| !text.is_empty()) {
            taker.take(Piece::TextBlock);
            taker.take(Piece::Text(text));
        }
        if let Some(reasoning) = &block.reasoning_content {
            think(reasoning, taker);
        }
        if let Some(call) = &block.tool_use {
            taker.take(Piece::Call { id: &call.id, name: &call.name, signature: None });
            taker.take(Piece::Arguments { call: calls, json: &compact(call.input.map_or("{}", RawValue::get)) });
            calls += 1;
        }
        beside(block, taker);
    }
    let more = [("trace", answer.trace), ("additionalModelResponseFields", answer.additional_model_response_fields)];
    for (name, json) in more {
        if let Some(json) = json {
            taker.take(Piece::Aside { place: Place::Answer, name, json: json.get() });
        }
    }
    if let Some(usage) = answer.usage {
        cost(usage, taker);
    }
    taker.take(Piece::Finish { reason: &answer.stop_reason, stop_sequence: None });
    taker.take(Piece::End);
    Ok(())
}

/// What is not just words.
fn beside(block: &Block<'_>, taker: &mut dyn Taker) {
    if let Some(Cited { content, citations }) = &block.citations_content {
        taker.take(Piece::TextBlock);
        for words in content {
            taker.take(Piece::Text(&words.text));
        }
        if let Some(json) = citations {
            taker.take(Piece::Aside { place: Place::Block, name: "citations", json: json.get() });
        }
    }
    if let Some(json) = block.citation {
        let json = format!("[{}]", json.get());
        taker.take(Piece::Aside { place: Place::Block, name: "citations", json: &json });
    }
    if let Some(Image { format, source }) = &block.image {
        taker.take(Piece::Image { mime: &format!("image/{format}"), data: &source.bytes });
    }
}

fn think(reasoning: &Reasoning<'_>, taker: &mut dyn Taker) {
    let (text, signature) = match &reasoning.thought {
        Some(thought) => (Some(&*thought.text), thought.signature.as_deref()),
        None => (reasoning.text.as_deref(), reasoning.signature.as_deref()),
    };
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        taker.take(Piece::Thinking(text));
    }
    if let Some(signature) = signature.filter(|signature| !signature.is_empty()) {
        taker.take(Piece::Signature(signature));
    }
    if let Some(data) = reasoning.redacted_content.as_deref() {
        taker.take(Piece::Redacted(data));
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    #[serde(default)]
    content_block_index: u64,
    #[serde(default, borrow)]
    start: Option<Block<'a>>,
    #[serde(default, borrow)]
    delta: Option<Block<'a>>,
    #[serde(default, borrow)]
    stop_reason: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    usage: Option<&'a RawValue>,
    #[serde(default, borrow)]
    message: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    trace: Option<&'a RawValue>,
    #[serde(default, borrow)]
    additional_model_response_fields: Option<&'a RawValue>,
}

/// Hears a streamed conversation.
#[derive(Default)]
pub struct Hearing {
    is_begun: bool,
    /// Which block each call is, and whether something of its arguments came.
    calls: Vec<(u64, bool)>,
    /// Which block was said last.
    said: Option<u64>,
    finish: Option<String>,
}

impl Listener for Hearing {
    fn hear(&mut self, data: &[u8], taker: &mut dyn Taker) {
        self.named("", data, taker);
    }

    fn named(&mut self, name: &str, data: &[u8], taker: &mut dyn Taker) {
        // What is no event of this kind says nothing.
        let Ok(event) = serde_json::from_slice::<Event<'_>>(data) else { return };
        match name {
            "messageStart" => self.begin(taker),
            "contentBlockStart" => {
                let Some(Block { tool_use: Some(call), .. }) = &event.start else { return };
                self.begin(taker);
                taker.take(Piece::Call { id: &call.id, name: &call.name, signature: None });
                self.calls.push((event.content_block_index, false));
            }
            "contentBlockDelta" => self.delta(&event, taker),
            "contentBlockStop" => self.stop(event.content_block_index, taker),
            "messageStop" => {
                self.finish = event.stop_reason.map(Cow::into_owned);
                if let Some(json) = event.additional_model_response_fields {
                    let name = "additionalModelResponseFields";
                    taker.take(Piece::Aside { place: Place::Answer, name, json: json.get() });
                }
            }
            "metadata" => {
                if let Some(usage) = event.usage {
                    cost(usage, taker);
                }
                if let Some(json) = event.trace {
                    taker.take(Piece::Aside { place: Place::Answer, name: "trace", json: json.get() });
                }
            }
            failed => {
                self.finish = None;
                let message = event.message.as_deref().unwrap_or(failed);
                taker.take(Piece::Failed { kind: None, message, code: Some(failed) });
            }
        }
    }

    /// What it cost comes after the word that it is over, so only the end is the end.
    fn over(&mut self, taker: &mut dyn Taker) {
        let Some(reason) = self.finish.take() else { return };
        taker.take(Piece::Finish { reason: &reason, stop_sequence: None });
        taker.take(Piece::End);
    }
}

impl Hearing {
    fn begin(&mut self, taker: &mut dyn Taker) {
        if !std::mem::replace(&mut self.is_begun, true) {
            taker.take(Piece::Start { id: "", model: "" });
        }
    }

    fn delta(&mut self, event: &Event<'_>, taker: &mut dyn Taker) {
        let Some(delta) = &event.delta else { return };
        self.begin(taker);
        let is_text = delta.text.is_some() || delta.citation.is_some();
        if is_text && self.said.replace(event.content_block_index) != Some(event.content_block_index) {
            taker.take(Piece::TextBlock);
        }
        if let Some(text) = delta.text.as_deref() {
            taker.take(Piece::Text(text));
        }
        if let Some(reasoning) = &delta.reasoning_content {
            think(reasoning, taker);
        }
        beside(delta, taker);
        let input = delta.tool_use.as_ref().and_then(|call| call.input);
        let json = input.and_then(|input| serde_json::from_str::<Cow<'_, str>>(input.get()).ok());
        let call = self.calls.iter().position(|(block, _)| *block == event.content_block_index);
        if let (Some(json), Some(call)) = (json.filter(|json| !json.is_empty()), call) {
            self.calls[call].1 = true;
            taker.take(Piece::Arguments { call, json: &json });
        }
    }

    fn stop(&mut self, index: u64, taker: &mut dyn Taker) {
        if let Some(call) = self.calls.iter().position(|(block, said)| *block == index && !said) {
            self.calls[call].1 = true;
            taker.take(Piece::Arguments { call, json: "{}" });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Beside(Vec<String>);

    impl Taker for Beside {
        fn take(&mut self, piece: Piece<'_>) {
            if let Piece::Aside { name, json, .. } = piece {
                self.0.push(format!("{name} {json}"));
            }
        }
    }

    #[test]
    fn what_the_model_says_besides_is_told_of_streams_as_of_whole_answers() {
        let fields = r#"{"stop_sequence":"END"}"#;
        let (mut whole, mut streamed) = (Beside(Vec::new()), Beside(Vec::new()));
        let answer = r#"{"output":{"message":{"role":"assistant","content":[]}},"stopReason":"stop_sequence"}"#;
        let beside = format!(r#","additionalModelResponseFields":{fields}}}"#);
        read(answer.replace(r#"sequence"}"#, &format!(r#"sequence"{beside}"#)).as_bytes(), &mut whole).unwrap();
        let end = format!(r#"{{"stopReason":"stop_sequence"{beside}"#);
        Hearing::default().named("messageStop", end.as_bytes(), &mut streamed);
        assert_eq!(whole.0, [format!("additionalModelResponseFields {fields}")]);
        assert_eq!(streamed.0, whole.0);
    }
}
