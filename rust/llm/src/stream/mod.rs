//! Streams of answers: bytes in, events out, no waiting.

pub mod sse;
