//! Features of a config. Each file contains the settings, inheritance, behaviour and tests of one feature.

pub mod cache;
pub mod circuit_breaker;
pub mod custom_host;
pub mod forward_headers;
pub mod guardrails;
pub mod inspect_stream;
pub mod parameters;
pub mod recovery;
pub mod retry;
pub mod strict;
pub mod timeout;
