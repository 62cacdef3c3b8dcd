//! Who tells a caller: takes the pieces of an answer and gives bytes in the caller's dialect.

use super::piece::Taker;

pub trait Teller: Taker + Send {
    /// What is to be sent so far; for a whole answer, all of it, once.
    fn told(&mut self) -> Vec<u8>;
}
