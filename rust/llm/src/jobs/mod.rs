//! Jobs that providers run: batches and fine-tuning.

pub(crate) mod batch;
pub mod batch_providers;
pub(crate) mod batch_response;
pub(crate) mod fine_tuning;
pub mod fine_tuning_providers;
pub(crate) mod fine_tuning_response;
pub(crate) mod job_list;
pub(crate) mod provider_jobs;
