//! Citations that come with blocks of text, told as stretches of it to who knows no blocks.

use serde_json::Value;

use super::to_anthropic;
use crate::chat::{
    event::{Piece, Place, Taker},
    response_writer::Teller,
};
use crate::citations::cited_text::{Cited, Cites};

const CITATIONS: &str = "citations";

pub struct ByBlock<T> {
    teller: T,
    /// How many characters were said, and at how many the block began.
    said: usize,
    begun: usize,
    /// Where the block is from: in Anthropic's words, and as it was said.
    sources: Vec<Value>,
    own: Vec<Value>,
}

impl<T: Teller> ByBlock<T> {
    pub fn new(teller: T) -> Self {
        Self { teller, said: 0, begun: 0, sources: Vec::new(), own: Vec::new() }
    }

    /// The block is over: now it is known how far it goes.
    fn end(&mut self) {
        let claim = std::mem::replace(&mut self.begun, self.said)..self.said;
        if self.own.is_empty() {
            return;
        }
        let json = Value::from(std::mem::take(&mut self.own)).to_string();
        let cited = std::mem::take(&mut self.sources).into_iter().map(|one| Cited::of(claim.clone(), one));
        let cited: Vec<_> = cited.collect();
        let all = Cites { place: Place::Block, name: CITATIONS, json: &json, cited: &cited, rest: &[] };
        self.teller.take(Piece::Cites(all));
    }
}

impl<T: Teller> Taker for ByBlock<T> {
    fn take(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Text(text) => self.said += text.chars().count(),
            Piece::Aside { place: Place::Block, name: CITATIONS, json } => {
                let list = serde_json::from_str::<Value>(json).unwrap_or_default();
                if let (Some(sources), Value::Array(own)) = (to_anthropic(&list), list) {
                    self.sources.extend(sources);
                    self.own.extend(own);
                    return;
                }
            }
            Piece::Start { .. }
            | Piece::Aside { .. }
            | Piece::Cites(_)
            | Piece::Usage(_)
            | Piece::Arguments { .. }
            | Piece::Thinking("")
            | Piece::Refusal("") => (),
            _ => self.end(),
        }
        self.teller.take(piece);
    }
}

impl<T: Teller> Teller for ByBlock<T> {
    fn told(&mut self) -> Vec<u8> {
        self.teller.told()
    }
}
