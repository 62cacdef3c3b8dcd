//! What providers' APIs look like: operations, dialects, providers, files, streams, translation, usage and tokens. Pure, no I/O.

pub mod avro;
pub mod dialect;
pub mod files;
pub mod moment;
pub mod operation;
pub mod providers;
pub mod stream;
pub mod tokens;
pub mod translation;
pub mod usage;
pub mod xml;
