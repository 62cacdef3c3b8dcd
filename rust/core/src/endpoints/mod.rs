//! Endpoints: how a request is served. `client_endpoint` chooses by the head of the request, `target_endpoint` by its
//! target.

pub mod batches;
pub(crate) mod builtin;
pub(crate) mod client_endpoint;
pub(crate) mod collected_body;
pub(crate) mod count_tokens;
pub(crate) mod files;
pub(crate) mod forward;
pub(crate) mod guardrail_trials;
pub(crate) mod limit_admission;
pub mod management_proxy;
pub(crate) mod model_list;
mod prompts;
pub(crate) mod provider_pipeline;
pub mod realtime;
pub(crate) mod target_endpoint;
pub(crate) mod translated;
pub(crate) mod upload_url;
