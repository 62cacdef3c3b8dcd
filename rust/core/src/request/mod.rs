//! Building the upstream request: head, parameter mapping, translation.

pub(crate) mod include_usage;
pub mod internal_request;
pub(crate) mod param_map;
pub mod request_head;
pub(crate) mod translate;
