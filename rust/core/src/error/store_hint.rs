//! Hint that the gateway's own file and batch store works with every provider.

use penstock_llm::operation::Operation;

/// Returns the hint for an operation by its id. Empty for operations that the store does not serve.
pub(super) fn gateway_store_hint(operation: &str) -> &'static str {
    let is_it = |candidate: &&Operation| candidate.id() == operation;
    let is_store_operation = |candidate: &Operation| {
        candidate.is_file_operation() || candidate.is_batch() || *candidate == Operation::GetBatchOutput
    };
    if Operation::ALL.iter().find(is_it).is_some_and(is_store_operation) {
        "; hint: with a store, the gateway manages files and batches itself, for any provider: leave out \
         x-gateway-provider or set it to `gateway`, and name this provider in gateway_options of the batch \
         (docs/batches.md)"
    } else {
        ""
    }
}
