//! Writes streamed content: each event is an answer with the next words.

use std::io::Write;

use serde_json::Value;

use super::parts::{self, Calling, Said};
use crate::{
    api_format::{ApiFormat, gemini},
    chat::{
        event::{Piece, Taker},
        response_context::Answering,
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
    id: String,
    model: String,
    /// Calls are told when they are complete: their arguments are an object here.
    calls: Vec<Calling>,
    told: usize,
    usage: Option<Usage>,
    finish: Option<String>,
    over: bool,
}

impl Stream {
    pub fn new(answering: Answering) -> Self {
        Self {
            out: Vec::new(),
            answering,
            id: String::new(),
            model: String::new(),
            calls: Vec::new(),
            told: 0,
            usage: None,
            finish: None,
            over: false,
        }
    }

    fn event(&mut self, said: Said<'_>) {
        let told = said.told(&self.answering, &self.id, &self.model);
        // A Vec takes every write.
        let _ = write!(self.out, "data: {told}\n\n");
    }

    fn say(&mut self, part: Value) {
        self.tell_calls();
        self.event(Said { parts: vec![part], finish: None, usage: None });
    }

    fn tell_calls(&mut self) {
        let parts: Vec<_> = self.calls[self.told..].iter().map(Calling::told).collect();
        self.told = self.calls.len();
        if !parts.is_empty() {
            self.event(Said { parts, finish: None, usage: None });
        }
    }

    fn end(&mut self) {
        self.over = true;
        self.tell_calls();
        let (reason, usage) = (self.finish.take().unwrap_or_default(), self.usage.take());
        self.event(Said { parts: vec![parts::text("")], finish: Some(&reason), usage: usage.as_ref() });
    }
}

impl Taker for Stream {
    fn take(&mut self, piece: Piece<'_>) {
        if self.over {
            return;
        }
        match piece {
            Piece::Start { id, model } => {
                id.clone_into(&mut self.id);
                model.clone_into(&mut self.model);
            }
            Piece::Text("") | Piece::TextBlock | Piece::Refusal("") | Piece::Thinking("") => (),
            Piece::Text(text) | Piece::Refusal(text) => self.say(parts::text(text)),
            Piece::Thinking(text) if self.answering.blocks => self.say(parts::thought(text)),
            Piece::Signature(text) if self.answering.blocks => self.say(parts::signature(text)),
            Piece::Redacted(data) if self.answering.blocks => self.say(parts::redacted(data)),
            Piece::Thinking(_) | Piece::Signature(_) | Piece::Redacted(_) => (),
            Piece::Seal(signature) => self.say(parts::seal(signature)),
            Piece::Image { mime, data } => self.say(parts::image(mime, data)),
            // A comment would be too much: Google's own clients take every line for JSON.
            Piece::Aside { name, .. } | Piece::Cites(Cites { name, .. }) | Piece::Native { kind: name, .. } => {
                self.answering.lose(name);
            }
            Piece::Call { id, name, signature } => self.calls.push(Calling::new(id, name, signature)),
            Piece::Arguments { call, json } => {
                if let Some(call) = self.calls.get_mut(call) {
                    call.arguments.push_str(json);
                }
            }
            Piece::Usage(usage) => self.usage = Some(usage),
            Piece::Finish { reason, .. } => self.finish = Some(reason.to_owned()),
            Piece::Failed { kind, message, code } => {
                self.over = true;
                let failure = errors::on_the_way(ApiFormat::Gemini, kind, message, code);
                self.out.extend_from_slice(&gemini::error_event(&failure));
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
