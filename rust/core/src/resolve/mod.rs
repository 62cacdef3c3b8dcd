//! Target resolution: config, provider, model, address and credential of a request.

pub(crate) mod base_urls;
pub(crate) mod inline_policy;
pub(crate) mod log_fields;
pub mod models;
pub(crate) mod prompt_access;
pub mod route_plan;
pub mod target;
pub(crate) mod target_address;
pub mod target_resolver;
