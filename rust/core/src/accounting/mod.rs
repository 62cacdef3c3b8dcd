//! Usage, cost and the record that each request leaves.

pub mod prices;
pub mod record;
pub mod token_counting;
