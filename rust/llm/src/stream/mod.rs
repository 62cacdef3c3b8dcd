//! Streams of answers: bytes in, events and usage out, no waiting.

pub mod meter;
pub mod sse;
