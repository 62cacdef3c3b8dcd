//! Python bindings of the engine. They extract arguments, call the core and convert results; they contain no gateway
//! logic.

mod body_readers;
mod callback;
mod engine;
mod errors;
mod exchange;
mod fields;
mod peer;
mod reader;
mod record_columns;
mod runtime;
mod scope;
mod spool_frames;
mod spool_sums;
mod websocket;

use pyo3::prelude::*;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Extension module. Only `penstock.engine` imports it.
#[pymodule]
mod _engine {
    #[pymodule_export]
    use super::engine::{
        BatchRecorder, BurstTicker, Engine, catalogue, check, classify_texts, client_format, config_schema,
        count_interrupted, guardrail_checks, is_secret_field, mask_body_secrets, mask_query, prompt_variables,
        refuse_destination, register_plugins, replace_inline_data, run_guardrail, set_default_models,
        set_plugin_socket, set_recorded_usage, shown_header, start_preemption_ticker, translate_batch_line,
        translate_batch_result,
    };
    #[pymodule_export]
    use super::errors::EngineError;
    #[pymodule_export]
    use super::record_columns::{DecodedRecords, RecordDecoder};
    #[pymodule_export]
    use super::spool_frames::{decode_spool_frames, split_spool_frames};
    #[pymodule_export]
    use super::spool_sums::{BudgetSums, RequestCounts};
    #[pymodule_export]
    use super::websocket::WebSocketHandle;

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    /// Digest of the `.rs` files that the extension was built from.
    #[pymodule_export]
    const SOURCES_SHA256: &str = env!("PENSTOCK_SOURCES_SHA256");
}
