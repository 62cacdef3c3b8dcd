//! Writes a streamed chat completion.

use std::io::Write;

use serde_json::{Value, json};

use super::usage;
use crate::{
    api_format::{ApiFormat, Failure, openai_chat},
    chat::{
        event::{Piece, Place, Taker},
        finish_reason,
        response_context::{Answering, is_of_chat},
        response_writer::Teller,
    },
    citations::{ANNOTATIONS, Cited, Cites},
    translation::errors,
    usage::Usage,
};

const BEFORE_DELTA: &[u8] = b",\"choices\":[{\"index\":0,\"delta\":{";
const AFTER_DELTA: &[u8] = b"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";

#[derive(Debug)]
pub struct Stream {
    out: Vec<u8>,
    /// What every chunk begins with.
    head: Vec<u8>,
    answering: Answering,
    calls: usize,
    /// How many annotations were told.
    cited: usize,
    /// Blocks so far, and what the last one holds.
    block: Option<(usize, &'static str)>,
    /// What is said next is a block of its own.
    is_apart: bool,
    usage: Option<Usage>,
    finish: Option<String>,
    over: bool,
}

impl Stream {
    pub fn new(answering: Answering) -> Self {
        let mut stream = Self {
            out: Vec::new(),
            head: Vec::new(),
            answering,
            calls: 0,
            cited: 0,
            block: None,
            is_apart: false,
            usage: None,
            finish: None,
            over: false,
        };
        let model = stream.answering.model.clone();
        stream.begin("", &model);
        stream
    }

    fn begin(&mut self, id: &str, model: &str) {
        let Answering { provider, created, .. } = &self.answering;
        let id = if id.is_empty() { self.answering.name() } else { id.to_owned() };
        let head = json!({"id": id, "object": "chat.completion.chunk", "created": created, "model": model,
            "provider": provider});
        self.head = format!("data: {head}").into_bytes();
        self.head.pop();
    }

    /// A chunk with one choice, of which the delta's fields are given, and about how long they are.
    fn chunk(&mut self, length: usize, delta: impl FnOnce(&mut Vec<u8>)) {
        // Room that is exact is neither grown nor copied.
        self.out.reserve(self.head.len() + BEFORE_DELTA.len() + length + AFTER_DELTA.len());
        self.out.extend_from_slice(&self.head);
        self.out.extend_from_slice(BEFORE_DELTA);
        delta(&mut self.out);
        self.out.extend_from_slice(AFTER_DELTA);
    }

    fn said(&mut self, key: &'static str, text: &str) {
        let block = self.shown(key);
        let length = if block.is_some() { 2 * text.len() + 64 } else { room("content", text) };
        self.chunk(length, |out| {
            if matches!(key, "text") {
                field(out, "content", text);
            }
            let Some(block) = block else { return };
            if matches!(key, "text") {
                out.push(b',');
            }
            // A Vec takes every write.
            let _ = write!(out, "\"content_blocks\":[{{\"index\":{block},\"delta\":{{");
            field(out, key, text);
            out.extend_from_slice(b"}}]");
        });
    }

    /// The block that a run of text belongs to, where blocks are shown.
    fn shown(&mut self, key: &'static str) -> Option<usize> {
        if !self.answering.blocks {
            return None;
        }
        let of = if key == "signature" { "thinking" } else { key };
        let is_apart = key == "text" && std::mem::take(&mut self.is_apart);
        let at = match self.block {
            Some((at, last)) if last == of && key != "data" && !is_apart => at,
            Some((at, _)) => at + 1,
            None => 0,
        };
        self.block = Some((at, if key == "signature" { "signed" } else { of }));
        Some(at)
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

    fn cites(&mut self, cites: &Cites<'_>) {
        let mut told: Vec<_> = cites.cited.iter().filter_map(Cited::to_chat).collect();
        let is_told = told.len() == cites.cited.len();
        for one in &mut told {
            // OpenAI, which tells all in one chunk, has none; its SDKs put lists of several chunks together by it alone.
            one["index"] = self.cited.into();
            self.cited += 1;
        }
        if !told.is_empty() {
            self.event(&choice(&json!({ANNOTATIONS: told})));
        }
        if self.answering.strict {
            for name in self.answering.lose_of(cites, is_told) {
                self.comment(&name);
            }
        } else if let Some((place, name, json)) = cites.beside_annotations() {
            self.add(place, name, json);
        }
    }

    /// A block that is not text.
    fn show(&mut self, kind: &'static str, delta: &Value) {
        let at = self.block.map_or(0, |(at, _)| at + 1);
        self.block = Some((at, kind));
        self.event(&choice(&json!({"content_blocks": [{"index": at, "delta": delta}]})));
    }

    fn add(&mut self, place: Place, name: &str, json: &str) {
        let Ok(value) = serde_json::from_str::<Value>(json) else { return };
        if place == Place::Block && self.is_apart {
            // Some say where it is from before they say it.
            self.shown("text");
        }
        match (place, self.block) {
            _ if self.answering.strict && !(place == Place::Choice && is_of_chat(name, json)) => self.lose(name),
            (Place::Block, Some((at, "text"))) => {
                self.event(&choice(&json!({"content_blocks": [{"index": at, "delta": {name: value}}]})));
            }
            (Place::Choice, _) => {
                let mut chunk = choice(&json!({}));
                chunk["choices"][0][name] = value;
                self.event(&chunk);
            }
            (Place::Answer, _) => {
                let mut chunk = choice(&json!({}));
                chunk[name] = value;
                self.event(&chunk);
            }
            (Place::Block | Place::Message, _) => self.event(&choice(&json!({name: value}))),
        }
    }

    fn call(&mut self, id: &str, name: &str, signature: Option<&str>) {
        let index = self.calls;
        self.calls += 1;
        self.block = Some((self.block.map_or(0, |(at, _)| at + 1), "call"));
        let mut call =
            json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        if let Some(signature) = signature {
            call["extra_content"] = json!({"google": {"thought_signature": signature}});
        }
        self.chunk(128, |out| {
            let _ = write!(out, "\"tool_calls\":[{call}]");
        });
    }

    fn failed(&mut self, failure: &Failure<'_>) {
        self.over = true;
        let event = openai_chat::error_event(failure);
        self.out.extend_from_slice(&event);
    }

    fn end(&mut self) {
        self.over = true;
        let reason = self.finish.take().unwrap_or_default();
        let reason = if self.answering.strict { finish_reason::to_openai(&reason) } else { &reason };
        self.event(&json!({"choices": [{"index": 0, "delta": {}, "logprobs": null, "finish_reason": reason}]}));
        // In an event of its own, which is taken out again where nobody asked for it.
        if let Some(cost) = self.usage.take() {
            self.event(&json!({"choices": [], "usage": usage(&cost)}));
        }
        self.out.extend_from_slice(openai_chat::DONE_EVENT);
    }

    /// A chunk whose fields after the head are those of an object.
    fn event(&mut self, fields: &Value) {
        let text = fields.to_string();
        self.out.extend_from_slice(&self.head);
        self.out.push(b',');
        self.out.extend_from_slice(&text.as_bytes()[1..]);
        self.out.extend_from_slice(b"\n\n");
    }
}

impl Taker for Stream {
    fn take(&mut self, piece: Piece<'_>) {
        if self.over {
            return;
        }
        match piece {
            Piece::Start { id, model } => {
                let model = if model.is_empty() { self.answering.model.clone() } else { model.to_owned() };
                self.begin(id, &model);
                self.chunk(32, |out| out.extend_from_slice(b"\"role\":\"assistant\",\"content\":\"\""));
            }
            Piece::Text(text) => self.said("text", text),
            Piece::TextBlock => self.is_apart = !self.answering.strict,
            Piece::Refusal(text) => self.chunk(room("refusal", text), |out| field(out, "refusal", text)),
            Piece::Thinking(text) if self.answering.blocks => self.said("thinking", text),
            Piece::Signature(text) if self.answering.blocks => self.said("signature", text),
            Piece::Redacted(data) if self.answering.blocks => self.said("data", data),
            Piece::Thinking("") | Piece::Signature(_) => (),
            Piece::Thinking(_) | Piece::Redacted(_) => self.lose("thinking"),
            Piece::Image { mime, data } if self.answering.images => {
                let url = format!("data:{mime};base64,{data}");
                self.show("image_url", &json!({"image_url": {"url": url}}));
            }
            Piece::Image { .. } => self.lose("image"),
            Piece::Seal(signature) => {
                self.event(&choice(&json!({"extra_content": {"google": {"thought_signature": signature}}})));
            }
            Piece::Aside { place, name, json } => self.add(place, name, json),
            Piece::Cites(cites) => self.cites(&cites),
            Piece::Native { kind, .. } if self.answering.strict => self.lose(kind),
            Piece::Native { json, .. } => {
                if let Ok(block) = serde_json::from_str(json) {
                    self.show("native", &block);
                }
            }
            Piece::Call { id, name, signature } => self.call(id, name, signature),
            Piece::Arguments { call, json } => self.chunk(json.len() + 64, |out| {
                let _ = write!(out, "\"tool_calls\":[{{\"index\":{call},\"function\":{{");
                field(out, "arguments", json);
                out.extend_from_slice(b"}}]");
            }),
            Piece::Usage(usage) => self.usage = Some(usage),
            Piece::Finish { reason, .. } => self.finish = Some(reason.to_owned()),
            Piece::Failed { kind, message, code } => {
                self.failed(&errors::on_the_way(ApiFormat::OpenAi, kind, message, code));
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

/// A chunk with nothing but a delta.
fn choice(delta: &Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": null}]})
}

/// How long a field is whose text needs no escapes.
fn room(key: &str, text: &str) -> usize {
    key.len() + text.len() + "\"\":\"\"".len()
}

fn field(out: &mut Vec<u8>, key: &str, text: &str) {
    for part in [b"\"", key.as_bytes(), b"\":"] {
        out.extend_from_slice(part);
    }
    let _ = serde_json::to_writer(out, text);
}
