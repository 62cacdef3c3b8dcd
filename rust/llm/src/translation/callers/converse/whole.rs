//! Writes a whole conversation's next message.

use serde_json::{Value, json};

use super::{seals, usage};
use crate::{
    translation::{
        answering::Answering,
        asked::Fields,
        finish,
        piece::{Piece, Taker},
        teller::Teller,
    },
    usage::Usage,
};

#[derive(Debug)]
pub struct Whole {
    answering: Answering,
    blocks: Vec<Value>,
    /// Which block each call is, and its arguments so far.
    calls: Vec<(usize, String)>,
    usage: Usage,
    finish: String,
}

impl Whole {
    pub fn new(answering: Answering) -> Self {
        Self { answering, blocks: Vec::new(), calls: Vec::new(), usage: Usage::default(), finish: String::new() }
    }

    fn say(&mut self, text: &str) {
        if let Some(Value::String(so_far)) = self.blocks.last_mut().and_then(|last| last.get_mut("text")) {
            return so_far.push_str(text);
        }
        self.blocks.push(json!({"text": text}));
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
            Piece::Text("")
            | Piece::TextBlock
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
            Piece::Seal(signature) => self.blocks.push(seals::of_text(signature)),
            Piece::Image { mime, data } => {
                let format = mime.trim_start_matches("image/");
                self.blocks.push(json!({"image": {"format": format, "source": {"bytes": data}}}));
            }
            Piece::Aside { name, .. } | Piece::Native { kind: name, .. } => self.answering.lose(name),
            Piece::Call { id, name, signature } => {
                self.blocks.extend(signature.map(seals::of_call));
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
        let message = json!({"role": "assistant", "content": std::mem::take(&mut self.blocks)});
        let told = json!({"output": {"message": message}, "stopReason": finish::to_bedrock(&self.finish),
            "usage": usage(&self.usage)});
        told.to_string().into_bytes()
    }
}
