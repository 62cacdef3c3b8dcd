//! Writes whole content.

use serde_json::Value;

use super::parts::{self, Calling, Said};
use crate::{
    chat::{
        event::{Piece, Taker},
        response_context::Answering,
        response_writer::Teller,
    },
    citations::Cites,
    usage::Usage,
};

#[derive(Debug)]
pub struct Whole {
    answering: Answering,
    id: String,
    model: String,
    parts: Vec<Value>,
    /// Which part each call is.
    calls: Vec<(usize, Calling)>,
    usage: Option<Usage>,
    finish: String,
}

impl Whole {
    pub fn new(answering: Answering) -> Self {
        Self {
            answering,
            id: String::new(),
            model: String::new(),
            parts: Vec::new(),
            calls: Vec::new(),
            usage: None,
            finish: String::new(),
        }
    }

    /// Adds to the last part where it is of the same kind.
    fn add(&mut self, part: Value) {
        let is_open = |last: &&mut Value| {
            last["text"].is_string() && last["thought"] == part["thought"] && last.get("thoughtSignature").is_none()
        };
        let Some(last) = self.parts.last_mut().filter(is_open) else { return self.parts.push(part) };
        if let (Value::String(so_far), Some(more)) = (&mut last["text"], part["text"].as_str()) {
            so_far.push_str(more);
        }
        if let Some(signature) = part.get("thoughtSignature") {
            last["thoughtSignature"] = signature.clone();
        }
    }
}

impl Taker for Whole {
    fn take(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Start { id, model } => {
                id.clone_into(&mut self.id);
                model.clone_into(&mut self.model);
            }
            Piece::Text("")
            | Piece::TextBlock
            | Piece::Refusal("")
            | Piece::Thinking("")
            | Piece::Failed { .. }
            | Piece::End => (),
            Piece::Text(text) | Piece::Refusal(text) => self.add(parts::text(text)),
            Piece::Thinking(text) if self.answering.blocks => self.add(parts::thought(text)),
            Piece::Signature(text) if self.answering.blocks => self.add(parts::signature(text)),
            Piece::Redacted(data) if self.answering.blocks => self.parts.push(parts::redacted(data)),
            Piece::Thinking(_) | Piece::Signature(_) | Piece::Redacted(_) => (),
            Piece::Seal(signature) => self.add(parts::seal(signature)),
            Piece::Image { mime, data } => self.parts.push(parts::image(mime, data)),
            Piece::Aside { name, .. } | Piece::Cites(Cites { name, .. }) | Piece::Native { kind: name, .. } => {
                self.answering.lose(name);
            }
            Piece::Call { id, name, signature } => {
                self.calls.push((self.parts.len(), Calling::new(id, name, signature)));
                self.parts.push(Value::Null);
            }
            Piece::Arguments { call, json } => {
                if let Some((_, call)) = self.calls.get_mut(call) {
                    call.arguments.push_str(json);
                }
            }
            Piece::Usage(usage) => self.usage = Some(usage),
            Piece::Finish { reason, .. } => reason.clone_into(&mut self.finish),
        }
    }
}

impl Teller for Whole {
    fn told(&mut self) -> Vec<u8> {
        for (part, call) in &self.calls {
            self.parts[*part] = call.told();
        }
        let parts = std::mem::take(&mut self.parts);
        let said = Said { parts, finish: Some(&self.finish), usage: self.usage.as_ref() };
        said.told(&self.answering, &self.id, &self.model).to_string().into_bytes()
    }
}
