//! The features of a config: each file holds its settings, how it is inherited, what it does, its tests.

pub mod cache;
pub mod circuit_breaker;
pub mod custom_host;
pub mod forward_headers;
pub mod inspect_stream;
pub mod parameters;
pub mod recovery;
pub mod retry;
pub mod strict;
pub mod timeout;
