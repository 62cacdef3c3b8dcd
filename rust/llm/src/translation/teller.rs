//! Who tells a caller: takes the pieces of an answer and gives bytes in the caller's dialect.

use super::{
    lost::Unsaid,
    piece::{Piece, Taker},
};

pub trait Teller: Taker + Send {
    /// What is to be sent so far; for a whole answer, all of it, once.
    fn told(&mut self) -> Vec<u8>;
}

/// Tells, and notes what it cost as the provider said it.
pub struct Noting {
    teller: Box<dyn Teller>,
    unsaid: Unsaid,
}

impl Noting {
    pub fn new(teller: Box<dyn Teller>, unsaid: Unsaid) -> Self {
        Self { teller, unsaid }
    }
}

impl Taker for Noting {
    fn take(&mut self, piece: Piece<'_>) {
        if let Piece::Usage(usage) = piece {
            self.unsaid.cost(usage);
        }
        self.teller.take(piece);
    }
}

impl Teller for Noting {
    fn told(&mut self) -> Vec<u8> {
        self.teller.told()
    }
}
