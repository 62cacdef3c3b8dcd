//! Streams of answers: bytes in, events and usage out, no waiting.

pub mod deltas;
pub mod meter;
pub mod skim;
pub mod sse;
