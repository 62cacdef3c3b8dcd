//! Writes a whole completion.

use serde_json::{Value, json};

use crate::{
    chat::{
        clients::openai_chat::usage,
        event::{Piece, Taker},
        finish_reason,
        request::Fields,
        response_context::{Answering, extend, merge},
        response_writer::Teller,
    },
    usage::Usage,
};

#[derive(Debug)]
pub struct Whole {
    answering: Answering,
    id: String,
    model: String,
    text: String,
    usage: Option<Usage>,
    finish: String,
    /// What stands beside the words.
    beside: Fields,
}

impl Whole {
    pub fn new(answering: Answering) -> Self {
        Self {
            id: answering.name(),
            model: answering.model.clone(),
            answering,
            text: String::new(),
            usage: None,
            finish: String::new(),
            beside: Fields::new(),
        }
    }
}

impl Taker for Whole {
    fn take(&mut self, piece: Piece<'_>) {
        match piece.plain() {
            Piece::Start { id, model } => {
                for (known, told) in [(&mut self.id, id), (&mut self.model, model)] {
                    if !told.is_empty() {
                        told.clone_into(known);
                    }
                }
            }
            Piece::Text(text) | Piece::Refusal(text) => self.text.push_str(text),
            Piece::Aside { name, json, .. } => {
                if let Some(value) = self.answering.kept(name, json) {
                    merge(&mut self.beside, name, value);
                }
            }
            Piece::Usage(usage) => self.usage = Some(usage),
            Piece::Finish { reason, .. } => reason.clone_into(&mut self.finish),
            Piece::TextBlock | Piece::Failed { .. } | Piece::End => (),
            piece => lost(&piece).into_iter().for_each(|name| self.answering.lose(name)),
        }
    }
}

/// What is no text, by the name under which it is missed.
pub(crate) fn lost<'a>(piece: &Piece<'a>) -> Option<&'a str> {
    match piece {
        Piece::Thinking("") | Piece::Signature(_) | Piece::Arguments { .. } => None,
        Piece::Thinking(_) | Piece::Redacted(_) => Some("thinking"),
        Piece::Seal(_) => Some("thought_signature"),
        Piece::Image { .. } => Some("image"),
        Piece::Call { .. } => Some("tool_calls"),
        Piece::Native { kind, .. } => Some(kind),
        _ => None,
    }
}

/// The one choice that there is.
pub(crate) fn choice(text: &str, reason: Option<&str>) -> Value {
    json!([{"text": text, "index": 0, "logprobs": null, "finish_reason": reason}])
}

impl Answering {
    /// Why it ended, in the word that the caller is to be told.
    pub(crate) fn reason<'r>(&self, reason: &'r str) -> &'r str {
        if self.strict { finish_reason::to_openai(reason) } else { reason }
    }
}

impl Teller for Whole {
    fn told(&mut self) -> Vec<u8> {
        let choices = choice(&self.text, Some(self.answering.reason(&self.finish)));
        let mut answer = json!({"id": self.id, "object": "text_completion", "created": self.answering.created,
            "model": self.model, "provider": self.answering.provider, "choices": choices});
        if let Some(cost) = &self.usage {
            answer["usage"] = usage(cost);
        }
        extend(&mut answer, &mut self.beside);
        answer.to_string().into_bytes()
    }
}
