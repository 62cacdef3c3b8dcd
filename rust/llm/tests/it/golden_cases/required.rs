//! Golden cases that every provider needs. `conformance` checks them; the example `new-provider` writes them.

use penstock_llm::{api_format::ApiFormat, catalog::Provider, files::FileStore, operation::Operation};

/// Golden cases that each translated operation of a provider needs.
pub const REQUIRED_CASES: [&str; 3] = ["complete", "stream", "error"];

/// Returns the cases that a provider needs, with their operations.
pub fn required_cases(provider: &'static dyn Provider) -> Vec<(Operation, &'static str)> {
    let is_shown = |operation: &&Operation| {
        let is_translated =
            provider.provider_format(**operation, "").is_some() && !is_vendor_client_operation(**operation);
        // File operations of providers with a file store take several requests; the `files` tests of the core crate
        // cover them.
        let is_passed = provider.supports_natively(**operation) && file_store_for(provider, **operation).is_none();
        is_translated || is_passed && !is_realtime_or_internal(**operation)
    };
    let cases_of = |operation: &Operation| {
        REQUIRED_CASES.iter().filter(|case| needs_case(*operation, case)).map(|case| (*operation, *case)).collect()
    };
    Operation::ALL.iter().filter(is_shown).flat_map(|operation| -> Vec<_> { cases_of(operation) }).collect()
}

/// Returns true if the operation needs this case. Only chat operations stream, and some stream under another operation.
pub fn needs_case(operation: Operation, case: &str) -> bool {
    let is_vendors = matches!(operation.api_format(), Some(ApiFormat::Gemini | ApiFormat::Bedrock));
    match case {
        "stream" => operation.is_always_streaming() || operation.is_chat() && !is_vendors,
        "complete" => !operation.is_always_streaming(),
        _ => true,
    }
}

/// Returns true for realtime sockets, which pass unchanged, and for requests that the gateway itself sends to a
/// provider's file store.
fn is_realtime_or_internal(operation: Operation) -> bool {
    let is_of_jobs = ["BatchJob", "BatchObject", "BatchDataset"].iter().any(|suffix| operation.id().ends_with(suffix));
    is_of_jobs || operation == Operation::Realtime
}

/// Returns true for operations of Google and Amazon clients. `client_formats.rs` tests them against every provider; few golden
/// files exist.
fn is_vendor_client_operation(operation: Operation) -> bool {
    matches!(operation.api_format(), Some(ApiFormat::Gemini | ApiFormat::Bedrock))
        && operation != Operation::CountTokens
}

/// Returns the provider's file store if the operation is about files.
pub fn file_store_for(provider: &dyn Provider, operation: Operation) -> Option<FileStore> {
    provider.row().file_store.filter(|_| operation.is_file_operation())
}
