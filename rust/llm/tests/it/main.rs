//! Tests of translation, parsing and usage. One binary, so that everything links once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

mod golden_cases;

mod asking;
mod callers;
mod conformance;
mod errors;
mod event_stream;
mod golden;
mod hostile;
mod kept;
mod lenient;
mod lenient_streams;
mod meter;
mod opaque;
mod peek;
mod searches;
mod sse;
mod tokens;
mod usage;
mod wording;
