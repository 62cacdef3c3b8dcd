//! Writes a streamed conversation's next message, in frames.

use serde_json::{Value, json};

use super::usage;
use crate::chat::clients::bedrock_converse::{response::citations, signature_blocks};
use crate::{
    api_format::{ApiFormat, bedrock},
    chat::{
        event::{Piece, Taker},
        finish_reason,
        response_context::Answering,
        response_writer::Teller,
    },
    citations::{Cited, Cites},
    stream::aws_event_stream::encode,
    translation::errors,
    usage::Usage,
};

#[derive(Debug)]
pub struct Stream {
    answering: Answering,
    out: Vec<u8>,
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
    finish: String,
    over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    Call,
}

impl Stream {
    pub fn new(answering: Answering) -> Self {
        Self {
            answering,
            out: Vec::new(),
            is_begun: false,
            blocks: 0,
            open: None,
            is_apart: false,
            cited: Vec::new(),
            calls: Vec::new(),
            usage: Usage::default(),
            finish: String::new(),
            over: false,
        }
    }

    fn frame(&mut self, name: &str, payload: &Value) {
        self.out.extend_from_slice(&encode("event", name, payload.to_string().as_bytes()));
    }

    fn begin(&mut self) {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.frame("messageStart", &json!({"role": "assistant"}));
        }
    }

    /// The block of this kind that is open, or a new one.
    fn open(&mut self, kind: Kind) -> usize {
        let is_apart = kind == Kind::Text && std::mem::take(&mut self.is_apart);
        if self.open != Some(kind) || kind == Kind::Call || is_apart {
            self.begin();
            self.close();
            self.open = Some(kind);
            self.blocks += 1;
        }
        self.blocks - 1
    }

    fn close(&mut self) {
        self.cited.clear();
        if self.open.take().is_some() {
            let index = self.blocks - 1;
            self.frame("contentBlockStop", &json!({"contentBlockIndex": index}));
        }
    }

    fn delta(&mut self, index: usize, delta: &Value) {
        self.frame("contentBlockDelta", &json!({"contentBlockIndex": index, "delta": delta}));
    }

    fn say(&mut self, kind: Kind, delta: &Value) {
        let index = self.open(kind);
        self.delta(index, delta);
    }

    /// What was said already stays in its block, which all that it is from is told with.
    fn cites(&mut self, cites: &Cites<'_>) {
        let is_open = self.open == Some(Kind::Text) && !self.is_apart;
        let told = |one: &Cited| one.to_converse(&self.answering.documents).filter(|_| is_open);
        let sources: Vec<_> = cites.cited.iter().filter_map(told).collect();
        self.answering.lose_of(cites, sources.len() == cites.cited.len());
        for source in sources {
            if !self.cited.contains(&source) {
                self.say(Kind::Text, &json!({"citation": source}));
                self.cited.push(source);
            }
        }
    }

    /// A block of its own that nobody may read.
    fn redact(&mut self, delta: &Value) {
        self.close();
        self.say(Kind::Thinking, delta);
        self.close();
    }

    fn call(&mut self, id: &str, name: &str) {
        let index = self.open(Kind::Call);
        let start = json!({"toolUse": {"toolUseId": id, "name": name}});
        self.frame("contentBlockStart", &json!({"contentBlockIndex": index, "start": start}));
        self.calls.push(index);
    }

    fn end(&mut self) {
        self.begin();
        self.close();
        self.over = true;
        let reason = finish_reason::to_bedrock(&self.finish);
        self.frame("messageStop", &json!({"stopReason": reason}));
        let usage = usage(&self.usage);
        self.frame("metadata", &json!({"usage": usage}));
    }
}

impl Taker for Stream {
    fn take(&mut self, piece: Piece<'_>) {
        if self.over {
            return;
        }
        match piece {
            Piece::Start { .. } => self.begin(),
            Piece::TextBlock => self.is_apart = true,
            Piece::Text("") | Piece::Refusal("") | Piece::Thinking("") => (),
            Piece::Text(text) | Piece::Refusal(text) => {
                self.is_apart |= !self.cited.is_empty();
                self.say(Kind::Text, &json!({"text": text}));
            }
            Piece::Thinking(text) => self.say(Kind::Thinking, &json!({"reasoningContent": {"text": text}})),
            Piece::Signature(text) => {
                if self.open != Some(Kind::Thinking) {
                    // Clients of Amazon's send no signature back without words.
                    self.say(Kind::Thinking, &json!({"reasoningContent": {"text": ""}}));
                }
                self.say(Kind::Thinking, &json!({"reasoningContent": {"signature": text}}));
                self.close();
            }
            Piece::Redacted(data) => self.redact(&json!({"reasoningContent": {"redactedContent": data}})),
            Piece::Seal(signature) => self.redact(&signature_blocks::of_text(signature)),
            // A frame has no place for a comment.
            Piece::Image { .. } => self.answering.lose("image"),
            Piece::Aside { place, name, json } => match citations(place, name, json) {
                Some(citations) => {
                    for citation in citations {
                        self.say(Kind::Text, &json!({"citation": citation}));
                    }
                }
                None => self.answering.lose(name),
            },
            Piece::Cites(cites) => self.cites(&cites),
            Piece::Native { kind: name, .. } => self.answering.lose(name),
            Piece::Call { id, name, signature } => {
                if let Some(signature) = signature {
                    self.redact(&signature_blocks::of_call(signature));
                }
                self.call(id, name);
            }
            Piece::Arguments { call, json } => {
                if let (Some(block), false) = (self.calls.get(call), json.is_empty()) {
                    self.delta(*block, &json!({"toolUse": {"input": json}}));
                }
            }
            Piece::Usage(usage) => self.usage = usage,
            Piece::Finish { reason, .. } => reason.clone_into(&mut self.finish),
            Piece::Failed { kind, message, code } => {
                self.over = true;
                let failure = errors::on_the_way(ApiFormat::Bedrock, kind, message, code);
                self.out.extend_from_slice(&bedrock::error_event(&failure));
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
