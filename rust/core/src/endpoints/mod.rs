//! Endpoints that do more than forward: batches, files, realtime, model lists, token counts, management.

pub mod batches;
pub(crate) mod builtin;
pub(crate) mod count_tokens;
pub(crate) mod files;
pub(crate) mod forward;
pub(crate) mod limit_admission;
pub mod management_proxy;
pub(crate) mod model_list;
pub mod realtime;
pub(crate) mod target_endpoint;
pub(crate) mod translated;
pub(crate) mod upload_url;
