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
    use super::conversation::WebSocketHandle;
    #[pymodule_export]
    use super::engine::{
        BatchRecorder, Engine, catalogue, check, config_schema, is_secret_name, start_preemption_ticker,
        translate_batch_line, translate_batch_result,
    };
    #[pymodule_export]
    use super::errors::EngineError;
}
