//! Tests of translation, parsing and usage. One binary, so that everything links once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends where it fails")]

mod golden_cases;

mod client_formats;
mod conformance;
mod equivalent_shapes;
mod errors;
mod event_stream;
mod field_coverage;
mod golden;
mod hosted_tools;
mod hostile;
mod lenient;
mod lenient_streams;
mod meter;
mod opaque;
mod param_map;
mod peek;
mod searches;
mod sse;
mod text_coverage;
mod thinking_budgets;
mod tokens;
mod usage;
