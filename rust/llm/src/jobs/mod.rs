//! Jobs that providers run: batches and fine-tuning.

pub(crate) mod batch;
pub mod batch_providers;
pub(crate) mod fine_tuning;
pub mod fine_tuning_providers;
