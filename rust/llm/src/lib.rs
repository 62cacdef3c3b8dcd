//! What providers' APIs look like: operations, dialects, providers, streams, usage and tokens. Pure, no I/O.

pub mod dialect;
pub mod operation;
pub mod providers;
pub mod stream;
pub mod tokens;
pub mod usage;
