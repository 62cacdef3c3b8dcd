//! Writes a streamed message.

use std::io::Write;

use serde_json::{Value, json};

use super::{request::SEAL, usage};
use crate::chat::clients::anthropic_messages::response::{citations, image};
use crate::{
    api_format::{ApiFormat, anthropic_messages},
    chat::{
        event::{Piece, Place, Taker},
        finish_reason,
        request::Fields,
        response_context::{Answering, extend, merge},
        response_writer::Teller,
    },
    citations::Cites,
    translation::errors,
    usage::Usage,
};

#[derive(Debug)]
pub struct Stream {
    out: Vec<u8>,
    answering: Answering,
    is_begun: bool,
    blocks: usize,
    open: Option<Kind>,
    /// What is said next is a block of its own.
    is_apart: bool,
    /// Where the block is from that is open, as it was told after its words: it ends before more of them.
    cited: Vec<Value>,
    /// Which block each call is.
    calls: Vec<usize>,
    usage: Usage,
    finish: Option<(String, Option<String>)>,
    /// What stands beside the words.
    beside: Fields,
    over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    Signed,
    Call,
    /// One that is there at once.
    Entire,
}

impl Stream {
    pub fn new(answering: Answering) -> Self {
        Self {
            out: Vec::new(),
            answering,
            is_begun: false,
            blocks: 0,
            open: None,
            is_apart: false,
            cited: Vec::new(),
            calls: Vec::new(),
            usage: Usage::default(),
            finish: None,
            beside: Fields::new(),
            over: false,
        }
    }

    fn begin(&mut self, id: &str, model: &str) {
        if std::mem::replace(&mut self.is_begun, true) {
            return;
        }
        let model = if model.is_empty() { &self.answering.model } else { model };
        let id = if id.is_empty() { format!("msg_{}", self.answering.mark) } else { id.to_owned() };
        let message = json!({"id": id, "type": "message", "role": "assistant", "model": model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": usage(&self.usage)});
        self.event("message_start", &json!({"type": "message_start", "message": message}));
    }

    fn event(&mut self, name: &str, data: &Value) {
        // A Vec takes every write.
        let _ = write!(self.out, "event: {name}\ndata: {data}\n\n");
    }

    /// Sees to it that a block of this kind is open.
    fn open(&mut self, kind: Kind, block: &Value) {
        if self.open == Some(kind) && kind != Kind::Call {
            return;
        }
        self.begin("", "");
        self.close();
        let index = self.blocks;
        self.event(
            "content_block_start",
            &json!({"type": "content_block_start", "index": index, "content_block": block}),
        );
        self.open = Some(kind);
        self.blocks += 1;
    }

    fn close(&mut self) {
        self.cited.clear();
        if self.open.take().is_some() {
            let index = self.blocks - 1;
            self.event("content_block_stop", &json!({"type": "content_block_stop", "index": index}));
        }
    }

    fn delta(&mut self, index: usize, kind: &str, key: &str, text: &str) {
        let _ = write!(
            self.out,
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{index},\"delta\":{{\"type\":\"{kind}\",\"{key}\":"
        );
        let _ = serde_json::to_writer(&mut self.out, text);
        self.out.extend_from_slice(b"}}\n\n");
    }

    fn text(&mut self, text: &str) {
        self.is_apart |= !self.cited.is_empty();
        self.open_text();
        self.delta(self.blocks - 1, "text_delta", "text", text);
    }

    fn open_text(&mut self) {
        let is_apart = std::mem::take(&mut self.is_apart);
        if self.open != Some(Kind::Text) || is_apart {
            self.close();
            self.open(Kind::Text, &json!({"type": "text", "text": ""}));
        }
    }

    /// Where the text is from that is said, or is about to be.
    fn cite(&mut self, citations: Vec<Value>) {
        self.open_text();
        let index = self.blocks - 1;
        for citation in citations {
            let delta = json!({"type": "citations_delta", "citation": citation});
            let event = json!({"type": "content_block_delta", "index": index, "delta": delta});
            self.event("content_block_delta", &event);
        }
    }

    /// What was said already stays in its block, which all that it is from is told with.
    fn cites(&mut self, cites: &Cites<'_>) {
        let is_open = self.open == Some(Kind::Text) && !self.is_apart;
        if is_open {
            for source in cites.to_anthropic(&self.answering.documents) {
                if !self.cited.contains(&source) {
                    self.cited.push(source.clone());
                    self.cite(vec![source]);
                }
            }
        }
        if self.answering.strict {
            for name in self.answering.lose_of(cites, is_open || cites.cited.is_empty()) {
                self.comment(&name);
            }
        } else {
            self.aside(cites.place, cites.name, cites.json);
        }
    }

    fn aside(&mut self, place: Place, name: &str, json: &str) {
        if let Some(citations) = citations(place, name, json) {
            self.cite(citations);
        } else if self.answering.strict {
            self.lose(name);
        } else if let Ok(value) = serde_json::from_str(json) {
            merge(&mut self.beside, name, value);
        }
    }

    fn think(&mut self, text: &str) {
        if self.open != Some(Kind::Thinking) {
            self.open(Kind::Thinking, &json!({"type": "thinking", "thinking": "", "signature": ""}));
        }
        if !text.is_empty() {
            self.delta(self.blocks - 1, "thinking_delta", "thinking", text);
        }
    }

    fn sign(&mut self, signature: &str) {
        self.think("");
        self.delta(self.blocks - 1, "signature_delta", "signature", signature);
        self.open = Some(Kind::Signed);
    }

    /// A block that is there at once.
    fn show(&mut self, block: &Value) {
        self.open(Kind::Entire, block);
        self.close();
    }

    /// Names in a comment what cannot be told: the head of the answer is long gone.
    fn lose(&mut self, name: &str) {
        if self.answering.unsaid.add(name) {
            self.comment(name);
        }
    }

    fn comment(&mut self, name: &str) {
        let _ = write!(self.out, ": not translated: {name}\n\n");
    }

    fn call(&mut self, id: &str, name: &str, signature: Option<&str>) {
        let mut block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
        if let Some(signature) = signature {
            block["thought_signature"] = signature.into();
        }
        self.open(Kind::Call, &block);
        self.calls.push(self.blocks - 1);
    }

    fn end(&mut self) {
        self.begin("", "");
        self.close();
        self.over = true;
        let (reason, sequence) = self.finish.take().unwrap_or_default();
        let delta = json!({"stop_reason": finish_reason::to_anthropic(&reason), "stop_sequence": sequence});
        let mut last = json!({"type": "message_delta", "delta": delta, "usage": usage(&self.usage)});
        extend(&mut last, &mut self.beside);
        self.event("message_delta", &last);
        self.out.extend_from_slice(anthropic_messages::STOP_EVENT);
    }
}

impl Taker for Stream {
    fn take(&mut self, piece: Piece<'_>) {
        if self.over {
            return;
        }
        match piece {
            Piece::Start { id, model } => self.begin(id, model),
            Piece::TextBlock => self.is_apart = true,
            Piece::Text("") | Piece::Refusal("") | Piece::Thinking("") => (),
            Piece::Text(text) | Piece::Refusal(text) => self.text(text),
            Piece::Thinking(text) => self.think(text),
            Piece::Signature(signature) => self.sign(signature),
            Piece::Redacted(data) => self.show(&json!({"type": "redacted_thinking", "data": data})),
            Piece::Seal(signature) => {
                self.show(&json!({"type": "redacted_thinking", "data": format!("{SEAL}{signature}")}));
            }
            Piece::Image { mime, data } if self.answering.images => self.show(&image(mime, data)),
            Piece::Image { .. } => self.lose("image"),
            Piece::Aside { place, name, json } => self.aside(place, name, json),
            Piece::Cites(cites) => self.cites(&cites),
            Piece::Native { kind: name, .. } if self.answering.strict => self.lose(name),
            Piece::Native { json, .. } => {
                if let Ok(block) = serde_json::from_str(json) {
                    self.show(&block);
                }
            }
            Piece::Call { id, name, signature } => self.call(id, name, signature),
            Piece::Arguments { call, json } => {
                if let (Some(block), false) = (self.calls.get(call), json.is_empty()) {
                    self.delta(*block, "input_json_delta", "partial_json", json);
                }
            }
            Piece::Usage(usage) => self.usage = usage,
            Piece::Finish { reason, stop_sequence } => {
                self.finish = Some((reason.to_owned(), stop_sequence.map(ToOwned::to_owned)));
            }
            Piece::Failed { kind, message, code } => {
                self.over = true;
                let failure = errors::on_the_way(ApiFormat::Anthropic, kind, message, code);
                self.out.extend_from_slice(&anthropic_messages::error_event(&failure));
            }
            Piece::End => self.end(),
        }
    }
}

impl Teller for Stream {
    fn told(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}
