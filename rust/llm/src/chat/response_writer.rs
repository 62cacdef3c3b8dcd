//! Who tells a caller: takes the pieces of an answer and gives bytes in the caller's dialect.

use super::signatures::Kept;
use crate::{
    chat::{
        event::{Piece, Taker},
        response_context::Answering,
    },
    translation::dropped::Unsaid,
};

pub trait Teller: Taker + Send {
    /// What is to be sent so far; for a whole answer, all of it, once.
    fn told(&mut self) -> Vec<u8>;
}

/// Tells, and notes what it cost as the provider said it, and how calls are signed.
pub struct Noting {
    teller: Box<dyn Teller>,
    unsaid: Unsaid,
    signatures: Option<Kept>,
}

impl Noting {
    pub fn new(teller: Box<dyn Teller>, answering: &Answering) -> Self {
        Self { teller, unsaid: answering.unsaid.clone(), signatures: answering.signatures.clone() }
    }
}

impl Taker for Noting {
    fn take(&mut self, piece: Piece<'_>) {
        match (piece, &self.signatures) {
            (Piece::Usage(usage), _) => self.unsaid.cost(usage),
            (Piece::Call { id, signature: Some(signature), .. }, Some(kept)) => kept.keep(id, signature),
            _ => (),
        }
        self.teller.take(piece);
    }
}

impl Teller for Noting {
    fn told(&mut self) -> Vec<u8> {
        self.teller.told()
    }
}
