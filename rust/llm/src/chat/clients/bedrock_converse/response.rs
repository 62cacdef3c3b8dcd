//! Writes a whole conversation's next message.

use std::ops::Range;

use serde_json::{Value, json};

use super::usage;
use crate::chat::clients::bedrock_converse::signature_blocks;
use crate::{
    chat::{
        event::{Piece, Place, Taker},
        finish_reason,
        request::Fields,
        response_context::Answering,
        response_writer::Teller,
    },
    citations::{self, Cited, Cites},
    usage::Usage,
};

/// Beside a text until all of it is said.
const CITATIONS: &str = "citations";

/// Where a block of text is from, if it is that and this dialect can say it.
pub(crate) fn citations(place: Place, name: &str, json: &str) -> Option<Vec<Value>> {
    let list = (place == Place::Block && name == CITATIONS).then(|| serde_json::from_str(json).ok()).flatten()?;
    citations::to_converse(&list)
}

#[derive(Debug)]
pub struct Whole {
    answering: Answering,
    blocks: Vec<Value>,
    /// What is said next is a block of its own.
    is_apart: bool,
    /// Which block each call is, and its arguments so far.
    calls: Vec<(usize, String)>,
    /// Which stretches of all texts are from where.
    cited: Vec<(Range<usize>, Value)>,
    usage: Usage,
    finish: String,
}

impl Whole {
    pub fn new(answering: Answering) -> Self {
        Self {
            answering,
            blocks: Vec::new(),
            is_apart: false,
            calls: Vec::new(),
            cited: Vec::new(),
            usage: Usage::default(),
            finish: String::new(),
        }
    }

    fn say(&mut self, text: &str) {
        let is_apart = std::mem::take(&mut self.is_apart);
        let last = self.blocks.last_mut().filter(|_| !is_apart);
        if let Some(Value::String(so_far)) = last.and_then(|last| last.get_mut("text")) {
            return so_far.push_str(text);
        }
        self.blocks.push(json!({"text": text}));
    }

    /// Where the text is from that is said, or is about to be.
    fn cite(&mut self, citations: Vec<Value>) {
        if self.is_apart || self.blocks.last().is_none_or(|last| last.get("text").is_none()) {
            self.say("");
        }
        if let Some(last) = self.blocks.last_mut() {
            match &mut last[CITATIONS] {
                Value::Array(told) => told.extend(citations),
                none => *none = citations.into(),
            }
        }
    }

    fn cites(&mut self, cites: &Cites<'_>) {
        let before = self.cited.len();
        let told = |one: &Cited| Some((one.claim.clone(), one.to_converse(&self.answering.documents)?));
        self.cited.extend(cites.cited.iter().filter_map(told));
        self.answering.lose_of(cites, self.cited.len() - before == cites.cited.len());
    }

    /// The thought that is not signed yet.
    fn thought(&mut self) -> &mut Value {
        let is_open = |last: &Value| {
            let thought = &last["reasoningContent"]["reasoningText"];
            thought.is_object() && thought.get("signature").is_none()
        };
        if !self.blocks.last().is_some_and(is_open) {
            self.blocks.push(json!({"reasoningContent": {"reasoningText": {"text": ""}}}));
        }
        let last = self.blocks.len() - 1;
        &mut self.blocks[last]["reasoningContent"]["reasoningText"]
    }
}

impl Taker for Whole {
    fn take(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::TextBlock => self.is_apart = true,
            Piece::Text("")
            | Piece::Refusal("")
            | Piece::Thinking("")
            | Piece::Start { .. }
            | Piece::Failed { .. }
            | Piece::End => (),
            Piece::Text(text) | Piece::Refusal(text) => self.say(text),
            Piece::Thinking(text) => {
                if let Value::String(so_far) = &mut self.thought()["text"] {
                    so_far.push_str(text);
                }
            }
            Piece::Signature(signature) => self.thought()["signature"] = signature.into(),
            Piece::Redacted(data) => self.blocks.push(json!({"reasoningContent": {"redactedContent": data}})),
            Piece::Seal(signature) => self.blocks.push(signature_blocks::of_text(signature)),
            Piece::Image { mime, data } => {
                let format = mime.trim_start_matches("image/");
                self.blocks.push(json!({"image": {"format": format, "source": {"bytes": data}}}));
            }
            Piece::Aside { place, name, json } => match citations(place, name, json) {
                Some(citations) => self.cite(citations),
                None => self.answering.lose(name),
            },
            Piece::Cites(cites) => self.cites(&cites),
            Piece::Native { kind: name, .. } => self.answering.lose(name),
            Piece::Call { id, name, signature } => {
                self.blocks.extend(signature.map(signature_blocks::of_call));
                self.calls.push((self.blocks.len(), String::new()));
                self.blocks.push(json!({"toolUse": {"toolUseId": id, "name": name, "input": {}}}));
            }
            Piece::Arguments { call, json } => {
                if let Some((_, arguments)) = self.calls.get_mut(call) {
                    arguments.push_str(json);
                }
            }
            Piece::Usage(usage) => self.usage = usage,
            Piece::Finish { reason, .. } => reason.clone_into(&mut self.finish),
        }
    }
}

impl Teller for Whole {
    fn told(&mut self) -> Vec<u8> {
        for (block, arguments) in std::mem::take(&mut self.calls) {
            // What is no object was cut by the provider's limit.
            let input = serde_json::from_str::<Fields>(&arguments).unwrap_or_default();
            self.blocks[block]["toolUse"]["input"] = input.into();
        }
        if !self.cited.is_empty() {
            self.blocks = citations::cut(std::mem::take(&mut self.blocks), std::mem::take(&mut self.cited));
        }
        for block in &mut self.blocks {
            if let Some(citations) = block.as_object_mut().and_then(|block| block.shift_remove(CITATIONS)) {
                *block = json!({"citationsContent": {"content": [block.take()], "citations": citations}});
            }
        }
        let message = json!({"role": "assistant", "content": std::mem::take(&mut self.blocks)});
        let told = json!({"output": {"message": message}, "stopReason": finish_reason::to_bedrock(&self.finish),
            "usage": usage(&self.usage)});
        told.to_string().into_bytes()
    }
}
