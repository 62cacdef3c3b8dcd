//! Writes a whole chat completion.

use serde_json::{Value, json};

use super::usage;
use crate::{
    chat::{
        event::{Piece, Place, Taker},
        finish_reason,
        request::Fields,
        response_context::{Answering, extend, merge},
        response_writer::Teller,
    },
    citations::{ANNOTATIONS, Cited, Cites},
    usage::Usage,
};

#[derive(Debug)]
pub struct Whole {
    answering: Answering,
    id: String,
    model: String,
    text: Option<String>,
    refusal: Option<String>,
    blocks: Vec<Value>,
    /// What is said next is a block of its own.
    is_apart: bool,
    calls: Vec<Called>,
    seal: Option<String>,
    beside: Beside,
    usage: Option<Usage>,
    finish: String,
}

/// What stands beside the words.
#[derive(Debug, Default)]
struct Beside {
    answer: Fields,
    choice: Fields,
    message: Fields,
}

#[derive(Debug)]
struct Called {
    id: String,
    name: String,
    arguments: String,
    signature: Option<String>,
}

impl Whole {
    pub fn new(answering: Answering) -> Self {
        Self {
            model: answering.model.clone(),
            id: answering.name(),
            answering,
            text: None,
            refusal: None,
            blocks: Vec::new(),
            is_apart: false,
            calls: Vec::new(),
            seal: None,
            beside: Beside::default(),
            usage: None,
            finish: String::new(),
        }
    }

    /// Adds to the last block where it is of this kind, else begins one.
    fn block(&mut self, kind: &'static str, key: &'static str, text: &str) {
        if !self.answering.blocks {
            return;
        }
        let is_apart = kind == "text" && std::mem::take(&mut self.is_apart);
        let is_open = |last: &&mut Value| !is_apart && last["type"] == kind && last.get("signature").is_none();
        if let Some(last) = self.blocks.last_mut().filter(is_open)
            && let Some(Value::String(so_far)) = last.get_mut(key)
        {
            so_far.push_str(text);
            return;
        }
        self.blocks.push(json!({"type": kind, key: text}));
    }

    fn sign(&mut self, signature: &str) {
        if let Some(last) = self.blocks.last_mut().filter(|last| last["type"] == "thinking") {
            last["signature"] = signature.into();
        } else if self.answering.blocks {
            self.blocks.push(json!({"type": "thinking", "thinking": "", "signature": signature}));
        }
    }

    /// A block that is not text.
    fn show(&mut self, is_shown: bool, kind: &str, block: Value) {
        if is_shown {
            self.blocks.push(block);
        } else {
            self.answering.unsaid.add(kind);
        }
    }

    fn add(&mut self, place: Place, name: &str, json: &str) {
        let kept = match place {
            Place::Choice => self.answering.kept_of_choice(name, json),
            _ => self.answering.kept(name, json),
        };
        let Some(value) = kept else { return };
        if place == Place::Block && self.is_apart {
            // Some say where it is from before they say it.
            self.block("text", "text", "");
        }
        let last = self.blocks.last_mut().filter(|last| last["type"] == "text");
        let fields = match (place, last.and_then(Value::as_object_mut)) {
            (Place::Block, Some(block)) => block,
            (Place::Choice, _) => &mut self.beside.choice,
            (Place::Answer, _) => &mut self.beside.answer,
            (Place::Block | Place::Message, _) => &mut self.beside.message,
        };
        merge(fields, name, value);
    }

    fn cites(&mut self, cites: &Cites<'_>) {
        let told: Vec<_> = cites.cited.iter().filter_map(Cited::to_chat).collect();
        let is_told = told.len() == cites.cited.len();
        if !told.is_empty() {
            merge(&mut self.beside.message, ANNOTATIONS, told.into());
        }
        if self.answering.strict {
            self.answering.lose_of(cites, is_told);
        } else if let Some((place, name, json)) = cites.beside_annotations() {
            self.add(place, name, json);
        }
    }

    fn message(&mut self) -> Value {
        let mut message = json!({"role": "assistant", "content": self.text.take(), "refusal": self.refusal.take()});
        if !self.blocks.is_empty() {
            message["content_blocks"] = std::mem::take(&mut self.blocks).into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = std::mem::take(&mut self.calls).into_iter().map(Called::told).collect();
        }
        if let Some(signature) = self.seal.take() {
            message["extra_content"] = json!({"google": {"thought_signature": signature}});
        }
        extend(&mut message, &mut self.beside.message);
        message
    }
}

impl Called {
    fn told(self) -> Value {
        let Self { id, name, arguments, signature } = self;
        let mut call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        if let Some(signature) = signature {
            call["extra_content"] = json!({"google": {"thought_signature": signature}});
        }
        call
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
            Piece::Text(text) => {
                self.text.get_or_insert_default().push_str(text);
                self.block("text", "text", text);
            }
            Piece::TextBlock => self.is_apart = !self.answering.strict,
            Piece::Refusal(text) => self.refusal.get_or_insert_default().push_str(text),
            Piece::Thinking(text) if !self.answering.blocks && !text.is_empty() => {
                self.answering.lose("thinking");
            }
            Piece::Thinking(text) => self.block("thinking", "thinking", text),
            Piece::Signature(signature) => self.sign(signature),
            Piece::Redacted(data) => {
                self.show(self.answering.blocks, "thinking", json!({"type": "redacted_thinking", "data": data}));
            }
            Piece::Image { mime, data } => {
                let url = format!("data:{mime};base64,{data}");
                self.show(self.answering.images, "image", json!({"type": "image_url", "image_url": {"url": url}}));
            }
            Piece::Seal(signature) => {
                if self.seal.replace(signature.to_owned()).is_some() {
                    self.answering.unsaid.add("thought_signature");
                }
            }
            Piece::Aside { place, name, json } => self.add(place, name, json),
            Piece::Cites(cites) => self.cites(&cites),
            Piece::Native { kind, json } => {
                if let Some(block) = self.answering.kept(kind, json) {
                    self.blocks.push(block);
                }
            }
            Piece::Call { id, name, signature } => self.calls.push(Called {
                id: id.to_owned(),
                name: name.to_owned(),
                arguments: String::new(),
                signature: signature.map(ToOwned::to_owned),
            }),
            Piece::Arguments { call, json } => {
                if let Some(called) = self.calls.get_mut(call) {
                    called.arguments.push_str(json);
                }
            }
            Piece::Usage(usage) => self.usage = Some(usage),
            Piece::Finish { reason, .. } => reason.clone_into(&mut self.finish),
            Piece::Failed { .. } | Piece::End => (),
        }
    }
}

impl Teller for Whole {
    fn told(&mut self) -> Vec<u8> {
        let message = self.message();
        let reason = if self.answering.strict { finish_reason::to_openai(&self.finish) } else { &self.finish };
        let mut choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": reason});
        extend(&mut choice, &mut self.beside.choice);
        let mut answer = json!({"id": self.id, "object": "chat.completion", "created": self.answering.created,
            "model": self.model, "provider": self.answering.provider, "choices": [choice]});
        if let Some(cost) = &self.usage {
            answer["usage"] = usage(cost);
        }
        extend(&mut answer, &mut self.beside.answer);
        answer.to_string().into_bytes()
    }
}
