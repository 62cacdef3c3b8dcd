//! Writes a whole message.

use std::ops::Range;

use serde_json::{Value, json};

use super::{request::SEAL, usage};
use crate::{
    chat::{
        event::{Piece, Place, Taker},
        finish_reason,
        request::Fields,
        response_context::{Answering, extend, merge},
        response_writer::Teller,
    },
    citations::{self, Cites},
    usage::Usage,
};

#[derive(Debug)]
pub struct Whole {
    answering: Answering,
    id: String,
    model: String,
    blocks: Vec<Value>,
    /// What is said next is a block of its own.
    is_apart: bool,
    /// Which block each call is, and its arguments so far.
    calls: Vec<(usize, String)>,
    /// Which stretches of all texts are from where.
    cited: Vec<(Range<usize>, Value)>,
    usage: Usage,
    finish: String,
    stop_sequence: Option<String>,
    /// What stands beside the words.
    beside: Fields,
}

/// An image as this dialect has them in requests; its own answers have none.
pub(crate) fn image(mime: &str, data: &str) -> Value {
    json!({"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}})
}

/// Where a block of text is from, if it is that and this dialect can say it.
pub(crate) fn citations(place: Place, name: &str, json: &str) -> Option<Vec<Value>> {
    let list = (place == Place::Block && name == "citations").then(|| serde_json::from_str(json).ok()).flatten()?;
    citations::to_anthropic(&list)
}

impl Whole {
    pub fn new(answering: Answering) -> Self {
        Self {
            id: format!("msg_{}", answering.mark),
            model: answering.model.clone(),
            blocks: Vec::new(),
            is_apart: false,
            calls: Vec::new(),
            cited: Vec::new(),
            usage: Usage::default(),
            finish: String::new(),
            stop_sequence: None,
            beside: Fields::new(),
            answering,
        }
    }

    fn add(&mut self, kind: &'static str, key: &'static str, text: &str) {
        let is_apart = kind == "text" && std::mem::take(&mut self.is_apart);
        let is_open = |last: &&mut Value| {
            !is_apart && last["type"] == kind && last["signature"].as_str().is_none_or(str::is_empty)
        };
        if let Some(last) = self.blocks.last_mut().filter(is_open)
            && let Some(Value::String(so_far)) = last.get_mut(key)
        {
            return so_far.push_str(text);
        }
        let mut block = json!({"type": kind, key: text});
        if kind == "thinking" {
            block["signature"] = "".into();
        }
        self.blocks.push(block);
    }

    /// Where the text is from that is said, or is about to be.
    fn cite(&mut self, citations: Vec<Value>) {
        if self.is_apart || self.blocks.last().is_none_or(|last| last["type"] != "text") {
            self.add("text", "text", "");
        }
        if let Some(last) = self.blocks.last_mut() {
            match &mut last["citations"] {
                Value::Array(told) => told.extend(citations),
                none => *none = citations.into(),
            }
        }
    }

    fn cites(&mut self, cites: &Cites<'_>) {
        let claims = cites.cited.iter().map(|one| one.claim.clone());
        self.cited.extend(claims.zip(cites.to_anthropic(&self.answering.documents)));
        if self.answering.strict {
            self.answering.lose_of(cites, true);
        } else if let Some(value) = self.answering.kept(cites.name, cites.json) {
            merge(&mut self.beside, cites.name, value);
        }
    }

    fn sign(&mut self, signature: &str) {
        self.add("thinking", "thinking", "");
        if let Some(last) = self.blocks.last_mut() {
            last["signature"] = signature.into();
        }
    }

    fn call(&mut self, id: &str, name: &str, signature: Option<&str>) {
        let mut block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        if let Some(signature) = signature {
            block["thought_signature"] = signature.into();
        }
        self.calls.push((self.blocks.len(), String::new()));
        self.blocks.push(block);
    }
}

impl Taker for Whole {
    fn take(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Start { id, model } => {
                if !id.is_empty() {
                    id.clone_into(&mut self.id);
                }
                if !model.is_empty() {
                    model.clone_into(&mut self.model);
                }
            }
            Piece::TextBlock => self.is_apart = true,
            Piece::Text("") | Piece::Refusal("") | Piece::Thinking("") | Piece::Failed { .. } | Piece::End => (),
            Piece::Text(text) | Piece::Refusal(text) => self.add("text", "text", text),
            Piece::Thinking(text) => self.add("thinking", "thinking", text),
            Piece::Signature(signature) => self.sign(signature),
            Piece::Redacted(data) => self.blocks.push(json!({"type": "redacted_thinking", "data": data})),
            Piece::Seal(signature) => {
                self.blocks.push(json!({"type": "redacted_thinking", "data": format!("{SEAL}{signature}")}));
            }
            Piece::Image { mime, data } if self.answering.images => self.blocks.push(image(mime, data)),
            Piece::Image { .. } => self.answering.lose("image"),
            Piece::Aside { place, name, json } => {
                if let Some(citations) = citations(place, name, json) {
                    self.cite(citations);
                } else if let Some(value) = self.answering.kept(name, json) {
                    merge(&mut self.beside, name, value);
                }
            }
            Piece::Cites(cites) => self.cites(&cites),
            Piece::Native { kind, json } => self.blocks.extend(self.answering.kept(kind, json)),
            Piece::Call { id, name, signature } => self.call(id, name, signature),
            Piece::Arguments { call, json } => {
                if let Some((_, arguments)) = self.calls.get_mut(call) {
                    arguments.push_str(json);
                }
            }
            Piece::Usage(usage) => self.usage = usage,
            Piece::Finish { reason, stop_sequence } => {
                reason.clone_into(&mut self.finish);
                self.stop_sequence = stop_sequence.map(ToOwned::to_owned);
            }
        }
    }
}

impl Teller for Whole {
    fn told(&mut self) -> Vec<u8> {
        for (block, arguments) in std::mem::take(&mut self.calls) {
            // What is no object was cut by the provider's limit.
            let input = serde_json::from_str::<Fields>(&arguments).unwrap_or_default();
            if let Some(block) = self.blocks.get_mut(block) {
                block["input"] = input.into();
            }
        }
        let mut content = std::mem::take(&mut self.blocks);
        if !self.cited.is_empty() {
            content = citations::cut(content, std::mem::take(&mut self.cited));
        }
        let mut answer = json!({"id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": finish_reason::to_anthropic(&self.finish),
            "stop_sequence": self.stop_sequence, "usage": usage(&self.usage)});
        extend(&mut answer, &mut self.beside);
        answer.to_string().into_bytes()
    }
}
