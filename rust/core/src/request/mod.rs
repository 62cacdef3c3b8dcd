//! Building the upstream request: head, parameter mapping, translation.

pub(crate) mod body_fields;
pub(crate) mod include_usage;
pub(crate) mod inference_profiles;
pub mod internal_request;
pub(crate) mod param_map;
pub(crate) mod send;
pub(crate) mod translate;
pub(crate) mod translate_stream;
pub mod upstream_head;
pub(crate) mod usage_estimator;
