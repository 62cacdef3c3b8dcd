//! Writes a streamed completion.

use std::io::Write;

use serde_json::{Value, json};

use crate::chat::clients::openai_completions::response::{choice, lost};
use crate::{
    api_format::{ApiFormat, openai_chat},
    chat::{
        clients::openai_chat::usage,
        event::{Piece, Taker},
        response_context::Answering,
        response_writer::Teller,
    },
    translation::errors,
    usage::Usage,
};

#[derive(Debug)]
pub struct Stream {
    out: Vec<u8>,
    answering: Answering,
    id: String,
    model: String,
    usage: Option<Usage>,
    finish: String,
    over: bool,
}

impl Stream {
    pub fn new(answering: Answering) -> Self {
        Self {
            out: Vec::new(),
            id: answering.name(),
            model: answering.model.clone(),
            answering,
            usage: None,
            finish: String::new(),
            over: false,
        }
    }

    fn event(&mut self, key: &str, value: Value, choices: &Value) {
        let mut chunk = json!({"id": self.id, "object": "text_completion", "created": self.answering.created,
            "model": self.model, "provider": self.answering.provider, "choices": choices});
        if !key.is_empty() {
            chunk[key] = value;
        }
        // A Vec takes every write.
        let _ = write!(self.out, "data: {chunk}\n\n");
    }

    /// Names in a comment what cannot be told: the head of the answer is long gone.
    fn lose(&mut self, name: &str) {
        if self.answering.unsaid.add(name) {
            let _ = write!(self.out, ": not translated: {name}\n\n");
        }
    }

    fn end(&mut self) {
        self.over = true;
        let reason = std::mem::take(&mut self.finish);
        let choices = choice("", Some(self.answering.reason(&reason)));
        self.event("", Value::Null, &choices);
        // In an event of its own, which is taken out again where nobody asked for it.
        if let Some(cost) = self.usage.take() {
            self.event("usage", usage(&cost), &json!([]));
        }
        self.out.extend_from_slice(openai_chat::DONE_EVENT);
    }
}

impl Taker for Stream {
    fn take(&mut self, piece: Piece<'_>) {
        if self.over {
            return;
        }
        match piece.plain() {
            Piece::Start { id, model } => {
                for (known, told) in [(&mut self.id, id), (&mut self.model, model)] {
                    if !told.is_empty() {
                        told.clone_into(known);
                    }
                }
            }
            Piece::Text("") | Piece::TextBlock | Piece::Refusal("") => (),
            Piece::Text(text) | Piece::Refusal(text) => self.event("", Value::Null, &choice(text, None)),
            Piece::Aside { name, .. } if self.answering.strict => self.lose(name),
            Piece::Aside { name, json, .. } => {
                if let Ok(value) = serde_json::from_str(json) {
                    self.event(name, value, &choice("", None));
                }
            }
            Piece::Usage(usage) => self.usage = Some(usage),
            Piece::Finish { reason, .. } => reason.clone_into(&mut self.finish),
            Piece::Failed { kind, message, code } => {
                self.over = true;
                let failure = errors::on_the_way(ApiFormat::OpenAi, kind, message, code);
                self.out.extend_from_slice(&openai_chat::error_event(&failure));
            }
            Piece::End => self.end(),
            piece => {
                if let Some(name) = lost(&piece) {
                    self.lose(name);
                }
            }
        }
    }
}

impl Teller for Stream {
    fn told(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}
