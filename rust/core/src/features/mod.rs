//! The features of a config: each file holds its settings, how it is inherited, what it does, its tests.

pub mod custom_host;
pub mod forward_headers;
pub mod inspect_stream;
pub mod timeout;
