//! The Python face of the engine: extract, call, convert; nothing is decided here.

mod callback;
mod conversation;
mod engine;
mod errors;
mod exchange;
mod fields;
mod peer;
mod reader;
mod runtime;
mod scope;
mod waiting;

use pyo3::prelude::*;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The extension module. `penstock.engine` is its only importer.
#[pymodule]
mod _engine {
    #[pymodule_export]
    use super::conversation::Conversation;
    #[pymodule_export]
    use super::engine::{
        Engine, Ledger, catalogue, check, config_schema, end_turns_in_time, may_be_secret, say_line, tell_line,
    };
    #[pymodule_export]
    use super::errors::EngineError;
}
