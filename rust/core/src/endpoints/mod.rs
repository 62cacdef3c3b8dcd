//! Endpoints that do more than forward: batches, files, realtime, model lists, token counts, management.

pub mod batches;
pub(crate) mod count_tokens;
pub(crate) mod files;
pub mod management_proxy;
pub(crate) mod model_list;
pub mod realtime;
