//! Chat in a canonical form: read from any client format, written to any provider format, and back.

pub(crate) mod call_ids;
pub(crate) mod clients;
pub(crate) mod event;
pub(crate) mod finish_reason;
pub mod providers;
pub(crate) mod request;
pub(crate) mod response_context;
pub(crate) mod response_writer;
pub(crate) mod sequential_tool_calls;
pub(crate) mod signatures;
pub(crate) mod transcoder;
